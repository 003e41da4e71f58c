"""The segments of a store directory, as pieces that tasks can work on.

Nothing is changed or locked: a directory that a running node holds can be read, up to where its log
ended when the job began.
"""

import contextlib
import errno
import fcntl
import mmap
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from duolog_server.pipeline.errors import BadJob
from duolog_server.store.copied import LOCK
from duolog_server.store.directories import LOST_FOUND
from duolog_server.store.kernels import scan
from duolog_server.store.kernels.jit import EMPTY_I64, I64, U8
from duolog_server.store.mappedfilequeue import NAME_DIGITS
from duolog_server.store.places import Grouped, PlaceFinder

PIECE_BYTES_MIN, PIECE_BYTES_MAX = 16 << 20, 1 << 30
PIECES_PER_CORE = 2
POPULATE_READ = 22  # MADV_POPULATE_READ, Linux 5.14
ROWS = 8192


@dataclass(frozen=True)
class Segment:
    """One file of a commit log."""

    path: str
    start: int  # offset of its first byte
    size: int

    @property
    def name(self) -> str:
        """The segment's file name."""
        return Path(self.path).name

    def memory(self, first: int = 0, end: int = 0) -> U8:
        """The segment's bytes, mapped; those in [first, end) at once: a fault a page takes far
        longer.

        Raises OSError.
        """
        with open(self.path, "rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        start = first - first % mmap.PAGESIZE
        if start < end:
            with contextlib.suppress(OSError):  # older kernels fault them in one by one
                mapped.madvise(POPULATE_READ, start, end - start)
        return np.frombuffer(mapped, np.uint8)


@dataclass(frozen=True)
class Piece:
    """The records of a segment that start in [first, end), counted from the segment's start."""

    segment: Segment
    first: int
    end: int


def segments_of(directory: Path) -> list[Segment]:
    """All segments, oldest first.

    Raises BadJob for a directory that is no store or has no segments.
    """
    log = directory / "commitlog"
    if not directory.is_dir():
        raise BadJob(f"{directory}: no such directory")
    if not log.is_dir():
        raise BadJob(f"{directory} is not a store directory: it has no commitlog")
    found = []
    for path in sorted(log.iterdir()):
        if path.name == LOST_FOUND:
            continue
        if not (len(path.name) == NAME_DIGITS and path.name.isdecimal()):
            raise BadJob(f"{path} is not a segment (its name must have {NAME_DIGITS} digits)")
        size = path.stat().st_size
        if size:
            found.append(Segment(str(path), int(path.name), size))
    if not found:
        raise BadJob(f"{log} is empty: nothing to read")
    return found


def piece_bytes(segments: list[Segment], cores: int) -> int:
    """The size of pieces: several per core, but not so small that tasks cost more."""
    size = sum(segment.size for segment in segments) // (PIECES_PER_CORE * max(1, cores))
    return min(max(size, PIECE_BYTES_MIN), PIECE_BYTES_MAX)


def pieces(segments: list[Segment], size: int) -> list[Piece]:
    """Segments as pieces of about a size."""
    found = []
    for segment in segments:
        count = max(1, -(-segment.size // size))
        step = -(-segment.size // count)
        found += [
            Piece(segment, first, min(first + step, segment.size))
            for first in range(0, segment.size, step)
        ]
    return found


def is_held(directory: Path) -> bool:
    """Tell whether a running node holds a directory."""
    try:
        descriptor = os.open(directory / LOCK, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB, 1, 0)  # on read-only mounts, too
        fcntl.lockf(descriptor, fcntl.LOCK_UN, 1, 0)
    except OSError as error:
        return error.errno in (errno.EACCES, errno.EAGAIN)
    finally:
        os.close(descriptor)
    return False


@dataclass
class Stretch:
    """Records that lie one after the other: a row table, see `store.kernels.scan`."""

    rows: I64
    count: int


@dataclass
class Stop:
    """Why there are no records at [position, following); following is the segment's end where
    none come after."""

    position: int
    following: int
    code: int


def walk(
    memory: U8, piece: Piece, check_crc: bool, delays_ms: I64 = EMPTY_I64
) -> Iterator[Stretch | Stop]:
    """The records that start in a piece, and every place where they stop.

    A piece in the middle of a segment begins with the first whole record that it finds: a record
    names its own offset. The last item is a Stop at or after the end of the piece.
    """
    base, end, size = piece.segment.start, piece.end, len(memory)
    position = piece.first
    if position:
        if not is_written(memory, position, end):  # far faster than searching for a record in it
            yield Stop(end, end, scan.SCAN_END)
            return
        found = int(scan.find_record(memory, position, end, base))
        if found < 0:
            yield Stop(end, end, scan.SCAN_END)
            return
        position = found
    rows: I64 = np.empty((scan.COLUMNS, ROWS), np.int64)
    result: I64 = np.zeros(2, np.int64)
    while position < end:
        code = int(scan.scan(memory, position, end, base, check_crc, delays_ms, rows, result))
        if result[0]:
            yield Stretch(rows, int(result[0]))
        position = int(result[1])
        if code == scan.SCAN_FULL:
            continue
        if code == scan.SCAN_PARTIAL and end < size:  # it may only extend past the piece
            one: I64 = np.empty((scan.COLUMNS, 1), np.int64)
            code = int(scan.scan(memory, position, size, base, check_crc, delays_ms, one, result))
            if result[0]:
                yield Stretch(one, 1)
                position = int(result[1])
                continue
        if position >= end:
            break
        following = size
        if code != scan.SCAN_BLANK and is_written(memory, position):
            found = int(scan.find_record(memory, position + 1, size, base))
            following = found if found >= 0 else size
        yield Stop(position, following, code)
        position = following
    yield Stop(position, position, scan.SCAN_END)


def queues_in(memory: U8, stretch: Stretch) -> Grouped:
    """The messages of a stretch that consumers may see, by their topics' queues."""
    return PlaceFinder(stretch.count).own(memory, stretch.rows, stretch.count)


def places_in(memory: U8, stretch: Stretch) -> list[Grouped]:
    """All places of these messages in queues."""
    return PlaceFinder(stretch.count).all(memory, stretch.rows, stretch.count)


def is_written(memory: U8, position: int, end: int = 0) -> bool:
    """Whether there is anything but zeros from a position on (before an end)."""
    end = end or len(memory)
    step = 1 << 20
    return any(memory[at : min(at + step, end)].any() for at in range(position, end, step))


def named_offset(memory: U8, position: int) -> int:
    """The offset in the record at a position, -1 if no record starts there."""
    head = memory[position : position + 36].tobytes()
    if len(head) < 36 or struct.unpack(">I", head[4:8])[0] not in (scan.MAGIC_V1, scan.MAGIC_V2):
        return -1
    return int(struct.unpack(">q", head[28:36])[0])
