"""`Consumer.run`: what is handled, in which order, and what counts as consumed."""

import asyncio
import logging
import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any, cast

import duolog
import duolog.sync
import pytest
from duolog import _worker
from duolog._columns import crc32, pack
from duolog._consumer import Consumer
from duolog._handlerthreads import HandlerThreads
from duolog._inhand import InHand
from duolog._membership import Clustering, Consumption, OffsetFile, Queue, Share
from duolog._message import Message
from duolog._stopsignals import stop_signals
from duolog.wire import duolog_pb2 as wire
from hypothesis import given
from hypothesis import strategies as st

from tests.client.test_groupreader import Calls, reader_at
from tests.client.test_prefetch import batch_of
from tests.until import until, wait_until

QUEUES: list[Queue] = [("T", 0), ("T", 1)]
KEYS = ["", "a", "b"]
Id = tuple[int, int]  # of a message: queue id, offset


class Boom(Exception):
    """Raised by a handler."""


def key_at(queue_id: int, offset: int) -> str:
    return KEYS[(queue_id + offset * 7 // 4) % len(KEYS)]


def batch_at(queue: Queue, base: int, count: int, size: int = 1) -> wire.MessageBatch:
    """Messages with the keys that they always have."""
    keys = [key_at(queue[1], base + n) for n in range(count)]
    texts = [f"KEYS\x01{key}\x02".encode() if key else b"" for key in keys]
    reply = batch_of(queue, base, count, size).wire
    if count:
        reply.properties, reply.property_offsets = pack(texts)
    reply.crc32 = crc32(reply.bodies, reply.body_offsets, reply.properties, reply.property_offsets)
    return reply


class Node(Calls):
    """A node that keeps the group's offsets, and takes messages back."""

    def __init__(self) -> None:
        super().__init__()
        self.topics = ["T"]
        self.share_next = Share(set(QUEUES))
        self.committed = dict.fromkeys(QUEUES, 0)
        self.finished: set[Id] = set()
        self.back: list[Id] = []
        self.refusals: list[Exception] = []  # of the next messages that are sent back

    async def share(self, owned: Iterable[Queue]) -> Share:
        return self.share_next

    async def offsets(
        self, queues: Sequence[Queue], start: duolog.Start | None
    ) -> dict[Queue, int]:
        return {queue: self.committed[queue] for queue in queues}

    async def commit(self, offsets: dict[Queue, int], forward: bool) -> None:
        for (topic, queue_id), offset in offsets.items():
            below = {(queue_id, k) for k in range(offset)}
            assert below <= self.finished, "an unfinished message was committed"
            self.committed[topic, queue_id] = offset

    async def leave(self) -> None:
        pass

    async def SendBack(self, request: wire.SendBackRequest, timeout: float) -> Any:
        found = request.queue_id, request.queue_offset
        if self.refusals:
            refusal = self.refusals.pop(0)
            if isinstance(refusal, duolog.NoSuchMessage):
                self.finished.add(found)  # there is no more to do with it
            raise refusal
        self.back.append(found)
        self.finished.add(found)
        return wire.SendBackReply(topic="%RETRY%g")


class Bench:
    """A consumer with one reader, and a handler that ends as the test says."""

    def __init__(self, place: Clustering | OffsetFile | None = None) -> None:
        self.node = Node()
        self.reader = reader_at(cast(Any, self.node), self.node)
        self.next = dict.fromkeys(QUEUES, 0)  # offsets that the node sends next
        router: Any = SimpleNamespace(runtime=SimpleNamespace(spans=None))
        consumption = Consumption(group="g", session=5.0)
        self.consumer = Consumer(router, cast(Any, None), ["T"], consumption, place or Clustering())
        self.reader._arrived = self.consumer._arrived
        self.consumer._readers["0"] = self.reader
        self.consumer._started = True
        self.running: dict[Id, asyncio.Future[None]] = {}
        self.readings: dict[Id, int] = {}  # how often its queue had been read anew by then
        self.busy = self.most = 0  # handlers that run, and ran at most
        self.handled: list[Id] = []  # began to be
        self.times: Counter[Queue] = Counter()  # that a queue was read anew
        self.last: dict[tuple[Queue, str, int], int] = {}
        self.task: asyncio.Task[None] | None = None
        self.wrong: list[str] = []  # what a handler saw: an assertion there would be a failure

    async def handle(self, message: Message) -> None:
        queue = message.stored_topic, message.queue_id
        at, key = (message.queue_id, message.queue_offset), "".join(message.keys)
        if at in self.running and ((key and self.by_key) or self.readings[at] == self.times[queue]):
            self.wrong.append(f"{at} is handled twice at a time")
        self.readings[at] = self.times[queue]
        if key and self.by_key:
            if key in {key_at(*other) for other in self.running}:
                self.wrong.append(f"{at}: another message of key {key} is handled")
            lane = queue, key, self.times[queue]
            if self.last.get(lane, -1) >= at[1]:
                self.wrong.append(f"{at} comes after {self.last[lane]} of key {key}")
            self.last[lane] = at[1]
        self.handled.append(at)
        ends = self.running.setdefault(at, asyncio.get_running_loop().create_future())
        self.busy += 1
        self.most = max(self.most, self.busy)
        try:
            await asyncio.shield(ends)
        finally:
            self.busy -= 1
            self.running.pop(at, None)
        self.node.finished.add(at)

    async def start(self, concurrency: int = 1, by_key: bool = False, grace: float = 30.0) -> None:
        self.by_key = by_key
        await self.reader._heartbeat()
        self.task = asyncio.create_task(
            self.consumer.run(self.handle, concurrency=concurrency, by_key=by_key, grace=grace)
        )
        await turns()

    def arrive(self, queue: Queue, count: int, size: int = 1) -> None:
        """The node sends the next messages of a queue, if it is read."""
        command = self.reader._prefetch.command()
        if command is not None:
            self.next.update(command.add)
        if self.reader._prefetch.reads(queue):
            batch = batch_at(queue, self.next[queue], count, size)
            if not count:  # a filter kept messages back, or they are lost
                batch.next_offset += 2
                batch.lost = batch.next_offset % 3
                self.node.finished |= {(queue[1], batch.next_offset - k) for k in (1, 2)}
            self.next[queue] = batch.next_offset
            batch.subscription = self.reader._prefetch._cursors[queue].number
            self.reader._take(batch)

    def end(self, at: Id, error: BaseException | None = None) -> None:
        """A handler returns, or raises."""
        if error is None:
            self.running[at].set_result(None)
        else:
            self.running[at].set_exception(error)

    async def beat(self, mine: Iterable[Queue], forfeited: Iterable[Queue] = ()) -> None:
        self.node.share_next = Share(set(mine), forfeited=set(forfeited) & set(self.held))
        held = set(self.held)
        await self.reader._heartbeat()
        self.times.update((held - set(self.held)) | self.node.share_next.forfeited)

    @property
    def held(self) -> dict[Queue, int]:
        return self.reader._positions

    @property
    def prefixes(self) -> dict[Queue, int]:
        """Up to where all messages are finished, by queue."""
        finished = self.node.finished
        return {q: next(k for k in range(10**6) if (q[1], k) not in finished) for q in QUEUES}


async def turns(count: int = 30) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(
            [*("arrive", "return") * 4, *("raise", "beat", "commit") * 2, "forfeit", "late", "seek"]
        ),
        st.integers(0, 7),
    ),
    max_size=40,
)


