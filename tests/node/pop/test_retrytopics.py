"""Retry topics: whose copies are in one, and how often."""

from dataclasses import replace
from itertools import accumulate

import duolog
import numpy as np
import pytest

from duolog_server.node.filters.tagfilter import EVERYTHING
from duolog_server.node.pop import popservice
from duolog_server.node.pop.popservice import PopRequest
from duolog_server.node.pop.retrytopics import copies_from
from duolog_server.serve.server import Node
from duolog_server.store.grouptopics import dead_letter_topic, retry_topic
from duolog_server.store.kernels import decode
from duolog_server.store.kernels.jit import I64
from duolog_server.store.messagestore import PutBatch, PutResult
from duolog_server.store.offsets import QueueOffset
from duolog_server.store.reader import GetMessageStatus, GetResult
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
