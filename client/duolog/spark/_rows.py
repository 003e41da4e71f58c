"""Rows to write, as requests: the reverse of `_columns`, on whole columns as well."""

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types

from duolog._columns import (
    NAME_VALUE_SEPARATOR,
    ONE_KEY,
    ONE_KEY_SET,
    PROPERTY_SEPARATOR,
    RESERVED,
)
from duolog._errors import BadRequest, MessageTooLarge
from duolog._sink import STAGED_BYTES_MAX
from duolog.spark._schema import SCHEMA

_STRINGS = types.ArrayType(types.StringType())
WRITABLE: dict[str, tuple[types.DataType, ...]] = {
    "body": (types.BinaryType(), types.StringType()),
    "topic": (types.StringType(),),
    "queue_id": (types.IntegerType(),),
    "tags": (types.StringType(),),
    "keys": (_STRINGS, types.StringType()),
    "properties": (types.MapType(types.StringType(), types.StringType()),),
}
# Columns of a read that the store sets anew: dropped, so that a read can be written.
SYSTEM = {column.name: column.dataType for column in SCHEMA if column.name not in WRITABLE}
_PLAIN = {
    "topic": pa.string(),
    "tags": pa.string(),
    "keys": pa.string(),
    "properties": pa.map_(pa.string(), pa.string()),
}
MESSAGES_MAX = 30_000  # of one request
_CONTROL = r"[\x00-\x1f\x7f]"
_DROPPED = pa.array(sorted({*RESERVED, ONE_KEY}))  # properties that the store makes, or `keys` does
_WORDS_PER_MESSAGE = 256  # bytes that a message may take in a request beside body and properties


def check_writable(schema: types.StructType, topic: str) -> None:
    """Raise BadRequest if rows of a schema are not messages. topic: where no column says it."""
    for column in schema.fields:
        if SYSTEM.get(column.name) == column.dataType:
            continue
        wanted = WRITABLE.get(column.name)
        if wanted is None:
            raise BadRequest(f"column {column.name!r} is not one of {', '.join(WRITABLE)}")
        if not any(_alike(column.dataType, kind) for kind in wanted):
            names = " or ".join(kind.simpleString() for kind in wanted)
            raise BadRequest(
                f"column {column.name!r} has type {column.dataType.simpleString()}, not {names}"
            )
    if "body" not in schema.names:
        raise BadRequest("column 'body' is missing")
    if not topic and "topic" not in schema.names:
        raise BadRequest("give the option 'topic', or a column 'topic' in the rows")


def _alike(found: types.DataType, wanted: types.DataType) -> bool:
    """Equal but for what may be null."""
    return found.simpleString() == wanted.simpleString()


@dataclass(frozen=True, slots=True)
class Request:
    """Messages for one queue, as columns of the wire."""

    topic: str
    queue_id: int
    bodies: tuple[bytes, bytes]
    texts: tuple[bytes, bytes]

    @property
    def count(self) -> int:
        """Messages."""
        return len(self.bodies[1]) // 4 - 1

    def halves(self) -> "tuple[Request, Request]":
        """The first half of the messages, and the rest."""
        middle = self.count // 2
        return self._part(0, middle), self._part(middle, self.count)

    def _part(self, first: int, end: int) -> "Request":
        blobs = (_cut(blob, first, end) for blob in (self.bodies, self.texts))
        return Request(self.topic, self.queue_id, *blobs)


def _cut(blob: tuple[bytes, bytes], first: int, end: int) -> tuple[bytes, bytes]:
    """Some of the values of a blob with offsets."""
    if not blob[1]:
        return blob
    offsets = np.frombuffer(blob[1], "<u4")[first : end + 1]
    return blob[0][offsets[0] : offsets[-1]], (offsets - offsets[0]).tobytes()


