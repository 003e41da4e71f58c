"""TLS handshakes of browsers: how many are in progress, and how slow one may be.

Rules: a connection is one of the console's once its handshake is done, within HANDSHAKE_SECONDS.
Where too many are in progress, the oldest one of the address with the most of them ends: an address
that only opens connections does not shut out others, and takes no file descriptors from them.
"""

import asyncio
import ssl
from collections import Counter
from collections.abc import Callable

from duolog._background import Background

HANDSHAKES_MAX = 128
HANDSHAKE_SECONDS = 10.0


class Handshakes:
    """Those of a server."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._context = context
        self._background = Background()
        self._pending: dict[Handshake, asyncio.Transport] = {}  # the oldest first

    def __len__(self) -> int:
        return len(self._pending)

    def of(self, made: Callable[..., asyncio.Protocol]) -> Callable[..., "Handshake"]:
        """What serves a new connection, until one of `made` does."""

        def handshake(**named: object) -> Handshake:
            return Handshake(self, made(**named))

        return handshake

    async def stop(self) -> None:
        """End those in progress."""
        await self._background.stop()

    def begin(self, handshake: "Handshake", transport: asyncio.Transport) -> None:
        """A connection was accepted."""
        self._pending[handshake] = transport
        if len(self._pending) > HANDSHAKES_MAX:
            oldest = self._oldest_of_most()
            self._pending.pop(oldest).abort()  # this one, at the worst
        if handshake in self._pending:
            self._background.start(self._secure(handshake, transport))

    def _oldest_of_most(self) -> "Handshake":
        address, _ = Counter(one.address for one in self._pending).most_common(1)[0]
        return next(one for one in self._pending if one.address == address)

    async def _secure(self, handshake: "Handshake", transport: asyncio.Transport) -> None:
        loop = asyncio.get_running_loop()
        try:
            secured = await loop.start_tls(
                transport,
                handshake,
                self._context,
                server_side=True,
                ssl_handshake_timeout=HANDSHAKE_SECONDS,
            )
        except OSError as error:
            # Anybody can send what is no TLS, or go away. The frames of the error hold it, and
            # asyncio's buffers of 256 KiB.
            error.__traceback__ = None
            return
        finally:
            self._pending.pop(handshake, None)
        if secured is not None:
            handshake.done(secured)


class Handshake(asyncio.Protocol):
    """A connection before it is one. address: of the browser."""

    def __init__(self, handshakes: Handshakes, connection: asyncio.Protocol) -> None:
        self._handshakes = handshakes
        self._connection = connection
        self._early = b""  # that came with the end of the handshake
        self.address = ""

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
        """The handshake is: the connection begins."""
        if secured.is_closing():
            return
        secured.set_protocol(self._connection)
        self._connection.connection_made(secured)
        if self._early:
            self._connection.data_received(self._early)


__all__ = ["Handshakes"]
