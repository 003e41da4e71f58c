"""What another group passes on: stored once, in order, at the place that continues its queue."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any, ClassVar

import duolog
import pytest

from duolog_server.node.broker import Broker
from duolog_server.node.moving.deliveries import delivery_of
from duolog_server.node.wire import moves_pb2 as wire
from duolog_server.store.columns import Columns
from duolog_server.store.messagestore import PutBatch
from duolog_server.store.moves import Moves, Place
from duolog_server.store.offsets import QueueOffset
from duolog_server.store.status import PutMessageStatus
from tests.known import known
from tests.node.moving.seams import begin, reserve
from tests.node.replicas import broker_of
from tests.node.sealing import sealed
from tests.nodefixtures import StartNode
from tests.support import read_all
from tests.until import until

GUEST, FIRST = 2, 70
PRODUCER = b"0123456789"
AT, CAME_FROM = Place("broker-a", GUEST), Place("a", 3)


@pytest.fixture
async def broker(start_node: StartNode) -> AsyncIterator[Broker]:
    """A node with a place that continues a queue of group `a`."""
    made = broker_of(await start_node(max_message_size=100))
    metadata = made.metadata
    await metadata.put_topic(metadata.new_topic("T", 2, 6))
    assert await reserve(made, CAME_FROM) == AT
    await begin(made, AT, FIRST)
    yield made
    while Stream.opened:
        task = Stream.opened.pop()
        task.cancel()
        await asyncio.wait([task])


class Stream:
    """A stream of a source."""

    opened: ClassVar[list["asyncio.Task[None]"]] = []

    def __init__(self, broker: Broker, epoch: int = 1) -> None:
        self.answers: list[wire.Delivered] = []
        self._epoch = epoch
        self._queue: asyncio.Queue[wire.Delivery | None] = asyncio.Queue()
        self.task = asyncio.ensure_future(broker.arrivals.serve(self._deliveries(), self))
        self.opened.append(self.task)

    async def _deliveries(self) -> AsyncIterator[wire.Delivery]:
        while (delivery := await self._queue.get()) is not None:
            yield delivery

    async def write(self, message: wire.Delivered, /) -> None:
        self.answers.append(message)

    def send(self, batch: PutBatch, at: Place = AT, **how: Any) -> None:
        delivery = delivery_of(batch, at)
        delivery.id, delivery.source, delivery.epoch = 1, "a", self._epoch
        for name, value in how.items():
            setattr(delivery, name, value)
        self._queue.put_nowait(delivery)

    async def answered(self, count: int = 1) -> list[wire.Delivered]:
        """The next answers; this stream may not end before."""
        await until(lambda: self.task.done() or len(self.answers) >= count)
        if self.task.done():
            await self.task
        found, self.answers = self.answers[:count], self.answers[count:]
        return found

    async def stored(self, batch: PutBatch, **how: Any) -> wire.Delivered:
        self.send(batch, **how)
        (answer,) = await self.answered()
        assert answer.status == "PUT_OK", answer.reason
        return answer

    async def end(self) -> None:
        self._queue.put_nowait(None)
        await self.task


def batch(*bodies: bytes, key: str = "", **how: Any) -> PutBatch:
    texts = [f"UNIQ_KEY\x01{key}{k}".encode() if key else b"" for k in range(len(bodies))]
    return PutBatch("T", 3, Columns.of(bodies, texts), how.pop("born_time", 5), **how)


def bodies(broker: Broker) -> list[bytes]:
    return read_all(broker.store, "T", GUEST)


async def test_a_batch_is_stored_whatever_this_nodes_limits_are(broker: Broker) -> None:
    stream = Stream(broker)
    large = b"x" * 200
    answer = await stream.stored(batch(b"a", large, key="k", placed=True))
    assert (answer.queue_offset, answer.count, list(answer.known)) == (FIRST, 2, [])
    record = known(broker.store.record_at("T", GUEST, QueueOffset(FIRST + 1)))
    assert record.body == large
    assert answer.physical_offset < record.physical_offset
    assert len(answer.places) == 16
    assert answer.store_host == broker.store.store_host.endpoint
    assert broker.log.counters.messages_in == 2
    await stream.end()


async def test_a_repeat_of_a_producers_is_answered_with_its_first_result(broker: Broker) -> None:
    one = batch(b"a", b"b", producer=PRODUCER, sequence=4)
    stream = Stream(broker)
    await stream.stored(one)
    again = Stream(broker)
    answer = await again.stored(one, again=True)
    assert (answer.count, answer.queue_offset) == (0, -1)
    assert [(run.count, run.queue_offset) for run in answer.known] == [(2, FIRST)]
    longer = batch(b"a", b"b", b"c", producer=PRODUCER, sequence=4)
    answer = await again.stored(longer, again=True)
    assert (answer.count, answer.queue_offset) == (1, FIRST + 2)
    assert bodies(broker) == [b"a", b"b", b"c"]


@pytest.mark.parametrize("doubtful", [{"again": True}, {"repeat": True}])
async def test_what_the_table_has_forgotten_is_found_by_its_keys(
    broker: Broker, doubtful: dict[str, bool]
) -> None:
    stream = Stream(broker)
    one = batch(b"a", b"b", producer=PRODUCER, sequence=4)
    await stream.stored(one)
    broker.store.puts._idempotence._windows.clear()
    broker.store.puts._idempotence.begins_at(1 << 40)
    again = Stream(broker)
    answer = await again.stored(one, **doubtful)
    assert [(run.count, run.queue_offset) for run in answer.known] == [(2, FIRST)]
    longer = batch(b"a", b"b", b"c", producer=PRODUCER, sequence=4)
    answer = await again.stored(longer, **doubtful)
    assert [(run.count, run.queue_offset) for run in answer.known] == [(2, FIRST)]
    assert (answer.count, answer.queue_offset) == (1, FIRST + 2)
    new = batch(b"d", producer=PRODUCER, sequence=90)
    assert (await again.stored(new, **doubtful)).queue_offset == FIRST + 3
    assert bodies(broker) == [b"a", b"b", b"c", b"d"]
    record = known(broker.store.record_at("T", GUEST, QueueOffset(FIRST + 3)))
    assert record.properties["UNIQ_KEY"] == (PRODUCER + (90).to_bytes(6, "big")).hex().upper()


async def test_a_batch_that_is_older_than_the_window_is_stored(broker: Broker) -> None:
    """It waited for its move; its producer sent many others elsewhere meanwhile."""
    stream = Stream(broker)
    await stream.stored(batch(b"a", producer=PRODUCER, sequence=1000))
    windows = broker.store.puts._idempotence._windows
    windows[PRODUCER, "T"].forgotten = 900
    await stream.stored(batch(b"b", b"c", producer=PRODUCER, sequence=4))
    assert bodies(broker) == [b"a", b"b", b"c"]


async def test_a_request_that_is_repeated_is_stored_once_and_a_message_sent_again_twice(
    broker: Broker,
) -> None:
    """RocketMQ's programs send an object again under its unique key, on purpose."""
    stream = Stream(broker)
    one = batch(b"a", b"b", key="k", placed=True)
    first = await stream.stored(one)
    later = Stream(broker)
    repeated = await later.stored(one, again=True)
    assert (repeated.queue_offset, repeated.places) == (FIRST, first.places)
    assert (repeated.count, repeated.physical_offset) == (0, first.physical_offset)
    on_purpose = replace(one, born_time=6)
    assert (await later.stored(on_purpose, again=True)).queue_offset == FIRST + 2
    assert (await later.stored(replace(one, born_time=7), repeat=True)).queue_offset == FIRST
    assert bodies(broker) == [b"a", b"b"] * 2


