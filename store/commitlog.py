"""The CommitLog: every record of every topic, one after the other, in segments.

Rules: one writer at a time; positions move only after success; a batch is stored whole or not at
all; every record leaves 8 bytes after it for the blank record that closes its segment.
"""

import struct
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from duolog_server.store.columns import Columns
from duolog_server.store.directories import LOG
from duolog_server.store.disk import Disk
from duolog_server.store.errors import BadMessage, CorruptRecord, OffsetOutOfRange
from duolog_server.store.kernels import encode, scan
from duolog_server.store.kernels.jit import EMPTY_I64, EMPTY_U8, I64, U8
from duolog_server.store.kernels.ordered import clear_back, copy_records
from duolog_server.store.mappedfile import MappedFile, TransientStorePool
from duolog_server.store.mappedfilequeue import MappedFileQueue
from duolog_server.store.offsets import PhyOffset, QueueOffset
from duolog_server.store.options import StoreOptions
from duolog_server.store.record import Host, Record, RecordHeader, decode_properties, topic_bytes

BLANK_BYTES = 8
SECTOR = 512
WALK_ROWS = 4096  # records scanned at a time
_BLANK = struct.Struct(">II")
AHEAD_FROM = 0.5  # share of a segment after which the next one is allocated
POPULATE_BYTES = 16 << 20  # how far ahead of the writer pages are faulted in


@dataclass(slots=True)  # not frozen, as what a put makes: see `store.puts`
class Appended:
    """The position of a batch: [start, end) in the log, including blanks between its records.

    places: where each of its records begins, if that was asked for.
    """

    start: int
    end: int
    places: I64 = field(default_factory=lambda: EMPTY_I64, compare=False)


