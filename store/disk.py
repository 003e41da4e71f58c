"""The disk port: everything that the engine needs from a file system.

Two worlds implement it: the operating system (`store.osdisk`) and, in tests and simulation, disks
that fail, tear and lose. Every method may raise OSError; an error of `sync` is final.
"""

import errno
from dataclasses import dataclass
from typing import Protocol

from duolog_server.store.kernels.jit import U8


def no_room(error: OSError) -> bool:
    """Whether the disk (or the user's quota) is full: nothing is broken, and it may pass."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


class DiskFile(Protocol):
    """An open, mapped file of fixed size."""

    path: str
    size: int

    @property
    def memory(self) -> U8:
        """The mapped bytes."""

    def sync(self) -> None:
        """Make everything written to `memory` so far survive a power cut."""

    def allocate(self, end: int, start: int = 0) -> None:
        """Allocate blocks for bytes [start, end): writes there cannot fail any more."""

    def cover_holes(self) -> None:
        """Make reading a hole need no disk space: else a full disk ends the process.

        `allocate` comes before any write.
        """

    def data_ranges(self, start: int) -> list[tuple[int, int]]:
        """Ranges [from, to) at or after start that may contain anything but zeros."""

    def populate(self, start: int, size: int) -> None:
        """Fault pages in for writing, ahead of need; may run in any thread, may do nothing."""

    def load(self, start: int, size: int) -> None:
        """Read pages in for reading, ahead of need; may run in any thread, may do nothing."""

    def lock(self) -> None:
        """Lock all pages in memory, if the system allows it."""

    def close(self) -> None:
        """Unmap as soon as no reader holds the memory any more."""


@dataclass(frozen=True, slots=True)
class Listing:
    """The files of a directory: sorted names, bytes of each (-1: no regular file), and a digest.

    digest: while it stays the same, none of them was changed, added or removed; 0
    where there is no such directory.
    """

    names: list[str]
    sizes: list[int]
    digest: int


class Disk(Protocol):
    """A directory tree with durable operations. Paths are relative to the store's root."""

    mapped_max: int  # files of queues that may be mapped at a time

    def look(self, path: str) -> Listing:
        """List the files of a directory without opening any; may run in any thread."""

    def create(self, path: str, size: int, allocated: int | None = None) -> DiskFile:
        """Create a zeroed file; an existing one is an error.

        allocated: bytes from its start that get blocks now; None: all. Nothing may be written past
        them before `allocate`: on a full disk, that would kill the process.
        """

    def open(self, path: str, writable: bool) -> DiskFile:
        """Map an existing file. It may have holes, as copies do: `allocate` before a write."""

    def read(self, path: str) -> bytes:
        """Whole content of a small file."""

    def write(self, path: str, data: bytes) -> None:
        """Replace a file's content and sync it (not atomic: use with `rename`)."""

    def rename(self, source: str, target: str) -> None:
        """Move a file over another, atomically."""

    def remove(self, path: str) -> None:
        """Remove a file or an empty directory; large files occupy space until `reclaim`."""

    def reclaim(self) -> None:
        """Free the space of removed files; may take long, and may run in any thread."""

    def sync_dir(self, path: str) -> None:
        """Make creations, renames and removals in a directory durable."""

    def list(self, path: str) -> list[str]:
        """Sorted names in a directory; empty if there is none."""

    def size(self, path: str) -> int:
        """Bytes of a file, or -1 if there is none."""

    def inode(self, path: str) -> int:
        """The number of a file in its file system, which a copy of it does not have; 0: none."""

    def modified_ms(self, path: str) -> int:
        """Time of a file's last change."""

    def used_ratio(self, name: str = "") -> float:
        """Used share of a directory's file system, as df shows it.

        Without a name, of the fullest one that log, queues or index lie on.
        """

    def fullest(self) -> str:
        """Name of the directory that lies there; the log's where it does."""

    def linked(self, name: str) -> str:
        """The target of a directory of the store that is a link; otherwise empty."""

    def used_bytes(self) -> tuple[int, int]:
        """Used bytes of the log's file system, and those of the store there.

        All files of the store are looked at.
        """

    def lock(self, path: str) -> None:
        """Take the exclusive lock of a file until `unlock`; StoreLocked if another process holds
        it.
        """

    def unlock(self) -> None:
        """Give the lock back."""
