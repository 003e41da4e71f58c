"""Recovery: turns the files of a stopped or killed process into a store that can be trusted.

The commit log is the truth; everything else follows from it. Recovery finds the end of the valid
records (a torn tail is cut, durably; a corrupt middle with valid records after it is reported and
kept), and makes queues, index and idempotence table agree with the log. It may be killed at any
point and started again. The checkpoint only shortens the work.
"""

import struct
from bisect import bisect_right
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from duolog_server.store.checkpoint import StoreCheckpoint
from duolog_server.store.commitlog import CommitLog
from duolog_server.store.consumequeue import ENTRY_BYTES
from duolog_server.store.directories import LOG
from duolog_server.store.disk import no_room
from duolog_server.store.dispatch import Dispatcher, DispatchTargets
from duolog_server.store.errors import BadStoreDirectory, OtherFileSize
from duolog_server.store.idempotence import IdempotenceTable
from duolog_server.store.indexcheck import first_untrusted
from duolog_server.store.indexservice import IndexService
from duolog_server.store.kernels import scan
from duolog_server.store.kernels.jit import I64
from duolog_server.store.mappedfile import MappedFile
from duolog_server.store.metadatafiles import NO_ENDS, SNAPSHOT, SavedEnds
from duolog_server.store.openfiles import TooManyUnsynced
from duolog_server.store.options import StoreOptions
from duolog_server.store.queuecheck import OLDER, Comparison, doubtful, faults_of_units
from duolog_server.store.queueends import QueueKey
from duolog_server.store.queuenote import Noted
from duolog_server.store.queues import ROOT, ConsumeQueues
from duolog_server.store.scanahead import Lend
from duolog_server.store.status import BrokerRole