class RowsToRequests:
    """Deals rows out to queues: by `queue_id`, else by the hash of their keys, else in turn."""

    def __init__(self, topic: str, queues: dict[str, int], turn: int) -> None:
        """topic: where rows without one go. queues: of each topic. turn: where to begin."""
        self._topic = topic
        self._queues = queues
        self._turn = turn

    def requests(self, batch: pa.RecordBatch) -> Iterator[Request]:
        """Requests of a batch of rows, each queue's in their order. Raises BadRequest."""
        named = zip(batch.schema.names, batch.columns, strict=True)
        columns = {name: _plain(name, column) for name, column in named}
        if self._topic and not SYSTEM.keys().isdisjoint(columns):
            columns.pop("topic", None)  # rows that were read go where the option says
        body = columns["body"]
        if body.null_count:
            raise BadRequest("column 'body' is null in a row")
        texts = _texts(columns, batch.num_rows)
        for topic, queue_id, chosen in self._dealt(columns, batch.num_rows):
            bodies = body if chosen is None else body.take(chosen)
            properties = texts if chosen is None or texts is None else texts.take(chosen)
            for part, text in _fitting(bodies, properties):
                blobs = (b"", b"") if text is None else _blob(text)
                yield Request(topic, queue_id, _blob(part), blobs)

    def _dealt(
        self, columns: dict[str, pa.Array], count: int
    ) -> Iterator[tuple[str, int, pa.Array | None]]:
        """Topic, queue, and the rows of it in their order; None for all."""
        topics = columns.get("topic")
        if topics is None:
            yield from self._dealt_out(self._topic, columns, None, count)
            return
        if topics.null_count:
            if not self._topic:
                raise BadRequest("column 'topic' is null in a row, and no option 'topic' is given")
            topics = pc.fill_null(topics, self._topic)
        for topic in topics.unique().to_pylist():
            rows = pc.indices_nonzero(pc.equal(topics, topic))
            yield from self._dealt_out(topic, columns, rows, len(rows))

    def _dealt_out(
        self, topic: str, columns: dict[str, pa.Array], rows: pa.Array | None, count: int
    ) -> Iterator[tuple[str, int, pa.Array | None]]:
        queues = self._queues.get(topic)
        if queues is None:
            raise BadRequest(
                f"topic {topic!r} does not exist in the replica group that this sink writes to"
            )
        numbers = self._numbers(topic, columns, rows, queues)
        if numbers is None:
            self._turn += 1
            yield topic, self._turn % queues, rows
            return
        order = np.argsort(numbers, kind="stable")
        found, starts = np.unique(numbers[order], return_index=True)
        for k, queue_id in enumerate(found.tolist()):
            end = starts[k + 1] if k + 1 < len(starts) else count
            chosen = pa.array(order[starts[k] : end])
            yield topic, queue_id, chosen if rows is None else rows.take(chosen)

    def _numbers(
        self, topic: str, columns: dict[str, pa.Array], rows: pa.Array | None, queues: int
    ) -> Any:
        """The queue of each row; None if any will do."""
        if "queue_id" in columns:
            chosen = columns["queue_id"] if rows is None else columns["queue_id"].take(rows)
            if chosen.null_count:
                raise BadRequest("column 'queue_id' is null in a row")
            numbers = chosen.to_numpy(zero_copy_only=False)
            if len(numbers) and not 0 <= numbers.min() <= numbers.max() < queues:
                raise BadRequest(f"column 'queue_id': {topic} has queues 0..{queues - 1}")
            return numbers
        if "keys" not in columns:
            return None
        keys = columns["keys"] if rows is None else columns["keys"].take(rows)
        if keys.null_count == len(keys):
            return None
        coded = pc.fill_null(_first(keys), "").dictionary_encode()
        if "" in (words := coded.dictionary.to_pylist()):
            self._turn += 1  # of the rows without a key
        hashes = np.array([_hash(word) if word else self._turn for word in words], int) % queues
        return hashes[coded.indices.to_numpy()]


def _plain(name: str, column: pa.Array) -> pa.Array:
    """A column in the one type that the rest works on, regardless of Spark's own schema: that
    elements are not null, say, or how long texts may be. Raises BadRequest."""
    if name == "body":
        return column.cast(pa.binary())
    kind = _PLAIN.get(name)
    if name == "keys" and pa.types.is_nested(column.type):
        kind = pa.list_(pa.string())
    if kind is None:
        return column
    made = column if column.type == kind else column.cast(kind)
    try:
        made.validate(full=True)
    except pa.ArrowInvalid:
        raise BadRequest(f"column {name!r} has text that is not valid UTF-8") from None
    return made


def _hash(key: str) -> int:
    """What the producer deals keys out by: of a message with several keys, the first."""
    return zlib.crc32(key.encode())


def _first(keys: pa.Array) -> pa.Array:
    """The first key of each row; null for none."""
    if pa.types.is_string(keys.type):
        return keys
    counts = pc.fill_null(pc.list_value_length(keys), 0)
    first = pc.list_flatten(pc.list_slice(keys, 0, 1))
    at = np.cumsum(counts.to_numpy() > 0) - 1
    return first.take(pa.array(at, mask=counts.to_numpy() == 0))


def _texts(columns: dict[str, pa.Array], count: int) -> pa.Array | None:
    """Property texts, or None if no row has a property. Raises BadRequest."""
    parts = []
    for name, word in (("tags", "TAGS"), ("keys", "KEYS")):
        column = columns.get(name)
        if column is None or column.null_count == count:
            continue
        values = column if name == "tags" else _joined(column)
        values = pc.if_else(pc.equal(values, ""), pa.scalar(None, values.type), values)
        _check_control(name, values)
        parts.append(pc.binary_join_element_wise(word, values, NAME_VALUE_SEPARATOR))
        if name == "keys" and (mark := _one_key(column)) is not None:
            parts.append(mark)
    if "properties" in columns and columns["properties"].null_count < count:
        parts.append(_pairs(columns["properties"]))
    if not parts:
        return None
    text = parts[0]
    for part in parts[1:]:  # binary_join_element_wise cannot skip what is null (pyarrow 26)
        both = pc.binary_join_element_wise(text, part, PROPERTY_SEPARATOR)
        text = pc.coalesce(both, text, part)
    return pc.fill_null(text, "").cast(pa.binary())


