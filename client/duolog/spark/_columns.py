"""Batches of the wire as Arrow's: buffers are shared where layouts agree, and no message is touched
by itself."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from duolog._columns import NAME_VALUE_SEPARATOR, ONE_KEY, ONE_KEY_SET, PROPERTY_SEPARATOR
from duolog.wire import duolog_pb2 as wire

_PAIR = f"(?s)^[^{NAME_VALUE_SEPARATOR}]+{NAME_VALUE_SEPARATOR}."
_ONE_KEY = f"{ONE_KEY}{NAME_VALUE_SEPARATOR}{ONE_KEY_SET}"
_SEAL = f"__CRC32#{NAME_VALUE_SEPARATOR}"


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of a batch of the wire that never was on one: bytes, or arrays of the same.

    queue_offset_deltas: empty if the offsets are consecutive.
    """

    topic: str
    queue_id: int
    count: int
    next_offset: int
    queue_offset_base: int
    queue_offset_deltas: bytes
    bodies: Any
    body_offsets: Any
    properties: Any
    property_offsets: Any
    physical_offsets: Any
    store_times: Any
    born_times: Any
    flags: Any
    reconsume_times: Any


AnyBatch = wire.MessageBatch | Columns


def _blob(kind: pa.DataType, offsets: Any, data: Any, count: int) -> pa.Array:
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(kind, count, buffers)


class _View:
    """A batch, and what several columns are made of."""

    def __init__(self, batch: AnyBatch) -> None:
        self.batch = batch

    @cached_property
    def texts(self) -> pa.Array:
        """Property texts; invalid UTF-8 (another program's) with replacement characters."""
        batch = self.batch
        raw = _blob(pa.binary(), batch.property_offsets, batch.properties, batch.count)
        try:
            return raw.cast(pa.string())
        except pa.ArrowInvalid:
            return pa.array([text.as_py().decode(errors="replace") for text in raw], pa.string())

    @cached_property
    def queue_offsets(self) -> pa.Array:
        batch = self.batch
        if batch.queue_offset_deltas:
            deltas = np.frombuffer(batch.queue_offset_deltas, "<u4").astype(np.int64)
        else:
            deltas = np.arange(batch.count, dtype=np.int64)
        return pa.array(deltas + batch.queue_offset_base)


def _property(view: _View, name: str) -> pa.Array:
    separator = PROPERTY_SEPARATOR
    pattern = f"(?:^|{separator}){name}{NAME_VALUE_SEPARATOR}(?P<value>[^{separator}]+)"
    return pc.struct_field(pc.extract_regex(view.texts, pattern), "value")


def _keys(view: _View) -> pa.Array:
    keys = pc.fill_null(_property(view, "KEYS"), "")
    words = pc.split_pattern(keys, " ")
    flat = words.flatten()
    kept = pc.not_equal(flat, "")  # others than us may have several spaces between two
    before = np.concatenate(([0], np.cumsum(kept.to_numpy(zero_copy_only=False))))
    offsets = before[words.offsets.to_numpy()].astype(np.int32)
    found = pa.ListArray.from_arrays(pa.array(offsets), flat.filter(kept))
    one = pc.match_substring(view.texts, _ONE_KEY)
    if not pc.any(one).as_py():
        return found
    one = pc.and_(one, pc.equal(_property(view, ONE_KEY), ONE_KEY_SET))
    whole = pa.ListArray.from_arrays(np.arange(len(keys) + 1, dtype=np.int32), keys)
    return pc.if_else(pc.fill_null(one, False), whole.cast(found.type), found)


def _properties(view: _View) -> pa.Array:
    pairs = pc.split_pattern(view.texts, PROPERTY_SEPARATOR)
    flat = pairs.flatten()
    wanted = pc.and_(pc.match_substring_regex(flat, _PAIR), pc.invert(pc.starts_with(flat, _SEAL)))
    before = np.concatenate(([0], np.cumsum(wanted.to_numpy(zero_copy_only=False))))
    offsets = before[pairs.offsets.to_numpy()].astype(np.int32)
    words = pc.split_pattern(flat.filter(wanted), NAME_VALUE_SEPARATOR, max_splits=1)
    names, values = pc.list_element(words, 0), pc.list_element(words, 1)
    return pa.MapArray.from_arrays(pa.array(offsets), names, values)


def _numbers(data: Any, dtype: str) -> pa.Array:
    return pa.array(np.frombuffer(data, dtype))


def _times(data: Any) -> pa.Array:
    return pa.array(np.frombuffer(data, "<i8") * 1000).cast(pa.timestamp("us", tz="UTC"))


def _body(view: _View) -> pa.Array:
    batch = view.batch
    return _blob(pa.binary(), batch.body_offsets, batch.bodies, batch.count)


# How each column is made, and what of a batch it is made of.
_COLUMNS: dict[str, tuple[Callable[[_View], pa.Array], wire.Column | None]] = {
    "topic": (lambda view: pa.repeat(pa.scalar(view.batch.topic), view.batch.count), None),
    "queue_id": (
        lambda view: pa.repeat(pa.scalar(view.batch.queue_id, pa.int32()), view.batch.count),
        None,
    ),
    "queue_offset": (lambda view: view.queue_offsets, None),
    "offset": (lambda view: _numbers(view.batch.physical_offsets, "<i8"), wire.PHYSICAL_OFFSETS),
    "tags": (lambda view: _property(view, "TAGS"), wire.PROPERTIES),
    "keys": (_keys, wire.PROPERTIES),
    "properties": (_properties, wire.PROPERTIES),
    "body": (_body, wire.BODIES),
    "born_time": (lambda view: _times(view.batch.born_times), wire.BORN_TIMES),
    "store_time": (lambda view: _times(view.batch.store_times), wire.STORE_TIMES),
    "flag": (lambda view: _numbers(view.batch.flags, "<i4"), wire.FLAGS),
    "reconsume_times": (
        lambda view: _numbers(view.batch.reconsume_times, "<i4"),
        wire.RECONSUME_TIMES,
    ),
}


def wire_columns(names: Iterable[str]) -> list[wire.Column]:
    """The fields that a node has to send for some columns."""
    wanted = {needs for name in names if (needs := _COLUMNS[name][1]) is not None}
    return sorted(wanted) or [wire.FLAGS]  # nothing would mean all


def record_batch(batch: AnyBatch, schema: pa.Schema, end: int) -> Any:
    """The messages before a queue offset, as the columns of a schema."""
    view = _View(batch)
    arrays = [_COLUMNS[field.name][0](view).cast(field.type) for field in schema]
    made = pa.RecordBatch.from_arrays(arrays, schema=schema)
    if batch.next_offset <= end:
        return made
    return made.slice(0, int(np.searchsorted(view.queue_offsets.to_numpy(), end)))
