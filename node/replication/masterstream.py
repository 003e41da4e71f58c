"""The replication port of a master: one stream per slave, raw frames in both directions."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import Executor
from functools import partial
from typing import Never

import grpc
import grpc.aio
import structlog
from duolog._background import Background, report

from duolog_server.ha import masterevents
from duolog_server.ha.frames import BODY_BYTES_MAX, BadFrame, Hello, Kind, decode, kind_of
from duolog_server.node.net.grpc.options import replication_port
from duolog_server.node.net.grpc.receive_limit.ledger import Ledger
from duolog_server.node.net.grpc.server import serve
from duolog_server.node.replication.framesport import (
    CONNECTIONS_MAX,
    FRAMES_METHOD,
    NONE,
    OFFER,
    SWITCH,
    FramesConnection,
    FramesPort,
    Line,
    Offer,
)
from duolog_server.node.replication.keyproof import Answer, Header, Unproven
from duolog_server.node.replication.outgoing import HA_METHOD, PROOF_SECONDS, Outgoing, Write
from duolog_server.node.replication.roles import Connection, Replication
from duolog_server.node.runtime.openfiles import slaves_that_fit
from duolog_server.node.runtime.tls import Tls
from duolog_server.store.clocks import MonoMs
from duolog_server.store.commitlog import CommitLog
from duolog_server.store.mappedfile import MappedFile

Frames = AsyncIterator[bytes]
Context = grpc.aio.ServicerContext[bytes, bytes]
# A method, with the name that its caller proved, empty where nobody had to prove one, and the
# connection for frames that it was offered.
Method = Callable[[str, Context, Offer | None], Coroutine[object, None, None]]
Served = Callable[[Frames, Context], Coroutine[object, None, None]]

log = structlog.get_logger("duolog.ha")

ARRIVING_BYTES_MAX = 8 << 20  # of what slaves say, which is short
HELLO_SECONDS = 10.0  # from the beginning of a stream
LAST_WRITE_SECONDS = 1.0
_BROKEN = (ConnectionError, asyncio.InvalidStateError)  # also raised for a call that is over


class ReplicationService:
    """Serves slaves on a port of their own."""

    def __init__(
        self,
        replication: Replication,
        threads: Executor,
        tls: Tls | None,
        failed: Callable[[Exception], None] = report,
    ) -> None:
        """threads: load pages for slaves that are far behind.

        tls: None for plain text. failed: called with errors that a broken connection does not
        explain.
        """
        self._failed = failed
        self._replication = replication
        self._threads = threads
        self._tls = tls
        connections = slaves_that_fit(CONNECTIONS_MAX)
        options = replication_port(BODY_BYTES_MAX, connections)
        self._server = serve(options, connections, Ledger(ARRIVING_BYTES_MAX, ARRIVING_BYTES_MAX))
        self.methods: dict[str, Served] = {}  # by path, each with its rule before it
        self.frames: FramesPort | None = None
        for path in (HA_METHOD, FRAMES_METHOD):
            self._serve(path, self._stream)

    def _serve(self, path: str, method: Method) -> None:
        """Add a method to the port. Raises KeyError where it has no rule."""
        ruled = self.methods[path] = RULES[path](self, method)
        service, _, name = path[1:].partition("/")
        handler: grpc.RpcMethodHandler[bytes, bytes]
        handler = grpc.stream_stream_rpc_method_handler(ruled)
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(service, {name: handler}),)
        )

    async def admit(self, context: Context, headers: tuple[Header, ...] = ()) -> str:
        """Authenticate the caller of a stream by the key, if this node has one.

        Ends the call (UNAUTHENTICATED) otherwise. headers: of the answer, beside those of the key.
        """
        try:
            return await self._proven_name(context, headers)
        except Unproven as refusal:
            await self._refuse(context, refusal)

    async def _refuse(self, context: Context, refusal: Unproven) -> Never:
        log.warning("a slave was refused", peer=context.peer(), reason=str(refusal))
        await context.abort(grpc.StatusCode.UNAUTHENTICATED, str(refusal))

    async def _proven_name(self, context: Context, headers: tuple[Header, ...]) -> str:
        """The name that the caller proved. Raises Unproven."""
        proof = self._replication.proof
        answer: Answer | None = None
        if proof is not None:
            answer = proof.answer(dict(context.invocation_metadata() or ()))
        if answer is not None:
            headers += answer.headers
        await context.send_initial_metadata(headers)
        if answer is not None:
            try:
                async with asyncio.timeout(PROOF_SECONDS):
                    message = await context.read()
            except TimeoutError:
                raise Unproven(f"the slave proved no key within {PROOF_SECONDS:.0f} s") from None
            answer.check(message if isinstance(message, bytes) else b"")
            return answer.slave
        if proof is not None:
            log.warning(
                "serving a slave that proves no key",
                peer=context.peer(),
                hint="access.node_proof is offered: give the slave the key file too",
            )
        return ""

    def listen(self, address: str) -> int:
        """Bind; the port, 0 if the address cannot be bound. Raises OSError (certificates)."""
        credentials = self._tls.of_server() if self._tls is not None else None
        try:
            if credentials is not None:
                return int(self._server.add_secure_port(address, credentials))
            return int(self._server.add_insecure_port(address))
        except RuntimeError:
            return 0

    async def start(self) -> None:
        """Start serving."""
        await self._server.start()

    async def stop(self) -> None:
        """End all streams."""
        await self._server.stop(None)
        if self.frames is not None:
            await self.frames.stop(0.0)

    async def _stream(self, slave: str, context: Context, offer: Offer | None) -> None:
        """One slave's connection: a task reads; what is to be sent goes out as it comes."""
        replication = self._replication
        master = replication.master
        line, first = await self._first(context, offer) if master is not None else (context, b"")
        if master is None or replication.master is not master:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "this node is not the master")
            return
        number = master.connect(self._replication.mono_ms())
        if number is None:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many slaves")
            return

        def broken(error: Exception) -> None:
            self._ended(number, error)
            reader.cancel()

        sender = _Sender((master, number), line.write, broken, self._threads, replication.mono_ms)
        # A task of its own: it may be cancelled, and the last write is still awaited.
        tasks = Background(partial(self._ended, number))
        hears = _Hearing(replication, (master, number), sender)
        if isinstance(line, FramesConnection):
            line.take = hears.take
        reader = tasks.start(self._read(first, (line, context), hears, slave))
        replication.connected((master, number), sender.wake, reader)
        try:
            await asyncio.wait((reader,))
            # gRPC cannot end a call in the middle of a write: let the last one end by itself.
            master.step(masterevents.Disconnected(number), replication.mono_ms())
            await sender.finish()
        finally:
            sender.stop()
            replication.disconnected((master, number))  # first: awaiting may be cancelled once more
            await tasks.stop()

    def _ended(self, session: int, error: Exception) -> None:
        """Log a stream that broke while it was read or written; its slave reconnects."""
        if isinstance(error, grpc.aio.AbortError):
            return  # a slave was refused, which was logged
        if type(error).__module__.startswith("grpc") or isinstance(error, _BROKEN):
            log.warning("a replication connection broke", session=session)
        else:
            self._failed(error)

    async def _read(
        self, data: object, lines: tuple[Line, Context], hears: "_Hearing", slave: str
    ) -> None:
        """Frames, to the end; data: the first one. lines: what carries them, and the call."""
        line, context = lines
        while isinstance(data, bytes):
            if slave and _is_hello_of_another(data, slave):
                await self._refuse(context, Unproven(f"only {slave!r} was proved as its name"))
            hears.received(data)
            data = await line.read()

    async def _first(self, context: Context, offer: Offer | None) -> tuple[Line, object]:
        """What carries a slave's frames, and the first one; ends the call of a silent slave."""
        try:
            async with asyncio.timeout(HELLO_SECONDS):
                data = await context.read()
                if data != SWITCH or offer is None:
                    return context, data
                connection = offer.taken()
                return connection, await connection.read()
        except TimeoutError:
            code = grpc.StatusCode.DEADLINE_EXCEEDED
            reason = f"the slave sent nothing for {HELLO_SECONDS:.0f} s"
        except ConnectionError as error:
            code, reason = grpc.StatusCode.FAILED_PRECONDITION, str(error)
        log.warning("a slave was refused", peer=context.peer(), reason=reason)
        await context.abort(code, reason)


