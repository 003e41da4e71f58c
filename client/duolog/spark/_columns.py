"""Batches of the wire as Arrow's: buffers are shared where layouts agree, and no message is touched
by itself."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from duolog._columns import NAME_VALUE_SEPARATOR, PROPERTY_SEPARATOR
from duolog.wire import duolog_pb2 as wire

_PAIR = f"(?s)^[^{NAME_VALUE_SEPARATOR}]+{NAME_VALUE_SEPARATOR}."
_SEAL = f"__CRC32#{NAME_VALUE_SEPARATOR}"


def _blob(kind: pa.DataType, offsets: bytes, data: bytes, count: int) -> pa.Array:
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(kind, count, buffers)


def _texts(batch: wire.MessageBatch) -> pa.Array:
    """Property texts; what is no UTF-8 (another program's) with replacement characters."""
    raw = _blob(pa.binary(), batch.property_offsets, batch.properties, batch.count)
    try:
        return raw.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([text.as_py().decode(errors="replace") for text in raw], pa.string())


def _property(batch: wire.MessageBatch, name: str) -> pa.Array:
    separator = PROPERTY_SEPARATOR
    pattern = f"(?:^|{separator}){name}{NAME_VALUE_SEPARATOR}(?P<value>[^{separator}]+)"
    return pc.struct_field(pc.extract_regex(_texts(batch), pattern), "value")


def _keys(batch: wire.MessageBatch) -> pa.Array:
    return pc.split_pattern(pc.fill_null(_property(batch, "KEYS"), ""), " ")


def _properties(batch: wire.MessageBatch) -> pa.Array:
    pairs = pc.split_pattern(_texts(batch), PROPERTY_SEPARATOR)
    flat = pairs.flatten()
    wanted = pc.and_(pc.match_substring_regex(flat, _PAIR), pc.invert(pc.starts_with(flat, _SEAL)))
    before = np.concatenate(([0], np.cumsum(wanted.to_numpy(zero_copy_only=False))))
    offsets = before[pairs.offsets.to_numpy()].astype(np.int32)
    words = pc.split_pattern(flat.filter(wanted), NAME_VALUE_SEPARATOR, max_splits=1)
    names, values = pc.list_element(words, 0), pc.list_element(words, 1)
    return pa.MapArray.from_arrays(pa.array(offsets), names, values)


def _numbers(data: bytes, dtype: str) -> pa.Array:
    return pa.array(np.frombuffer(data, dtype))


def _times(data: bytes) -> pa.Array:
    return pa.array(np.frombuffer(data, "<i8") * 1000).cast(pa.timestamp("us", tz="UTC"))


def _queue_offsets(batch: wire.MessageBatch) -> pa.Array:
    if batch.queue_offset_deltas:
        deltas = np.frombuffer(batch.queue_offset_deltas, "<u4").astype(np.int64)
    else:
        deltas = np.arange(batch.count, dtype=np.int64)
    return pa.array(deltas + batch.queue_offset_base)


COLUMNS: dict[str, Callable[[wire.MessageBatch], pa.Array]] = {
    "topic": lambda batch: pa.repeat(pa.scalar(batch.topic), batch.count),
    "queue_id": lambda batch: pa.repeat(pa.scalar(batch.queue_id, pa.int32()), batch.count),
    "queue_offset": _queue_offsets,
    "offset": lambda batch: _numbers(batch.physical_offsets, "<i8"),
    "tags": lambda batch: _property(batch, "TAGS"),
    "keys": _keys,
    "properties": _properties,
    "body": lambda batch: _blob(pa.binary(), batch.body_offsets, batch.bodies, batch.count),
    "born_time": lambda batch: _times(batch.born_times),
    "store_time": lambda batch: _times(batch.store_times),
    "flag": lambda batch: _numbers(batch.flags, "<i4"),
    "reconsume_times": lambda batch: _numbers(batch.reconsume_times, "<i4"),
}


def record_batch(batch: wire.MessageBatch, schema: pa.Schema, end: int) -> Any:
    """The messages before a queue offset, as the columns of a schema."""
    arrays = [COLUMNS[field.name](batch).cast(field.type) for field in schema]
    made = pa.RecordBatch.from_arrays(arrays, schema=schema)
    last = batch.next_offset
    if last <= end:
        return made
    return made.slice(0, int(np.searchsorted(_queue_offsets(batch).to_numpy(), end)))
