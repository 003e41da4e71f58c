"""The seam between the SDK's policy and what carries its calls: one node, over gRPC or over frames.

A NodeChannel opens calls as gRPC's channels do, so that the generated stubs work over any; errors
are gRPC's. Appends have a verb of their own: they are what must be quick.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeVar, cast

import grpc
import grpc.aio

from duolog._background import Background, report
from duolog._errors import DuologError, Unavailable, error_of
from duolog._forks import grpc_closed, grpc_opened
from duolog.wire import duolog_pb2 as wire
from duolog.wire import duolog_pb2_grpc as stubs

T = TypeVar("T")


class Channel(Protocol):
    """The part of a channel that stubs and its owner use; gRPC's channels have it."""

    @property
    def unary_unary(self) -> Callable[..., Any]:
        """Make a method with one request and one reply."""

    @property
    def unary_stream(self) -> Callable[..., Any]:
        """Make a method with one request and many replies."""

    @property
    def stream_stream(self) -> Callable[..., Any]:
        """Make a method with many of both."""

    async def close(self, grace: float | None) -> None:
        """End all calls."""


class NodeChannel(Channel, Protocol):
    """A channel to a node, as the SDK uses it."""

    async def append(
        self, request: wire.AppendRequest, bodies: bytes, deadline: float
    ) -> wire.AppendReply:
        """Append a batch; those that are sent one after the other arrive so.

        request: without bodies; its id is unique. bodies: the column. deadline: by the
        loop's clock. Raises TimeoutError; Unavailable if the connection breaks.
        """

    @property
    def busy(self) -> bool:
        """Whether appends wait for their answers."""


async def uncancelled(work: Awaitable[T]) -> T:
    """Await a gRPC operation; a call that was cancelled under it is Unavailable.

    grpc.aio raises CancelledError in the waiters of a call that ends by cancellation (a broken
    connection may do that). Only a cancellation of our own task may pass as one. The other way
    round it loses one that comes while a stream is made: the task would run on.
    """
    task = asyncio.current_task()
    assert task is not None, "a coroutine runs in a task"
    before = task.cancelling()
    try:
        result = await work
    except asyncio.CancelledError:
        if task.cancelling():
            raise
        raise Unavailable("the call was cancelled") from None
    except Exception:
        if task.cancelling() > before:
            raise asyncio.CancelledError from None
        raise
    if task.cancelling() > before:
        raise asyncio.CancelledError
    return result


# What a call of a broken or closed connection raises.
BROKEN = (grpc.RpcError, grpc.aio.UsageError, asyncio.InvalidStateError, Unavailable)


class Appending(Protocol):
    """An open call of Append."""

    async def write(self, request: wire.AppendRequest) -> None:
        """Send a request."""

    async def read(self) -> object:
        """The next reply, or what is none at the end."""

    async def code(self) -> grpc.StatusCode:
        """How the call ended."""

    async def details(self) -> str:
        """Why it ended so."""

    def cancel(self) -> bool:
        """End it."""