class _Hearing:
    """Passes a slave's frames on to its master's machine."""

    def __init__(self, replication: Replication, connection: Connection, sender: "_Sender") -> None:
        self._replication = replication
        self._master, self._number = connection
        self._sender = sender

    def received(self, data: bytes) -> None:
        """A frame came."""
        replication = self._replication
        event = masterevents.Received(self._number, data)
        effects = self._master.step(event, replication.mono_ms())
        if effects:
            replication.perform(effects)
        replication.refusals.release_if_settled()
        if masterevents.CONFIRMED not in effects[-1:]:  # that wakes all senders
            self._sender.wake()

    def take(self, data: bytes) -> bool:
        """See FramesConnection: all but a Hello, which may be refused."""
        if kind_of(data) == Kind.HELLO:
            return False
        self.received(data)
        return True


def _proven_first(service: ReplicationService, method: Method) -> Served:
    """A method whose caller proves the key before anything else happens."""

    async def proven(requests: Frames, context: Context) -> None:
        await method(await service.admit(context), context, None)

    return proven


def _offered_first(service: ReplicationService, method: Method) -> Served:
    """The same, and its caller is offered a connection for frames, where this node takes them."""

    async def offered(requests: Frames, context: Context) -> None:
        if service.frames is None:
            await method(await service.admit(context, ((OFFER, NONE),)), context, None)
            return
        with service.frames.offer() as offer:
            await method(await service.admit(context, offer.headers), context, offer)

    return offered


