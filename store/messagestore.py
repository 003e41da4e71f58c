"""MessageStore: the engine's face. Put, get, query, flush, recover, clean.

What it does itself is to begin and end, to tell what readers may see, and to change its role; the
rest is done by the parts that it is made of.

Single owner: every method but `FlushJob.run` is called from one thread. Nothing here waits: what
must wait (for a flush, for an arrival) learns it from offsets that the owner watches.
"""

import contextlib
import sys
from collections.abc import Callable, Collection, Generator, Iterable
from dataclasses import dataclass, field, replace

import numpy as np

from duolog_server.store import copied, recovery
from duolog_server.store.checkpoint import StoreCheckpoint
from duolog_server.store.clocks import WallMs
from duolog_server.store.commitlog import CommitLog
from duolog_server.store.consumequeue import BLANK
from duolog_server.store.copied import ABORT, LOCK, RESTORING
from duolog_server.store.cuts import Cuts
from duolog_server.store.delay import parse_delay_levels
from duolog_server.store.disk import Disk, no_room
from duolog_server.store.dispatch import NEW_QUEUES_MAX, Arrival, Dispatcher, DispatchTargets
from duolog_server.store.errors import (
    BadStoreDirectory,
    CorruptRecord,
    OffsetOutOfRange,
    StoreClosed,
    StoreError,
)
from duolog_server.store.idempotence import IdempotenceTable
from duolog_server.store.indexservice import IndexService
from duolog_server.store.kernels import decode
from duolog_server.store.kernels.jit import I64, U8
from duolog_server.store.lookups import Lookups
from duolog_server.store.mappedfile import FlushJob
from duolog_server.store.metadata import SYSTEM_TOPIC, follow_moves
from duolog_server.store.metadatafiles import SavedEnds, Snapshots
from duolog_server.store.moves import Moves
from duolog_server.store.offsets import PhyOffset, QueueOffset
from duolog_server.store.openfiles import TooManyUnsynced
from duolog_server.store.options import StoreOptions
from duolog_server.store.puts import PutBatch, PutResult, Puts, Singles, SinglesResult
from duolog_server.store.queueends import QueueEnds, QueueKey
from duolog_server.store.queueflushes import Derived, QueueFlushes, at_once
from duolog_server.store.queuenote import NOT_INDEXED
from duolog_server.store.queues import ConsumeQueues
from duolog_server.store.reader import (
    ANY,
    ColumnReader,
    GetMessageStatus,
    GetResult,
    Wanted,
    outside_of,
)
from duolog_server.store.record import (
    BORN_HOST_V6,
    LOCAL_HOST,
    Host,
    Record,
)
from duolog_server.store.recovery import Recovery, RecoveryReport
from duolog_server.store.retention import Retention
from duolog_server.store.scanahead import Lend
from duolog_server.store.status import BrokerRole, PutMessageStatus, RunningFlags

STOPPED = "stopped"  # the same file after a clean stop: a full disk may have no inode for another
FENCED = b"fenced\n"  # what a process writes into it that is fenced
_PAST_THE_END = (
    GetMessageStatus.OFFSET_OVERFLOW_BADLY,
    GetMessageStatus.NO_MATCHED_LOGIC_QUEUE,
    GetMessageStatus.NO_MESSAGE_IN_QUEUE,
)


@dataclass(slots=True)
class StoreEvents:
    """Callbacks for what the owner should log or show.

    problem: damage, and what is done about it. fenced, stuck: the two reasons for which nothing is
    stored any more, or for now; told as problems where nobody asks for them. copied: the directory
    is a copy that has not all of what its original had. full: the disk is too full, and why; empty
    once it has room again.
    """

    problem: Callable[[str], None] = field(default=lambda text: None)
    fenced: Callable[[str], None] | None = None
    stuck: Callable[[str], None] | None = None
    copied: Callable[[str], None] = field(default=lambda text: None)
    full: Callable[[str], None] = field(default=lambda reason: None)
    progress: Callable[[int, int], None] = field(default=lambda done, total: None)


