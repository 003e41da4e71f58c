"""The body of a batch: messages one behind the other (see the kernels that split it)."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from duolog_server.compat.remoting.codec.command import BadRequest
from duolog_server.compat.remoting.codec.messages import END, LATER
from duolog_server.store.columns import Columns
from duolog_server.store.kernels import batch
from duolog_server.store.kernels.jit import I64, U8, U32

BATCH_MESSAGES_MAX = 1 << 16
_REASONS = {
    batch.CUT: "a batch ends within a message: {1} bytes are left",
    batch.SIZE_LIES: "a message of a batch has {0} bytes, {1} are left",
    batch.BODY_LIES: "a message of {0} bytes in a batch has a body of {1}",
    batch.PROPERTIES_LIE: "a message of {0} bytes in a batch has {1} of properties",
}


@dataclass(frozen=True, slots=True)
class Batch:
    """Messages of a batch. flags: of each. waiting: how many are delayed."""

    columns: Columns
    flags: I64
    waiting: int


def count_of(body: bytes) -> int:
    """How many messages a batch has, at least one. Raises BadRequest."""
    where: I64 = np.zeros(2, np.int64)
    found = batch.count(np.frombuffer(body, np.uint8), where)
    if found < 0:
        raise BadRequest(_REASONS[found].format(*where.tolist()))
    if not found:
        raise BadRequest("a batch has no messages")
    if found > BATCH_MESSAGES_MAX:
        raise BadRequest(f"a batch has more than {BATCH_MESSAGES_MAX} messages")
    return found


def read_batch(body: bytes, unsaid: Sequence[bytes] = ()) -> Batch:
    """The messages, without the properties of these names and those without a value.

    Raises BadRequest.
    """
    count, data = count_of(body), np.frombuffer(body, np.uint8)
    bodies, texts, flags = np.empty_like(data), np.empty_like(data), np.empty(count, np.int64)
    body_offsets: U32 = np.empty(count + 1, np.uint32)
    text_offsets: U32 = np.empty(count + 1, np.uint32)
    waiting = batch.split(
        data, *_names(unsaid), *_LATER, bodies, body_offsets, texts, text_offsets, flags
    )
    columns = Columns(
        bodies[: body_offsets[-1]], body_offsets, texts[: text_offsets[-1]], text_offsets
    )
    return Batch(columns, flags, waiting)


def with_property(columns: Columns, pair: bytes) -> Columns:
    """Messages with one more property each, before those that they have."""
    added = np.frombuffer(pair + END, np.uint8)
    begins = columns.property_offsets[:-1].astype(np.int64)
    count, size = len(begins), columns.longest_properties
    if len(columns.properties) == count * size:  # all as long, as ids are
        rows: U8 = np.empty((count, len(added) + size), np.uint8)
        rows[:, : len(added)] = added
        rows[:, len(added) :] = columns.properties.reshape(count, size)
        texts = rows.reshape(-1)
    else:
        at = begins.repeat(len(added))
        texts = np.insert(columns.properties, at, np.tile(added, count))
    steps = np.arange(count + 1, dtype=np.uint32) * len(added)
    offsets: U32 = columns.property_offsets + steps.astype(np.uint32)
    return Columns(columns.bodies, columns.body_offsets, texts, offsets)


def _names(names: Sequence[bytes]) -> tuple[U8, I64]:
    """Names as the kernel takes them."""
    ends = np.fromiter(accumulate(map(len, names)), np.int64, len(names))
    return np.frombuffer(b"".join(names), np.uint8), ends


_LATER = _names(LATER)
