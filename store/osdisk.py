"""The disk port on the operating system: preallocated or growing files, mapped and synced.

Files are allocated under `allocating/` and linked into place, so a crash never leaves one of the
wrong size where RocketMQ or recovery would find it. A growing file has its full size from the
start, and blocks as far as they were requested; the rest is a hole, into which nothing is written.
In a directory that is linked to another file system they have no name until then.
Removed large files are moved there as well, which is fast; `reclaim` unlinks them, which may take
long.
"""

import contextlib
import errno
import fcntl
import hashlib
import itertools
import mmap
import os
import shutil
import stat
from collections import deque
from collections.abc import Mapping as Paths
from pathlib import Path

from duolog_server.store.directories import (
    LOG,
    LOST_FOUND,
    MOVABLE,
    file_system_of,
    fullest,
    lead,
    linked,
)
from duolog_server.store.disk import Listing, no_room
from duolog_server.store.errors import BadStoreDirectory, StoreLocked
from duolog_server.store.kernels.jit import EMPTY_U8, U8
from duolog_server.store.mapping import Mapping, mappings_max, reads_take_room

STAGING = "allocating"
REBUILDING = "rebuilding"  # files of a rebuild that takes place, or was killed
REBUILDING_THERE = ".rebuilding"  # those on another file system; no topic has such a name
UNLINKED_AT_ONCE_BYTES = 1 << 20
BLOCK = 512  # unit of st_blocks
MAPPED_MAX = 20_000  # each takes a page of page tables at least
COVERED_MAX = 1000  # holes of a file: each takes a mapping
READ_AHEAD_FROM = 1 << 20  # a file with fewer bytes is not read ahead: the rest is a hole


class OsFile:
    """A mapped file; no descriptor is kept."""

    def __init__(self, path: str, full: str, descriptor: int, size: int, writable: bool) -> None:
        """full: its path, for opening it again. The caller closes the descriptor."""
        self.path = path
        self.size = size
        self._full = full
        self._covered = False
        self._mapping: Mapping | None = Mapping(descriptor, size, writable)
        self.memory: U8 = self._mapping.memory
        if os.fstat(descriptor).st_blocks * BLOCK < min(size, READ_AHEAD_FROM):
            # Otherwise the first access reads the hole after it into the page cache: over 1 ms.
            self._mapping.advise(mmap.MADV_RANDOM)

    def _mapped(self) -> Mapping:
        mapping = self._mapping
        if mapping is None:
            raise OSError(errno.EBADF, "the file was closed", self.path)
        return mapping

    def allocate(self, end: int, start: int = 0) -> None:
        """Call fallocate, which keeps existing content; whole pages, as they are written."""
        start -= start % mmap.PAGESIZE
        end = min(end + -end % mmap.PAGESIZE, self.size)
        descriptor = os.open(self._full, os.O_RDWR | os.O_NOFOLLOW)
        try:
            os.posix_fallocate(descriptor, start, end - start)
            if self._covered:
                self._mapped().uncover(descriptor, start, end)
        finally:
            os.close(descriptor)
        if end >= READ_AHEAD_FROM:
            self._mapped().advise(mmap.MADV_NORMAL)

    def cover_holes(self) -> None:
        """On a tmpfs: other file systems show zeros."""
        descriptor = os.open(self._full, os.O_RDONLY | os.O_NOFOLLOW)
        try:
            if os.fstat(descriptor).st_blocks * BLOCK >= self.size or not reads_take_room(
                descriptor
            ):
                return
            data = _data_ranges(descriptor, 0, self.size)
        finally:
            os.close(descriptor)
        self._covered, at = True, 0
        page = mmap.PAGESIZE
        for low, high in [*data, (self.size + -self.size % page, 0)][:COVERED_MAX]:
            start, end = at + -at % page, low - low % page
            if start < end:
                self._mapped().cover(start, end)
            at = high

    def sync(self) -> None:
        """Make all stores through the mapping durable. Raises OSError, which is final."""
        self._mapped().sync()

    def data_ranges(self, start: int) -> list[tuple[int, int]]:
        """Data extents by SEEK_DATA; preallocated space that was never written does not count."""
        descriptor = os.open(self._full, os.O_RDONLY | os.O_NOFOLLOW)
        try:
            return _data_ranges(descriptor, start, self.size)
        finally:
            os.close(descriptor)

    def populate(self, start: int, size: int) -> None:
        """See `Mapping.populate`."""
        self._mapped().populate(start, size)

    def load(self, start: int, size: int) -> None:
        """See `Mapping.load`."""
        self._mapped().load(start, size)

    def lock(self) -> None:
        """Mlock; a refusal (ulimit) is not an error."""
        self._mapped().lock()

    def close(self) -> None:
        """Drop the mapping; it stays until the last reader releases the memory."""
        self.memory = EMPTY_U8
        self._mapping = None


