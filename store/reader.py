"""Reading a queue: its records as columns, one kernel call per file met."""

import enum
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from duolog_server.store.commitlog import CommitLog
from duolog_server.store.consumequeue import ENTRY_BYTES, ConsumeQueue, EntrySlice
from duolog_server.store.consumequeueext import ConsumeQueueExt, FilterBits, is_ext_address
from duolog_server.store.kernels import decode
from duolog_server.store.kernels.choose import gather
from duolog_server.store.kernels.jit import EMPTY_I64, I64, U8
from duolog_server.store.offsets import QueueOffset

MESSAGES_MAX = 65536
ENTRIES_MAX = 262_144  # examined by one read, however few match
UNITS_MAX = 10_000  # extension units examined by one read
EMPTY_TABLE: I64 = np.empty((decode.OUT_COLUMNS, 0), np.int64)


class GetMessageStatus(enum.Enum):
    """Result of a read, under RocketMQ's names."""

    FOUND = "FOUND"
    NO_MATCHED_MESSAGE = "NO_MATCHED_MESSAGE"
    NO_MATCHED_LOGIC_QUEUE = "NO_MATCHED_LOGIC_QUEUE"
    NO_MESSAGE_IN_QUEUE = "NO_MESSAGE_IN_QUEUE"
    OFFSET_OVERFLOW_ONE = "OFFSET_OVERFLOW_ONE"
    OFFSET_OVERFLOW_BADLY = "OFFSET_OVERFLOW_BADLY"
    OFFSET_TOO_SMALL = "OFFSET_TOO_SMALL"
    MESSAGE_WAS_REMOVING = "MESSAGE_WAS_REMOVING"


@dataclass(frozen=True, slots=True)
class GetResult:
    """Messages as columns, and the next offset to read."""

    status: GetMessageStatus
    next_offset: QueueOffset
    min_offset: QueueOffset
    max_offset: QueueOffset
    bodies: bytes = b""
    properties: bytes = b""
    table: I64 = field(default_factory=lambda: EMPTY_TABLE)  # [decode.OUT_COLUMNS, count]
    lost: int = 0  # entries skipped because their records are corrupt or gone

    @property
    def count(self) -> int:
        """Messages read."""
        return int(self.table.shape[1])

    def rows(self) -> Iterator[tuple[list[int], bytes, bytes]]:
        """Each message: its column of `table`, its body, its property text."""
        body_at = property_at = 0
        for numbers in self.table.T.tolist():
            body_end, end = numbers[decode.OUT_BODY_END], numbers[decode.OUT_PROPERTIES_END]
            yield numbers, self.bodies[body_at:body_end], self.properties[property_at:end]
            body_at, property_at = body_end, end

    def where_behind(self, offset: QueueOffset) -> "GetResult":
        """The answer of a node that may be behind: an offset past the end may still come.

        So no reader is sent back to messages that it has read already.
        """
        if self.status is not GetMessageStatus.OFFSET_OVERFLOW_BADLY:
            return self
        return self.yet_to_come(offset)

    def yet_to_come(self, offset: QueueOffset) -> "GetResult":
        """The answer for an offset that readers will see later."""
        status = GetMessageStatus.OFFSET_OVERFLOW_ONE
        return replace(self, status=status, next_offset=offset, max_offset=offset)

    def chosen(self, keep: U8) -> "GetResult":
        """The messages k with keep[k] == 1; without any, the read found no match."""
        if keep.all():
            return self
        table = np.ascontiguousarray(self.table[:, keep == 1])
        blobs = []
        for data, row in (
            (self.bodies, decode.OUT_BODY_END),
            (self.properties, decode.OUT_PROPERTIES_END),
        ):
            ends = np.ascontiguousarray(self.table[row])
            out: U8 = np.empty(len(data), np.uint8)
            filled = gather(np.frombuffer(data, np.uint8), ends, keep, out)
            blobs.append(out[:filled].tobytes())
            table[row] = np.cumsum(np.diff(ends, prepend=0)[keep == 1])
        status = self.status
        if status is GetMessageStatus.FOUND and not table.shape[1]:
            status = GetMessageStatus.NO_MATCHED_MESSAGE
        return replace(self, status=status, bodies=blobs[0], properties=blobs[1], table=table)


@dataclass(frozen=True, slots=True, eq=False)
class Wanted:
    """Limits and selection of one read.

    messages_max: at most so many messages, with bodies of at most bytes_max. tags_codes: only these
    (empty: all). bits: messages that certainly do not match are skipped.
    """

    messages_max: int = 32
    bytes_max: int = 262_144
    tags_codes: I64 = field(default_factory=lambda: EMPTY_I64)
    bits: FilterBits | None = None


ANY = Wanted()


