"""Redirected messages: sent to one topic, and kept in another until they are delivered.

Delayed and half messages are kept in a system topic. Their properties REAL_TOPIC and REAL_QID name
the queue in which they are stored again.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from duolog._columns import COPY_MARK

from duolog_server.node.core.ports import Reads
from duolog_server.store import lightqueues
from duolog_server.store.columns import Columns
from duolog_server.store.kernels import decode, encode
from duolog_server.store.kernels.jit import I64
from duolog_server.store.messagestore import PutBatch
from duolog_server.store.offsets import PhyOffset, QueueOffset
from duolog_server.store.queueends import QueueKey
from duolog_server.store.reader import EMPTY_TABLE, GetResult, Wanted
from duolog_server.store.record import (
    PROPERTIES_BYTES_MAX,
    TRANSACTION_COMMIT,
    TRANSACTION_MASK,
    Host,
    Record,
    decode_properties,
)

READ_BYTES = 4 << 20  # of waiting messages, delivered before others have a turn
_PAIR, _END = b"\x01", b"\x02"
_OF_ITS_PLACE = frozenset(("__CRC32#", *lightqueues.PROPERTIES))  # valid for one record only
_OF_ITS_PLACE_BYTES = frozenset(name.encode() for name in _OF_ITS_PLACE)
# What nodes note in copies to tell where they come from, the least needed first. A copy goes
# without them where a record has no room: nothing that is stored is undeliverable for a note.
NOTES = (
    *("DLQ_ORIGIN_MESSAGE_ID", "ORIGIN_MESSAGE_ID", "MAX_RECONSUME_TIMES", "RECONSUME_TIME"),
    *("CHECK_IMMUNITY_TIME_IN_SECONDS", "RETRY_TOPIC", "DLQ_ORIGIN_TOPIC"),
)


def fitting(properties: Mapping[str, str], room: int) -> bytes:
    """Properties as a text of at most so many bytes, if it can be so short without NOTES."""
    pairs = {
        name: f"{name}\x01{value}".encode()
        for name, value in properties.items()
        if name and value and name not in _OF_ITS_PLACE
    }
    size = sum(map(len, pairs.values())) + len(pairs) - 1
    for name in NOTES:
        if size <= room:
            break
        if name in pairs:
            size -= len(pairs.pop(name)) + 1
    return _END.join(pairs.values())


@dataclass(frozen=True, slots=True)
class Waiting:
    """A kind of redirected messages.

    words: properties that only the node sets, and removes on delivery. half: they wait for a
    commit; the delivered message is marked as committed and names the position of its half message.
    passed: they were delivered, to a queue that takes none: their flags and their order stay.
    """

    words: frozenset[bytes]
    half: bool = False
    passed: bool = False


def redirected(
    batch: PutBatch, topic: str, queue_id: int, more: dict[str, str], waiting: Waiting
) -> PutBatch:
    """A batch for another queue, with properties that name its real queue.

    more: properties to add. What its sender says under one of the names that only the node uses
    while a message waits is left out. Its columns must have been checked. Raises BadProperties
    where a record has no room for them, which cannot be where a client's limits were checked.
    """
    added = {**more, "REAL_TOPIC": batch.topic, "REAL_QID": str(batch.queue_id)}
    suffix = _END.join(name.encode() + _PAIR + value.encode() for name, value in added.items())
    columns = batch.columns
    text, ends = columns.properties.tobytes(), columns.property_offsets.tolist()
    blocks = [text[low:high].rstrip(_END) for low, high in itertools.pairwise(ends)]
    own = waiting.words.union(name.encode() for name in added)
    if any(word in text for word in own):
        blocks = [_without(block, own) for block in blocks]
    properties = [block + _END + suffix if block else suffix for block in blocks]
    bodies, offsets = columns.bodies.tobytes(), columns.body_offsets.tolist()
    parts = [bodies[low:high] for low, high in itertools.pairwise(offsets)]
    made = Columns.of(parts, properties)
    made.check_accepted()
    return replace(batch, topic=topic, queue_id=queue_id, columns=made, accepted=True)


def _without(block: bytes, names: frozenset[bytes]) -> bytes:
    """Properties without those of some names."""
    pairs = block.split(_END)
    return _END.join(pair for pair in pairs if pair.partition(_PAIR)[0] not in names)


def stored_again(
    record: Record,
    topic: str,
    properties: Mapping[str, str],
    reconsume_times: int | None = None,
    room: int = PROPERTIES_BYTES_MAX,
) -> PutBatch:
    """A copy of a record for the first queue of a topic, with the same body, born time and born
    host. room: the most bytes of its properties; it goes without NOTES that have none.
    """
    return PutBatch(
        topic,
        0,
        Columns.of([record.body], [fitting(properties, room)]),
        record.born_time,
        record.born_host,
        record.flag,
        _sysflag(record),
        record.reconsume_times if reconsume_times is None else reconsume_times,
        accepted=True,
    )


def is_copy(columns: Columns, record: Record) -> bool:
    """Whether a single message is a copy of a record: it has the same body, and no properties but
    those of the record, and perhaps a mark. Raises BadMessage for one that only the store may set.
    """
    if columns.count != 1 or columns.bodies.tobytes() != record.body:
        return False
    columns.check_unplaced()
    properties = decode_properties(columns.properties.tobytes().decode(errors="replace"))
    properties.pop(COPY_MARK, None)
    return properties.items() <= record.properties.items()


def _sysflag(record: Record) -> int:
    """The flags of a copy: compressed and committed stay; half is cleared."""
    committed = record.sysflag & TRANSACTION_MASK == TRANSACTION_COMMIT
    return (record.sysflag & ~TRANSACTION_MASK) | (TRANSACTION_COMMIT if committed else 0)


def read_between(store: Reads, key: QueueKey, first: int, end: int) -> tuple[GetResult, int]:
    """Read messages of a queue at [first, end), and the offset that the read reached.

    A read skips damaged messages and may return later ones instead; those past `end` are not to be
    delivered.
    """
    count = end - first
    while True:
        result = store.get(*key, QueueOffset(first), Wanted(count, READ_BYTES))
        inside = int(np.count_nonzero(result.table[decode.OUT_QUEUE_OFFSET] < end))
        if inside == result.count:
            return result, min(result.next_offset, end)
        if inside == 0:
            return replace(result, bodies=b"", properties=b"", table=EMPTY_TABLE), end
        count = inside


@dataclass(slots=True)
class _Group:
    """Messages of one sender for one real queue."""

    bodies: list[bytes] = field(default_factory=list)
    properties: list[bytes] = field(default_factory=list)
    fields: list[tuple[int, int, int, int, int]] = field(default_factory=list)


def restored(
    result: GetResult,
    waiting: Waiting,
    host_of: Callable[[PhyOffset], Host],
    without: Callable[[int, str, bytes], bool] | None = None,
) -> Iterator[PutBatch]:
    """Convert a read of a system topic to batches for the real queues.

    host_of: the sender of the record at an offset. without: whether to leave out a message, by its
    offset, real topic and property text.
    """
    sysflag = TRANSACTION_COMMIT if waiting.half else 0
    cleared = 0 if waiting.passed else TRANSACTION_MASK
    dropped = waiting.words | _OF_ITS_PLACE_BYTES
    groups: dict[tuple[str, int, Host], _Group] = {}
    for numbers, body, text in result.rows():
        _, physical, _, born, flag, flags, reconsumed = numbers[:7]
        topic, queue_id, kept = _real(text, dropped)
        if not topic:
            continue  # it does not name a real queue
        if without is not None and without(physical, topic, kept):
            continue
        sender = topic, queue_id, host_of(PhyOffset(physical))
        if waiting.passed and sender not in groups:
            yield from _batches(groups, sysflag)
            groups = {}
        group = groups.setdefault(sender, _Group())
        group.bodies.append(body)
        group.properties.append(kept)
        bits = (flags & ~cleared) | sysflag
        group.fields.append((flag, bits, born, reconsumed, physical if waiting.half else 0))
    yield from _batches(groups, sysflag)


def _batches(groups: dict[tuple[str, int, Host], _Group], sysflag: int) -> Iterator[PutBatch]:
    for (topic, queue_id, host), group in groups.items():
        fields: I64 = np.ascontiguousarray(np.array(group.fields, np.int64).T)
        columns = Columns.of(group.bodies, group.properties)
        yield PutBatch(
            topic, queue_id, columns, 0, host, sysflag=sysflag, fields=fields, accepted=True
        )


def _real(block: bytes, dropped: frozenset[bytes]) -> tuple[str, int, bytes]:
    """Real topic, real queue id, and the remaining properties."""
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
