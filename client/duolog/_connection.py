"""One node as the SDK sees it: a channel, its stubs, and the open append stream."""

import asyncio
import contextlib
import enum
import itertools
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

import grpc
import grpc.aio

from duolog._background import Background, report
from duolog._backoff import BackOff, would_be_cut_off
from duolog._errors import DuologError, NotMaster, Timeout, Unavailable, error_of
from duolog._runtime import MACHINE, Runtime
from duolog.wire import duolog_pb2 as wire
from duolog.wire import duolog_pb2_grpc as stubs

T = TypeVar("T")
ATTEMPT_SECONDS = 4.0  # for one node; a node that waits for its slaves answers sooner
AWAY_SECONDS = 1.0  # for a master that its own slave does not reach
LEARN_SECONDS = 3.0
ENDPOINTS_MAX = 64


class Others(enum.Enum):
    """The nodes that a call goes on to where one does not answer."""

    ALL = "all that are known"
    GIVEN = "those that the user named"
    NONE = "none"


async def uncancelled(work: Awaitable[T]) -> T:
    """Await a gRPC operation; a call that was cancelled under it is Unavailable.

    grpc.aio raises CancelledError in whoever waits for a call that ends by cancellation (a broken
    connection may do that). Only a cancellation of our own task may pass as one. The other way
    round it loses one that comes while a stream is made: the task would go on.
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


async def ask_one(
    endpoint: str,
    make: Callable[[stubs.AdminStub, float], Awaitable[T]],
    timeout: float,
    runtime: Runtime = MACHINE,
) -> T | None:
    """Ask one node, and no other; None if it does not answer within `timeout` seconds."""
    connection = Connection((endpoint,), runtime)
    try:
        return await connection.call(
            lambda left: make(connection.admin, left), timeout, others=Others.NONE
        )
    except DuologError:
        return None
    finally:
        await connection.close()


# What a call of a broken or closed connection raises.
BROKEN = (grpc.RpcError, grpc.aio.UsageError, asyncio.InvalidStateError, Unavailable)


class Appending(Protocol):
    """What is used of an open call of Append."""

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
    """The append stream: requests go out as they come, replies are matched by id."""

    def __init__(self, call: Appending) -> None:
        self._call = call
        self._waiting: dict[int, asyncio.Future[wire.AppendReply]] = {}
        self._unwritten: dict[int, wire.AppendRequest] = {}  # of those that wait
        self._more = asyncio.Event()
        self.error: DuologError | None = None
        # grpc.aio ends the whole call with a write that is cancelled: none of a caller's ever is.
        self._background = Background(self._died)
        self._background.start(self._write())
        self._background.start(self._read())

    async def append(self, request: wire.AppendRequest) -> wire.AppendReply:
        """Send a request, wait for its reply. Raises Unavailable if the stream breaks."""
        if self.error is not None:
            raise self.error
        future: asyncio.Future[wire.AppendReply] = asyncio.get_running_loop().create_future()
        self._waiting[request.id] = future
        self._unwritten[request.id] = request
        self._more.set()
        try:
            return await future
        finally:
            self._waiting.pop(request.id, None)
            self._unwritten.pop(request.id, None)

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

    def _died(self, error: Exception) -> None:
        """A fault of ours: nobody waits for an answer that is not read."""
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
        self._more.set()  # nobody closes a broken stream: its writer ends by itself
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(self.error)

    async def close(self) -> None:
        """End the stream; waiting sends fail."""
        self._fail(Unavailable("the client was closed"))
        self._call.cancel()
        await self._background.stop()


class Connection:
    """Calls to the node that answers, and to the master where one is needed; follows it around.

    Endpoints beside the given ones are learnt from the nodes. Whoever failed says which endpoint
    failed it: of many tasks that a broken connection wakes, one moves on, and the others follow.
    """

    def __init__(self, endpoints: tuple[str, ...], runtime: Runtime = MACHINE) -> None:
        self.runtime = runtime
        self._endpoints = list(endpoints)
        self._given = len(endpoints)
        self.endpoint = endpoints[0]
        self.epoch = 0  # newest that a node named with its master
        self.moves = 0
        self._channel: grpc.aio.Channel | None = None
        self._stream: AppendStream | None = None
        self._learning = Background()
        self.ids = itertools.count(1)

    @property
    def endpoints(self) -> tuple[str, ...]:
        """All endpoints that are known."""
        return tuple(self._endpoints)

    @property
    def channel(self) -> grpc.aio.Channel:
        """The open channel."""
        if self._channel is None:
            self._channel = self.runtime.dial(self.endpoint)
            self._learn_soon()
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
        self,
        make: Callable[[float], Awaitable[T]],
        timeout: float,
        *,
        attempt: float = ATTEMPT_SECONDS,
        others: Others = Others.ALL,
        patient: bool = True,
    ) -> T:
        """Run a unary call; where it reaches no node, or not the master, go on to another one.

        make: gets the seconds that are left and returns the call. timeout: seconds for everything.
        attempt: seconds for one node. others: those it goes on to. patient: wait for a master that
        no other node will replace; otherwise NotMaster is raised once it could not be reached from
        here either.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        back_off = BackOff(self.runtime.chance)
        told_away = False
        while True:
            left = deadline - loop.time()
            if left <= 0:
                raise Timeout(f"no answer from {self.endpoint} within {timeout:g} s")
            move, began = self.moves, loop.time()
            try:
                # Another call of ours may move on, and close the channel under this one.
                return await uncancelled(make(min(left, attempt)))
            except grpc.RpcError as failure:
                error = error_of(failure)
            except (Unavailable, grpc.aio.UsageError) as failure:
                error = Unavailable(str(failure))
            again = isinstance(error, Unavailable | NotMaster) or (
                isinstance(error, Timeout) and loop.time() < deadline
            )
            if others is Others.NONE or not again:
                raise error from None
            hint, epoch = ("", 0)
            if isinstance(error, NotMaster):
                hint, epoch = error.endpoint, error.epoch
                if error.master_away and not patient:
                    if told_away or not hint:
                        raise error from None
                    told_away, attempt = True, min(attempt, AWAY_SECONDS)
            pause = back_off.next(bool(hint))
            took = loop.time() - began if isinstance(error, NotMaster) else 0.0
            if would_be_cut_off(pause, took, deadline - loop.time()):
                raise error from None
            await asyncio.sleep(pause)
            if others is Others.GIVEN:
                await self._rotate_among(self._endpoints[: self._given], move)
            else:
                await self.rotate(move, hint, epoch)

    async def rotate(self, move: int, hint: str = "", epoch: int = 0) -> None:
        """Go to the endpoint that a node named as its master, or else to the next one.

        move: `moves` as of the call that failed; nothing happens where others moved meanwhile. A
        hint of an epoch older than one that was seen names a master of the past.
        """
        if move != self.moves:
            return
        current = epoch >= self.epoch
        if hint and current:
            self.epoch = epoch
            self._add(hint)
        if hint and current and hint != self.endpoint:
            await self._go_to(hint)
        else:
            await self._rotate_among(self._endpoints, move)

    async def _rotate_among(self, endpoints: list[str], move: int) -> None:
        if move != self.moves or endpoints == [self.endpoint]:
            return
        at = endpoints.index(self.endpoint) if self.endpoint in endpoints else -1
        await self._go_to(endpoints[(at + 1) % len(endpoints)])

    async def _go_to(self, endpoint: str) -> None:
        self.moves += 1
        self.endpoint = endpoint
        await self._let_go()

    # -- endpoints -----------------------------------------------------------------------------

    def _add(self, endpoint: str) -> None:
        if endpoint and endpoint not in self._endpoints:
            self._endpoints.append(endpoint)
            if len(self._endpoints) > ENDPOINTS_MAX:
                del self._endpoints[self._given]

    def _learn_soon(self) -> None:
        if not self._learning.busy:
            self._learning.start(self._learn())

    async def _learn(self) -> None:
        """Ask the node for the others of the cluster; what it cannot say, it need not."""
        channel = self._channel
        if channel is None:
            return
        with contextlib.suppress(*BROKEN):
            request = wire.RouteRequest()
            reply = await uncancelled(
                stubs.AdminStub(channel).Route(request, timeout=LEARN_SECONDS)
            )
            for group in reply.groups:
                if group.group == reply.group:  # the others hold other logs
                    for replica in group.replicas:
                        self._add(replica.endpoint)

    async def _let_go(self) -> None:
        stream, self._stream = self._stream, None
        channel, self._channel = self._channel, None
        if stream is not None:
            await stream.close()
        if channel is not None:
            await channel.close(None)

    async def close(self) -> None:
        """Close stream and channel."""
        await self._learning.stop()
        await self._let_go()
