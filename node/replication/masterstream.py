"""The replication port of a master: one stream per slave, raw frames in both directions."""

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Executor
from functools import partial

import grpc
import grpc.aio
import structlog
from duolog._background import Background, report

from ha import masterevents
from ha.master import Master
from node.replication.roles import Replication
from node.replication.stream import HA_METHOD, STREAM_OPTIONS
from node.tls import Tls
from store.mappedfile import MappedFile

Frames = AsyncIterator[bytes]
Context = grpc.aio.ServicerContext[bytes, bytes]

log = structlog.get_logger("duolog.ha")

LAST_WRITE_SECONDS = 1.0
_BROKEN = (ConnectionError, asyncio.InvalidStateError)  # raised for a call that is over, too
COLD_BYTES = 32 << 20  # who is further behind may need pages that are not in memory
LOAD_BYTES = 8 << 20


class ReplicationService:
    """Serves slaves on a port of its own."""

    def __init__(
        self,
        replication: Replication,
        threads: Executor,
        tls: Tls | None,
        failed: Callable[[Exception], None] = report,
    ) -> None:
        """threads: load what a slave far behind is sent. tls: None for plain text.

        failed: is told of errors that no broken connection explains.
        """
        self._failed = failed
        self._replication = replication
        self._threads = threads
        self._tls = tls
        self._server = grpc.aio.server(options=STREAM_OPTIONS)
        service, _, method = HA_METHOD[1:].partition("/")
        handler: grpc.RpcMethodHandler[bytes, bytes]
        handler = grpc.stream_stream_rpc_method_handler(self._stream)
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(service, {method: handler}),)
        )

    def listen(self, address: str) -> int:
        """Bind; the port, 0 if the address cannot be had. Raises OSError (certificates)."""
        credentials = self._tls.of_server() if self._tls is not None else None
        try:
            if credentials is not None:
                return int(self._server.add_secure_port(address, credentials))
            return int(self._server.add_insecure_port(address))
        except RuntimeError:
            return 0

    async def start(self) -> None:
        """Begin to serve."""
        await self._server.start()

    async def stop(self) -> None:
        """End all streams."""
        await self._server.stop(None)

    async def _stream(self, requests: Frames, context: Context) -> None:
        """One slave's connection: this task sends, another one reads."""
        replication = self._replication
        master = replication.master
        if master is None:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "this node is not the master")
            return
        number = master.connect(self._replication.mono_ms())
        if number is None:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many slaves")
            return
        wake = asyncio.Event()
        # No TaskGroup: the reader's end must not cancel the sender in the middle of a write.
        tasks = Background(partial(self._ended, number))
        reader = tasks.start(self._read(master, number, requests, wake))
        sender = tasks.start(self._send(master, number, context, wake))
        replication.connected((master, number), wake, reader)
        try:
            await asyncio.wait((reader, sender), return_when=asyncio.FIRST_COMPLETED)
            # gRPC cannot end a call in the middle of a write: let the last one end by itself.
            master.step(masterevents.Disconnected(number), replication.mono_ms())
            wake.set()
            await asyncio.wait((sender,), timeout=LAST_WRITE_SECONDS)
        finally:
            replication.disconnected((master, number))  # first: awaiting may be cancelled once more
            await tasks.stop()

    def _ended(self, session: int, error: Exception) -> None:
        """A stream that broke while it was read or written; its slave connects again."""
        if type(error).__module__.startswith("grpc") or isinstance(error, _BROKEN):
            log.warning("a replication connection broke", session=session)
        else:
            self._failed(error)

    async def _read(
        self, master: Master, number: int, requests: Frames, wake: asyncio.Event
    ) -> None:
        perform, mono_ms = self._replication.perform, self._replication.mono_ms
        async for data in requests:
            effects = master.step(masterevents.Received(number, data), mono_ms())
            if effects:
                perform(effects)
            wake.set()

    async def _send(
        self, master: Master, number: int, context: Context, wake: asyncio.Event
    ) -> None:
        loop = asyncio.get_running_loop()
        loader = _ColdLoader(self._threads, number)
        timer: asyncio.TimerHandle | None = None
        mono_ms = self._replication.mono_ms
        try:
            while number in master.sessions:
                wake.clear()
                if loader.wanted(master):
                    await loader.load(master)
                frame = master.next_frame(number, mono_ms())
                if frame is not None:
                    await context.write(frame)
                    continue
                due = loop.time() + master.wait_ms(number, mono_ms()) / 1000 + 0.0005
                if timer is None or not loop.time() < timer.when() <= due:
                    if timer is not None:
                        timer.cancel()
                    timer = loop.call_at(due, wake.set)
                await wake.wait()
        finally:
            if timer is not None:
                timer.cancel()


class _ColdLoader:
    """Brings a lagging slave's next pages into memory, in a thread: the loop never waits for them.

    While one stretch is sent, the next one is read.
    """

    def __init__(self, threads: Executor, number: int) -> None:
        self._threads = threads
        self._number = number
        self._loaded = 0
        self._next: asyncio.Future[None] | None = None

    def wanted(self, master: Master) -> bool:
        session = master.sessions.get(self._number)
        if session is None or session.sent + COLD_BYTES > master.store.log.max_offset:
            return False
        return session.sent >= self._loaded

    async def load(self, master: Master) -> None:
        """Wait for the stretch that is sent next, and start on the one after it."""
        at = master.sessions[self._number].sent
        if self._next is None or at > self._loaded:
            self._loaded = at
            self._next = self._start(master)
        await self._next
        self._loaded += LOAD_BYTES
        self._next = self._start(master)

    def _start(self, master: Master) -> "asyncio.Future[None]":
        mapped = master.store.log.queue.find(self._loaded)
        loop = asyncio.get_running_loop()
        if mapped is None:
            done: asyncio.Future[None] = loop.create_future()
            done.set_result(None)
            return done
        return loop.run_in_executor(self._threads, _load, mapped, self._loaded - mapped.start)


def _load(mapped: MappedFile, start: int) -> None:
    mapped.file.load(start, LOAD_BYTES)
