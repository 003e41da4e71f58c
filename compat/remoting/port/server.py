"""The remoting port: its connections, which of them have TLS, and their clean end.

The first byte of a frame is 0, as frames are shorter than 16 MiB; that of a TLS handshake is not. A
connection counts from its beginning, and is silent no longer than one of a client may be.
"""

import asyncio
import ssl
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import cast

import structlog
from duolog._busypoll import busy_poll

from duolog_server.compat.remoting.codec.frames import TLS_HANDSHAKE
from duolog_server.compat.remoting.port.connection import IDLE_TICKS, Connection, Terms
from duolog_server.compat.remoting.port.dispatcher import Dispatcher
from duolog_server.node.net.connections import Connected, host_of
from duolog_server.node.net.handshakes import Handshakes, Unsecured
from duolog_server.node.net.port_server import SHORT_CALLS_MAX, PortServer
from duolog_server.node.runtime.config import LimitsSection

log = structlog.get_logger("duolog.remoting")

Joined = Callable[[Connected, bool], bool]


class TlsSniffer(Unsecured, asyncio.BufferedProtocol):
    """Stands for a connection until it is one."""

    def __init__(
        self,
        handshakes: Handshakes,
        joined: Joined,
        made: Callable[[], Connection],
        arrivals: memoryview,
        only: bool,
    ) -> None:
        """joined: as a connection's. made: makes the connection. arrivals: see Terms. only: with
        TLS.
        """
        self._handshakes = handshakes
        self._joined = joined
        self._made = made
        self._arrivals = arrivals
        self._only = only
        self._transport: asyncio.Transport | None = None
        self._securing = False
        self._early = b""  # that came with the end of the handshake
        self._silent = 0  # ticks

    # -- the connection ------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio."""
        self._transport = cast(asyncio.Transport, transport)
        self.address = host_of(transport).address
        if not self._joined(self, True):
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio. Also where its handshake failed."""
        self._joined(self, False)
        self._transport = None

    def get_buffer(self, sizehint: int) -> memoryview:
        """See asyncio."""
        return self._arrivals

    def buffer_updated(self, nbytes: int) -> None:
        """The first bytes."""
        data, transport = bytes(self._arrivals[:nbytes]), self._transport
        if transport is None or transport.is_closing():
            return
        if self._securing:  # it is done, and not told yet
            self._early += data
        elif data[0] == TLS_HANDSHAKE:
            self._securing = True
            self._handshakes.begin(self, transport, data)
        elif self._only:
            log.warning("remoting: connection refused", peer=self.address, reason="it is not TLS")
            self.abort()
        else:
            self._begin(transport, data)

    def done(self, secured: asyncio.Transport) -> None:
        """See Unsecured."""
        if not secured.is_closing():
            self._begin(secured, self._early)

    def _begin(self, transport: asyncio.Transport, data: bytes) -> None:
        self._joined(self, False)
        connection = self._made()
        transport.set_protocol(connection)
        connection.connection_made(transport)
        if data:
            connection.feed(data)

    # -- as one of the port's ------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """See Connected."""
        return False

    def tick(self) -> None:
        """See Connected."""
        self._silent += 1
        if self._silent > IDLE_TICKS:
            self.abort()

    def go(self, reason: str) -> None:
        """See Connected."""

    def end_calls(self) -> None:
        """See Connected."""

    def close(self) -> None:
        """See Connected."""
        self.abort()

    def abort(self) -> None:
        """See Connected."""
        if self._transport is not None:
            self._transport.abort()


@dataclass(frozen=True, slots=True)
class Secured:
    """TLS of the port. only: plain connections are refused."""

    context: ssl.SSLContext
    only: bool


class RemotingServer(PortServer[Connected]):
    """Listens for clients of the remoting protocol."""

    def __init__(
        self, dispatcher: Dispatcher, limits: LimitsSection, failed: Callable[[Exception], None]
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
            dispatcher,
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
            self._made = self._sniffers(self._handshakes, tls.only)
        await self._serve(self._made, host, port)

    async def listen_also(self, host: str, port: int) -> None:
        """Serve the same at a second port, after `start`. Raises OSError."""
        await self._serve(self._made, host, port)

    def _connection(self) -> Connection:
        return Connection(self._terms, self._connections.joined)

    def _sniffers(self, handshakes: Handshakes, only: bool) -> Callable[[], TlsSniffer]:
        joined, arrivals = self._connections.joined, self._terms.arrivals
        return lambda: TlsSniffer(handshakes, joined, self._connection, arrivals, only)
