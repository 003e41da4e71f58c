"""The masters of the cluster's other replica groups, as a node calls them.

A call goes to the master that the registry shows, once: who calls repeats it. Where nodes have a
key, a mark under it says that a node calls.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

import grpc
import grpc.aio
from duolog import _errors as sdk
from duolog._background import Background
from duolog._nodechannel import uncancelled
from duolog._runtime import CHANNEL_OPTIONS

from duolog_server.node.replication.keyproof import Marks
from duolog_server.node.runtime.tls import Options
from duolog_server.node.wire import moves_pb2 as wire
from duolog_server.node.wire import moves_pb2_grpc as stubs

TIME, MARK = "x-duolog-time", "x-duolog-mark"
SECONDS = 300  # how long a mark is good, and how far clocks may differ
CLOSE_SECONDS = 30.0  # that calls through the channel to an older master may still take

T = TypeVar("T")
Metadata = tuple[tuple[str, str], ...]
Deliveries = grpc.aio.StreamStreamCall[wire.Delivery, wire.Delivered]


class NodeMarks:
    """Marks of calls between nodes: of a method, for a replica group, at a time."""

    def __init__(self, vouching: Marks | None, wall_ms: Callable[[], int]) -> None:
        """vouching: None where nodes have no key, and nothing is asked for."""
        self._vouching = vouching
        self._wall_ms = wall_ms

    def made(self, method: str, group: str) -> Metadata:
        """What a call to a group tells in its metadata."""
        if self._vouching is None:
            return ()
        time = str(int(self._wall_ms()))
        return (TIME, time), (MARK, self._vouching.mark((method, group, time)))

    def check(self, method: str, group: str, headers: Mapping[str, str | bytes]) -> None:
        """Raise Unauthenticated unless a node of the cluster calls this group just now."""
        if self._vouching is None:
            return
        time = str(headers.get(TIME, ""))
        known = self._vouching.is_mark(str(headers.get(MARK, "")), (method, group, time))
        if not known or not time.isdecimal():
            raise sdk.Unauthenticated(
                "only nodes of this cluster may move queues: give all nodes of all replica groups "
                "the same access.key_file"
            )
        if abs(int(time) - self._wall_ms()) > SECONDS * 1000:
            raise sdk.Unauthenticated(f"the clocks of two nodes differ by more than {SECONDS} s")


class OtherGroups:
    """Channels to the masters of other groups."""

    def __init__(
        self,
        master_of: Callable[[str], str],
        dial: Callable[[str, Options], grpc.aio.Channel],
        marks: NodeMarks,
    ) -> None:
        """master_of: the endpoint of a group's master for clients; empty if it has none now."""
        self.marks = marks
        self._master_of = master_of
        self._dial = dial
        self._channels: dict[str, tuple[str, grpc.aio.Channel]] = {}  # by replica group
        self._closing = Background()

    async def close(self) -> None:
        """Close the channels."""
        for _, channel in self._channels.values():
            await channel.close()
        self._channels.clear()
        await self._closing.stop()

    def has_master(self, group: str) -> bool:
        """Whether the registry shows a master of a group."""
        return bool(self._master_of(group))

    async def ask(self, group: str, request: wire.MoveRequest, seconds: float) -> wire.MoveReply:
        """A target's answer. Raises Unavailable without one, and as the target does."""
        stub, mark = self._to(group, "Ask")
        return await _answered(stub.Ask(request, timeout=seconds, metadata=mark))

    async def cross(
        self, group: str, request: wire.CrossRequest, seconds: float
    ) -> wire.CrossReply:
        """The answer of the place behind a seam. Raises as `ask`."""
        stub, mark = self._to(group, "Cross")
        return await _answered(stub.Cross(request, timeout=seconds, metadata=mark))

    def deliver(self, group: str) -> Deliveries:
        """A stream of batches to a group's master. Raises Unavailable if it has none."""
        stub, mark = self._to(group, "Deliver")
        return stub.Deliver(metadata=mark)

    def _to(self, group: str, method: str) -> tuple[stubs.MovesStub, Metadata]:
        endpoint = self._master_of(group)
        if not endpoint:
            raise sdk.Unavailable(f"group {group} has no master now")
        known = self._channels.get(group)
        if known is None or known[0] != endpoint:
            if known is not None:
                self._closing.start(known[1].close(grace=CLOSE_SECONDS))
            known = self._channels[group] = endpoint, self._dial(endpoint, CHANNEL_OPTIONS)
        return stubs.MovesStub(known[1]), self.marks.made(method, group)


async def _answered(call: Awaitable[T]) -> T:
    """A call's answer. Raises the error that it ends with as the SDK's."""
    try:
        return await uncancelled(call)
    except grpc.RpcError as failure:
        raise sdk.error_of(failure) from None