@given(ACTIONS, st.integers(1, 4), st.booleans(), st.sampled_from(["stop", "cancel", "close"]))
def test_no_order_of_events_commits_an_unfinished_message_or_breaks_the_order_of_a_key(
    actions: list[tuple[str, int]], concurrency: int, by_key: bool, end: str
) -> None:
    asyncio.run(_played(actions, concurrency, by_key, end))


async def _played(actions: list[tuple[str, int]], concurrency: int, by_key: bool, end: str) -> None:
    bench = Bench()
    await bench.start(concurrency, by_key, grace=0 if end == "cancel" else 30)
    for action, number in actions:
        await _step(bench, action, number)
        await turns()
        assert bench.wrong == []
        assert bench.task is not None
        assert not bench.task.done()
    assert bench.most <= concurrency
    prefetch = bench.reader._prefetch
    given = 0 if (head := prefetch.head()) is None else head[1]
    waiting = sum(batch.count for batch in prefetch._ready) - given
    assert by_key or not waiting or bench.busy == concurrency, "no message waits for none"
    await _ended(bench, end)
    assert bench.wrong == []
    assert not bench.busy
    await bench.reader.commit()
    for queue in QUEUES:
        if not bench.times[queue]:
            prefix = bench.prefixes[queue]
            done = [k + 1 for queue_id, k in bench.handled if queue_id == queue[1] and k < prefix]
            assert max(done, default=0) <= bench.node.committed[queue] <= prefix, "all that may be"


async def _step(bench: Bench, action: str, number: int) -> None:
    queue = QUEUES[number % 2]
    running = [at for at in bench.running if not bench.running[at].done()]
    at = running[number % len(running)] if running else None
    if action == "arrive":
        bench.arrive(queue, number)
    elif action == "return" and at is not None:
        bench.end(at)
    elif action == "raise" and at is not None:
        bench.end(at, Boom("no"))
    elif action == "beat":
        await bench.beat(QUEUES[: number % 3] if number < 4 else QUEUES)
    elif action == "forfeit":
        await bench.beat(set(QUEUES) - {queue}, {queue})
    elif action == "late":  # the others have waited for a session
        leaving = bench.reader._leaving
        bench.reader._leaving = {queue: since - 10 for queue, since in leaving.items()}
    elif action == "commit":
        await bench.reader.commit()
    elif action == "seek" and bench.reader._prefetch.reads(queue):
        to = bench.prefixes[queue] // 2
        await bench.reader.seek(*queue, to)
        bench.times[queue] += 1
        assert bench.reader._prefetch._cursors[queue].offset == to