def _joined(keys: pa.Array) -> pa.Array:
    """The text of KEYS: a key as it is, several with spaces between them. Raises BadRequest."""
    if pa.types.is_string(keys.type):
        return keys
    inner = keys.flatten()
    if inner.null_count or pc.any(pc.equal(inner, "")).as_py():
        raise BadRequest("column 'keys': a key of a list is null or empty")
    several = keys.filter(pc.greater(pc.fill_null(pc.list_value_length(keys), 0), 1)).flatten()
    spaced = pc.match_substring(several, " ")
    if pc.any(spaced).as_py():
        raise BadRequest(
            f"column 'keys': {several.filter(spaced)[0].as_py()!r} is one of several "
            "keys and contains a space, which separates keys; only a message's single "
            "key may contain one"
        )
    return pc.binary_join(keys, " ")


def _one_key(keys: pa.Array) -> pa.Array | None:
    """What says of rows that their KEYS is one key with spaces in it; None if no row's is."""
    single = keys
    if not pa.types.is_string(keys.type):
        single = pc.if_else(pc.equal(pc.list_value_length(keys), 1), _first(keys), None)
    spaced = pc.fill_null(pc.match_substring(single, " "), False)
    if not pc.any(spaced).as_py():
        return None
    return pc.if_else(spaced, f"{ONE_KEY}{NAME_VALUE_SEPARATOR}{ONE_KEY_SET}", None)


def _pairs(maps: pa.MapArray) -> pa.Array:
    """Property texts of the users' own properties; empty values are RocketMQ's for none."""
    names, values = maps.keys, maps.items
    start, end = maps.offsets[0].as_py(), maps.offsets[-1].as_py()
    names, values = names.slice(start, end - start), values.slice(start, end - start)
    kept = pc.and_(
        pc.invert(pc.is_in(names, value_set=_DROPPED)), pc.not_equal(pc.fill_null(values, ""), "")
    )
    before = np.concatenate(([0], np.cumsum(kept.to_numpy(zero_copy_only=False))))
    offsets = before[maps.offsets.to_numpy() - start].astype(np.int32)
    names, values = names.filter(kept), values.filter(kept)
    if pc.any(pc.equal(names, "")).as_py():
        raise BadRequest("column 'properties' has an empty name")
    _check_control("properties", names)
    _check_control("properties", values)
    pairs = pc.binary_join_element_wise(names, values, NAME_VALUE_SEPARATOR)
    texts = pc.binary_join(pa.ListArray.from_arrays(pa.array(offsets), pairs), PROPERTY_SEPARATOR)
    return pc.if_else(pc.equal(texts, ""), pa.scalar(None, texts.type), texts)


def _check_control(name: str, values: pa.Array) -> None:
    if pc.any(pc.match_substring_regex(values, _CONTROL)).as_py():
        raise BadRequest(f"column {name!r} has control characters")


def _fitting(
    bodies: pa.Array, texts: pa.Array | None
) -> Iterator[tuple[pa.Array, pa.Array | None]]:
    """Stretches that fit into one request each."""
    sizes = pc.binary_length(bodies).to_numpy().astype(np.int64) + 8
    if texts is not None:
        sizes += pc.binary_length(texts).to_numpy()
    ends = np.cumsum(sizes)
    room = STAGED_BYTES_MAX - _WORDS_PER_MESSAGE
    first = 0
    while first < len(bodies):
        before = int(ends[first - 1]) if first else 0
        last = int(np.searchsorted(ends, before + room, side="right"))
        if last == first:
            raise MessageTooLarge(f"a row has {int(sizes[first])} bytes, the limit is {room}")
        last = min(last, first + MESSAGES_MAX)
        part = slice(first, last)
        yield bodies[part], None if texts is None else texts[part]
        first = last


def _blob(values: pa.Array) -> tuple[bytes, bytes]:
    """The wire's blob and offsets of a binary column."""
    _, offsets_buffer, data = values.buffers()
    offsets = np.frombuffer(offsets_buffer, "<i4")[values.offset : values.offset + len(values) + 1]
    start, end = int(offsets[0]), int(offsets[-1])
    blob = b"" if data is None else data[start:end].to_pybytes()
    return blob, (offsets - start).astype("<u4").tobytes()
