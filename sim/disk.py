"""A simulated disk that distinguishes synced bytes from those that only seem to be.

Injected: power cuts (of unsynced bytes, any sectors reach the platter; of unsynced names, a
prefix), failing syncs (the bytes are then taken for clean and never written again, as Linux does),
a full disk. A kill keeps everything: the page cache survives the process. Names are ordered as a
journal orders them, so `sync_dir` makes all earlier creations, renames and removals durable.
"""

import errno
import random
import zlib
from collections.abc import Callable

import numpy as np

from duolog_server.store.directories import LOG
from duolog_server.store.disk import Listing
from duolog_server.store.errors import StoreLocked
from duolog_server.store.kernels.jit import EMPTY_U8, U8

SECTOR = 512
PAGE = 4096
NameOp = Callable[[dict[str, "Inode"]], None]


class Inode:
    """A file's bytes: as programs see them, and as they are on the platter."""

    __slots__ = ("allocated", "clean", "durable", "modified_ms", "seen")

    def __init__(self, size: int, now_ms: float, allocated: int | None = None) -> None:
        self.allocated = size if allocated is None else allocated
        self.seen: U8 = np.zeros(size, np.uint8)
        self.durable: U8 = np.zeros(size, np.uint8)
        self.clean: U8 | None = None  # after a failed sync: bytes the system takes for written
        self.modified_ms = now_ms

    def sync(self) -> None:
        """Write what the system takes for dirty."""
        self._check_room()
        if self.clean is None:
            self.durable[:] = self.seen
            return
        for sector in _differing(self.seen, self.clean):
            piece = slice(sector * SECTOR, (sector + 1) * SECTOR)
            self.durable[piece] = self.seen[piece]
        self.clean = self.seen.copy()

    def lose_sync(self) -> None:
        """A sync failed: nothing was written, and nothing will be."""
        self.clean = self.seen.copy()

    def cut(self, chance: random.Random, kept: float) -> None:
        """Power cut: each unsynced sector reached the platter with some probability."""
        self._check_room()
        for sector in _differing(self.seen, self.durable):
            if kept and chance.random() < kept:
                piece = slice(sector * SECTOR, (sector + 1) * SECTOR)
                self.durable[piece] = self.seen[piece]
        self.seen = self.durable.copy()
        self.clean = None

    def _check_room(self) -> None:
        """Storing where a file has no blocks ends a process on a full disk (SIGBUS)."""
        assert not self.seen[self.allocated :].any(), "stored past the allocated part of a file"


