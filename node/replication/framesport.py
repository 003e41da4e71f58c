"""The frames of a replication stream on a connection of their own, beside the call over gRPC.

| step | by | does |
|-----:|----|------|
| 1 | slave | calls FRAMES_METHOD |
| 2 | master | answers with headers: the port where it takes frames, and a key for one connection |
| 3 | slave | connects there, and greets with the key; the master welcomes it |
| 4 | slave | over gRPC, behind its proof: SWITCH; its Hello follows on the connection |

A frame is sent, and handled, in the turn of the event loop that made it or met it; over gRPC, each
one passes through other threads. Rules: where the master takes no frames, or the slave does not get
through to their port, the slave says Hello over gRPC, and all stays there. The call remains open
beside the connection: it proves who is who, and says why it ended; the end of one ends the other.
"""

import asyncio
import contextlib
import secrets
import ssl
from collections import deque
from collections.abc import Callable, Iterator
from typing import Protocol, cast

import structlog
from duolog import _frames as wire
from duolog._frames import Frame, FrameError, FrameReader, Kind

from duolog_server.ha.frames import BODY_BYTES_MAX, HEADER_BYTES, HELLO_BYTES_MAX
from duolog_server.node.net.connections import host_of
from duolog_server.node.net.port_server import PortServer
from duolog_server.node.replication.keyproof import Header
from duolog_server.node.runtime.config import LimitsSection
from duolog_server.node.runtime.openfiles import slaves_that_fit

log = structlog.get_logger("duolog.ha")

FRAMES_METHOD = "/duolog.ha.v1.Replication/Frames"
OFFER = "x-duolog-frames"  # header: port and key, or NONE
NONE = "none"
SWITCH = b"DLSW"
CONNECT_SECONDS = 0.5  # networks that drop what they do not let through must not delay an election
GREETING_TICKS = 5
HELD_TICKS = 20  # longer than a slave may take to prove its key and say SWITCH
CONNECTIONS_MAX = 256  # of a replication port; frames have as many beside
UNWRITTEN_BYTES = 256 << 10  # in the transport, then the next frame waits


class Line(Protocol):
    """A call over gRPC, or a connection, that carries the frames of a stream; by either end."""

    async def write(self, request: bytes, /) -> None:
        """Send a frame."""

    async def read(self) -> object:
        """The next frame; at the end, something that is not bytes."""