async def _ended(bench: Bench, end: str) -> None:
    """The worker ends; handlers that may, return."""
    assert bench.task is not None
    closing: asyncio.Task[None] | None = None
    if end == "cancel":
        bench.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await bench.task
        return
    if end == "stop":
        bench.consumer.stop()
    else:
        closing = asyncio.create_task(bench.consumer.close())
    await turns()
    began = len(bench.handled)
    while running := list(bench.running):
        for at in running:
            bench.end(at)
        await turns()
    await bench.task
    assert len(bench.handled) == began, "it takes no more"
    if closing is not None:
        await closing


async def test_a_message_is_consumed_when_all_before_it_in_its_queue_are_handled() -> None:
    bench = Bench()
    await bench.start(concurrency=3)
    bench.arrive(QUEUES[0], 5)
    await turns()
    assert list(bench.running) == [(0, 0), (0, 1), (0, 2)]
    bench.end((0, 1))
    bench.end((0, 2))
    await turns()
    await bench.consumer.commit()
    assert bench.node.committed[QUEUES[0]] == 0
    bench.end((0, 0))
    await turns()
    await bench.consumer.commit()
    assert bench.node.committed[QUEUES[0]] == 3
    await _ended(bench, "stop")
    assert bench.node.committed[QUEUES[0]] == 5, "committed when it returns"


def test_messages_that_a_filter_kept_back_are_consumed_with_the_one_before_them() -> None:
    queue, in_hand = QUEUES[0], InHand()
    held = in_hand.add(queue, 1, cast(Any, SimpleNamespace(size=7)))
    assert in_hand.passed(queue, 5)
    in_hand.begin(held)
    assert in_hand.finish(held) == 5
    assert (in_hand.passed(queue, 9), in_hand.queues, in_hand.count) == (False, [], 0)


async def test_a_worker_on_demand_takes_a_message_for_each_that_is_wanted() -> None:
    bench = Bench()
    bench.by_key = False
    await bench.reader._heartbeat()
    given = asyncio.Event()

    async def handle(message: Message) -> None:
        await bench.handle(message)
        if given.is_set():
            bench.node.finished.discard((message.queue_id, message.queue_offset))
            raise _worker.GivenBack

    worker = bench.consumer.make_worker(_worker.Work(handle, 1, False, 30.0, on_demand=True))
    bench.task = asyncio.create_task(bench.consumer.run_worker(worker))
    bench.arrive(QUEUES[0], 5)
    await turns()
    assert bench.handled == []
    worker.want()
    worker.want()
    await turns()
    assert list(bench.running) == [(0, 0), (0, 1)]
    bench.end((0, 0))
    await turns()
    assert list(bench.running) == [(0, 1)], "its runner takes no other"
    assert not bench.task.done(), "more may be wanted"
    for _ in range(3):
        worker.want()
    await turns()
    bench.consumer.stop()
    await turns()
    worker.want()  # it stops
    await turns()
    assert list(bench.running) == [(0, 1), (0, 2), (0, 3), (0, 4)]
    bench.end((0, 1))
    bench.end((0, 2), Boom("no"))
    await turns()
    given.set()
    bench.end((0, 3))
    bench.end((0, 4))
    await bench.task
    worker.want()
    assert not worker._runners.busy, "it has ended"
    assert bench.node.back == [(0, 2)]
    assert bench.node.committed[QUEUES[0]] == 3, "what was given back comes again"


async def test_a_worker_on_demand_from_which_nothing_is_wanted_stops() -> None:
    bench = Bench()
    await bench.reader._heartbeat()
    worker = bench.consumer.make_worker(_worker.Work(bench.handle, 1, False, 30.0, on_demand=True))
    bench.task = asyncio.create_task(bench.consumer.run_worker(worker))
    await turns()
    assert not bench.task.done()
    bench.consumer.stop()
    await bench.task
    assert not bench.task.cancelled()


async def test_keys_wait_for_nobody_but_themselves() -> None:
    bench = Bench()
    await bench.start(concurrency=2, by_key=True)
    bench.arrive(QUEUES[0], 8)
    await turns()
    keys = [key_at(0, k) for k in range(8)]
    first = keys.index("a")
    while set(bench.running) - {(0, first)}:
        for at in set(bench.running) - {(0, first)}:
            bench.end(at)
        await turns()
    assert {at for at in bench.handled if key_at(*at) == "a"} == {(0, first)}
    assert {at for at in bench.handled if key_at(*at) != "a"} == {
        (0, k) for k in range(8) if keys[k] != "a"
    }
    await _ended(bench, "stop")


async def with_lanes() -> Bench:
    """The first messages of two keys are handled, and others of these keys wait for them."""
    bench = Bench()
    await bench.start(concurrency=3, by_key=True)
    bench.arrive(QUEUES[0], 9)
    await turns()
    bench.end((0, 0))
    bench.end((0, 2))
    await turns()
    assert {at: key_at(*at) for at in bench.running} == {(0, 1): "a", (0, 3): "b", (0, 7): ""}
    assert [key_at(0, k) for k in (4, 5, 6)] == ["a", "b", "a"]
    return bench


