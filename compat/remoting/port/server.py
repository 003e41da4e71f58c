"""The remoting port: connections, what they share, and their clean end."""

import asyncio
import ssl
from collections.abc import Callable
from dataclasses import dataclass, replace

import structlog
from duolog._busypoll import busy_poll

from duolog_server.compat.remoting.port.connection import Connection, Terms
from duolog_server.compat.remoting.port.dispatcher import Dispatcher
from duolog_server.compat.remoting.port.tls_sniffer import TlsSniffer
from duolog_server.node.net.connections import Connected
from duolog_server.node.net.handshakes import Handshakes
from duolog_server.node.net.port_server import SHORT_CALLS_MAX, PortServer
from duolog_server.node.runtime.config import LimitsSection

log = structlog.get_logger("duolog.remoting")


@dataclass(frozen=True, slots=True)
class Secured:
    """TLS of the port. only: plain connections are refused."""

    context: ssl.SSLContext
    only: bool


class RemotingServer(PortServer[Connected]):
    """Listens for clients of the remoting protocol."""

    def __init__(
        self, desk: Dispatcher, limits: LimitsSection, failed: Callable[[Exception], None]
    ) -> None:
        """failed: called with a bug in what all connections share."""
        super().__init__(
            limits,
            failed,
            lambda address, reason: log.warning(
                "remoting: too many connections", address=address, reason=reason
            ),
        )
        self._made: Callable[[], asyncio.BaseProtocol] = self._connection
        self._terms = Terms(
            desk,
            self._calls.start,
            limits.request_bytes_max,
            limits.polls_max + SHORT_CALLS_MAX,
            self._arriving,
        )

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
        await self._serve(self._made, host, port)

    async def listen_also(self, host: str, port: int) -> None:
        """Serve the same at a second port, after `start`. Raises OSError."""
        await self._serve(self._made, host, port)

    def _connection(self) -> Connection:
        return Connection(self._terms, self._connections.joined)

    def _doorways(self, handshakes: Handshakes, only: bool) -> Callable[[], TlsSniffer]:
        joined, arrivals = self._connections.joined, self._terms.arrivals
        return lambda: TlsSniffer(handshakes, joined, self._connection, arrivals, only)
