"""TLS handshakes of a port: how many are in progress, and how slow one may be.

Rules: a connection is one of its port once its handshake is done, within HANDSHAKE_SECONDS. Where
too many are in progress, the oldest one of the address with the most of them ends: an address that
only opens connections does not shut out others, and takes no memory and file descriptors from them.
An IPv6 client has a network of addresses, which count as one.
"""

import asyncio
import ssl
from collections import Counter
from collections.abc import Callable

from duolog._background import Background, without_frames

from duolog_server.node.net.networks import network_of

Served = asyncio.Protocol | asyncio.BufferedProtocol
HANDSHAKES_MAX = 128
HANDSHAKE_SECONDS = 10.0
SHUTDOWN_SECONDS = 30.0


class Unsecured(asyncio.BaseProtocol):
    """A connection before its handshake is done. address: of the client."""

    address: str = ""

    def done(self, secured: asyncio.Transport) -> None:
        """The handshake is: the connection begins, on another transport."""
        raise NotImplementedError


class Handshakes:
    """The handshakes of a server."""

    def __init__(self, context: ssl.SSLContext, shutdown_seconds: float = SHUTDOWN_SECONDS) -> None:
        """shutdown_seconds: for the other side to take what was written, and the end of TLS."""
        self._context = context
        self._shutdown_seconds = shutdown_seconds
        self._background = Background()
        # The transport of each, and whose it is; the oldest first.
        self._pending: dict[Unsecured, tuple[asyncio.Transport, str]] = {}

    def __len__(self) -> int:
        return len(self._pending)

    def of(self, made: Callable[..., Served]) -> Callable[..., "Handshake"]:
        """What serves a new connection, until one of `made` does."""

        def handshake(**named: object) -> Handshake:
            return Handshake(self, made(**named))

        return handshake

    async def stop(self) -> None:
        """End those in progress."""
        await self._background.stop()

    def begin(
        self, connection: Unsecured, transport: asyncio.Transport, early: bytes = b""
    ) -> None:
        """Secure a connection. `connection_lost` tells it that this failed.

        early: what came already.
        """
        self._pending[connection] = transport, network_of(connection.address)
        if len(self._pending) > HANDSHAKES_MAX:
            ended, _ = self._pending.pop(self._oldest_of_most())  # this one, at the worst
            ended.abort()
        if connection in self._pending:
            self._background.start(self._secure(connection, transport, early))

    def _oldest_of_most(self) -> Unsecured:
        most, _ = Counter(client for _, client in self._pending.values()).most_common(1)[0]
        return next(one for one, (_, client) in self._pending.items() if client == most)

    async def _secure(
        self, connection: Unsecured, transport: asyncio.Transport, early: bytes
    ) -> None:
        loop, secured = asyncio.get_running_loop(), None
        if early:
            # In the next turn, TLS takes over the transport; in the one after that, before anything
            # is read, it gets what came before.
            loop.call_soon(loop.call_soon, _feed, transport, early)
        try:
            secured = await loop.start_tls(
                transport,
                connection,
                self._context,
                server_side=True,
                ssl_handshake_timeout=HANDSHAKE_SECONDS,
                ssl_shutdown_timeout=self._shutdown_seconds,
            )
        except OSError as error:
            # Anybody can send what is no TLS, or go away. The frames of the error hold it, and
            # asyncio's buffers of 256 KiB.
            without_frames(error)
        finally:
            self._pending.pop(connection, None)
            if secured is None:
                connection.connection_lost(None)
        if secured is not None:
            connection.done(secured)


class Handshake(Unsecured, asyncio.Protocol):
    """A connection before it is one, on a port where all of them begin with TLS."""

    def __init__(self, handshakes: Handshakes, connection: Served) -> None:
        self._handshakes = handshakes
        self._connection = connection
        self._early = b""  # that came with the end of the handshake

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client connects."""
        assert isinstance(transport, asyncio.Transport), "TCP has both directions"
        peer = transport.get_extra_info("peername")
        self.address = peer[0] if isinstance(peer, tuple) else ""
        self._handshakes.begin(self, transport)

    def data_received(self, data: bytes) -> None:
        """The client asks before the connection is known to be secured."""
        self._early += data

    def done(self, secured: asyncio.Transport) -> None:
        """See Unsecured."""
        if secured.is_closing():
            return
        secured.set_protocol(self._connection)
        self._connection.connection_made(secured)
        if self._early:
            _feed(secured, self._early)


def _feed(transport: asyncio.Transport, data: bytes) -> None:
    """Give a transport's protocol what was read before it was its protocol."""
    protocol = transport.get_protocol()
    if isinstance(protocol, asyncio.Protocol) and not transport.is_closing():
        protocol.data_received(data)
    while data and isinstance(protocol, asyncio.BufferedProtocol) and not transport.is_closing():
        room = memoryview(protocol.get_buffer(len(data)))
        size = min(len(room), len(data))
        if not size:  # it takes no more now, and nobody keeps the rest
            transport.abort()
        room[:size] = data[:size]
        protocol.buffer_updated(size)
        data = data[size:]