async def test_a_queue_that_goes_to_another_member_waits_for_running_handlers_alone() -> None:
    bench = await with_lanes()
    await bench.beat([QUEUES[1]])
    for at in list(bench.running):
        bench.end(at)
    await turns()
    assert not bench.running, "what waited for them is another member's"
    assert QUEUES[0] in bench.held
    await bench.beat([QUEUES[1]])
    assert QUEUES[0] not in bench.held
    assert bench.node.committed[QUEUES[0]] == 4
    bench.arrive(QUEUES[1], 1)
    await turns()
    assert list(bench.running) == [(1, 0)]
    assert key_at(1, 0) == "a", "a key that waited is free"
    await _ended(bench, "stop")


async def test_a_queue_that_returns_is_handled_on_without_a_gap() -> None:
    bench = await with_lanes()
    await bench.beat([QUEUES[1]])
    bench.end((0, 1))
    bench.end((0, 3))
    await turns()
    await bench.beat(QUEUES)
    await turns()
    assert bench.running.keys() == {(0, 4), (0, 5), (0, 7)}, "nothing else has to come for that"
    bench.arrive(QUEUES[0], 3)
    while bench.running:
        bench.end(next(iter(bench.running)))
        await turns()
    await _ended(bench, "stop")
    assert sorted(bench.handled) == [(0, k) for k in range(11)]
    assert bench.node.committed[QUEUES[0]] == 11


async def test_handlers_that_outlast_their_queue_change_nothing_when_it_comes_back() -> None:
    bench = await with_lanes()
    await bench.beat([QUEUES[1]])
    bench.reader._leaving = dict.fromkeys(bench.reader._leaving, -10.0)
    await bench.beat([QUEUES[1]])
    assert QUEUES[0] not in bench.held, "the others have waited for a session"
    bench.node.finished |= {(0, k) for k in range(50)}
    bench.node.committed[QUEUES[0]] = 50
    await bench.beat(QUEUES)
    for at in list(bench.running):
        bench.end(at)
    await turns()
    assert bench.held[QUEUES[0]] == 50
    bench.arrive(QUEUES[0], 1)
    await turns()
    assert list(bench.running) == [(0, 50)]
    await _ended(bench, "stop")


async def test_what_waits_for_a_key_is_forgotten_with_its_queue(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_worker, "_key_of", lambda message: "k")
    bench = Bench()
    bench.by_key = False
    await bench.reader._heartbeat()
    bench.task = asyncio.create_task(bench.consumer.run(bench.handle, concurrency=2, by_key=True))
    await turns()
    assert bench.consumer._worker is not None
    for _ in range(5):
        bench.arrive(QUEUES[0], 9)
        await turns()
        await bench.beat([QUEUES[1]], [QUEUES[0]])
        await bench.beat(QUEUES)
    assert bench.handled == [(0, 0)], "it is still handled"
    assert len(bench.consumer._worker._lanes["k"]) == 9
    bench.end((0, 0))
    await _ended(bench, "stop")


async def test_messages_in_hand_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_worker, "HELD_MAX", 10)
    bench = Bench()
    await bench.start(concurrency=2)
    bench.arrive(QUEUES[0], 100)
    await turns()
    while waiting := [at for at in bench.running if at != (0, 0)]:
        bench.end(waiting[0])
        await turns()
    assert len(bench.handled) == 10, "the first one is still handled"
    bench.end((0, 0))
    await turns()
    assert len(bench.running) == 2
    await _ended(bench, "stop")


async def test_bytes_that_wait_for_a_key_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_worker, "WAITING_BYTES", 1000)
    bench = Bench()
    monkeypatch.setattr(_worker, "_key_of", lambda message: "k")
    bench.by_key = False
    await bench.reader._heartbeat()
    bench.task = asyncio.create_task(bench.consumer.run(bench.handle, concurrency=2, by_key=True))
    await turns()
    bench.arrive(QUEUES[0], 100, size=100)
    await turns()
    assert list(bench.running) == [(0, 0)]
    assert bench.reader.held.count == 11
    for k in range(100):
        bench.end((0, k))
        await turns()
    await _ended(bench, "stop")
    assert bench.node.committed[QUEUES[0]] == 100


async def test_a_handler_that_raises_sends_its_message_back_with_one_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    bench = Bench()
    await bench.start()
    bench.arrive(QUEUES[0], 2)
    await turns()
    bench.end((0, 0), Boom("in\ntwo lines"))
    await until(lambda: bench.node.back == [(0, 0)])
    await until(lambda: (0, 1) in bench.running)
    (record,) = caplog.records
    assert record.name == "duolog.worker"
    assert record.levelname == "WARNING"
    line = record.getMessage()
    assert line.startswith("Message(T/0@0, 1 bytes): the handler raised Boom: in two lines (")
    assert f"{__file__}:" in line
    assert line.endswith("at attempt 1: it is retried")
    await _ended(bench, "stop")
    assert bench.node.committed[QUEUES[0]] == 2


