"""Reads queues of a store directory while a node runs on it.

Nothing is locked or changed. Files are mapped as the node maps them, so everything the node has
stored is visible. Files are never shortened, only removed, and a mapped file stays readable.
"""

import mmap
from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from duolog.spark._columns import Columns

from duolog_server.pipeline.columns import UNIT, columns, gather
from duolog_server.pipeline.errors import BadJob
from duolog_server.pipeline.segments import Segment, segments_of
from duolog_server.store.kernels.jit import U8
from duolog_server.store.mappedfilequeue import NAME_DIGITS

BATCH_MESSAGES = 30_000
BATCH_BYTES = 4 << 20  # of records; a larger record is a batch of its own


def open_queue(directory: str, topic: str, queue_id: int, confirm_offset: int) -> "LocalQueue":
    """Open a queue's files. Raises OSError if they do not exist or may not be read.

    confirm_offset: of the node that holds them; nothing above it is read.
    """
    return LocalQueue(Path(directory), topic, queue_id, confirm_offset)


class LocalQueue:
    """A queue of a store directory, as far as its files reach."""

    def __init__(self, directory: Path, topic: str, queue_id: int, confirm_offset: int) -> None:
        """List its files. Raises OSError."""
        self._confirm_offset = confirm_offset
        self._topic = topic
        self._queue_id = queue_id
        try:
            self._segments = segments_of(directory)
        except BadJob as error:
            raise FileNotFoundError(str(error)) from None
        folder = directory / "consumequeue" / topic / str(queue_id)
        names = sorted(
            path
            for path in folder.iterdir()
            if len(path.name) == NAME_DIGITS and path.name.isdecimal()
        )
        self._files = [Segment(str(path), int(path.name), path.stat().st_size) for path in names]
        self._mapped: tuple[Segment, U8] | None = None

    def batches(self, start: int, end: int) -> Iterator[Columns]:
        """The queue's messages with offsets in [start, end), in order, up to the first missing or
        invalid one.

        Raises nothing: the rest is requested from the node, which reports the reason.
        """
        offset = start
        try:
            while offset < end and (batch := self._batch(offset, end)) is not None:
                yield batch
                offset = batch.next_offset
        except OSError:
            return  # removed between two batches

    def _batch(self, offset: int, end: int) -> Columns | None:
        units = self._units(offset, min(end, offset + BATCH_MESSAGES))
        if units is None:
            return None
        fields = units.view(UNIT)
        there = (fields["size"] > 0) & (fields["phy"] + fields["size"] <= self._confirm_offset)
        known = len(there) if there.all() else int(there.argmin())
        log = self._log(int(fields["phy"][0]))
        if log is None or not known:
            return None
        segment, memory = log
        ends = np.cumsum(fields["size"][:known], dtype=np.int64)
        count = min(known, max(1, int(np.searchsorted(ends, BATCH_BYTES, "right"))))
        if ends[count - 1] > len(memory):
            return None
        gathered = gather(units[: count * UNIT.itemsize], memory, segment.start, True)
        if not gathered.table.shape[1]:
            return None
        offsets = np.arange(offset, offset + gathered.table.shape[1], dtype=np.int64)
        return columns((self._topic, self._queue_id), offsets, gathered)

    def _units(self, start: int, end: int) -> U8 | None:
        """The entries from an offset on, from one file; None if no file has it."""
        position = start * UNIT.itemsize
        file = _holder(self._files, position)
        if file is None:
            return None
        count = min(end * UNIT.itemsize, file.start + file.size) - position
        count -= count % UNIT.itemsize
        if count <= 0:
            return None
        with open(file.path, "rb") as stream:
            stream.seek(position - file.start)
            data = stream.read(count)
        return np.frombuffer(data, np.uint8) if len(data) == count else None

    def _log(self, position: int) -> tuple[Segment, U8] | None:
        """The segment that holds a position of the log, mapped."""
        segment = _holder(self._segments, position)
        if segment is None:
            return None
        if self._mapped is None or self._mapped[0] is not segment:
            with open(segment.path, "rb") as file:
                mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
            self._mapped = segment, np.frombuffer(mapped, np.uint8)
        return self._mapped


def _holder(files: list[Segment], position: int) -> Segment | None:
    """The file that contains a position."""
    at = bisect_right(files, position, key=lambda file: file.start) - 1
    if at < 0 or position >= files[at].start + files[at].size:
        return None
    return files[at]
