"""A connection before its first byte says whether it is plain or a TLS handshake.

The first byte of a frame is 0, as frames are shorter than 16 MiB; that of a handshake is not. A
connection counts from its beginning, and is silent no longer than one of a client may be.
"""

import asyncio
from collections.abc import Callable
from typing import cast

import structlog

from duolog_server.compat.remoting.codec.frames import TLS_HANDSHAKE
from duolog_server.compat.remoting.port.connection import IDLE_TICKS, Connection
from duolog_server.node.net.connections import Connected, host_of
from duolog_server.node.net.handshakes import Handshakes, Unsecured

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
