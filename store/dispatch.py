"""Reput: builds queues and index from the commit log, a stretch at a time.

Rules: reads no further than the confirm offset; a stretch is done only when queues and index both
have it; putting a stretch again changes nothing; a record that cannot be placed is refused and
reported, never placed wrongly; no record stops the ones after it.
"""

import contextlib
import sys
from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from store.commitlog import CommitLog, CorruptRange
from store.consumequeueext import ConsumeQueueExt, CqExtUnit
from store.idempotence import IdempotenceTable, Run
from store.indexservice import IndexService
from store.kernels import scan
from store.kernels.jit import I64, U8
from store.queueends import QueueKey
from store.queues import ConsumeQueues

ROWS_MAX = 16384
FEW_ROWS = 512  # looked at once, while there are many queues to be made
NEW_QUEUES_MAX = 16  # made by one step of a store that serves: a few ms
SEGMENT_MISSING = -1  # beside the scan codes: the log has no file for an offset


@dataclass(frozen=True, slots=True)
class Arrival:
    """New entries of a queue became readable: all below queue_offset are."""

    topic: str
    queue_id: int
    queue_offset: int


class KeySink(Protocol):
    """What takes the keys of records: the index."""

    def put(self, data: U8, rows: I64, end: int) -> None:
        """Take the keys of rows [0, end)."""


@dataclass(slots=True)
class DispatchTargets:
    """What a dispatch feeds. Index or idempotence may be left out."""

    queues: ConsumeQueues | None
    index: KeySink | None
    idempotence: IdempotenceTable | None = None
    only: AbstractSet[QueueKey] | None = None  # queues that are fed; None: all
    compare: Callable[[QueueKey, I64], None] | None = None  # gets a queue's rows, instead of it


