"""Streams of events: what they hold is released when their browser is gone."""

from collections.abc import AsyncGenerator
from contextlib import ExitStack

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

EVENTS = "text/event-stream"


class Streamed(StreamingResponse):
    """Server-sent events."""

    def __init__(self, events: AsyncGenerator[str, None], held: ExitStack) -> None:
        """held: is closed at the end, however that comes."""
        super().__init__(events, media_type=EVENTS, headers={"Cache-Control": "no-store"})
        self._events = events
        self._held = held

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send them."""
        with self._held:
            try:
                await super().__call__(scope, receive, send)
            finally:
                await self._events.aclose()


__all__ = ["EVENTS", "Streamed"]
