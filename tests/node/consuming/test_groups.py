"""Consumer groups: the coordinator by itself, and consumers sharing queues."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import duolog
import grpc.aio
import pytest
from duolog import _groupreader
from duolog._connection import Connection
from duolog._membership import SharingMember
from duolog.wire import duolog_pb2 as wire
from hypothesis import given
from hypothesis import strategies as st

from duolog_server.ha.epochs import Epoch, EpochEntry
from duolog_server.node.api.groups import GroupsService
from duolog_server.node.consuming import groups as module
from duolog_server.node.consuming.allocation import (
    DEFAULT,
    STRATEGIES,
    Deal,
    Wish,
    allocate,
    check_strategy,
)
from duolog_server.node.consuming.groups import (
    SESSION_MS_MAX,
    SESSION_MS_MIN,
    GroupCoordinator,
    Heartbeat,
    MemberTable,
)
from duolog_server.node.consuming.subscriptions import (
    EXPRESSION_CHARACTERS_MAX,
    SHOWN_MAX,
    ways_of,
)
from duolog_server.node.core.connected import Consumer, Read
from duolog_server.serve.server import Node
from duolog_server.store.clocks import MonoMs
from tests.node.replicas import WAIT_SECONDS, broker_of
from tests.nodefixtures import StartNode

COUNTS = {"T": range(8)}
START, LATER = MonoMs(0), MonoMs(10_001)


def beat(
    groups: GroupCoordinator, member: str, owned: set[tuple[str, int]], now: int = 0
) -> set[tuple[str, int]]:
    """A heartbeat; the queues it answers."""
    assignment = groups.heartbeat(
        "G", member, Heartbeat(("T",), frozenset(owned)), COUNTS, MonoMs(now)
    )
    assert assignment is not None
    assert groups.validate(MonoMs(now)) == ""
    return set(assignment.queues)


def deal_of(queues: int, members: int, rooms: tuple[str, ...] = ("east",)) -> Deal:
    wishes = {f"m{n}": Wish(rooms=rooms) for n in range(members)}
    return Deal([("T", n) for n in range(queues)], wishes, "east@a")


@pytest.mark.parametrize("strategy", sorted(STRATEGIES.keys() - {"CONFIG"}))
@given(st.integers(0, 20), st.integers(1, 9))
def test_every_queue_is_assigned_to_exactly_one_member(
    strategy: str, queues: int, members: int
) -> None:
    deal = deal_of(queues, members)
    shares = [allocate(strategy, deal, name) for name in deal.members]
    assert sorted(queue for share in shares for queue in share) == deal.queues
    if strategy != "CONSISTENT_HASH":
        sizes = [len(share) for share in shares]
        assert max(sizes) - min(sizes) <= 1


def numbers(strategy: str, deal: Deal) -> list[list[int]]:
    return [[queue for _, queue in allocate(strategy, deal, name)] for name in deal.members]


def test_queues_are_assigned_as_in_rocketmq() -> None:
    deal = deal_of(8, 3)
    assert numbers("AVG", deal) == [[0, 1, 2], [3, 4, 5], [6, 7]]
    assert numbers("AVG_BY_CIRCLE", deal) == [[0, 3, 6], [1, 4, 7], [2, 5]]
    assert numbers("MACHINE_ROOM", deal) == [[0, 1, 6], [2, 3, 7], [4, 5]]
    assert numbers("MACHINE_ROOM_NEARBY", deal) == [[0, 1, 2], [3, 4, 5], [6, 7]]


@given(st.integers(1, 60), st.integers(2, 9))
def test_a_new_member_takes_queues_and_no_other_queue_moves(queues: int, members: int) -> None:
    before, after = deal_of(queues, members - 1), deal_of(queues, members)
    for name in before.members:
        kept = set(allocate("CONSISTENT_HASH", after, name))
        assert kept <= set(allocate("CONSISTENT_HASH", before, name))


def test_members_are_assigned_the_queues_they_name_and_their_retry_topic() -> None:
    queues = [("T", n) for n in range(4)]
    named = {
        "a": Wish("CONFIG", queues=frozenset({("T", 1), ("T", 9)})),
        "b": Wish("CONFIG", queues=frozenset({("T", 0), ("T", 2)})),
    }
    assert numbers("CONFIG", Deal(queues, named, "g")) == [[1], [0, 2]]
    rooms = {"a": Wish(rooms=("east",)), "b": Wish(rooms=("west",)), "c": Wish()}
    for strategy in ("MACHINE_ROOM", "MACHINE_ROOM_NEARBY"):
        assert numbers(strategy, Deal(queues, rooms, "west@g")) == [[], [0, 1, 2, 3], []]
    # Nobody stands near: all share them, or nobody reads them.
    assert numbers("MACHINE_ROOM_NEARBY", Deal(queues, rooms, "north@g")) == [[0, 1], [2], [3]]
    assert numbers("MACHINE_ROOM", Deal(queues, rooms, "north@g")) == [[], [], []]
    groups = GroupCoordinator(replica_group="east@a")
    counts = {"T": range(4), "%RETRY%G": range(1)}
    for strategy in ("CONFIG", "MACHINE_ROOM"):
        wish = Wish(strategy, rooms=("west",), queues=frozenset({("T", 1)}))
        found = groups.heartbeat("G", "a", Heartbeat(("%RETRY%G", "T"), wish=wish), counts, START)
        assert found is not None
        assert ("%RETRY%G", 0) in found.queues
        groups.leave("G", "a")


def test_members_agree_on_a_strategy() -> None:
    groups = GroupCoordinator()
    other = Heartbeat(("T",), wish=Wish("AVG_BY_CIRCLE"))
    beat(groups, "a", set())
    with pytest.raises(duolog.BadRequest, match="strategy AVG:"):
        groups.heartbeat("G", "b", other, COUNTS, START)
    groups.leave("G", "a")
    assert groups.heartbeat("G", "b", other, COUNTS, START)


def test_a_queue_is_reassigned_once_its_reader_released_it_left_or_died() -> None:
    groups = GroupCoordinator()
    first = beat(groups, "a", set())
    assert len(first) == 8
    assert beat(groups, "b", set()) == set()  # everything is still held by a
    kept = beat(groups, "a", first)
    assert len(kept) == 4
    assert beat(groups, "b", set()) == set()  # a was told, but reads all eight yet
    assert beat(groups, "a", kept) == kept
    assert beat(groups, "b", set()) == first - kept
    groups = GroupCoordinator()
    everything = beat(groups, "a", set(), now=0)
    beat(groups, "b", set(), now=5000)
    assert beat(groups, "b", set(), now=10_001) == everything
    assert groups.members("G", LATER) == 1
    groups = GroupCoordinator()
    everything = beat(groups, "a", set())
    beat(groups, "b", set())
    groups.leave("G", "a")
    assert beat(groups, "b", set()) == everything
    groups.leave("G", "b")
    assert groups.names(START) == set()
    groups = GroupCoordinator()
    beat(groups, "a", set())
    assert (groups.names(START), groups.readers_of("T", START)) == ({"G"}, {"G"})
    assert (groups.names(LATER), groups.readers_of("T", LATER)) == (set(), set())
    assert groups.validate(LATER) == ""
    beat(groups, "a", set(), now=LATER)
    assert groups.members("G", LATER) == 1


def test_a_member_is_told_which_of_its_claims_are_anothers() -> None:
    groups = GroupCoordinator()
    assert ("T", 7) in beat(groups, "m1", set())
    claims = Heartbeat(("T",), frozenset({("T", 7), ("T", 8)}))
    answer = groups.heartbeat("G", "m2", claims, COUNTS, START)
    assert answer is not None
    assert answer.foreign == [("T", 7)]
    assert groups.validate(START) == ""
    groups.leave("G", "m1")
    answer = groups.heartbeat("G", "m2", claims, COUNTS, START)
    assert answer is not None
    assert answer.foreign == []


def test_a_member_lives_to_the_end_of_its_session_in_every_view() -> None:
    groups = GroupCoordinator()
    beat(groups, "a", set())
    end = MonoMs(10_000)
    for now, members in ((end, 1), (LATER, 0)):
        assert [n for _, _, n in groups.reading(now)] == [members] * members
        assert (groups.members("G", now), len(groups.living("G", now))) == (members, members)
        assert set(groups.readers("G", now).values()) == {"a"} & set(groups.living("G", now))
    assert (groups.members("unknown", end), groups.readers("unknown", end)) == (0, {})


def test_a_full_group_takes_no_member_but_those_that_it_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MEMBERS_MAX", 2)
    groups = GroupCoordinator()
    for member in "aba":
        beat(groups, member, set())
    assert groups.heartbeat("G", "c", Heartbeat(("T",)), COUNTS, START) is None
    groups.leave("G", "a")
    assert groups.heartbeat("G", "c", Heartbeat(("T",)), COUNTS, START) is not None


def test_members_see_by_the_generation_that_their_group_has_changed() -> None:
    groups = GroupCoordinator()

    def generation(member: str, *topics: str) -> int:
        answer = groups.heartbeat("G", member, Heartbeat(topics), {"T": range(1)}, START)
        assert answer is not None
        return answer.generation

    seen = [generation("a", "T")]
    assert generation("a", "T") == seen[0], "nothing has changed"
    seen += [generation("b", "T"), generation("b", "T", "U"), generation("b", "U")]
    groups.leave("G", "b")
    seen.append(generation("a", "T"))
    assert seen == sorted(set(seen))
    groups = GroupCoordinator()
    beat(groups, "b", set())
    beat(groups, "a", set(), 5000)
    before = groups._groups["G"].generation
    assert groups.members("G", LATER) == 1, "b has expired"
    assert groups._groups["G"].generation > before
    groups = GroupCoordinator()
    everything = beat(groups, "a", set())
    beat(groups, "b", set())
    kept = beat(groups, "a", beat(groups, "a", everything))
    before = groups._groups["G"].generation
    assert beat(groups, "b", set()) == everything - kept
    assert groups._groups["G"].generation > before


@pytest.mark.parametrize(
    ("asked", "lives"),
    [(0, 10_000), (1, SESSION_MS_MIN), (7000, 7000), (10**9, SESSION_MS_MAX)],
)
def test_a_session_has_a_default_and_limits(asked: int, lives: int) -> None:
    groups = GroupCoordinator()
    answer = groups.heartbeat("G", "a", Heartbeat(("T", "U"), session_ms=asked), COUNTS, START)
    assert answer is not None
    assert (answer.pending, answer.members) == (False, 1), "all is its own"
    assert groups.validate(START) == ""
    assert {topic for topic, _ in answer.queues} == {"T"}, "there is no U"
    ends = [groups.members("G", MonoMs(now)) for now in (lives, lives + 1)]
    assert ends == [1, 0]


def test_strategies_have_names_and_one_is_the_default() -> None:
    assert check_strategy("") == DEFAULT
    assert [check_strategy(name) for name in STRATEGIES] == list(STRATEGIES)
    with pytest.raises(duolog.BadRequest, match="'avg' is unknown"):
        check_strategy("avg")


def test_members_are_shown_with_how_they_select_and_whether_their_programs_ask() -> None:
    groups, now = GroupCoordinator(), MonoMs(7)
    for member, expression, asked in (("a", "x||y", True), ("b", " y || x ", False)):
        told = Heartbeat(("T", "U"), not_polled=not asked, expression=expression)
        assert groups.heartbeat("G", member, told, COUNTS, now) is not None
    assert groups.not_polled("G") == {"b"}
    assert groups.not_polled("unknown") == set()
    times: Any = SimpleNamespace(mono_ms=lambda: now)
    table = MemberTable(groups, times)
    assert table.counts() == (0, 2)
    assert (table.readers("U"), table.readers("V")) == ({"G"}, set())
    shown = [consumer for _, consumer in table.consumers(["unknown", "G"])]
    assert [(one.client_id, one.of_sdk, one.shares) for one in shown] == [
        ("a", True, True),
        ("b", True, True),
    ]
    assert [one.since_ms for one in shown] == [now, module.NO_GRACE], "b waits for queues"


def reads(name: str, *ways: str, **what: Any) -> Consumer:
    is_sql = what.pop("is_sql", False)
    return Consumer(name, tuple(Read("T", way, is_sql) for way in ways), **what)


def test_the_ways_in_which_members_select_are_told_the_most_frequent_first() -> None:
    """The same tags are the same way, however a client writes them."""
    consumers = [
        reads("a", "x || y", shares=True),
        reads("b", "*"),
        reads("c", "y||x"),
        reads("d", ""),
        reads("e", " s = 'y||x' ", is_sql=True),
        reads("f", "* || x", shares=True),
        reads("g", "", of_sdk=True),
        reads("h", "z", broadcasting=True),
    ]
    found = [
        (way.expression, way.is_sql, way.member_id, way.members, way.sharing)
        for way in ways_of(consumers)
    ]
    assert found == [
        ("*", False, "b", 3, 1),
        ("x || y", False, "a", 2, 1),
        ("", False, "g", 1, 0),
        ("s = 'y||x'", True, "e", 1, 0),
    ]


def test_what_is_shown_of_the_ways_is_bounded() -> None:
    """Clients choose how many there are, and how long they are."""
    many = [reads(str(k), f"{k:03d}" + "x" * EXPRESSION_CHARACTERS_MAX) for k in range(20)]
    shown = list(ways_of(many))
    assert len(shown) == SHOWN_MAX
    assert all(len(way.expression) == EXPRESSION_CHARACTERS_MAX for way in shown)
    assert [way.topic for way in ways_of([Consumer("a", (Read("V"), Read("U")))])] == ["U", "V"]


def test_validate_reports_an_inconsistent_coordinator() -> None:
    groups = GroupCoordinator()
    beat(groups, "a", beat(groups, "a", set()))
    beat(groups, "b", set())
    member = groups._groups["G"].members["b"]
    member.owned = {("T", 3)}
    assert groups.validate(START) == "group G: ('T', 3) is held by a and b"
    member.owned, member.granted = set(), {("U", 1)}
    assert groups.validate(START) == "group G: b was granted [('U', 1)], and reads ('T',)"
    member.granted, member.expires_ms = set(), MonoMs(300_001)
    assert groups.validate(START) == "group G: b lives for 300001 ms without a heartbeat"
    member.wish = Wish("CONFIG")
    assert groups.validate(START) == "group G: its members go by several strategies"
    groups._groups["G"].members.clear()
    assert groups.validate(START) == "group G: 0 members"


def test_an_expired_member_cannot_commit_for_reassigned_queues() -> None:
    groups = GroupCoordinator()
    everything = beat(groups, "a", set(), now=0)
    assert beat(groups, "b", set(), now=10_001) == everything
    assert beat(groups, "a", everything, now=10_002) == set()  # it has not noticed
    assert not groups.may_commit("G", "a", everything, MonoMs(10_003))
    kept = beat(groups, "b", everything, now=10_004)
    assert len(kept) == 4  # half of it is to go to a, and nothing because a believes to read it
    assert groups.may_commit("G", "b", kept, MonoMs(10_005))
    groups = GroupCoordinator()
    everything = beat(groups, "a", set(), now=0)
    assert groups.may_commit("G", "a", everything, START)
    beat(groups, "b", set(), now=10_001)  # a is dead by now
    assert not groups.may_commit("G", "a", {("T", 0)}, LATER)
    assert groups.may_commit("G", "b", {("T", 0)}, LATER)


def test_a_new_coordinator_refuses_commits_for_queues_that_an_unheard_member_may_read() -> None:
    """Member a was silent under the last master, which gave its queues to b."""
    groups = GroupCoordinator(grace_until_ms=MonoMs(4000))
    everything = {("T", queue) for queue in range(8)}
    assert not groups.may_commit("G", "a", everything, START)  # b has not been heard yet
    assert beat(groups, "a", set()) == set()
    assert not groups.may_commit("G", "a", everything, START)
    beat(groups, "b", everything, now=1)
    assert groups.may_commit("G", "b", everything, MonoMs(2))
    assert not groups.may_commit("G", "a", everything, MonoMs(2))
    assert not groups.may_commit("G", "c", everything, MonoMs(2))
    groups = GroupCoordinator()
    everything = beat(groups, "a", set())
    assert len(everything) == 8
    groups.begin_again(MonoMs(4000))
    assert groups.names(START) == set()
    assert not groups.may_commit("G", "a", everything, START)
    assert beat(groups, "b", set(), now=1) == set()
    assert len(beat(groups, "a", everything, now=2)) == 4  # of what it reads, its share


def test_a_claim_from_before_the_last_mastership_is_not_believed() -> None:
    """The master between never heard of a, and gave its queues to b, which claims them later."""
    groups = GroupCoordinator(grace_until_ms=MonoMs(4000))
    everything = frozenset(("T", queue) for queue in range(8))
    late = Heartbeat(("T",), everything, outdated=True)
    answer = groups.heartbeat("G", "a", late, COUNTS, START)
    assert answer is not None
    assert (answer.queues, answer.foreign) == ([], sorted(everything))
    assert not groups.may_commit("G", "a", set(everything), START)
    assert len(beat(groups, "b", set(everything), now=1)) == 4
    assert groups.may_commit("G", "b", set(everything), MonoMs(2))
    groups = GroupCoordinator()
    everything = frozenset(("T", queue) for queue in range(8))
    late = Heartbeat(("T",), everything, outdated=True)
    answer = groups.heartbeat("G", "a", late, COUNTS, START)
    assert answer is not None
    assert answer.pending
    assert answer.queues == []
    assert beat(groups, "a", set(), now=1) == everything


def test_a_commit_for_an_unassigned_queue_is_accepted_once_all_members_were_heard() -> None:
    groups = GroupCoordinator(grace_until_ms=MonoMs(4000))
    assert not groups.may_commit("G", "a", {("T", 0)}, MonoMs(3999))
    assert groups.may_commit("G", "a", {("T", 0)}, MonoMs(4000))
    beat(groups, "b", set(), now=4000)
    assert not groups.may_commit("G", "a", {("T", 0)}, MonoMs(4001))
    assert groups.may_commit("G", "a", {("U", 0)}, MonoMs(4001))


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from(["beat", "leave", "die"]))))
def test_no_queue_is_ever_granted_to_two(steps: list[tuple[str, str]]) -> None:
    groups = GroupCoordinator()
    reading: dict[str, set[tuple[str, int]]] = {}
    for now, (member, what) in enumerate(steps, 1):
        if what == "beat":
            reading[member] = beat(groups, member, reading.get(member, set()), now)
        elif what == "leave":
            groups.leave("G", member)
            reading.pop(member, None)
        else:
            reading.pop(member, None)
            groups.leave("G", member)
        assert groups.validate(MonoMs(now)) == ""
        seen = Counter(queue for queues in reading.values() for queue in queues)
        assert all(times == 1 for times in seen.values())


# -- with real consumers -----------------------------------------------------------------------


async def consume(
    consumer: duolog.Consumer, count: int, timeout: float = WAIT_SECONDS
) -> list[bytes]:
    bodies: list[bytes] = []
    while len(bodies) < count:
        message = await consumer.get(timeout)
        if message is None:
            break
        bodies.append(message.body)
    return bodies


async def fill(client: duolog.Client, count: int, **how: str) -> list[bytes]:
    bodies = [b"%d" % n for n in range(count)]
    async with client.producer() as producer:
        for first in range(0, count, 50):
            await producer.send_batch("T", bodies[first : first + 50], **how)  # type: ignore[arg-type]
    return bodies


async def test_a_group_reads_everything_once_and_continues_where_it_stopped(
    client: duolog.Client,
) -> None:
    bodies = await fill(client, 1000)
    async with client.consumer("G", "T") as consumer:
        first = await consume(consumer, 400)
    async with client.consumer("G", "T") as consumer:
        rest = await consume(consumer, 600)
        assert await consumer.get(0.1) is None
    assert sorted(first + rest) == sorted(bodies)
    group = await client.admin.group("G")
    assert sum(queue.lag_messages for queue in group.queues) == 0


async def test_lag_is_shown_in_messages_and_time(client: duolog.Client) -> None:
    await fill(client, 200)
    async with client.consumer("G", "T") as consumer:
        await consume(consumer, 50)
    group = await client.admin.group("G")
    assert sum(queue.lag_messages for queue in group.queues) == 150
    assert max(queue.lag_ms for queue in group.queues) > 0


async def test_an_error_in_the_block_leaves_the_message_in_hand_unconsumed(
    client: duolog.Client, producer: duolog.Producer
) -> None:
    await client.admin.create_topic("one", 1)
    for n in range(3):
        await producer.send("one", b"%d" % n)
    with pytest.raises(RuntimeError):
        async with client.consumer("G", "one") as consumer:
            async for message in consumer:
                if message.body == b"1":
                    raise RuntimeError("cannot handle this one")
    async with client.consumer("G", "one") as consumer:
        assert await consume(consumer, 2) == [b"1", b"2"]


async def test_two_members_share_the_queues_and_lose_nothing(client: duolog.Client) -> None:
    bodies = await fill(client, 2000)
    seen: Counter[bytes] = Counter()
    async with client.consumer("G", "T", session=3) as first:
        for body in await consume(first, 200):
            seen[body] += 1
        second = client.consumer("G", "T", session=3)

        async def read(consumer: duolog.Consumer) -> None:
            while len(seen) < len(bodies):
                message = await consumer.get(0.2)
                if message is not None:
                    seen[message.body] += 1

        async def join_and_read() -> None:
            async with second:
                while not second.assignment and len(seen) < len(bodies):
                    await asyncio.sleep(0.05)
                await read(second)

        async with asyncio.timeout(30):
            await asyncio.gather(read(first), join_and_read())
    assert set(seen) == set(bodies)


async def test_a_consumer_reads_by_tag(client: duolog.Client, producer: duolog.Producer) -> None:
    for n in range(100):
        await producer.send("T", b"%d" % n, tags="even" if n % 2 == 0 else "odd")
    async with client.consumer("G", "T", tags=["even"]) as consumer:
        found = [*await consume(consumer, 50), *await consume(consumer, 1, 0.3)]
    assert sorted(map(int, found)) == list(range(0, 100, 2))
    group = await client.admin.group("G")
    assert sum(queue.lag_messages for queue in group.queues) == 0


async def test_a_consumer_seeks_by_offset_and_by_time(
    client: duolog.Client, producer: duolog.Producer
) -> None:
    await client.admin.create_topic("one", 1)
    receipts = []
    for n in range(20):
        receipts.append(await producer.send("one", b"%d" % n))
        await asyncio.sleep(0.002)
    async with client.consumer("G", "one") as consumer:
        assert await consume(consumer, 3) == [b"0", b"1", b"2"]
        await consumer.seek("one", 0, 17)
        assert await consume(consumer, 3) == [b"17", b"18", b"19"]
        await consumer.seek_to_time(receipts[5].store_time_ms)
        assert await consume(consumer, 1) == [b"5"]
        with pytest.raises(duolog.UnknownTopic):
            await consumer.seek("one", 7, 0)
        with pytest.raises(duolog.BadRequest):
            await consumer.seek("one", 0, -1)
    async with client.consumer("G", "one") as consumer:
        assert await consume(consumer, 1) == [b"6"]


async def test_a_late_commit_does_not_move_the_group_back(
    client: duolog.Client, node: Node
) -> None:
    await fill(client, 10)
    connection = Connection((f"127.0.0.1:{node.port}",))

    async def commit(offset: int, forward: bool) -> int:
        offsets = [wire.QueueOffset(topic="T", queue_id=0, offset=offset)]
        request = wire.CommitRequest(group="G", offsets=offsets, forward=forward)
        await connection.groups.Commit(request)
        queues = [wire.QueueRef(topic="T", queue_id=0)]
        reply = await connection.groups.Offsets(wire.OffsetsRequest(group="G", queues=queues))
        return int(reply.offsets[0].offset)

    assert await commit(5, forward=True) == 5
    assert await commit(3, forward=True) == 5
    assert await commit(2, forward=False) == 2  # its user wants to read again
    assert await commit(7, forward=True) == 7
    await connection.close()


async def test_a_master_believes_claims_of_the_mastership_before_it_and_no_older(
    client: duolog.Client, node: Node
) -> None:
    """The node began three masterships, and told each member the newest."""
    replication = broker_of(node).replication
    assert replication.master is not None
    history = replication.master.history
    last = history.entries[-1]
    older = [EpochEntry(Epoch(number), number, number) for number in (3, 5)]
    history.entries = (*older, replace(last, epoch=Epoch(7)))
    replication.master.epoch = Epoch(7)
    connection = Connection((f"127.0.0.1:{node.port}",))
    everything = [wire.QueueRef(topic="T", queue_id=queue) for queue in range(4)]
    for epoch, believed in ((0, True), (3, False), (4, False), (5, True), (7, True)):
        request = wire.HeartbeatRequest(
            group="G", member_id="m", topics=["T"], owned=everything, epoch=epoch
        )
        reply = await connection.groups.Heartbeat(request)
        assert (bool(reply.queues), bool(reply.foreign)) == (believed, not believed), epoch
        assert reply.epoch == 7
    await connection.close()


async def test_of_what_a_member_claims_only_queues_that_exist_are_remembered(
    client: duolog.Client, node: Node
) -> None:
    connection = Connection((f"127.0.0.1:{node.port}",))
    named = [("T", 0), ("T", 4), ("T", -1), ("Unknown", 0), ("x" * 100_000, 0)]
    refs = [wire.QueueRef(topic=topic, queue_id=queue) for topic, queue in named]
    for rooms, wrong in ((["east"], False), (["r"] * 17, True), (["r" * 256], True)):
        request = wire.HeartbeatRequest(
            group="G", member_id="m", topics=["T"], owned=refs, wanted=refs, rooms=rooms
        )
        if wrong:
            with pytest.raises(grpc.aio.AioRpcError, match="rooms"):
                await connection.groups.Heartbeat(request)
        else:
            await connection.groups.Heartbeat(request)
    (member,) = broker_of(node).groups._groups["G"].members.values()
    assert member.owned == set(member.wish.queues) == {("T", 0)}
    assert member.wish.rooms == ("east",)
    await connection.close()


async def test_a_claim_is_judged_by_the_mastership_that_answers_it(
    client: duolog.Client, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The group is created first, and meanwhile the node is made the master twice more."""
    broker = broker_of(node)
    master = broker.replication.master
    assert master is not None
    began = master.epoch
    ensure_group = broker.metadata.ensure_group

    async def slowly(name: str) -> None:
        await ensure_group(name)
        entries = master.history.entries
        newer = [replace(entries[-1], epoch=Epoch(began + more)) for more in (1, 2)]
        master.history.entries, master.epoch = (*entries, *newer), newer[-1].epoch

    monkeypatch.setattr(broker.metadata, "ensure_group", slowly)
    connection = Connection((f"127.0.0.1:{node.port}",))
    owned = [wire.QueueRef(topic="T", queue_id=0)]
    request = wire.HeartbeatRequest(
        group="G", member_id="m", topics=["T"], owned=owned, epoch=began
    )
    reply = await connection.groups.Heartbeat(request)
    assert (reply.epoch, list(reply.foreign)) == (began + 2, owned)
    await connection.close()


