"""Puts: a batch is checked, compared with the stored sequences of its producer, and appended whole.

Rules: a refused batch changes nothing; queue offsets, sequences and places in light queues move
only once the log has the batch.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from duolog_server.store.clocks import WallMs
from duolog_server.store.columns import BadProperties, Columns
from duolog_server.store.commitlog import Appended, CommitLog, Part
from duolog_server.store.errors import BadMessage
from duolog_server.store.idempotence import IdempotenceTable, Run
from duolog_server.store.kernels.encode import (
    FIELD_QUEUE_ID,
    FIELD_QUEUE_OFFSET,
    FIELD_SYSFLAG,
    FIELDS,
    NO_FIELDS,
    SINGLES_FIELDS,
    UNIQ_KEY_BYTES,
)
from duolog_server.store.kernels.jit import EMPTY_I64, I64
from duolog_server.store.kernels.text import RECORD_CRC_BYTES
from duolog_server.store.lightqueues import (
    MULTI_DISPATCH,
    MULTI_QUEUE_OFFSET,
    NAME_BYTES_MAX,
    is_light,
)
from duolog_server.store.metadata import SYSTEM_TOPIC, follow_moves, may_move
from duolog_server.store.moves import Closed, Moves, Place
from duolog_server.store.names import check_topic
from duolog_server.store.offsets import PhyOffset, QueueOffset
from duolog_server.store.options import StoreOptions
from duolog_server.store.queueends import QueueEnds, QueueKey
from duolog_server.store.queues import ConsumeQueues
from duolog_server.store.record import (
    LOCAL_HOST,
    PROPERTIES_BYTES_MAX,
    TRANSACTION_MASK,
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLBACK,
    Host,
    RecordHeader,
)
from duolog_server.store.status import PutMessageStatus

QUEUE_ID_MAX = 65535
MESSAGES_PER_BATCH_MAX = 1 << 20
_HIDDEN = (TRANSACTION_PREPARED, TRANSACTION_ROLLBACK)  # without a queue of their own
_MOVED = PutMessageStatus.QUEUE_MOVED


@dataclass(slots=True)  # not frozen, which takes four times as long: one is made for each put
class PutBatch:
    """Messages of one producer for one queue. Times are ms."""

    topic: str
    queue_id: int
    columns: Columns
    born_time: int
    born_host: Host = LOCAL_HOST
    flag: int = 0
    sysflag: int = 0
    reconsume_times: int = 0
    prepared_offset: PhyOffset = PhyOffset(0)
    producer: bytes = b""  # 10 bytes, or empty for no UNIQ_KEY and no deduplication
    sequence: int = 0
    repeat_of: int | None = None  # sent before; up to here the log was confirmed before that
    fields: I64 | None = None  # [FIELDS, count]: header fields that differ between the messages
    light_queues: tuple[str, ...] = ()  # that a single message is in, beside its topic's queue
    accepted: bool = False  # checked or stored before: limits of clients do not matter any more
    waited_in: tuple[str, ...] = ()  # topics in which an earlier attempt may be stored instead
    expect_offset: QueueOffset | None = None  # of its first message, or it is refused
    placed: bool = False  # the result has the place of each message

    @property
    def topics(self) -> tuple[str, ...]:
        """Topics in which an earlier attempt may be."""
        return (self.topic, *self.waited_in)


@dataclass(slots=True)  # not frozen either
class PutResult:
    """The result of a put.

    queue_offset: of the first message stored now. duplicates: leading messages that were stored
    before, in the runs given. end_offset: log offset that must be durable (and replicated) before
    the batch may be acknowledged. places: log offsets of the messages stored now, if the batch asks
    for them. moved_to: where a queue continues that takes no more messages; it then has no other
    message of the batch than `duplicates`.
    """

    status: PutMessageStatus
    reason: str = ""
    queue_offset: QueueOffset = QueueOffset(-1)
    physical_offset: PhyOffset = PhyOffset(-1)
    end_offset: PhyOffset = PhyOffset(0)
    store_time: int = 0
    count: int = 0
    duplicates: tuple[Run, ...] = ()
    places: I64 = field(default_factory=lambda: EMPTY_I64, compare=False)
    moved_to: Place | None = None


@dataclass(frozen=True, slots=True)
class Singles:
    """Messages that one client sent one by one to queues of a topic, to be stored at once.

    fields: [SINGLES_FIELDS, count], see `encode`; their queue offsets are filled in.
    """

    topic: str
    columns: Columns
    fields: I64
    born_host: Host = LOCAL_HOST

    @property
    def queue_ids(self) -> list[int]:
        """The queue of each."""
        found: list[int] = self.fields[FIELD_QUEUE_ID].tolist()
        return found


@dataclass(frozen=True, slots=True)
class SinglesResult:
    """The result of a put of singles: all of them are stored, or none is.

    queue_offsets, places: of each that is stored, the latter in the log. end_offset: as in
    `PutResult`, of all of them.
    """

    status: PutMessageStatus
    reason: str = ""
    queue_offsets: Sequence[int] = ()
    places: Sequence[int] = ()
    end_offset: PhyOffset = PhyOffset(0)


class Puts:
    """Appends batches.

    ends: the queue offset that the next message of every queue gets. light: gives places in light
    queues. moves: by all records in the log; those of the tables may be behind.
    """

    def __init__(
        self,
        options: StoreOptions,
        log: CommitLog,
        queues: ConsumeQueues,
        idempotence: IdempotenceTable,
        store_host: Host,
    ) -> None:
        self.ends = QueueEnds()
        self.moves = Moves()
        self._options = options
        self._log = log
        self._queues = queues
        self._idempotence = idempotence
        self._store_host = store_host
        self.light = LightPuts(log, options.max_lmq_consume_queue_num)

    def put(self, batch: PutBatch, wall_ms: WallMs) -> PutResult:
        """`MessageStore.put` of a writable store."""
        try:
            self._check(batch)
            moves = self._moves_after(batch) if batch.topic == SYSTEM_TOPIC else None
            light = self.light.places(batch.light_queues, self.ends) if batch.light_queues else []
            if light:
                batch = replace(batch, columns=with_places(batch.columns, light))
        except BadMessage as error:
            return PutResult(error.status, error.reason)
        count = batch.columns.count
        known: list[Run] = []
        if batch.producer:
            known = self._idempotence.stored_prefix(
                batch.producer, batch.topics, batch.sequence, count
            )
            if not known and batch.repeat_of is not None:
                self._idempotence.check_not_forgotten(batch.sequence, batch.repeat_of)
        first = sum(run.end - run.first for run in known) if known else 0
        if first == count:
            return self._stored_before(batch, known)
        if batch.producer and self._idempotence.overlaps_later(
            batch.producer, batch.topics, batch.sequence + first, count - first
        ):
            return PutResult(
                PutMessageStatus.MESSAGE_ILLEGAL,
                f"sequences from {batch.sequence + first} on are partly stored, in other batches",
            )
        closed = self._closed(batch.topic, batch.queue_id)
        if closed is not None:
            result = self._stored_before(batch, known) if known else PutResult(_MOVED)
            return replace(result, status=_MOVED, reason=closed.reason, moved_to=closed.following)
        if batch.expect_offset is not None:
            following = QueueOffset(self.ends.get((batch.topic, batch.queue_id), 0))
            if following != batch.expect_offset + first:
                reason = f"the next offset of {batch.topic}/{batch.queue_id} is {following}"
                return PutResult(PutMessageStatus.QUEUE_OFFSET_MISMATCH, reason, following)
        result = self._append(batch, first, known, wall_ms)
        if result.status is PutMessageStatus.PUT_OK:
            for key, offset in light:
                self.ends[key] = offset + 1
            if moves is not None:
                self.keep_to(moves)
        return result

    def keep_to(self, moves: Moves) -> None:
        """From now on, closed queues take no message; open guests begin at their first offset."""
        self.moves = moves
        for key, first in moves.opened():
            self.ends[key] = max(first, self.ends.get(key, 0))

    def _moves_after(self, batch: PutBatch) -> Moves | None:
        """The moves after a batch of metadata, None if it changes none.

        Raises BadMessage for a seal that does not end where its queue does.
        """
        bodies = batch.columns.bodies.tobytes()
        if not may_move(bodies):
            return None
        moves = self.moves.copy()
        for start, end in pairwise(batch.columns.body_offsets.tolist()):
            follow_moves(moves, bodies[start:end])
        for topic, seals in moves.seals.items():
            for queue_id, seal in seals.items():
                if self.moves.seal_of(topic, queue_id) is not None:
                    continue
                end, closed = self.ends.get((topic, queue_id), 0), self._closed(topic, queue_id)
                if closed is not None:
                    raise BadMessage(closed.reason)
                if end != seal.end:
                    raise BadMessage(f"queue {topic}/{queue_id} ends at {end}, not at {seal.end}")
        return moves

    def _closed(self, topic: str, queue_id: int) -> Closed | None:
        moves = self.moves
        return moves.closed(topic, queue_id) if moves.seals or moves.guests else None

    def put_singles(self, singles: Singles, wall_ms: WallMs) -> SinglesResult:
        """`MessageStore.put_singles` of a writable store."""
        try:
            self._check_singles(singles)
            where, offsets = self._append_singles(singles, wall_ms)
        except BadMessage as error:
            return SinglesResult(error.status, error.reason)
        except OSError as error:
            return SinglesResult(*_no_segment(error))
        for queue_id, offset in zip(singles.queue_ids, offsets, strict=True):
            self.ends[singles.topic, queue_id] = offset + 1
        places: list[int] = where.places.tolist()
        return SinglesResult(PutMessageStatus.PUT_OK, "", offsets, places, PhyOffset(where.end))

    def _check_singles(self, singles: Singles) -> None:
        check_topic(singles.topic)
        fields, count = singles.fields, singles.columns.count
        if fields.shape != (SINGLES_FIELDS, count) or count > MESSAGES_PER_BATCH_MAX:
            raise BadMessage(f"{count} messages have header fields of shape {fields.shape}")
        for queue_id in dict.fromkeys(singles.queue_ids):
            _check_queue(queue_id)
            closed = self._closed(singles.topic, queue_id)
            if closed is not None:
                raise Refused(_MOVED, closed.reason)
        if (fields[FIELD_SYSFLAG] & TRANSACTION_MASK).any():
            raise BadMessage("a transaction's message needs a put of its own")
        singles.columns.check(self._options.max_message_size)

    def _append_singles(self, singles: Singles, wall_ms: WallMs) -> tuple[Appended, list[int]]:
        """Append them; return their log offsets, and the queue offset of each."""
        following: dict[int, int] = {}
        offsets: list[int] = []
        for queue_id in singles.queue_ids:
            offset = following.get(queue_id)
            if offset is None:
                offset = self.ends.get((singles.topic, queue_id), 0)
            offsets.append(offset)
            following[queue_id] = offset + 1
        singles.fields[FIELD_QUEUE_OFFSET] = offsets
        header = RecordHeader(
            singles.topic,
            0,
            0,
            max(wall_ms, self._log.last_store_time),
            singles.born_host,
            self._store_host,
        )
        part = Part(fields=singles.fields, placed=True)
        return self._log.append(singles.columns, header, 0, part), offsets

    def _check(self, batch: PutBatch) -> None:
        check_topic(batch.topic)
        _check_queue(batch.queue_id)
        count = batch.columns.count
        if not 1 <= count <= MESSAGES_PER_BATCH_MAX:
            raise BadMessage(f"a batch of {count} messages is not allowed")
        if len(batch.producer) not in (0, 10):
            raise BadMessage(f"the producer id has {len(batch.producer)} bytes, it must have 10")
        if not 0 <= batch.sequence < 1 << 48:
            raise BadMessage(f"sequence {batch.sequence} is outside 0..2^48 - 1")
        if not -(1 << 63) <= batch.born_time < 1 << 63 or not -(1 << 31) <= batch.flag < 1 << 31:
            raise BadMessage("born time or flag does not fit its field")
        hidden = batch.sysflag & TRANSACTION_MASK in _HIDDEN
        if hidden and count > 1:
            raise BadMessage("a batch may not carry transaction messages")
        if batch.fields is not None and batch.fields.shape != (FIELDS, count):
            raise BadMessage(f"header fields of shape {batch.fields.shape}")
        if batch.accepted:
            key_bytes = 1 + UNIQ_KEY_BYTES if batch.producer else 0
            batch.columns.check_accepted(PROPERTIES_BYTES_MAX - key_bytes)
        else:
            batch.columns.check(self._options.max_message_size)
        if batch.light_queues:
            check_names(batch.columns, batch.light_queues, hidden)

    def _stored_before(self, batch: PutBatch, known: list[Run]) -> PutResult:
        """Answer a repeated batch with its first result, after the same waits as the first."""
        last = known[-1]
        queue = self._queues.get(last.topic, last.queue_id)
        newest = queue.entries(last.queue_offset + last.end - last.first - 1, 1) if queue else None
        end = self._log.wrote_offset
        if newest is not None and newest.shape[1]:
            end = PhyOffset(int(newest[0, 0] + newest[1, 0]))
        return PutResult(PutMessageStatus.PUT_OK, end_offset=end, count=0, duplicates=tuple(known))

    def _append(self, batch: PutBatch, first: int, known: list[Run], wall_ms: WallMs) -> PutResult:
        store_time = max(wall_ms, self._log.last_store_time)
        header = RecordHeader(
            batch.topic,
            batch.queue_id,
            batch.born_time,
            store_time,
            batch.born_host,
            self._store_host,
            batch.flag,
            batch.sysflag,
            batch.reconsume_times,
            batch.prepared_offset,
        )
        key = (batch.topic, batch.queue_id)
        kind = batch.sysflag & TRANSACTION_MASK
        in_queue = kind not in _HIDDEN
        queue_offset = self.ends.get(key, 0) if in_queue else 0
        try:
            where = self._log.append(
                batch.columns,
                header,
                queue_offset,
                Part(
                    first,
                    batch.producer,
                    batch.sequence + first,
                    NO_FIELDS if batch.fields is None else batch.fields,
                    placed=batch.placed,
                    sealed=not batch.accepted or _may_be_sealed(batch),
                ),
            )
        except BadMessage as error:
            return PutResult(error.status, error.reason)
        except OSError as error:
            return PutResult(*_no_segment(error))
        count = batch.columns.count - first
        if in_queue:
            self.ends[key] = queue_offset + count
        if batch.producer:
            self._idempotence.add(
                batch.producer,
                Run(
                    batch.sequence + first,
                    batch.sequence + first + count,
                    batch.topic,
                    batch.queue_id,
                    queue_offset,
                ),
                where.end,
            )
        return PutResult(
            PutMessageStatus.PUT_OK,
            "",
            QueueOffset(queue_offset),
            PhyOffset(where.start),
            PhyOffset(where.end),
            store_time,
            count,
            tuple(known),
            where.places[first:] if batch.placed else EMPTY_I64,
        )


def _may_be_sealed(batch: PutBatch) -> bool:
    """Whether all messages have room for a CRC of their records."""
    key_bytes = 1 + UNIQ_KEY_BYTES if batch.producer else 0
    size = batch.columns.longest_properties + key_bytes
    return size + 1 + RECORD_CRC_BYTES <= PROPERTIES_BYTES_MAX


def _check_queue(queue_id: int) -> None:
    if not 0 <= queue_id <= QUEUE_ID_MAX:
        raise BadMessage(f"queue id {queue_id} is outside 0..{QUEUE_ID_MAX}")


def _no_segment(error: OSError) -> tuple[PutMessageStatus, str]:
    status = PutMessageStatus.CREATE_MAPEDFILE_FAILED
    return status, f"the log has no room for it: {error.strerror or error}"


# Puts into light queues: which ones a message may be in, and where it stands there.
#
# Rules: only the store writes places into a record; a queue that is held gets nothing; the ends of
# queues move only once the log has the message, by `store.puts`.
_PAIR, _END = b"\x01", b"\x02"


class Refused(BadMessage):
    """A queue takes no message now."""

    def __init__(self, status: PutMessageStatus, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class LightPuts:
    """Gives messages their places in light queues. queues_max: there may be so many."""

    def __init__(self, log: CommitLog, queues_max: int) -> None:
        self._log = log
        self._queues_max = queues_max
        self._held: set[str] = set()  # about to be forgotten

    def hold(self, names: Iterable[str]) -> None:
        """Store nothing in light queues while it is decided whether they are forgotten."""
        self._held.update(names)

    def release(self, names: Iterable[str]) -> None:
        """It is decided."""
        self._held.difference_update(names)

    def places(self, names: Sequence[str], ends: QueueEnds) -> list[tuple[QueueKey, int]]:
        """Light queues, and the queue offset of the next message in each. Raises Refused."""
        if not self._held.isdisjoint(names):
            status = PutMessageStatus.SERVICE_NOT_AVAILABLE
            raise Refused(status, "the light queue is being deleted")
        new = sum((name, 0) not in ends for name in names)
        if new and ends.light_count + new > self._queues_max:
            raise Refused(
                PutMessageStatus.LMQ_CONSUME_QUEUE_NUM_EXCEEDED,
                f"this node has reached its limit of {self._queues_max} light queues "
                "(store.max_lmq_consume_queue_num)",
            )
        return self._next_offsets(names, ends)

    def _next_offsets(self, names: Sequence[str], ends: QueueEnds) -> list[tuple[QueueKey, int]]:
        begin = self._log.wrote_offset
        return [((name, 0), ends.get((name, 0), begin)) for name in names]


def check_names(columns: Columns, names: Sequence[str], hidden: bool) -> None:
    """Raise BadMessage unless a batch may be in light queues. hidden: a half message."""
    for name in names:
        if not is_light(name) or len(name.encode()) > NAME_BYTES_MAX or "/" in name or "," in name:
            raise BadMessage(f"{name!r} is not the name of a light queue")
        if not name.isprintable():
            raise BadMessage(f"light queue {name!r} has control characters")
    if names and (hidden or columns.count > 1):
        raise BadMessage("only a single message may be in light queues")


def with_places(columns: Columns, places: Sequence[tuple[QueueKey, int]]) -> Columns:
    """A single message with its places in light queues. Raises BadProperties: they do not fit."""
    names = ",".join(name for (name, _), _ in places)
    offsets = ",".join(str(offset) for _, offset in places)
    added = _END.join(
        (
            MULTI_DISPATCH.encode() + _PAIR + names.encode(),
            MULTI_QUEUE_OFFSET.encode() + _PAIR + offsets.encode(),
        )
    )
    text = columns.properties.tobytes().rstrip(_END)
    block = text + _END + added if text else added
    if len(block) + 2 + UNIQ_KEY_BYTES + RECORD_CRC_BYTES > PROPERTIES_BYTES_MAX:
        raise BadProperties(0, f"its properties have {len(block)} bytes with its light queues")
    return Columns.of([columns.bodies.tobytes()], [block])
