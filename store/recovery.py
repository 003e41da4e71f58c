"""Recovery: from the files a stopped or killed process left, back to a store that can be trusted.

The commit log is the truth; everything else follows from it. Recovery finds the end of the valid
records (a torn tail is cut, durably; a corrupt middle with valid records after it is reported and
kept), and makes queues, index and idempotence table agree with the log. It may be killed at any
point and started again. The checkpoint only shortens the work.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass

from store.checkpoint import StoreCheckpoint
from store.commitlog import CommitLog
from store.dispatch import Dispatcher, DispatchTargets
from store.errors import BadStoreDirectory
from store.idempotence import IdempotenceTable
from store.indexservice import IndexService
from store.kernels import scan
from store.lightqueues import is_light
from store.mappedfile import MappedFile
from store.options import StoreOptions
from store.queues import ConsumeQueues, QueueKey

NORMAL_FILES = 3
# How far back producers' sequences are looked for: longer than anybody repeats a send.
REMEMBERED_MS = 600_000
REMEMBERED_BYTES = 1 << 30
_HEAD = struct.Struct(">II")
_LONG = struct.Struct(">q")


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """What recovery found and did."""

    abnormal: bool
    scanned_from: int
    end: int
    bytes_cut: int
    rebuilt_queues: bool
    corrupt_ranges: int
    producers: int


def is_mapped_file_matched_recover(
    mapped: MappedFile, checkpoint: StoreCheckpoint, options: StoreOptions
) -> bool:
    """Tell whether log, queues (and index) were synced when this segment's first record was stored.

    Source: CommitLog.isMappedFileMatchedRecover of RocketMQ 4.9.8; V2 records count as well.
    """
    head = mapped.memory[:96].tobytes()
    _, magic = _HEAD.unpack_from(head)
    if magic not in (scan.MAGIC_V1, scan.MAGIC_V2):
        return False
    (sysflag,) = struct.unpack_from(">I", head, 36)
    (store_time,) = _LONG.unpack_from(head, 68 if sysflag & scan.BORN_HOST_V6 else 56)
    if store_time == 0:
        return False
    if options.message_index_enable and options.message_index_safe:
        return bool(store_time <= checkpoint.min_timestamp_index)
    return bool(store_time <= checkpoint.min_timestamp)


@dataclass(slots=True)
class Recovery:
    """The parts recovery works on, loaded but not trusted."""

    options: StoreOptions
    log: CommitLog
    queues: ConsumeQueues
    index: IndexService
    checkpoint: StoreCheckpoint
    dispatcher: Dispatcher
    idempotence: IdempotenceTable
    progress: Callable[[int, int], None]

    def run(self, abnormal: bool, queues_sound: bool, index_sound: bool) -> RecoveryReport:
        """Recover. abnormal: there was an abort file. Sound: those files could be read."""
        files = self.log.queue.files
        if not files:
            self.log.queue.set_end(0)
            self.queues.destroy_logics()
            self.index.drop_from(0)
            return RecoveryReport(abnormal, 0, 0, 0, False, 0, 0)
        known = set(self.queues.table)
        queues_sound = queues_sound and bool(known)  # all gone: somebody removed them
        first = self._first_file(abnormal) if queues_sound else files[0]
        rebuilt = not queues_sound
        loaded_end = self.log.max_offset
        if abnormal or not queues_sound:
            if not queues_sound:
                self.queues.destroy_logics()
            self.queues.truncate(first.start)
            self._index_up_to(first.start)
        self._remember_producers(first)
        end = self._scan(first.start, with_index=abnormal or not queues_sound)
        gaps = self.dispatcher.refused or self._begun_late(known)
        if gaps and first is not files[0]:
            # Entries from before the start are missing: nothing of the queues can be trusted.
            first, rebuilt = files[0], True
            self._forget_findings()
            self.queues.destroy_logics()
            end = self._scan(first.start, with_index=False)
        used = self._used_bytes_after(end)
        self._cut(end, loaded_end)
        if self.options.message_index_enable and (not index_sound or not self.index.files):
            self._index_up_to(end)
        if abnormal:
            self._sync(first.start)
        self.dispatcher.reput_from = end
        self.dispatcher.refused = 0
        return RecoveryReport(
            abnormal,
            first.start,
            end,
            used,
            rebuilt,
            len(self.log.corrupt_ranges),
            len(self.idempotence),
        )

    def _begun_late(self, known: set[QueueKey]) -> bool:
        """Tell whether a queue without files seems to have had entries from before the start."""
        return any(
            key not in known and queue.min_logic_bytes > 0 and not is_light(key[0])
            for key, queue in self.queues.table.items()
        )

    def _first_file(self, abnormal: bool) -> MappedFile:
        files = self.log.queue.files
        if not abnormal:
            return files[-NORMAL_FILES] if len(files) >= NORMAL_FILES else files[0]
        for mapped in reversed(files):
            if is_mapped_file_matched_recover(mapped, self.checkpoint, self.options):
                return mapped
        return files[0]

    def _remember_producers(self, first: MappedFile) -> None:
        """Sequences stored before the stretch that is recovered: a repeat of them may yet come."""
        files = self.log.queue.files
        newest = max(self.log.store_time_at(mapped.start) for mapped in files)
        start = first
        for mapped in reversed(files[: files.index(first)]):
            if first.start - mapped.start > REMEMBERED_BYTES:
                break
            start = mapped
            if self.log.store_time_at(mapped.start) < newest - REMEMBERED_MS:
                break
        self.idempotence.begins_at(start.start)
        self.dispatcher.remember(start.start, first.start, self.idempotence)

    def _scan(self, start: int, with_index: bool) -> int:
        """Verify and dispatch everything from a segment's start; the end of the valid records."""
        targets = DispatchTargets(
            self.queues,
            self.index if with_index and self.options.message_index_enable else None,
            self.idempotence,
        )
        self._run_dispatcher(start, self.log.max_offset, targets, self.options.check_crc_on_recover)
        return self.dispatcher.reput_from

    def _index_up_to(self, end: int) -> None:
        """Index what lies between the newest index entry and an offset."""
        if not self.options.message_index_enable:
            return
        start = max(self.index.end_offset, self.log.min_offset)
        if start < end:
            corrupt = list(self.log.corrupt_ranges)
            self._run_dispatcher(start, end, DispatchTargets(None, self.index), False)
            self.log.corrupt_ranges = sorted({*corrupt, *self.log.corrupt_ranges})

    def _run_dispatcher(
        self, start: int, end: int, targets: DispatchTargets, check_crc: bool
    ) -> None:
        self.dispatcher.reput_from = start
        while self.dispatcher.step(end, check_crc, targets):
            self.progress(self.dispatcher.reput_from - start, end - start)
            self.dispatcher.arrivals.clear()

    def _forget_findings(self) -> None:
        self.dispatcher.refused = 0
        self.log.corrupt_ranges.clear()

    def _used_bytes_after(self, end: int) -> int:
        """Bytes past the end that hold anything: what a cut throws away."""
        mapped = self.log.queue.find(end)
        if mapped is None:
            return 0
        memory = mapped.memory
        highest = end - mapped.start
        for low, high in mapped.file.data_ranges(end - mapped.start):
            nonzero = memory[low:high].nonzero()[0]
            if len(nonzero):
                highest = low + int(nonzero[-1]) + 1
        return highest - (end - mapped.start)

    def _cut(self, end: int, loaded_end: int) -> None:
        if end < loaded_end:
            self.log.queue.truncate(end)
        self.log.queue.set_end(end)  # what only the page cache has is synced below
        self.log.last_store_time = self.dispatcher.store_time
        if self.queues.max_physical_offset > end:
            self.queues.truncate(end)
        if self.index.end_offset >= end:
            self.index.truncate(end)
            self._index_up_to(end)
        for queue in self.queues:
            queue.correct_min_offset(self.log.min_offset)

    def _sync(self, start: int) -> None:
        """What was found may only be in the page cache: make it durable before it is served."""
        for mapped in self.log.queue.files:
            if mapped.end > start:
                mapped.file.sync()
        self.log.queue.disk_sync_names()
        self.queues.sync()


def load_queues(queues: ConsumeQueues, report: Callable[[str], None]) -> bool:
    """Load the queues; False where their files cannot be trusted and were removed."""
    try:
        queues.load()
    except (BadStoreDirectory, OSError) as error:
        report(f"consume queues will be rebuilt from the commit log: {error}")
        queues.close()
        queues.table.clear()
        queues.ext.clear()
        queues.wipe()
        return False
    return True


def load_index(
    index: IndexService, trusted_until_ms: int | None, report: Callable[[str], None]
) -> bool:
    """Load the index; False where its files cannot be trusted and were removed."""
    try:
        index.load(trusted_until_ms)
    except (BadStoreDirectory, OSError) as error:
        report(f"the index will be rebuilt from the commit log: {error}")
        index.close()
        index.wipe()
        return False
    return True