# What each method of the port asks for; one that is not here cannot be served.
RULES: dict[str, Callable[[ReplicationService, Method], Served]] = {
    HA_METHOD: _proven_first,
    FRAMES_METHOD: _offered_first,
}


def _is_hello_of_another(data: bytes, slave: str) -> bool:
    """Whether a frame is the Hello of another node than that; other damage is not looked for."""
    if kind_of(data) != Kind.HELLO:
        return False
    with contextlib.suppress(BadFrame):
        frame = decode(data)
        return isinstance(frame, Hello) and frame.node != slave
    return False


class _Sender:
    """Sends one slave what its master's machine has for it, as soon as there is something."""

    def __init__(
        self,
        connection: Connection,
        write: Callable[[bytes], Write],
        broken: Callable[[Exception], None],
        threads: Executor,
        mono_ms: Callable[[], MonoMs],
    ) -> None:
        """broken: called if it ends by itself. threads: load what is not in memory."""
        self._master, self._number = connection
        self._mono_ms = mono_ms
        self._pages = ColdLoader(threads)
        self._outgoing = Outgoing(write, self._next_frame, broken)
        self._loading: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()

    def wake(self) -> None:
        """Send what there is to send."""
        self._outgoing.wake()

    async def finish(self) -> None:
        """Send nothing more, and wait for the write in flight."""
        await self._outgoing.finish(LAST_WRITE_SECONDS)

    def stop(self) -> None:
        """Be woken no more."""
        self._outgoing.stop()
        if self._timer is not None:
            self._timer.cancel()

    def _next_frame(self) -> bytes | None:
        if self._loading is not None:
            if not self._loading.done():
                return None  # it wakes this sender
            self._loading.result()
            self._loading = None
        session = self._master.sessions.get(self._number)
        log_ = self._master.store.log
        loading = None if session is None else self._pages.load(log_, session.sent)
        if loading is not None:
            self._loading = loading
            loading.add_done_callback(lambda _: self.wake())
            return None
        now_ms = self._mono_ms()
        frame = self._master.next_frame(self._number, now_ms)
        if frame is None:
            self._wake_when_due(self._master.wait_ms(self._number, now_ms))
        return frame

    def _wake_when_due(self, wait_ms: int) -> None:
        """One timer: it is kept if it fires early enough, and checks again then."""
        due = self._loop.time() + wait_ms / 1000 + 0.0005
        if self._timer is not None:
            if self._timer.when() <= due:
                return
            self._timer.cancel()
        self._timer = self._loop.call_at(due, self._ring)

    def _ring(self) -> None:
        self._timer = None
        self.wake()


# Pages of the log for a slave that is far behind, loaded in a thread before they are sent.
#
# So the event loop never waits for the disk. While one stretch is sent, the next one is loaded.
COLD_BYTES = 32 << 20  # slaves further behind may need pages that are not in memory
LOAD_BYTES = 8 << 20


class ColdLoader:
    """Loads cold log pages for one slave."""

    def __init__(self, threads: Executor) -> None:
        self._threads = threads
        self._loaded = 0
        self._next: asyncio.Future[None] | None = None

    def load(self, log_: CommitLog, sent: int) -> "asyncio.Future[None] | None":
        """A future for the bytes from an offset on; None: they are in memory.

        The stretch after them is begun with.
        """
        if sent + COLD_BYTES > log_.max_offset:
            return None
        if sent < self._loaded:
            return None
        if self._next is None or sent > self._loaded:
            self._loaded = sent
            self._next = self._start(log_)
        under_way = self._next
        self._loaded += LOAD_BYTES
        self._next = self._start(log_)
        return under_way

    def _start(self, log_: CommitLog) -> "asyncio.Future[None]":
        mapped = log_.queue.find(self._loaded)
        loop = asyncio.get_running_loop()
        if mapped is None:
            done: asyncio.Future[None] = loop.create_future()
            done.set_result(None)
            return done
        return loop.run_in_executor(self._threads, _load, mapped, self._loaded - mapped.start)


def _load(mapped: MappedFile, start: int) -> None:
    mapped.file.load(start, LOAD_BYTES)