def _data_ranges(descriptor: int, start: int, size: int) -> list[tuple[int, int]]:
    """All ranges are determined before any is read: reading caches zero pages further on, which
    would then count as data.
    """
    ranges: list[tuple[int, int]] = []
    position = start
    while position < size:
        try:
            low = os.lseek(descriptor, position, os.SEEK_DATA)
            high = os.lseek(descriptor, low, os.SEEK_HOLE)
        except OSError as error:
            if error.errno != errno.ENXIO:
                ranges.append((position, size))
            return ranges
        ranges.append((low, min(high, size)))
        position = high
    return ranges


class OsDisk:
    """A store directory. With `read_only`, nothing is created, changed or locked."""

    def __init__(
        self, root: str | Path, read_only: bool = False, paths: Paths[str, str] | None = None
    ) -> None:
        """paths: where its directories are to lie, see `store.directories`."""
        self.root = Path(root)
        self._base = str(self.root)
        self.read_only = read_only
        self._lock = -1
        self._held: list[int] = []  # locked directories of other places
        self._staged = itertools.count()
        self._removed: deque[Path] = deque()  # to be unlinked by any thread
        self.mapped_max = min(MAPPED_MAX, mappings_max() // 3)
        if read_only:
            self._check_root()
            return
        self._prepare_root()
        for name, target in (paths or {}).items():
            if target:
                lead(self.root, name, target)

    def _check_root(self) -> None:
        try:
            if self.root.is_dir():
                return
            reason = "not a directory" if self.root.exists() else "no such directory"
        except OSError as error:
            reason = error.strerror or str(error)
        raise BadStoreDirectory(self._base, reason)

    def _prepare_root(self) -> None:
        try:
            self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
            owner = self.root.stat().st_uid
        except FileExistsError:
            raise BadStoreDirectory(str(self.root), "is not a directory") from None
        except OSError as error:
            raise BadStoreDirectory(str(self.root), error.strerror or str(error)) from error
        if owner != os.geteuid():
            raise BadStoreDirectory(
                str(self.root), f"belongs to uid {owner}, this process runs as {os.geteuid()}"
            )
        try:
            staging = self.root / STAGING
            staging.mkdir(exist_ok=True, mode=0o700)
            probe = staging / "probe"
            probe.write_bytes(b"")
            probe.unlink(missing_ok=True)
        except OSError as error:
            if no_room(error):  # of an XFS that is full: it allocates inodes as they are needed
                return
            where = str(error.filename or self.root)
            raise BadStoreDirectory(where, f"not writable ({error.strerror})") from error

    def _path(self, path: str) -> str:
        # Names are checked where they enter; this is the last check before the file system.
        if path.startswith("/") or "\0" in path or (".." in path and ".." in path.split("/")):
            raise BadStoreDirectory(path, "leads out of the store directory")
        return f"{self._base}/{path}" if path else self._base

    def create(self, path: str, size: int, allocated: int | None = None) -> OsFile:
        """Allocate under `allocating/`, then link into place; the caller syncs the directory.

        Two threads may ask for one path: one gets it, the other FileExistsError.
        """
        full = self._path(path)
        os.makedirs(os.path.dirname(full), 0o700, exist_ok=True)
        try:
            return self._create(path, full, size, allocated)
        except OSError as error:
            if not no_room(error) or not self._removed:
                raise
            self.reclaim()
            return self._create(path, full, size, allocated)

    def _create(self, path: str, full: str, size: int, allocated: int | None) -> OsFile:
        if os.stat(os.path.dirname(full)).st_dev != os.stat(self._base).st_dev:
            return self._create_elsewhere(path, full, size, allocated)
        staged = self._path(f"{STAGING}/{next(self._staged)}")
        descriptor = os.open(staged, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        try:
            os.ftruncate(descriptor, size)
            os.posix_fallocate(descriptor, 0, size if allocated is None else max(allocated, 1))
            os.link(staged, full)
            return OsFile(path, full, descriptor, size, writable=True)
        finally:
            os.close(descriptor)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(staged)

    def _create_elsewhere(self, path: str, full: str, size: int, allocated: int | None) -> OsFile:
        """Allocate on another file system, to which a directory is linked.

        A link cannot cross file systems, and RocketMQ takes every name beside a segment for one:
        the file has no name until it is allocated, so a crash leaves nothing.
        """
        flags = os.O_RDWR | os.O_TMPFILE
        descriptor = os.open(os.path.dirname(full), flags, 0o600)
        try:
            os.ftruncate(descriptor, size)
            os.posix_fallocate(descriptor, 0, size if allocated is None else max(allocated, 1))
            # With a descriptor, Python follows the source's symbolic link; without, it does not.
            os.link(f"/proc/self/fd/{descriptor}", full, src_dir_fd=descriptor)
            return OsFile(path, full, descriptor, size, writable=True)
        finally:
            os.close(descriptor)

    def open(self, path: str, writable: bool) -> OsFile:
        """Map a file that exists; a symbolic link is refused."""
        full = self._path(path)
        flags = (os.O_RDWR if writable else os.O_RDONLY) | os.O_NOFOLLOW
        descriptor = os.open(full, flags)
        try:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode) or found.st_size == 0:
                raise OSError(errno.EINVAL, "not a regular file with content", path)
            return OsFile(path, full, descriptor, found.st_size, writable)
        finally:
            os.close(descriptor)

    def read(self, path: str) -> bytes:
        """Whole content."""
        return Path(self._path(path)).read_bytes()

    def write(self, path: str, data: bytes) -> None:
        """Write and fsync; loops over short writes."""
        full = self._path(path)
        os.makedirs(os.path.dirname(full), 0o700, exist_ok=True)
        descriptor = os.open(full, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(descriptor, view) :]
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def rename(self, source: str, target: str) -> None:
        """Move over."""
        os.replace(self._path(source), self._path(target))

    def remove(self, path: str) -> None:
        """Remove a file or an empty directory; the space of a large file is freed later.

        A link to a directory stays, and so does a mounted file system.
        """
        full = self._path(path)
        try:
            found = os.lstat(full)
            taken = min(found.st_size, found.st_blocks * BLOCK)
            if stat.S_ISDIR(found.st_mode):
                if not os.path.ismount(full):
                    os.rmdir(full)
            elif stat.S_ISLNK(found.st_mode) and os.path.isdir(full):
                return
            elif taken < UNLINKED_AT_ONCE_BYTES or not self._put_aside(full):
                os.unlink(full)
        except FileNotFoundError:
            return

    def _put_aside(self, full: str) -> bool:
        """Move a file to `allocating/` for `reclaim`; False if it cannot be moved."""
        aside = self.root / STAGING / f"removed-{next(self._staged)}"
        try:
            os.rename(full, aside)
        except OSError:
            return False  # for example, it is on another file system
        self._removed.append(aside)
        return True

    def reclaim(self) -> None:
        """Unlink what was removed. Raises OSError; the rest is unlinked by the next call."""
        while self._removed:
            try:
                aside = self._removed.popleft()
            except IndexError:
                return  # another thread took the last one
            aside.unlink(missing_ok=True)

    def sync_dir(self, path: str) -> None:
        """Fsync a directory."""
        descriptor = os.open(self._path(path), os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def look(self, path: str) -> Listing:
        """One pass over a directory; inode and change time tell each file's state.

        A write through a mapping updates the change time when it dirties a page, but not on a
        tmpfs: users of the digest must account for their own writes.
        """
        try:
            with os.scandir(self._path(path)) as entries:
                found = sorted(
                    (e.name, e.stat(follow_symlinks=False)) for e in entries if e.name != LOST_FOUND
                )
        except (FileNotFoundError, NotADirectoryError):
            return Listing([], [], 0)
        told = [(name, s.st_ino, s.st_size, s.st_ctime_ns) for name, s in found]
        return Listing(
            [name for name, _ in found],
            [s.st_size if stat.S_ISREG(s.st_mode) else -1 for _, s in found],
            int.from_bytes(hashlib.blake2b(repr(told).encode(), digest_size=7).digest()) + 1,
        )

    def list(self, path: str) -> list[str]:
        """Sorted names."""
        try:
            return sorted(name for name in os.listdir(self._path(path)) if name != LOST_FOUND)
        except (FileNotFoundError, NotADirectoryError):
            return []

    def size(self, path: str) -> int:
        """Bytes, -1 for none, 0 for a directory."""
        try:
            found = os.stat(self._path(path))
        except FileNotFoundError:
            return -1
        return found.st_size if stat.S_ISREG(found.st_mode) else 0

    def inode(self, path: str) -> int:
        """The file's inode."""
        try:
            return os.lstat(self._path(path)).st_ino
        except OSError:
            return 0

    def modified_ms(self, path: str) -> int:
        """Modification time in ms."""
        return os.stat(self._path(path)).st_mtime_ns // 1_000_000

    def used_ratio(self, name: str = "") -> float:
        """Used share of what is used or available to this user: reserved blocks are neither.

        Of the file system of one directory; without a name, of the fullest one.
        """
        found = file_system_of(self.root, name) if name else fullest(self.root)
        return found.used_ratio

    def fullest(self) -> str:
        """Name of the directory that lies there; the log's where it does."""
        return fullest(self.root).name

    def linked(self, name: str) -> str:
        """See `store.directories`."""
        return linked(self.root, name)

    def used_bytes(self) -> tuple[int, int]:
        """Used bytes of the log's file system, and the blocks that the store's files take there."""
        place, own = file_system_of(self.root, LOG), 0
        for root in (self._base, *filter(None, map(self.linked, MOVABLE))):
            for directory, _, names in os.walk(root):
                for name in names:
                    with contextlib.suppress(
                        FileNotFoundError
                    ):  # retention may remove it meanwhile
                        found = os.lstat(os.path.join(directory, name))
                        own += found.st_blocks * BLOCK if found.st_dev == place.device else 0
        return place.used_bytes, own

    def lock(self, path: str) -> None:
        """Lock the first byte, as RocketMQ does, and write `lock` into the file."""
        descriptor = os.open(self._path(path), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
        except OSError as error:
            os.close(descriptor)
            raise StoreLocked(str(self.root)) from error
        os.pwrite(descriptor, b"lock", 0)
        os.fsync(descriptor)
        self._lock = descriptor
        try:
            self._hold_linked()
        except BaseException:
            self.unlock()
            raise
        for left_over in (self.root / STAGING).iterdir():  # only now no other process uses it
            left_over.unlink(missing_ok=True)
        for folder in (REBUILDING, *(f"{name}/{REBUILDING_THERE}" for name in MOVABLE)):
            shutil.rmtree(self.root / folder, ignore_errors=True)

    def _hold_linked(self) -> None:
        """Lock the directories that links lead to: another store may have such a link as well.

        Without a file: RocketMQ takes every name there for one of its own.
        """
        for name in MOVABLE:
            place = self.linked(name)
            if not place:
                continue
            descriptor = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
            self._held.append(descriptor)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise StoreLocked(place) from error
            except OSError:
                continue  # a file system without such locks

    def unlock(self) -> None:
        """Close the locked descriptors."""
        while self._held:
            os.close(self._held.pop())
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1