class MessageStore:
    """An open store directory."""

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
        self.retention.tell = lambda reason: self.events.full(reason)
        self.puts = Puts(options, self.log, self.queues, self.idempotence, store_host)
        self.moves = Moves()  # as readers see them: those of the tables
        self._flushes = QueueFlushes(disk, self.queues, self._derived)
        self._cuts = Cuts(
            self.log, self.queues, self.index, self.dispatcher, self.checkpoint, self._flushes
        )
        self.lend: Lend | None = None  # lends a thread to recovery, where it is set before `start`
        self.fence_reason = ""
        self.fenced_before = False  # the process before this one was fenced, and could say so
        self.replicated_offset: PhyOffset | None = None  # confirmed by replicas; None: not required
        self._closed = True
        self._snapshots: Snapshots | None = None  # read by `start`
        self.lookups = Lookups(self.index, self.get_message, options.max_msgs_num_batch)
        self._reader = ColumnReader(
            self.log, max(8 << 20, options.max_message_size), options.check_crc_on_read
        )

    # -- life ----------------------------------------------------------------------------------

    def start(self, locked: Callable[[], None] = lambda: None) -> RecoveryReport:
        """Lock, load, recover, and catch up the queues; afterwards the store can be used.

        locked: called before anything is read, once no other process uses the directory. Raises
        StoreLocked, BadStoreDirectory or OSError, and what `locked` raises; the directory is then
        as it was.
        """
        self.disk.lock(LOCK)
        try:
            if self.disk.size(RESTORING) >= 0:
                raise BadStoreDirectory(
                    RESTORING,
                    "a restore of a backup into this directory has not ended: repeat `duolog store "
                    "restore`, or empty the directory",
                )
            locked()
            abnormal = self.disk.size(ABORT) >= 0
            self.fenced_before = abnormal and self._noted_fence()
            self.log.queue.load()
            self.checkpoint.load()
            same_boot = not abnormal or self.checkpoint.note.is_of(self.boot_id)
            queues_sound = recovery.load_queues(self.queues, same_boot, self.events.problem)
            trusted = self.checkpoint.index_msg_timestamp if abnormal else None
            recovery.load_index(self.index, trusted, self.events.problem)
            snapshots = self._snapshots = Snapshots.read(self.disk)
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
                snapshots.ends,
                snapshots.consumed,
                lend=self.lend,
                copied=self.events.copied if copied.is_copied(self.disk) else None,
            )
            report = work.run(abnormal, queues_sound)
            self._note_indexed()
            report = replace(report, lacks_confirmed=self._settle_confirmed(abnormal))
            if self.disk.size(STOPPED) >= 0:
                self.disk.rename(STOPPED, ABORT)
            self.disk.write(ABORT, copied.note(self.disk))
            self.disk.sync_dir("")
            self._dispatch_all(self.confirm_offset)
            self.recover_topic_queue_table()
            for key, end in work.ends.items():
                self.topic_queue_table[key] = max(end, self.topic_queue_table.get(key, 0))
            if not work.noted:
                self._flushes.note_all()
            self.dispatcher.new_queues_max = NEW_QUEUES_MAX
        except BaseException:
            self._release()
            raise
        self._closed = False
        return report

    def take_snapshots(self) -> Snapshots:
        """The snapshots of the metadata tables, as `start` read them; they are taken once."""
        taken, self._snapshots = self._snapshots or Snapshots.read(self.disk), None
        return taken

    def _derived(self) -> Derived:
        """How far queues and index have followed the log."""
        return Derived(self.dispatcher.reput_from, self._indexed_up_to, self.dispatcher.store_time)

    @property
    def _indexed_up_to(self) -> int:
        """The newest indexed record; a constant if the index is off."""
        return self.index.newest if self.options.message_index_enable else NOT_INDEXED

    def index_flushed(self) -> None:
        """Note the success of a job of `index.flush_full_job`."""
        self.index.flushed_full()
        self._note_indexed()

    def _note_indexed(self) -> None:
        """Record in the checkpoint up to when index files are full and synced: recovery relies on
        it.
        """
        newest = self.index.flushed_end_time
        self.checkpoint.index_msg_timestamp = max(self.checkpoint.index_msg_timestamp, newest)

    def _settle_confirmed(self, abnormal: bool) -> bool:
        """Trust the confirm offset of the checkpoint as far as the log holds it.

        Whether the log lacks what was confirmed, as an older copy of it does.
        """
        end, checkpoint = self.log.max_offset, self.checkpoint
        known = max(checkpoint.confirm_phy_offset, checkpoint.note.known(self.boot_id, abnormal))
        checkpoint.note.settle(self.boot_id, self.log.sound_end, end, abnormal)
        durable = max(checkpoint.confirm_phy_offset, checkpoint.note.durable)
        checkpoint.confirm_phy_offset = min(durable, end)
        return end < known

    @property
    def topic_queue_table(self) -> QueueEnds:
        """The queue offset that the next message of every queue gets."""
        return self.puts.ends

    def recover_topic_queue_table(self) -> None:
        """Compute the next queue offset of every queue; everything is dispatched at this point."""
        self.puts.ends = QueueEnds(
            ((queue.topic, queue.queue_id), queue.max_offset)
            for queue in self.queues
            if queue.max_offset or not queue.begins_again
        )
        for queue in self.queues:
            queue.correct_min_offset(self.log.min_offset)

    def shutdown(self) -> None:
        """Make everything durable, record the clean stop, and release the directory."""
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
        # Also what no replica has confirmed yet, as a recovery does: nobody reads from here on, and
        # a clean stop that is taken for a crash would cost a member its place after a reboot.
        self._dispatch_all(self.log.max_offset)
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
            self.disk.rename(ABORT, STOPPED)
            self.disk.sync_dir("")

    def abandon(self) -> None:
        """Release the directory as a kill would: nothing is flushed, no clean stop is recorded."""
        self._closed = True
        self._release()

    @property
    def writeable(self) -> bool:
        """No flag of the store refuses puts."""
        return self.flags.writeable

    @property
    def closed(self) -> bool:
        """Whether it is not started yet, shut down or abandoned."""
        return self._closed

    def _release(self) -> None:
        self.log.queue.close()
        self.queues.close()
        self.index.close()
        self.checkpoint.close()
        with contextlib.suppress(OSError):
            self.disk.reclaim()  # what cannot be unlinked is unlinked at the next start
        self.disk.unlock()

    def _noted_fence(self) -> bool:
        try:
            return self.disk.read(ABORT) == FENCED
        except OSError:
            return False

    def note_fence(self) -> None:
        """Leave word for the next start that this process was fenced.

        Its disk may have failed: this may raise OSError, and may not return.
        """
        assert self.fence_reason, "only of a fenced store"
        self.disk.write(ABORT, FENCED)

    def fence(self, reason: str) -> None:
        """Stop writing for good: after an IO error, nothing may be acknowledged any more."""
        if not self.fence_reason:
            self.fence_reason = reason
            self.flags.set(RunningFlags.NOT_WRITEABLE)
            tell = self.events.fenced or self.events.problem
            tell(f"the store is fenced: {reason}")

    # -- put -----------------------------------------------------------------------------------

    def put(self, batch: PutBatch, wall_ms: WallMs) -> PutResult:
        """Append a batch, or return why not; it is stored whole or not at all.

        A batch (or its start) that its producer has had stored already is not stored again. Raises
        RepeatUnknown where that is no longer known.
        """
        refused = self._not_writable()
        if refused is not None:
            return refused
        result = self.puts.put(batch, wall_ms)
        self._note_refusal(result.status)
        return result

    def put_singles(self, singles: Singles, wall_ms: WallMs) -> SinglesResult:
        """Append messages of several queues of a topic, all of them or none."""
        refused = self._not_writable()
        if refused is not None:
            return SinglesResult(refused.status, refused.reason)
        result = self.puts.put_singles(singles, wall_ms)
        self._note_refusal(result.status)
        return result

    def hold_light_queues(self, names: Iterable[str]) -> None:
        """Store nothing in light queues while their removal is being decided."""
        self.puts.light.hold(names)

    def release_light_queues(self, names: Collection[str], forgotten: bool) -> None:
        """It is decided. forgotten: the next message begins its queue again."""
        self.puts.light.release(names)
        for name in names if forgotten else ():
            self.topic_queue_table.forget((name, 0))

    def _note_refusal(self, status: PutMessageStatus) -> None:
        if status is PutMessageStatus.CREATE_MAPEDFILE_FAILED:
            self.retention.refuse()

    def _not_writable(self) -> PutResult | None:
        status = PutMessageStatus.SERVICE_NOT_AVAILABLE
        if self._closed:
            return PutResult(status, "the store is shut down")
        if self.role is BrokerRole.SLAVE:
            return PutResult(status, "this node is a slave")
        if not self.flags.writeable:
            why = self.fence_reason or ", ".join(self.flags.names())
            if not self.fence_reason and self.flags.has(RunningFlags.DISK_FULL):
                why += f" ({self.retention.full_reason})"
            return PutResult(status, f"the store is not writeable: {why}")
        return None

    # -- replication ---------------------------------------------------------------------------

    def append_replica(
        self, offset: PhyOffset, data: U8, store_time: int, rows: I64 | None = None
    ) -> None:
        """Append whole, verified records of a master's log at this log's end, inside one segment.

        rows: describe all of them (see `store.kernels.scan`), so that dispatch need not scan them.
        Raises OSError where the disk has no room for a segment; the log is then as before.
        """
        if self.log.max_offset == self.log.min_offset:
            self.idempotence.begins_at(offset)  # what its master stored before is not copied
        self.log.append_data(offset, data)
        self.log.last_store_time = max(self.log.last_store_time, store_time)
        if rows is not None:
            base = offset - offset % self.log.queue.file_size
            self.dispatcher.arrived.add(offset, base, rows)

    def confirm(self, offset: PhyOffset) -> None:
        """Everything below an offset is confirmed: show it to readers, and keep that across a
        SIGKILL.

        To be called before the puts are answered.
        """
        self.replicated_offset = offset
        self.checkpoint.note.raise_to(offset, self.flushed_offset)

    def confirm_by_itself(self) -> None:
        """No replica is required: readers see what is durable on this node."""
        self.replicated_offset = None

    def note_confirmed(self) -> None:
        """Record the confirm offset, as far as it is on disk, in the checkpoint."""
        confirmed = min(self.confirm_offset, self.flushed_offset)
        self.checkpoint.confirm_phy_offset = max(self.checkpoint.confirm_phy_offset, confirmed)

    def hide_from(self, offset: PhyOffset) -> None:
        """Show readers nothing from an offset on until `replicated_offset` passes it.

        Recovery finds records that were stored and never confirmed. Their queue offsets stay
        taken, their entries are built again as they are confirmed.
        """
        offset = max(self.log.min_offset, min(offset, self.log.max_offset))
        if not self.log.is_boundary(offset):
            offset = self.log.min_offset
        self.replicated_offset = offset
        if offset < self.dispatcher.reached:
            self._cuts.hide_from(offset)

    def truncate(self, offset: PhyOffset) -> None:
        """Truncate the log at a record's start, durably, with everything derived from the rest."""
        assert offset <= self.log.max_offset, "nothing to cut"
        self.forget_confirmed(offset)
        if self.replicated_offset is not None:
            self.replicated_offset = min(self.replicated_offset, offset)
        # From here on a full disk may interrupt it; the caller then repeats it.
        self._cuts.truncate(offset)
        self.recover_topic_queue_table()
        self.idempotence.cut(self.topic_queue_table)

    def forget_confirmed(self, offset: PhyOffset) -> None:
        """Before a cut: see `Cuts.forget_confirmed`."""
        self._cuts.forget_confirmed(offset)

    def change_role(self, role: BrokerRole) -> None:
        """Become a master or a slave while readers continue and see the same as before.

        A new master assigns queue offsets and recognises sequences after everything in its log,
        including unconfirmed records, which stay hidden until they are confirmed. Raises OSError
        where there is no room for the queues' entries; the role is then as before.
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
        """Dispatch unconfirmed records as well; False if nothing is left."""
        try:
            return self.dispatcher.step(self.log.max_offset, False, self._replica_targets())
        except TooManyUnsynced:
            self.queues.sync_touched()
            return True

    @property
    def known_confirmed(self) -> PhyOffset:
        """Everything below is known to be confirmed, now or by the checkpoint and its note."""
        checkpoint = self.checkpoint
        noted = max(checkpoint.confirm_phy_offset, checkpoint.note.confirmed)
        return max(self.replicated_offset or PhyOffset(0), PhyOffset(noted))

    def _replica_targets(self) -> DispatchTargets:
        """The targets of a slave's dispatch: also sequences, which a master's puts have added
        already.
        """
        index = self.index if self.options.message_index_enable else None
        return DispatchTargets(self.queues, index, self.idempotence)

    def reset(self) -> None:
        """Forget everything: the log will start again at another offset. Raises OSError."""
        self._cuts.reset()
        if self.replicated_offset is not None:
            self.replicated_offset = PhyOffset(0)
        self.puts.ends = QueueEnds()
        self.idempotence.cut({})

    def raise_floor(self, topic: str, queue_id: int, queue_offset: QueueOffset) -> None:
        """Hide the messages of a queue below an offset for good; no put gets a lower one.

        For queues of deleted topics: a new topic of the same name begins where the old one ended.
        """
        self.raise_minimum(topic, queue_id, queue_offset)
        key = (topic, queue_id)
        self.topic_queue_table[key] = max(self.topic_queue_table.get(key, 0), queue_offset)

    def raise_minimum(self, topic: str, queue_id: int, queue_offset: QueueOffset) -> None:
        """Hide the messages of a queue below an offset, up to its end.

        The queue, its puts and its records in the log stay as they are.
        """
        self.queues.raise_minimum((topic, queue_id), queue_offset)

    def show_hidden(self, topic: str, queue_id: int) -> None:
        """Show messages of a queue again that are still held. Raises OSError."""
        self.queues.show_hidden((topic, queue_id), self.log.min_offset)

    def drop_unbegun(self, topic: str, queue_id: int, floor: int) -> None:
        """At start: remove files of a queue that has no message, and ends below its floor.

        A kill leaves them where the record of their first entry did not reach the disk. The next
        one, at the floor, would be behind a gap.
        """
        key, queue = (topic, queue_id), self.queues.get(topic, queue_id)
        empty = queue is not None and queue.max_physical_offset < 0
        if empty and self.topic_queue_table.get(key, 0) < floor:
            self.queues.remove(*key)
            self.topic_queue_table.forget(key)

    def keep_to(self, moves: Moves, applied: int) -> None:
        """Keep to what the tables say of moves, from now on; a master's puts also to the records in
        the log from a queue offset on, of which readers may not see the newest yet.
        """
        at_end, self.moves = moves.copy(), moves
        starts: list[int] = []
        if self.role is not BrokerRole.SLAVE:
            found = self.entries(SYSTEM_TOPIC, 0, applied, self.next_offset(SYSTEM_TOPIC, 0))
            starts += found[0, found[1] != BLANK].tolist()
            starts += self.not_dispatched(SYSTEM_TOPIC, 0)
        for start in starts:
            with contextlib.suppress(StoreError):  # damaged: nobody knows what it said
                follow_moves(at_end, self.log.get_message(PhyOffset(start)).body)
        self.puts.keep_to(at_end)
        for (topic, queue_id), first in moves.opened():
            self.raise_floor(topic, queue_id, QueueOffset(first))

    def remove_topic(self, topic: str) -> None:
        """Remove a topic's queues and their files. Raises OSError."""
        self.queues.remove_topic(topic)

    def find_since(self, born: Callable[[str], int], minimum: Callable[[str, int], int]) -> None:
        """From now on, lookups find nothing that is older than its topic, or hidden in its queue.

        born: the topic's log offset. minimum: the queue offset below which messages are hidden.
        """
        self.lookups.born, self.lookups.minimum = born, minimum

    def calculate_filter_bits(self, bit_map_of: Callable[[str, bytes], bytes]) -> None:
        """Have dispatch note with every entry which filters match the message."""
        self.dispatcher.bit_map_of = bit_map_of

    # -- flush, dispatch -----------------------------------------------------------------------

    @property
    def min_offset(self) -> PhyOffset:
        """Log offset of the oldest record."""
        return self.log.min_offset

    @property
    def max_offset(self) -> PhyOffset:
        """Log offset after the newest record."""
        return self.log.max_offset

    @property
    def dispatched_offset(self) -> PhyOffset:
        """Queues and index have everything below."""
        return PhyOffset(self.dispatcher.reput_from)

    def not_dispatched(self, topic: str, queue_id: int) -> list[PhyOffset]:
        """Log offsets of a queue's records that are not dispatched yet.

        There are some after a start on a full disk, for example.
        """
        found = self.dispatcher.offsets_of(
            (topic, queue_id), self.dispatched_offset, self.log.max_offset
        )
        return [PhyOffset(offset) for offset in found]

    @property
    def flushed_offset(self) -> PhyOffset:
        """Everything below is on disk."""
        return PhyOffset(self.log.queue.flushed_where)

    @property
    def local_offset(self) -> PhyOffset:
        """Everything below is as durable on this node as configured: on disk under SYNC_FLUSH."""
        queue = self.log.queue
        return PhyOffset(queue.flushed_where if self._sync_flush else queue.max_offset)

    @property
    def confirm_offset(self) -> PhyOffset:
        """Readers see nothing from here on: it is not durable here, or not on enough replicas."""
        local, replicated = self.local_offset, self.replicated_offset
        return local if replicated is None or replicated > local else replicated

    def commit_log_flushed(self, job: FlushJob) -> None:
        """Note the success of a commit-log job."""
        self.log.queue.flushed(job)
        self.checkpoint.physic_msg_timestamp = max(
            self.checkpoint.physic_msg_timestamp, job.store_time
        )

    def queues_flush_job(self, least_pages: int) -> FlushJob | None:
        """All steps of `queues_flush` at once."""
        return at_once(self.queues_flush(least_pages))

    def queues_flush(self, least_pages: int) -> Generator[None, None, FlushJob | None]:
        """Sync all queues with enough dirty pages, in steps: see `QueueFlushes.job`."""
        return self._flushes.job(least_pages)

    def queues_flushed(self, job: FlushJob, thorough: bool) -> None:
        """Note the success of a queues job; after a thorough one the checkpoint may move."""
        self._flushes.done(job)
        if thorough:
            self.checkpoint.logics_msg_timestamp = max(
                self.checkpoint.logics_msg_timestamp, job.store_time
            )

    def dispatch(self) -> bool:
        """Build queues and index for the next range of log; False if nothing is left to do.

        An error stops it (False) and sets a flag that refuses puts: DISK_FULL, or
        WRITE_LOGICS_QUEUE_ERROR for any other error, cleared by the next success. The next call
        continues at the same place. Waiting for a flush of the queues is no error.
        """
        return self._dispatch_below(self.confirm_offset)

    def _dispatch_below(self, end: int) -> bool:
        flag = RunningFlags.WRITE_LOGICS_QUEUE_ERROR
        try:
            targets = self._replica_targets() if self.role is BrokerRole.SLAVE else None
            more = self.dispatcher.step(end, False, targets)
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
                tell = self.events.stuck or self.events.problem
                tell(f"queues and index cannot follow the log, puts are refused: {what}")
            self.flags.set(flag)
            return False

    def _dispatch_all(self, end: int) -> None:
        while self._dispatch_below(end) or self.queues.make_room():
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
        queue_offset: QueueOffset,
        wanted: Wanted = ANY,
    ) -> GetResult:
        """Messages of a queue from an offset on, as columns: see `ColumnReader.read`."""
        if not self.flags.readable or self._closed:
            raise StoreClosed()
        key = (topic, queue_id)
        result = self._reader.read(
            self.queues.get(*key),
            queue_offset,
            wanted,
            self.queues.ext.get(key),
        )
        if self.moves.guests:
            first = self.moves.first_of(topic, queue_id)
            if first is not None and result.max_offset <= first:
                low, high = self.queue_range(topic, queue_id)
                result = outside_of(queue_offset, low, high) or result
        if result.status in _PAST_THE_END and self._may_come(key, queue_offset):
            return result.yet_to_come(queue_offset)
        return result

    def _may_come(self, key: tuple[str, int], queue_offset: QueueOffset) -> bool:
        """Tell whether an offset past a queue's end is one that readers will see later.

        Stored and not confirmed yet, or not on disk where that is waited for (a slave may be faster
        and show it); or confirmed, and on its way to this slave.
        """
        if self.role is BrokerRole.SLAVE:
            return queue_offset > 0
        return 0 < queue_offset <= self.topic_queue_table.get(key, 0)

    def get_message(self, physical_offset: PhyOffset) -> Record:
        """The record at a commit-log offset below the confirm offset, verified."""
        if physical_offset >= self.confirm_offset:
            raise OffsetOutOfRange(physical_offset, self.log.min_offset, self.confirm_offset)
        return self.log.get_message(physical_offset)

    def record_at(self, topic: str, queue_id: int, queue_offset: QueueOffset) -> Record | None:
        """The record at a queue offset, or None where there is none. Raises CorruptRecord."""
        result = self.get(topic, queue_id, queue_offset, Wanted(1, 1))
        if not result.count or int(result.table[decode.OUT_QUEUE_OFFSET, 0]) != queue_offset:
            return None
        return self.get_message(PhyOffset(int(result.table[decode.OUT_PHY, 0])))

    def born_host(self, physical_offset: PhyOffset) -> Host:
        """The sender of the record at an offset that a queue entry names."""
        data = self.log.get_data(physical_offset)
        sysflag = int.from_bytes(data[36:40].tobytes(), "big")
        return Host.unpacked(data[48 : 68 if sysflag & BORN_HOST_V6 else 56].tobytes())

    def offset_at_time(self, topic: str, queue_id: int, time_ms: int) -> QueueOffset:
        """Queue offset of the first message stored at or after a time; 0 for no such queue."""
        queue = self.queues.get(topic, queue_id)
        if queue is None:
            return self.queue_range(topic, queue_id)[0]
        return queue.offset_at_time(time_ms, self.log.store_time_at, self.log.queue.held_from)

    def offset_at_size(
        self, topic: str, queue_id: int, queue_offset: QueueOffset, size: int
    ) -> QueueOffset:
        """Queue offset up to which the records from another one on have at most size bytes.

        At least one record further, where there is one.
        """
        queue = self.queues.get(topic, queue_id)
        return queue.offset_at_size(queue_offset, size) if queue else queue_offset

    def offset_in_log(self, topic: str, queue_id: int, physical_offset: PhyOffset) -> QueueOffset:
        """Queue offset of the first message at or after a log offset; 0 for no such queue."""
        queue = self.queues.get(topic, queue_id)
        if queue is None:
            return self.queue_range(topic, queue_id)[0]
        return QueueOffset(queue.next_from(queue.min_offset, physical_offset))

    def queue_range(self, topic: str, queue_id: int) -> tuple[QueueOffset, QueueOffset]:
        """Queue offsets [min, max) that can be read."""
        queue, low, high = self.queues.get(topic, queue_id), QueueOffset(0), QueueOffset(0)
        if queue is not None:
            low, high = queue.min_offset, queue.max_offset
        first = self.moves.first_of(topic, queue_id) if self.moves.guests else None
        if first is not None and high <= first:  # it is open, and has no message yet
            low = high = QueueOffset(first)
        return low, high

    def next_offset(self, topic: str, queue_id: int) -> QueueOffset:
        """The queue offset that the next message of a queue gets."""
        return QueueOffset(self.topic_queue_table.get((topic, queue_id), 0))

    def entries(self, topic: str, queue_id: int, queue_offset: int, count: int) -> I64:
        """Entries of a queue as a table [3, n]: see `ConsumeQueue.entries`."""
        queue = self.queues.get(topic, queue_id)
        return queue.entries(queue_offset, count) if queue else np.empty((3, 0), np.int64)

    def store_time(self, topic: str, queue_id: int, queue_offset: int) -> int:
        """Store time of the message at a queue offset, ms; -1 if missing."""
        if queue_offset < self.queue_range(topic, queue_id)[0]:
            return -1
        entry = self.entries(topic, queue_id, queue_offset, 1)
        return self.log.store_time_at(int(entry[0, 0])) if entry.shape[1] else -1

    # -- which queues there are ----------------------------------------------------------------

    def queue_keys(self) -> list[QueueKey]:
        """Queues that have entries, or had some, by topic and id."""
        return list(self.queues.table)

    def ends_to_save(self, ends: SavedEnds, keys: Iterable[QueueKey]) -> None:
        """Add how far queues reach now, for the snapshot of the tables."""
        for topic, queue_id in keys:
            queue = self.queues.table.get((topic, queue_id))
            if queue is not None and not queue.begins_again and queue.max_offset:
                row = [int(queue.max_offset), queue.max_physical_offset]
                ends.rows.setdefault(topic, {})[str(queue_id)] = row

    def expired_ends(self) -> SavedEnds:
        """How far those queues reach all of whose records are gone from the log's beginning: what
        only has the log cannot know it.
        """
        first, ends = self.log.min_offset, SavedEnds(self.dispatched_offset)
        queues = self.queues.table.items()
        self.ends_to_save(ends, (k for k, one in queues if one.max_physical_offset <= first))
        return ends

    def reserve(self, ends: SavedEnds) -> None:
        """On a slave: queues of which its log has nothing, and gets nothing, end where they did.

        ends: a master's `expired_ends`. Raises OSError where there is no room for that.
        """
        empty = self.log.max_offset == self.log.min_offset
        for key, next_offset, newest in ends:
            if empty or newest <= self.log.min_offset:
                self.queues.reach(key, next_offset)

    @property
    def segment(self) -> int:
        """The number of the log's segment up to which queues have entries."""
        return self.dispatched_offset // self.log.queue.file_size

    def queue_ends(self, topic: str) -> dict[int, int]:
        """The next queue offset of a topic's queues, by queue id."""
        ends = self.topic_queue_table.items()
        return {queue_id: end for (name, queue_id), end in ends if name == topic}

    def topics_with_messages(self) -> set[str]:
        """Topics that messages were stored in."""
        return {topic for (topic, _), end in self.topic_queue_table.items() if end}

    def light_of(self, topic: str) -> list[str]:
        """The light queues of a topic's lite topics."""
        return self.topic_queue_table.light_of(topic)

    def light_names(self) -> list[str]:
        """All light queues."""
        return self.topic_queue_table.light_names()


__all__ = [
    "CorruptRecord",
    "GetMessageStatus",
    "MessageStore",
    "PutBatch",
    "PutResult",
    "Singles",
    "SinglesResult",
    "StoreEvents",
]
