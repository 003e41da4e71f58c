"""Retry topics: whose copies are in one, and how often."""

from dataclasses import replace
from itertools import accumulate
from types import SimpleNamespace
from typing import Any, cast

import duolog
import numpy as np
import pytest

from duolog_server.node.filters.tagfilter import EVERYTHING
from duolog_server.node.pop import popservice
from duolog_server.node.pop.popservice import PopRequest
from duolog_server.node.pop.retrytopics import (
    FIRST_LEVEL,
    RECONSUME_TIMES_MAX,
    RetryTopics,
    copies_from,
)
from duolog_server.serve.server import Node
from duolog_server.store.births import Births
from duolog_server.store.grouptopics import dead_letter_topic, group_retry_topic, retry_topic
from duolog_server.store.kernels import decode
from duolog_server.store.kernels.jit import I64
from duolog_server.store.messagestore import PutBatch, PutResult
from duolog_server.store.metadata import PRIORITY
from duolog_server.store.offsets import PhyOffset, QueueOffset
from duolog_server.store.reader import GetMessageStatus, GetResult
from duolog_server.store.record import PROPERTIES_BYTES_MAX, Host, Record, decode_properties
from duolog_server.store.status import PutMessageStatus
from tests.node.replicas import broker_of
from tests.until import until


def _read(origins: list[str]) -> GetResult:
    """Copies of these topics; "" does not say of which."""
    texts = [f"RETRY_TOPIC\x01{origin}\x02".encode() if origin else b"" for origin in origins]
    table: I64 = np.zeros((decode.OUT_COLUMNS, len(texts)), np.int64)
    table[decode.OUT_PROPERTIES_END] = list(accumulate(map(len, texts)))
    end = QueueOffset(len(texts))
    first = QueueOffset(0)
    return GetResult(GetMessageStatus.FOUND, end, first, end, b"", b"".join(texts), table)


@pytest.mark.parametrize(
    ("group", "topic", "own"),
    [
        ("a_b", "c", ["c", "", "%RETRY%a_b_c", "before"]),
        ("a", "b_c", ["b_c", "", "%RETRY%a_b_c", "before"]),
    ],
)
def test_copies_of_a_group_and_topic_are_told_from_those_of_another(
    group: str, topic: str, own: list[str]
) -> None:
    read = _read(["c", "b_c", "", "%RETRY%a_b_c", "before"])
    found = copies_from(topic, retry_topic(group, topic), read)
    assert found.properties == _read(own).properties


def test_dead_letters_that_failed_again_are_their_own_groups() -> None:
    read = _read(["T", "%DLQ%h"])
    found = copies_from("%DLQ%h", retry_topic("g", "%DLQ%h"), read)
    assert found.count == 2


@pytest.mark.parametrize("by", ["its lease ends", "its consumer gives it up"])
async def test_a_copy_that_no_slave_confirmed_is_stored_once(
    node: Node,
    client: duolog.Client,
    producer: duolog.Producer,
    monkeypatch: pytest.MonkeyPatch,
    by: str,
) -> None:
    """It lies before the progress of its group in the log: both are lost, or none."""
    broker = broker_of(node)
    await producer.send("T", b"x", queue_id=0)
    await until(lambda: broker.store.queue_range("T", 0) == (0, 1))
    put = broker.log.put_and_wait

    async def unconfirmed(batch: PutBatch) -> PutResult:
        return replace(await put(batch), status=PutMessageStatus.FLUSH_SLAVE_TIMEOUT)

    monkeypatch.setattr(broker.log, "put_and_wait", unconfirmed)
    monkeypatch.setattr(popservice, "AGAIN_MS", 0)
    ends = by == "its lease ends"
    request = PopRequest("g", "T", 0, 1, 1 if ends else 60_000, "c", EVERYTHING)
    (popped,) = broker.pop.pop(request, broker.times.mono_ms())
    copies = retry_topic("g", "T") if ends else dead_letter_topic("g")
    if not ends:
        with pytest.raises(duolog.ResultUnknown):
            await broker.pop.to_dead_letters("g", popped.handle)
        assert await broker.pop.to_dead_letters("g", popped.handle), "a repeat"
    stored = broker.store.next_offset
    await until(lambda: broker.pop.status()["messages_leased"] == 0 or stored(copies, 0) > 1)
    assert (stored(copies, 0), stored(retry_topic("g", "T"), 0)) == (1, int(ends))


class Log:
    """Takes what is stored again, with a status."""

    def __init__(self) -> None:
        self.status = PutMessageStatus.PUT_OK
        self.batches: list[PutBatch] = []

    async def put_and_wait(self, batch: PutBatch) -> PutResult:
        self.batches.append(batch)
        return PutResult(self.status, "as the test says")


class World:
    """Retry topics of a group g, without a node."""

    def __init__(self) -> None:
        self.log = Log()
        self.row: dict[str, object] = {}
        self.made: list[str] = []
        self.queues: list[int] = []  # of those that were made
        self.topics: dict[str, object] = {}
        self.levels: list[int] = []
        self.dead: list[object] = []
        births = Births()
        core = SimpleNamespace(
            log=self.log,
            metadata=SimpleNamespace(
                births=births,
                tables=SimpleNamespace(groups={"g": self.row}),
                make_internal=self._make,
                topics=self.topics,
                check_not_deleting=lambda group: None,
            ),
            traffic=SimpleNamespace(dead=SimpleNamespace(add=lambda *what: self.dead.append(what))),
        )
        self.births = births
        delays = SimpleNamespace(at_level=self._at_level)
        self.retry = RetryTopics(cast(Any, core), cast(Any, delays))

    def _make(self, name: str, queues: int) -> None:
        self.made.append(name)
        self.queues.append(queues)

    def _at_level(self, batch: PutBatch, level: int) -> PutBatch:
        self.levels.append(level)
        return batch

    def stored(self) -> list[tuple[str, int, dict[str, str]]]:
        """Topic, failed attempts and properties of each."""
        return [
            (
                batch.topic,
                batch.reconsume_times,
                decode_properties(batch.columns.properties.tobytes().decode()),
            )
            for batch in self.log.batches
        ]


