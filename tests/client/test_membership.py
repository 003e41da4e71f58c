"""The queues that a member of a group claims in its heartbeats."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

import duolog
import pytest
from duolog._connection import Connection
from duolog._membership import Clustering, Consumption, Queue, SharingMember
from duolog.wire import duolog_pb2 as wire

SESSION = 5.0
OURS: list[Queue] = [("T", 0), ("T", 2)]


class Node:
    """Takes heartbeats, on a clock of the test's own. slow: seconds of each attempt that fails."""

    def __init__(self) -> None:
        self.now = 100.0
        self.slow: list[float] = []
        self.heard: list[list[Queue]] = []
        self.known = True  # the member, to this master
        self.gives: list[Queue] = []  # besides what is claimed
        self.foreign: set[Queue] = set()
        self.epoch = 3
        self.epochs_told: list[int] = []
        self.polled = False
        self.not_polled_told: list[bool] = []
        self.committed: list[dict[Queue, int]] = []
        self.groups = SimpleNamespace(Heartbeat=self._heartbeat, Commit=self._commit)
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
        self.epochs_told.append(request.epoch)
        self.not_polled_told.append(request.not_polled)
        self.known = True
        given = [wire.QueueRef(topic=topic, queue_id=queue_id) for topic, queue_id in self.gives]
        foreign = [ref for ref in request.owned if (ref.topic, ref.queue_id) in self.foreign]
        own = [ref for ref in request.owned if ref not in foreign]
        return wire.HeartbeatReply(
            generation=1, queues=[*own, *given], foreign=foreign, epoch=self.epoch
        )

    async def _commit(self, request: wire.CommitRequest, timeout: float) -> wire.CommitReply:
        assert timeout > 0
        if not self.known:
            raise duolog.StaleMember("not heard of yet")
        self.committed.append({(row.topic, row.queue_id): row.offset for row in request.offsets})
        return wire.CommitReply()


@pytest.fixture
async def node(monkeypatch: pytest.MonkeyPatch) -> Node:
    made = Node()
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: made.now)
    return made


def member(node: Node) -> SharingMember:
    consumption = Consumption(group="g", session=SESSION)
    return SharingMember(
        cast(Connection, node), ["T"], consumption, Clustering(), lambda: node.polled
    )


async def reader(node: Node) -> SharingMember:
    """A member that was given OURS."""
    one = member(node)
    node.gives = OURS
    assert (await one.share([])).queues == set(OURS)
    node.gives = []
    return one


async def test_a_member_that_is_heard_in_time_claims_what_it_reads(node: Node) -> None:
    one = await reader(node)
    for _ in range(3):
        node.now += SESSION - 0.1
        assert (await one.share(OURS)).queues == set(OURS)
    assert node.heard == [[], OURS, OURS, OURS]


async def test_a_member_that_was_silent_for_a_session_claims_nothing(node: Node) -> None:
    one = await reader(node)
    node.now += SESSION
    share = await one.share(OURS)
    assert (share.queues, share.forfeited) == (set(), set(OURS))
    assert node.heard == [[], []]


async def test_a_member_whose_heartbeat_took_a_session_claims_nothing(node: Node) -> None:
    one = await reader(node)
    node.now += 1.0
    node.slow = [SESSION - 1.0]
    await one.share(OURS)
    assert node.heard == [[], OURS, []]


async def test_what_a_silent_member_read_is_never_claimed_again(node: Node) -> None:
    one = await reader(node)
    node.now += SESSION
    await one.share(OURS)
    node.now += 1.0
    share = await one.share(OURS)  # the next master would believe it
    assert (share.queues, share.forfeited) == (set(), set(OURS))
    assert node.heard == [[], [], []]


async def test_what_a_silent_member_is_given_again_is_its_own(node: Node) -> None:
    one = await reader(node)
    node.now += SESSION
    node.gives = OURS[:1]
    share = await one.share(OURS)
    assert (share.queues, share.forfeited) == (set(OURS[:1]), set(OURS[1:]))
    node.now += 1.0
    node.gives = []
    assert not (await one.share(OURS[:1])).forfeited
    assert node.heard == [[], [], OURS[:1]]


