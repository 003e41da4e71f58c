"""POP on a clock of the tests' own: leases, handles, progress, and what becomes of messages."""

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import duolog
import pytest
import structlog

from duolog_server.node.broker import Broker
from duolog_server.node.core.waitingcalls import WaitingCalls
from duolog_server.node.filters.tagfilter import TagFilter
from duolog_server.node.pop import popservice
from duolog_server.node.pop.popservice import (
    AGAIN_MS,
    GONE_MS,
    HELD_MS,
    MOVE_MS,
    RETRY_FIRST_EVERY,
    Handle,
    Popped,
    PopRequest,
    PopService,
)
from duolog_server.node.pop.retrytopics import RetryTopics
from duolog_server.node.pop.subscriber import Subscriber
from duolog_server.store.clocks import MonoMs
from duolog_server.store.columns import Columns
from duolog_server.store.grouptopics import retry_topic
from duolog_server.store.messagestore import PutBatch
from duolog_server.store.record import Record
from tests.node.replicas import broker_of
from tests.nodefixtures import StartNode
from tests.until import until

LEASE_MS = 10_000
BEGIN_MS = 1_000_000


class Retry:
    """Takes what is stored again, or raises what it is told to, once each."""

    def __init__(self) -> None:
        self.stored: list[bytes] = []
        self.dead: list[bytes] = []
        self.errors: list[BaseException] = []
        self.gate = asyncio.Event()
        self.gate.set()

    async def _take(self, taken: list[bytes], record: Record) -> None:
        await self.gate.wait()
        if self.errors:
            raise self.errors.pop(0)
        taken.append(record.body)

    async def store_again(
        self, group: str, topic: str, record: Record, *, counts: bool = True
    ) -> None:
        await self._take(self.stored, record)

    async def to_dead_letters(self, group: str, record: Record) -> None:
        await self._take(self.dead, record)