class FramesConnection(asyncio.BufferedProtocol):
    """A connection for frames, by either end.

    Attributes:
        take: handles a frame in the turn in which it arrives; False leaves it to `read`.
    """

    def __init__(
        self,
        greeted: Callable[["FramesConnection", Frame], object],
        frame_bytes_max: int,
    ) -> None:
        """greeted: handles the other end's greeting. Raises FrameError. frame_bytes_max: of a frame
        from there.
        """
        self.take: Callable[[bytes], bool] = lambda _: False
        self._greeting: Callable[[FramesConnection, Frame], object] | None = greeted
        self._frame_bytes_max = frame_bytes_max
        self._reader = FrameReader(wire.GREETING_BYTES)
        self._transport: asyncio.Transport | None = None
        self._inbox: deque[bytes] = deque()
        self._waiting: asyncio.Future[None] | None = None  # `read`
        self._held = False  # nothing is read
        self._writing: asyncio.Future[None] | None = None  # while the other end takes nothing
        self._error: Exception | None = None  # met by `take`
        self._lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(UNWRITTEN_BYTES)

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio."""
        self._lost = True
        self._wake()
        self.resume_writing()

    def close(self) -> None:
        """End it, once what was written is out."""
        # Over TLS, a second call would disable `abort`.
        if self._transport is not None and not self._transport.is_closing():
            self._transport.close()

    def abort(self) -> None:
        """End it at once."""
        if self._transport is not None:
            self._transport.abort()

    # -- reading -------------------------------------------------------------------------------

    def get_buffer(self, sizehint: int) -> memoryview:
        """See asyncio."""
        return self._reader.room()

    def buffer_updated(self, nbytes: int) -> None:
        """See asyncio: handle what has arrived whole."""
        self._reader.received(nbytes)
        try:
            while (found := self._reader.next()) is not None:
                self._arrived(found)
        except FrameError as problem:
            self._fail(ConnectionError(f"on the connection for frames: {problem}"))
        except Exception as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        """End it: `read` says why."""
        self._error = error
        self._wake()
        self.abort()

    def _arrived(self, found: Frame) -> None:
        if self._greeting is not None:
            self._greeting(self, found)
            self._greeting = None
            self._reader.frame_bytes_max = self._frame_bytes_max
            self._wake()
            return
        if found.kind != Kind.MESSAGE:
            raise FrameError(f"a frame of kind {found.kind} in a replication stream")
        frame = bytes(found.payload)
        if self._waiting is not None and not self._waiting.done() and self.take(frame):
            return
        self._inbox.append(frame)
        if len(self._inbox) == 1 and self._transport is not None:
            self._transport.pause_reading()  # so that few gather
        self._wake()

    def hold(self, held: bool) -> None:
        """Pause reading, or resume it."""
        self._held = held
        if held and self._transport is not None:
            self._transport.pause_reading()
        elif not held:
            self._resume()

    def _resume(self) -> None:
        if not (self._inbox or self._held or self._lost) and self._transport is not None:
            self._transport.resume_reading()

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    async def greeted(self) -> None:
        """Wait for the other end's greeting. Raises ConnectionError."""
        if self._greeting is not None and not self._lost:
            await self._wait()
        if self._greeting is not None:
            raise self._error or ConnectionError("the other end closed the connection for frames")

    async def _wait(self) -> None:
        self._waiting = asyncio.get_running_loop().create_future()
        await self._waiting

    async def read(self) -> bytes | None:
        """The next frame that `take` left; None at the end. Raises what `take` raised."""
        if not (self._inbox or self._lost or self._error):
            await self._wait()
        self._waiting = None
        if self._error is not None:
            raise self._error
        if not self._inbox:
            return None
        frame = self._inbox.popleft()
        self._resume()
        return frame

    # -- writing -------------------------------------------------------------------------------

    def pause_writing(self) -> None:
        """See asyncio."""
        self._writing = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        """See asyncio."""
        writing, self._writing = self._writing, None
        if writing is not None and not writing.done():
            writing.set_result(None)

    async def write(self, frame: bytes) -> None:
        """Send a frame; waits while the other end takes nothing. Raises ConnectionError."""
        if self._lost or self._transport is None or self._transport.is_closing():
            raise ConnectionError("the connection for frames is closed")
        for part in wire.message_parts(Kind.MESSAGE, 0, b"", frame):
            self._transport.write(part)
        if self._writing is not None:
            await self._writing

    def greet(self, data: bytes) -> None:
        """Send a greeting."""
        assert self._transport is not None, "connected"
        self._transport.write(data)


async def connect(host: str, offer: str, tls: ssl.SSLContext | None) -> FramesConnection:
    """The slave's end of a connection that a master offers. tls: None for plain text.

    Raises OSError (TimeoutError too); FrameError where the offer cannot be read.
    """

    def made() -> FramesConnection:
        return FramesConnection(
            lambda _, found: wire.read_welcome(found), HEADER_BYTES + BODY_BYTES_MAX
        )

    port, _, key = offer.partition(" ")
    try:
        hello, address = wire.hello(bytes.fromhex(key)), (host.strip("[]"), int(port))
        if not 0 < address[1] < 1 << 16:
            raise ValueError(port)
    except ValueError:
        raise FrameError(f"the master offers {offer!r}") from None
    async with asyncio.timeout(CONNECT_SECONDS):
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(made, *address, ssl=tls)
        try:
            connection.greet(hello)
            await connection.greeted()
        except BaseException:
            connection.abort()
            raise
    return connection


