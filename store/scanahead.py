"""Stretches of log, scanned: the next one in another thread while this one's records are placed.

Recovery scans and places what the log holds, and kernels release the GIL: on two cores it takes as
long as the slower of both. The engine makes no threads: its owner lends one.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np

from duolog_server.store.kernels import scan
from duolog_server.store.kernels.jit import I64
from duolog_server.store.mappedfile import MappedFile

# Columns of a row table lie apart by its capacity. Were that a power of two, all of a record's
# fields would compete for the same few lines of the processor's caches: it takes a third longer.
ROWS_MAX = 8184


class Stretch(NamedTuple):
    """Bytes [start, end) of a segment, and whether their CRCs are verified."""

    mapped: MappedFile
    start: int
    end: int
    check_crc: bool

    def is_same(self, other: "Stretch") -> bool:
        """Whether a scan of either finds the same."""
        return self.mapped is other.mapped and self[1:] == other[1:]


# What a scan found: why it stopped, rows filled, the position after the last record of them.
Scanned = tuple[int, int, int]


class Pending(Protocol):
    """A call that was lent a thread."""

    def result(self) -> Scanned:
        """Wait for it."""


Lend = Callable[[Callable[[], Scanned]], Pending]


def scan_stretch(stretch: Stretch, delays_ms: I64, rows: I64) -> Scanned:
    """Verify and describe the records of a stretch, as many as the table takes."""
    result: I64 = np.zeros(2, np.int64)
    mapped, start, end, check_crc = stretch
    code = scan.scan(mapped.memory, start, end, mapped.start, check_crc, delays_ms, rows, result)
    filled, position = result.tolist()
    return code, filled, position


@dataclass(slots=True)
class ScanAhead:
    """One stretch that is being scanned before it is asked for."""

    lend: Lend
    delays_ms: I64
    _rows: I64 = field(default_factory=lambda: np.empty((scan.COLUMNS, ROWS_MAX), np.int64))
    _pending: tuple[Stretch, Pending] | None = None

    def begin(self, stretch: Stretch) -> None:
        """Scan a stretch whose records are probably wanted next."""
        assert self._pending is None, "one at a time"
        rows = self._rows
        self._pending = stretch, self.lend(lambda: scan_stretch(stretch, self.delays_ms, rows))

    def take(self, stretch: Stretch, free: I64) -> tuple[Scanned, I64] | None:
        """What was found in this very stretch, and the table; None where another was scanned.

        free: a table that is not used any more; the next stretch is described in it.
        """
        begun = self._pending
        found = self.settle()
        if begun is None or found is None or not begun[0].is_same(stretch):
            return None
        rows, self._rows = self._rows, free
        return found, rows

    def settle(self) -> Scanned | None:
        """Wait for the scan that was begun: nothing reads the log's memory afterwards."""
        begun, self._pending = self._pending, None
        return begun[1].result() if begun is not None else None
