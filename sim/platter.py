"""The true content of a simulated disk, read without the code under test.

The observer trusts no claim about where a log ends, what is synced or what was promised: it reads
the bytes, as programs see them (`seen`) or as a power cut would leave them (`durable`).
"""

import json
import struct
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np

from duolog_server.store.kernels import scan
from duolog_server.store.kernels.jit import U8
from sim.disk import Inode, SimDisk

LOG = "commitlog/"
NAME_DIGITS = 20
IDENTITY = "config/replica.json"
MEMBERSHIP = "config/membership.jsonl"
LINE_BYTES = 512  # of the membership file
CHECKPOINT = "checkpoint"
CONFIRM_FIELD = 32
NOTES_AT = (1024, 1536)
NOTE = struct.Struct(">QQQ40s")  # number, confirmed, durable, boot id; a CRC-32 follows
_HEAD = struct.Struct(">II")  # of a record: its size, its magic
_MAGICS = {scan.MAGIC_V1, scan.MAGIC_V2, scan.MAGIC_BLANK}


class LogBytes:
    """The commit log of one disk. `durable`: what a power cut would leave."""

    def __init__(self, disk: SimDisk) -> None:
        self.disk = disk
        self._starts: list[int] = []  # of the records found so far
        self._end = 0
        self._found: dict[bool, tuple[int, list[tuple[int, Inode]]]] = {}
        self._last: tuple[int, int, memoryview] = (-1, 0, memoryview(b""))  # segment: see `_view`

    def _segments(self, durable: bool) -> list[tuple[int, Inode]]:
        found = self._found.get(durable)
        if found is not None and found[0] == self.disk.changes:
            return found[1]
        names = self.disk.inodes(durable)
        rows = sorted(
            (int(path[len(LOG) :]), inode)
            for path, inode in names.items()
            if path.startswith(LOG) and len(path) == len(LOG) + NAME_DIGITS
        )
        self._found[durable] = (self.disk.changes, rows)
        return rows

    @property
    def first(self) -> int:
        """Offset of the first byte."""
        segments = self._segments(False)
        return segments[0][0] if segments else 0

    def same_until(self, start: int, wanted: bytes | bytearray, durable: bool = False) -> int:
        """Offset up to which a disk has these bytes, which are wanted from an offset on."""
        for at, inode in self._segments(durable):
            data = inode.durable if durable else inode.seen
            low = start - at
            if low >= 0 and low + len(wanted) <= len(data):
                if data[low : low + len(wanted)].tobytes() == wanted:
                    return start + len(wanted)
                break
        return start + same_until(
            self.read(start, start + len(wanted), durable), np.frombuffer(wanted, np.uint8)
        )

    def read(self, start: int, end: int, durable: bool = False) -> U8:
        """The bytes of a range; zeros where there are none."""
        found: U8 = np.zeros(max(0, end - start), np.uint8)
        for at, inode in self._segments(durable):
            data = inode.durable if durable else inode.seen
            low, high = max(start, at), min(end, at + len(data))
            if low < high:
                found[low - start : high - start] = data[low - at : high - at]
        return found

    def end(self) -> int:
        """Where the last record ends, by the sizes that the records themselves claim."""
        starts, end = self._starts, self._end
        while starts and self._size_at(starts[-1]) != end - starts[-1]:
            end = starts.pop()
        if not starts:
            end = self.first
        size = self._size_at(end)
        while size:
            starts.append(end)
            end += size
            size = self._size_at(end)
        self._end = end
        return end

    def record_end(self, needle: bytes) -> int:
        """Where the record ends that holds some bytes, the last one that does; -1 for none."""
        end = self.end()
        at = self.read(self.first, end).tobytes().rfind(needle)
        if at < 0:
            return -1
        place = self.first + at
        inside = np.searchsorted(np.asarray(self._starts, np.int64), place, "right")
        return (*self._starts, end)[int(inside)]

    def _size_at(self, offset: int) -> int:
        changes, start, data = self._last
        if changes != self.disk.changes or not start <= offset < start + len(data):
            start, data = self._view(offset)
        if offset - start + _HEAD.size > len(data):
            return 0
        size, magic = _HEAD.unpack_from(data, offset - start)
        return size if magic in _MAGICS else 0

    def read_head(self, offset: int) -> bytes:
        """Size and magic of the record at an offset."""
        start, data = self._view(offset)
        return bytes(data[offset - start : offset - start + _HEAD.size])

    def _view(self, offset: int) -> tuple[int, memoryview]:
        """Start and bytes of the segment that has an offset; the last one asked for is at hand."""
        changes, start, data = self._last
        if changes == self.disk.changes and start <= offset < start + len(data):
            return start, data
        for at, inode in reversed(self._segments(False)):
            if at <= offset < at + len(inode.seen):
                self._last = self.disk.changes, at, inode.seen.data
                return at, self._last[2]
        return offset, memoryview(b"")


def same_until(ours: U8, theirs: U8) -> int:
    """How many bytes two stretches share from their beginning."""
    size = min(len(ours), len(theirs))
    differing = (ours[:size] != theirs[:size]).nonzero()[0]
    return int(differing[0]) if len(differing) else size


def identity_on(disk: SimDisk) -> dict[str, Any]:
    """The identity file as a power cut would leave it; empty where there is none."""
    inode = disk.inodes(True).get(IDENTITY)
    return json.loads(inode.durable.tobytes()) if inode is not None else {}


def membership_on(disk: SimDisk) -> tuple[str, int, int]:
    """Group, version and starts that the membership file would name after a power cut."""
    found = _newest_line(disk)
    if not found:
        return "", 0, 0
    return str(found["groupId"]), int(found["version"]), int(found["starts"])


def marks_on(disk: SimDisk) -> list[tuple[int, str]]:
    """The starts that the membership file would mark after a power cut: number and run."""
    return [(int(number), str(run)) for number, run in _newest_line(disk).get("marks", ())]


def _newest_line(disk: SimDisk) -> dict[str, Any]:
    """Of the membership file, after a power cut; empty where there is none."""
    inode = disk.inodes(True).get(MEMBERSHIP)
    found: list[dict[str, Any]] = []
    data = inode.durable.tobytes() if inode is not None else b""
    for at in range(0, len(data), LINE_BYTES):  # one that the disk lost has no newline either
        try:
            found.append(json.loads(data[at : at + LINE_BYTES]))
        except ValueError:
            continue
    return max(found, key=lambda row: int(row["written"]), default={})


@dataclass(frozen=True, slots=True)
class Noted:
    """What a checkpoint file claims, as a process finds it that is started after a kill."""

    confirmed: int = 0
    durable: int = 0  # confirmed, and on this disk


def noted_on(disk: SimDisk) -> Noted:
    """The claims of a checkpoint file: of the newest whole note, and of the field before it."""
    inode = disk.inodes(False).get(CHECKPOINT)
    if inode is None:
        return Noted()
    field = int.from_bytes(inode.seen[CONFIRM_FIELD : CONFIRM_FIELD + 8].tobytes(), "big")
    number = confirmed = durable = 0
    for at in NOTES_AT:
        data = inode.seen[at : at + NOTE.size].tobytes()
        whole = zlib.crc32(data).to_bytes(4, "big")
        if inode.seen[at + NOTE.size : at + NOTE.size + 4].tobytes() != whole:
            continue
        if NOTE.unpack(data)[0] > number:
            number, confirmed, durable = NOTE.unpack(data)[:3]
    return Noted(max(confirmed, field), max(durable, field))