def record_of(topic: str = "T", failed: int = 0, **properties: str) -> Record:
    host = Host("127.0.0.1", 1)
    return Record(
        topic=topic,
        queue_id=0,
        queue_offset=QueueOffset(7),
        physical_offset=PhyOffset(500),
        size=200,
        store_time=2,
        born_time=1,
        flag=0,
        sysflag=0,
        prepared_offset=PhyOffset(0),
        tags_code=0,
        body=b"body",
        properties=properties,
        reconsume_times=failed,
        born_host=host,
        store_host=host,
    )


@pytest.fixture
def world() -> World:
    return World()


async def test_a_copy_that_was_not_stored_is_no_copy(world: World) -> None:
    """Its message would be lost: nobody would store it again."""
    for status, error in (
        (PutMessageStatus.SERVICE_NOT_AVAILABLE, duolog.Unavailable),
        (PutMessageStatus.FLUSH_SLAVE_TIMEOUT, duolog.ResultUnknown),
    ):
        world.log.status = status
        with pytest.raises(error):
            await world.retry.store_again("g", "T", record_of())
        with pytest.raises(error):
            await world.retry.send_back("g", record_of(), 0, 0)
        with pytest.raises(error):
            await world.retry.to_dead_letters("g", record_of())
    assert world.dead == []


async def test_attempts_are_counted_up_to_the_groups_limit(world: World) -> None:
    await world.retry.store_again("g", "T", record_of(failed=15))
    await world.retry.store_again("g", "T", record_of(failed=16, UNIQ_KEY="u"))
    world.row["retryMaxTimes"] = 2
    copy = record_of(retry_topic("g", "T"), failed=1, RETRY_TOPIC="T")
    await world.retry.store_again("g", retry_topic("g", "T"), copy)
    await world.retry.store_again("g", retry_topic("g", "T"), replace(copy, reconsume_times=2))
    dead = dead_letter_topic("g")
    (one, two, three, four) = world.stored()
    assert one[:2] == (retry_topic("g", "T"), 16)
    assert one[2]["RETRY_TOPIC"] == "T"
    assert two[:2] == (dead, 17)
    assert (two[2]["DLQ_ORIGIN_TOPIC"], two[2]["DLQ_ORIGIN_MESSAGE_ID"]) == ("T", "u")
    assert three[:2] == (retry_topic("g", retry_topic("g", "T")), 2)
    assert four[:2] == (dead, 3)
    assert four[2]["DLQ_ORIGIN_TOPIC"] == "T"
    assert world.dead == [(("T", "g"), 1, 4)] * 2
    assert world.made[:2] == [retry_topic("g", "T"), dead]


async def test_a_copy_of_a_message_with_a_priority_keeps_its_queue(world: World) -> None:
    world.topics["P"] = SimpleNamespace(message_type=PRIORITY)
    record = replace(record_of("P"), queue_id=3)
    retry = retry_topic("g", "P")
    await world.retry.store_again("g", "P", record)
    await world.retry.store_again("g", retry, replace(record, topic=retry))
    await world.retry.store_again("g", "T", replace(record, topic="T"))
    assert [batch.queue_id for batch in world.log.batches] == [3, 3, 0]
    assert world.queues == [4, 4, 1]


async def test_a_message_that_a_member_sends_back_waits_longer_each_time(world: World) -> None:
    retry = group_retry_topic("g")
    assert await world.retry.send_back("g", record_of(), 0, 0) == retry
    assert await world.retry.send_back("g", record_of(failed=4), 0, 0) == retry
    assert await world.retry.send_back("g", record_of(failed=4), 2, 0) == retry
    assert world.levels == [FIRST_LEVEL, FIRST_LEVEL + 4, 2]
    assert await world.retry.send_back("g", record_of(), -1, 0) == dead_letter_topic("g")
    assert await world.retry.send_back("g", record_of(failed=2), 0, 3) == retry
    assert await world.retry.send_back("g", record_of(failed=3), 0, 3) == dead_letter_topic("g")
    assert await world.retry.send_back("g", record_of(failed=15), 0, 0) == retry
    assert await world.retry.send_back("g", record_of(failed=16), 0, 0) == dead_letter_topic("g")
    assert {properties["ORIGIN_MESSAGE_ID"] for _, _, properties in world.stored()} == {
        record_of().message_id
    }
    most = RECONSUME_TIMES_MAX
    await world.retry.to_dead_letters("g", record_of(failed=most))
    assert world.log.batches[-1].reconsume_times == most, "a record has room for no more"


async def test_messages_older_than_their_topic_are_stored_no_more(world: World) -> None:
    world.births.topics["T"] = 501
    world.births.newest = 501
    await world.retry.store_again("g", "T", record_of())
    with pytest.raises(duolog.NoSuchMessage, match="deleted and made again"):
        await world.retry.send_back("g", record_of(), 0, 0)
    with pytest.raises(duolog.NoSuchMessage):
        await world.retry.to_dead_letters("g", record_of())
    assert world.log.batches == []


async def test_a_message_without_room_for_a_delay_is_delivered_again_at_once(world: World) -> None:
    full = "x" * (PROPERTIES_BYTES_MAX - 20)
    await world.retry.send_back("g", record_of(a=full), 0, 0)
    assert (len(world.log.batches), world.levels) == (1, [])
