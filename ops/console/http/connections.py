"""Connections of browsers: how many there are, and how slow one may be.

Rules: a request arrives within REQUEST_SECONDS, an answer is read without a pause of WRITE_SECONDS,
or its connection ends. Where there are too many, the one that has kept the console waiting for a
request the longest makes room: who only holds connections open shuts nobody out.
"""

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

CONNECTIONS_MAX = 256
REQUEST_SECONDS = 10.0
WRITE_SECONDS = 20.0


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
