"""The copy of a broker's log: what to ask for, and whole, verified records out of what arrives.

Rules: the log grows by whole records whose CRCs are right, within one segment at a time; its bytes
are those of the broker. What a connection sends first are bytes that are here already: where one of
them differs, this is another log, and nothing is appended. Nothing is ever truncated.

A master of RocketMQ that is asked for offset 0 sends its last segment alone. A log that begins at 0
is asked for from 1: the byte before is the highest one of a record's size, and 0.
"""

from collections.abc import Sequence

import numpy as np

from duolog_server.compat.hawire.frames import Frame
from duolog_server.store.kernels import scan
from duolog_server.store.kernels.jit import I64
from duolog_server.store.messagestore import MessageStore
from duolog_server.store.offsets import PhyOffset
from duolog_server.store.wholerecords import WholeRecords, Wrong

OVERLAP_BYTES = 4096  # of what is here already, compared at the beginning of a connection
_BATCHES = 0xC0  # system flags of RocketMQ 5's batch consume queues
_FIRST = b"\0"


class CannotFollow(Exception):
    """The broker's log cannot be copied any further, however often it is tried."""


class OutOfOrder(ConnectionError):
    """A frame does not begin where the one before it ended: the connection is of no use."""


class LogCopy:
    """Copies one log into a store."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._pending = b""  # a record that has not arrived whole
        self._next = 0  # offset of the next byte to arrive
        self._unheard = False  # nothing arrived on this connection yet
        self._known = 0  # bytes below were here when the connection began
        self._agreed = 0  # those up to here were the same there
        self._records = WholeRecords(store.options)

    @property
    def end(self) -> int:
        """The end of the copy."""
        return self._store.log.wrote_offset

    @property
    def report(self) -> int:
        """The offset to report to the master: the requested one until bytes arrive, then the end.

        A master that reads two reports at once takes the last one for the beginning.
        """
        return self._next if self._unheard else self.end

    @property
    def is_compared(self) -> bool:
        """Whether this connection has shown that the broker has the bytes that were here.

        Where there are none to compare, it has sent something at least.
        """
        return not self._unheard and self._agreed >= self._known

    def ask(self, first: int) -> int:
        """Begin a connection: the offset from which the master is asked for its log.

        first: where its log begins, at or below the end of this one; a master that is asked for
        what it does not have sends nothing, ever. Raises CannotFollow, OSError.
        """
        log = self._store.log
        self._pending, self._unheard, end = b"", True, self.end
        if log.min_offset != end:
            segment = (end - 1) - (end - 1) % log.queue.file_size
            self._known = end
            self._next = max(1, log.min_offset, segment, end - OVERLAP_BYTES, first)
            self._agreed = self._next
            return self._next
        if first % log.queue.file_size:
            raise CannotFollow(
                f"the broker's log begins at {first}, which is not the start of a segment"
            )
        if log.queue.files and end != first:
            self._store.reset()  # there are files, but they are empty
        if first == 0:
            self._pending = _FIRST
        self._known = self._agreed = self._next = max(1, first)
        return self._next

    def take(self, frames: Sequence[Frame]) -> None:
        """Append what arrived. Raises OutOfOrder, CannotFollow, OSError."""
        start, self._unheard = self._next, False
        for frame in frames:
            if frame.offset != self._next:
                raise OutOfOrder(f"bytes from {frame.offset}, expected from {self._next}")
            self._next += len(frame.data)
        data = b"".join(frame.data for frame in frames)
        if start < self._known:
            data = self._compared(start, data)
        self._agreed = self._next
        if data:
            self._append(data)

    def _compared(self, start: int, data: bytes) -> bytes:
        """Compare bytes that are here already; return the new ones."""
        common = min(len(data), self._known - start)
        mine = self._store.log.get_data(start)[:common]
        same = mine == np.frombuffer(data[:common], np.uint8)
        if not same.all():
            raise CannotFollow(
                f"the broker's log differs from this copy at offset {start + int(same.argmin())}: "
                "it lost what was copied, or is another log"
            )
        return data[common:]

    def _append(self, data: bytes) -> None:
        data = self._pending + data
        start, at = self._next - len(data), 0
        while at < len(data) and (taken := self._apply(start + at, data[at:])):
            at += taken
        self._pending = data[at:]

    def _apply(self, start: int, data: bytes) -> int:
        """Append the whole records of one segment that bytes begin with; how many bytes."""
        piece = np.frombuffer(data, np.uint8)
        whole = self._records.find(start, piece, _check_flags)
        if whole.wrong is not None:
            raise _refused(start + whole.size, whole.wrong)
        if whole.size:
            at = PhyOffset(start)
            self._store.append_replica(at, piece[: whole.size], whole.store_time, whole.rows)
        return whole.size


def _refused(offset: int, wrong: Wrong) -> CannotFollow:
    if wrong.oversized:
        return CannotFollow(
            f"the record at offset {offset} has {wrong.size} bytes, more than "
            "store.max_message_size allows: raise it to that of the broker"
        )
    return CannotFollow(f"the broker's log has no valid record at offset {offset}: {wrong.reason}")


def _check_flags(rows: I64) -> None:
    """Refuse records that no broker of 4.9 can read."""
    wrong = np.flatnonzero(rows[scan.SYSFLAG] & _BATCHES)
    if len(wrong):
        raise CannotFollow(
            f"the record at offset {int(rows[scan.PHY, wrong[0]])} is of a batch consume queue of "
            "RocketMQ 5, which duolog does not have"
        )