@dataclass(frozen=True, slots=True, order=True)
class CorruptRange:
    """Bytes [start, end) of the log that hold no valid record though valid ones follow."""

    start: int
    end: int

    def is_torn(self, memory: U8, base: int) -> bool:
        """Tell whether a power cut left it: some sector of it ends in zeros, as if never written.

        memory: of the segment that starts at `base` and holds the range.
        """
        first, end = self.start - base, self.end - base
        # The next record's first 3 bytes are zeros as well: its sector may be a lost one.
        for boundary in range(first - first % SECTOR + SECTOR, end + 4, SECTOR):
            tail = memory[max(first, boundary - 8) : min(boundary, end)]
            if len(tail) and not tail.any():
                return True
        return False

    @property
    def records_max(self) -> int:
        """Most records that can have been lost in it."""
        return -(-(self.end - self.start) // scan.RECORD_MIN)


@dataclass(slots=True)
class _Mark:
    """The end of the log before an append, for undoing it."""

    files: int
    wrote: int
    touched: list[tuple[MappedFile, int, int]]


@dataclass(slots=True, eq=False)
class Part:
    """Which messages of a batch are appended, and as whose.

    first: the first of them. producer: 10 bytes, with `sequence` the UNIQ_KEY of message `first`;
    empty for none. fields: see `encode`, what the header gets wrong for single messages. placed:
    whether to say where each record begins. sealed: whether records have CRCs of their own where
    the options ask for them; False for messages that leave no room for one.
    """

    first: int = 0
    producer: bytes = b""
    sequence: int = 0
    fields: I64 = field(default_factory=lambda: encode.NO_FIELDS)
    placed: bool = False
    sealed: bool = True


WHOLE = Part()


@lru_cache(4096)
def topic_field(topic: str, length_bytes: int) -> U8:
    """See `encode`."""
    text = topic_bytes(topic)
    return np.frombuffer(len(text).to_bytes(length_bytes, "big") + text + b"\0\0", np.uint8)


@lru_cache(1024)
def uniq_key_field(producer: bytes) -> U8:
    """See `encode`."""
    text = encode.UNIQ_KEY_NAME + producer.hex().upper().encode() if producer else b""
    return np.frombuffer(text, np.uint8)


class CommitLog:
    """Appends, finds and reads records by offset."""

    def __init__(self, disk: Disk, options: StoreOptions, directory: str = LOG) -> None:
        self.options = options
        self.queue = MappedFileQueue(disk, directory, options.mapped_file_size_commit_log)
        self.corrupt_ranges: list[CorruptRange] = []
        self.last_store_time = 0
        self._appending = False
        self._pool: TransientStorePool | None = None
        if options.use_transient_store_pool:
            self._pool = TransientStorePool(
                options.transient_store_pool_size, options.mapped_file_size_commit_log
            )

    @property
    def min_offset(self) -> PhyOffset:
        """Offset of the first byte held."""
        return PhyOffset(self.queue.min_offset)

    @property
    def max_offset(self) -> PhyOffset:
        """Offset after the last readable byte."""
        return PhyOffset(self.queue.max_offset)

    @property
    def wrote_offset(self) -> PhyOffset:
        """Offset after the last byte appended, readable or still in a pool buffer."""
        return PhyOffset(self.queue.wrote_offset)

    def roll_next_file(self, offset: int) -> int:
        """Start of the segment after the one that contains an offset."""
        size = self.queue.file_size
        return offset - offset % size + size

    def allocation_wanted(self) -> int | None:
        """Start of the segment that should be allocated ahead now, if one should."""
        last = self.queue.last
        if last is None or self.queue.ahead is not None:
            return None
        return last.end if last.wrote >= AHEAD_FROM * last.size else None

    def populate_wanted(self) -> tuple[MappedFile, int, int] | None:
        """Segment and bytes [start, end) that should be faulted in ahead of the writer now."""
        last = self.queue.last
        if last is None or last.buffer is not None:
            return None
        if last.populated - last.wrote >= POPULATE_BYTES // 2 or last.populated >= last.room:
            return None
        start = max(last.populated, last.wrote)
        end = min(last.wrote + POPULATE_BYTES, last.room)
        last.populated = end
        return last, start, end

    # -- writing -------------------------------------------------------------------------------

    def append(
        self,
        columns: Columns,
        header: RecordHeader,
        queue_offset: int,
        part: Part = WHOLE,
    ) -> Appended:
        """Append messages of a checked batch.

        Raises OSError if the disk has no room for a segment; the log is then as before.
        """
        assert not self._appending, "one writer at a time"
        self._appending = True
        mark = self._mark()
        try:
            appended = self._append(columns, header, queue_offset, part, mark)
        except BaseException:
            self._go_back(mark)
            raise
        finally:
            self._appending = False
        self.last_store_time = header.store_time
        return appended

    def _append(
        self,
        columns: Columns,
        header: RecordHeader,
        queue_offset: int,
        part: Part,
        mark: _Mark,
    ) -> Appended:
        template = np.frombuffer(header.packed(), np.uint8)
        topic = topic_field(header.topic, header.topic_length_bytes())
        uniq_key = uniq_key_field(part.producer)
        count = columns.count
        result: I64 = np.zeros(1 + (count if part.placed else 0), np.int64)
        mapped = self._writable()
        start = mapped.start + mapped.wrote
        done = first = part.first
        while True:
            before = mapped.wrote
            room = mapped.room
            position = encode.encode(
                mapped.write_memory,
                before,
                room,
                mapped.start,
                template,
                topic,
                columns.bodies,
                columns.body_offsets,
                columns.properties,
                columns.property_offsets,
                done,
                queue_offset + done - first,
                uniq_key,
                part.sequence + done - first,
                self.options.enabled_append_prop_crc and part.sealed,
                part.fields,
                result,
            )
            mark.touched.append((mapped, before, position))
            mapped.wrote = position
            mapped.store_time = header.store_time
            fitted = int(result[0])
            done += fitted
            if done == count:
                places = result[1:] if part.placed else EMPTY_I64
                return Appended(start, mapped.start + position, places)
            if room < mapped.size:
                mapped.allocate(room + 1)  # and some more
                continue
            if fitted == 0 and before == 0:
                raise BadMessage(
                    f"message {done} of the batch does not fit into a segment of "
                    f"{mapped.size} bytes"
                )
            self._close_segment(mapped)
            mark.touched[-1] = (mapped, before, mapped.size)
            mapped = self._writable()
            if done == first:  # nothing fitted before: the batch starts in the new segment
                start = mapped.start

    def _writable(self) -> MappedFile:
        last = self.queue.last
        if last is None or last.is_full:
            last = self.queue.roll()
            if self._pool is not None:
                last.buffer = self._pool.borrow()
        return last

    def _close_segment(self, mapped: MappedFile) -> None:
        """Write the blank record (8 bytes); the rest of the file is left unchanged."""
        left = mapped.size - mapped.wrote
        assert left >= BLANK_BYTES, "every record leaves room for the blank one"
        blank = _BLANK.pack(left, scan.MAGIC_BLANK)
        memory = mapped.write_memory
        memory[mapped.wrote : mapped.wrote + BLANK_BYTES] = np.frombuffer(blank, np.uint8)
        mapped.wrote = mapped.size

    def _mark(self) -> _Mark:
        files = self.queue.files
        return _Mark(len(files), files[-1].wrote if files else 0, [])

    def _go_back(self, mark: _Mark) -> None:
        """Undo an append: zero what it wrote, and remove the segments it opened."""
        for mapped, low, high in reversed(mark.touched):
            clear_back(mapped.write_memory, low, high)
        while len(self.queue.files) > max(mark.files, 1):
            opened = self.queue.files.pop()
            opened.set_positions(0)
            self.queue.drop_ahead()
            self.queue.ahead = opened
        if self.queue.files:
            self.queue.files[-1].wrote = mark.wrote

    def append_data(self, offset: int, data: U8) -> None:
        """Append whole records of another log, as a slave does; they must lie inside one segment.

        A kill in the middle leaves the beginning of them (see `store.kernels.ordered`). Raises
        OffsetOutOfRange unless offset is the end of the log; an empty log starts at the segment
        that the offset falls in, and then the offset may be anywhere in it.
        """
        end = self.queue.wrote_offset
        if self.queue.files and offset != end:
            raise OffsetOutOfRange(offset, end, end + 1)
        last = self.queue.last
        if offset % self.queue.file_size + len(data) > self.queue.file_size:
            raise BadMessage(f"{len(data)} bytes at {offset} cross a segment's end")
        if last is None or last.is_full:
            first = last is None
            last = self.queue.roll(offset)
            last.set_positions(offset - last.start)
            if first:
                self.queue.flushed_where = self.queue.committed_where = offset
        last.allocate(last.wrote + len(data))
        last.wrote = copy_records(last.memory, last.wrote, data)

    def commit(self) -> None:
        """Make appends in pool buffers readable and ready to be flushed."""
        self.queue.commit()
        if self._pool is not None:
            for mapped in self.queue.files[-3:]:
                if mapped.buffer is not None and mapped.is_full:
                    self._pool.give_back(mapped.buffer)
                    mapped.buffer = None

    # -- reading -------------------------------------------------------------------------------

    def get_data(self, offset: int) -> U8:
        """Readable bytes from an offset to the end of its segment; empty at the log's end."""
        mapped = self.queue.find(offset)
        if mapped is None or offset - mapped.start >= mapped.readable:
            return EMPTY_U8
        return mapped.memory[offset - mapped.start : mapped.readable]

    def get_message(self, offset: int) -> Record:
        """The verified record that starts at an offset.

        Raises OffsetOutOfRange, or CorruptRecord if no valid record starts there.
        """
        mapped = self.queue.find(offset)
        if mapped is None and self.min_offset <= offset < self.max_offset:
            raise CorruptRecord(offset, "its segment is missing")
        if mapped is None or offset < 0 or offset >= self.max_offset:
            raise OffsetOutOfRange(offset, self.min_offset, self.max_offset)
        return read_record(mapped.memory, offset - mapped.start, mapped.readable, mapped.start)

    def is_boundary(self, offset: int) -> bool:
        """Whether a record or blank starts at an offset, or the log ends there."""
        if offset == self.max_offset or offset % self.queue.file_size == 0:
            return True
        mapped = self.queue.find(offset)
        if mapped is None or offset >= self.max_offset:
            return False
        at = offset - mapped.start
        if at + BLANK_BYTES <= mapped.readable:
            left, magic = _BLANK.unpack(mapped.memory[at : at + BLANK_BYTES].tobytes())
            if magic == scan.MAGIC_BLANK and left == mapped.size - at:
                return True
        return self.store_time_at(offset) >= 0

    def before_blank(self, offset: int) -> int:
        """Start of the blank that contains or precedes an offset; otherwise the offset itself."""
        if offset % self.queue.file_size and self.is_boundary(offset):
            return offset
        mapped = self.queue.find(offset - 1)
        if mapped is None:
            return offset
        rows: I64 = np.empty((scan.COLUMNS, WALK_ROWS), np.int64)
        result: I64 = np.zeros(2, np.int64)
        position, code = 0, scan.SCAN_FULL
        while code == scan.SCAN_FULL:
            code = scan.scan(
                mapped.memory,
                position,
                mapped.readable,
                mapped.start,
                False,
                EMPTY_I64,
                rows,
                result,
            )
            position = int(result[1])
        blank = mapped.start + position
        return blank if code == scan.SCAN_BLANK and blank < offset else offset

    def record_bytes(self, offset: int) -> int:
        """Size field of the record (or blank) at an offset, 0 if there is none."""
        head = self.get_data(offset)[:4]
        size = int.from_bytes(head.tobytes(), "big") if len(head) == 4 else 0
        return min(size, self.queue.file_size - offset % self.queue.file_size)

    def store_time_at(self, offset: int) -> int:
        """Store time of the record at an offset, -1 if none starts there."""
        try:
            return self.get_message(offset).store_time
        except (OffsetOutOfRange, CorruptRecord):
            return -1

    @property
    def sound_end(self) -> int:
        """Start of the first corrupt range, or the end of the log."""
        return min((found.start for found in self.corrupt_ranges), default=self.wrote_offset)

    def corrupt_range_at(self, offset: int) -> CorruptRange | None:
        """The known corrupt range that contains an offset."""
        ranges = self.corrupt_ranges
        return next((found for found in ranges if found.start <= offset < found.end), None)

    def note_holes(self) -> list[CorruptRange]:
        """Add missing segments to the corrupt ranges; those that were found."""
        found = [CorruptRange(start, end) for start, end in self.queue.holes()]
        self.corrupt_ranges = sorted({*self.corrupt_ranges, *found})
        return found

    def next_valid(self, offset: int) -> int | None:
        """Offset of the first valid record at or after an offset: tells torn from corrupt."""
        for mapped in self.queue.files:
            if mapped.end <= offset:
                continue
            begin = max(0, offset - mapped.start)
            for low, high in mapped.file.data_ranges(begin):
                position = scan.find_record(mapped.memory, max(low - 8, begin), high, mapped.start)
                if position >= 0:
                    return mapped.start + int(position)
        return None


_SCAN_REASONS = {
    scan.SCAN_BLANK: "the blank record at the end of a segment",
    scan.SCAN_BAD_MAGIC: "bad magic code",
    scan.SCAN_BAD_CRC: "bad CRC",
    scan.SCAN_BAD_SIZE: "inconsistent lengths",
    scan.SCAN_BAD_OFFSET: "names another offset",
    scan.SCAN_PARTIAL: "cut short",
}


def scan_reason(code: int) -> str:
    """The description of a scan code."""
    return _SCAN_REASONS.get(code, f"code {code}")


def read_record(memory: U8, position: int, end: int, base: int) -> Record:
    """Read one record out of a segment's memory; CorruptRecord if there is none."""
    rows: I64 = np.empty((scan.COLUMNS, 1), np.int64)
    result: I64 = np.zeros(2, np.int64)
    code = scan.scan(memory, position, end, base, True, EMPTY_I64, rows, result)
    if result[0] != 1:
        raise CorruptRecord(base + position, scan_reason(code))
    row = [int(number) for number in rows[:, 0]]
    host_at = position + 48
    host_bytes = 20 if row[scan.SYSFLAG] & scan.BORN_HOST_V6 else 8
    store_host_at = host_at + host_bytes + 8
    store_host_bytes = 20 if row[scan.SYSFLAG] & scan.STORE_HOST_V6 else 8

    def cut(at: int, size: int) -> bytes:
        return bytes(memory[at : at + size])

    properties = cut(row[scan.PROPERTIES_AT], row[scan.PROPERTIES_BYTES])
    return Record(
        topic=cut(row[scan.TOPIC_AT], row[scan.TOPIC_BYTES]).decode(errors="replace"),
        queue_id=row[scan.QUEUE_ID],
        queue_offset=QueueOffset(row[scan.QUEUE_OFFSET]),
        physical_offset=PhyOffset(row[scan.PHY]),
        size=row[scan.SIZE],
        store_time=row[scan.STORE_TIME],
        born_time=row[scan.BORN_TIME],
        flag=row[scan.FLAG],
        sysflag=row[scan.SYSFLAG],
        reconsume_times=row[scan.RECONSUME_TIMES],
        prepared_offset=PhyOffset(row[scan.PREPARED_OFFSET]),
        born_host=Host.unpacked(cut(host_at, host_bytes)),
        store_host=Host.unpacked(cut(store_host_at, store_host_bytes)),
        tags_code=row[scan.TAGS_CODE],
        body=cut(row[scan.BODY_AT], row[scan.BODY_BYTES]),
        properties=decode_properties(properties.decode(errors="replace")),
    )
