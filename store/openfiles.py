"""Mapped files of many queues: opened on first use, with a limit on open files.

The system limits the mappings of a process, and a store may have far more queues. Files that were
not used for the longest time are closed, but never one with unsynced bytes: a sync error of it
would not be reported.
"""

import errno
from collections import deque
from collections.abc import Callable

from duolog_server.store.disk import Disk, DiskFile
from duolog_server.store.kernels.jit import U8

LOOKS = 8  # files checked for closing each time one is opened
LOOKS_AFTER_SYNC = 256  # can be closed in a few ms


class TooManyUnsynced(OSError):
    """No further file may be written before the next flush; this is not a failure."""

    def __init__(self) -> None:
        super().__init__(
            errno.EMFILE, "all open queue files are waiting for a sync: none can be closed"
        )


class LazyFile:
    """A file of a queue: a `DiskFile` that is opened on use, and may be closed in between."""

    def __init__(self, owner: "OpenFiles", path: str, size: int, writable: bool) -> None:
        self.path = path
        self.size = size
        self.is_clean: Callable[[], bool] = _never
        self.used = True  # since it was last checked
        self._owner = owner
        self._writable = writable
        self._file: DiskFile | None = None

    def _opened(self) -> DiskFile:
        self.used = True
        return self._file or self._owner.opened(self)

    def open(self) -> DiskFile:
        """Open it; called by the owner. Raises OSError."""
        self._file = self._owner.disk.open(self.path, self._writable)
        return self._file

    def take(self, file: DiskFile) -> None:
        """Take a file that was just created and is open."""
        self._file = file
        self._owner.took(self)

    @property
    def is_open(self) -> bool:
        """Whether it is mapped now."""
        return self._file is not None

    @property
    def memory(self) -> U8:
        """The mapped bytes; references to them stay valid. Raises OSError."""
        self.used = True
        return self._opened().memory if self._file is None else self._file.memory

    def sync(self) -> None:
        """Make what was written durable; may run in any thread, so it counts as no use."""
        file = self._file
        if file is not None:
            file.sync()
            return
        file = self._owner.disk.open(self.path, True)
        try:
            file.sync()
        finally:
            file.close()

    def allocate(self, end: int, start: int = 0) -> None:
        """Allocate blocks for bytes [start, end). Raises OSError."""
        self._opened().allocate(end, start)

    def cover_holes(self) -> None:
        """Nothing: those of queues are not read (`MappedFile.held`)."""

    def data_ranges(self, start: int) -> list[tuple[int, int]]:
        """Stretches that may hold anything but zeros."""
        return self._opened().data_ranges(start)

    def populate(self, start: int, size: int) -> None:
        """Fault pages in for writing."""
        self._opened().populate(start, size)

    def load(self, start: int, size: int) -> None:
        """Read pages in."""
        self._opened().load(start, size)

    def lock(self) -> None:
        """Lock its pages in memory."""
        self._opened().lock()

    def close(self) -> None:
        """Unmap until the next use."""
        file, self._file = self._file, None
        if file is not None:
            file.close()


def _never() -> bool:
    return False


class OpenFiles:
    """The open lazy files: about `most` at a time, up to half more if none can be closed."""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self.most = disk.mapped_max
        self._open: deque[LazyFile] = deque()  # some may be closed or removed meanwhile

    def check_room(self) -> None:
        """Check before writing to a file that is not open. Raises TooManyUnsynced.

        Readers are not refused: the files they open can be closed again.
        """
        if self.is_full:
            self.close_some(2 * len(self._open))  # a used file is closed at the second check
        if self.is_full:
            raise TooManyUnsynced

    @property
    def is_full(self) -> bool:
        """Whether no further file may be opened for writing."""
        return len(self._open) >= self.most + self.most // 2

    @property
    def is_crowded(self) -> bool:
        """Whether too many files are open because they are not synced."""
        return len(self._open) > self.most

    def file(self, path: str, size: int, writable: bool) -> LazyFile:
        """An existing file, not opened yet."""
        return LazyFile(self, path, size, writable)

    def made(self, path: str, file: DiskFile) -> LazyFile:
        """A file that was just created."""
        lazy = LazyFile(self, path, file.size, True)
        lazy.take(file)
        return lazy

    def opened(self, lazy: LazyFile) -> DiskFile:
        """Open a file, and close others if there are too many."""
        file = lazy.open()
        self.took(lazy)
        return file

    def took(self, lazy: LazyFile) -> None:
        """Register an open file; it is not itself a candidate for closing now."""
        self.close_some(LOOKS)
        self._open.append(lazy)

    def close_some(self, looks: int = LOOKS_AFTER_SYNC) -> None:
        """Close files that are not needed; also called after a sync."""
        for _ in range(looks):
            if len(self._open) < self.most:
                break
            oldest = self._open.popleft()
            if not oldest.is_open:
                continue
            if oldest.used or not oldest.is_clean():
                oldest.used = False
                self._open.append(oldest)
            else:
                oldest.close()
