"""Rows as requests: splitting them loses nothing."""

import zlib
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from duolog._columns import pack
from duolog._errors import BadRequest, MessageTooLarge
from duolog.spark._rows import Request, RowsToRequests
from duolog.spark._writer import _staged


class Small:
    """A sink that takes few bytes at a time."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.texts: list[bytes] = []

    async def stage(
        self,
        topic: str,
        queue_id: int,
        bodies: tuple[bytes, bytes],
        texts: tuple[bytes, bytes],
        born: int,
    ) -> int:
        if len(bodies[0]) > 40:
            raise MessageTooLarge("too large")
        for blob, into in ((bodies, self.bodies), (texts, self.texts)):
            ends = np.frombuffer(blob[1], "<u4")
            into += [blob[0][a:b] for a, b in pairwise(ends)]
        return len(self.bodies)


@pytest.mark.parametrize("texts", [True, False])
async def test_a_request_that_is_too_large_is_staged_in_parts(texts: bool) -> None:
    bodies = [b"%d" % k * (k % 7) for k in range(50)]
    words = [b"k\x01%d" % k for k in range(50)]
    sink = Small()
    request = Request("T", 0, pack(bodies), pack(words) if texts else (b"", b""))
    staged = await _staged(sink, request, 1)  # type: ignore[arg-type]
    assert sink.bodies == bodies
    assert sink.texts == (words if texts else [])
    assert staged == sorted(staged)
    assert staged[-1] == 50
    with pytest.raises(MessageTooLarge):
        await _staged(sink, Request("T", 0, pack([bytes(50)]), (b"", b"")), 1)  # type: ignore[arg-type]


def test_rows_of_sliced_columns_are_read_correctly() -> None:
    """Spark's batches may be views into larger ones."""
    whole = pa.record_batch(
        {
            "body": pa.array([b"%d" % k for k in range(10)]),
            "keys": pa.array([[f"k{k}"] for k in range(10)]),
            "properties": pa.array(
                [[("p", f"v{k}")] for k in range(10)], pa.map_(pa.string(), pa.string())
            ),
        }
    )
    (request,) = RowsToRequests("T", {"T": 1}, 0).requests(whole.slice(3, 4))
    assert request.bodies == pack([b"3", b"4", b"5", b"6"])
    assert request.texts == pack([b"KEYS\x01k%d\x02p\x01v%d" % (k, k) for k in range(3, 7)])


@pytest.mark.parametrize(
    "keys", [[None, "k", "", None], [None, ["k"], [], None]], ids=["strings", "lists"]
)
def test_rows_without_a_key_take_turns_beside_those_with_one(keys: list[object]) -> None:
    batch = pa.record_batch({"body": pa.array([b"x"] * 4), "keys": pa.array(keys)})
    dealer = RowsToRequests("T", {"T": 4}, 0)
    counts = [{r.queue_id: r.count for r in dealer.requests(batch)} for _ in range(4)]
    keyed = zlib.crc32(b"k") % 4
    assert all(sum(found.values()) == 4 and keyed in found for found in counts)
    totals = {queue_id: sum(found.get(queue_id, 0) for found in counts) for queue_id in range(4)}
    assert totals == {queue_id: 7 if queue_id == keyed else 3 for queue_id in range(4)}


LISTS = pa.list_(pa.field("element", pa.string(), nullable=False))
MAPS = pa.map_(pa.string(), pa.field("value", pa.string(), nullable=False))


@pytest.mark.parametrize(
    ("body", "text", "keys", "properties"),
    [
        (pa.string(), pa.string(), LISTS, MAPS),  # as array('a'), split(...) and map('p', 'v') are
        (
            pa.large_binary(),
            pa.large_string(),
            pa.list_(pa.large_string()),
            pa.map_(pa.large_string(), pa.large_string()),
        ),
        (pa.large_string(), pa.large_string(), pa.large_string(), MAPS),
    ],
    ids=["not null", "large", "large keys"],
)
def test_columns_are_accepted_in_every_type_that_spark_uses_for_them(
    body: pa.DataType, text: pa.DataType, keys: pa.DataType, properties: pa.DataType
) -> None:
    key = ["k"] if pa.types.is_list(keys) else "k"
    batch = pa.record_batch(
        {
            "body": pa.array(["x", "y"]).cast(body),
            "topic": pa.array(["T", "T"], text),
            "tags": pa.array(["t", None], text),
            "keys": pa.array([key, key], keys),
            "properties": pa.array([[("p", "v")], []], properties),
        }
    )
    (request,) = RowsToRequests("", {"T": 1}, 0).requests(batch)
    assert request.bodies == pack([b"x", b"y"])
    assert request.texts == pack([b"TAGS\x01t\x02KEYS\x01k\x02p\x01v", b"KEYS\x01k"])


@pytest.mark.parametrize("name", ["topic", "tags", "keys"])
def test_text_that_is_not_utf8_is_refused(name: str) -> None:
    text = pa.array([b"\xff"]).view(pa.string())
    batch = pa.record_batch({"body": pa.array([b"x"]), name: text})
    with pytest.raises(BadRequest, match=f"'{name}' has text that is not valid UTF-8"):
        list(RowsToRequests("T", {"T": 1}, 0).requests(batch))
