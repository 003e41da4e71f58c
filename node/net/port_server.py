"""A port that serves connections by a protocol: what they share, and their clean end."""

import asyncio
import ssl
from collections.abc import Callable
from typing import Generic, TypeVar

from duolog._background import Background

from duolog_server.node.net.connections import Connected, PortConnections
from duolog_server.node.net.handshakes import Handshakes, Served
from duolog_server.node.net.listener import close, listen
from duolog_server.node.net.receive_budget import ReceiveBudget
from duolog_server.node.runtime.config import LimitsSection

SHORT_CALLS_MAX = 1024  # of one connection, beside those that wait for messages
SHUTDOWN_SECONDS = 2.0  # of TLS
# Turns of the event loop until a connection that was accepted while the port closed is made,
# refused and lost.
CLOSING_TURNS = 4
C = TypeVar("C", bound=Connected)


class PortServer(Generic[C]):
    """Listens for clients of one protocol.

    Attributes:
        port: where it listens; 0 before.
    """

    def __init__(
        self,
        limits: LimitsSection,
        failed: Callable[[Exception], None],
        refused: Callable[[str, str], None],
    ) -> None:
        """failed: called with a bug in a call. refused: with the address and the limit, where a
        connection is closed at once.
        """
        self.port = 0
        self._calls = Background(failed)
        self._ticking = Background(failed)
        self._connections: PortConnections[C] = PortConnections(limits, refused)
        self._arriving = ReceiveBudget(limits.arriving_bytes_max)
        self._servers: list[asyncio.Server] = []
        self._handshakes: Handshakes | None = None

    @property
    def connections(self) -> int:
        """Open connections."""
        return len(self._connections)

    @property
    def refused(self) -> int:
        """Connections that were too many."""
        return self._connections.refused

    @property
    def buffered_bytes(self) -> int:
        """Bytes of the room for long frames that have not arrived whole."""
        return self._arriving.taken

    async def _serve_secured(
        self, made: Callable[[], Served], host: str, port: int, tls: ssl.SSLContext | None
    ) -> None:
        """Listen at one more address. tls: of all connections, or None. Raises OSError."""
        if tls is None:
            await self._serve(made, host, port)
            return
        self._handshakes = Handshakes(tls, SHUTDOWN_SECONDS)
        await self._serve(self._handshakes.of(made), host, port)

    async def _serve(self, made: Callable[[], asyncio.BaseProtocol], host: str, port: int) -> None:
        """Listen at one more address. Raises OSError."""
        server = await listen(made, host, port)
        self._servers.append(server)
        if not self.port:
            self.port = int(server.sockets[0].getsockname()[1])
            self._ticking.start(self._connections.tick())

    async def stop(self, grace: float) -> None:
        """Take no more calls, give open ones so many seconds to end, close."""
        for server in self._servers:
            await close(server)
        if self._handshakes is not None:
            await self._handshakes.stop()
        await self._connections.stop(grace, self._calls)
        await self._ticking.stop()
        for _ in range(CLOSING_TURNS):
            await asyncio.sleep(0)
