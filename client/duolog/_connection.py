"""One node as the SDK sees it: a channel, its stubs, and the open append stream."""

import asyncio
import contextlib
import itertools
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import grpc
import grpc.aio

from duolog._errors import DuologError, Timeout, Unavailable, error_of
from duolog.wire import duolog_pb2 as wire
from duolog.wire import duolog_pb2_grpc as stubs

T = TypeVar("T")
MESSAGE_BYTES_MAX = 64 << 20
_CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 1000),
)


async def uncancelled(work: Awaitable[T]) -> T:
    """Await a gRPC operation; a call that was cancelled under it is Unavailable.

    grpc.aio raises CancelledError in whoever waits for a call that ends by cancellation (a broken
    connection may do that). Only a cancellation of our own task may pass as one.
    """
    try:
        return await work
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise Unavailable("the call was cancelled") from None


class AppendStream:
    """The append stream: requests go out as they come, replies are matched by id."""

    def __init__(self, call: Any) -> None:
        self._call = call
        self._waiting: dict[int, asyncio.Future[wire.AppendReply]] = {}
        self._writing = asyncio.Lock()
        self._reader = asyncio.ensure_future(self._read())
        self.error: DuologError | None = None

    async def append(self, request: wire.AppendRequest) -> wire.AppendReply:
        """Send a request, wait for its reply. Raises Unavailable where the stream breaks."""
        if self.error is not None:
            raise self.error
        future: asyncio.Future[wire.AppendReply] = asyncio.get_running_loop().create_future()
        self._waiting[request.id] = future
        try:
            async with self._writing:
                await uncancelled(self._call.write(request))
        except (grpc.RpcError, asyncio.InvalidStateError, Unavailable) as failure:
            self._fail(failure)
        except asyncio.CancelledError:
            # grpc.aio has cancelled the whole call with this write: nobody will be answered.
            self._waiting.pop(request.id, None)
            self._fail(Unavailable("the append stream was given up in the middle of a write"))
            raise
        try:
            return await future
        finally:
            self._waiting.pop(request.id, None)

    async def _read(self) -> None:
        try:
            while True:
                reply = await uncancelled(self._call.read())
                if reply is grpc.aio.EOF:
                    break
                waiting = self._waiting.get(reply.id)
                if waiting is not None and not waiting.done():
                    waiting.set_result(reply)
            # The node ended the stream: its status says why.
            code = await uncancelled(self._call.code())
            details = await uncancelled(self._call.details())
            self._fail(Unavailable(f"the append stream ended: {code.name} {details}"))
        except (grpc.RpcError, asyncio.InvalidStateError, Unavailable) as failure:
            self._fail(failure)

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
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(self.error)

    async def close(self) -> None:
        """End the stream; waiting sends fail."""
        self._fail(Unavailable("the client was closed"))
        self._call.cancel()
        self._reader.cancel()
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await self._reader


class Connection:
    """Calls to whichever of the endpoints answers; the others are tried when it does not."""

    def __init__(self, endpoints: tuple[str, ...]) -> None:
        self._endpoints = itertools.cycle(endpoints)
        self._count = len(endpoints)
        self._known = frozenset(endpoints)
        self.endpoint = next(self._endpoints)
        self._channel: grpc.aio.Channel | None = None
        self._stream: AppendStream | None = None
        self.ids = itertools.count(1)

    @property
    def channel(self) -> grpc.aio.Channel:
        """The open channel."""
        if self._channel is None:
            self._channel = grpc.aio.insecure_channel(self.endpoint, options=_CHANNEL_OPTIONS)
        return self._channel

    @property
    def messages(self) -> stubs.MessagesStub:
        """Stub of the Messages service."""
        return stubs.MessagesStub(self.channel)

    @property
    def groups(self) -> stubs.GroupsStub:
        """Stub of the Groups service."""
        return stubs.GroupsStub(self.channel)

    @property
    def admin(self) -> stubs.AdminStub:
        """Stub of the Admin service."""
        return stubs.AdminStub(self.channel)

    def stream(self) -> AppendStream:
        """The append stream, opened anew where it broke."""
        if self._stream is None or self._stream.error is not None:
            self._stream = AppendStream(self.messages.Append())
        return self._stream

    async def call(
        self, make: Callable[[float], Awaitable[T]], timeout: float, *, retry: bool = True
    ) -> T:
        """Run a unary call; on Unavailable go to the next endpoint until the deadline passes.

        make: gets the seconds that are left and returns the call.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        pause = 0.05
        while True:
            left = deadline - loop.time()
            if left <= 0:
                raise Timeout(f"no answer from {self.endpoint} within {timeout:g} s")
            try:
                return await make(left)
            except grpc.RpcError as failure:
                error = error_of(failure)
                if not (retry and isinstance(error, Unavailable)):
                    raise error from None
                if loop.time() + pause >= deadline:
                    raise error from None
            await asyncio.sleep(pause)
            pause = min(pause * 2, 1.0)
            await self.rotate()

    async def rotate(self, hint: str = "") -> None:
        """Go to the next endpoint, or to the one that a node named as its master."""
        if hint and hint != self.endpoint:
            await self.close()
            self.endpoint = hint
        elif self._count > 1 or self.endpoint not in self._known:
            await self.close()
            self.endpoint = next(self._endpoints)

    async def close(self) -> None:
        """Close stream and channel."""
        stream, self._stream = self._stream, None
        channel, self._channel = self._channel, None
        if stream is not None:
            await stream.close()
        if channel is not None:
            await channel.close(None)
