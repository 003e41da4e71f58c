"""One segment: a mapped file of fixed size and how far it is written, committed and synced."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np

from duolog_server.store.disk import Disk, DiskFile, no_room
from duolog_server.store.kernels.jit import U8
from duolog_server.store.kernels.ordered import clear_back, copy_records

PAGE = 4096
CHUNK = 1 << 20  # bytes that get blocks at a time, at most
CHUNKS_MAX = 16  # of a large file, whose chunks are larger


@dataclass(slots=True)
class MappedFile:
    """A segment; positions are bytes from its start. With a pool buffer, writes go there first."""

    file: DiskFile
    start: int
    wrote: int = 0
    committed: int = 0
    flushed: int = 0
    store_time: int = 0
    populated: int = 0
    allocated: int | None = None  # how far may be written; None: all of it, it was made whole
    tail_unknown: bool = False  # past what is written there may be stale bytes
    buffer: U8 | None = field(default=None, repr=False)

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return self.file.size

    @property
    def end(self) -> int:
        """Offset of the first byte after this segment."""
        return self.start + self.file.size

    @property
    def memory(self) -> U8:
        """The mapped bytes: what readers see."""
        return self.file.memory

    @property
    def write_memory(self) -> U8:
        """The memory to append to."""
        return self.file.memory if self.buffer is None else self.buffer

    @property
    def readable(self) -> int:
        """Bytes that may be read."""
        return self.wrote if self.buffer is None else self.committed

    @property
    def is_full(self) -> bool:
        """No byte is left to write."""
        return self.wrote >= self.file.size

    def set_positions(self, position: int) -> None:
        """Set all positions to one before which everything is on disk."""
        self.wrote = self.committed = self.flushed = position

    def end_at_most(self, position: int) -> None:
        """Lower all positions to at most one."""
        self.wrote = min(self.wrote, position)
        self.committed = min(self.committed, position)
        self.flushed = min(self.flushed, position)
        if self.allocated is not None:  # before the first bytes of this process may be holes
            self.allocated = min(self.allocated, self._page)

    @property
    def _page(self) -> int:
        """Start of the page that is written next."""
        return self.wrote - self.wrote % PAGE

    @property
    def room(self) -> int:
        """Position below which may be written now."""
        return self.file.size if self.allocated is None else self.allocated

    def allocate(self, end: int) -> None:
        """Allocate blocks for what is written next, up to a position and some more.

        A file that was found may have holes (`cp --sparse`, or RocketMQ made it): to write into one
        on a full disk ends the process (SIGBUS). Raises OSError if the disk is full; nothing has
        changed then.
        """
        if self.tail_unknown:
            self.clear_from(self.wrote)
            self.tail_unknown = False
        if self.allocated is None or end <= self.allocated:
            return
        end = max(end, self.wrote + 1)  # nothing was asked for yet since the file was found
        start, base = max(self.allocated, self._page), max(self.allocated, self.wrote)
        wanted = max(end, base + min(max(base, PAGE), max(CHUNK, self.size // CHUNKS_MAX)))
        room, least = (min(self.size, -(-size // PAGE) * PAGE) for size in (wanted, end))
        try:
            self.file.allocate(room, start)
        except OSError as error:
            if not no_room(error) or least == room:
                raise
            room = least  # which may exist already, if the file is being rewritten
            self.file.allocate(room, start)
        self.allocated = room

    @property
    def held(self) -> int:
        """Bytes from the start up to the first hole, which must not be read.

        Reading a hole allocates a page on a tmpfs; if that is full, it kills the process (SIGBUS).
        """
        for low, high in self.file.data_ranges(0):
            return high if low == 0 else 0
        return 0

    def commit(self) -> None:
        """Copy the content of the pool buffer into the file."""
        if self.buffer is not None and self.committed < self.wrote:
            copy_records(self.file.memory, self.committed, self.buffer[self.committed : self.wrote])
        self.committed = self.wrote

    def needs_flush(self, least_pages: int) -> bool:
        """RocketMQ's rule: a full file always, else enough dirty pages, or any with 0 pages."""
        if self.flushed >= self.readable:
            return False
        if self.is_full or least_pages <= 0:
            return True
        return self.readable // PAGE - self.flushed // PAGE >= least_pages

    def clear_from(self, position: int) -> bool:
        """Zero every byte from a position on; whether there was anything to zero.

        Stale bytes past the end may contain valid records, which a later recovery must not find.
        The last ones go first, as a kill leaves the rest.
        """
        found, memory = False, self.file.memory
        for low, high in reversed([*self.file.data_ranges(position)]):
            for end in range(high, low, -CHUNK):
                start = max(end - CHUNK, low)
                if memory[start:end].any():
                    clear_back(memory, start, end)
                    found = True
        return found


@dataclass(slots=True)
class FlushJob:
    """Files and directories to sync, and the offset below which all is durable afterwards.

    `run` touches no state of the store, so it may run in any thread. then: what is done after
    everything is synced.
    """

    disk: Disk
    files: list[tuple[MappedFile, int]]
    directories: list[str]
    end: int
    store_time: int = 0
    then: Callable[[], None] | None = None

    @staticmethod
    def of(
        disk: Disk, jobs: "list[FlushJob]", directories: Iterable[str] = (), store_time: int = 0
    ) -> "FlushJob":
        """Merge several jobs; each directory is synced once. directories: synced first."""
        names = [*directories, *(name for job in jobs for name in job.directories)]
        files = [file for job in jobs for file in job.files]
        return FlushJob(disk, files, list(dict.fromkeys(names)), 0, store_time)

    def run(self) -> None:
        """Sync. After an OSError, nothing may be considered durable any more."""
        for mapped, _ in self.files:
            mapped.file.sync()
        for directory in self.directories:
            self.disk.sync_dir(directory)
        if self.then is not None:
            self.then()

    def done(self) -> None:
        """Note the success in the files; called by the owner of the store."""
        for mapped, position in self.files:
            # It may have been truncated meanwhile: what was written there since is not synced.
            mapped.flushed = max(mapped.flushed, min(position, mapped.readable))


# TransientStorePool: buffers of one segment's size that appends are assembled in.
#
# A commit copies them into the file. What was not committed is lost when the *process* ends, so the
# pool is only used with asynchronous flush.
class TransientStorePool:
    """A fixed number of zeroed buffers, lent to segments."""

    def __init__(self, buffers: int, size: int) -> None:
        self._size = size
        self._free: list[U8] = []
        self._unmade = buffers

    def borrow(self) -> U8 | None:
        """A zeroed buffer, or None if all are lent: the segment is then written directly."""
        if self._free:
            buffer = self._free.pop()
            buffer[:] = 0
            return buffer
        if self._unmade == 0:
            return None
        self._unmade -= 1
        return np.zeros(self._size, np.uint8)

    def give_back(self, buffer: U8) -> None:
        """Return a buffer whose segment is committed to its end."""
        self._free.append(buffer)
