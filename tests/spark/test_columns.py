"""Batches of the wire as Arrow's, against the SDK's own view of the same batch. No Spark runs."""

from concurrent.futures import Future
from datetime import UTC, datetime
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest
from duolog._columns import crc32, pack, property_text
from duolog._errors import UnknownTopic
from duolog._message import Batch
from duolog.spark import SCHEMA
from duolog.spark._columns import record_batch
from duolog.spark._fetch import _fetch_one
from duolog.spark._options import ReadOptions
from duolog.spark._plan import Queue, QueueRange
from duolog.wire import duolog_pb2 as wire
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_schema

from duolog_server.store.record import decode_properties, keys_of

ARROW = to_arrow_schema(SCHEMA, timezone="UTC")
TEXT = st.text(st.characters(categories=("L", "N", "P", "S")), min_size=1, max_size=8)
MESSAGES = st.lists(
    st.tuples(
        st.binary(max_size=40),
        st.none() | TEXT,
        st.lists(TEXT, max_size=3),
        st.dictionaries(TEXT.filter(str.islower), TEXT, max_size=3),
    ),
    min_size=1,
    max_size=30,
)


def batch_of(messages: list[Any], properties: list[bytes], **more: Any) -> wire.MessageBatch:
    count = len(messages)
    bodies, body_offsets = pack([message[0] for message in messages])
    texts, text_offsets = pack(properties)
    return wire.MessageBatch(
        topic="T",
        queue_id=3,
        count=count,
        next_offset=more.pop("next_offset", 100 + count),
        bodies=bodies,
        body_offsets=body_offsets,
        properties=texts,
        property_offsets=text_offsets,
        crc32=crc32(bodies, body_offsets, texts, text_offsets),
        queue_offset_base=100,
        physical_offsets=np.arange(count, dtype="<i8").tobytes(),
        store_times=np.full(count, 1_700_000_000_123, "<i8").tobytes(),
        born_times=np.full(count, 1_600_000_000_001, "<i8").tobytes(),
        flags=np.full(count, 7, "<i4").tobytes(),
        sysflags=np.zeros(count, "<i4").tobytes(),
        reconsume_times=np.full(count, 2, "<i4").tobytes(),
        **more,
    )


@given(MESSAGES)
def test_columns_equal_what_the_sdk_returns(messages: list[Any]) -> None:
    texts = [property_text(tags, keys, more) for _, tags, keys, more in messages]
    batch = batch_of(messages, texts)
    rows = record_batch(batch, ARROW, 1 << 60).to_pylist()
    for row, shown in zip(rows, Batch(batch), strict=True):
        assert (row["topic"], row["queue_id"]) == ("T", 3)
        assert row["queue_offset"] == shown.queue_offset
        assert row["offset"] == shown.physical_offset
        assert row["body"] == shown.body
        assert (row["tags"] or "") == shown.tags
        assert row["keys"] == shown.keys
        assert dict(row["properties"]) == shown.properties
        assert (row["flag"], row["reconsume_times"]) == (7, 2)
        assert row["store_time"] == datetime.fromtimestamp(1_700_000_000.123, UTC)
        assert row["born_time"] == datetime.fromtimestamp(1_600_000_000.001, UTC)


def test_keys_are_parsed_as_the_store_parses_them() -> None:
    """Also those of other programs, which set KEYS themselves."""
    texts = [
        "KEYS\x01a b",
        "KEYS\x01 a  b ",
        "KEYS\x01 ",
        "TAGS\x01t",
        "KEYS\x01a\u00a0b\tc",
        "KEYS\x01 a  b \x02ONE_KEY\x01true",
        "KEYS\x01a b\x02ONE_KEY\x01false",
        "",
    ]
    batch = batch_of([(b"", None, [], {})] * len(texts), [text.encode() for text in texts])
    wanted = [keys_of(decode_properties(text)) for text in texts]
    assert [shown.keys for shown in Batch(batch)] == wanted
    assert record_batch(batch, ARROW, 1 << 60).column("keys").to_pylist() == wanted


def test_a_range_ends_where_it_ends_also_between_gaps() -> None:
    deltas = np.array([0, 4, 9], "<u4").tobytes()
    batch = batch_of(
        [(b"a",), (b"b",), (b"c",)], [b""] * 3, queue_offset_deltas=deltas, next_offset=110
    )
    for end, bodies in ((110, [b"a", b"b", b"c"]), (109, [b"a", b"b"]), (101, [b"a"]), (100, [])):
        found = record_batch(batch, pa.schema([ARROW.field("body")]), end)
        assert found.column(0).to_pylist() == bodies


def test_seals_and_incomplete_pairs_are_not_properties_and_bad_text_is_tolerated() -> None:
    texts = [b"a\x01b\x02__CRC32#\x01123\x02", b"x\x02y\x01\x02z\x01w=\x01v", b"k\x01\xff\xfe\x02"]
    batch = batch_of([(b"1",), (b"2",), (b"3",)], texts)
    rows = record_batch(batch, pa.schema([ARROW.field("properties")]), 1 << 60).to_pylist()
    assert [dict(row["properties"]) for row in rows] == [
        {"a": "b"},
        {"z": "w=\x01v"},
        {"k": "\ufffd\ufffd"},
    ]


class OneSlaveBehind:
    """A client of a group whose slave has its messages up to an offset, none: not even the topic,
    and whose master has those up to 106."""

    def __init__(self, end: int) -> None:
        self.end = end
        self.asked: list[tuple[int, bool]] = []

    def start(self, call: Any) -> "Future[wire.MessageBatch]":
        made: Future[wire.MessageBatch] = Future()
        try:
            made.set_result(call(self))
        except UnknownTopic as error:
            made.set_exception(error)
        return made

    def fetch(
        self, request: wire.PullRequest, group: str, *, from_slaves: bool
    ) -> wire.MessageBatch:
        at = request.queue_offset
        self.asked.append((at, from_slaves))
        if from_slaves and not self.end:
            raise UnknownTopic("topic 'T' does not exist")
        end = min(self.end if from_slaves else 106, at + 2)
        if end <= at:
            return wire.MessageBatch(topic="T", next_offset=at)
        batch = batch_of([(b"%d" % k,) for k in range(at, end)], [b""] * (end - at))
        batch.queue_offset_base, batch.next_offset = at, end
        return batch


@pytest.mark.parametrize("end", [0, 100, 102])
def test_a_task_reads_from_the_master_what_a_slave_does_not_have(end: int) -> None:
    client = OneSlaveBehind(end)
    options = ReadOptions.of({"endpoints": "127.0.0.1:1", "topic": "T", "localReads": "false"})
    part = QueueRange(Queue("T", "g", 3), 100, 106)
    arrow = pa.schema([ARROW.field("body")])
    batches = _fetch_one(cast(Any, client), options, arrow, [wire.BODIES], part)
    rows = [row["body"] for batch in batches for row in batch.to_pylist()]
    assert rows == [b"%d" % k for k in range(100, 106)]
    before = [(at, True) for at in range(100, max(end, 100) + 1, 2)]
    assert client.asked == [*before, *((at, False) for at in range(before[-1][0], 106, 2))]