async def test_what_the_node_says_is_anothers_is_never_claimed_again(node: Node) -> None:
    one = await reader(node)
    node.foreign = set(OURS[:1])
    node.known = False
    await one.commit({("T", 2): 7}, forward=True)  # it claims what it reads
    share = await one.share(OURS)
    assert (share.queues, share.forfeited) == (set(OURS[1:]), set(OURS[:1]))
    assert node.heard == [[], OURS, OURS[1:]]
    node.foreign = set(OURS[1:])
    assert (await one.share(OURS[1:])).forfeited == set(OURS[1:])


async def test_a_member_tells_which_master_it_counts_on(node: Node) -> None:
    one = await reader(node)
    await one.share(OURS)
    node.epoch, node.known = 5, False
    await one.commit({("T", 2): 7}, forward=True)  # heard by the next master only now
    await one.share(OURS)
    assert node.epochs_told == [0, 3, 3, 5]
    node.epoch = 0  # a node of an earlier version, which does not say
    await one.share(OURS)
    await one.share(OURS)
    assert node.epochs_told[4:] == [5, 0], "the next master must not judge by one before it"


async def test_a_member_tells_whether_its_program_has_polled(node: Node) -> None:
    one = await reader(node)
    node.polled = True
    await one.share(OURS)
    assert node.not_polled_told == [True, False]


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


async def test_a_commit_to_a_new_master_is_retried_after_a_heartbeat(
    node: Node,
) -> None:
    one = await reader(node)
    node.known = False
    await one.commit({("T", 0): 7}, forward=True)
    assert node.heard[-1] == OURS, "it claims all that it reads"
    assert node.committed == [{("T", 0): 7}]


async def test_a_member_that_was_silent_for_a_session_commits_nothing_to_a_new_master(
    node: Node,
) -> None:
    one = await reader(node)
    node.known = False
    node.now += SESSION
    with pytest.raises(duolog.StaleMember):
        await one.commit({("T", 0): 7}, forward=True)
    assert (len(node.heard), node.committed) == (1, [])


async def test_a_commit_for_another_members_queue_is_refused_after_a_heartbeat_too(
    node: Node,
) -> None:
    one = await reader(node)
    asked = 0

    async def refuse(request: wire.CommitRequest, timeout: float) -> wire.CommitReply:
        nonlocal asked
        asked += 1
        raise duolog.StaleMember("another member's")

    node.groups.Commit = refuse
    with pytest.raises(duolog.StaleMember):
        await one.commit({("T", 0): 7}, forward=True)
    assert (asked, len(node.heard)) == (2, 2)


async def test_a_queue_that_could_not_be_claimed_is_never_claimed_for_a_commit(node: Node) -> None:
    one = await reader(node)
    node.now += SESSION
    await one.share(OURS)  # silent for too long: others may have it
    node.known = False
    await one.commit({("T", 0): 7}, forward=True)
    assert node.heard[1:] == [[], []]


async def test_what_was_not_claimed_for_a_commit_is_not_claimed_later(node: Node) -> None:
    one = await reader(node)
    node.known = False
    commit = node.groups.Commit

    async def slowly(request: wire.CommitRequest, timeout: float) -> wire.CommitReply:
        node.slow = [] if node.known else [SESSION]
        return cast(wire.CommitReply, await commit(request, timeout))

    node.groups.Commit = slowly
    await one.commit({("T", 0): 7}, forward=True)
    assert node.heard == [[], OURS, []], "the first heartbeat was not heard in time"
    assert (await one.share(OURS)).forfeited == set(OURS)
    assert node.heard[3:] == [[]]


async def test_a_queue_that_was_let_go_of_is_never_claimed_for_a_commit(node: Node) -> None:
    one = await reader(node)
    await one.share(OURS[:1])  # before anything is answered
    node.known = False
    await one.commit({("T", 0): 7}, forward=True)
    assert node.heard[1:] == [OURS[:1], OURS[:1]]
