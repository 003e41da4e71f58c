"""The console served over HTTP, on sockets that are open already, and its connections.

Rules: a request arrives within REQUEST_SECONDS, an answer is read without a pause of WRITE_SECONDS,
or its connection ends. Where there are too many, the one that has kept the console waiting for a
request the longest makes room: who only holds connections open shuts nobody out. What an answer
that is made while it is sent holds is released when its browser is gone.
"""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import ExitStack
from typing import Any

import uvicorn
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from duolog_server.node.net.handshakes import Handshakes
from duolog_server.node.net.listener import ACCEPTED_AT_ONCE, queue
from duolog_server.ops.console.http.security import App

CONNECTIONS_MAX = 256
REQUEST_SECONDS = 10.0
WRITE_SECONDS = 20.0
EVENTS = "text/event-stream"
TASKS_MAX = 2 * CONNECTIONS_MAX  # running answers, also of clients that left
HEADER_BYTES_MAX = 32 << 10
IDLE_SECONDS = 15
STOP_SECONDS = 2


class Connection(H11Protocol):
    """uvicorn's, with an end."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._asking: asyncio.TimerHandle | None = None  # runs while a request arrives
        self._reading: asyncio.TimerHandle | None = None  # runs while no answer is read
        self._began = self.loop.time()

    @property
    def waiting(self) -> bool:
        """Whether the browser has to say something before the console can answer."""
        return self.cycle is None or self.cycle.more_body or self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A browser connects."""
        super().connection_made(transport)
        self._ask()
        if len(self.connections) > CONNECTIONS_MAX:
            others = (one for one in self.connections if isinstance(one, Connection))
            idle = [one for one in others if one.waiting]  # itself, at the worst
            oldest = min(idle, key=lambda one: one._began)
            self.connections.discard(oldest)  # the next one counts before this one's end is noticed
            oldest.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone."""
        self._asking = _cancelled(self._asking)
        self._reading = _cancelled(self._reading)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """A part of a request, or several."""
        super().data_received(data)
        if self.waiting:
            self._ask()
        else:
            self._asking = _cancelled(self._asking)
        self._see_out()

    def on_response_complete(self) -> None:
        """An answer is written; the next request may have begun to arrive already."""
        self._asking, self._began = _cancelled(self._asking), self.loop.time()
        super().on_response_complete()
        if not self.cycle.response_complete and self.cycle.more_body:
            self._ask()
        self._see_out()

    def pause_writing(self) -> None:
        """The browser does not read as fast as it is answered."""
        super().pause_writing()
        self._read()

    def resume_writing(self) -> None:
        """It has read most of it."""
        super().resume_writing()
        self._reading = _cancelled(self._reading)

    def _ask(self) -> None:
        if self._asking is None:
            self._asking = self.loop.call_later(REQUEST_SECONDS, self.transport.abort)

    def _read(self) -> None:
        if self._reading is None:
            self._reading = self.loop.call_later(WRITE_SECONDS, self.transport.abort)

    def _see_out(self) -> None:
        """A connection that is closed waits for what it has written to be read: not for ever."""
        if self.transport.is_closing() and self in self.connections:
            self._read()


def _cancelled(timer: asyncio.TimerHandle | None) -> asyncio.TimerHandle | None:
    if timer is not None:
        timer.cancel()
    return None


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


class Server(uvicorn.Server):
    """Ends when its owner stops it, not by the signals of its process."""

    def __init__(self, app: App, context: ssl.SSLContext | None = None) -> None:
        """context: None for plain text."""
        config = uvicorn.Config(
            app,
            http=Connection,
            ws="none",
            lifespan="on",
            backlog=ACCEPTED_AT_ONCE,
            log_config=None,
            log_level="error",  # anybody can send invalid requests
            access_log=False,
            server_header=False,
            proxy_headers=False,
            limit_concurrency=TASKS_MAX,
            h11_max_incomplete_event_size=HEADER_BYTES_MAX,
            timeout_keep_alive=IDLE_SECONDS,
            timeout_graceful_shutdown=STOP_SECONDS,
        )
        config.load()
        self._handshakes = Handshakes(context) if context is not None else None
        if self._handshakes is not None:
            made = self._handshakes.of(Connection)
            config.http_protocol_class = made  # type: ignore[assignment]
        super().__init__(config)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to accept."""
        await super().startup(sockets)
        queue(sockets or ())

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Cancel running requests."""
        if self._handshakes is not None:
            for server in self.servers:
                server.close()  # so that no further one begins
            await self._handshakes.stop()
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave them to the program."""
        yield

    def end(self) -> None:
        """Let `serve` return soon."""
        self.should_exit = True