class AppendStream:
    """gRPC's append stream: requests go out as they come, replies are matched by id."""

    def __init__(self, call: Appending) -> None:
        self._call = call
        self._waiting: dict[int, asyncio.Future[wire.AppendReply]] = {}
        self._unwritten: dict[int, wire.AppendRequest] = {}  # of those that wait
        self._more = asyncio.Event()
        self._idle = asyncio.Event()  # no call waits
        self.error: DuologError | None = None
        # grpc.aio ends the whole call with a write that is cancelled: none of a caller's ever is.
        self._background = Background(self._died)
        for work in (self._write(), self._read()):
            self._background.start(work).add_done_callback(self._ended)

    @property
    def busy(self) -> bool:
        """Whether anybody waits for an answer."""
        return bool(self._waiting)

    async def append(self, request: wire.AppendRequest) -> wire.AppendReply:
        """Send a request, wait for its reply. Raises Unavailable if the stream breaks."""
        if self.error is not None:
            raise self.error
        future: asyncio.Future[wire.AppendReply] = asyncio.get_running_loop().create_future()
        self._waiting[request.id] = future
        self._unwritten[request.id] = request
        self._more.set()
        self._idle.clear()
        try:
            return await future
        finally:
            self._waiting.pop(request.id, None)
            self._unwritten.pop(request.id, None)
            if not self._waiting:
                self._idle.set()

    async def idle(self) -> None:
        """Wait until no call waits for an answer."""
        while self._waiting:
            await self._idle.wait()

    async def _write(self) -> None:
        """Write what is still waited for, in the order in which it came."""
        try:
            while self.error is None:
                await self._more.wait()
                self._more.clear()
                while self._unwritten:
                    first = next(iter(self._unwritten))
                    await uncancelled(self._call.write(self._unwritten.pop(first)))
        except BROKEN as failure:
            self._fail(failure)

    async def _read(self) -> None:
        try:
            while True:
                reply = await uncancelled(self._call.read())
                if not isinstance(reply, wire.AppendReply):
                    break
                waiting = self._waiting.get(reply.id)
                if waiting is not None and not waiting.done():
                    waiting.set_result(reply)
            # The node ended the stream: its status says why.
            code = await uncancelled(self._call.code())
            details = await uncancelled(self._call.details())
            self._fail(Unavailable(f"the append stream ended: {code.name} {details}"))
        except BROKEN as failure:
            self._fail(failure)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        """A task that something else cancelled, as a framework does with all tasks, ends both."""
        if task.cancelled():
            self._fail(Unavailable("a task of the append stream was cancelled"))

    def _died(self, error: Exception) -> None:
        """A fault of ours: fail the calls, whose answers are no longer read."""
        report(error)
        self._fail(error)

    def _fail(self, failure: Exception) -> None:
        if self.error is None:
            if isinstance(failure, grpc.RpcError):
                self.error = error_of(failure)
            else:
                self.error = (
                    failure
                    if isinstance(failure, DuologError)
                    else (Unavailable("the append stream is closed"))
                )
        self._more.set()  # a broken stream is not closed: its writer ends by itself
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(self.error)

    async def close(self) -> None:
        """End the stream; waiting sends fail."""
        self._fail(Unavailable("the client was closed"))
        self._call.cancel()
        await self._background.stop()


class GrpcChannel:
    """A node over gRPC: a channel, and the append stream, reopened when it breaks."""

    def __init__(self, channel: Channel) -> None:
        self.unary_unary = self._counted(channel.unary_unary)
        self.unary_stream = self._counted(channel.unary_stream)
        self.stream_stream = self._counted(channel.stream_stream)
        self._channel = channel
        self._stream: AppendStream | None = None
        self._in_flight = 0  # calls, without the append stream
        self._ended = asyncio.Event()  # one of them
        grpc_opened(self)

    def _counted(self, make: Callable[..., Any]) -> Callable[..., Any]:
        """Methods whose calls are in flight until they end."""

        def method(*names: Any, **how: Any) -> Callable[..., Any]:
            begin = make(*names, **how)

            def call(*given: Any, **terms: Any) -> Any:
                begun = begin(*given, **terms)
                if isinstance(begun, grpc.aio.RpcContext):  # gRPC's, not a test's
                    self._in_flight += 1
                    begun.add_done_callback(self._call_ended)
                return begun

            return call

        return method

    def _call_ended(self, call: object) -> None:
        self._in_flight -= 1
        self._ended.set()

    @property
    def in_use(self) -> bool:
        """Whether any call is in flight."""
        return self.busy or self._in_flight > 0

    async def unused(self) -> None:
        """Wait until no call is in flight."""
        while self.in_use:
            await self.idle()
            while self._in_flight:
                self._ended.clear()
                await self._ended.wait()

    @property
    def busy(self) -> bool:
        """Whether appends wait for their answers."""
        return self._stream is not None and self._stream.busy

    async def append(
        self, request: wire.AppendRequest, bodies: bytes, deadline: float
    ) -> wire.AppendReply:
        """See NodeChannel."""
        stream = self._stream
        if stream is None or stream.error is not None:
            stub = stubs.MessagesStub(cast(grpc.aio.Channel, self._channel))
            stream = self._stream = AppendStream(stub.Append())
        request.bodies = bodies
        async with asyncio.timeout_at(deadline):
            return await stream.append(request)

    async def idle(self) -> None:
        """Wait until no append waits for its answer."""
        if self._stream is not None:
            await self._stream.idle()

    async def close(self, grace: float | None = None) -> None:
        """End all calls; waiting sends fail."""
        stream, self._stream = self._stream, None
        try:
            if stream is not None:
                await stream.close()
        finally:  # also where the wait for its tasks is cancelled
            try:
                await self._channel.close(grace)
            finally:
                grpc_closed(self)
