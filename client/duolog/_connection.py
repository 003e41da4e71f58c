"""One node as the SDK sees it: its channels, over frames and over gRPC, and their stubs.

Rules: gRPC is there until frames are, and again when they break. Frames are tried as soon as the
node has said where it takes them, and again whenever that failed or broke; calls go over them while
they are there. Appends change over only while none waits for an answer, so that they stay in order.
"""

import asyncio
import contextlib
import enum
import itertools
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TypeVar, cast

import grpc
import grpc.aio

from duolog import _frameschannel
from duolog._background import Background
from duolog._backoff import BackOff, wait_of, would_be_cut_off
from duolog._errors import (
    DuologError,
    Fatal,
    NoPermission,
    NotMaster,
    Throttled,
    Timeout,
    Unauthenticated,
    Unavailable,
    error_of,
)
from duolog._forks import Owned
from duolog._frameschannel import Disowned, FramesChannel
from duolog._login import named
from duolog._nodechannel import BROKEN, GrpcChannel, NodeChannel, uncancelled
from duolog._runtime import MACHINE, Runtime
from duolog._tls import explained
from duolog.wire import duolog_pb2 as wire
from duolog.wire import duolog_pb2_grpc as stubs

T = TypeVar("T")
log = logging.getLogger("duolog")

ATTEMPT_SECONDS = 4.0  # for one node; a node that waits for its slaves answers sooner
AWAY_SECONDS = 1.0  # for a master that its own slave does not reach
LEARN_SECONDS = 3.0
GREETING_SECONDS = 2.0
GATE_SECONDS = 0.5  # that a first call waits for frames
FRAMES_AGAIN_SECONDS = (0.5, 30.0)  # first and longest pause until frames are tried again
ENDPOINTS_MAX = 64


class Others(enum.Enum):
    """The nodes that a call tries next when one does not answer."""

    ALL = "all that are known"
    GIVEN = "those that the user named"
    NONE = "none"


# A node answers so, and what is wrong is not its state.
REFUSED: tuple[type[DuologError], ...] = (Unauthenticated, NoPermission)


def with_reason(error: DuologError, before: DuologError | None) -> DuologError:
    """An error that says nothing of what is wrong (a try that was cut off, a slave that names its
    master), with that of the try before it, if that does.
    """
    if isinstance(error, Timeout) and not isinstance(before, Timeout | None):
        return Timeout(f"{error}; the try before it: {before}")
    refused = isinstance(before, NotMaster) and not before.endpoint  # by a master, too
    if isinstance(error, NotMaster) and error.endpoint and refused:
        text = f"{error}; the try before it: {before}"
        return NotMaster(text, error.endpoint, error.epoch, error.master_away)
    return error


async def ask_one(
    endpoint: str,
    make: Callable[[stubs.AdminStub, float], Awaitable[T]],
    timeout: float,
    runtime: Runtime = MACHINE,
    raised: tuple[type[DuologError], ...] = REFUSED,
) -> T | None:
    """Ask one node, and no other; None if it does not answer within `timeout` seconds.

    raised: errors that it answers with, and that are raised.
    """
    connection = Connection((endpoint,), replace(runtime, frames=False))  # not worth a greeting
    try:
        return await connection.call(
            lambda left: make(connection.admin, left), timeout, others=Others.NONE
        )
    except DuologError as error:
        if isinstance(error, raised):
            raise
        return None
    finally:
        await connection.close()