def _differing(a: U8, b: U8) -> list[int]:
    return sorted({int(at) // SECTOR for at in (a != b).nonzero()[0]})


class SimFile:
    """An open file."""

    def __init__(self, disk: "SimDisk", path: str, inode: Inode) -> None:
        self.path = path
        self.size = len(inode.seen)
        self.memory = inode.seen
        self._disk = disk
        self._inode = inode

    def sync(self) -> None:
        """Make what was stored durable, or fail if that is planned."""
        self._disk.strike_sync(self._inode)
        self._inode.sync()
        self._disk.syncs += 1

    def allocate(self, end: int, start: int = 0) -> None:
        """Blocks up to a position, if the disk has any."""
        assert start < end, "the system refuses an empty stretch (EINVAL)"
        assert start <= self._inode.allocated, "a stretch without blocks was left out"
        if end > self._inode.allocated:
            self._disk.check_room()
            self._inode.allocated = end

    def cover_holes(self) -> None:
        """Nothing to do."""

    def data_ranges(self, start: int) -> list[tuple[int, int]]:
        """The whole rest: this disk knows no holes."""
        return [(start, self.size)] if start < self.size else []

    def populate(self, start: int, size: int) -> None:
        """Nothing to do."""

    def load(self, start: int, size: int) -> None:
        """Nothing to do."""

    def lock(self) -> None:
        """Nothing to do."""

    def close(self) -> None:
        """Let go of the bytes."""
        self.memory = EMPTY_U8


class SimDisk:
    """The disk port of one simulated node."""

    def __init__(self, chance: random.Random, now: Callable[[], float]) -> None:
        """now: the machine's wall clock, by which files are dated."""
        self._chance = chance
        self._now = now
        self._names: dict[str, Inode] = {}
        self._durable_names: dict[str, Inode] = {}
        self._pending: list[NameOp] = []
        self._locked = False
        self.changes = 0  # of names
        self.syncs = 0  # of files that were open, done ones
        self.syncs_to_fail = 0
        self.may_fail_now: Callable[[], bool] = lambda: True  # asked when a sync is about to fail
        self.failed_syncs = 0
        self.full = False
        self.mapped_max = 12

    # -- faults --------------------------------------------------------------------------------

    def kill(self) -> None:
        """The process is gone; the page cache stays."""
        self._locked = False

    def power_cut(self) -> None:
        """The machine is gone: what was not synced is lost, or not, by the sector."""
        kept = self._chance.choice((0.0, 0.5, 0.9, 1.0))
        self.changes += 1
        names = dict(self._durable_names)
        for op in self._pending[: self._chance.randint(0, len(self._pending))]:
            op(names)
        self._pending.clear()
        self._names, self._durable_names = names, dict(names)
        for path in sorted(names):
            names[path].cut(self._chance, kept)
        self._locked = False

    def hollow(self) -> None:
        """The files become as `cp --sparse` leaves them: no blocks after their last bytes."""
        for inode in self._names.values():
            used = inode.seen.nonzero()[0]
            end = int(used[-1]) + 1 if len(used) else 0
            inode.allocated = min(inode.allocated, end + -end % PAGE)

    def copied(self, older: "SimDisk | None" = None, parts: tuple[str, ...] = ()) -> "SimDisk":
        """Another disk that holds what programs see on this one now, all of it durable.

        older: has the files whose paths begin with one of the parts, and all of those.
        """
        made = SimDisk(self._chance, self._now)
        names = {path: inode for path, inode in self._names.items() if not path.startswith(parts)}
        if older is not None:
            names |= {path: i for path, i in older._names.items() if path.startswith(parts)}
        for path, inode in names.items():
            twin = Inode(len(inode.seen), inode.modified_ms, inode.allocated)
            twin.seen[:] = inode.seen
            twin.sync()
            made._names[path] = made._durable_names[path] = twin
        return made

    def strike_sync(self, inode: Inode) -> None:
        """Fail a sync if that is planned, and as soon as it may."""
        if self.syncs_to_fail and self.may_fail_now():
            self.syncs_to_fail -= 1
            self.failed_syncs += 1
            inode.lose_sync()
            raise OSError(errno.EIO, "simulated")

    def check_room(self) -> None:
        """Fail where the disk is full."""
        if self.full:
            raise OSError(errno.ENOSPC, "simulated full disk")

    def inodes(self, durable: bool) -> dict[str, Inode]:
        """For observers: all files by name, as they are, or as a power cut would leave them."""
        return self._durable_names if durable else self._names

    def _change(self, op: NameOp) -> None:
        op(self._names)
        self._pending.append(op)
        self.changes += 1

    # -- the port ------------------------------------------------------------------------------

    def create(self, path: str, size: int, allocated: int | None = None) -> SimFile:
        """Make a zeroed file."""
        if path in self._names:
            raise FileExistsError(errno.EEXIST, "exists", path)
        self.check_room()
        inode = Inode(size, self._now(), allocated)
        self._change(lambda names: names.__setitem__(path, inode))
        return SimFile(self, path, inode)

    def open(self, path: str, writable: bool) -> SimFile:
        """Map a file."""
        if path not in self._names:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        return SimFile(self, path, self._names[path])

    def read(self, path: str) -> bytes:
        """Content."""
        if path not in self._names:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        return self._names[path].seen.tobytes()

    def write(self, path: str, data: bytes) -> None:
        """Replace and sync."""
        if data:  # a name alone finds room
            self.check_room()
        inode = Inode(len(data), self._now())
        inode.seen[:] = np.frombuffer(data, np.uint8)
        self.strike_sync(inode)
        inode.sync()
        self._change(lambda names: names.__setitem__(path, inode))

    def rename(self, source: str, target: str) -> None:
        """Move over."""
        if source not in self._names:
            raise FileNotFoundError(errno.ENOENT, "no such file", source)
        self._change(lambda names: _move(names, source, target))

    def remove(self, path: str) -> None:
        """Unlink; directories come and go with their files."""
        if path in self._names:
            self._change(lambda names: _drop(names, path))

    def reclaim(self) -> None:
        """Nothing to do."""

    def sync_dir(self, path: str) -> None:
        """Make all names durable so far."""
        self.changes += len(self._pending)
        for op in self._pending:
            op(self._durable_names)
        self._pending.clear()

    def look(self, path: str) -> Listing:
        """The digest is of the content itself."""
        names = [name for name in self.list(path) if f"{path}/{name}" in self._names]
        files = [self._names[f"{path}/{name}"].seen for name in names]
        digest = 0
        for name, seen in zip(names, files, strict=True):
            digest = zlib.crc32(name.encode() + seen.tobytes(), digest)
        return Listing(names, [len(seen) for seen in files], digest + 1 if names else 0)

    def list(self, path: str) -> list[str]:
        """Sorted names below a directory."""
        prefix = f"{path}/" if path else ""
        at = len(prefix)
        return sorted(
            {name[at:].partition("/")[0] for name in self._names if name.startswith(prefix)}
        )

    def size(self, path: str) -> int:
        """Bytes, 0 for a directory, -1 for none."""
        found = self._names.get(path)
        if found is not None:
            return len(found.seen)
        return 0 if any(name.startswith(f"{path}/") for name in self._names) else -1

    def inode(self, path: str) -> int:
        """None: a whole directory is put back at once."""
        return 0

    def modified_ms(self, path: str) -> int:
        """Time of the last change."""
        return int(self._names[path].modified_ms)

    def used_ratio(self, name: str = "") -> float:
        """Full or not."""
        return 1.0 if self.full else 0.1

    def fullest(self) -> str:
        """All lies on one file system."""
        return LOG

    def linked(self, name: str) -> str:
        """Nothing is."""
        return ""

    def used_bytes(self) -> tuple[int, int]:
        """All is the store's."""
        own = sum(len(inode.seen) for inode in self._names.values())
        return own, own

    def lock(self, path: str) -> None:
        """One process at a time."""
        if self._locked:
            raise StoreLocked(path)
        self._locked = True

    def unlock(self) -> None:
        """Give it back."""
        self._locked = False


def _move(names: dict[str, Inode], source: str, target: str) -> None:
    inode = names.pop(source, None)
    if inode is not None:
        names[target] = inode


def _drop(names: dict[str, Inode], path: str) -> None:
    names.pop(path, None)
