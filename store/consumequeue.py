"""ConsumeQueue: the entries of one queue, 20 bytes each, that point into the commit log.

| at | field | bytes |
|---:|-------|------:|
| 0 | physical offset | 8 |
| 8 | record size | 4 |
| 12 | tags code: Java hash of TAGS, delivery time (delay topic) or ext address | 8 |

Always rebuildable from the log. Source: Apache RocketMQ 4.9.8, ConsumeQueue.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from duolog_server.store.errors import BadStoreDirectory
from duolog_server.store.kernels import queue as kernel
from duolog_server.store.kernels import scan
from duolog_server.store.kernels.jit import I64, U8
from duolog_server.store.mappedfile import MappedFile
from duolog_server.store.mappedfilequeue import MappedFileQueue
from duolog_server.store.offsets import QueueOffset
from duolog_server.store.openfiles import OpenFiles
from duolog_server.store.queueends import QueueKey
from duolog_server.store.queuelayout import QueueLayout

ENTRY_BYTES = kernel.ENTRY_BYTES
BLANK = 0x7FFFFFFF  # size field of a blank entry
_BLANK_SIZE = np.frombuffer(b"\x7f\xff\xff\xff", np.uint8)  # size field of a blank entry
RECOVER_FILES = 3
ENTRIES_AT_ONCE = 4096
ENTRIES_SCANNED = 1 << 20  # by one call: a few ms


@dataclass(frozen=True, slots=True)
class EntrySlice:
    """Consecutive entries in one file: memory, byte position of the first, count."""

    memory: U8
    position: int
    count: int


class ConsumeQueue:
    """The entries of one (topic, queue id), oldest first."""

    def __init__(self, open_files: OpenFiles, key: QueueKey, layout: QueueLayout) -> None:
        self.topic, self.queue_id = key
        self.begins_again = layout.begins_again
        self._left: list[MappedFile] = []  # by `rewind`; what is not filled again is removed
        self._replaced: list[MappedFile] = []
        self._rewound = False
        self.files = MappedFileQueue(
            open_files.disk,
            layout.directory(key),
            layout.file_bytes,
            ENTRY_BYTES if layout.begins_again else None,
            open_files,
        )
        self.max_physical_offset = -1  # end of the newest record that has an entry
        self.min_logic_bytes = 0
        self.held_from = 0  # no entry from the minimum on names a record below this offset

    @property
    def min_offset(self) -> QueueOffset:
        """Queue offset of the first entry that points to a record still held."""
        return QueueOffset(self.min_logic_bytes // ENTRY_BYTES)

    @property
    def max_offset(self) -> QueueOffset:
        """Queue offset after the last entry."""
        return QueueOffset(self.files.max_offset // ENTRY_BYTES)

    def put(self, rows: I64, order: I64, missing_max: int) -> "PutOutcome":
        """Append entries for the rows selected by `order`; existing entries are skipped.

        missing_max: entries that may be missing because their records are corrupt; a gap up to that
        is closed with blank entries, a larger one is refused. Raises OSError (full disk, or
        TooManyUnsynced): what was put before it stays, the rest may be put again.
        """
        state: I64 = np.zeros(3, np.int64)
        outcome = PutOutcome()
        position, end = 0, len(order)
        if not end or self.has(rows, int(order[-1])):
            return outcome
        self.files.check_room()
        while position < end:
            mapped = self._file_for(int(rows[scan.QUEUE_OFFSET, order[position]]))
            mapped.allocate(mapped.wrote + ENTRY_BYTES)
            state[0] = self.max_physical_offset
            code = kernel.put_entries(
                mapped.memory[: mapped.allocated],
                mapped.wrote,
                mapped.start // ENTRY_BYTES,
                rows,
                order,
                position,
                end,
                state,
            )
            self.max_physical_offset = int(state[0])
            mapped.wrote = mapped.committed = int(state[1])
            position = int(state[2])
            if position >= end:
                break
            row = int(order[position])
            gap = int(rows[scan.QUEUE_OFFSET, row]) - self.max_offset
            allowed = missing_max + len(outcome.refused) - outcome.blanks
            if code == kernel.QUEUE_GAP and gap <= allowed:
                outcome.blanks += gap
                self._fill(self.max_offset + gap)
            elif code == kernel.QUEUE_GAP and self.begins_again:
                self._begin_again()
            elif code in (kernel.QUEUE_GAP, kernel.QUEUE_BEHIND):
                outcome.refused.append(row)
                position += 1
        return outcome

    def has(self, rows: I64, row: int) -> bool:
        """Whether the entry of a row and all before it exist: after a kill most do."""
        return bool(rows[scan.PHY, row] + rows[scan.SIZE, row] <= self.max_physical_offset)

    def _file_for(self, queue_offset: int) -> MappedFile:
        last = self.files.last
        if last is None:
            return self._first_file(queue_offset)
        return self.files.roll() if last.is_full else last

    def _first_file(self, queue_offset: int) -> MappedFile:
        """Start a queue at any offset: everything before it is blank and below the minimum."""
        wanted = queue_offset * ENTRY_BYTES
        mapped = self.files.roll(wanted)
        kernel.put_blanks(mapped.memory, 0, wanted - mapped.start)
        mapped.set_positions(wanted - mapped.start)
        self.min_logic_bytes = wanted
        self.files.flushed_where = self.files.committed_where = mapped.start
        mapped.flushed = 0
        return mapped

    def _begin_again(self) -> None:
        """Drop all entries; the next one may lie at any offset."""
        for mapped in self.files.files:
            self.files.disk.remove(mapped.file.path)
        self._replaced += self.files.files  # a sync of them may be running
        self.files.files = []
        self.max_physical_offset = -1
        self.held_from = 0

    def let_go(self) -> None:
        """Close the files of dropped entries; called while no sync is running."""
        for mapped in self._replaced:
            mapped.file.close()
        self._replaced.clear()

    def _fill(self, to_queue_offset: int) -> None:
        """Add blank entries up to a queue offset: their records are lost, the queue stays dense."""
        while self.max_offset < to_queue_offset:
            last = self.files.last
            if last is None or last.is_full:
                last = self.files.roll()
            end = min(last.size, to_queue_offset * ENTRY_BYTES - last.start)
            last.allocate(end)
            last.wrote = last.committed = int(kernel.put_blanks(last.memory, last.wrote, end))

    def trust(self, end: int, newest: int, minimum: int, held_from: int) -> bool:
        """After load: trust a note for files that were not changed since.

        False if the files' names do not match the note.
        """
        files = self.files.files
        if not files or self.files.holes() or not files[-1].start < end <= files[-1].end:
            return False
        self.files.set_end(end)
        self.max_physical_offset, self.min_logic_bytes = newest, minimum
        self.held_from = held_from
        files[-1].tail_unknown = True
        return True

    def recover(self) -> None:
        """After load: find how far the last files are written.

        Raises BadStoreDirectory where a file between them is missing, or holds no entries.
        """
        if not self.files.files:
            return
        self._check_files()
        state: I64 = np.zeros(1, np.int64)
        for mapped in self.files.files[-RECOVER_FILES:]:
            end = int(kernel.walk_entries(mapped.memory, mapped.held, state))
            if state[0] >= 0:
                self.max_physical_offset = int(state[0])
            if end < mapped.size:
                self._end_at(mapped.start + end)
                break
        else:
            self.files.set_end(self.files.files[-1].end)
        self.min_logic_bytes = self.files.min_offset

    def _check_files(self) -> None:
        """Check both ends of every full file: cheap, and detects a lost or foreign file."""
        for start, _ in self.files.holes():
            raise BadStoreDirectory(self.files.path_of(start), "is missing")
        newest = -1
        for mapped in self.files.files[:-1]:
            ends = np.concatenate((mapped.memory[:ENTRY_BYTES], mapped.memory[-ENTRY_BYTES:]))
            table: I64 = np.empty((3, 2), np.int64)
            kernel.read_entries(ends, 0, 2, table)
            for physical, size, _ in table.T.tolist():
                if size <= 0 or physical < 0 or (size != BLANK and physical < newest):
                    raise BadStoreDirectory(mapped.file.path, "holds bytes that are not entries")
                newest = physical if size != BLANK else newest

    def _end_at(self, logic_bytes: int) -> None:
        """Set the end; bytes after it are cleared before anything is written there."""
        for mapped in reversed(self.files.files[1:]):
            if mapped.start >= logic_bytes:
                self.files.remove(mapped)
        self.files.set_end(logic_bytes)
        self.files.files[-1].tail_unknown = True

    def truncate(self, physical_offset: int) -> None:
        """truncateDirtyLogicFiles: drop entries of records that start at or after an offset."""
        if not 0 <= self.max_physical_offset <= physical_offset:
            self._cut(physical_offset, self.files.remove, self.files.truncate, self.destroy)

    def rewind(self, physical_offset: int) -> None:
        """Truncate, but keep the files: the entries are about to be added again.

        Until `settle`, which removes what was not added again.
        """
        if not 0 <= self.max_physical_offset <= physical_offset:
            self._cut(physical_offset, self._leave, self._end_before, self._leave_all)

    def settle(self) -> None:
        """After a rewind, once all entries were added again: remove files without any of them.

        In the last file, bytes after the end are cleared, because other records will take that
        place.
        """
        taken = {mapped.start for mapped in self.files.files}
        for mapped in self._left:
            if mapped.start not in taken:
                self.files.disk.remove(mapped.file.path)
        if self._left and not taken:
            self.files.destroy()
        self._left.clear()
        last = self.files.last
        if self._rewound and last is not None and last.tail_unknown:
            last.clear_from(last.wrote)
            last.tail_unknown = False
        self._rewound = False

    def _leave(self, mapped: MappedFile) -> None:
        self.files.files = [other for other in self.files.files if other is not mapped]
        mapped.file.close()
        self._left.append(mapped)

    def _leave_all(self) -> None:
        for mapped in list(self.files.files):
            self._leave(mapped)
        self._forget()

    def _end_before(self, logic_bytes: int) -> None:
        self.files.end_at_most(min(logic_bytes, self.files.next_start(logic_bytes)))
        self.files.files[-1].tail_unknown = self._rewound = True

    def _cut(
        self,
        physical_offset: int,
        remove: Callable[[MappedFile], None],
        end_at: Callable[[int], None],
        destroy: Callable[[], None],
    ) -> None:
        """Drop entries of records from an offset on.

        remove, end_at, destroy: what to do with files.
        """
        state: I64 = np.zeros(1, np.int64)
        self.max_physical_offset = -1
        self.held_from = min(self.held_from, physical_offset)
        cut = self._names_record_from(physical_offset)
        while self.files.files:
            last = self.files.files[-1]
            end = int(kernel.first_entry_from(last.memory, 0, last.wrote, physical_offset))
            if cut:
                # Blanks before the cut stand for records that precede one that is dropped as well.
                end = _after_last_record(last.memory[:end])
            if end == 0 and (last.wrote > 0 or cut):
                start = last.start
                remove(last)
                self.files.end_at_most(self.files.next_start(start) if self.files.files else 0)
                continue
            end_at(last.start + end)
            kernel.walk_entries(last.memory, end, state)
            if state[0] >= 0:
                self.max_physical_offset = int(state[0])
                break
            if len(self.files.files) == 1:
                break
            # Only blanks are left in this file: the newest record is named by an older one.
            for older in reversed(self.files.files[:-1]):
                kernel.walk_entries(older.memory, older.wrote, state)
                if state[0] >= 0:
                    self.max_physical_offset = int(state[0])
                    break
            break
        if self.max_physical_offset < 0 and (cut or not self.files.files or self.begins_again):
            destroy()  # only blanks are left: it starts again with its first record
            return
        self.min_logic_bytes = min(
            max(self.min_logic_bytes, self.files.min_offset), self.files.max_offset
        )

    def _names_record_from(self, physical_offset: int) -> bool:
        """Tell whether any entry is of a record that starts at or after an offset.

        The newest files may hold no such entry although older ones do: a file that was made for an
        entry that never came is empty, and one may hold blank entries alone.
        """
        state: I64 = np.zeros(1, np.int64)
        for mapped in reversed(self.files.files):
            end = int(kernel.first_entry_from(mapped.memory, 0, mapped.wrote, physical_offset))
            if end < mapped.wrote:
                return True
            kernel.walk_entries(mapped.memory, mapped.wrote, state)
            if state[0] >= 0:
                return False
        return False

    def raise_minimum(self, queue_offset: int) -> bool:
        """Hide entries below a queue offset from readers, up to the end of the queue.

        Whether that hides any more of them.
        """
        wanted = min(queue_offset * ENTRY_BYTES, self.files.max_offset)
        before, self.min_logic_bytes = self.min_logic_bytes, max(self.min_logic_bytes, wanted)
        return self.min_logic_bytes > before

    @property
    def has_hidden_files(self) -> bool:
        """Whether there are files, besides the last one, of entries below the minimum alone."""
        files = self.files.files
        return len(files) > 1 and files[0].end <= self.min_logic_bytes

    def delete_hidden(self, logic_bytes: int) -> int:
        """Remove files, never the last, of entries below a position and the minimum; how many."""
        removed = 0
        while self.has_hidden_files and self.files.files[0].end <= logic_bytes:
            self.files.remove(self.files.files[0])
            removed += 1
        return removed

    def forget_minimum(self) -> None:
        """Begin with the first entry again, until the minimum is corrected."""
        self.min_logic_bytes, self.held_from = self.files.min_offset, 0

    def correct_min_offset(self, min_physical_offset: int) -> None:
        """Move the minimum to the first entry whose record is still held."""
        if min_physical_offset <= self.held_from:
            return
        if 0 <= self.max_physical_offset <= min_physical_offset:
            self.min_logic_bytes = self.files.max_offset
            self.held_from = min_physical_offset
            return
        for mapped in self.files.files:
            begin = max(0, self.min_logic_bytes - mapped.start)
            if begin >= mapped.wrote:
                continue
            found = int(
                kernel.first_entry_from(mapped.memory, begin, mapped.wrote, min_physical_offset)
            )
            if found < mapped.wrote:
                self.min_logic_bytes = mapped.start + found
                self.held_from = max(min_physical_offset, _record_of(mapped.memory, found))
                return
        self.min_logic_bytes = self.files.max_offset
        self.held_from = min_physical_offset

    def delete_before(self, min_physical_offset: int) -> int:
        """Remove files, never the last, whose entries all point below an offset; how many."""
        removed = 0
        files = self.files.files
        if min_physical_offset <= self.held_from and (
            len(files) < 2 or files[0].end > self.min_logic_bytes
        ):
            return 0
        while len(self.files.files) > 1:
            first = self.files.files[0]
            if (
                kernel.first_entry_from(first.memory, 0, first.wrote, min_physical_offset)
                < first.wrote
            ):
                break
            self.files.remove(first)
            removed += 1
        self.correct_min_offset(min_physical_offset)
        return removed

    def entry_before(self, logic_bytes: int) -> int:
        """Record offset named by the entry before a position, -1 if there is none."""
        found = self.entries(logic_bytes // ENTRY_BYTES - 1, 1)
        return int(found[0, 0]) if found.shape[1] else -1

    def next_from(self, queue_offset: int, physical_offset: int) -> int:
        """Queue offset, from one on, of the first entry at or past a record's offset.

        Blank entries are skipped; the end if there is none.
        """
        while queue_offset < self.max_offset:
            found = self.slice_at(queue_offset, self.max_offset - queue_offset)
            if found is None:
                break
            end = found.position + found.count * ENTRY_BYTES
            at = int(kernel.first_entry_from(found.memory, found.position, end, physical_offset))
            queue_offset += (at - found.position) // ENTRY_BYTES
            if at < end:
                return queue_offset
        return self.max_offset

    def end_at_least(self, queue_offset: int) -> None:
        """Add blank entries up to a queue offset, which was given to a record that is lost."""
        if self.files.last is None:
            self._first_file(queue_offset)
        self._fill(queue_offset)

    def slice_at(self, queue_offset: int, count: int) -> EntrySlice | None:
        """Entries from a queue offset on, up to the end of their file."""
        logic = queue_offset * ENTRY_BYTES
        mapped = self.files.find(logic)
        if mapped is None or logic - mapped.start >= mapped.wrote:
            return None
        position = logic - mapped.start
        return EntrySlice(
            mapped.memory, position, min(count, (mapped.wrote - position) // ENTRY_BYTES)
        )

    def entries(self, queue_offset: int, count: int) -> I64:
        """Entries as a table [3, n]: physical offset, size, tags code."""
        parts = []
        while count > 0:
            found = self.slice_at(queue_offset, count)
            if found is None or found.count == 0:
                break
            part: I64 = np.empty((3, found.count), np.int64)
            kernel.read_entries(found.memory, found.position, found.count, part)
            parts.append(part)
            queue_offset += found.count
            count -= found.count
        return np.concatenate(parts, axis=1) if parts else np.empty((3, 0), np.int64)

    def offset_at_size(self, queue_offset: QueueOffset, size: int) -> QueueOffset:
        """Offset up to which the records from queue_offset on have at most size bytes.

        It lies after queue_offset where there is a record, however large that is. No more than
        ENTRIES_SCANNED entries are counted.
        """
        at = int(max(queue_offset, self.min_offset))
        until = min(self.max_offset, at + ENTRIES_SCANNED)
        while at < until:
            sizes = np.cumsum(self.entries(at, ENTRIES_AT_ONCE)[1])
            fits = int(np.searchsorted(sizes, size, side="right"))
            at += fits
            if fits < len(sizes) or not fits:
                break
            size -= int(sizes[-1])
        return QueueOffset(min(max(at, queue_offset + 1), self.max_offset))

    def offset_at_time(
        self,
        time_ms: int,
        store_time_at: Callable[[int], int],
        held_from: Callable[[int], int],
    ) -> QueueOffset:
        """Queue offset of the first entry stored at or after a time; the end if none is.

        held_from: the first record offset at or after one that the log has a segment for.
        """
        low, high = int(self.min_offset), int(self.max_offset)
        while low < high:
            middle = (low + high) // 2
            probe = middle
            time = -1
            while time < 0:  # a lost record has no time: try the next one
                probe = self.next_from(probe, 0)
                if probe >= high:
                    break
                physical = int(self.entries(probe, 1)[0, 0])
                held = held_from(physical)
                if held > physical:
                    probe = max(probe + 1, self.next_from(probe, held))
                    continue
                time = store_time_at(physical)
                probe += 1
            if time < 0 or time >= time_ms:
                high = middle
            else:
                low = probe
        return QueueOffset(low)

    def destroy(self) -> None:
        """Remove the queue's files."""
        self.let_go()
        self.files.destroy()
        self._forget()

    def _forget(self) -> None:
        self.max_physical_offset = -1
        self.min_logic_bytes = self.held_from = 0


def _record_of(entries: U8, position: int) -> int:
    """Record offset that the entry at a position names."""
    return int.from_bytes(entries[position : position + 8].tobytes(), "big")


def _after_last_record(entries: U8) -> int:
    """Position after the last entry that is not blank."""
    sizes = entries[: len(entries) // ENTRY_BYTES * ENTRY_BYTES].reshape(-1, ENTRY_BYTES)[:, 8:12]
    real = np.flatnonzero((sizes != _BLANK_SIZE).any(axis=1))
    return (int(real[-1]) + 1) * ENTRY_BYTES if len(real) else 0


class PutOutcome:
    """Result of a put into a queue."""

    def __init__(self) -> None:
        self.blanks = 0
        self.refused: list[int] = []