class Connection(Owned):
    """Calls to the node that answers, and to the master where one is needed; follows it around.

    Endpoints beside the given ones are learnt from the nodes. A failed call says which endpoint
    failed it: of many tasks that a broken connection wakes, one moves on, and the others follow.
    """

    def __init__(self, endpoints: tuple[str, ...], runtime: Runtime = MACHINE) -> None:
        super().__init__()
        self.runtime = runtime
        self._endpoints = list(endpoints)
        self._given = len(endpoints)
        self.endpoint = endpoints[0]
        self.epoch = 0  # newest that a node named with its master
        self.moves = 0
        self._grpc: GrpcChannel | None = None
        self._frames: FramesChannel | None = None
        self._leaving: list[FramesChannel] = []  # with calls that have not ended
        self._following: asyncio.Task[None] | None = None
        self._tried = asyncio.Event()  # whether frames can be had
        self._stubs: tuple[NodeChannel, _Stubs] | None = None
        self._learning = Background()
        self._held: dict[asyncio.Future[None], None] = {}  # appends, while they change over
        self._changing = Background()
        self._speaks_frames = runtime.speaks_frames
        self._closed = False
        self.ids = itertools.count(1)

    @property
    def endpoints(self) -> tuple[str, ...]:
        """All endpoints that are known."""
        return tuple(self._endpoints)

    @property
    def channel(self) -> NodeChannel:
        """The open channel: frames where they are there."""
        frames = self._frames
        if frames is not None and frames.error is None:
            return frames
        return self._over_grpc()

    def _over_grpc(self) -> GrpcChannel:
        if self._closed:  # nobody would close what is opened now
            raise Unavailable("the client is closed")
        if self._grpc is None:
            self._grpc = GrpcChannel(self.runtime.open(self.endpoint))
            if self._following is None or self._following.done():  # by a framework, say
                self._learn_soon()
        return self._grpc

    def _stubs_now(self) -> "_Stubs":
        channel = self.channel
        if self._stubs is None or self._stubs[0] is not channel:
            self._stubs = channel, _Stubs(channel)
        return self._stubs[1]

    @property
    def messages(self) -> stubs.MessagesStub:
        """Stub of the Messages service."""
        return self._stubs_now().messages

    @property
    def groups(self) -> stubs.GroupsStub:
        """Stub of the Groups service."""
        return self._stubs_now().groups

    @property
    def admin(self) -> stubs.AdminStub:
        """Stub of the Admin service."""
        return self._stubs_now().admin

    @property
    def access(self) -> stubs.AccessStub:
        """Stub of the Access service."""
        return self._stubs_now().access

    async def append(
        self, request: wire.AppendRequest, bodies: bytes, deadline: float
    ) -> wire.AppendReply:
        """See NodeChannel."""
        self.check_process()
        frames = self._frames
        if frames is None or frames.error is not None:
            await self.settled(deadline - asyncio.get_running_loop().time())
            frames = self._frames
        try:
            if frames is not None and frames.error is None:
                if self._held or (self._grpc is not None and self._grpc.busy):
                    await self._change_over(deadline)
                try:
                    return await frames.append(request, bodies, deadline)
                except Disowned:
                    pass
            return await self._over_grpc().append(request, bodies, deadline)
        except Fatal as error:
            raise self.named(error) from None

    def named(self, error: DuologError) -> DuologError:
        """An error of a call; one about who is calling says who that was."""
        return explained(named(error, self.runtime.login), secured=self.runtime.tls is not None)

    async def _change_over(self, deadline: float) -> None:
        """Wait for appends in flight over gRPC, and for those that came here before this one.

        Raises TimeoutError.
        """
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._held[place] = None
        if not self._changing.busy:
            self._changing.start(self._let_through())
        try:
            async with asyncio.timeout_at(deadline):
                await place
        finally:
            del self._held[place]

    async def _let_through(self) -> None:
        """Let those go that wait for appends over gRPC, in the order in which they came."""
        while self._held:
            if self._grpc is not None:
                await self._grpc.idle()
            for place in self._held:
                if not place.done():
                    place.set_result(None)
            await asyncio.sleep(0)

    async def settled(self, seconds: float = GATE_SECONDS) -> None:
        """Wait a moment, and `seconds` at most, until it is known whether frames can be had."""
        frames = self._frames
        if not self._speaks_frames or (frames is not None and frames.error is None):
            return
        self._over_grpc()
        if self._following is not None and self._following.done():
            self._learn_soon()
        if not self._tried.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(seconds, GATE_SECONDS)):
                    await self._tried.wait()

    async def call(
        self,
        make: Callable[[float], Awaitable[T]],
        timeout: float,
        *,
        attempt: float = ATTEMPT_SECONDS,
        others: Others = Others.ALL,
        patient: bool = True,
    ) -> T:
        """Run a unary call; where it reaches no node, or not the master, try another one.

        make: gets the seconds that are left and returns the call. timeout: seconds for everything.
        attempt: seconds for one node. others: those it tries next. patient: wait for a master that
        no other node will replace; otherwise NotMaster is raised once it could not be reached from
        here either.
        """
        self.check_process()
        if self._closed:
            raise Unavailable("the client is closed")
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        back_off = BackOff(self.runtime.chance)
        told_away = False
        error: DuologError | None = None
        while True:
            left = deadline - loop.time()
            if left <= 0:  # a pause may take longer than it should: the last try says why it failed
                raise error or Timeout(f"no answer from {self.endpoint} within {timeout:g} s")
            if others is not Others.NONE and self._frames is None:
                await self.settled(left)
            move, began, channel, before = self.moves, loop.time(), self.channel, error
            try:
                # Another call of ours may move on, and close the channel under this one.
                return await uncancelled(make(min(left, attempt)))
            except grpc.RpcError as failure:
                error = self.named(error_of(failure))
            except (Unavailable, grpc.aio.UsageError) as failure:
                error = Unavailable(str(failure))
            error = with_reason(error, before)
            again = isinstance(error, Unavailable | NotMaster) or (
                isinstance(error, Timeout) and loop.time() < deadline
            )
            over_quota = isinstance(error, Throttled) and error.retry_after_ms > 0
            if again and isinstance(channel, FramesChannel) and channel.disowned:
                continue  # over gRPC, or with another key: the node itself is well
            if others is Others.NONE or not (again or over_quota):
                raise error from None
            hint, epoch = ("", 0)
            if isinstance(error, NotMaster):
                hint, epoch = error.endpoint, error.epoch
                if error.master_away and not patient:
                    if told_away or not hint:
                        raise error from None
                    told_away, attempt = True, min(attempt, AWAY_SECONDS)
            pause = back_off.next(bool(hint)) + wait_of(error)
            took = loop.time() - began if isinstance(error, NotMaster) else 0.0
            if would_be_cut_off(pause, took, deadline - loop.time()):
                raise error from None
            await asyncio.sleep(pause)
            if over_quota:
                continue
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
        if self._speaks_frames:
            self._tried.clear()
            self._following = self._learning.start(self._follow(self.endpoint))
        elif not self._learning.busy:
            self._learning.start(self._learn(self._over_grpc()))

    async def _learn(self, channel: GrpcChannel) -> wire.RouteReply | None:
        """Ask the node for the others of the cluster; what it cannot say, it need not.

        None without an answer; an empty route where it refuses to tell.
        """
        try:
            reply: wire.RouteReply = await uncancelled(
                _admin(channel).Route(wire.RouteRequest(), timeout=LEARN_SECONDS)
            )
        except BROKEN as failure:
            refused = isinstance(failure, grpc.RpcError) and isinstance(error_of(failure), Fatal)
            return wire.RouteReply() if refused else None
        for group in reply.groups:
            if group.group == reply.group:  # the others hold other logs
                for replica in group.replicas:
                    self._add(replica.endpoint)
        return reply

    # -- frames --------------------------------------------------------------------------------

    async def _follow(self, endpoint: str) -> None:
        """Keep frames open to a node, until calls go to another one.

        A key that the node takes no more is asked for again, with who we are; calls go over gRPC
        until then.
        """
        first, longest = FRAMES_AGAIN_SECONDS
        pause, move = first, self.moves
        while self.moves == move and not self._closed:  # a cancellation may be lost
            route = await self._learn(self._over_grpc())
            frames = None if route is None else await self._greet(route, endpoint)
            self._frames = frames
            self._tried.set()
            if frames is not None:
                self._learning.start(self._leave_grpc())
                await frames.over.wait()
                self._frames = None
                self._leaving = [one for one in self._leaving if not one.closed]
                self._leaving.append(frames)
                if not frames.disowned:
                    self._tried.clear()
                    pause = first
                    continue
            await asyncio.sleep(pause * self.runtime.chance.uniform(0.5, 1.5))
            if route is not None:  # a node that did not answer may soon
                pause = min(2 * pause, longest)

    async def _leave_grpc(self) -> None:
        """Close gRPC's channel once no call is in flight on it, if there are frames.

        The threads of gRPC end with the last one: then this process may fork.
        """
        channel, frames = self._grpc, self._frames
        if channel is None or frames is None:
            return
        await channel.unused()
        if channel is not self._grpc or frames is not self._frames or channel.in_use:
            return  # calls go elsewhere meanwhile
        self._grpc = None
        if self._stubs is not None and self._stubs[0] is channel:
            self._stubs = None
        await channel.close()

    async def _greet(self, route: wire.RouteReply, endpoint: str) -> FramesChannel | None:
        """Begin where a node takes frames; None where that does not work now."""
        if not route.frames_port:
            return None
        host = endpoint.rpartition(":")[0].strip("[]")
        try:
            return await _frameschannel.connect(
                (host, route.frames_port),
                route.frames_key,
                GREETING_SECONDS,
                self.runtime.tls,
                self.runtime.busy_poll_us,
            )
        # ValueError, OverflowError: no such host or port. Unnoticed, every call would wait.
        except (OSError, TimeoutError, Unavailable, ValueError, OverflowError) as problem:
            log.debug(
                "cannot connect to the frames port %s, using gRPC: %s",
                endpoint,
                problem or "no answer",
            )
            return None

    # -- the end -------------------------------------------------------------------------------

    async def _let_go(self) -> None:
        if self._following is not None:
            self._following.cancel()
            self._following = None
        self._stubs = None
        open_frames, self._frames = [*self._leaving, self._frames], None
        self._leaving = []
        over_grpc, self._grpc = self._grpc, None
        for frames in open_frames:
            if frames is not None:
                await frames.close()
        if over_grpc is not None:
            await over_grpc.close()

    async def close(self) -> None:
        """Close the channels."""
        if self.forked:
            return
        self._closed = True
        await self._learning.stop()
        await self._changing.stop()
        for place in self._held:
            if not place.done():
                place.set_exception(Unavailable("the client was closed"))
        await self._let_go()


class _Stubs:
    """The stubs of a channel."""

    def __init__(self, channel: NodeChannel) -> None:
        self.messages = stubs.MessagesStub(cast(grpc.aio.Channel, channel))
        self.groups = stubs.GroupsStub(cast(grpc.aio.Channel, channel))
        self.admin = _admin(channel)
        self.access = stubs.AccessStub(cast(grpc.aio.Channel, channel))


def _admin(channel: NodeChannel) -> stubs.AdminStub:
    return stubs.AdminStub(cast(grpc.aio.Channel, channel))