class World:
    """POP over a node's store; its clock stands still but where a test moves it."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.now = BEGIN_MS
        self.retry = Retry()
        times = SimpleNamespace(
            mono_ms=lambda: MonoMs(self.now),
            wall_ms=broker.times.wall_ms,
            store_ms=broker.times.store_ms,
        )
        core = replace(broker.core, times=cast(Any, times))
        self.calls = WaitingCalls(100)
        self.pop = PopService(core, broker.filters, cast(RetryTopics, self.retry), self.calls)

    async def put(self, count: int, tag: str = "", topic: str = "T", queue: int = 0) -> None:
        first = self.broker.store.next_offset(topic, queue)
        bodies = [b"%d" % (first + k) for k in range(count)]
        properties = f"TAGS\x01{tag}".encode() if tag else b""
        self.broker.log.write(
            PutBatch(topic, queue, Columns.of(bodies, [properties] * count), 1, accepted=True)
        )
        await self.dispatched()

    async def dispatched(self) -> None:
        self.broker.log.pump_soon()
        await until(lambda: self.broker.store.dispatcher.behind_bytes() == 0)

    async def internal(self, topic: str, queues: int = 1) -> None:
        self.broker.metadata.make_internal(topic, queues)
        await until(lambda: topic in self.broker.metadata.topics)

    def take(self, count: int = 1, group: str = "g", **how: Any) -> list[Popped]:
        request = request_of(group, count, **how)
        found = self.pop.pop(request, MonoMs(self.now))
        assert self.pop.validate() == ""
        return found

    def bodies(self, count: int = 10, group: str = "g", **how: Any) -> list[bytes]:
        return [popped.body for popped in self.take(count, group, **how)]

    async def end_leases(self, after_ms: int = 0) -> None:
        self.now += after_ms
        async with asyncio.TaskGroup() as tasks:
            self.pop._end_leases(MonoMs(self.now), tasks)
        assert self.pop.validate() == ""

    async def save(self) -> None:
        await self.pop._save()
        assert self.pop.validate() == ""

    def committed(self, group: str = "g") -> int:
        return self.broker.metadata.tables.committed(group, "T", 0)

    def acknowledged(self, group: str = "g") -> list[list[int]]:
        return self.broker.metadata.tables.acknowledged(group, "T", 0)


def request_of(group: str = "g", count: int = 1, **how: Any) -> PopRequest:
    given: dict[str, Any] = {"client": "c", "filter": TagFilter.parse("*"), "queue_id": 0, **how}
    given = {"topic": "T", **given}
    return PopRequest(group=group, count=count, invisible_ms=LEASE_MS, **given)


@pytest.fixture
async def world(start_node: StartNode, nothing_noted: None) -> World:
    node = await start_node()
    async with duolog.Client(f"127.0.0.1:{node.port}") as client:
        await client.admin.create_topic("T", 1)
        for group in ("g", "h"):
            await client.admin.put_group(group)
        await client.admin.put_group("orderly", orderly=True)
    return World(broker_of(node))


def forward(popped: Popped) -> Handle:
    return replace(popped.handle, serial=popped.handle.serial + 1)


# -- leases ----------------------------------------------------------------------------------------


async def test_a_message_is_out_until_its_lease_ends_and_its_handle_ends_with_it(
    world: World,
) -> None:
    await world.put(3)
    one, two = world.take(2)
    assert (one.body, one.attempt, one.invisible_ms) == (b"0", 1, LEASE_MS)
    assert world.bodies() == [b"2"]
    assert world.bodies(group="h") == [b"0", b"1", b"2"]
    world.now += LEASE_MS - 1
    assert world.pop.ack("g", two.handle)
    world.now += 1
    assert not world.pop.ack("g", one.handle)
    assert world.pop.change_invisible("g", one.handle, LEASE_MS) is None
    assert not await world.pop.to_dead_letters("g", one.handle)
    await world.end_leases()
    assert world.retry.stored == [b"0", b"2", b"0", b"1", b"2"]
    assert world.bodies() == []


async def test_a_handle_is_valid_for_its_delivery_alone(world: World) -> None:
    await world.put(1)
    (one,) = world.take()
    assert not world.pop.ack("g", forward(one))
    assert not world.pop.ack("h", one.handle)
    changed = world.pop.change_invisible("g", one.handle, 5000)
    assert changed is not None
    assert not world.pop.ack("g", one.handle), "it was replaced"
    assert world.pop.change_invisible("g", one.handle, 5000) is None
    world.now += 4999
    await world.end_leases()
    assert world.retry.stored == []
    assert world.pop.ack("g", changed)
    assert world.pop.ack("g", changed), "the answer may have been lost"
    assert not world.pop.ack("h", changed)
    assert await world.pop.to_dead_letters("g", changed), "it is done"
    assert world.retry.dead == []


async def test_the_latest_acknowledgements_may_be_repeated(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(popservice, "SETTLED_MAX", 2)
    await world.put(3)
    handles = [popped.handle for popped in world.take(3)]
    assert all(world.pop.ack("g", handle) for handle in handles)
    assert [world.pop.ack("g", handle) for handle in handles] == [False, True, True]


async def test_what_did_not_reach_its_consumer_is_visible_again_soon(world: World) -> None:
    await world.put(2)
    one, two = world.take(2)
    world.pop.give_back("g", one.handle)
    world.pop.give_back("g", forward(two))
    await world.end_leases(GONE_MS - 1)
    assert world.retry.stored == []
    await world.end_leases(1)
    assert world.retry.stored == [b"0"]
    assert not world.pop.ack("g", one.handle)
    assert world.pop.ack("g", two.handle)


async def test_held_leases_last_as_long_as_their_client(world: World) -> None:
    await world.put(5)
    world.take(1, held=True, client="a")
    world.take(1, held=True, client="a", via="other node")
    world.take(1, held=True, client="b")
    world.take(1, client="a")
    await world.end_leases(LEASE_MS)
    assert world.retry.stored == [b"3"]
    world.pop.way_gone("a", "other node")
    await world.end_leases(GONE_MS - 1)
    assert world.retry.stored == [b"3"]
    await world.end_leases(1)
    assert world.retry.stored == [b"3", b"1"]
    world.pop.client_gone("a")
    await world.end_leases(GONE_MS)
    assert world.retry.stored == [b"3", b"1", b"0"]
    await world.end_leases(HELD_MS)
    assert world.retry.stored == [b"3", b"1", b"0", b"2"]


# -- what becomes of messages that nobody acknowledged ---------------------------------------------


async def test_a_message_is_not_done_before_its_copy_is_stored(world: World) -> None:
    await world.put(1)
    (one,) = world.take()
    world.retry.errors = [duolog.Unavailable("a full disk")]
    await world.end_leases(LEASE_MS)
    assert world.pop.has_done("g", "T", 0, 0) is None
    assert not world.pop.ack("g", one.handle), "its lease has ended"
    await world.end_leases(AGAIN_MS - 1)
    assert world.retry.stored == []
    await world.end_leases(1)
    assert world.retry.stored == [b"0"]
    assert world.pop.has_done("g", "T", 0, 0)


@pytest.mark.parametrize("error", [duolog.ResultUnknown("stored"), duolog.NoSuchMessage("gone")])
async def test_a_message_is_done_where_its_copy_may_be_lost_only_with_it(
    world: World, error: BaseException
) -> None:
    await world.put(1)
    world.take()
    world.retry.errors = [error]
    await world.end_leases(LEASE_MS)
    assert world.pop.has_done("g", "T", 0, 0)
    await world.end_leases(MOVE_MS)
    assert world.retry.stored == []


async def test_a_message_is_moved_once_however_long_that_takes(world: World) -> None:
    await world.put(2)
    world.take(2)
    world.retry.gate.clear()
    async with asyncio.TaskGroup() as tasks:
        world.now += LEASE_MS
        world.pop._end_leases(MonoMs(world.now), tasks)
        await asyncio.sleep(0)
        assert world.pop.validate() == "", "its lease ends again, should moving it never end"
        world.now += MOVE_MS - 1
        world.pop._end_leases(MonoMs(world.now), tasks)
        await asyncio.sleep(0)
        world.retry.gate.set()
    assert world.retry.stored == [b"0", b"1"]


async def test_what_is_moved_after_a_reset_is_left_to_it(world: World) -> None:
    await world.put(2)
    world.take(2)
    world.retry.gate.clear()
    async with asyncio.TaskGroup() as tasks:
        world.now += LEASE_MS
        world.pop._end_leases(MonoMs(world.now), tasks)
        await asyncio.sleep(0)
        await world.pop.reset("g", {"T": {0: 0}})
        world.retry.gate.set()
    assert world.retry.stored == [b"0"], "the one that was being stored"
    assert world.bodies() == [b"0", b"1"]


@pytest.mark.parametrize("forwarded", [False, True])
async def test_messages_that_were_trimmed_while_they_were_out_are_given_up_and_logged(
    world: World, forwarded: bool
) -> None:
    """Neither is moved for ever: no consumer and no round of the node can store them again."""
    await world.put(3)
    one, _, _ = world.take(3)
    await world.broker.metadata.raise_minimums({"T": {0: 2}})
    with structlog.testing.capture_logs() as logs:
        if forwarded:
            assert await world.pop.to_dead_letters("g", one.handle)
            assert await world.pop.to_dead_letters("g", one.handle), "its answer may be lost"
            assert world.pop.has_done("g", "T", 0, 0)
        await world.end_leases(LEASE_MS)
    assert [world.pop.has_done("g", "T", 0, offset) for offset in range(3)] == [True] * 3
    assert (world.retry.stored, world.retry.dead) == ([b"2"], [])
    rows = [row for row in logs if row["event"] == "delivered messages no longer exist: given up"]
    found = [(row["topic"], row["group"], row["offset"], row["count"]) for row in rows]
    assert found == ([("T", "g", 0, 1), ("T", "g", 1, 1)] if forwarded else [("T", "g", 0, 2)])
    assert "no longer exists" in rows[0]["reason"]


async def test_an_orderly_group_continues_behind_messages_that_were_trimmed(world: World) -> None:
    await world.put(3)
    assert world.bodies(2, "orderly", attempt_id="x") == [b"0", b"1"]
    await world.broker.metadata.raise_minimums({"T": {0: 2}})
    assert world.bodies(2, "orderly", attempt_id="x") == []
    await world.end_leases(LEASE_MS)
    assert world.bodies(2, "orderly", attempt_id="y") == [b"2"]


async def test_a_message_may_be_forwarded_to_the_dead_letters_once(world: World) -> None:
    await world.put(3)
    one, two, three = world.take(3)
    assert await world.pop.to_dead_letters("g", one.handle)
    assert await world.pop.to_dead_letters("g", one.handle)
    assert world.retry.dead == [b"0"]
    world.retry.errors = [duolog.ResultUnknown("stored")]
    with pytest.raises(duolog.ResultUnknown):
        await world.pop.to_dead_letters("g", two.handle)
    assert await world.pop.to_dead_letters("g", two.handle)
    assert world.pop.has_done("g", "T", 0, 1)
    world.retry.errors = [duolog.Unavailable("a full disk")]
    with pytest.raises(duolog.Unavailable):
        await world.pop.to_dead_letters("g", three.handle)
    assert world.pop.has_done("g", "T", 0, 2) is None
    await world.end_leases(AGAIN_MS)
    assert world.retry.stored == [b"2"], "it is the group's again"


# -- order -----------------------------------------------------------------------------------------


async def test_an_orderly_group_gets_a_message_again_before_those_behind_it(world: World) -> None:
    await world.put(3)
    assert world.bodies(2, "orderly", attempt_id="x") == [b"0", b"1"]
    assert world.bodies(2, "orderly", attempt_id="y") == []
    again = world.take(2, "orderly", attempt_id="x")
    assert [popped.body for popped in again] == [b"0", b"1"], "the answer was lost"
    assert world.pop.ack("orderly", again[1].handle)
    assert world.bodies(2, "orderly", attempt_id="y") == [], "0 is still out"
    await world.end_leases(LEASE_MS)
    assert world.retry.stored == []
    (first,) = world.take(3, "orderly", attempt_id="z")
    assert (first.body, first.attempt) == (b"0", 2)
    assert world.pop.ack("orderly", first.handle)
    (last,) = world.take(3, "orderly", attempt_id="z")
    assert (last.body, last.attempt) == (b"2", 1)


async def test_polls_of_an_orderly_group_look_again_once_its_message_is_theirs(
    world: World,
) -> None:
    await world.put(2)
    (one,) = world.take(1, "orderly")
    deadline = asyncio.get_running_loop().time() + 60
    polls = [
        asyncio.create_task(world.pop.wait(request_of(group), deadline))
        for group in ("orderly", "g")
    ]
    assert [popped.body for popped in await polls.pop()] == [b"0"]
    world.take(1)
    other = asyncio.create_task(world.pop.wait(request_of(), deadline))
    await until(lambda: world.calls.count == 2)
    lines = {group: line for (group, _), line in world.pop._lines.items()}
    await world.end_leases(LEASE_MS - 1)
    assert len(lines["orderly"].waiting) == 1, "the message is out still"
    assert world.pop.ack("orderly", one.handle)
    assert (len(lines["orderly"].waiting), len(lines["g"].waiting)) == (0, 1)
    assert [popped.body for popped in await polls.pop()] == [b"1"]
    other.cancel()


async def test_polls_begin_at_the_queue_that_they_name_or_at_each_in_turn(world: World) -> None:
    await world.internal("U", 3)
    for queue in range(3):
        await world.put(3, topic="U", queue=queue)

    def queues(queue_id: int) -> list[int]:
        found = [world.take(topic="U", queue_id=queue_id)[0] for _ in range(3)]
        return [popped.handle.queue_id for popped in found]

    assert (queues(-1), queues(0), queues(2)) == ([1, 2, 0], [0, 0, 1], [2, 2, 1])


async def test_the_retry_topic_is_looked_at_first_now_and_then(world: World) -> None:
    retried = retry_topic("g", "T")
    await world.internal(retried)
    queues = [
        next(world.pop._sources(request_of(), turn))[0] for turn in range(2 * RETRY_FIRST_EVERY)
    ]
    assert [topic == retried for topic in queues] == ([True] + [False] * 4) * 2
    assert [*world.pop._sources(request_of(), 1)] == [("T", 0), (retried, 0)]


# -- progress --------------------------------------------------------------------------------------


async def test_the_next_master_delivers_what_was_not_acknowledged(world: World) -> None:
    await world.put(6)
    handles = [popped.handle for popped in world.take(6)]
    for k in (0, 1, 3):
        assert world.pop.ack("g", handles[k])
    await world.save()
    assert (world.committed(), world.acknowledged()) == (2, [[3, 4]])
    assert world.pop.reached("g", "T", 0) == (2, 6, 3)
    assert world.pop.reached("h", "T", 0) is None
    assert world.pop.ack("g", handles[5]), "which is not recorded"
    world.pop.role_changed()
    assert world.pop.validate() == ""
    assert world.pop.reached("g", "T", 0) is None
    done = [world.pop.has_done("g", "T", 0, offset) for offset in range(6)]
    assert done == [True, True, False, True, False, False]
    assert not world.pop.ack("g", handles[0]), "it may not be in the log"
    assert world.bodies() == [b"2", b"4", b"5"]


async def test_progress_that_was_refused_is_recorded_later(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.put(2)
    (one,) = world.take()
    world.pop.ack("g", one.handle)

    async def refused(*_: object) -> None:
        raise duolog.Unavailable("a full disk")

    with monkeypatch.context() as patch:
        patch.setattr(world.broker.metadata, "commit_popped", refused)
        await world.save()
    assert world.committed() < 1
    assert world.bodies() == [b"1"], "what is not recorded is known all the same"
    await world.save()
    assert world.committed() == 1


async def test_what_is_not_new_is_not_recorded_again(world: World) -> None:
    await world.put(2)
    world.take()
    await world.save()
    stored = world.broker.store.max_offset
    assert world.committed() == 0, "the group begins here"
    world.take()
    await world.save()
    assert world.broker.store.max_offset == stored


async def test_a_reset_ends_leases_and_no_older_progress_is_recorded_after_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.put(4)
    handles = [popped.handle for popped in world.take(4)]
    for handle in handles[:3]:
        world.pop.ack("g", handle)
    commit = world.broker.metadata.commit

    async def slow(group: str, offsets: dict[str, dict[int, int]]) -> None:
        world.take()  # a consumer polls meanwhile
        await commit(group, offsets)
        await world.save()
        world.take()

    monkeypatch.setattr(world.broker.metadata, "commit", slow)
    await world.pop.reset("g", {"T": {0: 1}})
    assert world.committed() == 1
    assert not world.pop.ack("g", handles[3])
    assert world.bodies() == [b"1", b"2", b"3"]


async def test_a_group_that_is_deleted_while_progress_is_recorded_stops_no_other(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(popservice, "SAVED_AT_ONCE", 1)
    await world.put(1)
    handles = {group: world.take(group=group)[0].handle for group in ("g", "h")}
    for group, handle in handles.items():
        assert world.pop.ack(group, handle)
    record = world.broker.metadata.commit_popped
    recorded: list[str] = []

    async def deletes_the_other(group: str, *rest: Any) -> None:
        recorded.append(group)
        world.pop.group_deleted("h")
        await record(group, *rest)

    monkeypatch.setattr(world.broker.metadata, "commit_popped", deletes_the_other)
    await world.save()
    assert (recorded, world.committed("g")) == (["g"], 1)


async def test_a_copy_in_a_shared_retry_topic_goes_to_the_group_that_it_is_for(
    world: World,
) -> None:
    """%RETRY%g_x_T is that of a group g_x for T, and of a group g for x_T."""
    retry = retry_topic("g_x", "T")
    world.broker.metadata.make_internal(retry)
    for origin in ("x_T", "T"):
        batch = PutBatch(
            retry, 0, Columns.of([origin.encode()], [f"RETRY_TOPIC\x01{origin}".encode()]), 1,
            accepted=True,
        )  # fmt: skip
        world.broker.log.write(batch)
    world.broker.log.pump_soon()
    await until(lambda: world.broker.store.queue_range(retry, 0)[1] == 2)
    assert world.bodies(group="g_x") == [b"T"]


async def test_what_is_leased_while_progress_is_recorded_stays_leased(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.put(3)
    one, _ = world.take(2)
    assert world.pop.ack("g", one.handle)
    record = world.broker.metadata.commit_popped

    async def polled_meanwhile(*progress: Any) -> None:
        await record(*progress)
        assert world.bodies() == [b"2"]

    monkeypatch.setattr(world.broker.metadata, "commit_popped", polled_meanwhile)
    await world.save()
    assert world.committed() == 1
    assert world.bodies() == []


@pytest.mark.parametrize("leased", [0, 1])
async def test_what_is_done_is_not_delivered_to_a_filter_that_rejects_what_is_before_it(
    world: World, leased: int
) -> None:
    """leased: how many messages before it are out."""
    for tag in ("a", "a", "b", "b"):
        await world.put(1, tag)
    done = world.take(3)[2]
    assert world.pop.ack("g", done.handle)
    await world.save()
    world.pop.role_changed()
    assert len(world.take(leased)) == leased
    assert world.bodies(filter=TagFilter.parse("b")) == [b"3"]


async def test_a_group_begins_where_it_first_asks_for_messages(world: World) -> None:
    assert world.bodies() == []
    assert world.committed() == -1
    await world.save()
    assert world.committed() == 0, "for readers of other protocols as well"


async def test_no_more_bytes_are_delivered_than_were_asked_for(world: World) -> None:
    columns = Columns.of([b"%d" % number * 1000 for number in range(5)])
    world.broker.log.write(PutBatch("T", 0, columns, 1, accepted=True))
    await world.put(1)
    size = world.take()[0].size
    subscriber = Subscriber("c", "g", "T")
    subscriber.notify("T")
    assert len(world.take(10, bytes_max=size, subscriber=subscriber)) == 1
    assert list(subscriber.ready) == ["T"], "it has more"
    assert len(world.take(10, bytes_max=size + 1)) == 2, "the last one may be longer"


async def test_a_retry_topic_that_is_read_as_a_topic_has_copies_of_all_that_exists(
    world: World,
) -> None:
    retry, births = retry_topic("g", "T"), world.broker.metadata.births
    await world.internal(retry)
    assert world.bodies(topic=retry) == []
    for origin in ("T", "other"):
        columns = Columns.of([origin.encode()], [f"RETRY_TOPIC\x01{origin}".encode()])
        world.broker.log.write(PutBatch(retry, 0, columns, 1, accepted=True))
    await world.dispatched()
    births.topics["other"] = births.newest = world.broker.store.max_offset
    assert world.bodies(topic=retry) == [b"T"]


async def test_no_more_is_delivered_than_was_asked_for(world: World) -> None:
    """Also where what is done divides a queue into several reads."""
    await world.put(5)
    handles = [popped.handle for popped in world.take(5)]
    world.pop.ack("g", handles[1])
    await world.save()
    world.pop.role_changed()
    assert world.bodies(2) == [b"0", b"2"]
    assert world.bodies(2) == [b"3", b"4"]


async def test_what_no_filter_takes_is_recorded_as_done(world: World) -> None:
    await world.put(3, "other")
    assert world.bodies(filter=TagFilter.parse("wanted")) == []
    await world.save()
    assert world.committed() == 3


async def test_bit_maps_are_those_of_the_group_and_the_topic(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, str]] = []
    filters = type(world.broker.filters)
    monkeypatch.setattr(
        filters, "bits", lambda _, group, topic, wanted: asked.append((group, topic))
    )
    world.take()
    assert asked == [("g", "T")]


async def test_a_forgotten_queue_begins_again_behind_its_end(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranges = {"%LMQ%$T$a": (0, 0), "%LMQ%$T$b": (7, 9), "%LMQ%$T$c": (2, 9)}
    store = world.broker.store
    known = store.queue_range
    monkeypatch.setattr(store, "queue_range", lambda name, q: ranges.get(name) or known(name, q))
    for name in ranges:
        world.pop._state((name, 0, "g"))
    world.pop.forget_queues(dict.fromkeys(ranges, 7))
    assert world.pop.popped == []
    for name in ranges:
        world.pop._state((name, 0, "g"))
    world.pop.removed(ranges)
    assert world.pop._forgotten == {"%LMQ%$T$c": 7}, "its files may still exist"
    assert [key[0] for key in world.pop.popped] == ["%LMQ%$T$b", "%LMQ%$T$c"]
    assert world.pop.reached("g", "%LMQ%$T$c", 0) == (7, 7, 0)


async def test_a_subscriber_is_woken_by_its_own_lite_topics_alone(world: World) -> None:
    retry = retry_topic("g", "T")
    assert world.pop._watched(request_of()) == [("T", 0), (retry, 0)]
    subscriber = Subscriber("c", "g", "T")
    assert world.pop._watched(request_of(subscriber=subscriber)) == [("T", popservice.NO_QUEUE)]


async def test_validate_reports_queues_that_are_wrong(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.put(2)
    world.take(1)
    key = ("T", 0, "g")
    state = world.pop._queues[key]
    state.next = -1
    assert world.pop.validate() == "g in T/0: gives -1 next, committed 0"
    state.next = 1
    await world.save()
    state.finish(0)
    assert world.pop.validate().startswith("g in T/0: done up to 1 and [], recorded are")
    with monkeypatch.context() as patch:
        patch.setattr(world.broker.store, "queue_range", lambda *_: (2, 2))
        assert world.pop.validate() == "", "retention deleted the messages in between"
    world.pop._dirty[key] = None
    assert world.pop.validate() == ""
    del world.pop._saved[key]
    assert world.pop.validate().startswith("queues with a record or a state only")
    del world.pop._queues[key]
    assert world.pop.validate().startswith("to be recorded without a state")
    world.pop._dirty.clear()
    line = world.pop._line(request_of())
    line.polls = 1
    assert world.pop.validate() == "1 polls wait, counted as 0"
    line.polls = -1
    line.waiting.append(asyncio.Event())
    assert world.pop.validate() == "polls of g for T: 1 wait of -1 polls"


async def test_copies_of_a_deleted_group_are_not_delivered_to_one_of_its_name(
    world: World,
) -> None:
    retry, births = retry_topic("g", "T"), world.broker.metadata.births
    world.broker.metadata.make_internal(retry)

    async def put(body: bytes) -> None:
        end = world.broker.store.next_offset(retry, 0) + 1
        world.broker.log.write(
            PutBatch(retry, 0, Columns.of([body], [b"RETRY_TOPIC\x01T"]), 1, accepted=True)
        )
        world.broker.log.pump_soon()
        await until(lambda: world.broker.store.queue_range(retry, 0)[1] == end)

    await put(b"older")
    births.groups["g"] = births.newest = world.broker.store.max_offset
    await put(b"its own")
    assert world.bodies() == [b"its own"]
    await put(b"of a topic that was deleted")
    births.topics["T"] = births.newest = world.broker.store.max_offset
    await put(b"of the new one")
    assert world.bodies() == [b"of the new one"]


async def test_deliveries_are_traced_where_spans_are_exported(world: World) -> None:
    traced: list[tuple[str, str, list[int]]] = []

    def popped(topic: str, group: str, deliveries: Any) -> None:
        traced.append((topic, group, [delivery.queue_offset for delivery in deliveries]))

    recorder: Any = SimpleNamespace(popped=popped)
    world.pop._core = replace(world.pop._core, traces=recorder)
    await world.put(2)
    world.take(2)
    world.take(2)
    assert traced == [("T", "g", [0, 1])]


async def test_offsets_that_others_commit_are_followed(world: World) -> None:
    """As readers of other protocols do in the same group."""
    await world.put(4)
    world.take(1)
    await world.save()
    await world.broker.metadata.commit("g", {"T": {0: 3}})
    assert world.bodies() == [b"3"]


async def test_a_lease_that_ends_takes_back_nothing_that_another_reader_committed(
    world: World,
) -> None:
    """As where a group reads by PULL from now on, and a consumer of before was killed."""
    await world.put(8)
    lost, late, ahead = world.take(3)[1:], *world.take(1), *world.take(1)
    world.pop.ack("g", late.handle)  # which is not recorded yet
    await world.broker.metadata.commit("g", {"T": {0: 4}})
    await world.save()
    assert world.committed() == 4
    assert len(lost) == 2
    assert world.pop.ack("g", ahead.handle), "it lies beyond, so its lease goes on"
    await world.end_leases(LEASE_MS)
    assert world.retry.stored == [], "others have read what was before"
    await world.save()
    assert world.committed() == 5
    assert world.bodies() == [b"5", b"6", b"7"]


async def test_what_others_commit_while_messages_are_moved_is_not_moved(world: World) -> None:
    await world.put(3)
    world.take(3)
    world.retry.gate.clear()
    async with asyncio.TaskGroup() as tasks:
        world.now += LEASE_MS
        world.pop._end_leases(MonoMs(world.now), tasks)
        await asyncio.sleep(0)
        await world.broker.metadata.commit("g", {"T": {0: 2}})
        await world.save()
        world.retry.gate.set()
    assert world.retry.stored == [b"0", b"2"], "the first one was being stored"
    await world.save()
    assert world.committed() == 3


async def test_what_others_commit_just_before_is_not_taken_back(world: World) -> None:
    """Their commit is in the log, and not in the tables yet."""
    await world.put(4)
    (one, _) = world.take(2)
    assert world.pop.ack("g", one.handle)
    commits = asyncio.create_task(world.broker.metadata.commit("g", {"T": {0: 3}}))
    await asyncio.sleep(0)
    assert world.committed() == -1
    await world.pop._save_group("g", [("T", 0, "g")])
    await commits
    assert world.committed() == 3
    assert world.bodies() == [b"3"]


async def test_a_group_that_goes_back_while_progress_is_recorded_keeps_its_new_leases(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.put(3)
    for _ in range(2):
        (one,) = world.take()
        assert world.pop.ack("g", one.handle)
        if one.body == b"0":
            await world.save()
    record, again = world.broker.metadata.commit_popped, list[Popped]()

    async def gone_back_meanwhile(*progress: Any) -> None:
        await record(*progress)
        await world.broker.metadata.commit("g", {"T": {0: 0}})
        again.extend(world.take())

    monkeypatch.setattr(world.broker.metadata, "commit_popped", gone_back_meanwhile)
    await world.save()
    assert [popped.body for popped in again] == [b"0"]
    assert world.bodies() == [b"1", b"2"]
    assert world.pop.ack("g", again[0].handle)


async def test_a_group_that_goes_back_gets_again_what_it_had(world: World) -> None:
    await world.put(4)
    handles = [popped.handle for popped in world.take(3)]
    world.pop.ack("g", handles[0])
    world.pop.ack("g", handles[1])
    await world.save()
    assert world.committed() == 2
    world.pop.ack("g", handles[2])  # which is not recorded yet
    await world.broker.metadata.commit("g", {"T": {0: 1}})
    await world.save()
    assert world.committed() == 1
    assert world.bodies() == [b"1", b"2", b"3"]
    await world.broker.metadata.commit("g", {"T": {0: 0}})
    await world.end_leases(LEASE_MS)
    assert world.retry.stored == []
    assert world.bodies() == [b"0", b"1", b"2", b"3"]


async def test_offsets_that_others_commit_are_followed_where_nothing_was_delivered(
    world: World,
) -> None:
    await world.broker.metadata.commit("g", {"T": {0: 0}})
    assert world.bodies() == []
    await world.put(4)
    await world.broker.metadata.commit("g", {"T": {0: 3}})
    assert world.bodies() == [b"3"]


# -- waiting ---------------------------------------------------------------------------------------


async def test_a_poll_waits_for_a_message_and_others_wait_on(world: World) -> None:
    deadline = asyncio.get_running_loop().time() + 60
    polls = [asyncio.create_task(world.pop.wait(request_of(), deadline)) for _ in range(3)]
    await until(lambda: world.calls.count == 3)
    assert world.pop.status() == {"messages_leased": 0, "calls_waiting": 3}
    await world.put(1)
    await until(lambda: any(poll.done() for poll in polls))
    (done,) = [poll for poll in polls if poll.done()]
    assert [popped.body for popped in done.result()] == [b"0"]
    assert world.pop.validate() == ""
    assert world.pop.status() == {"messages_leased": 1, "calls_waiting": 2}
    world.pop.role_changed()  # all look at once who is the master now
    await world.put(2)
    await asyncio.gather(*polls)
    assert (world.calls.count, len(world.broker.log.board)) == (0, 0)


async def test_a_poll_waits_for_copies_in_every_queue_of_the_retry_topic(world: World) -> None:
    retry = retry_topic("g", "T")
    await world.internal(retry, 3)
    watched = world.pop._watched(request_of())
    assert watched == [("T", 0), (retry, 0), (retry, 1), (retry, 2)]


@pytest.mark.parametrize("check", ["check_current", "readable_topic"])
async def test_all_polls_look_again_when_the_mastership_changes(
    world: World, monkeypatch: pytest.MonkeyPatch, check: str
) -> None:
    deadline = asyncio.get_running_loop().time() + 60
    polls = [asyncio.create_task(world.pop.wait(request_of(), deadline)) for _ in range(3)]
    await until(lambda: world.calls.count == 3)

    def ended(*_: str) -> None:
        raise duolog.NotMaster("not any more")

    monkeypatch.setattr(world.broker.admission, check, ended)
    world.pop.role_changed()
    found = await asyncio.gather(*polls, return_exceptions=True)
    assert [type(one) for one in found] == [duolog.NotMaster] * 3


async def test_a_poll_that_ends_without_its_message_wakes_the_next_one(world: World) -> None:
    deadline = asyncio.get_running_loop().time() + 60
    denied = asyncio.create_task(world.pop.wait(request_of(), deadline, lambda: False))
    await until(lambda: world.calls.count == 1)
    other = asyncio.create_task(world.pop.wait(request_of(), deadline))
    await until(lambda: world.calls.count == 2)
    await world.put(1)
    assert await denied == []
    assert [popped.body for popped in await other] == [b"0"]


async def test_a_poll_ends_at_its_deadline(world: World) -> None:
    now = asyncio.get_running_loop().time()
    assert await world.pop.wait(request_of(), now) == []
    assert await world.pop.wait(request_of(), now + 0.02) == []
    assert (world.calls.count, len(world.broker.log.board)) == (0, 0)
    assert world.pop.validate() == ""


async def test_a_scan_of_what_matches_nothing_stops_for_others_and_skips_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(popservice, "SCAN_MAX", 2)
    await world.put(7, "Aa")  # with the hash of the other tag: they are read
    await world.put(1, "BB")
    tag = TagFilter.parse("BB")
    assert world.bodies(1, filter=tag) == []
    assert world.pop.reached("g", "T", 0) == (2, 2, 0)
    deadline = asyncio.get_running_loop().time()
    (found,) = await world.pop.wait(request_of(filter=tag), deadline)
    assert found.body == b"7"
    assert world.pop.ack("g", found.handle)
    await world.save()
    assert world.committed() == 8
