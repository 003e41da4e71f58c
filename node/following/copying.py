"""The copy of a broker's log: what to ask for, and whole, verified records out of what arrives.

Rules: the log grows by whole records whose CRCs are right, within one segment at a time; its bytes
are those of the broker. What a connection sends first are bytes that are here already: where one of
them differs, this is another log, and nothing is appended. Nothing is ever truncated.

A master of RocketMQ that is asked for offset 0 sends its last segment alone. A log that begins at 0
is asked for from 1: the byte before is the highest one of a record's size, and 0.
"""

import struct
from collections.abc import Sequence

import numpy as np

from node.hawire.frames import Frame
from store.commitlog import scan_reason
from store.kernels import scan
from store.kernels.jit import EMPTY_I64, I64, U8
from store.messagestore import MessageStore
from store.offsets import PhyOffset

OVERLAP_BYTES = 4096  # of what is here already, compared at the beginning of a connection
ROWS_MAX = 8184  # as a slave of duolog
RECORD_OVERHEAD_MAX = 128 << 10  # of a record over its body
_BATCHES = 0xC0  # system flags of RocketMQ 5's batch consume queues
_HEAD = struct.Struct(">II")
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
        self._rows: I64 = np.empty((scan.COLUMNS, ROWS_MAX), np.int64)
        self._result: I64 = np.zeros(2, np.int64)

    @property
    def end(self) -> int:
        """Where the copy ends."""
        return self._store.log.wrote_offset

    @property
    def report(self) -> int:
        """What to tell the master: what is asked for until something comes, then where this ends.

        A master that reads two reports at once takes the last one for the beginning.
        """
        return self._next if self._unheard else self.end

    def ask(self, first: int) -> int:
        """Begin a connection: the offset from which the master is asked for its log.

        first: where its log begins. Raises CannotFollow, OSError.
        """
        log = self._store.log
        self._pending, self._unheard, end = b"", True, self.end
        if log.min_offset != end:
            segment = (end - 1) - (end - 1) % log.queue.file_size
            self._known = end
            self._next = max(1, log.min_offset, segment, end - OVERLAP_BYTES)
            return self._next
        if first % log.queue.file_size:
            raise CannotFollow(f"the broker's log begins at {first}, which is no segment's start")
        if log.queue.files and end != first:
            self._store.reset()  # there are files, but they are empty
        if first == 0:
            self._pending = _FIRST
        self._known = self._next = max(1, first)
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
        if data:
            self._append(data)

    def _compared(self, start: int, data: bytes) -> bytes:
        """What comes behind the bytes that are here already."""
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
        start, segment = self._next - len(data), self._store.log.queue.file_size
        at = 0
        while at < len(data):
            room = segment - (start + at) % segment
            piece = np.frombuffer(data[at : at + room], np.uint8)
            taken = self._apply(start + at, piece)
            at += taken
            if taken < len(piece):
                break
        self._pending = data[at:]

    def _apply(self, start: int, data: U8) -> int:
        """Append the whole records that bytes of one segment begin with; how many bytes."""
        position, store_time, code = 0, 0, scan.SCAN_FULL
        while code == scan.SCAN_FULL:
            code = scan.scan(
                data, position, len(data), start, True, EMPTY_I64, self._rows, self._result
            )
            rows, position = int(self._result[0]), int(self._result[1])
            if rows:
                self._check_flags(rows)
                store_time = int(self._rows[scan.STORE_TIME, rows - 1])
        position += self._blank(start + position, data[position:], code)
        if position:
            self._store.append_replica(PhyOffset(start), data[:position], store_time)
        return position

    def _blank(self, start: int, rest: U8, code: int) -> int:
        """The bytes of a whole blank record; 0 where more must arrive. Raises CannotFollow."""
        if len(rest) < _HEAD.size:
            return 0
        size, _ = _HEAD.unpack(rest[: _HEAD.size].tobytes())
        segment = self._store.log.queue.file_size
        room = segment - start % segment
        if code == scan.SCAN_BLANK and size == room:
            return int(size) if size == len(rest) else 0
        limit = self._store.options.max_message_size + RECORD_OVERHEAD_MAX
        if code == scan.SCAN_PARTIAL and size > limit:
            raise CannotFollow(
                f"the record at offset {start} has {size} bytes, more than "
                f"store.max_message_size allows: raise it to that of the broker"
            )
        if code != scan.SCAN_PARTIAL or size > room - _HEAD.size:
            raise CannotFollow(
                f"the broker's log has no valid record at offset {start}: {scan_reason(code)}"
            )
        return 0

    def _check_flags(self, rows: int) -> None:
        """Refuse records that no broker of 4.9 can read."""
        wrong = np.flatnonzero(self._rows[scan.SYSFLAG, :rows] & _BATCHES)
        if len(wrong):
            raise CannotFollow(
                f"the record at offset {int(self._rows[scan.PHY, wrong[0]])} is of a batch consume "
                "queue of RocketMQ 5, which duolog does not have"
            )


__all__ = ["OVERLAP_BYTES", "CannotFollow", "LogCopy", "OutOfOrder"]
