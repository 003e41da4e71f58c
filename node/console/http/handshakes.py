"""What serves a browser's connection until its TLS handshake is done."""

import asyncio
from collections.abc import Callable

from node.handshakes import Handshakes, Unsecured


class Handshake(Unsecured):
    """A connection before it is one."""

    def __init__(self, handshakes: Handshakes, connection: asyncio.Protocol) -> None:
        self._handshakes = handshakes
        self._connection = connection
        self._early = b""  # that came with the end of the handshake

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A browser connects."""
        assert isinstance(transport, asyncio.Transport), "TCP has both directions"
        peer = transport.get_extra_info("peername")
        self.address = peer[0] if isinstance(peer, tuple) else ""
        self._handshakes.begin(self, transport)

    def data_received(self, data: bytes) -> None:
        """The browser asks before the connection is known to be secured."""
        self._early += data

    def done(self, secured: asyncio.Transport) -> None:
        """See Unsecured."""
        if secured.is_closing():
            return
        secured.set_protocol(self._connection)
        self._connection.connection_made(secured)
        if self._early:
            self._connection.data_received(self._early)


def handshaking(
    handshakes: Handshakes, made: Callable[..., asyncio.Protocol]
) -> Callable[..., Handshake]:
    """What serves a new connection, until one of `made` does."""

    def handshake(**named: object) -> Handshake:
        return Handshake(handshakes, made(**named))

    return handshake


__all__ = ["Handshake", "handshaking"]
