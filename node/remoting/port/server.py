"""The remoting port: connections, what they share, and their clean end."""

import asyncio
from collections import Counter
from collections.abc import Callable

import structlog
from duolog._background import Background

from node.config import LimitsSection
from node.remoting.codec.frames import FRAME_BYTES_MAX
from node.remoting.port.connection import Connection, Room, Terms
from node.remoting.port.desk import Desk

log = structlog.get_logger("duolog.remoting")

TICK_SECONDS = 1.0
POLL_SECONDS = 0.02  # while requests end
WHOLES = 8  # longest frames that all connections may hold while they have not arrived whole
SHORT_CALLS_MAX = 1024  # of one connection, beside those that wait for messages


class RemotingServer:
    """Listens for clients of the remoting protocol.

    Attributes:
        port: where it listens; 0 before.
        refused: connections that were too many.
    """

    def __init__(
        self, desk: Desk, limits: LimitsSection, failed: Callable[[Exception], None]
    ) -> None:
        """failed: is told of a bug in what all connections share."""
        self.port = 0
        self.refused = 0
        self._calls = Background(failed)
        self._ticking = Background(failed)
        self._connections: set[Connection] = set()
        self._of_address: Counter[str] = Counter()
        self._limits = limits
        self._stopping = False
        self._server: asyncio.Server | None = None
        frame_bytes_max = min(limits.request_bytes_max, FRAME_BYTES_MAX)
        self._terms = Terms(
            desk,
            self._calls.start,
            frame_bytes_max,
            limits.polls_max + SHORT_CALLS_MAX,
            Room(WHOLES * frame_bytes_max),
        )

    @property
    def connections(self) -> int:
        """Open connections."""
        return len(self._connections)

    @property
    def buffered_bytes(self) -> int:
        """Bytes held for frames that have not arrived whole."""
        return self._terms.room.taken

    async def start(self, host: str, port: int) -> None:
        """Listen; with port 0 on a free one. Raises OSError."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: Connection(self._terms, self._joined), host.strip("[]") or None, port
        )
        self.port = self._server.sockets[0].getsockname()[1]
        self._ticking.start(self._tick())

    def _joined(self, connection: Connection, begins: bool) -> bool:
        """A connection begins, or ends; False where it may not begin."""
        address = connection.host.address
        if not begins:
            if connection in self._connections:
                self._connections.discard(connection)
                self._of_address[address] -= 1
                if not self._of_address[address]:
                    del self._of_address[address]
            return True
        # One may be accepted in the turn in which the server closes.
        if self._stopping or self._refuses(address):
            return False
        self._connections.add(connection)
        self._of_address[address] += 1
        return True

    def _refuses(self, address: str) -> bool:
        limits = self._limits
        if len(self._connections) >= limits.connections_max:
            reason = "limits.connections_max"
        elif self._of_address.get(address, 0) >= limits.connections_per_address_max:
            reason = "limits.connections_per_address_max"
        else:
            return False
        self.refused += 1
        log.warning("remoting: too many connections", address=address, reason=reason)
        return True

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            for connection in list(self._connections):
                connection.tick()

    async def stop(self, grace: float) -> None:
        """Serve no more requests, let those under way end for so many seconds, close."""
        self._stopping = True
        if self._server is not None:
            self._server.close()
        for connection in list(self._connections):
            connection.go()
        until = asyncio.get_running_loop().time() + grace
        while self._busy and asyncio.get_running_loop().time() < until:
            await asyncio.sleep(POLL_SECONDS)
        for connection in list(self._connections):
            connection.end_calls()
        await self._calls.stop()
        for connection in list(self._connections):
            connection.close()
        await asyncio.sleep(0)  # what is out already closes
        for connection in list(self._connections):
            connection.abort()
        await self._ticking.stop()

    @property
    def _busy(self) -> bool:
        return any(connection.busy for connection in self._connections)


__all__ = ["RemotingServer"]