async def test_what_cannot_be_sent_back_yet_is_tried_again_and_not_committed(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor what may be stored, and may be lost with its master."""
    monkeypatch.setattr(_worker, "UNKNOWN_SECONDS", 0.05)
    bench = Bench()
    unknown = duolog.ResultUnknown("%RETRY%g: FLUSH_SLAVE_TIMEOUT", "FLUSH_SLAVE_TIMEOUT")
    bench.node.refusals = [unknown, duolog.Unavailable("no master")]
    await bench.start()
    bench.arrive(QUEUES[0], 1)
    await turns()
    bench.end((0, 0), Boom())
    await until(lambda: "cannot be sent back yet: no master" in caplog.text)
    await bench.consumer.commit()
    assert bench.node.committed[QUEUES[0]] == 0
    await until(lambda: bench.node.back)
    await _ended(bench, "stop")
    assert bench.node.committed[QUEUES[0]] == 1


async def test_nothing_is_sent_back_for_ever_when_the_reading_has_ended() -> None:
    bench = Bench()
    bench.node.refusals = [duolog.Unavailable("the client is closed")] * 2
    await bench.start()
    bench.arrive(QUEUES[0], 1)
    await turns()
    bench.reader._error = duolog.Unavailable("no heartbeat was answered")
    bench.end((0, 0), Boom())
    assert bench.task is not None
    with pytest.raises(duolog.Unavailable, match="no heartbeat"):
        await bench.task
    assert bench.node.committed[QUEUES[0]] == 0
    assert bench.node.back == []


async def test_nothing_is_sent_back_for_ever_to_a_silent_replica_group() -> None:
    bench = Bench()
    bench.node.refusals = [duolog.Unavailable("no master")] * 2
    await bench.start()
    bench.arrive(QUEUES[0], 1)
    await turns()
    bench.reader._silent("join", duolog.Unavailable("no heartbeat was answered"))
    bench.end((0, 0), Boom())
    assert bench.task is not None
    with pytest.raises(duolog.Unavailable, match="no heartbeat"):
        await bench.task
    assert (bench.node.committed[QUEUES[0]], bench.node.back) == (0, [])


async def test_a_message_that_is_gone_when_its_handler_fails_is_finished_and_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It was trimmed, say, while it was in hand: nobody can store it again."""
    bench = Bench()
    bench.node.refusals = [duolog.NoSuchMessage("T/0 begins at 1")]
    await bench.start()
    bench.arrive(QUEUES[0], 2)
    await turns()
    bench.end((0, 0), Boom("why"))
    await until(lambda: (0, 1) in bench.running)
    (record,) = caplog.records
    assert record.levelname == "ERROR"
    assert "the handler raised Boom: why" in record.getMessage()
    assert record.getMessage().endswith("is not retried, as it is gone: T/0 begins at 1")
    await _ended(bench, "stop")
    assert bench.node.back == []
    assert bench.node.committed[QUEUES[0]] == 2


@pytest.mark.parametrize("broadcasts", [False, True])
async def test_what_cannot_be_sent_back_ends_the_worker_and_is_not_committed(
    caplog: pytest.LogCaptureFixture, broadcasts: bool
) -> None:
    bench = Bench(OffsetFile(None) if broadcasts else None)
    bench.node.refusals = [duolog.NoPermission("not yours")]
    await bench.start(concurrency=2)
    bench.arrive(QUEUES[0], 3)
    await turns()
    bench.end((0, 0), Boom("why"))
    await turns()
    bench.end((0, 1))
    assert bench.task is not None
    with pytest.raises(duolog.BadRequest if broadcasts else duolog.NoPermission) as raised:
        await bench.task
    assert isinstance(raised.value.__cause__, Boom)
    assert "and it cannot be sent back: " in caplog.text
    await bench.consumer.commit()
    assert bench.node.committed[QUEUES[0]] == 0
    assert bench.handled == [(0, 0), (0, 1)]
    message = await bench.consumer.get(0)
    assert message is None, "read again from the node"
    assert bench.reader._prefetch.command() is not None
    assert bench.reader._prefetch._cursors[QUEUES[0]].offset == 0


async def test_handlers_that_take_longer_than_the_grace_are_cancelled(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench = Bench()
    await bench.start(concurrency=2, grace=0.05)
    bench.arrive(QUEUES[0], 4)
    await turns()
    bench.consumer.stop()
    await turns()
    bench.end((0, 0))
    assert bench.task is not None
    await bench.task
    assert bench.node.committed[QUEUES[0]] == 1
    assert not bench.running
    assert bench.node.back == [], "a cancelled handler is no failure"
    assert "T/0@1, 1 bytes): the handler did not end in time: it is delivered again" in caplog.text


async def test_a_second_cancellation_does_not_wait_for_handlers() -> None:
    bench = Bench()
    await bench.start()
    bench.arrive(QUEUES[0], 1)
    await turns()
    assert bench.task is not None
    bench.task.cancel()
    await turns()
    assert bench.running, "the first one waits"
    bench.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await bench.task
    assert not bench.running
    assert bench.node.committed[QUEUES[0]] == 0


async def test_a_handler_that_cancels_itself_has_failed() -> None:
    bench = Bench()
    await bench.start()
    bench.arrive(QUEUES[0], 1)
    await turns()
    bench.end((0, 0), asyncio.CancelledError())
    await until(lambda: bench.node.back == [(0, 0)])
    await _ended(bench, "stop")


async def test_a_worker_whose_tasks_are_cancelled_raises_instead_of_waiting() -> None:
    bench = Bench()
    await bench.start(concurrency=2)
    bench.arrive(QUEUES[0], 1)
    await turns()
    for task in asyncio.all_tasks() - {asyncio.current_task(), bench.task}:
        task.cancel()
    assert bench.task is not None
    with pytest.raises(duolog.Unavailable, match="was cancelled by the program"):
        await asyncio.wait_for(bench.task, 5)
    assert bench.node.committed[QUEUES[0]] == 0
    assert bench.node.back == [], "its handler did not fail"


async def test_what_ends_the_reading_ends_the_worker() -> None:
    bench = Bench()
    await bench.start(concurrency=2)
    bench.arrive(QUEUES[0], 1)
    await turns()
    bench.reader._error = duolog.NoPermission("no")
    bench.consumer._arrived.set()
    await turns()
    bench.end((0, 0))
    assert bench.task is not None
    with pytest.raises(duolog.NoPermission):
        await bench.task
    await bench.reader.commit()
    assert bench.node.committed[QUEUES[0]] == 1


@pytest.fixture(autouse=True)
def _nobody_handles_signals() -> Iterator[None]:
    """Jobs in the background, as this one may be, are started to ignore SIGINT."""
    plain: dict[signal.Signals, Any] = {
        signal.SIGTERM: signal.SIG_DFL,
        signal.SIGINT: signal.default_int_handler,
    }
    before = {number: signal.signal(number, handler) for number, handler in plain.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_signals_stop_all_workers(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    benches = [Bench(), Bench()]
    for bench in benches:
        await bench.start()
        bench.arrive(QUEUES[0], 2)
    await turns()
    signal.raise_signal(number)
    await turns()
    for bench in benches:
        await _ended(bench, "stop")
        assert bench.handled == [(0, 0)]
    assert signal.getsignal(number) == before


async def test_a_signal_during_the_last_commit_finds_no_worker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It would ask the next `run` to stop, and end nothing."""
    bench, before = Bench(), signal.getsignal(signal.SIGTERM)
    handlers = []

    async def commit() -> None:
        handlers.append(signal.getsignal(signal.SIGTERM))

    monkeypatch.setattr(bench.consumer, "commit", commit)
    await bench.start()
    await _ended(bench, "stop")
    assert handlers == [before]


def test_a_third_signal_acts_as_if_no_worker_ran() -> None:
    heard: list[int] = []
    for _ in range(2):
        with stop_signals(lambda: heard.append(1)):
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
    assert len(heard) == 4


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
async def test_a_forked_process_ends_by_signals_though_a_worker_runs_in_its_parent() -> None:
    bench = Bench()
    await bench.start()
    reads, writes = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.write(writes, b"!")
            signal.pause()  # returns when a handler of ours does
        finally:
            os._exit(1)
    assert os.read(reads, 1) == b"!"
    os.kill(child, signal.SIGTERM)
    _, status = await asyncio.to_thread(os.waitpid, child, 0)
    assert status == signal.SIGTERM, "killed by it"
    os.close(reads)
    os.close(writes)
    await _ended(bench, "stop")


async def test_a_program_keeps_its_own_handlers_of_signals() -> None:
    got: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: got.append(number))
    try:
        bench = Bench()
        await bench.start()
        signal.raise_signal(signal.SIGTERM)
        await turns()
        assert got == [signal.SIGTERM]
        assert bench.task is not None
        assert not bench.task.done()
        await _ended(bench, "stop")
    finally:
        signal.signal(signal.SIGTERM, before)


async def test_a_consumer_that_runs_is_for_its_worker() -> None:
    bench = Bench()
    await bench.start()
    consumer = bench.consumer
    calls: list[Callable[[], Coroutine[Any, Any, object]]] = [
        lambda: consumer.get(0),
        lambda: consumer.get_batch(0),
        lambda: consumer.__anext__(),
        lambda: consumer.run(bench.handle),
    ]
    for call in calls:
        with pytest.raises(duolog.BadRequest, match="`run` reads from this consumer"):
            await call()
    await _ended(bench, "stop")
    assert await consumer.get(0) is None


async def test_a_worker_that_was_stopped_before_it_ran_takes_nothing() -> None:
    bench = Bench()
    await bench.reader._heartbeat()
    bench.arrive(QUEUES[0], 1)
    bench.consumer.stop()
    await bench.start()
    assert bench.task is not None
    await bench.task
    assert bench.handled == []
    await bench.start()
    assert bench.handled == [(0, 0)]
    await _ended(bench, "stop")


async def test_a_handler_may_stop_its_worker_and_must_not_close_its_consumer() -> None:
    bench = Bench()
    errors: list[Exception] = []
    await bench.reader._heartbeat()
    bench.arrive(QUEUES[0], 3)

    async def handle(message: Message) -> None:
        try:
            await bench.consumer.close()
        except duolog.BadRequest as error:
            errors.append(error)
        bench.node.finished.add((0, message.queue_offset))
        bench.consumer.stop()

    await bench.consumer.run(handle)
    assert "use stop" in str(errors)
    assert bench.node.committed[QUEUES[0]] >= 1


async def test_messages_handed_out_before_count_as_consumed_and_are_not_handled_again() -> None:
    bench = Bench()
    await bench.reader._heartbeat()
    bench.arrive(QUEUES[0], 3)
    assert await bench.consumer.get(0) is not None
    bench.node.finished.add((0, 0))
    await bench.start()
    assert bench.handled == [(0, 1)]
    await _ended(bench, "stop")
    message = await bench.consumer.get(0)
    assert message is not None
    assert message.queue_offset == 2


async def test_each_message_has_a_context_of_its_own() -> None:
    from contextvars import ContextVar

    bench = Bench()
    seen: list[int] = []
    bound: ContextVar[int] = ContextVar("bound", default=-1)
    await bench.reader._heartbeat()
    bench.arrive(QUEUES[0], 2)

    async def handle(message: Message) -> None:
        seen.append(bound.get())
        bound.set(message.queue_offset)
        bench.node.finished.add((0, message.queue_offset))
        if message.queue_offset:
            bench.consumer.stop()

    await bench.consumer.run(handle)
    assert seen == [-1, -1]


async def test_a_function_runs_in_threads_and_what_it_returns_is_awaited() -> None:
    bench = Bench()
    await bench.reader._heartbeat()
    bench.arrive(QUEUES[0], 6)
    together = threading.Barrier(2)
    threads: set[threading.Thread] = set()
    awaited: list[int] = []

    async def after(message: Message) -> None:
        awaited.append(message.queue_offset)
        bench.node.finished.add((0, message.queue_offset))
        if len(awaited) == 6:
            bench.consumer.stop()

    def handle(message: Message) -> Awaitable[None]:
        together.wait(10)
        threads.add(threading.current_thread())
        return after(message)

    await bench.consumer.run(handle, concurrency=2)
    assert sorted(awaited) == list(range(6))
    assert {one.name for one in threads} == {"duolog-handler-1", "duolog-handler-2"}
    await until(lambda: not any(one.is_alive() for one in threads))
    assert bench.node.committed[QUEUES[0]] == 6


@pytest.mark.parametrize("error", [Boom("no"), SystemExit(3), StopIteration(), KeyboardInterrupt()])
async def test_whatever_a_thread_raises_its_message_is_sent_back(error: BaseException) -> None:
    bench = Bench()
    await bench.reader._heartbeat()
    bench.arrive(QUEUES[0], 2)

    def handle(message: Message) -> None:
        if message.queue_offset == 0:
            raise error
        bench.node.finished.add((0, 1))
        bench.consumer.stop()

    await bench.consumer.run(handle)
    assert bench.node.back == [(0, 0)]
    assert bench.node.committed[QUEUES[0]] == 2


async def test_a_thread_that_hangs_is_left_behind_and_its_message_is_not_consumed() -> None:
    bench = Bench()
    await bench.reader._heartbeat()
    bench.arrive(QUEUES[0], 1)
    begun, let = threading.Event(), threading.Event()

    def handle(message: Message) -> None:
        begun.set()
        let.wait(60)

    task = asyncio.create_task(bench.consumer.run(handle, grace=0.01))
    await until(begun.is_set)
    bench.consumer.stop()
    await task
    assert bench.node.committed[QUEUES[0]] == 0
    let.set()


async def test_calls_wait_for_a_thread_where_the_system_has_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun: list[threading.Thread] = []
    start = threading.Thread.start

    def starts(thread: threading.Thread) -> None:
        begun.append(thread)
        if len(begun) != 2:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", starts)
    threads = HandlerThreads(3)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        await threads.call(str, 0)
    found = await asyncio.gather(*(threads.call(str, k) for k in range(1, 4)))
    assert found == ["1", "2", "3"]
    assert await threads.call(str, 4) == "4"
    assert len(begun) == 4, "a thread without work takes it"
    threads.close()
    begun[1].join(10)
    assert not begun[1].is_alive()


def _generator(message: Message) -> Any:
    yield message


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"handler": None}, "handler must be a function, not NoneType"),
        ({"handler": _generator}, "handler is a generator"),
        ({"concurrency": 0}, "concurrency is 0; it must be 1 to 4096"),
        ({"concurrency": "2"}, "concurrency must be a whole number"),
        ({"by_key": "user"}, "by_key must be a bool, not str"),
        ({"grace": -1}, "grace is -1"),
        ({"grace": None}, "grace must be a number"),
    ],
)
async def test_a_worker_with_wrong_settings_is_refused(how: dict[str, Any], words: str) -> None:
    with pytest.raises(duolog.BadRequest, match=words):
        await Bench().consumer.run(**{"handler": print, **how})


def test_failures_show_where_nothing_takes_them(capsys: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger()
    handlers, root.handlers = root.handlers, []
    try:
        _worker.log.warning("a handler failed")
        assert capsys.readouterr().err == "a handler failed\n"
        root.handlers = [logging.NullHandler(), logging.FileHandler("/dev/null")]
        _worker.log.warning("a handler failed")
        assert capsys.readouterr().err == ""
        root.handlers[1].close()
    finally:
        root.handlers = handlers


@pytest.mark.parametrize("concurrency", [1, 2])
async def test_whatever_a_coroutine_raises_its_message_is_sent_back(concurrency: int) -> None:
    class Odd(BaseException):
        """As `pytest.fail` raises."""

    bench = Bench()
    await bench.start(concurrency)
    bench.arrive(QUEUES[0], 2)
    await turns()
    bench.end((0, 0), Odd())
    await turns()
    assert bench.node.back == [(0, 0)]
    assert (0, 1) in bench.running
    await _ended(bench, "stop")
    assert bench.node.committed[QUEUES[0]] == 2


def test_a_coroutine_that_exits_ends_the_worker_and_its_message_is_not_consumed() -> None:
    bench: Bench | None = None

    async def run() -> None:
        nonlocal bench
        bench = Bench()
        await bench.reader._heartbeat()
        bench.arrive(QUEUES[0], 1)
        await bench.consumer.run(handle)

    async def handle(message: Message) -> None:
        raise SystemExit(3)

    loop = asyncio.new_event_loop()
    task = loop.create_task(run())
    for _ in range(3):  # in the handler, in what waits for it, and in `run`
        with pytest.raises(SystemExit):
            loop.run_until_complete(asyncio.wait([task]))
    assert bench is not None
    loop.run_until_complete(bench.reader.commit())
    assert bench.node.committed[QUEUES[0]] == 0
    loop.close()


async def test_a_cancelled_handler_that_raises_something_else_ends_the_worker_as_any(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench = Bench()
    await bench.reader._heartbeat()
    bench.arrive(QUEUES[0], 2)

    async def handle(message: Message) -> None:
        if not message.queue_offset:
            bench.node.finished.add((0, 0))
            return
        bench.consumer.stop()
        try:
            await asyncio.Event().wait()
        finally:
            raise Boom("the connection is closed")

    await bench.consumer.run(handle, grace=0)
    assert bench.node.committed[QUEUES[0]] == 1
    assert bench.node.back == []
    (line,) = [one.getMessage() for one in caplog.records if one.name == "duolog.worker"]
    assert "did not end in time and raised Boom: the connection is closed (" in line
    assert line.endswith("): it is delivered again")


async def test_a_replica_group_may_come_during_a_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()

    async def commit() -> None:
        bench.consumer._readers["1"] = bench.reader

    monkeypatch.setattr(bench.reader, "commit", commit)
    await bench.consumer.commit()
    assert len(bench.consumer._readers) == 2


def synchronous() -> tuple[duolog.sync.Consumer, Bench]:
    """A consumer for programs without an event loop, with three messages."""
    loop = duolog.sync._Loop()

    async def made() -> Bench:
        bench = Bench()
        await bench.reader._heartbeat()
        bench.arrive(QUEUES[0], 3)
        return bench

    bench = loop.run(made())
    return duolog.sync.Consumer(loop, bench.consumer), bench


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_ends_a_worker_in_threads_when_its_handler_returned(
    number: signal.Signals,
) -> None:
    """SIGUSR1: the program's own handler raises."""
    consumer, bench = synchronous()
    before = signal.signal(signal.SIGUSR1, lambda *_: sys.exit(3))

    def handle(message: Message) -> None:
        os.kill(os.getpid(), number)
        wait_until(lambda: bench.consumer._worker and bench.consumer._worker._stopping)
        bench.node.finished.add((0, message.queue_offset))

    try:
        if number == signal.SIGUSR1:
            with pytest.raises(SystemExit):
                consumer.run(handle)
        else:
            consumer.run(handle)
    finally:
        signal.signal(signal.SIGUSR1, before)
    consumer.commit()
    assert bench.node.committed[QUEUES[0]] == 1


def test_a_handler_in_a_thread_may_stop_its_worker_and_must_not_close_its_consumer() -> None:
    consumer, bench = synchronous()

    def handle(message: Message) -> None:
        with pytest.raises(duolog.BadRequest, match="use stop"):
            consumer.close()
        bench.node.finished.add((0, message.queue_offset))
        consumer.stop()

    consumer.run(handle)
    assert bench.node.committed[QUEUES[0]] >= 1
    assert bench.node.back == []

    async def coroutine(message: Message) -> None:
        raise AssertionError("not called")

    with pytest.raises(duolog.BadRequest, match="handler is a coroutine function"):
        consumer.run(coroutine)


def test_a_second_run_is_refused_and_leaves_the_first_alone() -> None:
    consumer, bench = synchronous()

    def handle(message: Message) -> None:
        with pytest.raises(duolog.BadRequest, match="`run` reads from this consumer"):
            consumer.run(print)
        assert bench.consumer._worker is not None
        assert not bench.consumer._worker._stopping
        bench.node.finished.add((0, message.queue_offset))
        consumer.stop()

    consumer.run(handle)
    assert bench.node.back == []


def test_a_worker_in_the_thread_of_all_clients_is_refused() -> None:
    consumer, _ = synchronous()
    with pytest.raises(RuntimeError, match="the thread of all clients"):
        consumer._loop.call(lambda: consumer.run(print))