class Offer:
    """One connection that a master waits for, while a slave's call is open."""

    def __init__(self, port: int) -> None:
        self.key = secrets.token_bytes(wire.KEY_BYTES)
        self.headers: tuple[Header, ...] = ((OFFER, f"{port} {self.key.hex()}"),)
        self.connection: FramesConnection | None = None

    def taken(self) -> FramesConnection:
        """The connection that the slave, which has proved its key, says it has made.

        Raises ConnectionError.
        """
        if self.connection is None:
            raise ConnectionError("the slave made no connection for its frames")
        self.connection.hold(False)
        return self.connection


class _Served(FramesConnection):
    """The master's end."""

    def __init__(self, port: "FramesPort", joined: Callable[["_Served", bool], bool]) -> None:
        super().__init__(port.greeted, HELLO_BYTES_MAX)
        self._joined = joined
        self._age = 0  # ticks
        self.address = ""  # of the slave, without its port; TLS knows it no more at the end

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio."""
        super().connection_made(transport)
        self.address = host_of(transport).address
        if not self._joined(self, True):
            self.abort()

    def _fail(self, error: Exception) -> None:
        if self._greeting is not None:
            log.warning("a connection for replication was refused", reason=str(error))
        super()._fail(error)

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio."""
        super().connection_lost(exc)
        self._joined(self, False)

    def tick(self) -> None:
        """Once a second: end one that does not greet, does not end, or is not used."""
        self._age += 1
        assert self._transport is not None, "connected"
        takes_nothing = self._transport.is_closing()  # though its end was written
        late = self._greeting is not None and self._age > GREETING_TICKS
        given_up = self._held and self._age > HELD_TICKS  # its call carries the frames, or waits
        if takes_nothing or late or given_up:
            self.abort()

    # Its call ends it.
    busy = False

    def go(self, reason: str) -> None:
        """See Connected."""

    def end_calls(self) -> None:
        """See Connected."""


class FramesPort(PortServer[_Served]):
    """Where a master takes connections for the frames of its slaves' calls."""

    def __init__(self, limits: LimitsSection, failed: Callable[[Exception], None]) -> None:
        """limits: for connections of one address. failed: called with a fault of this node."""
        most = slaves_that_fit(CONNECTIONS_MAX)
        limits = limits.model_copy(update={"connections_max": most})
        super().__init__(
            limits,
            failed,
            lambda address, reason: log.warning(
                "replication: too many connections",
                address=address,
                reason=reason if "address" in reason else f"{most} connections",
            ),
        )
        self._offers: dict[bytes, Offer] = {}
        self._strangers: dict[_Served, None] = {}  # have not greeted; the oldest first
        self._strangers_max = limits.connections_max // 2

    async def start(self, host: str, port: int, tls: ssl.SSLContext | None) -> None:
        """Listen; with port 0 on a free one. tls: None for plain text. Raises OSError."""
        await self._serve_secured(self._connection, host, port, tls)

    def _connection(self) -> _Served:
        return _Served(self, self._joined)

    def _joined(self, connection: _Served, begins: bool) -> bool:
        """See PortConnections. Who only connects does not keep slaves out: the oldest one goes."""
        if not begins:
            self._strangers.pop(connection, None)
        elif len(self._strangers) >= self._strangers_max:
            oldest = next(iter(self._strangers))
            del self._strangers[oldest]
            oldest.abort()
        if not self._connections.joined(connection, begins):
            return False
        if begins:
            self._strangers[connection] = None
        return True

    @contextlib.contextmanager
    def offer(self) -> Iterator[Offer]:
        """Offer a connection to the slave of a call, and end it with the call."""
        offer = Offer(self.port)
        self._offers[offer.key] = offer
        try:
            yield offer
        finally:
            del self._offers[offer.key]
            if offer.connection is not None:
                offer.connection.close()

    def greeted(self, connection: FramesConnection, found: Frame) -> None:
        """A slave greets. Raises FrameError."""
        _, key = wire.read_hello(found)
        offer = self._offers.get(key)
        if offer is None or offer.connection is not None:
            raise FrameError("the greeting has a key that is not offered, or no more")
        offer.connection = connection
        self._strangers.pop(cast(_Served, connection), None)
        connection.hold(True)  # nothing is heard of a slave before it has proved its key
        connection.greet(wire.welcome(HELLO_BYTES_MAX, 0))