@dataclass(slots=True)
class Dispatcher:
    """Where reput stands and what it met on its way."""

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
    _begun: int = 0  # end of the furthest stretch that was begun: an error may leave it in part
    _rows: I64 = field(default_factory=lambda: np.empty((scan.COLUMNS, ROWS_MAX), np.int64))
    _spare_rows: I64 = field(default_factory=lambda: np.empty((scan.COLUMNS, FEW_ROWS), np.int64))
    _stopped_short: bool = False  # the last step had too many queues to make
    _order: I64 = field(default_factory=lambda: np.empty(ROWS_MAX, np.int64))
    _starts: I64 = field(default_factory=lambda: np.empty(ROWS_MAX + 1, np.int64))
    _missing: int = 0
    _topics: dict[bytes, str] = field(default_factory=dict)

    def behind_bytes(self) -> int:
        """dispatchBehindBytes: log that queues and index do not have yet."""
        return self.log.max_offset - self.reput_from

    @property
    def reached(self) -> int:
        """No queue has an entry of a record from here on."""
        return max(self.reput_from, self._begun)

    def back_to(self, offset: int) -> None:
        """The queues' entries from a log offset on were cut."""
        self.reput_from = min(self.reput_from, offset)
        self._begun = min(self._begun, offset)

    def step(
        self, confirm_offset: int, check_crc: bool = False, targets: DispatchTargets | None = None
    ) -> bool:
        """Dispatch the next stretch below an offset; False if there is none.

        Raises OSError if a queue or index file cannot be made: call again after room is made.
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
        result: I64 = np.zeros(2, np.int64)
        if self._stopped_short != (self._rows.shape[1] == FEW_ROWS):
            self._rows, self._spare_rows = self._spare_rows, self._rows
        self._stopped_short = False
        code = scan.scan(
            mapped.memory, start, end, mapped.start, check_crc, self.delays_ms, self._rows, result
        )
        n = int(result[0])
        if n:
            if targets.queues is not None and targets.compare is None:
                self._begun = max(self._begun, mapped.start + int(result[1]))
            put = self._put(mapped.memory, n, targets)
            self.store_time = max(self.store_time, int(self._rows[scan.STORE_TIME, put - 1]))
            if put < n:
                self._stopped_short = True
                self.reput_from = int(self._rows[scan.PHY, put])
                return True
        self.reput_from = mapped.start + int(result[1])
        if code == scan.SCAN_BLANK:
            self.reput_from = self.log.roll_next_file(self.reput_from)
        elif code not in (scan.SCAN_END, scan.SCAN_FULL):
            return self._pass_over(code)
        return True

    def index_again(self, end: int) -> None:
        """Index what lies between the newest index entry and an offset, once more."""
        position, corrupt = self.reput_from, list(self.log.corrupt_ranges)
        arrivals = list(self.arrivals)
        self.reput_from = max(self.index.end_offset, self.log.min_offset)
        while self.step(end, False, DispatchTargets(None, self.index)):
            pass
        self.reput_from, self.arrivals = position, arrivals
        self.log.corrupt_ranges = sorted({*corrupt, *self.log.corrupt_ranges})

    @contextlib.contextmanager
    def aside(self, start: int) -> Iterator[None]:
        """Look at a stretch of log for another purpose; afterwards all is as it was."""
        position, corrupt, missing = self.reput_from, list(self.log.corrupt_ranges), self._missing
        arrivals, store_time, told = list(self.arrivals), self.store_time, self.on_problem
        self.reput_from, self.on_problem = start, lambda text: None
        try:
            yield
        finally:
            self.reput_from, self.arrivals, self.on_problem = position, arrivals, told
            self._missing, self.store_time = missing, store_time
            self.log.corrupt_ranges = corrupt

    def remember(self, start: int, end: int, table: IdempotenceTable) -> None:
        """Note the producers' sequences in a stretch that was dispatched before."""
        with self.aside(start):
            while self.step(end, False, DispatchTargets(None, None, table)):
                pass

    def _pass_over(self, code: int) -> bool:
        """Get past bytes that hold no valid record; False at a record that is still incoming."""
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
        """Where a corrupt range ends that starts here: at another one that is known, at most."""
        starts = [found.start for found in self.log.corrupt_ranges]
        return min([start for start in starts if self.reput_from < start < end], default=end)

    def allow_missing(self, entries: int) -> None:
        """Queues may lack so many entries more: their records are lost."""
        self._missing += entries

    def _put(self, memory: U8, n: int, targets: DispatchTargets) -> int:
        """Feed the first n rows, or fewer where those have too many new queues; how many."""
        rows = self._rows
        groups = int(scan.group_rows(memory, rows, n, self._order, self._starts))
        if n > self.new_queues_max and targets.queues is not None:
            fewer = self._before_too_many(memory, n, groups, targets.queues)
            if fewer < n:
                n = fewer
                groups = int(scan.group_rows(memory, rows, n, self._order, self._starts))
        if targets.queues is not None:
            for group in range(groups):
                first, end = int(self._starts[group]), int(self._starts[group + 1])
                self._put_queue(memory, targets, rows, self._order[first:end])
            self._put_light(memory, targets, n)
        if targets.index is not None:
            targets.index.put(memory, rows, n)
        if targets.idempotence is not None:
            self._remember(memory, n, targets.idempotence)
        return n

    def _before_too_many(self, memory: U8, n: int, groups: int, queues: ConsumeQueues) -> int:
        """How many of n rows, in groups, come before the one that makes one queue too many."""
        rows = self._rows
        n = self._first_too_many(memory, rows, self._order[self._starts[:groups]], queues, n)
        light = light_rows(memory, rows, n)
        m = light.shape[1]
        order, starts = (np.empty(m + 1, np.int64) for _ in range(2))
        groups = int(scan.group_rows(memory, light, m, order, starts)) if m else 0
        row = self._first_too_many(memory, light, order[starts[:groups]], queues, m)
        if row < m:
            n = int(np.searchsorted(rows[scan.PHY, :n], light[scan.PHY, row]))
        return max(1, n)  # one message may be in many light queues

    def _first_too_many(
        self,
        memory: U8,
        rows: I64,
        firsts: I64,
        queues: ConsumeQueues,
        n: int,
    ) -> int:
        """The first row of the first group past the number of new queues; n if there is none.

        firsts: the first row of each group, in order.
        """
        left = self.new_queues_max
        if len(firsts) <= left:
            return n
        row: int
        for row in firsts.tolist():
            if self.queue_key(memory, rows, row) not in queues.table:
                if not left:
                    return row
                left -= 1
        return n

    def _put_light(self, memory: U8, targets: DispatchTargets, n: int) -> None:
        """Entries in light queues, of the records that are in any."""
        rows = light_rows(memory, self._rows, n)
        m = rows.shape[1]
        if not m:
            return
        order: I64 = np.empty(m, np.int64)
        starts: I64 = np.empty(m + 1, np.int64)
        for group in range(int(scan.group_rows(memory, rows, m, order, starts))):
            first, end = int(starts[group]), int(starts[group + 1])
            self._put_queue(memory, targets, rows, order[first:end])

    def queue_key(self, memory: U8, rows: I64, row: int) -> QueueKey:
        """Topic and queue id of a row."""
        at = int(rows[scan.TOPIC_AT, row])
        raw = memory[at : at + int(rows[scan.TOPIC_BYTES, row])].tobytes()
        topic = self._topics.get(raw)
        if topic is None:
            if len(self._topics) > 100_000:
                self._topics.clear()
            topic = self._topics[raw] = raw.decode(errors="replace")
        return topic, int(rows[scan.QUEUE_ID, row])

    def _put_queue(self, memory: U8, targets: DispatchTargets, rows: I64, order: I64) -> None:
        """Entries of the rows that `order` names, which are of one queue."""
        queues = targets.queues
        assert queues is not None, "called where there are queues to feed"
        kinds = rows[scan.SYSFLAG, order] & scan.TRANSACTION_MASK
        if kinds.any():
            order = order[(kinds == 0) | (kinds == scan.TRANSACTION_COMMIT)]
            if not len(order):
                return
        first, last = int(order[0]), int(order[-1])
        topic, queue_id = self.queue_key(memory, rows, first)
        if queue_id < 0 or not is_directory_name(topic):
            self._refuse(rows, first, f"names queue {topic!r}/{queue_id}, which cannot exist")
            return
        if targets.only is not None and (topic, queue_id) not in targets.only:
            return
        if targets.compare is not None:
            targets.compare((topic, queue_id), rows[:, order])
            return
        queue = queues.get_or_make(topic, queue_id)
        if not queue.has(rows, last):
            queues.touch((topic, queue_id))
        ext = queues.ext.get((topic, queue_id))
        if ext is not None:
            self._put_ext(memory, ext, order, topic, queue.max_physical_offset)
        outcome = queue.put(rows, order, self._missing)
        self._missing -= outcome.blanks
        for row in outcome.refused:
            self._missing += 1
            self.refusing.add((topic, queue_id))
            self._refuse(
                rows,
                row,
                f"has queue offset {int(rows[scan.QUEUE_OFFSET, row])} in "
                f"{topic}/{queue_id}, whose next offset is {queue.max_offset}",
            )
        self.arrivals.append(Arrival(topic, queue_id, queue.max_offset))

    def _put_ext(
        self, memory: U8, ext: ConsumeQueueExt, wanted: I64, topic: str, newest: int
    ) -> None:
        rows = self._rows
        for row in wanted:
            if rows[scan.PHY, row] + rows[scan.SIZE, row] <= newest:
                continue
            bit_map = b""
            if self.bit_map_of is not None:
                at = int(rows[scan.PROPERTIES_AT, row])
                text = memory[at : at + int(rows[scan.PROPERTIES_BYTES, row])].tobytes()
                bit_map = self.bit_map_of(topic, text)
            tags_code = int(rows[scan.TAGS_CODE, row])
            address = ext.put(CqExtUnit(tags_code, int(rows[scan.STORE_TIME, row]), bit_map))
            if address:
                self._rows[scan.TAGS_CODE, row] = address

    def _refuse(self, rows: I64, row: int, why: str) -> None:
        self.refused += 1
        self.on_problem(f"record at {int(rows[scan.PHY, row])} {why}: not dispatched")

    def _remember(self, memory: U8, n: int, table: IdempotenceTable) -> None:
        runs: I64 = np.empty((3, n), np.int64)
        log_end = int((self._rows[scan.PHY, :n] + self._rows[scan.SIZE, :n]).max())
        runs = runs[:, : int(scan.sequence_runs(memory, self._rows, n, runs))]
        columns = self._rows[[scan.UNIQ_KEY_AT, scan.QUEUE_OFFSET]][:, runs[0]]
        # Python numbers, all at once: a start reads millions of runs.
        for row, count, sequence, at, queue_offset in np.vstack((runs, columns)).T.tolist():
            producer = bytes.fromhex(memory[at : at + 20].tobytes().decode())
            topic, queue_id = self.queue_key(memory, self._rows, row)
            run = Run(sequence, sequence + count, topic, queue_id, queue_offset)
            table.add(producer, run, log_end)


def light_rows(memory: U8, rows: I64, n: int) -> I64:
    """A row table of the places in light queues that the first n rows' records have."""
    none: I64 = np.empty((scan.COLUMNS, 0), np.int64)
    if not rows[scan.MULTI, :n].any():
        return none
    made: I64 = np.empty((scan.COLUMNS, int(scan.fan_out(memory, rows, n, none))), np.int64)
    scan.fan_out(memory, rows, n, made)
    return made


def is_directory_name(topic: str) -> bool:
    """Tell whether a topic read from a record may become a directory."""
    return bool(topic) and topic not in (".", "..") and "/" not in topic and "\0" not in topic