async def test_a_place_stores_nothing_of_another_queue_than_it_continues(broker: Broker) -> None:
    """Its id was given to another move, as this group was restored, or its topic made again."""
    stream = Stream(broker)
    stream.send(batch(b"a"), from_queue=4)
    (answer,) = await stream.answered()
    why = f"queue T/{GUEST} continues a/3, not a/4"
    assert (answer.status, answer.reason) == ("SERVICE_NOT_AVAILABLE", why)
    assert not bodies(broker)
    await stream.end()


async def test_a_queue_is_blocked_behind_what_was_not_stored(broker: Broker) -> None:
    other = await reserve(broker, Place("a", 4), "n")
    stream = Stream(broker)
    stream.send(batch(b"a"), other, from_queue=4)
    stream.send(batch(b"x"))
    found = [(one.status, one.reason) for one in await stream.answered(2)]
    why = f"queue T/{other.queue_id} continues none that moved here"
    assert found == [("SERVICE_NOT_AVAILABLE", why), ("PUT_OK", "")]
    await begin(broker, other, FIRST, "n")
    stream.send(batch(b"b"), other, from_queue=4)
    (found_b,) = await stream.answered()
    assert found_b.reason == "one before it in its queue was not stored"
    stream.send(batch(b"a"), other, from_queue=4, resume=True)
    stream.send(batch(b"b"), other, from_queue=4)
    assert [one.queue_offset for one in await stream.answered(2)] == [FIRST, FIRST + 1]


