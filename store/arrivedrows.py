"""Rows of records that arrived from a master, kept for dispatch: it scans no such record again.

Rules: rows are kept of records that were verified and are in the log; they are taken once; where
they do not continue each other, or do not begin where dispatch is, it scans the log.
"""

import numpy as np

from duolog_server.store.kernels import scan
from duolog_server.store.kernels.jit import I64
from duolog_server.store.scanahead import ROWS_MAX, Scanned, Stretch


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
