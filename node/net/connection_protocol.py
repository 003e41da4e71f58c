"""How a port reads a connection: only while nothing is waited for, whatever that is.

Rules: where a client takes no answers, nothing more is read of it. A long frame that has begun is
read on once there is room for all of it; until then the rest stays with the client.
"""

import asyncio
import socket
from collections.abc import Callable
from typing import Any

from duolog_server.node.net.receive_budget import Pace, ReceiveBudget

TURN_SECONDS = 0.0005  # of one connection's frames; then others have their turn
ROOM, ANSWERS, TURN = "room", "answers", "turn"  # what reading waits for, among others


class ConnectionProtocol(asyncio.BufferedProtocol):
    """A connection of a port whose frames say how long they are.

    Attributes:
        pace: how fast the client sends.
    """

    def __init__(self, arriving: ReceiveBudget, joined: Callable[[Any, bool], bool]) -> None:
        """arriving: the room for long frames that have not arrived whole. joined: called at its
        beginning (which it may refuse) and its end.
        """
        self.pace = Pace()
        self._arriving = arriving
        self._joined = joined
        self._transport: asyncio.Transport | None = None
        self._lost = False
        self._held: set[object] = set()  # what reading waits for
        self._has_long = False  # frame that has begun, and has room or waits for it
        self._deaf = False  # the client takes no answers
        self._unsent = 0  # bytes of answers at the last tick
        self._when_taken: list[Callable[[], None]] = []

    @property
    def address(self) -> str:
        """The client's, without its port."""
        raise NotImplementedError

    def _read(self) -> None:
        """Handle what has arrived whole, unless something is waited for."""
        raise NotImplementedError

    def _refuse(self, reason: str) -> None:
        """End it, and leave the room."""
        raise NotImplementedError

    def _end(self) -> None:
        """Nothing comes any more, and nothing is answered."""
        raise NotImplementedError

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio."""
        self._end()
        self._joined(self, False)
        self._transport = None  # of TLS: 256 KiB, until the collector looked at all that is old

    def abort(self) -> None:
        """End it at once."""
        if self._transport is not None:
            self._transport.abort()

    def close(self) -> None:
        """End it, once what was written is out."""
        # Over TLS, a second call would disable `abort`.
        if self._transport is not None and not self._transport.is_closing():
            self._transport.close()

    @property
    def _is_over(self) -> bool:
        """Nothing is handled any more, nor written: asyncio logs writes to a broken connection."""
        return self._lost or self._transport is None or self._transport.is_closing()

    # -- reading -------------------------------------------------------------------------------

    def _hold(self, reason: object) -> None:
        """Read nothing until this is over."""
        transport = self._transport
        if not self._held and transport is not None and not transport.is_closing():
            transport.pause_reading()
        self._held.add(reason)

    def _release(self, reason: object) -> None:
        """End a reason to hold back; without one left, read what has arrived."""
        if reason not in self._held:
            return
        self._held.discard(reason)
        if not self._held and not self._lost:
            self._read()
            transport = self._transport
            if not self._held and transport is not None and not transport.is_closing():
                transport.resume_reading()

    def _give_turn(self) -> None:
        """Continue in a later turn of the event loop, after others."""
        self._hold(TURN)
        asyncio.get_running_loop().call_soon(self._go_on)

    def _go_on(self) -> None:
        """It is this connection's turn, unless the client has broken it off: while nothing is read,
        nothing else tells of that.
        """
        transport = self._transport
        line = None if transport is None or self._lost else transport.get_extra_info("socket")
        if transport is not None and line is not None and _is_broken(line):
            self._end()
            transport.abort()
        self._release(TURN)

    def _see_long(self, whole: int) -> None:
        """whole: bytes of the long frame that has begun to arrive; 0 for none."""
        if bool(whole) == self._has_long or self._lost:
            return
        self._has_long = bool(whole)
        if not whole:
            self._arriving.end(self)
        elif not self._arriving.begin(self, whole):
            self._hold(ROOM)

    @property
    def is_held_up(self) -> bool:
        """See Sender."""
        return bool(self._held - {ROOM})

    def read_on(self) -> None:
        """See Sender."""
        self._release(ROOM)

    def give_up(self, reason: str) -> None:
        """See Sender."""
        self._refuse(reason)

    # -- what the client takes -----------------------------------------------------------------

    def pause_writing(self) -> None:
        """See asyncio."""
        self._deaf = True
        self._hold(ANSWERS)

    def resume_writing(self) -> None:
        """See asyncio."""
        self._deaf = False
        self._tell_taken()
        self._release(ANSWERS)

    def when_taken(self, callback: Callable[[], None]) -> None:
        """Call this once the client has taken what was written so far, or is gone."""
        if self._deaf and not self._lost:
            self._when_taken.append(callback)
        else:
            callback()

    def _tell_taken(self) -> None:
        waiting, self._when_taken = self._when_taken, []
        for callback in waiting:
            callback()

    def _takes_some(self) -> bool:
        """Whether the client took answers since the last tick, on however slow a line."""
        assert self._transport is not None, "connected"
        before, self._unsent = self._unsent, self._transport.get_write_buffer_size()
        return self._unsent < before


def _is_broken(line: socket.socket) -> bool:
    try:
        return line.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) != 0
    except OSError:  # it is closed
        return True
