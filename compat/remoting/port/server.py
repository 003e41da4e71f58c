"""The remoting port: connections, what they share, and their clean end."""

import asyncio
import ssl
from collections.abc import Callable
from dataclasses import dataclass, replace

import structlog
from duolog._background import Background
from duolog._busypoll import busy_poll

from duolog_server.compat.remoting.port.connection import Connection, Terms
from duolog_server.compat.remoting.port.dispatcher import Desk
from duolog_server.compat.remoting.port.tls_sniffer import Doorway
from duolog_server.node.net.accept_limiter import Listening, listen
from duolog_server.node.net.connections import Connected, PortConnections
from duolog_server.node.net.handshakes import Handshakes
from duolog_server.node.net.receive_budget import Arriving
from duolog_server.node.runtime.config import LimitsSection

log = structlog.get_logger("duolog.remoting")

SHORT_CALLS_MAX = 1024  # of one connection, beside those that wait for messages


@dataclass(frozen=True, slots=True)
class Secured:
    """TLS of the port. only: plain connections are refused."""

    context: ssl.SSLContext
    only: bool


class RemotingServer:
    """Listens for clients of the remoting protocol.

    Attributes:
        port: where it listens; 0 before.
    """

    def __init__(
        self, desk: Desk, limits: LimitsSection, failed: Callable[[Exception], None]
    ) -> None:
        """failed: is told of a bug in what all connections share."""
        self.port = 0
        self._calls = Background(failed)
        self._ticking = Background(failed)
        self._connections: PortConnections[Connected] = PortConnections(
            limits,
            lambda address, reason: log.warning(
                "remoting: too many connections", address=address, reason=reason
            ),
        )
        self._servers: list[Listening] = []
        self._handshakes: Handshakes | None = None
        self._made: Callable[[], asyncio.BaseProtocol] = self._connection
        self._terms = Terms(
            desk,
            self._calls.start,
            limits.request_bytes_max,
            limits.polls_max + SHORT_CALLS_MAX,
            Arriving(limits.arriving_bytes_max),
        )

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
        return self._terms.arriving.taken

    async def start(
        self, host: str, port: int, tls: Secured | None = None, busy_poll_us: int = 0
    ) -> None:
        """Listen; with port 0 on a free one. tls: None for plain text alone. Raises OSError.

        busy_poll_us: how long to look for the request after an answer; see NodeSection.
        """
        self._terms = replace(self._terms, busy_poll=busy_poll(busy_poll_us))
        if tls is not None:
            self._handshakes = Handshakes(tls.context)
            self._made = self._doorways(self._handshakes, tls.only)
        self.port = await self._listen(host, port)
        self._ticking.start(self._connections.tick())

    async def listen_also(self, host: str, port: int) -> None:
        """Serve the same at a second port, after `start`. Raises OSError."""
        await self._listen(host, port)

    async def _listen(self, host: str, port: int) -> int:
        server = await listen(self._made, host, port)
        self._servers.append(server)
        return int(server.sockets[0].getsockname()[1])

    def _connection(self) -> Connection:
        return Connection(self._terms, self._connections.joined)

    def _doorways(self, handshakes: Handshakes, only: bool) -> Callable[[], Doorway]:
        joined, arrivals = self._connections.joined, self._terms.arrivals
        return lambda: Doorway(handshakes, joined, self._connection, arrivals, only)

    async def stop(self, grace: float) -> None:
        """Serve no more requests, let those under way end for so many seconds, close."""
        for server in self._servers:
            server.close()
        if self._handshakes is not None:
            await self._handshakes.stop()
        await self._connections.stop(grace, self._calls)
        await self._ticking.stop()


__all__ = ["RemotingServer", "Secured"]
