"""What a member of a group claims in its heartbeats."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from duolog._connection import Connection
from duolog._consumption import Consumption
from duolog._membership import Clustering, Queue, SharingMember
from duolog.wire import duolog_pb2 as wire

SESSION = 5.0
OURS: list[Queue] = [("T", 0), ("T", 2)]


class Node:
    """Takes heartbeats, on a clock of the test's own. slow: seconds of each attempt that fails."""

    def __init__(self) -> None:
        self.now = 100.0
        self.slow: list[float] = []
        self.heard: list[list[Queue]] = []
        self.groups = SimpleNamespace(Heartbeat=self._heartbeat)
        self.runtime = SimpleNamespace(process_id=lambda: 7, chance=random.Random(1))

    async def call(self, make: Callable[[float], Awaitable[Any]], _timeout: float) -> Any:
        reply = await make(1.0)
        while self.slow:  # it was not heard in time: once more
            self.now += self.slow.pop()
            reply = await make(1.0)
        return reply

    async def _heartbeat(
        self, request: wire.HeartbeatRequest, timeout: float
    ) -> wire.HeartbeatReply:
        assert timeout > 0
        self.heard.append([(ref.topic, ref.queue_id) for ref in request.owned])
        return wire.HeartbeatReply(generation=1, queues=request.owned)


@pytest.fixture
async def node(monkeypatch: pytest.MonkeyPatch) -> Node:
    made = Node()
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: made.now)
    return made


def member(node: Node) -> SharingMember:
    consumption = Consumption(group="g", session=SESSION)
    return SharingMember(cast(Connection, node), ["T"], consumption, Clustering())


async def test_a_member_that_is_heard_in_time_claims_what_it_reads(node: Node) -> None:
    one = member(node)
    await one.share([])
    for _ in range(3):
        node.now += SESSION - 0.1
        assert (await one.share(OURS)).queues == set(OURS)
    assert node.heard == [[], OURS, OURS, OURS]


async def test_a_member_that_was_silent_for_a_session_claims_nothing(node: Node) -> None:
    one = member(node)
    await one.share([])
    node.now += SESSION
    assert (await one.share(OURS)).queues == set()
    assert node.heard == [[], []]


async def test_nor_does_one_whose_heartbeat_is_not_heard_for_a_session(node: Node) -> None:
    one = member(node)
    await one.share([])
    node.now += 1.0
    node.slow = [SESSION - 1.0]
    await one.share(OURS)
    assert node.heard == [[], OURS, []]


async def test_a_session_counts_from_when_the_heartbeat_was_sent(node: Node) -> None:
    one = member(node)
    heartbeat = node.groups.Heartbeat

    async def slowly(request: wire.HeartbeatRequest, timeout: float) -> wire.HeartbeatReply:
        answer = await heartbeat(request, timeout)
        node.now += 2.0
        return cast(wire.HeartbeatReply, answer)

    node.groups.Heartbeat = slowly
    await one.share([])
    node.now += SESSION - 2.0
    await one.share(OURS)
    assert node.heard == [[], []]
