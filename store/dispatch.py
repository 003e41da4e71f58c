"""Dispatch (RocketMQ: reput): builds queues and index from the commit log, range by range.

Rules: it reads no further than the confirm offset; a range is done only when queues and index both
have it; dispatching a range again changes nothing; a record that cannot be placed is refused and
reported, never placed wrongly; no record stops those after it.
"""

import contextlib
import sys
from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from duolog_server.store.commitlog import CommitLog, CorruptRange
from duolog_server.store.consumequeue import ConsumeQueue
from duolog_server.store.consumequeueext import ConsumeQueueExt, CqExtUnit
from duolog_server.store.idempotence import IdempotenceTable, Run
from duolog_server.store.indexservice import IndexService
from duolog_server.store.kernels import scan
from duolog_server.store.kernels.jit import I64, U8
from duolog_server.store.places import Grouped, PlaceFinder
from duolog_server.store.queueends import QueueKey
from duolog_server.store.queues import ConsumeQueues
from duolog_server.store.scanahead import ROWS_MAX, Lend, ScanAhead, Scanned, Stretch, scan_stretch

FEW_ROWS = 504  # looked at once, while there are many queues to be made
NEW_QUEUES_MAX = 16  # made by one step of a store that serves: a few ms
SEGMENT_MISSING = -1  # beside the scan codes: the log has no file for an offset


@dataclass(frozen=True, slots=True)
class Arrival:
    """New readable entries of a queue: all below queue_offset."""

    topic: str
    queue_id: int
    queue_offset: int


class KeySink(Protocol):
    """The receiver of the keys of records: the index."""

    def put(self, data: U8, rows: I64, end: int) -> None:
        """Add the keys of rows [0, end)."""


@dataclass(slots=True)
class DispatchTargets:
    """The targets of a dispatch. Index or idempotence table may be left out."""

    queues: ConsumeQueues | None
    index: KeySink | None
    idempotence: IdempotenceTable | None = None
    only: AbstractSet[QueueKey] | None = None  # queues to dispatch to; None: all
    compare: Callable[[QueueKey, I64], None] | None = None  # gets the rows of a queue instead of it


# Rows of records that arrived from a master, kept for dispatch: it scans no such record again.
#
# Rules: rows are kept of records that were verified and are in the log; they are taken once; where
# they do not continue each other, or do not begin where dispatch is, it scans the log.
class ArrivedRows:
    """Queue rows of one stretch of a segment, at most a table full."""

    def __init__(self) -> None:
        self._rows: I64 = np.empty((scan.COLUMNS, ROWS_MAX), np.int64)
        self._count = 0
        self._base = 0  # offset of the segment, to which the rows' positions are relative
        self._start = self._end = 0  # log offsets of the bytes that they describe

    def __len__(self) -> int:
        """Rows kept."""
        return self._count

    def add(self, offset: int, base: int, rows: I64) -> None:
        """Keep the rows of bytes that were appended at an offset, if there is room.

        base: offset of the segment. Positions in the rows are those in the appended bytes.
        """
        before, count = self._count, rows.shape[1]
        if not before:
            self._base, self._start, self._end = base, offset, offset
        end = before + count
        if offset != self._end or base != self._base or end > self._rows.shape[1]:
            return
        kept = self._rows[:, before:end]
        kept[:] = rows
        for column in scan.POSITIONS:
            kept[column] += offset - base
        self._count = end
        self._end = int(rows[scan.PHY, -1] + rows[scan.SIZE, -1])

    def take(self, stretch: Stretch, free: I64) -> tuple[Scanned, I64] | None:
        """Known rows of a stretch, as a scan would find them, and the table.

        free: a table that is not used any more; the next rows are kept in it. None: not known.
        """
        base, rows = stretch.mapped.start, self._rows
        known = base == self._base and base + stretch.start == self._start
        if not self._count or not known or free.shape != rows.shape:
            self.forget()
            return None
        ends = rows[scan.PHY, : self._count] + rows[scan.SIZE, : self._count]
        n = int(np.searchsorted(ends, base + stretch.end, "right"))
        if not n:
            self.forget()
            return None
        left = self._count - n
        free[:, :left] = rows[:, n : self._count]
        self._rows, self._count, self._start = free, left, int(ends[n - 1])
        return (scan.SCAN_END, n, self._start - base), rows

    def forget(self) -> None:
        """The log was cut, or dispatch went another way."""
        self._count = 0


