"""Delayed messages on a clock of the tests' own: what is due, and what becomes of failures."""

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import duolog
import numpy as np
import pytest

from duolog_server.node.broker import Broker
from duolog_server.node.deferred import delayservice
from duolog_server.node.deferred.delayservice import (
    AGAIN_MS,
    DELAY_MS_MAX,
    DONE_TOPIC,
    TIMER_TOPIC,
    DelayService,
    RecallHandle,
)
from duolog_server.store.clocks import MonoMs, WallMs
from duolog_server.store.columns import Columns
from duolog_server.store.delay import SCHEDULE_TOPIC
from duolog_server.store.errors import StoreClosed
from duolog_server.store.messagestore import PutBatch, PutResult
from duolog_server.store.offsets import QueueOffset
from duolog_server.store.reader import Wanted
from duolog_server.store.status import PutMessageStatus
from tests.node.replicas import broker_of
from tests.nodefixtures import StartNode
from tests.until import until

HOUR_MS = 3_600_000
LEVEL = 18  # two hours


class World:
    """A service over a node's store, an hour or more before the node itself delivers anything."""

    def __init__(self, broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
        self.broker = broker
        self.later = 0
        self.began = broker.times.wall_ms()
        self.refused: list[tuple[str, PutMessageStatus]] = []  # the next writes to these topics
        times = SimpleNamespace(
            mono_ms=lambda: MonoMs(1000 + self.later),
            wall_ms=lambda: WallMs(self.began + self.later),
            store_ms=lambda: WallMs(self.began + self.later),
        )
        self._write_now = broker.log.write_now
        monkeypatch.setattr(broker.log, "write_now", self._write)
        core = replace(broker.core, times=cast(Any, times))
        self.delays = DelayService(core, broker.store.delays_ms, broker.outbox)

    def _write(self, batch: PutBatch) -> PutResult:
        if self.refused and self.refused[0][0] == batch.topic:
            return PutResult(self.refused.pop(0)[1], "as the test says")
        return self._write_now(batch)

    async def put(self, *hours: float, topic: str = "T", key: bool = True) -> None:
        """Messages that wait for so long; -1: for the level."""
        first = self.broker.store.next_offset(TIMER_TOPIC, 0)
        for k, wait in enumerate(hours):
            properties = b"UNIQ_KEY\x01%032d" % (first + k) if key else b""
            batch = PutBatch(topic, 0, Columns.of([b"%g" % wait], [properties]), 1, accepted=True)
            if wait < 0:
                batch = self.delays.at_level(batch, LEVEL)
            else:
                due = self.began + int(wait * HOUR_MS)
                batch = self.delays.at_time(batch, due, WallMs(self.began))
            self.broker.log.write(batch)
        await self.dispatched()

    async def dispatched(self) -> None:
        self.broker.log.pump_soon()
        await until(lambda: self.broker.store.dispatcher.behind_bytes() == 0)

    async def deliver(self) -> None:
        """As `run` does, once."""
        delays, store = self.delays, self.broker.store
        if delays._began is None:
            delays._began = self.began, store.max_offset
        timers = await delays._opened()
        while delays._deliver_timers(timers):
            pass
        while delays._deliver_level(LEVEL, WallMs(self.began + self.later)):
            pass
        await self.dispatched()
        assert delays.validate() == ""

    async def found(self, topic: str = "T") -> list[bytes]:
        async with duolog.Client(self.broker.advertised) as client:
            return (await client.pull(topic, 0, 0)).body_list()

    def done(self) -> int:
        return self.broker.store.queue_range(DONE_TOPIC, 0)[1]


def without_the_first(broker: Broker, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where retention deleted the first record of a topic."""
    ranges, get = broker.store.queue_range, broker.store.get

    def from_the_second(asked: str, queue_id: int) -> tuple[int, int]:
        low, high = ranges(asked, queue_id)
        return (1, high) if asked == topic else (low, high)

    def get_of_what_is_left(asked: str, queue_id: int, offset: QueueOffset, wanted: Wanted) -> Any:
        gone = asked == topic and offset < 1
        return get(asked, queue_id, QueueOffset(1 << 40) if gone else offset, wanted)

    monkeypatch.setattr(broker.store, "queue_range", from_the_second)
    monkeypatch.setattr(broker.store, "get", get_of_what_is_left)


@pytest.fixture
async def world(
    start_node: StartNode, nothing_noted: None, monkeypatch: pytest.MonkeyPatch
) -> World:
    node = await start_node()
    async with duolog.Client(f"127.0.0.1:{node.port}") as client:
        await client.admin.create_topic("T", 1)
    return World(broker_of(node), monkeypatch)


async def test_messages_are_due_at_their_times(world: World) -> None:
    assert world.delays.unread == 0
    await world.put(3, 1, 2)
    assert (world.delays.known, world.delays.unread, world.delays.waiting) == (False, 0, 0)
    await world.deliver()
    assert await world.found() == []
    assert (world.delays.known, world.delays.unread, world.delays.waiting) == (True, 0, 3)
    hours = [world.began + hour * HOUR_MS for hour in range(1, 4)]
    assert world.delays.waiting_until([hours[0] - 1, *hours]) == [0, 1, 2, 3]
    world.later = HOUR_MS - 1
    await world.deliver()
    assert await world.found() == []
    assert world.delays.overdue_ms(WallMs(hours[0] - 1)) == 0
    assert world.delays.overdue_ms(WallMs(hours[0] + 5)) == 5
    world.later = HOUR_MS + 5
    assert world.delays.status() == {"timers_waiting": 3, "timers_overdue_ms": 5}
    world.later = HOUR_MS
    await world.deliver()
    assert await world.found() == [b"1"]
    record = world.broker.store.record_at("T", 0, QueueOffset(0))
    assert record is not None
    assert (record.prepared_offset, record.born_time) == (0, 1)
    world.later = 9 * HOUR_MS
    await world.deliver()
    assert await world.found() == [b"1", b"3", b"2"], "together, in the order of their offsets"
    assert world.delays.status() == {"timers_waiting": 0}
    assert world.done() == 2


async def test_what_cannot_be_stored_is_tried_again_in_a_moment_and_loses_nothing(
    world: World,
) -> None:
    await world.put(1, 2, 1, 1)
    full = PutMessageStatus.SERVICE_NOT_AVAILABLE
    world.refused = [("T", full), ("T", full)]
    world.later = HOUR_MS
    await world.deliver()
    assert (await world.found(), world.delays.waiting) == ([], 4)
    world.later += AGAIN_MS - 1
    await world.deliver()
    assert await world.found() == []
    world.later += 1
    await world.deliver()
    assert (await world.found(), world.delays.waiting) == ([b"1"] * 3, 1)
    assert world.delays._stretch > 1, "later ones go together again"
    world.later = 2 * HOUR_MS
    await world.deliver()
    assert await world.found() == [b"1"] * 3 + [b"2"]


async def test_what_is_stored_of_a_failed_delivery_is_not_stored_again_and_again(
    world: World,
) -> None:
    """After a failure messages go one by one: the next failure repeats none."""
    await world.put(1, 1, 1)
    world.refused = [("T", PutMessageStatus.SERVICE_NOT_AVAILABLE)]
    world.later = HOUR_MS
    await world.deliver()
    write, count = world._write_now, 0

    def third_is_refused(batch: PutBatch) -> PutResult:
        nonlocal count
        count += batch.topic == "T"
        if count == 3:
            return PutResult(PutMessageStatus.SERVICE_NOT_AVAILABLE, "full")
        return write(batch)

    world._write_now = third_is_refused
    world.later += AGAIN_MS
    await world.deliver()
    assert (await world.found(), world.delays.waiting) == ([b"1"] * 2, 1)
    world.later += AGAIN_MS
    await world.deliver()
    assert await world.found() == [b"1"] * 3


@pytest.mark.parametrize("never", delayservice._NEVER)
async def test_what_can_never_be_stored_holds_up_no_other(
    world: World, never: PutMessageStatus
) -> None:
    await world.put(1, -1)
    world.refused = [("T", never), ("T", never)]
    world.later = 2 * HOUR_MS + 60_000
    await world.deliver()
    await world.put(3, -1)
    world.later = 4 * HOUR_MS + 60_000
    await world.deliver()
    assert sorted(await world.found()) == [b"-1", b"3"]


async def test_a_level_goes_on_where_it_stopped(world: World) -> None:
    await world.put(-1, -1)
    first, end = world.delays.undelivered(LEVEL)
    assert (first, end) == (0, 2)
    world.later = 2 * HOUR_MS - 60_000
    await world.deliver()
    assert await world.found() == []
    world.later = 2 * HOUR_MS + 60_000
    world.refused = [("T", PutMessageStatus.SERVICE_NOT_AVAILABLE)]
    await world.deliver()
    assert world.delays.undelivered(LEVEL) == (0, 2)
    await world.deliver()
    assert (await world.found(), world.delays.undelivered(LEVEL)) == ([b"-1"] * 2, (2, 2))
    await until(lambda: world.broker.metadata.tables.delay_offsets.get(LEVEL) == 2)
    stored = world.broker.store.max_offset
    world.delays._note_levels()
    assert world.broker.store.max_offset == stored, "its progress is recorded"
    world.delays.role_changed()
    await world.deliver()
    assert await world.found() == [b"-1"] * 2


async def test_a_new_master_knows_no_progress_but_what_is_in_the_log(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.put(-1, -1)
    world.later = 2 * HOUR_MS + 60_000
    with monkeypatch.context() as patch:
        patch.setattr(world.broker.metadata, "note", lambda row: None)  # lost with the old master
        await world.deliver()
    assert world.delays.undelivered(LEVEL) == (2, 2)
    world.delays._note_levels()
    await until(lambda: world.broker.metadata.tables.delay_offsets.get(LEVEL) == 2)
    world.broker.metadata.tables.delay_offsets[LEVEL] = 1  # as this one knows it
    world.delays.role_changed()
    assert world.delays.undelivered(LEVEL) == (1, 2)


async def test_levels_and_times_have_limits(world: World) -> None:
    batch = PutBatch("T", 0, Columns.of([b"x"]), 1)
    with pytest.raises(duolog.BadRequest, match="level 0 is outside 1"):
        world.delays.at_level(batch, 0)
    assert world.delays.at_level(batch, 1).queue_id == 0
    assert world.delays.at_level(batch, 99).queue_id == len(world.delays.levels_ms) - 1
    now = WallMs(world.began)
    at_once = world.delays.at_time(batch, now, now)
    assert (at_once.topic, at_once.waited_in) == ("T", (TIMER_TOPIC,)), "a try before may wait"
    assert world.delays.at_time(batch, now + 1, now).topic == TIMER_TOPIC
    assert world.delays.at_time(batch, now + DELAY_MS_MAX, now).topic == TIMER_TOPIC
    with pytest.raises(duolog.BadRequest, match="exceeds the limit"):
        world.delays.at_time(batch, now + DELAY_MS_MAX + 1, now)


async def test_what_a_sender_says_under_the_nodes_names_is_left_out(world: World) -> None:
    """Also where it uses all of them: it would choose the queue, and the delay."""
    names = ("DELAY", "REAL_TOPIC", "REAL_QID", "__CRC32#", "own")
    text = "\x02".join(f"{name}\x01theirs" for name in names).encode()
    batch = PutBatch("T", 3, Columns.of([b"x"], [text]), 1, accepted=True)
    waiting = world.delays.at_level(batch, 2)
    said = waiting.columns.properties.tobytes().decode().split("\x02")
    assert sorted(said) == [
        "DELAY\x012",
        "REAL_QID\x013",
        "REAL_TOPIC\x01T",
        "own\x01theirs",
    ]


async def test_what_retention_deleted_is_passed_over(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.put(1, 2, 3)
    without_the_first(world.broker, TIMER_TOPIC, monkeypatch)
    await world.deliver()
    assert world.delays.waiting == 2
    assert world.delays.unread == 0
    monkeypatch.setattr(world.broker.store, "queue_range", lambda *_: (3, 3))
    world.delays.role_changed()
    await world.delays._opened()
    with pytest.raises(duolog.NoSuchMessage):
        await world.delays.recall("T", RecallHandle(world.broker.group, "T", 2, f"{2:032d}"))
    times = world.delays._times(np.array([1, 2], np.int64), WallMs(world.began))
    assert times.tolist() == [world.began] * 2, "they are overdue now"
    gone = world.delays._times(np.array([7, 8], np.int64), WallMs(world.began))
    assert gone.tolist() == [world.began] * 2, "nothing is known of them"


async def test_notes_of_deliveries_that_retention_deleted_are_passed_over(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.put(1, 2, 3)
    for _ in range(2):
        world.later += HOUR_MS
        await world.deliver()
    without_the_first(world.broker, DONE_TOPIC, monkeypatch)
    world.delays.role_changed()
    await world.delays._opened()
    assert world.delays.waiting == 2, "nothing tells of the first any more"


@pytest.mark.parametrize(
    ("readings", "looks"),
    [([0, 5], 1), ([0, 6, 10, 15], 2), ([10 * k for k in range(20)], 10)],
)
async def test_both_clocks_are_read_again_where_a_pause_lay_in_between(
    world: World, readings: list[int], looks: int
) -> None:
    times, seen = cast(Any, world.delays._core.times), list[int]()
    times.mono_ms = lambda: MonoMs(readings.pop(0))
    times.store_ms = lambda: WallMs(seen.append(len(seen)) or len(seen))  # type: ignore[func-returns-value]
    assert world.delays._store_ms() == looks
    assert readings == []


async def test_a_service_that_delivered_nothing_notes_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes: list[object] = []
    monkeypatch.setattr(world.delays._core.metadata, "note", notes.append)
    await world.put(1)
    timers = await world.delays._opened()
    world.delays._note_progress(timers)
    assert notes == []
    world.later = HOUR_MS
    await world.deliver()
    world.delays._note_progress(timers)
    assert notes == [{"op": "timers", "low": 1, "done": 1}]


async def test_a_message_whose_key_was_sent_again_is_delivered(world: World) -> None:
    """Only what was due before this mastership may have been delivered by the last master."""
    await world.deliver()
    await world.put(1)
    again = PutBatch("T", 0, Columns.of([b"again"], [b"UNIQ_KEY\x01%032d" % 0]), 1, accepted=True)
    world.broker.log.write(again)
    await world.dispatched()
    world.later = HOUR_MS
    await world.deliver()
    assert await world.found() == [b"again", b"1"]


async def test_jumps_of_the_clock_count_within_one_mastership(world: World) -> None:
    stored = world.began

    def waits_longer() -> int:
        due = np.array([stored + HOUR_MS], np.int64)
        return int(world.delays._forward_steps.corrected(due, HOUR_MS)[0]) - int(due[0])

    for _ in range(2):
        world.delays.role_changed()
        assert waits_longer() == 0
        world.began = WallMs(world.began + 2 * HOUR_MS)
        world.delays._store_ms()
        assert waits_longer() == 2 * HOUR_MS


# -- a change of the master ------------------------------------------------------------------------


async def test_a_new_master_knows_what_was_delivered_and_what_waits(world: World) -> None:
    await world.put(1, 2, 3)
    world.later = HOUR_MS
    await world.deliver()
    world.delays._note_progress(await world.delays._opened())
    await until(lambda: world.broker.metadata.tables.timers == (1, 1))
    stored = world.broker.store.max_offset
    world.delays._note_progress(await world.delays._opened())
    assert world.broker.store.max_offset == stored, "nothing is new"
    world.delays.role_changed()
    assert (world.delays.known, world.delays.waiting, world.delays.pending) == (False, 0, None)
    assert world.delays.waiting_until([10**15]) == [0]
    await world.deliver()
    assert (await world.found(), world.delays.waiting) == ([b"1"], 2)


async def test_notes_of_what_was_delivered_behind_a_waiting_message_are_read_again(
    world: World,
) -> None:
    await world.put(3, 1)
    world.later = HOUR_MS
    await world.deliver()
    world.delays._note_progress(await world.delays._opened())
    assert world.delays._noted == (0, 0)
    world.delays.role_changed()
    await world.deliver()
    assert (await world.found(), world.delays.waiting) == ([b"1"], 1)


async def test_what_waits_is_known_wholly_or_not_at_all(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the notes, what was delivered would be delivered again."""
    await world.put(1)
    world.later = HOUR_MS
    await world.deliver()
    world.delays.role_changed()
    get = world.broker.store.get

    def unreadable(topic: str, *where: Any) -> Any:
        if topic == DONE_TOPIC:
            raise StoreClosed
        return get(topic, *where)

    with monkeypatch.context() as patch:
        patch.setattr(world.broker.store, "get", unreadable)
        with pytest.raises(StoreClosed):
            await world.delays._opened()
    assert not world.delays.known
    await world.delays._opened()
    assert world.delays.waiting == 0


async def test_a_message_that_the_last_master_delivered_is_told_from_one_it_did_not(
    world: World,
) -> None:
    """Its note is lost with the end of the log: the copy behind it in the log says so."""
    await world.put(1, 1)
    world.later = HOUR_MS
    world.refused = [(DONE_TOPIC, PutMessageStatus.SERVICE_NOT_AVAILABLE)]
    await world.deliver()
    assert (await world.found(), world.done()) == ([b"1"] * 2, 0)
    await world.put(1)
    world.delays.role_changed()
    world.began = WallMs(
        world.began + world.later
    )  # the new mastership begins when all three are due
    world.later = 0
    await world.deliver()
    assert await world.found() == [b"1"] * 3


async def test_messages_of_a_topic_that_was_deleted_are_dropped_and_those_of_the_new_one_come(
    world: World,
) -> None:
    await world.put(1, 3)
    async with duolog.Client(world.broker.advertised) as client:
        await client.admin.delete_topic("T")
        world.later = HOUR_MS
        await world.deliver()
        assert world.delays.waiting == 1, "what has no topic is dropped"
        await client.admin.create_topic("T", 1)
        await world.dispatched()
        await world.put(2)
    world.later = 3 * HOUR_MS
    await world.deliver()
    assert (await world.found(), world.delays.waiting) == ([b"2"], 0)


async def test_long_delayed_messages_are_stored_again_before_retention_deletes_them(
    world: World,
) -> None:
    half_ms = world.broker.store.options.file_reserved_time * HOUR_MS // 2
    await world.put(60, 61, topic="T")
    timers = await world.delays._opened()
    for age, first in ((half_ms - 60_000, 0), (half_ms + 60_000, 2)):
        await world.delays._roll(timers, WallMs(world.began + age))
        await world.dispatched()
        await world.delays._opened()
        assert (timers.low, world.delays.waiting) == (first, 2)
    world.later = 61 * HOUR_MS
    await world.deliver()
    assert await world.found() == [b"60", b"61"]


async def test_what_is_gone_or_has_no_topic_any_more_is_not_stored_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.put(60, 61)
    timers = await world.delays._opened()
    births = world.broker.metadata.births
    births.topics["T"] = births.newest = world.broker.store.max_offset
    read, gone = world.broker.store.record_at, [True, False]
    monkeypatch.setattr(
        world.broker.store, "record_at", lambda *place: None if gone.pop(0) else read(*place)
    )
    await world.delays._roll(timers, WallMs(world.began + 59 * HOUR_MS))
    await world.dispatched()
    await world.delays._opened()
    assert (world.delays.waiting, world.done()) == (0, 2)


async def test_what_cannot_be_stored_again_waits_where_it_is(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.put(60)
    timers = await world.delays._opened()
    write, refused = world.broker.log.write, PutResult(PutMessageStatus.SERVICE_NOT_AVAILABLE)
    with monkeypatch.context() as patch:
        patch.setattr(
            world.broker.log,
            "write",
            lambda put: refused if put.topic == TIMER_TOPIC else write(put),
        )
        await world.delays._roll(timers, WallMs(world.began + 59 * HOUR_MS))
    await world.dispatched()
    assert (timers.low, world.delays.waiting, world.done()) == (0, 1, 0)


async def test_the_service_tells_what_does_not_fit_together(world: World) -> None:
    await world.put(1, 2)
    delays, timers = world.delays, await world.delays._opened()
    assert (delays.validate(), delays.status()) == ("", {"timers_waiting": 2})
    delays._done_records.extend([(3, 0), (2, 0)])
    assert delays.validate() == "the note at 2 is known behind the one at 3"
    delays._done_records.clear()
    delays._noted = (1, 0)
    assert delays.validate() == "timer 0 may wait, noted is 1"
    timers.count = 5
    assert delays.validate() == "timers: 2 wait, counted as 5"
    delays.role_changed()
    assert (delays.validate(), delays.status()) == ("", {"timers_waiting": 0})
    delays._done_records.append((0, 0))
    assert delays.validate() == "notes without timers"


async def test_nothing_is_delivered_before_the_node_may_store(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until then it may lack what the last master delivered. Its progress is recorded later."""
    monkeypatch.setattr(delayservice, "TICK_SECONDS", 0.002)
    monkeypatch.setattr(delayservice, "NOTE_SECONDS", 0.1)
    await world.put(1, -1)
    unknown = PutBatch(
        SCHEDULE_TOPIC, LEVEL, Columns.of([b"of a level that is none"]), 1, accepted=True
    )
    world.broker.log.write(unknown)
    await world.dispatched()
    world.later = 2 * HOUR_MS + 60_000
    rolled: list[object] = []

    async def roll(*what: object) -> None:
        rolled.append(what)

    monkeypatch.setattr(world.delays, "_roll", roll)
    answers: list[bool] = []
    may_store = False

    def asked() -> bool:
        answers.append(may_store)
        return may_store

    monkeypatch.setattr(world.broker.admission, "may_store", asked)
    running = asyncio.create_task(world.delays.run())
    await until(lambda: len(answers) > 20)
    assert (world.delays.known, running.done()) == (False, False)
    assert await world.found() == []
    may_store = True
    tables = world.broker.metadata.tables
    await until(
        lambda: running.done() or (tables.timers[0] == 1 and tables.delay_offsets.get(LEVEL) == 1)
    )
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await world.dispatched()
    assert sorted(await world.found()) == [b"-1", b"1"]
    assert rolled == [], "its time has not come"


async def test_timed_messages_are_counted_by_their_topics(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that wait for a level are not."""
    counted: list[tuple[str, int]] = []
    traffic = world.broker.core.traffic
    monkeypatch.setattr(type(traffic.timed), "add", lambda _, *what: counted.append(what))
    batch = PutBatch("T", 0, Columns.of([b"x"]), 1)
    now = WallMs(world.began)
    world.delays.count("T", world.delays.at_time(batch, now + 9, now), 3)
    world.delays.count("T", world.delays.at_level(batch, 1), 2)
    world.delays.count("T", batch, 2)
    assert counted == [("T", 3)]


# -- recall ----------------------------------------------------------------------------------------


async def test_a_recall_names_a_message_that_waits(world: World) -> None:
    await world.put(1, 2)
    group = world.broker.group
    key = "%032d"

    async def recall(topic: str, offset: int, number: int) -> None:
        await world.delays.recall(topic, RecallHandle(group, topic, offset, key % number))

    for topic, offset, number in (("T", 0, 1), ("U", 0, 0), ("T", 2, 0), ("T", 9, 9)):
        with pytest.raises(duolog.NoSuchMessage):
            await recall(topic, offset, number)
    await recall("T", 0, 0)
    with pytest.raises(duolog.NoSuchMessage, match="already delivered or recalled"):
        await recall("T", 0, 0)
    world.later = 2 * HOUR_MS
    await world.deliver()
    assert await world.found() == [b"2"]
    with pytest.raises(duolog.NoSuchMessage):
        await recall("T", 1, 1)


async def test_a_recall_that_is_not_confirmed_is_unknown(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.put(1, 1)

    put = world.broker.log.put
    told: asyncio.Future[PutMessageStatus] = asyncio.get_running_loop().create_future()
    monkeypatch.setattr(world.broker.log, "put", lambda batch: (put(batch)[0], told))
    for status, weak in (("FLUSH_SLAVE_TIMEOUT",) * 2, ("SERVICE_NOT_AVAILABLE", "")):
        told = asyncio.get_running_loop().create_future()
        told.set_result(PutMessageStatus[status])
        handle = RecallHandle(world.broker.group, "T", world.done(), f"{world.done():032d}")
        with pytest.raises(duolog.ResultUnknown, match=status) as failure:
            await world.delays.recall("T", handle)
        assert failure.value.status == weak
        await world.dispatched()
    assert (world.delays.waiting, world.delays.validate()) == (0, "")


async def test_a_recall_that_the_node_refuses_leaves_the_message_to_be_delivered(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its sender hears that it was not recalled: nothing else would deliver it, or say so."""
    await world.put(1, 2)
    handle = RecallHandle(world.broker.group, "T", 0, "0" * 32)
    with monkeypatch.context() as patch:
        refused = PutResult(PutMessageStatus.IN_SYNC_REPLICAS_NOT_ENOUGH, "one is missing")
        patch.setattr(world.broker.log, "put", lambda batch: (refused, None))
        with pytest.raises(duolog.Unavailable, match=r"not recalled: .* one is missing"):
            await world.delays.recall("T", handle)
    assert (world.delays.waiting, world.delays.validate()) == (2, "")
    world.delays._note_progress(await world.delays._opened())
    world.later = HOUR_MS
    await world.deliver()
    assert await world.found() == [b"1"]
    with pytest.raises(duolog.NoSuchMessage):
        await world.delays.recall("T", handle)


async def test_a_node_that_stores_nothing_recalls_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever protocol asks for it: a master that may be behind does not know what still waits."""
    await world.put(1, 2)
    handle = RecallHandle(world.broker.group, "T", 0, "0" * 32)
    admission = world.broker.admission

    def behind() -> None:
        raise duolog.NotMaster("a slave may have more")

    for name, answer, error in (
        ("check_current", behind, duolog.NotMaster),
        ("may_store", lambda: False, duolog.Unavailable),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(admission, name, answer)
            with pytest.raises(error):
                await world.delays.recall("T", handle)
        assert world.done() == 0
    await world.delays.recall("T", handle)


async def test_a_recall_waits_until_the_message_can_be_read(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delayservice, "RECALL_SECONDS", 0.0)
    monkeypatch.setattr(world.broker.store, "next_offset", lambda topic, queue: 1)
    with pytest.raises(duolog.Busy, match="cannot be read yet"):
        await world.delays.recall("T", RecallHandle(world.broker.group, "T", 0, "x"))
    with pytest.raises(duolog.NoSuchMessage):
        await world.delays.recall("T", RecallHandle(world.broker.group, "T", 1, "x"))


def test_handles_are_read_as_they_were_written() -> None:
    handle = RecallHandle("g", "T", 7, "id")
    assert RecallHandle.from_text(handle.to_text()) == handle
    for text in ("", "x", handle.to_text()[:-3]):
        with pytest.raises(duolog.BadRequest, match="invalid"):
            RecallHandle.from_text(text)


def test_offsets_are_runs_of_consecutive_ones() -> None:
    runs = delayservice._runs(np.array([1, 2, 3, 7, 9, 10], np.int64), 2)
    assert [run.tolist() for run in runs] == [[1, 2], [3], [7], [9, 10]]
