"""MessageStore: the engine's face. Put, get, query, flush, recover, clean.

Single owner: every method but `FlushJob.run` is called from one thread. Nothing here waits: what
must wait (for a flush, for an arrival) is told by offsets that the owner watches.
"""

import contextlib
import sys
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field, replace

from store import lightqueues, recovery
from store.checkpoint import StoreCheckpoint
from store.clocks import WallMs
from store.columns import BadProperties, BodyTooLarge, Columns
from store.commitlog import CommitLog
from store.consumequeue import ConsumeQueue
from store.delay import parse_delay_levels
from store.disk import Disk, no_room
from store.dispatch import NEW_QUEUES_MAX, Arrival, Dispatcher, DispatchTargets
from store.errors import BadMessage, CorruptRecord, OffsetOutOfRange, StoreClosed, StoreError
from store.filterbits import FilterBits
from store.idempotence import IdempotenceTable, Run
from store.indexservice import IndexService
from store.kernels import decode
from store.kernels.encode import FIELDS, NO_FIELDS
from store.kernels.jit import EMPTY_I64, I64, U8
from store.mappedfile import FlushJob
from store.openfiles import TooManyUnsynced
from store.options import StoreOptions
from store.queueends import QueueEnds
from store.queuefloors import drop_floors
from store.queuenote import NOT_INDEXED, Note
from store.queues import QUEUES_AT_ONCE, ConsumeQueues
from store.reader import ColumnReader, GetMessageStatus, GetResult
from store.record import (
    BORN_HOST_V6,
    LOCAL_HOST,
    TRANSACTION_MASK,
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLBACK,
    Host,
    Record,
    RecordHeader,
    check_topic,
    keys_of,
    parse_message_id,
)
from store.recovery import Recovery, RecoveryReport
from store.retention import Retention
from store.status import BrokerRole, PutMessageStatus, RunningFlags
from store.steps import at_once

ABORT = "abort"
_PAST_THE_END = (
    GetMessageStatus.OFFSET_OVERFLOW_BADLY,
    GetMessageStatus.NO_MATCHED_LOGIC_QUEUE,
    GetMessageStatus.NO_MESSAGE_IN_QUEUE,
)
LOCK = "lock"
QUEUE_ID_MAX = 65535
MESSAGES_PER_BATCH_MAX = 1 << 20


@dataclass(frozen=True, slots=True)
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
    prepared_offset: int = 0
    producer: bytes = b""  # 10 bytes, or empty: then no UNIQ_KEY is made and nothing deduplicated
    sequence: int = 0
    repeat_of: int | None = None  # sent before; the log was confirmed up to this offset then
    fields: I64 | None = None  # [FIELDS, count]: header fields that differ between the messages
    light_queues: tuple[str, ...] = ()  # that a single message is in, beside its topic's queue


@dataclass(frozen=True, slots=True)
class PutResult:
    """What became of a batch.

    queue_offset: of the first message stored now. duplicates: leading messages that were stored
    before, in the runs given. end_offset: log offset that must be durable (and replicated) before
    the batch may be acknowledged.
    """

    status: PutMessageStatus
    reason: str = ""
    queue_offset: int = -1
    physical_offset: int = -1
    end_offset: int = 0
    store_time: int = 0
    count: int = 0
    duplicates: tuple[Run, ...] = ()


@dataclass(slots=True)
class StoreEvents:
    """How the engine tells what its owner should log or show."""

    problem: Callable[[str], None] = field(default=lambda text: None)
    progress: Callable[[int, int], None] = field(default=lambda done, total: None)


