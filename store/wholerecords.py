"""Whole, verified records at the beginning of bytes that another log sends, as they arrive.

Rules: records count whose CRCs are right, and the blank that closes a segment; nothing beyond the
segment's end does. What no further bytes can make a record is reported at once, not waited for.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from duolog_server.store.commitlog import scan_reason
from duolog_server.store.delay import parse_delay_levels
from duolog_server.store.kernels import scan
from duolog_server.store.kernels.jit import I64, U8
from duolog_server.store.options import StoreOptions
from duolog_server.store.scanahead import ROWS_MAX

RECORD_OVERHEAD_MAX = 128 << 10  # of a record over its body
# Bodies up to this size are taken whatever may be sent here: the limit of another node may be
# higher, or may have been higher when the record was stored.
BODY_BYTES_ALWAYS = 32 << 20
HEAD = struct.Struct(">II")  # of a record or blank: its size, its magic
Seen = Callable[[I64], None]


@dataclass(frozen=True, slots=True)
class Wrong:
    """Why no record follows, and the size that it claims; `oversized`: none can be so large."""

    reason: str
    size: int
    oversized: bool


@dataclass(frozen=True, slots=True)
class Whole:
    """The first `size` bytes are whole records; the rest may be the beginning of one, unless wrong.

    store_time: of the last record; 0 without one. rows: a table of all records, valid until the
    next are looked for; None without one, or where a table does not hold them all.
    """

    size: int
    store_time: int
    wrong: Wrong | None = None
    rows: I64 | None = None


def claimed_size(data: U8, position: int) -> int | None:
    """Size that the record at a position claims; None if its head is not there yet."""
    if position + HEAD.size > len(data):
        return None
    return int(HEAD.unpack(data[position : position + HEAD.size].tobytes())[0])


def record_bytes_max(options: StoreOptions) -> int:
    """Size that a record of another log may claim, if its segment has room for it."""
    return max(options.max_message_size, BODY_BYTES_ALWAYS) + RECORD_OVERHEAD_MAX


class WholeRecords:
    """Finds them, for a log with these options."""

    def __init__(self, options: StoreOptions) -> None:
        self._segment = options.mapped_file_size_commit_log
        self._size_max = record_bytes_max(options)
        self._delays_ms = parse_delay_levels(options.message_delay_level)
        self._rows: I64 = np.empty((scan.COLUMNS, ROWS_MAX), np.int64)
        self._result: I64 = np.zeros(2, np.int64)

    def find(self, start: int, data: U8, seen: Seen) -> Whole:
        """Find the whole records at the start of bytes for an offset of the log.

        seen: called with tables of the records found (see `store.kernels.scan`), which it may not
        keep; positions in them are those in `data`. What it raises is raised.
        """
        room = self._segment - start % self._segment
        data = data[:room]
        position, store_time, code = 0, 0, scan.SCAN_FULL
        every: I64 | None = None  # rows, if one table holds them
        while code == scan.SCAN_FULL:
            first = position == 0
            code = scan.scan(
                data, position, len(data), start, True, self._delays_ms, self._rows, self._result
            )
            count, position = int(self._result[0]), int(self._result[1])
            if count:
                rows = self._rows[:, :count]
                every = rows if first else None
                seen(rows)
                store_time = int(rows[scan.STORE_TIME, -1])
        whole = Whole(position, store_time, rows=every)
        return self._ended(whole, code, data, room)

    def _ended(self, whole: Whole, code: int, data: U8, room: int) -> Whole:
        """With the blank behind the last record, where that is whole."""
        position = whole.size
        size, left = claimed_size(data, position), room - position
        if size is None:
            return whole
        if code == scan.SCAN_BLANK and size == left >= HEAD.size:
            return replace(whole, size=position + (size if len(data) == room else 0))
        oversized = code == scan.SCAN_PARTIAL and size > self._size_max
        if code != scan.SCAN_PARTIAL or oversized or size > left - HEAD.size:
            return replace(whole, wrong=Wrong(scan_reason(code), size, oversized))
        return whole
