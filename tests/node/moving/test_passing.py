"""Puts that wait for a move, or are passed on: their order, their bounds, and broken streams."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from dataclasses import dataclass, field
from typing import Any, cast

import duolog
import numpy as np
import pytest
from duolog._backoff import BackOff

from duolog_server.node.core.admission import Admission
from duolog_server.node.core.ports import Log
from duolog_server.node.engine.log import Outcome
from duolog_server.node.moving import passing as module
from duolog_server.node.moving.deliveries import PassedOn, batch_of, kept
from duolog_server.node.moving.othergroups import Deliveries
from duolog_server.node.moving.passing import Here, Passing
from duolog_server.node.wire import moves_pb2 as wire
from duolog_server.store.columns import Columns
from duolog_server.store.errors import SequenceTooOld
from duolog_server.store.idempotence import Run
from duolog_server.store.messagestore import PutBatch, PutResult
from duolog_server.store.moves import Guest, Moves, Place, Seal
from duolog_server.store.offsets import PhyOffset, QueueOffset
from duolog_server.store.status import PutMessageStatus
from tests.until import until

OK, MOVED = PutMessageStatus.PUT_OK, PutMessageStatus.QUEUE_MOVED
UNAVAILABLE, UNKNOWN = PutMessageStatus.SERVICE_NOT_AVAILABLE, PutMessageStatus.UNKNOWN_ERROR
TO = Place("b", 4)
LATER = Place("c", 6)


class Stream:
    """A stream to a target, of which the test is the other end."""

    def __init__(self) -> None:
        self.came: list[wire.Delivery] = []
        self.is_over = False
        self._answers: asyncio.Queue[wire.Delivered | None] = asyncio.Queue()

    async def write(self, delivery: wire.Delivery) -> None:
        made = wire.Delivery()
        made.CopyFrom(delivery)
        self.came.append(made)

    async def read(self) -> object:
        return await self._answers.get()

    async def details(self) -> str:
        return "the test says so"

    def cancel(self) -> None:
        self.is_over = True

    def end(self) -> None:
        self._answers.put_nowait(None)

    def answer(self, delivery: wire.Delivery, **how: Any) -> None:
        told = {"status": "PUT_OK", "count": 1, "store_host": "127.0.0.1:9", **how}
        self._answers.put_nowait(wire.Delivered(id=delivery.id, **told))

    @property
    def bodies(self) -> list[bytes]:
        return [delivery.bodies for delivery in self.came]


@dataclass
class Node:
    """What a node has, beside what it passes on."""

    sealed: bool = True
    to: Place = TO
    is_master: bool = True
    has_target: bool = True
    stored: list[bytes] = field(default_factory=list)
    known: dict[bytes, int] = field(default_factory=dict)  # messages of a batch that it has
    gone: set[str] = field(default_factory=set)  # groups that have left
    unsealed: bool = False  # by its tables: the topic was deleted
    came_back: dict[tuple[str, int], int] = field(default_factory=dict)
    stored_at: list[int] = field(default_factory=list)
    outcome: Outcome | None = None
    streams: list[Stream] = field(default_factory=list)
    tasks: list["asyncio.Task[None]"] = field(default_factory=list)

    def write(self, batch: PutBatch) -> PutResult:
        body = batch.columns.bodies.tobytes()
        if body == b"forgotten" and batch.producer:
            raise SequenceTooOld(1, 2)
        if count := self.known.get(body, 0):
            run = Run(batch.sequence, batch.sequence + count, batch.topic, 0, 70)
            if count == batch.columns.count:
                return PutResult(OK, duplicates=(run,))
            return PutResult(MOVED, "moved", duplicates=(run,), moved_to=self.to)
        if self.sealed and batch.queue_id not in self.came_back.values():
            return PutResult(MOVED, "moved", moved_to=self.to)
        self.stored.append(body)
        self.stored_at.append(batch.queue_id)
        return PutResult(OK, queue_offset=QueueOffset(len(self.stored) - 1), count=1)

    def settle(self, end: PhyOffset, no_wait: bool = False) -> Outcome | None:
        return self.outcome

    def pump_soon(self) -> None:
        """There are no readers."""

    def refused_put(self) -> PutResult | None:
        return None if self.is_master else PutResult(UNAVAILABLE, "another node leads")

    def check_master(self) -> None:
        if not self.is_master:
            raise duolog.NotMaster("another node leads")

    def deliver(self, group: str) -> Deliveries:
        assert group in (TO.group, LATER.group)
        if group == TO.group and not self.has_target:
            raise duolog.Unavailable("group b has no master now")
        self.streams.append(Stream())
        return cast(Deliveries, self.streams[-1])

    def has_master(self, group: str) -> bool:
        return self.has_target or group != TO.group

    def moves(self) -> Moves:
        made = Moves(gone=self.gone)
        for (topic, queue_id), at in self.came_back.items():
            made.guests.setdefault(topic, {})[at] = Guest(Place("a", queue_id), self.to, "m", 0)
        if not self.unsealed:
            made.seals["T"] = {queue: Seal(3, self.to, "m") for queue in range(2)}
        return made

    def start(self, work: Coroutine[object, None, None]) -> "asyncio.Task[None]":
        self.tasks.append(asyncio.get_running_loop().create_task(work))
        return self.tasks[-1]

    @property
    def stream(self) -> Stream:
        return self.streams[-1]


@pytest.fixture
def node() -> Node:
    return Node()


@pytest.fixture
async def passing(node: Node) -> AsyncIterator[Passing]:
    log, admission = cast(Log, node), cast(Admission, node)
    made = Passing(log, admission, node, Here(lambda: ("a", 7), node.moves), node.start)
    yield made
    assert made.validate() == ""
    made.role_changed()
    assert made.status() == {}
    await asyncio.gather(*node.tasks, return_exceptions=True)


def batch(body: bytes, queue_id: int = 0, **how: Any) -> PutBatch:
    return PutBatch("T", queue_id, Columns.of([body]), 5, **how)


def put(passing: Passing, body: bytes, queue_id: int = 0, **how: Any) -> tuple[PassedOn, Outcome]:
    result, waiting = passing.pass_on(batch(body, queue_id), **how)
    assert isinstance(result, PassedOn)
    assert waiting is not None
    return result, waiting


async def sent(node: Node, *bodies: bytes, streams: int = 1) -> Stream:
    """Wait until the newest stream has these, and nothing else."""
    await until(lambda: len(node.streams) == streams and len(node.stream.came) >= len(bodies))
    assert node.stream.bodies == list(bodies)
    return node.stream


async def test_batches_follow_each_other_without_waiting_for_answers(
    node: Node, passing: Passing
) -> None:
    passing.release("T", 0, TO)
    puts = [put(passing, b"%d" % k) for k in range(3)]
    stream = await sent(node, b"0", b"1", b"2")
    first = stream.came[0]
    assert (first.source, first.epoch, first.queue_id, first.again) == ("a", 7, 4, False)
    for k, delivery in enumerate(stream.came):
        stream.answer(delivery, queue_offset=70 + k, physical_offset=9, store_time=8)
    assert [await waiting for _, waiting in puts] == [OK] * 3
    assert [result.queue_offset for result, _ in puts] == [70, 71, 72]
    assert {result.store_host.port for result, _ in puts if result.store_host} == {9}


async def test_a_batch_arrives_as_it_was_sent(node: Node, passing: Passing) -> None:
    passing.release("T", 0, TO)
    columns = Columns.of([b"a", b"bc"], [b"A\x01b", b""])
    how = {"producer": b"0123456789", "sequence": 3, "expect_offset": QueueOffset(70)}
    passing.pass_on(PutBatch("T", 0, columns, 5, flag=1, placed=True, **how))  # type: ignore[arg-type]
    stream = await until_came(node)
    found = batch_of(stream.came[0])
    assert (found.topic, found.queue_id, found.born_time, found.flag) == ("T", 4, 5, 1)
    assert (found.producer, found.sequence, found.expect_offset) == (b"0123456789", 3, 70)
    assert (found.placed, found.accepted, found.repeat_of) == (True, True, None)
    assert found.columns.bodies.tobytes() == b"abc"
    assert found.columns.property_offsets.tolist() == [0, 3, 3]


async def until_came(node: Node) -> Stream:
    await until(lambda: node.streams and node.stream.came)
    return node.stream


async def test_what_is_held_is_passed_on_before_what_comes_later(
    node: Node, passing: Passing
) -> None:
    node.sealed = False
    passing.hold("T", 0)
    assert passing.is_held("T", 0)
    put(passing, b"0")
    put(passing, b"1")
    assert (node.streams, node.stored) == ([], [])
    node.sealed = True
    passing.release("T", 0, TO)
    assert not passing.is_held("T", 0)
    put(passing, b"2")
    await sent(node, b"0", b"1", b"2")


async def test_what_is_held_is_stored_here_where_the_queue_stays(
    node: Node, passing: Passing
) -> None:
    node.sealed = False
    passing.hold("T", 0)
    puts = [put(passing, b"%d" % k) for k in range(3)]
    passing.release("T", 0, None)
    assert node.stored == [b"0", b"1", b"2"]
    assert [await waiting for _, waiting in puts] == [OK] * 3
    assert [(result.queue_offset, result.store_host) for result, _ in puts] == [
        (k, None) for k in range(3)
    ]
    assert passing.queues == {}


async def test_a_sealed_queue_that_is_not_released_is_held(node: Node, passing: Passing) -> None:
    put(passing, b"0")
    assert passing.is_held("T", 0)
    passing.release("T", 0, TO)
    await sent(node, b"0")


async def test_what_is_stored_here_is_not_passed_on(node: Node, passing: Passing) -> None:
    node.known = {b"all": 1, b"part": 1}
    passing.release("T", 0, TO)
    whole, waiting = passing.pass_on(batch(b"all"))
    assert (waiting, whole.status, whole.duplicates[0].queue_offset) == (None, OK, 70)
    columns = Columns.of([b"pa", b"rt"])
    result, waiting = passing.pass_on(PutBatch("T", 0, columns, 5, sequence=8))
    stream = await sent(node, b"rt")
    assert stream.came[0].sequence == 9
    stream.answer(stream.came[0], queue_offset=71)
    assert waiting is not None
    assert await waiting is OK
    assert [run.queue_offset for run in result.duplicates] == [70]
    assert (result.queue_offset, result.count) == (71, 1)
    old = batch(b"forgotten", producer=b"0123456789")
    lost, waiting = passing.pass_on(old, again=True)
    assert (waiting, lost.status) == (None, UNKNOWN)
    passing.pass_on(old)  # it surely is not stored, as it comes for the first time
    await until(lambda: stream.bodies[-1] == b"forgotten")


async def test_a_broken_stream_is_continued_in_order(node: Node, passing: Passing) -> None:
    passing.release("T", 0, TO)
    puts = [put(passing, b"%d" % k) for k in range(4)]
    stream = await sent(node, b"0", b"1", b"2", b"3")
    stream.answer(stream.came[0])
    assert await puts[0][1] is OK
    stream.end()
    again = await sent(node, b"1", b"2", b"3", streams=2)
    assert stream.is_over
    assert [delivery.again for delivery in again.came] == [True] * 3
    put(passing, b"4")
    await sent(node, b"1", b"2", b"3", b"4", streams=2)
    assert not again.came[3].again
    for delivery in again.came:
        again.answer(delivery)
    assert [await waiting for _, waiting in puts] == [OK] * 4


async def test_what_was_never_sent_is_not_marked(node: Node, passing: Passing) -> None:
    node.has_target = False
    passing.release("T", 0, TO)
    put(passing, b"0")
    put(passing, b"1", again=True)
    node.has_target = True
    stream = await sent(node, b"0", b"1")
    assert [(one.again, one.repeat) for one in stream.came] == [(False, False), (False, True)]


async def test_nothing_overtakes_what_the_target_has_not_stored(
    node: Node, passing: Passing
) -> None:
    passing.release("T", 0, TO)
    passing.release("T", 1, Place("b", 5))
    for k in range(3):
        put(passing, b"%d" % k)
    stream = await sent(node, b"0", b"1", b"2")
    stream.answer(stream.came[0], status="SERVICE_NOT_AVAILABLE", reason="wait")
    await until(lambda: stream._answers.empty())
    put(passing, b"3")
    node.to = Place("b", 5)
    put(passing, b"other", 1)
    await sent(node, b"0", b"1", b"2", b"other")
    for delivery in stream.came[1:3]:
        stream.answer(delivery, status="SERVICE_NOT_AVAILABLE", reason="behind another")
    await until(lambda: len(stream.came) == 5)
    stream.answer(stream.came[4], status="SERVICE_NOT_AVAILABLE", reason="still")
    await until(lambda: len(stream.came) == 6)
    node.to = TO
    put(passing, b"4")
    stream.answer(stream.came[5])
    await until(lambda: len(stream.came) == 10)
    assert stream.bodies[4:] == [b"0", b"0", b"1", b"2", b"3", b"4"]
    assert [one.resume for one in stream.came[4:]] == [True, True, False, False, False, False]
    assert not any(one.again for one in stream.came)


async def test_a_queue_that_nobody_waits_for_any_more_is_taken_up_again(
    node: Node, passing: Passing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PUT_SECONDS", 0.05)
    passing.release("T", 0, TO)
    _, waiting = put(passing, b"0")
    stream = await sent(node, b"0")
    assert await waiting is UNKNOWN
    stream.answer(stream.came[0], status="SERVICE_NOT_AVAILABLE", reason="wait")
    await until(lambda: stream._answers.empty())
    monkeypatch.setattr(module, "PUT_SECONDS", 60)
    put(passing, b"1")
    await sent(node, b"0", b"1")
    assert stream.came[1].resume


def test_a_batch_is_kept_apart_from_what_it_was_read_from() -> None:
    room = bytearray(b"abc")
    made = batch(b"abc")
    made.columns.bodies = np.frombuffer(room, np.uint8)
    ours = kept(made)
    room[:] = b"xyz"
    assert ours.columns.bodies.tobytes() == b"abc"


async def test_a_put_waits_no_longer_than_its_client(
    node: Node, passing: Passing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PUT_SECONDS", 0.05)
    held, waiting = put(passing, b"0")
    assert await waiting is UNAVAILABLE
    assert held.reason == "not stored within 0.05 s: moved"
    passing.release("T", 0, TO)
    unknown, waiting = put(passing, b"1")
    stream = await sent(node, b"1")
    assert await waiting is UNKNOWN
    assert unknown.queue_offset == -1
    stream.answer(stream.came[0], queue_offset=70)  # late
    monkeypatch.setattr(module, "PUT_SECONDS", 60)
    _, waiting = put(passing, b"2")
    await sent(node, b"1", b"2")
    stream.end()
    await sent(node, b"2", streams=2)
    assert not waiting.done()


async def test_so_many_puts_wait_and_no_more(
    node: Node, passing: Passing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PUTS_MAX", 2)
    puts = [put(passing, b"%d" % k) for k in range(2)]
    refused, waiting = passing.pass_on(batch(b"2"))
    assert (waiting, refused.status) == (None, UNAVAILABLE)
    assert refused.reason == "2 puts to queues that move wait already: try again"
    passing.release("T", 0, TO)
    stream = await sent(node, b"0", b"1")
    stream.answer(stream.came[0])
    await puts[0][1]
    monkeypatch.setattr(module, "BYTES_MAX", 20)
    assert passing.pass_on(batch(b"x" * 30))[1] is None
    put(passing, b"3")


async def test_a_mastership_that_ends_answers_all_that_waits(node: Node, passing: Passing) -> None:
    passing.release("T", 0, TO)
    put(passing, b"0")
    await sent(node, b"0")
    _, flying = put(passing, b"1")
    await sent(node, b"0", b"1")
    passing.hold("T", 0)
    _, held = put(passing, b"2")
    passing.role_changed()
    assert (await flying, await held) == (UNKNOWN, UNAVAILABLE)
    assert not passing.queues
    await asyncio.gather(*node.tasks, return_exceptions=True)
    assert node.stream.is_over
    put(passing, b"3")
    assert passing.is_held("T", 0), "nothing is released in the next one"


async def test_a_node_that_does_not_lead_passes_on_nothing(node: Node, passing: Passing) -> None:
    passing.release("T", 0, TO)
    put(passing, b"0")
    stream = await sent(node, b"0")
    put(passing, b"1")
    node.is_master = False
    await until(lambda: stream.is_over)
    assert stream.bodies == [b"0"]
    node.is_master = True
    await sent(node, b"0", b"1", streams=2)


async def test_the_node_itself_has_batches_delivered_in_order(node: Node, passing: Passing) -> None:
    calls = [asyncio.ensure_future(passing.deliver(batch(b"%d" % k), TO)) for k in range(3)]
    stream = await sent(node, b"0", b"1", b"2")
    assert [one.again for one in stream.came] == [True] * 3, "an earlier master may have sent them"
    stream.answer(stream.came[0], status="PUT_OK", queue_offset=7)
    stream.answer(stream.came[1], status="MESSAGE_ILLEGAL", reason="no")
    first, second = await calls[0], await calls[1]
    assert (first.status, first.queue_offset) == (OK, 7)
    assert (second.status, second.reason) == (PutMessageStatus.MESSAGE_ILLEGAL, "no")
    passing.role_changed()
    assert (await calls[2]).status is UNKNOWN


async def test_a_put_that_is_stored_here_waits_for_this_nodes_slaves(
    node: Node, passing: Passing
) -> None:
    node.sealed = False
    node.outcome = asyncio.get_running_loop().create_future()
    passing.hold("T", 0)
    result, waiting = put(passing, b"0")
    passing.release("T", 0, None)
    assert not waiting.done()
    node.outcome.set_result(PutMessageStatus.FLUSH_SLAVE_TIMEOUT)
    assert await waiting is PutMessageStatus.FLUSH_SLAVE_TIMEOUT
    assert result.queue_offset == 0


async def test_what_comes_first_goes_to_the_newest_place_here(node: Node, passing: Passing) -> None:
    """The queue moved away and came back: its new place is here."""
    passing.release("T", 0, TO)
    node.came_back["T", 0] = 9
    result, waiting = passing.pass_on(batch(b"x"))
    assert waiting is None
    assert isinstance(result, PassedOn)
    assert (node.stored_at, result.queue_offset, result.store_host) == ([9], 0, None)
    assert node.streams == []


async def test_a_repeat_goes_through_all_places(node: Node, passing: Passing) -> None:
    """Each of them may have stored the first attempt."""
    passing.release("T", 0, TO)
    node.came_back["T", 0] = 9
    put(passing, b"x", again=True)
    await sent(node, b"x")
    assert node.stored_at == []


async def test_what_waits_for_others_does_not_begin_as_all_end(
    node: Node, passing: Passing
) -> None:
    passing.release("T", 0, TO)
    put(passing, b"0")
    await sent(node, b"0")
    node.came_back["T", 0] = 9
    _, waiting = put(passing, b"1")
    passing.role_changed()
    assert await waiting is UNAVAILABLE
    assert node.stored == []


async def test_a_newer_place_waits_for_what_is_on_its_way_to_an_older_one(
    node: Node, passing: Passing
) -> None:
    passing.release("T", 0, TO)
    put(passing, b"0")
    stream = await sent(node, b"0")
    node.came_back["T", 0] = 9
    later = [put(passing, b"%d" % k) for k in (1, 2)]
    assert node.stored == []
    stream.answer(stream.came[0])
    assert [await waiting for _, waiting in later] == [OK, OK]
    assert node.stored == [b"1", b"2"]
    passing.pass_on(batch(b"3"))
    assert node.stored == [b"1", b"2", b"3"]


async def test_a_newer_place_that_is_held_has_what_comes_wait(node: Node, passing: Passing) -> None:
    passing.release("T", 0, TO)
    node.came_back["T", 0] = 9
    passing.hold("T", 9)
    _, waiting = put(passing, b"x")
    assert node.stored == []
    passing.release("T", 9, None)
    assert await waiting is OK
    assert node.stored_at == [9]


async def test_what_an_older_place_has_of_a_batch_is_told(node: Node, passing: Passing) -> None:
    passing.release("T", 0, TO)
    node.came_back["T", 0] = 9
    node.known[b"ab"] = 1
    columns = Columns.of([b"a", b"b"])
    result, waiting = passing.pass_on(PutBatch("T", 0, columns, 5, producer=b"0123456789"))
    assert waiting is None or await waiting is OK
    assert [run.queue_offset for run in result.duplicates] == [70]
    assert node.stored == [b"b"]


async def test_a_line_that_is_closed_tries_nothing_again(node: Node, passing: Passing) -> None:
    """Also where a put that was sent to that queue has no answer."""
    passing.release("T", 0, TO)
    put(passing, b"0")
    put(passing, b"1")
    stream = await sent(node, b"0", b"1")
    stream.answer(stream.came[0], status="SERVICE_NOT_AVAILABLE")
    line = passing._lines[TO.group]
    await until(lambda: line._back)
    ((target, back),) = line._back.items()
    tried: list[object] = []
    line._later = lambda *what: tried.append(what)  # type: ignore[method-assign]
    line._try(target, back, BackOff())
    assert tried, "one more is on its way"
    passing.role_changed()
    line._try(target, back, BackOff())
    assert len(tried) == 1


def test_what_was_passed_on_in_the_last_minute_is_none_only_if_none_was() -> None:
    passed = module._LastMinute()
    assert passed.at(1000.0) == 0
    passed.add(1000.0, 8)
    assert (passed.at(1030.0), passed.at(1059.9)) == (8, 8)
    assert (passed.at(1060.0), passed.at(1105.0), passed.at(1119.9)) == (8, 2, 1)
    assert passed.at(1120.0) == 0
    passed.add(1500.0, 3)
    passed.add(1570.0, 1)
    assert (passed.at(1590.0), passed.at(9999.0)) == (3, 0)


@pytest.mark.parametrize("repeat", [False, True])
async def test_a_group_that_has_left_is_passed_over(
    node: Node, passing: Passing, repeat: bool
) -> None:
    node.has_target, node.gone = False, {TO.group}
    passing.release("T", 0, LATER)
    _, waiting = put(passing, b"0", again=repeat)
    stream = await sent(node, b"0")
    came = stream.came[0]
    assert (came.queue_id, came.from_queue, came.repeat) == (LATER.queue_id, 0, repeat)
    assert (came.past.name.group, came.past.name.queue_id, came.past.first) == ("a", 0, 3)
    stream.answer(came)
    assert await waiting is OK


async def test_only_what_comes_first_passes_over_a_group_without_a_master(
    node: Node, passing: Passing
) -> None:
    passing.release("T", 0, LATER)
    put(passing, b"0")
    old = await sent(node, b"0")
    node.has_target = False
    old.end()
    await until(lambda: old.is_over)
    put(passing, b"1")
    put(passing, b"2", again=True, queue_id=1)
    assert passing.status()["passing_on"] == 3
    assert len(node.streams) == 1  # nothing overtakes what may be on its way
    passing.release("T", 1, LATER)
    put(passing, b"3", queue_id=1)
    assert len(node.streams) == 1
    node.has_target = True
    await sent(node, b"0", b"2", streams=2)


async def test_a_later_place_that_continues_nothing_is_forgotten(
    node: Node, passing: Passing
) -> None:
    lost: list[object] = []
    passing.lost.append(lost.append)
    node.has_target = False
    passing.release("T", 0, LATER)
    put(passing, b"0")
    stream = await sent(node, b"0")
    stream.answer(stream.came[0], status=UNAVAILABLE.value, no_place=True)
    await until(lambda: passing.queues["T", 0].later is None)
    assert lost == []


async def test_the_nodes_own_go_past_a_group_that_has_left(node: Node, passing: Passing) -> None:
    node.gone = {TO.group}
    passing.release("T", 0, LATER)
    delivering = asyncio.ensure_future(passing.deliver(batch(b"0"), TO))
    await until_came(node)
    assert (node.stream.came[0].queue_id, node.stream.came[0].again) == (LATER.queue_id, True)
    node.stream.answer(node.stream.came[0])
    assert (await delivering).status is OK


async def test_the_nodes_own_of_a_topic_that_is_gone_go_where_they_were_to(
    node: Node, passing: Passing
) -> None:
    passing.release("T", 0, LATER)
    node.gone, node.unsealed = {TO.group}, True
    delivering = asyncio.ensure_future(passing.deliver(batch(b"0"), TO))
    await until_came(node)
    assert node.stream.came[0].queue_id == TO.queue_id
    node.stream.answer(node.stream.came[0])
    assert (await delivering).status is OK


async def test_the_nodes_own_come_back_past_a_group_that_has_left(
    node: Node, passing: Passing
) -> None:
    node.gone, node.came_back = {TO.group}, {("T", 0): 9}
    passing.release("T", 0, TO)
    assert (await passing.deliver(batch(b"0"), TO)).status is OK
    assert (node.stored, node.stored_at, node.streams) == ([b"0"], [9], [])