@pytest.mark.parametrize("epoch", [1, 2])
async def test_a_later_stream_ends_the_one_before(broker: Broker, epoch: int) -> None:
    first = Stream(broker)
    await first.stored(batch(b"a"))
    second = Stream(broker, epoch)
    await second.stored(batch(b"b"))
    first.send(batch(b"late"))
    with pytest.raises(duolog.Unavailable, match="a later stream of the group has begun"):
        await first.answered()
    if epoch == 2:
        third = Stream(broker, 1)
        third.send(batch(b"late"))
        with pytest.raises(duolog.Unavailable, match="a later master of group a passes on"):
            await third.answered()
    assert bodies(broker) == [b"a", b"b"]


async def test_an_unknown_outcome_ends_the_stream(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next master knows it."""
    waiting: asyncio.Future[PutMessageStatus] = asyncio.get_running_loop().create_future()
    monkeypatch.setattr(broker.log, "settle", lambda *_: waiting)
    stream = Stream(broker)
    stream.send(batch(b"a"))
    await until(lambda: broker.log.counters.messages_in)
    waiting.set_result(PutMessageStatus.UNKNOWN_ERROR)
    with pytest.raises(duolog.Unavailable, match="it is not known"):
        await stream.answered()


async def test_a_change_of_roles_ends_the_stream_at_once(broker: Broker) -> None:
    stream = Stream(broker)
    await stream.stored(batch(b"a"))
    broker.demote()
    with pytest.raises(duolog.Unavailable):
        await stream.task


async def test_a_node_that_lost_its_role_ends_the_stream(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = Stream(broker)
    await stream.stored(batch(b"a"))
    monkeypatch.setattr(broker.replication, "not_master", lambda: "another node leads")
    stream.send(batch(b"b"))
    with pytest.raises(duolog.NotMaster):
        await stream.answered()


async def test_a_repeat_waits_for_what_the_last_master_stored(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker.replication, "may_be_behind", lambda: True)
    stream = Stream(broker)
    stream.send(batch(b"a", key="k"), again=True)
    (answer,) = await stream.answered()
    assert answer.status == "SERVICE_NOT_AVAILABLE"
    monkeypatch.undo()
    await stream.stored(batch(b"a", key="k"), again=True, resume=True)


async def test_a_place_that_is_sealed_passes_on_itself(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = Stream(broker)
    await stream.stored(batch(b"a"))
    back = await reserve(broker, CAME_FROM, "n")
    await sealed(broker.metadata, "T", GUEST, Place("broker-b", back.queue_id), "n")
    stream.send(batch(b"b", key="k"))
    await until(lambda: broker.passing.is_held("T", GUEST))
    broker.store.puts.moves = Moves()
    broker.passing.release("T", GUEST, None)
    (answer,) = await stream.answered()
    assert (answer.status, answer.queue_offset) == ("PUT_OK", FIRST + 1)


async def test_an_answer_does_not_wait_for_those_before_it(broker: Broker) -> None:
    """What a sealed place passes on may come back through the same stream."""
    stream = Stream(broker)
    await stream.stored(batch(b"a"))
    other = await reserve(broker, Place("a", 2), "o")
    await begin(broker, other, FIRST, "o")
    await sealed(broker.metadata, "T", GUEST, Place("b", 9), "n")
    stream.send(batch(b"b"), id=7)
    stream.send(batch(b"c"), Place("broker-b", other.queue_id), id=8, from_queue=2)
    (answer,) = await stream.answered()
    assert (answer.id, answer.status) == (8, "PUT_OK")


async def test_a_delivery_that_fits_no_batch_is_refused(broker: Broker) -> None:
    stream = Stream(broker)
    stream.send(batch(b"a"), body_offsets=b"123")
    stream.send(batch(b"a"), fields=b"12345678")
    assert {one.status for one in await stream.answered(2)} == {"MESSAGE_ILLEGAL"}
