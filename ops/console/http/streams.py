"""Answers that are made while they are sent.

Rules: what they hold is released when their browser is gone.
"""

from collections.abc import AsyncGenerator, Mapping
from contextlib import ExitStack

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

EVENTS = "text/event-stream"
_NO_HEADERS: Mapping[str, str] = {}


class Streamed(StreamingResponse):
    """Server-sent events, or a file."""

    def __init__(
        self,
        parts: AsyncGenerator[str, None],
        held: ExitStack,
        media_type: str = EVENTS,
        headers: Mapping[str, str] = _NO_HEADERS,
    ) -> None:
        """held: is closed at the end, however that comes."""
        own = {"Cache-Control": "no-store", **headers}
        super().__init__(parts, media_type=media_type, headers=own)
        self._parts = parts
        self._held = held

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send them."""
        with self._held:
            try:
                await super().__call__(scope, receive, send)
            finally:
                await self._parts.aclose()