class MessageStore:
    """A store directory, open for writing."""

    def __init__(
        self,
        disk: Disk,
        options: StoreOptions,
        events: StoreEvents | None = None,
        store_host: Host = LOCAL_HOST,
        boot_id: str = "",
    ) -> None:
        """boot_id: tells two runs of the system apart; page caches do not survive from one."""
        self.disk = disk
        self.boot_id = boot_id
        self.options = options
        self.events = events or StoreEvents()
        self.store_host = store_host
        elected = options.broker_role is BrokerRole.AUTO
        self.role = BrokerRole.SLAVE if elected else options.broker_role
        self._sync_flush = options.sync_flush
        self.flags = RunningFlags()
        self.delays_ms = parse_delay_levels(options.message_delay_level)
        self.log = CommitLog(disk, options)
        self.queues = ConsumeQueues(disk, options)
        self.index = IndexService(disk, options)
        self.checkpoint = StoreCheckpoint(disk)
        self.idempotence = IdempotenceTable(options.producer_window, options.producers_max)
        self.dispatcher = Dispatcher(
            self.log,
            self.queues,
            self.index,
            self.delays_ms,
            options.message_index_enable,
            on_problem=self.events.problem,
        )
        self.retention = Retention(options, disk, self.log, self.queues, self.index, self.flags)
        self.topic_queue_table = QueueEnds()
        self._pending_note: Note | None = None  # of the queues' ends, while it is written
        self._flushing: list[ConsumeQueue] = []
        self._held: set[str] = set()  # light queues about to be forgotten
        self.fence_reason = ""
        self.replicated_offset: int | None = None  # confirmed by replicas; None: not asked for
        self._closed = True
        self._reader = ColumnReader(
            self.log, max(8 << 20, options.max_message_size), options.check_crc_on_read
        )

    # -- life ----------------------------------------------------------------------------------

    def start(self) -> RecoveryReport:
        """Lock, load, recover, and catch up the queues; afterwards the store can be used.

        Raises StoreLocked, BadStoreDirectory or OSError; the directory is then as it was.
        """
        self.disk.lock(LOCK)
        try:
            abnormal = self.disk.size(ABORT) >= 0
            self.log.queue.load()
            self.checkpoint.load()
            same_boot = not abnormal or self.checkpoint.note.is_of(self.boot_id)
            queues_sound = recovery.load_queues(self.queues, same_boot, self.events.problem)
            trusted = self.checkpoint.index_msg_timestamp if abnormal else None
            recovery.load_index(self.index, trusted, self.events.problem)
            work = Recovery(
                self.options,
                self.log,
                self.queues,
                self.index,
                self.checkpoint,
                self.dispatcher,
                self.idempotence,
                self.events.progress,
                self.events.problem,
            )
            report = work.run(abnormal, queues_sound)
            self._note_indexed()
            self._settle_confirmed(abnormal)
            self.disk.write(ABORT, b"")
            self.disk.sync_dir("")
            self._dispatch_all()
            self.recover_topic_queue_table()
            for key, end in work.ends.items():
                self.topic_queue_table[key] = max(end, self.topic_queue_table.get(key, 0))
            if not work.noted:
                self._note_queues()
            self.dispatcher.new_queues_max = NEW_QUEUES_MAX
        except BaseException:
            self._release()
            raise
        self._closed = False
        return report

    def _note_queues(self) -> None:
        """After recovery: note all queues, once they are synced."""
        self.queues.note_all()
        self.queues.sync()
        self._write_note()

    def _write_note(self) -> None:
        """Note what changed. What it says has to be synced, and nothing else notes meanwhile."""
        self._note_up_to(self.dispatcher.reput_from)

    def _note_up_to(self, position: int) -> None:
        note = self.queues.ends.begin(position, self._indexed_up_to)
        at_once(self.queues.fill(note))
        note.write()
        self.queues.noted_now(note)

    @property
    def _indexed_up_to(self) -> int:
        """The newest record that is indexed; with the index off, nothing is said of any."""
        return self.index.newest if self.options.message_index_enable else NOT_INDEXED

    def index_flushed(self) -> None:
        """Take the word of a successful job of `index.flush_full_job`."""
        self.index.flushed_full()
        self._note_indexed()

    def _note_indexed(self) -> None:
        """The checkpoint says up to when index files are full and synced: others rely on it."""
        newest = self.index.flushed_end_time
        self.checkpoint.index_msg_timestamp = max(self.checkpoint.index_msg_timestamp, newest)

    def _settle_confirmed(self, abnormal: bool) -> None:
        """Believe what the checkpoint says to be confirmed as far as the log holds it."""
        end, checkpoint = self.log.max_offset, self.checkpoint
        checkpoint.note.settle(self.boot_id, self.log.sound_end, end, abnormal)
        durable = max(checkpoint.confirm_phy_offset, checkpoint.note.durable)
        checkpoint.confirm_phy_offset = min(durable, end)

    def recover_topic_queue_table(self) -> None:
        """Next queue offset of every queue: the end of what is dispatched, which is all."""
        self.topic_queue_table = QueueEnds(
            ((queue.topic, queue.queue_id), queue.max_offset)
            for queue in self.queues
            if queue.max_offset or not lightqueues.is_light(queue.topic)
        )
        for queue in self.queues:
            queue.correct_min_offset(self.log.min_offset)

    def shutdown(self) -> None:
        """Make everything durable, note the clean stop, and let go of the directory."""
        if self._closed:
            return
        self._closed = True
        try:
            if not self.fence_reason:
                self._settle()
        finally:
            self._release()

    def _settle(self) -> None:
        self.dispatcher.new_queues_max = sys.maxsize
        self.log.commit()
        job = self.log.queue.flush_job(0)
        if job is not None:
            job.run()
            self.commit_log_flushed(job)
        self._dispatch_all()
        job = self.index.flush_all_job()
        if job is not None:
            job.run()
            job.done()
        job = self.queues_flush_job(0)
        if job is not None:
            job.run()
            self.queues_flushed(job, True)
        self.checkpoint.logics_msg_timestamp = self.dispatcher.store_time
        self.index.flushed_all()
        self._note_indexed()
        self.note_confirmed()
        self.checkpoint.flush()
        if self.flags.writeable and self.dispatcher.behind_bytes() == 0:
            self.disk.remove(ABORT)
            self.disk.sync_dir("")

    def _release(self) -> None:
        self.log.queue.close()
        self.queues.close()
        self.index.close()
        self.checkpoint.close()
        with contextlib.suppress(OSError):
            self.disk.reclaim()  # what cannot be unlinked is at the next start
        self.disk.unlock()

    def fence(self, reason: str) -> None:
        """Stop writing for good: after an IO error nothing new may be promised."""
        if not self.fence_reason:
            self.fence_reason = reason
            self.flags.set(RunningFlags.NOT_WRITEABLE)
            self.events.problem(f"the store is fenced: {reason}")

    # -- put -----------------------------------------------------------------------------------

    def put(self, batch: PutBatch, wall_ms: WallMs) -> PutResult:
        """Append a batch, or say why not; it is stored whole or not at all.

        A batch (or its start) that its producer has had stored already is not stored again.
        Raises RepeatUnknown where that cannot be told any more.
        """
        refused = self._not_writable()
        if refused is not None:
            return refused
        try:
            self._check(batch)
            if self._held and not self._held.isdisjoint(batch.light_queues):
                status = PutMessageStatus.SERVICE_NOT_AVAILABLE
                return PutResult(status, "the light queue is being deleted")
            light = self._light_offsets(batch.light_queues)
            if light is None:
                return PutResult(
                    PutMessageStatus.LMQ_CONSUME_QUEUE_NUM_EXCEEDED,
                    "this node has reached its limit of "
                    f"{self.options.max_lmq_consume_queue_num} light queues "
                    "(store.max_lmq_consume_queue_num)",
                )
            if light:
                columns = lightqueues.in_light_queues(batch.columns, *zip(*light, strict=True))
                batch = replace(batch, columns=columns)
        except BadProperties as error:
            return PutResult(PutMessageStatus.PROPERTIES_SIZE_EXCEEDED, error.reason)
        except BodyTooLarge as error:
            return PutResult(PutMessageStatus.MESSAGE_TOO_LARGE, error.reason)
        except BadMessage as error:
            return PutResult(PutMessageStatus.MESSAGE_ILLEGAL, error.reason)
        count = batch.columns.count
        known: list[Run] = []
        if batch.producer:
            known = self.idempotence.stored_prefix(batch.producer, batch.sequence, count)
            if not known and batch.repeat_of is not None:
                self.idempotence.check_not_forgotten(batch.sequence, batch.repeat_of)
        first = sum(run.end - run.first for run in known)
        if first == count:
            return self._stored_before(batch, known)
        if batch.producer and self.idempotence.overlaps_later(
            batch.producer, batch.sequence + first, count - first
        ):
            return PutResult(
                PutMessageStatus.MESSAGE_ILLEGAL,
                f"sequences from {batch.sequence + first} on are partly stored, in other batches",
            )
        result = self._append(batch, first, known, wall_ms)
        if result.status is PutMessageStatus.PUT_OK:
            for name, offset in light:
                self.topic_queue_table[name, 0] = offset + 1
        return result

    def _light_offsets(self, names: tuple[str, ...]) -> list[tuple[str, int]] | None:
        """Where a message stands in its light queues; None if there would be too many."""
        table = self.topic_queue_table
        new = sum((name, 0) not in table for name in names)
        if new and table.light_count + new > self.options.max_lmq_consume_queue_num:
            return None
        end = self.log.wrote_offset
        return [(name, table.get((name, 0), end)) for name in names]

    def hold_light_queues(self, names: Iterable[str]) -> None:
        """Store nothing in light queues while it is decided whether they are forgotten."""
        self._held.update(names)

    def release_light_queues(self, names: Iterable[str], forgotten: bool) -> None:
        """It is decided. forgotten: the next message begins its queue again."""
        for name in names:
            self._held.discard(name)
            if forgotten:
                self.topic_queue_table.forget((name, 0))

    def _not_writable(self) -> PutResult | None:
        status = PutMessageStatus.SERVICE_NOT_AVAILABLE
        if self._closed:
            return PutResult(status, "the store is shut down")
        if self.role is BrokerRole.SLAVE:
            return PutResult(status, "this node is a slave")
        if not self.flags.writeable:
            why = self.fence_reason or ", ".join(self.flags.names())
            return PutResult(status, f"the store is not writeable: {why}")
        return None

    def _check(self, batch: PutBatch) -> None:
        check_topic(batch.topic)
        if not 0 <= batch.queue_id <= QUEUE_ID_MAX:
            raise BadMessage(f"queue id {batch.queue_id} is outside 0..{QUEUE_ID_MAX}")
        if not 1 <= batch.columns.count <= MESSAGES_PER_BATCH_MAX:
            raise BadMessage(f"a batch of {batch.columns.count} messages is not allowed")
        if len(batch.producer) not in (0, 10):
            raise BadMessage(f"the producer id has {len(batch.producer)} bytes, it must have 10")
        if not 0 <= batch.sequence < 1 << 48:
            raise BadMessage(f"sequence {batch.sequence} is outside 0..2^48 - 1")
        if not -(1 << 63) <= batch.born_time < 1 << 63 or not -(1 << 31) <= batch.flag < 1 << 31:
            raise BadMessage("born time or flag does not fit its field")
        hidden = batch.sysflag & TRANSACTION_MASK in (TRANSACTION_PREPARED, TRANSACTION_ROLLBACK)
        if hidden and batch.columns.count > 1:
            raise BadMessage("a batch may not carry transaction messages")
        if batch.fields is not None and batch.fields.shape != (FIELDS, batch.columns.count):
            raise BadMessage(f"header fields of shape {batch.fields.shape}")
        batch.columns.check(self.options.max_message_size)
        if batch.light_queues:
            lightqueues.check_names(batch.light_queues)
            if hidden or batch.columns.count > 1:
                raise BadMessage("only a single message may be in light queues")
        if lightqueues.claims_light_queues(batch.columns):
            raise BadMessage(
                f"{' and '.join(lightqueues.PROPERTIES)} may only be written by the store"
            )

    def _stored_before(self, batch: PutBatch, known: list[Run]) -> PutResult:
        """Answer a repeated batch with its first result; it waits for what the first waited for."""
        last = known[-1]
        queue = self.queues.get(last.topic, last.queue_id)
        newest = queue.entries(last.queue_offset + last.end - last.first - 1, 1) if queue else None
        end = self.log.wrote_offset
        if newest is not None and newest.shape[1]:
            end = int(newest[0, 0] + newest[1, 0])
        return PutResult(PutMessageStatus.PUT_OK, end_offset=end, count=0, duplicates=tuple(known))

    def _append(self, batch: PutBatch, first: int, known: list[Run], wall_ms: WallMs) -> PutResult:
        store_time = max(wall_ms, self.log.last_store_time)
        header = RecordHeader(
            batch.topic,
            batch.queue_id,
            batch.born_time,
            store_time,
            batch.born_host,
            self.store_host,
            batch.flag,
            batch.sysflag,
            batch.reconsume_times,
            batch.prepared_offset,
        )
        key = (batch.topic, batch.queue_id)
        kind = batch.sysflag & TRANSACTION_MASK
        in_queue = kind not in (TRANSACTION_PREPARED, TRANSACTION_ROLLBACK)
        queue_offset = self.topic_queue_table.get(key, 0) if in_queue else 0
        try:
            where = self.log.append(
                batch.columns,
                header,
                queue_offset,
                batch.producer,
                batch.sequence + first,
                first,
                NO_FIELDS if batch.fields is None else batch.fields,
            )
        except BadMessage as error:
            return PutResult(PutMessageStatus.MESSAGE_ILLEGAL, error.reason)
        except OSError as error:
            return PutResult(
                PutMessageStatus.CREATE_MAPEDFILE_FAILED,
                f"cannot make the next segment: {error.strerror or error}",
            )
        count = batch.columns.count - first
        if in_queue:
            self.topic_queue_table[key] = queue_offset + count
        if batch.producer:
            self.idempotence.add(
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
            queue_offset,
            where.start,
            where.end,
            store_time,
            count,
            tuple(known),
        )

    # -- replication ---------------------------------------------------------------------------

    def append_replica(self, offset: int, data: U8, store_time: int) -> None:
        """Append whole, verified records of a master's log at this log's end, inside one segment.

        Raises OSError if the disk has no room for a segment; the log is then as before.
        """
        if self.log.max_offset == self.log.min_offset:
            self.idempotence.begins_at(offset)  # what its master stored before is not copied
        self.log.append_data(offset, data)
        self.log.last_store_time = max(self.log.last_store_time, store_time)

    def confirm(self, offset: int) -> None:
        """Everything below is confirmed: show it to readers, and do not forget it over a SIGKILL.

        Whoever answers puts notes it here before it answers them.
        """
        self.replicated_offset = offset
        self.checkpoint.note.raise_to(offset, self.flushed_offset)

    def note_confirmed(self) -> None:
        """Put the confirm offset, as far as it is on disk, into the checkpoint."""
        confirmed = min(self.confirm_offset, self.flushed_offset)
        self.checkpoint.confirm_phy_offset = max(self.checkpoint.confirm_phy_offset, confirmed)

    def hide_from(self, offset: int) -> None:
        """Show readers nothing from an offset on until `replicated_offset` passes it.

        Recovery finds records that were stored and never confirmed. Their queue offsets stay
        taken, their entries are built again as they are confirmed.
        """
        offset = max(self.log.min_offset, min(offset, self.log.max_offset))
        if not self.log.is_boundary(offset):
            offset = self.log.min_offset
        self.replicated_offset = offset
        if offset < self.dispatcher.reached:
            # The index may stay ahead: what it names is looked at only below the confirm offset.
            self._cut_queues(offset)
            self.dispatcher.back_to(offset)

    def truncate(self, offset: int) -> None:
        """Cut the log at a record's start, durably, and all that was derived from the rest."""
        assert offset <= self.log.max_offset, "nothing to cut"
        self.forget_confirmed(offset)
        if self.replicated_offset is not None:
            self.replicated_offset = min(self.replicated_offset, offset)
        # From here on a full disk may stop it; it is asked for again then.
        self._cut_log_times(offset)
        drop_floors(self.queues, self.log.corrupt_ranges, offset)
        self._cut_queues(offset)
        if self.index.end_offset >= offset:
            self.index.truncate(offset)
            self.dispatcher.index_again(offset)
        self.dispatcher.back_to(offset)
        self.log.queue.truncate(offset)
        self.log.corrupt_ranges = [r for r in self.log.corrupt_ranges if r.end <= offset]
        self.recover_topic_queue_table()
        self.idempotence.cut(self.topic_queue_table)

    def forget_confirmed(self, offset: int) -> None:
        """Before a cut: other bytes may come in the place of those that were confirmed.

        Durable when it returns, or a power cut could bring back a claim to bytes that are gone.
        """
        checkpoint = self.checkpoint
        lowered = checkpoint.confirm_phy_offset > offset
        checkpoint.confirm_phy_offset = min(checkpoint.confirm_phy_offset, offset)
        if checkpoint.note.lower_to(offset) or lowered:
            checkpoint.flush()

    def _cut_queues(self, offset: int) -> None:
        """Cut the queues' entries, which the checkpoint may have told recovery to rely on."""
        trusted = self._time_before(offset)
        # The next flush speaks of what is dispatched then, not of what was cut.
        self.dispatcher.store_time = min(self.dispatcher.store_time, trusted)
        if self.checkpoint.logics_msg_timestamp > trusted:
            self.checkpoint.logics_msg_timestamp = trusted
            self.checkpoint.flush()
        note_under_way = self.queues.ends.entries_go()
        self.queues.truncate(offset)
        if not note_under_way and self.queues.ends.position > offset:
            self._note_up_to(offset)

    def _time_before(self, offset: int) -> int:
        """A store time that nothing at or after an offset is before, whatever is stored there yet.

        That of the first record of the segment before it: what comes in the place of records that
        are cut may have earlier times than those, by the clock of another node.
        """
        mapped = self.log.queue.find(offset - 1)
        return max(0, self.log.store_time_at(mapped.start)) if mapped is not None else 0

    def _cut_log_times(self, offset: int) -> None:
        """What the checkpoint says of the log, now and after the next flush, ends at an offset."""
        trusted = self._time_before(offset)
        for mapped in self.log.queue.files:
            if mapped.end >= offset:
                mapped.store_time = min(mapped.store_time, trusted)
        checkpoint = self.checkpoint
        checkpoint.physic_msg_timestamp = min(checkpoint.physic_msg_timestamp, trusted)
        checkpoint.index_msg_timestamp = min(checkpoint.index_msg_timestamp, max(0, trusted - 1))
        checkpoint.flush()

    def change_role(self, role: BrokerRole) -> None:
        """Become a master or a slave while readers go on, who see what they saw before.

        A new master gives queue offsets and knows sequences after all that its log holds, also
        what was never confirmed; that stays hidden until it is. Raises OSError if there is no
        room for the queues' entries; the role is then as before.
        """
        if self.role is BrokerRole.SLAVE and role is not BrokerRole.SLAVE:
            visible, arrivals = self.known_confirmed, list(self.dispatcher.arrivals)
            try:
                while self._step_to_end():
                    pass
                self.recover_topic_queue_table()
            finally:
                self.dispatcher.arrivals = arrivals
                self.hide_from(visible)
        self.role = role

    def _step_to_end(self) -> bool:
        """Dispatch what is not confirmed as well; False if nothing is left."""
        try:
            return self.dispatcher.step(self.log.max_offset, False, self._replica_targets())
        except TooManyUnsynced:
            self.queues.sync_touched()
            return True

    @property
    def known_confirmed(self) -> int:
        """Everything below is known to be confirmed, now or by the checkpoint and its note."""
        checkpoint = self.checkpoint
        noted = max(checkpoint.confirm_phy_offset, checkpoint.note.confirmed)
        return max(self.replicated_offset or 0, noted)

    def _replica_targets(self) -> DispatchTargets:
        """What a slave's dispatch feeds: sequences too, a master's puts have noted theirs."""
        index = self.index if self.options.message_index_enable else None
        return DispatchTargets(self.queues, index, self.idempotence)

    def reset(self) -> None:
        """Forget everything: the log will start anew at another offset.

        Before anything goes, the checkpoint says on disk that it vouches for nothing: the log that
        comes may have earlier times, by the clock of another node. Raises OSError.
        """
        checkpoint = self.checkpoint
        checkpoint.physic_msg_timestamp = checkpoint.logics_msg_timestamp = 0
        checkpoint.index_msg_timestamp = 0
        self.dispatcher.store_time = 0  # of which the next flush speaks
        self.forget_confirmed(0)
        checkpoint.flush()
        self.queues.ends.forget()
        self.queues.destroy_logics()
        self.index.drop_from(0)
        self.log.queue.destroy()
        self.log.queue.disk_sync_names()
        self.log.corrupt_ranges.clear()
        self.dispatcher.back_to(0)
        if self.replicated_offset is not None:
            self.replicated_offset = 0
        self.topic_queue_table = QueueEnds()
        self.idempotence.cut({})

    # -- flush, dispatch -----------------------------------------------------------------------

    @property
    def flushed_offset(self) -> int:
        """Everything below is on disk."""
        return self.log.queue.flushed_where

    @property
    def local_offset(self) -> int:
        """Everything below is as safe on this node as was asked for: on disk under SYNC_FLUSH."""
        queue = self.log.queue
        return queue.flushed_where if self._sync_flush else queue.max_offset

    @property
    def confirm_offset(self) -> int:
        """Readers see nothing from here on: what is not safe here, or not on enough replicas."""
        local, replicated = self.local_offset, self.replicated_offset
        return local if replicated is None or replicated > local else replicated

    def commit_log_flushed(self, job: FlushJob) -> None:
        """Take a successful commit-log job's word."""
        self.log.queue.flushed(job)
        self.checkpoint.physic_msg_timestamp = max(
            self.checkpoint.physic_msg_timestamp, job.store_time
        )

    def queues_flush_job(self, least_pages: int) -> FlushJob | None:
        """All steps of `queues_flush` at once."""
        return at_once(self.queues_flush(least_pages))

    def queues_flush(self, least_pages: int) -> Generator[None, None, FlushJob | None]:
        """Sync all queues that are worth it, and the directories that got new names.

        least_pages: 0 syncs everything, which is noted then. A few queues at each step: the store
        may be put to between them, but nothing cut or removed. None: there is nothing to do.
        """
        store_time = self.dispatcher.store_time
        if self._pending_note is not None:  # nobody took its word: a stop was faster
            self.queues.changed.update(self._pending_note.ends)
            self._pending_note = None
        note = None
        if least_pages == 0 and self.queues.changed:
            note = self.queues.ends.begin(self.dispatcher.reput_from, self._indexed_up_to)
            self._pending_note = note
            yield from self.queues.fill(note)
        # After the note: whatever it tells of is among them.
        self._flushing = queues = self.queues.to_flush(least_pages == 0)
        rows = [queue.files for queue in queues] + [ext.files for ext in self.queues.ext.values()]
        jobs = []
        for queue in queues:
            queue.let_go()
        for number, files in enumerate(rows, 1):
            job = files.flush_job(least_pages)
            if job is not None:
                jobs.append(job)
            if number % QUEUES_AT_ONCE == 0:
                yield
        merged = FlushJob.of(self.disk, jobs, self.queues.directories_to_sync(), store_time)
        if not (merged.files or merged.directories or note is not None):
            return None
        if note is not None:
            merged.then = note.write
        return merged

    def queues_flushed(self, job: FlushJob, thorough: bool) -> None:
        """Take a successful queues job's word; after a thorough one the checkpoint may move."""
        job.done()
        self.queues.flushed(self._flushing)
        note, self._pending_note = self._pending_note, None
        if note is not None:
            self.queues.noted_now(note)
            if note.overtaken:  # it told of entries that were cut while it was written
                self.queues.sync_touched()
                self._write_note()
        if thorough:
            self.checkpoint.logics_msg_timestamp = max(
                self.checkpoint.logics_msg_timestamp, job.store_time
            )

    def dispatch(self) -> bool:
        """Build queues and index for the next stretch of log; False if nothing is left to do.

        An error stops it (False) and raises a flag that refuses puts: DISK_FULL, or for any other
        WRITE_LOGICS_QUEUE_ERROR, lowered by itself. It goes on where it stood, by the next call;
        where it waits for a flush of the queues, nothing is wrong.
        """
        flag = RunningFlags.WRITE_LOGICS_QUEUE_ERROR
        try:
            targets = self._replica_targets() if self.role is BrokerRole.SLAVE else None
            more = self.dispatcher.step(self.confirm_offset, False, targets)
            self.flags.clear(flag)
            return more
        except TooManyUnsynced:
            return False
        except OSError as error:
            if no_room(error):
                flag = RunningFlags.DISK_FULL
            if not self.flags.has(flag):
                what = f"{error.strerror or error}" + (
                    f": {error.filename}" if error.filename else ""
                )
                self.events.problem(
                    f"queues and index cannot follow the log, puts are refused: {what}"
                )
            self.flags.set(flag)
            return False

    def _dispatch_all(self) -> None:
        while self.dispatch() or self.queues.make_room():
            pass

    def take_arrivals(self) -> list[Arrival]:
        """Queues that got entries since the last call."""
        arrivals, self.dispatcher.arrivals = self.dispatcher.arrivals, []
        return arrivals

    # -- reading -------------------------------------------------------------------------------

    def get(
        self,
        topic: str,
        queue_id: int,
        queue_offset: int,
        messages_max: int = 32,
        bytes_max: int = 262_144,
        tags_codes: I64 = EMPTY_I64,
        bits: FilterBits | None = None,
    ) -> GetResult:
        """Messages of a queue from an offset on, as columns: see `ColumnReader.read`."""
        if not self.flags.readable or self._closed:
            raise StoreClosed()
        key = (topic, queue_id)
        result = self._reader.read(
            self.queues.get(*key),
            queue_offset,
            messages_max,
            bytes_max,
            tags_codes,
            self.queues.ext.get(key),
            bits,
        )
        if result.status in _PAST_THE_END and self._may_come(key, queue_offset):
            return result.yet_to_come(queue_offset)
        return result

    def _may_come(self, key: tuple[str, int], queue_offset: int) -> bool:
        """Tell whether an offset past a queue's end is one that readers will see later.

        Stored and not confirmed yet, or not on disk where that is waited for (a slave may be faster
        and show it); or confirmed, and on its way to this slave.
        """
        if self.role is BrokerRole.SLAVE:
            return queue_offset > 0
        return 0 < queue_offset <= self.topic_queue_table.get(key, 0)

    def get_message(self, physical_offset: int) -> Record:
        """The record at a commit-log offset below the confirm offset, verified."""
        if physical_offset >= self.confirm_offset:
            raise OffsetOutOfRange(physical_offset, self.log.min_offset, self.confirm_offset)
        return self.log.get_message(physical_offset)

    def record_at(self, topic: str, queue_id: int, queue_offset: int) -> Record | None:
        """The record at a queue offset, or None if there is none. Raises CorruptRecord."""
        result = self.get(topic, queue_id, queue_offset, 1, 1)
        if not result.count or int(result.table[decode.OUT_QUEUE_OFFSET, 0]) != queue_offset:
            return None
        return self.get_message(int(result.table[decode.OUT_PHY, 0]))

    def born_host(self, physical_offset: int) -> Host:
        """Who sent the record at an offset that a queue entry names."""
        data = self.log.get_data(physical_offset)
        sysflag = int.from_bytes(data[36:40].tobytes(), "big")
        return Host.unpacked(data[48 : 68 if sysflag & BORN_HOST_V6 else 56].tobytes())

    def find_by_id(self, message_id: str) -> Record:
        """The record an offset message id names. The id is checked, its offset never trusted.

        Raises BadMessage for no id, OffsetOutOfRange or CorruptRecord if it names no record.
        """
        _, physical_offset = parse_message_id(message_id)
        return self.get_message(physical_offset)

    def find_by_key(
        self, topic: str, key: str, count: int = 32, begin_ms: int = 0, end_ms: int = 1 << 62
    ) -> list[Record]:
        """Records of a topic with a key (KEYS token or UNIQ_KEY), oldest first, at most count.

        Only records that truly carry the key and were stored in [begin_ms, end_ms] are answered.
        """
        count = max(1, min(count, self.options.max_msgs_num_batch))
        found: dict[int, Record] = {}
        word = next(filter(None, key.split(" ")), key)  # the index has the words of a spaced key
        for offset in self.index.find(topic, word, 4 * count + 64, begin_ms, end_ms):
            if offset in found or len(found) >= count:
                continue
            try:
                record = self.get_message(offset)
            except StoreError:
                continue
            if record_has_key(record, topic, key) and begin_ms <= record.store_time <= end_ms:
                found[offset] = record
        return [found[offset] for offset in sorted(found)]

    def find_by_unique_key(self, topic: str, uniq_key: str) -> Record | None:
        """The record with a UNIQ_KEY; of several (a resend) the one stored first."""
        records = self.find_all_by_unique_key(topic, uniq_key)
        return min(records, key=lambda record: record.store_time, default=None)

    def find_all_by_unique_key(self, topic: str, uniq_key: str) -> list[Record]:
        """The records with a UNIQ_KEY, by offset: attempts of one message have the same."""
        return [
            record
            for record in self.find_by_key(topic, uniq_key)
            if record.properties.get("UNIQ_KEY") == uniq_key
        ]

    def offset_at_time(self, topic: str, queue_id: int, time_ms: int) -> int:
        """Queue offset of the first message stored at or after a time; 0 for no such queue."""
        queue = self.queues.get(topic, queue_id)
        if queue is None:
            return 0
        return queue.offset_at_time(time_ms, self.log.store_time_at, self.log.queue.held_from)

    def offset_at_size(self, topic: str, queue_id: int, queue_offset: int, size: int) -> int:
        """Queue offset up to which the records from another one on have at most size bytes.

        At least one record further, where there is one.
        """
        queue = self.queues.get(topic, queue_id)
        return queue.offset_at_size(queue_offset, size) if queue else queue_offset

    def queue_range(self, topic: str, queue_id: int) -> tuple[int, int]:
        """Queue offsets [min, max) that can be read."""
        queue = self.queues.get(topic, queue_id)
        return (queue.min_offset, queue.max_offset) if queue else (0, 0)


def record_has_key(record: Record, topic: str, key: str) -> bool:
    """Tell whether a record is of a topic and carries a key; hashes alone may clash."""
    if record.topic != topic:
        return False
    return key in keys_of(record.properties) or record.properties.get("UNIQ_KEY") == key


__all__ = [
    "CorruptRecord",
    "GetMessageStatus",
    "MessageStore",
    "PutBatch",
    "PutResult",
    "StoreEvents",
]