NORMAL_FILES = 3
# How far back producers' sequences are read: longer than any client repeats a send.
REMEMBERED_MS = 600_000
REMEMBERED_BYTES = 1 << 30
_HEAD = struct.Struct(">II")
_LONG = struct.Struct(">q")


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """What recovery found and did.

    lacks_confirmed: the log ends before what this directory knew to be confirmed.
    """

    abnormal: bool
    scanned_from: int
    end: int
    bytes_cut: int
    rebuilt_queues: bool
    corrupt_ranges: int
    producers: int
    lacks_confirmed: bool = False


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
    """The parts of a store, loaded but not trusted yet."""

    options: StoreOptions
    log: CommitLog
    queues: ConsumeQueues
    index: IndexService
    checkpoint: StoreCheckpoint
    dispatcher: Dispatcher
    idempotence: IdempotenceTable
    progress: Callable[[int, int], None]
    problem: Callable[[str], None]
    saved: SavedEnds = NO_ENDS  # the ends of the queues in the snapshot of the tables
    consumed: Callable[[], dict[QueueKey, int]] = dict  # see `Snapshots.consumed`
    least: dict[QueueKey, int] = field(default_factory=dict)  # ends of queues that lost files
    begun_after: dict[QueueKey, int] = field(default_factory=dict)  # see `_of_a_longer_log`
    lend: Lend | None = None  # has a scan run in another thread
    copied: Callable[[str], None] | None = None  # told what a copy lacks; None: it is no copy
    known_end: int = 0  # records up to here had queue entries when the store was opened
    noted: bool = False  # the note of the queues' ends is valid
    halved: bool = False  # the note's position is inside a record
    stopped_at: int | None = None  # the disk is full: records from there on lack queue entries
    ends: dict[QueueKey, int] = field(default_factory=dict)  # queue offsets after those records

    def run(self, abnormal: bool, queues_sound: bool) -> RecoveryReport:
        """Recover. abnormal: there was an abort file. Sound: their files could be read."""
        files = self.log.queue.files
        noted = self.queues.noted
        self.known_end = max(self.queues.max_physical_offset, noted.position if noted else 0)
        known = set(self.queues.table)
        self._check_mounted()
        self._check_known(noted, queues_sound)
        if not queues_sound:
            self.queues.wipe()
        if not files:
            return self._without_a_log(abnormal)
        self._tell_holes()
        queues_sound = queues_sound and bool(known)  # all are gone: they were removed on purpose
        first = self._first_file(abnormal, noted) if queues_sound else files[0]
        doubted = self._doubted(noted, first.start) if queues_sound else {}
        floors = self._floors(noted)
        rebuilt = not queues_sound
        loaded_end = self.log.max_offset
        redo = abnormal or not queues_sound or noted is None
        for key in doubted:
            self.queues.discard(key)
        if redo:
            # What the note covers is not searched again; the rest is dispatched again.
            self.queues.rewind(max(first.start, noted.position if noted is not None else 0))
        indexed = noted if self._check_index() else None
        if redo:
            self._index_up_to(first.start, indexed)
        self._rebuild(doubted, first.start)
        lost = [found for found in self.log.corrupt_ranges if found.end <= first.start]
        self.dispatcher.allow_missing(sum(found.records_max for found in lost))
        self._remember_producers(first)
        end = self._scan(first.start, redo, noted, doubted)
        lacking = self._lacking(first is files[0], known - set(doubted), set(doubted))
        late = dict.fromkeys(lacking, "it lacks entries of older records")
        if not rebuilt and end < self.known_end:
            late |= self._of_a_longer_log(end)
        for key in late:
            self.queues.discard(key)
        self._rebuild(late, end)
        self._reach(floors)
        self.queues.settle()
        used = self._used_bytes_after(end)
        self._cut(end, loaded_end)
        if not redo:  # the scan indexed nothing; doing both adds keys twice
            self._index_up_to(end, None if self.halved else indexed)
        if abnormal or rebuilt or doubted or late:
            self._sync(first.start)
        if noted is not None and not rebuilt:  # otherwise all are synced and noted soon
            self.queues.take_for_unsynced()
        self.dispatcher.reput_from = end if self.stopped_at is None else self.stopped_at
        self.dispatcher.refused = 0
        self.dispatcher.refusing.clear()
        for key in noted.queues.keys() - self.queues.table.keys() if noted is not None else ():
            self.queues.ends.removed(key)
        done = self.dispatcher.reput_from
        self.noted = noted is not None and not (rebuilt or self.halved) and noted.position <= done
        return RecoveryReport(
            abnormal,
            first.start,
            end,
            used,
            rebuilt or bool(doubted or late),
            len(self.log.corrupt_ranges),
            len(self.idempotence),
        )

    def _without_a_log(self, abnormal: bool) -> RecoveryReport:
        self._tell_lost(0)
        for key in list(self.queues.table):
            self.queues.discard(key)
        self.index.drop_from(0)
        return RecoveryReport(abnormal, 0, 0, 0, False, 0, 0)

    def _tell_holes(self) -> None:
        for hole in self.log.note_holes():
            self.problem(
                f"commit log [{hole.start}, {hole.end}) is missing: its segment files "
                "do not exist. The segments around it are kept and served; stop the "
                "node and put the files back, or let a replica repair it"
            )

    def _reach(self, floors: dict[QueueKey, int]) -> None:
        """Raise the next offset of each queue to its floor."""
        for key, first_entry in self.begun_after.items():
            queue = self.queues.table.get(key)
            if queue is None or not queue.max_offset:
                floors[key] = max(first_entry, floors.get(key, 0))
        for key, floor in floors.items():
            self.queues.reach(key, floor)

    def _doubted(self, noted: Noted | None, first: int) -> dict[QueueKey, str]:
        """Queues whose files cannot be trusted below the range that is dispatched again."""
        if noted is not None:
            found = doubtful(self.queues, noted, self.log.min_offset)
            # A topic that was deleted may have got its queue again, by a start without room to note
            # it: it is no damage, which nothing could repair on a full disk.
            again = {k for k, why in found.items() if k not in noted.queues and OLDER in why}
            differing = self._differing(max(first, noted.position), {}, again) if again else {}
            return {k: why for k, why in found.items() if k not in again or k in differing}
        return faults_of_units(self.queues) | self._differing(first, self.queues.doubted)

    def _differing(
        self, end: int, doubted: dict[QueueKey, str], only: AbstractSet[QueueKey] | None = None
    ) -> dict[QueueKey, str]:
        """Queues whose entries are not those of the records below an offset, and doubted ones."""
        comparison = Comparison(self.queues, dict(doubted))
        start = self.log.min_offset
        with self.dispatcher.aside(start):
            targets = DispatchTargets(self.queues, None, only=only, compare=comparison.compare)
            while self.dispatcher.step(end, False, targets):
                self.progress(self.dispatcher.reput_from - start, end - start)
        return comparison.differing

    def _of_a_longer_log(self, end: int) -> dict[QueueKey, str]:
        """Queues that lack entries, where queues and their note tell of records after the log's
        end.

        Both are newer than the log, as where an older copy of it was restored: files that it needs
        were deleted with records that it has, or with a topic that it has. A queue that has no
        record in the log ends where its entries of later records begin. Noted minimums may hide
        records that expired in the newer log: they are looked for again.
        """
        for key, queue in self.queues.table.items():
            first = queue.next_from(queue.files.min_offset // ENTRY_BYTES, 0)
            entry = queue.entries(first, 1)[0].tolist()
            if entry and entry[0] >= end and not queue.begins_again:
                self.begun_after[key] = first
        self.queues.settle()  # no file is left behind in a directory that the cut removes
        self.queues.truncate(end)
        for queue in self.queues:
            queue.forget_minimum()
        return self._differing(end, {})

    def _rebuild(self, doubted: dict[QueueKey, str], end: int) -> None:
        """Rebuild queues from the log, up to the range that is dispatched anyway."""
        for (topic, queue_id), why in sorted(doubted.items()):
            self.problem(f"queue {topic}/{queue_id} is rebuilt from the commit log: {why}")
        start = self.log.min_offset
        if doubted and start < end:
            with self.dispatcher.aside(start):
                targets = DispatchTargets(self.queues, None, only=doubted.keys())
                self._dispatch_to(end, self.options.check_crc_on_recover, targets)

    def _floors(self, noted: Noted | None) -> dict[QueueKey, int]:
        """Reserve queue offsets that were given to lost records, so that none is used again."""
        holes = [end for _, end in self.log.queue.holes()]
        lost_until = max([self.log.min_offset, *holes])
        found: dict[QueueKey, int] = {}
        for key, queue in self.queues.table.items() if holes else ():
            if key not in self.queues.doubted:
                found[key] = queue.next_from(queue.files.min_offset // ENTRY_BYTES, lost_until)
        for key, end in noted.queues.items() if noted is not None else ():
            if end.newest <= lost_until and not self.queues.begins_again(key):
                found[key] = max(found.get(key, 0), end.end // ENTRY_BYTES)
        for key, next_offset, newest in self.saved:
            if newest <= lost_until:
                found[key] = max(found.get(key, 0), next_offset)
        for key, least in self.least.items():
            found[key] = max(found.get(key, 0), least)
        return found

    def _check_mounted(self) -> None:
        """Refuse to begin anew in a directory without its files. Raises BadStoreDirectory."""
        place = self.log.queue.disk.linked(LOG)
        if place and not self.log.queue.files and self.known_end > 0:
            raise BadStoreDirectory(
                place,
                f"is empty, though queues have records up to {self.known_end}: mount the file "
                f"system of the commit log. If its files are lost, move {ROOT}/ and queueends away "
                "to begin with an empty log",
            )

    def _check_known(self, noted: Noted | None, queues_sound: bool) -> None:
        """Refuse to give queue offsets a second time. Raises BadStoreDirectory.

        Queues whose records are all deleted cannot be found in the log. What says how far they
        reached must not be older than the log's beginning.
        """
        first = self.log.min_offset
        known = max(noted.position if noted is not None else -1, self.saved.position)
        if known >= first or not first:
            return
        doubted = next(iter(self.queues.doubted.values()), "")
        least: dict[QueueKey, int] = {}
        if queues_sound and self.queues.table and not doubted:
            least = self._shorter(noted)
            if not least:
                return
        if self.options.queue_offsets_from_log_alone:
            self.least = least
            return
        begins = self.options.broker_role in (BrokerRole.SLAVE, BrokerRole.AUTO)
        backup = self.saved.position < 0 < self.saved.applied  # of a version that saved no ends
        if begins and not self.checkpoint.logics_msg_timestamp and not backup and not least:
            return  # a copy of a master's log, killed before its first queue files were on disk
        where, why = ROOT, f"is damaged ({doubted})" if doubted else "is lost or unreadable"
        if least:
            (topic, queue_id), end = min(least.items())
            more = f", like {len(least) - 1} other queues" if len(least) > 1 else ""
            where = f"{ROOT}/{topic}/{queue_id}"
            why = f"lacks files: the queue reached offset {end} at least{more}"
        raise BadStoreDirectory(
            where,
            f"{why}, the log begins at "
            f"{first}, and neither queueends nor {SNAPSHOT} says how far the queues reached there "
            f"(newest known log offset: {known}): offsets of queues "
            "without a record in the log would be given a second time. Restore consumequeue/ or a "
            "config/ that is not older than the log's first segment, or copy the store from "
            "another node. To start nevertheless, set store.queue_offsets_from_log_alone=true",
        )

    def _shorter(self, noted: Noted | None) -> dict[QueueKey, int]:
        """Queues that have lost files by what older notes and the tables say: their least ends.

        Files of a queue that a topic of the same name had before are not missed: only those of
        one that has none, or ends with a whole file.
        """
        least = self.consumed()
        for key, row in noted.queues.items() if noted is not None else ():
            least[key] = max(least.get(key, 0), row.end // ENTRY_BYTES)
        for key, end, _ in self.saved:
            least[key] = max(least.get(key, 0), end)
        found = {}
        for key, end in least.items():
            queue = self.queues.table.get(key)
            reached = queue.max_offset if queue is not None else 0
            whole = queue is None or not queue.files.max_offset % queue.files.file_size
            if reached < end and whole and not self.queues.begins_again(key):
                found[key] = end
        return found

    def _check_index(self) -> bool:
        """Check the index files; False if those from the first invalid one on were dropped.

        The newest remaining record may have had keys in the dropped files.
        """
        if not self.options.message_index_enable:
            return True
        found = first_untrusted(self.index, self.dispatcher)
        if found is None:
            return True
        place, why = found
        self.problem(f"the index is rebuilt from the commit log from here on: {why}")
        self.index.drop_from(place)
        return False

    def _tell_lost(self, end: int) -> None:
        """Report a log that ends before a known offset: acknowledged records may be lost."""
        known = max(self.known_end, self.checkpoint.confirm_phy_offset)
        if end < known and self.copied is not None:
            self.copied(
                f"it was copied while a node wrote to it, its log before other files: its log "
                f"ends at {end}, its queues or checkpoint know of records up to {known}. The "
                "original has these records, this directory begins without them"
            )
        elif end < known:
            self.problem(
                f"the commit log ends at {end}, but records up to {known} were dispatched or "
                f"confirmed before: records in [{end}, {known}) are lost on this node, or were "
                "stored after the log was copied, if this directory is a copy of a running node's"
            )

    def _lacking(
        self, from_the_start: bool, had: set[QueueKey], rebuilt: set[QueueKey]
    ) -> set[QueueKey]:
        """Queues that lack entries of records before the dispatched range.

        They could not take a record, or had no files and do not begin with their first entry.
        from_the_start: all records were dispatched. had: queues that had files, not rebuilt.
        """
        refusing = self.dispatcher.refusing
        if from_the_start:
            return refusing & had
        begun_late = {
            key
            for key, queue in self.queues.table.items()
            if queue.min_logic_bytes > 0 and not queue.begins_again
        }
        return refusing | (begun_late - had - rebuilt)

    def _first_file(self, abnormal: bool, noted: Noted | None) -> MappedFile:
        """The segment where dispatch restarts: entries of records from there on are not covered."""
        files = self.log.queue.files
        newest = files[-1]
        if noted is not None:  # its segment may be deleted by retention, or lost
            after = bisect_right(files, noted.position, key=lambda mapped: mapped.start)
            newest = files[max(0, after - 1)]
        if not abnormal:
            place = min(len(files) - NORMAL_FILES, files.index(newest))
            return files[max(0, place)]
        for mapped in reversed(files[: files.index(newest) + 1]):
            if is_mapped_file_matched_recover(mapped, self.checkpoint, self.options):
                return mapped
        return files[0]

    def _remember_producers(self, first: MappedFile) -> None:
        """Read sequences stored before the recovered range, as they may still be repeated."""
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

    def _scan(
        self, start: int, with_index: bool, noted: Noted | None, doubted: dict[QueueKey, str]
    ) -> int:
        """Verify and dispatch everything from a segment's start; the end of the valid records.

        Of records below the position of a note that holds, only queues that are rebuilt take
        entries.
        """
        index = self.index if with_index and self.options.message_index_enable else None
        targets = DispatchTargets(self.queues, index, self.idempotence)
        check_crc = self.options.check_crc_on_recover
        self.dispatcher.reput_from = start
        try:
            if noted is not None and noted.digests_hold and self._has_all(noted, doubted):
                some = self.queues if doubted else None
                fewer = DispatchTargets(some, index, self.idempotence, only=doubted.keys())
                self._dispatch_noted(noted.position, check_crc, fewer)
            self._dispatch_to(self.log.max_offset, check_crc, targets)
        except OSError as error:
            if not no_room(error) or doubted or self.log.corrupt_ranges:
                raise  # damage is repaired before anything is served
            # Existing entries can be read, and the rest is dispatched when there is room.
            self.stopped_at = self.dispatcher.reput_from
            rest = DispatchTargets(self.queues, None, self.idempotence, compare=self._note_end)
            self._dispatch_to(self.log.max_offset, check_crc, rest)
        return self.dispatcher.reput_from

    def _note_end(self, key: QueueKey, rows: I64) -> None:
        """Reserve the queue offsets of rows that get no entries now."""
        end = int(rows[scan.QUEUE_OFFSET].max()) + 1
        self.ends[key] = max(self.ends.get(key, 0), end)

    def _dispatch_noted(self, position: int, check_crc: bool, targets: DispatchTargets) -> None:
        """Dispatch up to a note's position; a record that crosses it is not reported."""
        told: list[str] = []
        tell, self.dispatcher.on_problem = self.dispatcher.on_problem, told.append
        try:
            self._dispatch_to(min(position, self.log.max_offset), check_crc, targets)
            self._take_back_half(position)
        finally:
            self.dispatcher.on_problem = tell
            for text in told[:-1] if self.halved else told:
                tell(text)

    def _take_back_half(self, position: int) -> None:
        """Forget a false report: a note from before a cut may end inside a record, which is not
        damaged.
        """
        found = self.log.corrupt_range_at(position)
        if found is None or found.start == position or self.log.queue.find(position) is None:
            return
        self.log.corrupt_ranges.remove(found)
        self.dispatcher.allow_missing(-found.records_max)
        self.dispatcher.reput_from = found.start
        self.halved = True

    def _has_all(self, noted: Noted, doubted: dict[QueueKey, str]) -> bool:
        """Whether each queue of a note has its files or is being rebuilt; one without entries needs
        none.
        """
        wanted = {key for key, end in noted.queues.items() if end.end}
        return self.queues.table.keys() >= wanted - doubted.keys()

    def _index_up_to(self, end: int, noted: Noted | None = None) -> None:
        """Index what lies between the newest index entry and an offset.

        noted: records below its position have no keys but those that are indexed.
        """
        if not self.options.message_index_enable:
            return
        start = max(self.index.end_offset, self.log.min_offset)
        if noted is not None and self.index.newest >= noted.index_end:
            start = max(start, noted.position)
        if start < end:
            corrupt = list(self.log.corrupt_ranges)
            self._run_dispatcher(start, end, DispatchTargets(None, self.index), False)
            self.log.corrupt_ranges = sorted({*corrupt, *self.log.corrupt_ranges})

    def _run_dispatcher(
        self, start: int, end: int, targets: DispatchTargets, check_crc: bool
    ) -> None:
        self.dispatcher.reput_from = start
        self._dispatch_to(end, check_crc, targets)

    def _dispatch_to(self, end: int, check_crc: bool, targets: DispatchTargets) -> None:
        start = self.dispatcher.reput_from
        more = True
        with self.dispatcher.scanning_ahead(self.lend):
            while more:
                try:
                    more = self.dispatcher.step(end, check_crc, targets)
                except TooManyUnsynced:
                    more = True
                if self.queues.is_crowded:
                    self.queues.sync_touched()
                self.progress(self.dispatcher.reput_from - start, end - start)
                self.dispatcher.arrivals.clear()

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
        self._tell_lost(end)
        if end < loaded_end:
            self.log.queue.truncate(end)
        self.log.queue.set_end(end)  # bytes that are only in the page cache are synced below
        self.log.last_store_time = self.dispatcher.store_time
        if self.queues.max_physical_offset > end:
            self.queues.truncate(end)
        if self.index.end_offset >= end:
            self.index.truncate(end)
            self._index_up_to(end)

    def _sync(self, start: int) -> None:
        """Sync everything found: it may only be in the page cache, and must be durable before it is
        served.
        """
        for mapped in self.log.queue.files:
            if mapped.end > start:
                mapped.file.sync()
        self.log.queue.disk_sync_names()


def load_queues(queues: ConsumeQueues, trusting: bool, report: Callable[[str], None]) -> bool:
    """Load the queues; False if their files cannot be trusted: recovery removes them.

    trusting: no power cut came between the last stop and now. Raises OtherFileSize.
    """
    try:
        queues.load(trusting=trusting)
        if queues.ends.unreadable:
            report(f"all queues are compared with the commit log: {queues.ends.unreadable}")
    except OtherFileSize:
        raise
    except (BadStoreDirectory, OSError) as error:
        report(f"consume queues will be rebuilt from the commit log: {error}")
        queues.close()
        queues.table.clear()
        queues.ext.clear()
        return False
    return True


def load_index(
    index: IndexService, trusted_until_ms: int | None, report: Callable[[str], None]
) -> None:
    """Load the index; files that cannot be trusted are removed."""
    try:
        index.load(trusted_until_ms)
    except (BadStoreDirectory, OSError) as error:
        report(f"the index will be rebuilt from the commit log: {error}")
        index.close()
        index.wipe()
