"""Messages that wait elsewhere: sent to one topic, stored in another until their time comes.

Delayed and half messages lie in a topic of the system, with REAL_TOPIC and REAL_QID among their
properties, and are stored again in the queue those name.
"""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from store import lightqueues
from store.columns import Columns
from store.kernels import decode, encode
from store.kernels.jit import I64
from store.messagestore import PutBatch
from store.offsets import PhyOffset
from store.reader import GetResult
from store.record import TRANSACTION_COMMIT, TRANSACTION_MASK, Host, Record, encode_properties

_PAIR, _END = b"\x01", b"\x02"
_OF_ITS_PLACE = frozenset(("__CRC32#", *lightqueues.PROPERTIES))  # true of one record only


def redirected(batch: PutBatch, topic: str, queue_id: int, more: dict[str, str]) -> PutBatch:
    """A batch for another queue, which says where it was meant to go. more: properties to add.

    Its columns must have been checked.
    """
    added = {**more, "REAL_TOPIC": batch.topic, "REAL_QID": str(batch.queue_id)}
    suffix = _END.join(name.encode() + _PAIR + value.encode() for name, value in added.items())
    columns = batch.columns
    text, ends = columns.properties.tobytes(), columns.property_offsets.tolist()
    blocks = [text[low:high].rstrip(_END) for low, high in itertools.pairwise(ends)]
    properties = [block + _END + suffix if block else suffix for block in blocks]
    bodies, offsets = columns.bodies.tobytes(), columns.body_offsets.tolist()
    parts = [bodies[low:high] for low, high in itertools.pairwise(offsets)]
    return replace(batch, topic=topic, queue_id=queue_id, columns=Columns.of(parts, properties))


def stored_again(
    record: Record, topic: str, properties: dict[str, str], reconsume_times: int | None = None
) -> PutBatch:
    """A record once more, for the first queue of a topic; its birth and its body stay."""
    kept = {name: value for name, value in properties.items() if name not in _OF_ITS_PLACE}
    return PutBatch(
        topic,
        0,
        Columns.of([record.body], [encode_properties(kept).encode()]),
        record.born_time,
        record.born_host,
        record.flag,
        _sysflag(record),
        record.reconsume_times if reconsume_times is None else reconsume_times,
    )


def _sysflag(record: Record) -> int:
    """A compressed body stays one, and a committed message; a half message is stored as any."""
    committed = record.sysflag & TRANSACTION_MASK == TRANSACTION_COMMIT
    return (record.sysflag & ~TRANSACTION_MASK) | (TRANSACTION_COMMIT if committed else 0)


@dataclass(slots=True)
class _Group:
    """Messages of one real queue, of one sender."""

    bodies: list[bytes] = field(default_factory=list)
    properties: list[bytes] = field(default_factory=list)
    fields: list[tuple[int, int, int, int, int]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Waiting:
    """A kind of messages that wait.

    words: names of properties that are for the time of waiting alone. half: they wait to be
    committed; what is stored then is marked as committed, and says where its half message lies.
    """

    words: frozenset[bytes]
    half: bool = False


def restored(
    result: GetResult,
    waiting: Waiting,
    host_of: Callable[[PhyOffset], Host],
    without: Callable[[int, str, bytes], bool] | None = None,
) -> Iterator[PutBatch]:
    """What a read of a system topic found, as batches for the real queues.

    host_of: who sent the record at an offset. without: tells, of an offset, a real topic and a
    property text, what is to be left out.
    """
    sysflag = TRANSACTION_COMMIT if waiting.half else 0
    groups: dict[tuple[str, int, Host], _Group] = {}
    for numbers, body, text in result.rows():
        _, physical, _, born, flag, flags, reconsumed = numbers[:7]
        topic, queue_id, kept = _real(text, waiting.words)
        if not topic:
            continue  # it never said where it wanted to go
        if without is not None and without(physical, topic, kept):
            continue
        group = groups.setdefault((topic, queue_id, host_of(PhyOffset(physical))), _Group())
        group.bodies.append(body)
        group.properties.append(kept)
        bits = (flags & ~TRANSACTION_MASK) | sysflag
        group.fields.append((flag, bits, born, reconsumed, physical if waiting.half else 0))
    for (topic, queue_id, host), group in groups.items():
        fields: I64 = np.ascontiguousarray(np.array(group.fields, np.int64).T)
        columns = Columns.of(group.bodies, group.properties)
        yield PutBatch(topic, queue_id, columns, 0, host, sysflag=sysflag, fields=fields)


def _real(block: bytes, dropped: frozenset[bytes]) -> tuple[str, int, bytes]:
    """Topic, queue id, and the properties that stay."""
    topic, queue_id = "", 0
    kept = []
    for pair in block.split(_END):
        name, _, value = pair.partition(_PAIR)
        if name == b"REAL_TOPIC":
            topic = value.decode(errors="replace")
        elif name == b"REAL_QID":
            queue_id = int(value) if value.isdigit() else 0
        elif name and name not in dropped:
            kept.append(pair)
    return topic, queue_id, _END.join(kept)


assert encode.FIELDS == 5, "as many as `restored` gives"
assert decode.OUT_COLUMNS == 10, "as many as `restored` reads"