async def test_the_owner_of_a_queue_is_checked_when_the_commit_is_written(
    client: duolog.Client, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The group is created first, and meanwhile the queue is assigned to another member."""
    await fill(client, 10)
    connection = Connection((f"127.0.0.1:{node.port}",))
    broker = broker_of(node)
    ensure_group = broker.metadata.ensure_group

    async def slowly(name: str) -> None:
        await ensure_group(name)
        monkeypatch.undo()
        other = wire.HeartbeatRequest(group="G", member_id="b", topics=["T"], session_ms=10_000)
        assert len((await connection.groups.Heartbeat(other)).queues) > 0

    monkeypatch.setattr(broker.metadata, "ensure_group", slowly)
    offsets = [wire.QueueOffset(topic="T", queue_id=0, offset=5)]
    request = wire.CommitRequest(group="G", member_id="a", offsets=offsets, forward=True)
    with pytest.raises(grpc.aio.AioRpcError, match="another member"):
        await connection.groups.Commit(request)
    await connection.close()


async def test_a_new_group_may_start_at_the_latest_offset(client: duolog.Client) -> None:
    await fill(client, 10)
    async with client.consumer("late", "T", start=duolog.Start.LATEST) as consumer:
        assert await consumer.get(0.2) is None
        async with client.producer() as producer:
            await producer.send("T", b"new")
        message = await consumer.get(5)
        assert message is not None
        assert message.body == b"new"


@contextlib.contextmanager
def older_node(old: bool) -> Iterator[None]:
    """old: nodes do not commit where a group begins, like those of version 0.1.0."""

    async def nothing(*_: object) -> None:
        """What it does not know, it ignores."""

    with pytest.MonkeyPatch.context() as patch:
        if old:
            patch.setattr(GroupsService, "_begin", nothing)
        yield


async def sent(client: duolog.Client, *queues: int) -> None:
    async with client.producer() as producer:
        for queue in queues:
            await producer.send("T", b"%d" % queue, queue_id=queue)


@pytest.mark.parametrize("old", [False, True])
async def test_where_a_group_begins_is_kept_though_nothing_was_consumed(
    client: duolog.Client, old: bool
) -> None:
    await fill(client, 10)
    latest = duolog.Start.LATEST
    with older_node(old):
        async with client.consumer("late", "T", start=latest):
            pass
        await sent(client, 0, 1, 3)
        async with client.consumer("late", "T", start=latest) as one:
            assert sorted(await consume(one, 3)) == [b"0", b"1", b"3"]
            await one.commit()
            await client.admin.alter_topic("T", 6)
            await sent(client, 4, 5)
            assert sorted(await consume(one, 2)) == [b"4", b"5"]
        await client.admin.alter_topic("T", 7)
        await sent(client, 6)
        async with client.consumer("late", "T", start=latest) as again:
            assert await consume(again, 1) == [b"6"]
    group = await client.admin.group("late")
    assert sum(queue.lag_messages for queue in group.queues) == 0


async def test_of_members_that_begin_together_none_reads_what_was_there_before(
    client: duolog.Client,
) -> None:
    """One fixes where the group begins in the queues of all."""
    await fill(client, 10)
    for queue in range(4):
        wanted = client.consumer(
            "late",
            "T",
            start=duolog.Start.LATEST,
            rebalance="CONFIG",
            queues=[("T", queue)],
        )
        async with wanted as member:
            assert await member.get(0.05) is None
    # Nor does the place move where another member asks for another one.
    async with client.consumer("late", "T", start=duolog.Start.EARLIEST) as other:
        await sent(client, 2)
        assert await consume(other, 1) == [b"2"]


async def test_a_broadcasting_member_keeps_where_it_begins_in_its_file(
    client: duolog.Client, tmp_path: Path
) -> None:
    await fill(client, 10)
    how: Any = {
        "start": duolog.Start.LATEST,
        "mode": "broadcasting",
        "offsets_file": tmp_path / "offsets.json",
    }
    async with client.consumer("each", "T", **how):
        pass
    await client.admin.alter_topic("T", 5)
    await sent(client, 0, 3, 4)
    async with client.consumer("each", "T", **how) as consumer:
        assert sorted(await consume(consumer, 3)) == [b"0", b"3", b"4"]


async def test_a_groups_offsets_are_reset(client: duolog.Client) -> None:
    await fill(client, 100)
    async with client.consumer("G", "T") as consumer:
        await consume(consumer, 100)
        with pytest.raises(duolog.Busy):
            await client.admin.reset_group("G", "T")
    await client.admin.reset_group("G", "T", duolog.Start.EARLIEST)
    async with client.consumer("G", "T") as consumer:
        assert len(await consume(consumer, 100)) == 100
    await client.admin.reset_group("G", "T", offset=10**9)
    group = await client.admin.group("G")
    assert sum(queue.lag_messages for queue in group.queues) == 0
    with pytest.raises(duolog.BadRequest):
        await client.admin.reset_group("G", "T", offset=-5)
    await client.admin.delete_group("G")
    with pytest.raises(duolog.UnknownGroup):
        await client.admin.group("G")


async def test_a_consumer_of_nothing_is_refused(client: duolog.Client) -> None:
    with pytest.raises(duolog.UnknownTopic):
        await client.consumer("G", "nope").start()
    with pytest.raises(duolog.BadRequest):
        await client.consumer("bad/group", "T").start()
    hows: list[dict[str, object]] = [{"start": "middle"}, {"topics": []}]
    for how in hows:
        with pytest.raises(duolog.BadRequest):
            client.consumer("G", **{"topics": "T", **how})  # type: ignore[arg-type]


@pytest.mark.usefixtures("quick_groups")
async def test_consumption_continues_through_a_restart_of_the_node(
    start_node: StartNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "duolog_server.serve.server.GRACE_SECONDS", 0.2
    )  # the consumer's stream stays open
    node = await start_node()
    listen = f"127.0.0.1:{node.port}"
    async with duolog.Client(listen, timeout=20) as client:
        await client.admin.create_topic("T", 2)
        first = await fill(client, 100)
        async with client.consumer("G", "T", session=3) as consumer:
            seen = await consume(consumer, 100)
            await consumer.commit()
            data = node.config.node.data
            await node.stop()
            again: Node = await start_node(data=data, listen=listen)
            async with client.producer() as producer:
                for n in range(20):
                    await producer.send("T", b"after %d" % n)
            seen += await consume(consumer, 20)
            assert again.port == node.port
    assert sorted(set(seen)) == sorted([*first, *(b"after %d" % n for n in range(20))])


def _consumer_tasks() -> "list[asyncio.Task[object]]":
    return [task for task in asyncio.all_tasks() if "Consumer" in repr(task.get_coro())]


async def test_closing_a_consumer_ends_its_tasks_and_logs_nothing(
    client: duolog.Client, caplog: pytest.LogCaptureFixture
) -> None:
    await fill(client, 10)
    consumer = client.consumer("G", "T")
    async with consumer:
        await consume(consumer, 10)
        assert _consumer_tasks()
    assert _consumer_tasks() == []
    assert not [record for record in caplog.records if record.name == "duolog"]


async def test_a_seek_backwards_leaves_other_queues_commits_forward_only(
    client: duolog.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.admin.create_topic("two", 2)
    async with client.producer() as producer:
        for n in range(8):
            await producer.send("two", b"%d" % n, queue_id=n % 2)
    sent: list[tuple[dict[tuple[str, int], int], bool]] = []
    commit = SharingMember.commit

    async def noting(
        self: SharingMember, offsets: dict[tuple[str, int], int], forward: bool
    ) -> None:
        sent.append((offsets, forward))
        await commit(self, offsets, forward)

    monkeypatch.setattr(SharingMember, "commit", noting)
    async with client.consumer("G", "two", commit_interval=60) as consumer:
        await consume(consumer, 8)
        await consumer.commit()
        sent.clear()
        await consumer.seek("two", 0, 1)
        await consume(consumer, 3)
        async with client.producer() as producer:
            await producer.send("two", b"8", queue_id=1)
        await consume(consumer, 1)
        await consumer.commit()
    assert ({("two", 1): 5}, True) in sent
    assert [offsets for offsets, forward in sent if not forward] == [{("two", 0): 4}]


async def test_a_group_tells_which_of_its_members_have_not_polled(
    client: duolog.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_groupreader, "HEARTBEAT_SECONDS", 0.01)
    await fill(client, 10)

    async def told() -> set[tuple[bool, bool]]:
        queues = (await client.admin.group("G")).queues
        return {(bool(queue.member_id), queue.not_polled) for queue in queues}

    async with client.consumer("G", "T") as consumer:
        assert await told() == {(True, True)}
        assert await consumer.get(WAIT_SECONDS) is not None
        async with asyncio.timeout(WAIT_SECONDS):
            while await told() != {(True, False)}:
                await asyncio.sleep(0)
    assert await told() == {(False, False)}, "nobody reads them any more"
