"""Mapped files of many queues: opened when they are touched, few of them open at once.

The system lets one process have so many mappings, and a store may have far more queues. Those that
nobody touched for the longest are closed; never one with bytes that no sync has reached, whose
error would be told to nobody.
"""

import errno
from collections import deque
from collections.abc import Callable

from store.disk import Disk, DiskFile
from store.kernels.jit import U8

LOOKS = 8  # at files that could be closed, each time one is opened
LOOKS_AFTER_SYNC = 256  # so many can be closed in a few ms


class TooManyUnsynced(OSError):
    """Nothing may be stored into one more file before the next flush; nothing is broken."""

    def __init__(self) -> None:
        super().__init__(
            errno.EMFILE, "all open queue files are waiting for a sync: none can be closed"
        )


class LazyFile:
    """A file of a queue: a `DiskFile` that is opened by its first use, again and again."""

    def __init__(self, owner: "OpenFiles", path: str, size: int, writable: bool) -> None:
        self.path = path
        self.size = size
        self.is_clean: Callable[[], bool] = _never
        self.used = True  # since it was looked at last
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
        """It was just made, and is open already."""
        self._file = file
        self._owner.took(self)

    @property
    def is_open(self) -> bool:
        """Whether it takes a mapping now."""
        return self._file is not None

    @property
    def memory(self) -> U8:
        """The mapped bytes, which whoever took them may keep. Raises OSError."""
        self.used = True
        return self._opened().memory if self._file is None else self._file.memory

    def sync(self) -> None:
        """Make what was stored durable; in any thread, so it is not noted as open for this."""
        file = self._file
        if file is not None:
            file.sync()
            return
        file = self._owner.disk.open(self.path, True)
        try:
            file.sync()
        finally:
            file.close()

    def allocate(self, end: int) -> None:
        """Have blocks below a position. Raises OSError."""
        self._opened().allocate(end)

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
    """Which lazy files are open: about `most` at a time, by half more where none can be closed."""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self.most = disk.mapped_max
        self._open: deque[LazyFile] = deque()  # some may be closed, or gone, meanwhile

    def check_room(self) -> None:
        """Before a file that is not open is stored into. Raises TooManyUnsynced.

        Readers are not refused: what they open can be closed again.
        """
        if self.is_full:
            self.close_some(2 * len(self._open))  # one that was used is closed at the second look
        if self.is_full:
            raise TooManyUnsynced

    @property
    def is_full(self) -> bool:
        """Whether files that are not open may not be stored into."""
        return len(self._open) >= self.most + self.most // 2

    @property
    def is_crowded(self) -> bool:
        """Whether more are open than should be, because they are not synced."""
        return len(self._open) > self.most

    def file(self, path: str, size: int, writable: bool) -> LazyFile:
        """A file that is there, not opened yet."""
        return LazyFile(self, path, size, writable)

    def made(self, path: str, file: DiskFile) -> LazyFile:
        """A file that was just made."""
        lazy = LazyFile(self, path, file.size, True)
        lazy.take(file)
        return lazy

    def opened(self, lazy: LazyFile) -> DiskFile:
        """Open one, and close others where there are too many."""
        file = lazy.open()
        self.took(lazy)
        return file

    def took(self, lazy: LazyFile) -> None:
        """One more is open; it is not among those that may be closed for it."""
        self.close_some(LOOKS)
        self._open.append(lazy)

    def close_some(self, looks: int = LOOKS_AFTER_SYNC) -> None:
        """Close files that are not needed; called as well when some were synced."""
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