class ColumnReader:
    """Reads queues; owns the scratch memory columns are assembled in (one reader per owner)."""

    def __init__(self, log: CommitLog, bytes_max: int, check_crc: bool) -> None:
        self._log = log
        self._check_crc = check_crc
        self._bodies: U8 = np.empty(bytes_max, np.uint8)
        self._properties: U8 = np.empty(bytes_max, np.uint8)
        self._table: I64 = np.empty((decode.OUT_COLUMNS, MESSAGES_MAX), np.int64)

    def read(
        self,
        queue: ConsumeQueue | None,
        queue_offset: QueueOffset,
        wanted: Wanted,
        ext: ConsumeQueueExt | None = None,
    ) -> GetResult:
        """Read selected messages of a queue, from an offset on; at least one if there is one,
        however large.
        """
        if queue is None:
            return GetResult(
                GetMessageStatus.NO_MATCHED_LOGIC_QUEUE,
                QueueOffset(0),
                QueueOffset(0),
                QueueOffset(0),
            )
        low, high = queue.min_offset, queue.max_offset
        start, end = int(queue_offset), int(high)
        outside = outside_of(queue_offset, low, high)
        if outside is not None:
            return outside
        if ext is not None and (len(wanted.tags_codes) or wanted.bits is not None):
            # Hashes and bits are in the extension units: stop before the first one that does not
            # match.
            codes = {int(code) for code in wanted.tags_codes}
            matches = partial(_unit_matches, queue, ext, codes, wanted.bits)
            start, end = _matching_run(matches, queue_offset, min(high, queue_offset + UNITS_MAX))
            wanted = replace(wanted, tags_codes=EMPTY_I64)
        state: I64 = np.zeros(decode.STATE_SIZE, np.int64)
        offset, lost, full = start, 0, False
        while offset < end and not full and offset - start < ENTRIES_MAX:
            found = queue.slice_at(offset, min(end - offset, ENTRIES_MAX))
            if found is None:
                break
            state[decode.STATE_ENTRY] = 0
            code = self._decode(found, offset, wanted, state)
            if code == decode.DECODE_FULL and state[decode.STATE_MESSAGES] == 0:
                one = replace(wanted, messages_max=1, bytes_max=len(self._bodies))
                code = self._decode(found, offset, one, state)
            offset += int(state[decode.STATE_ENTRY])
            full = code == decode.DECODE_FULL
            following = self._after_lost(queue, offset, code)
            lost += following - offset
            offset = following
        return self._result(state, offset, low, queue.max_offset, lost)

    def _decode(self, found: EntrySlice, offset: int, wanted: Wanted, state: I64) -> int:
        """Decode what is wanted of one entry slice, segment after segment."""
        messages_max = max(1, min(wanted.messages_max, MESSAGES_MAX))
        bodies = self._bodies[: max(1, min(wanted.bytes_max, len(self._bodies)))]
        while True:
            entry = int(state[decode.STATE_ENTRY])
            physical = int.from_bytes(
                found.memory[found.position + entry * ENTRY_BYTES :][:8].tobytes(), "big"
            )
            segment = self._log.queue.find(physical) or self._log.queue.last
            assert segment is not None, "a queue with entries has a log"
            code = int(
                decode.decode(
                    found.memory,
                    found.position,
                    found.count,
                    offset,
                    segment.memory,
                    segment.start,
                    segment.readable,
                    wanted.tags_codes,
                    messages_max,
                    self._check_crc,
                    bodies,
                    self._properties,
                    self._table,
                    state,
                )
            )
            if code != decode.DECODE_OTHER_SEGMENT or int(state[decode.STATE_ENTRY]) == entry:
                return code

    def _after_lost(self, queue: ConsumeQueue, offset: int, code: int) -> int:
        """The next offset after an entry whose record is lost; otherwise the entry itself.

        There may be millions of blank entries or entries of a missing segment: they are skipped at
        once.
        """
        if code == decode.DECODE_CORRUPT:
            return offset + 1
        if code == decode.DECODE_BLANK:
            return max(offset + 1, queue.next_from(offset, 0))
        if code == decode.DECODE_OTHER_SEGMENT:
            physical = int(queue.entries(offset, 1)[0, 0])
            held = self._log.queue.held_from(physical)
            if held != physical:
                return max(offset + 1, queue.next_from(offset, held))
        return offset

    def _result(
        self, state: I64, offset: int, low: QueueOffset, high: QueueOffset, lost: int
    ) -> GetResult:
        count = int(state[decode.STATE_MESSAGES])
        status = GetMessageStatus.FOUND
        if count == 0:
            status = (
                GetMessageStatus.MESSAGE_WAS_REMOVING
                if lost
                else GetMessageStatus.NO_MATCHED_MESSAGE
            )
        return GetResult(
            status,
            QueueOffset(offset),
            low,
            high,
            self._bodies[: int(state[decode.STATE_BODY_BYTES])].tobytes(),
            self._properties[: int(state[decode.STATE_PROPERTIES_BYTES])].tobytes(),
            self._table[:, :count].copy(),
            lost,
        )


def outside_of(queue_offset: QueueOffset, low: QueueOffset, high: QueueOffset) -> GetResult | None:
    """The answer for an offset outside a queue [low, high); None for one inside."""
    if high == 0:
        return GetResult(GetMessageStatus.NO_MESSAGE_IN_QUEUE, QueueOffset(0), low, high)
    if queue_offset < low:
        return GetResult(GetMessageStatus.OFFSET_TOO_SMALL, low, low, high)
    if queue_offset == high:
        return GetResult(GetMessageStatus.OFFSET_OVERFLOW_ONE, high, low, high)
    if queue_offset > high:
        return GetResult(GetMessageStatus.OFFSET_OVERFLOW_BADLY, high, low, high)
    return None


def _unit_matches(
    queue: ConsumeQueue,
    ext: ConsumeQueueExt,
    codes: set[int],
    bits: FilterBits | None,
    offset: int,
) -> bool:
    """Whether an entry's message may match. codes: hashes of tags; none: any."""
    physical, _, code = (int(number) for number in queue.entries(offset, 1)[:, 0])
    unit = ext.get(code) if is_ext_address(code) else None
    if codes and (unit.tags_code if unit else code) not in codes:
        return False
    return bits is None or bits.may_match(unit.filter_bit_map if unit else b"", physical)


def _matching_run(matches: Callable[[int], bool], start: int, high: int) -> tuple[int, int]:
    """The next run of entries that may match."""
    first = start
    while first < high and not matches(first):
        first += 1
    end = first
    while end < high and matches(end):
        end += 1
    return first, end