@dataclass(slots=True)
class Dispatcher:
    """The position of dispatch, and what it found."""

    log: CommitLog
    queues: ConsumeQueues
    index: IndexService
    delays_ms: I64
    message_index_enable: bool
    reput_from: int = 0
    store_time: int = 0  # of the newest record dispatched
    arrivals: list[Arrival] = field(default_factory=list)
    on_problem: Callable[[str], None] = print
    refused: int = 0
    new_queues_max: int = sys.maxsize  # made by one step
    refusing: set[QueueKey] = field(default_factory=set)  # queues that could not take a record
    bit_map_of: Callable[[str, bytes], bytes] | None = None  # of a topic and a property text
    _begun: int = 0  # end of the furthest range begun: an error may leave it incomplete
    _rows: I64 = field(default_factory=lambda: np.empty((scan.COLUMNS, ROWS_MAX), np.int64))
    _spare_rows: I64 = field(default_factory=lambda: np.empty((scan.COLUMNS, FEW_ROWS), np.int64))
    _stopped_short: bool = False  # the last step had too many queues to create
    _places: PlaceFinder = field(default_factory=lambda: PlaceFinder(ROWS_MAX))
    _missing: int = 0
    _ahead: ScanAhead | None = None
    arrived: ArrivedRows = field(default_factory=ArrivedRows)  # what a slave need not scan

    def behind_bytes(self) -> int:
        """Bytes of log that queues and index do not have yet (RocketMQ: dispatchBehindBytes)."""
        return self.log.max_offset - self.reput_from

    @property
    def reached(self) -> int:
        """No queue has an entry of a record from here on."""
        return max(self.reput_from, self._begun)

    def back_to(self, offset: int) -> None:
        """The queues' entries from a log offset on were cut."""
        self.arrived.forget()
        self.reput_from = min(self.reput_from, offset)
        self._begun = min(self._begun, offset)

    def step(
        self, confirm_offset: int, check_crc: bool = False, targets: DispatchTargets | None = None
    ) -> bool:
        """Dispatch the next range below an offset; False if there is none.

        Raises OSError if a queue or index file cannot be created: call again once there is room.
        """
        if self.reput_from >= confirm_offset:
            return False
        self.reput_from = max(self.reput_from, self.log.min_offset)
        if self.reput_from >= min(confirm_offset, self.log.max_offset):
            return False
        mapped = self.log.queue.find(self.reput_from)
        if mapped is None:
            return self._pass_over(SEGMENT_MISSING)
        if targets is None:
            targets = DispatchTargets(
                self.queues, self.index if self.message_index_enable else None
            )
        start = self.reput_from - mapped.start
        end = min(mapped.readable, confirm_offset - mapped.start)
        if start >= end:
            return False  # the segment's end is in the pool's buffer yet
        if self._stopped_short != (self._rows.shape[1] == FEW_ROWS):
            self._rows, self._spare_rows = self._spare_rows, self._rows
        self._stopped_short = False
        code, n, position = self._scan(Stretch(mapped, start, end, check_crc))
        if n:
            if targets.queues is not None and targets.compare is None:
                self._begun = max(self._begun, mapped.start + position)
            put = self._put(mapped.memory, n, targets)
            self.store_time = max(self.store_time, int(self._rows[scan.STORE_TIME, put - 1]))
            if put < n:
                self._stopped_short = True
                self.reput_from = int(self._rows[scan.PHY, put])
                return True
        self.reput_from = mapped.start + position
        if code == scan.SCAN_BLANK:
            self.reput_from = self.log.roll_next_file(self.reput_from)
        elif code not in (scan.SCAN_END, scan.SCAN_FULL):
            return self._pass_over(code)
        return True

    def _scan(self, stretch: Stretch) -> Scanned:
        """Describe a stretch's records in the row table, or take what was scanned before."""
        ahead = self._ahead
        taken = (ahead or self.arrived).take(stretch, self._rows)
        if taken is None:
            found = scan_stretch(stretch, self.delays_ms, self._rows)
        else:
            found, self._rows = taken
        code, _, position = found
        if ahead is not None and code == scan.SCAN_FULL:
            ahead.begin(stretch._replace(start=position))
        return found

    @contextlib.contextmanager
    def scanning_ahead(self, lend: Lend | None) -> Iterator[None]:
        """Scan the next stretch in a thread that is lent, while this one's records are placed.

        Nothing may write into the log or cut it meanwhile. None: there is no thread.
        """
        if lend is not None:
            self._ahead = ScanAhead(lend, self.delays_ms)
        try:
            yield
        finally:
            ahead, self._ahead = self._ahead, None
            if ahead is not None:
                ahead.settle()

    def index_again(self, end: int) -> None:
        """Index the records between the newest index entry and an offset again."""
        position, corrupt = self.reput_from, list(self.log.corrupt_ranges)
        arrivals = list(self.arrivals)
        self.reput_from = max(self.index.end_offset, self.log.min_offset)
        while self.step(end, False, DispatchTargets(None, self.index)):
            pass
        self.reput_from, self.arrivals = position, arrivals
        self.log.corrupt_ranges = sorted({*corrupt, *self.log.corrupt_ranges})

    @contextlib.contextmanager
    def aside(self, start: int) -> Iterator[None]:
        """Scan a range of log for another purpose; the state is restored afterwards."""
        position, corrupt, missing = self.reput_from, list(self.log.corrupt_ranges), self._missing
        arrivals, store_time, told = list(self.arrivals), self.store_time, self.on_problem
        self.reput_from, self.on_problem = start, lambda text: None
        try:
            yield
        finally:
            self.reput_from, self.arrivals, self.on_problem = position, arrivals, told
            self._missing, self.store_time = missing, store_time
            self.log.corrupt_ranges = corrupt

    def offsets_of(self, key: QueueKey, start: int, end: int) -> list[int]:
        """Log offsets of a queue's records in a range, from the log itself."""
        found: list[int] = []

        def note(_: QueueKey, rows: I64) -> None:
            found.extend(rows[scan.PHY].tolist())

        targets = DispatchTargets(self.queues, None, only={key}, compare=note)
        with self.aside(start):
            while self.step(end, False, targets):
                pass
        return found

    def remember(self, start: int, end: int, table: IdempotenceTable) -> None:
        """Add the producers' sequences of a range that was dispatched before."""
        with self.aside(start):
            while self.step(end, False, DispatchTargets(None, None, table)):
                pass

    def _pass_over(self, code: int) -> bool:
        """Skip bytes that hold no valid record; False at a record that is still incomplete."""
        known = self.log.corrupt_range_at(self.reput_from)
        if known is None:
            following = self.log.next_valid(self.reput_from + 1)
            if following is None:
                return False
            known = CorruptRange(self.reput_from, self._until_known(following))
            self.log.corrupt_ranges.append(known)
            self.on_problem(
                f"commit log [{known.start}, {known.end}) holds no valid record (scan "
                f"code {code}); it is kept as it is: repair it from a replica"
            )
        self._missing += known.records_max
        self.reput_from = known.end
        return True

    def _until_known(self, end: int) -> int:
        """The end of the corrupt range that starts here; at most the start of a known one."""
        starts = [found.start for found in self.log.corrupt_ranges]
        return min([start for start in starts if self.reput_from < start < end], default=end)

    def allow_missing(self, entries: int) -> None:
        """Allow that many more missing entries in queues: their records are lost."""
        self._missing += entries

    def _put(self, memory: U8, n: int, targets: DispatchTargets) -> int:
        """Dispatch the first n rows, or fewer if they have too many new queues; the number
        dispatched.
        """
        rows = self._rows
        if targets.queues is not None:
            places = self._places.all(memory, rows, n)
            fewer = self._before_too_many(n, places, targets.queues)
            if fewer < n:
                n = fewer
                places = self._places.all(memory, rows, n)
            for grouped in places:
                for key, chosen in grouped:
                    self._put_queue(memory, targets, key, grouped.rows, chosen)
        elif targets.idempotence is not None:
            self._places.own(memory, rows, n)  # runs of sequences end where the queue changes
        if targets.index is not None:
            targets.index.put(memory, rows, n)
        if targets.idempotence is not None:
            self._remember(memory, n, targets.idempotence)
        return n

    def _before_too_many(self, n: int, places: list[Grouped], queues: ConsumeQueues) -> int:
        """The number of rows before the one that exceeds the limit of new queues."""
        for grouped in places if n > self.new_queues_max else ():
            row = self._first_too_many(grouped, queues)
            if row is not None:
                offset = grouped.rows[scan.PHY, row]
                n = min(n, int(np.searchsorted(self._rows[scan.PHY, :n], offset)))
        return max(1, n)  # one message may be in many queues

    def _first_too_many(self, places: Grouped, queues: ConsumeQueues) -> int | None:
        """The first row of the first queue past the limit of new queues; None if there is none."""
        left = self.new_queues_max
        for key, row in places.firsts() if len(places) > left else ():
            if key not in queues.table:
                if not left:
                    return row
                left -= 1
        return None

    def _put_queue(
        self, memory: U8, targets: DispatchTargets, key: QueueKey, rows: I64, order: I64
    ) -> None:
        """Put the entries of one queue for the rows selected by `order`."""
        queues = targets.queues
        assert queues is not None, "called where there are queues to feed"
        first, last = int(order[0]), int(order[-1])
        topic, queue_id = key
        if queue_id < 0 or not is_directory_name(topic):
            self._refuse(rows, first, f"names queue {topic!r}/{queue_id}, which cannot exist")
            return
        if targets.only is not None and key not in targets.only:
            return
        if targets.compare is not None:
            targets.compare(key, rows[:, order])
            return
        queue = queues.get_or_make(topic, queue_id)
        if not queue.has(rows, last):
            queues.touch(key)
        ext = queues.ext.get(key)
        if ext is not None:
            self._put_ext(memory, rows, order, queue, ext)
        outcome = queue.put(rows, order, self._missing)
        self._missing -= outcome.blanks
        for row in outcome.refused:
            self._missing += 1
            self.refusing.add(key)
            self._refuse(
                rows,
                row,
                f"has queue offset {int(rows[scan.QUEUE_OFFSET, row])} in "
                f"{topic}/{queue_id}, whose next offset is {queue.max_offset}",
            )
        self.arrivals.append(Arrival(topic, queue_id, queue.max_offset))

    def _put_ext(
        self, memory: U8, rows: I64, order: I64, queue: ConsumeQueue, ext: ConsumeQueueExt
    ) -> None:
        """Put extension units of new rows; their addresses replace the tags codes."""
        for row in order:
            if rows[scan.PHY, row] + rows[scan.SIZE, row] <= queue.max_physical_offset:
                continue
            bit_map = b""
            if self.bit_map_of is not None:
                at = int(rows[scan.PROPERTIES_AT, row])
                text = memory[at : at + int(rows[scan.PROPERTIES_BYTES, row])].tobytes()
                bit_map = self.bit_map_of(queue.topic, text)
            tags_code = int(rows[scan.TAGS_CODE, row])
            address = ext.put(CqExtUnit(tags_code, int(rows[scan.STORE_TIME, row]), bit_map))
            if address:
                rows[scan.TAGS_CODE, row] = address

    def _refuse(self, rows: I64, row: int, why: str) -> None:
        self.refused += 1
        self.on_problem(f"record at {int(rows[scan.PHY, row])} {why}: not dispatched")

    def _remember(self, memory: U8, n: int, table: IdempotenceTable) -> None:
        runs: I64 = np.empty((3, n), np.int64)
        log_end = int(self._rows[scan.PHY, n - 1] + self._rows[scan.SIZE, n - 1])
        runs = runs[:, : int(scan.sequence_runs(memory, self._rows, n, runs))]
        keys_at = self._rows[scan.UNIQ_KEY_AT, runs[0]]
        queue_offsets = self._rows[scan.QUEUE_OFFSET, runs[0]]
        # Python numbers, all at once: a start reads millions of runs.
        for row, count, sequence, at, queue_offset in zip(
            *runs.tolist(), keys_at.tolist(), queue_offsets.tolist(), strict=True
        ):
            producer = bytes.fromhex(memory[at : at + 20].tobytes().decode())
            topic, queue_id = self._places.key(memory, self._rows, row)
            run = Run(sequence, sequence + count, topic, queue_id, queue_offset)
            table.add(producer, run, log_end)


def is_directory_name(topic: str) -> bool:
    """Tell whether a topic read from a record may become a directory."""
    return bool(topic) and topic not in (".", "..") and "/" not in topic and "\0" not in topic
