"""A sequence of segments: files of one size, named by the 20-digit offset of their first byte."""

from bisect import bisect_right
from itertools import pairwise
from operator import attrgetter

from duolog_server.store.disk import Disk, Listing
from duolog_server.store.errors import BadStoreDirectory
from duolog_server.store.mappedfile import PAGE, FlushJob, MappedFile
from duolog_server.store.openfiles import LazyFile, OpenFiles

NAME_DIGITS = 20
FIRST_BYTES = 16 << 20  # bytes of the first segment that get blocks when it is created
_START = attrgetter("start")


class MappedFileQueue:
    """The segments of a directory, oldest first."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        file_size: int,
        granularity: int | None = None,
        open_files: OpenFiles | None = None,
    ) -> None:
        """granularity: the first segment starts at a multiple of it; the file size where None.

        open_files: where given, files are opened by their first use, and grow as they are filled.
        """
        self.disk = disk
        self._open_files = open_files
        self.granularity = granularity or file_size
        self.directory = directory
        self.file_size = file_size
        self.files: list[MappedFile] = []
        self.flushed_where = 0
        self.committed_where = 0
        self.ahead: MappedFile | None = None
        self._unsynced_names = False

    def load(self, writable: bool = True) -> None:
        """Open every file, taken as full; recovery finds out how far it is written.

        An empty file never held a byte, or has lost all: it counts as missing, see `holes`.
        Raises BadStoreDirectory where a name or a size is wrong: nothing is repaired by guess.
        """
        self.load_listed(self.disk.look(self.directory), writable)

    def load_listed(self, listing: Listing, writable: bool = True) -> None:
        """Load files that were listed already."""
        for name, size in zip(listing.names, listing.sizes, strict=True):
            path = f"{self.directory}/{name}"
            if not (len(name) == NAME_DIGITS and name.isdecimal()):
                raise BadStoreDirectory(path, "is not a segment (its name must have 20 digits)")
            if size < 0:
                raise BadStoreDirectory(path, "is not a regular file")
            if size == 0:
                if writable:
                    self.disk.remove(path)
                continue
            if size != self.file_size:
                raise BadStoreDirectory(
                    path,
                    f"has {size} bytes, but the configured segment size is "
                    f"{self.file_size}. If only this file was cut short, copy it again "
                    "or remove it: what it held is then reported as missing",
                )
            start = int(name)
            first = self.files[0].start if self.files else 0
            if start % self.granularity or (self.files and (start - first) % self.file_size):
                raise BadStoreDirectory(path, f"is not a multiple of {self.file_size}")
            mapped = self._open(start, writable)
            mapped.set_positions(size)
            self.files.append(mapped)

    def _open(self, start: int, writable: bool) -> MappedFile:
        path = self.path_of(start)
        if self._open_files is None:
            file = self.disk.open(path, writable)
            file.cover_holes()
            return MappedFile(file, start, allocated=0)
        return _growing(self._open_files.file(path, self.file_size, writable), start, 0)

    @property
    def last(self) -> MappedFile | None:
        """The segment being written."""
        return self.files[-1] if self.files else None

    @property
    def min_offset(self) -> int:
        """Offset of the first byte held, 0 if there is none."""
        return self.files[0].start if self.files else 0

    @property
    def max_offset(self) -> int:
        """Offset after the last byte that may be read."""
        if not self.files:
            return 0
        last = self.files[-1]  # on a hot path: no further calls
        return last.start + (last.wrote if last.buffer is None else last.committed)

    @property
    def wrote_offset(self) -> int:
        """Offset after the last byte written, committed or not."""
        return self.files[-1].start + self.files[-1].wrote if self.files else 0

    def find(self, offset: int) -> MappedFile | None:
        """The segment that holds an offset."""
        if not self.files:
            return None
        index = (offset - self.files[0].start) // self.file_size
        if 0 <= index < len(self.files) and self.files[index].start <= offset:
            found = self.files[index]
            if offset < found.end:
                return found
        # A file in the middle is missing, so the index is wrong.
        index = bisect_right(self.files, offset, key=_START) - 1
        found = self.files[max(index, 0)]
        return found if found.start <= offset < found.end else None

    def holes(self) -> list[tuple[int, int]]:
        """Ranges [start, end) whose files are missing."""
        return [
            (before.end, after.start)
            for before, after in pairwise(self.files)
            if before.end != after.start
        ]

    def held_from(self, offset: int) -> int:
        """The first offset at or after one whose file exists; the end if there is none."""
        if self.find(offset) is not None:
            return offset
        index = bisect_right(self.files, offset, key=_START)
        return self.files[index].start if index < len(self.files) else self.max_offset

    def path_of(self, start: int) -> str:
        """Path of the segment that starts at an offset."""
        return f"{self.directory}/{start:0{NAME_DIGITS}d}"

    def next_start(self, wanted: int = 0) -> int:
        """Start of the next segment; for the first one, `wanted` rounded down."""
        return self.files[-1].end if self.files else wanted - wanted % self.granularity

    def create(self, start: int) -> MappedFile:
        """Allocate a segment without adding it; may run in any thread."""
        return MappedFile(self.disk.create(self.path_of(start), self.file_size), start)

    def _create_first(self, start: int, room: int) -> MappedFile:
        """The first segment gets blocks as it is filled: many stores never have a second one."""
        room = min(self.file_size, max(FIRST_BYTES, room))
        made = self.disk.create(self.path_of(start), self.file_size, room)
        return MappedFile(made, start, allocated=room)

    def _create_growing(self, open_files: OpenFiles, start: int, room: int) -> MappedFile:
        room = min(self.file_size, max(PAGE, room))
        path = self.path_of(start)
        made = self.disk.create(path, self.file_size, room)
        return _growing(open_files.made(path, made), start, room)

    def check_room(self) -> None:
        """Check before writing to the last or a new segment. Raises TooManyUnsynced."""
        file = self.files[-1].file if self.files else None
        if self._open_files is not None and not (isinstance(file, LazyFile) and file.is_open):
            self._open_files.check_room()

    def roll(self, wanted: int = 0) -> MappedFile:
        """Append the next segment: allocated ahead, or new. OSError on a full disk.

        wanted: offset that the first one holds; one that grows has room up to there.
        """
        start = self.next_start(wanted)
        if self.ahead is not None and self.ahead.start == start:
            mapped, self.ahead = self.ahead, None
        else:
            mapped = self._create_or_take(start, wanted - start)
            mapped.allocate(max(0, wanted - start))
        self.files.append(mapped)
        self._unsynced_names = True
        return mapped

    def _create_or_take(self, start: int, room: int) -> MappedFile:
        if self._open_files is not None:
            if self.disk.size(self.path_of(start)) < 0:
                return self._create_growing(self._open_files, start, room)
            mapped = self._open(start, True)  # it existed at the start, and is rewritten
            mapped.tail_unknown = True
            return mapped
        try:
            return self.create(start) if self.files else self._create_first(start, room)
        except FileExistsError:
            # The allocating thread has just created it, and will close it.
            return self._open(start, True)

    def take_ahead(self, made: MappedFile) -> bool:
        """Add a segment that was allocated ahead; False if it is no longer needed."""
        if self.next_start() == made.start and self.files and self.ahead is None:
            self.ahead = made
            return True
        if not any(mapped.start == made.start for mapped in self.files):
            self.disk.remove(made.file.path)  # the log was truncated meanwhile
        made.file.close()  # or the writer was faster and has opened it
        return False

    def commit(self) -> None:
        """Copy all pool buffers into their files."""
        for mapped in self._from(self.committed_where):
            mapped.commit()
        self.committed_where = self.wrote_offset

    def _from(self, offset: int) -> list[MappedFile]:
        first = len(self.files)
        while first and self.files[first - 1].end > offset:
            first -= 1
        return self.files[first:]

    def flush_job(self, least_pages: int) -> FlushJob | None:
        """The job that makes everything readable durable; None if there is too little to sync."""
        files = [
            (mapped, mapped.readable)
            for mapped in self._from(self.flushed_where)
            if mapped.flushed < mapped.readable
        ]
        if not any(mapped.needs_flush(least_pages) for mapped, _ in files):
            return None
        directories = self._directories() if self._unsynced_names else []
        self._unsynced_names = False
        return FlushJob(self.disk, files, directories, self.max_offset, self._newest_time(files))

    def _directories(self) -> list[str]:
        """The directory of a new segment, and its parent."""
        return [self.directory.rpartition("/")[0], self.directory]

    @staticmethod
    def _newest_time(files: list[tuple[MappedFile, int]]) -> int:
        return max((mapped.store_time for mapped, _ in files), default=0)

    def flushed(self, job: FlushJob) -> None:
        """Note the success of a job."""
        job.done()
        self.flushed_where = max(self.flushed_where, job.end)

    def set_end(self, offset: int) -> None:
        """Set the end: everything before it is written and synced."""
        self.flushed_where = self.committed_where = offset
        for mapped in self.files:
            mapped.set_positions(max(0, min(offset - mapped.start, mapped.size)))

    def take_for_unsynced(self) -> None:
        """Treat all found bytes and file names as not yet on disk."""
        self.flushed_where = self.min_offset
        self._unsynced_names = True
        for mapped in self.files:
            mapped.flushed = 0

    def truncate(self, offset: int) -> None:
        """Cut everything at and after an offset, durably.

        Later files go first, then the tail of the file that holds the offset is zeroed and synced:
        recovery never finds valid bytes past the end that it cut. What lies before the offset is
        as durable as it was: a cut says nothing of bytes that no sync has reached yet.
        """
        self.drop_ahead()
        while self.files and self.files[-1].start > offset:
            self.remove(self.files[-1])
        self.disk_sync_names()
        if self.files and self.files[-1].start <= offset < self.files[-1].end:
            last = self.files[-1]
            if last.clear_from(offset - last.start):
                last.file.sync()
        self.end_at_most(min(offset, self.next_start(offset)))

    def end_at_most(self, end: int) -> None:
        """Lower all positions to at most an offset."""
        self.flushed_where = min(self.flushed_where, end)
        self.committed_where = min(self.committed_where, end)
        for mapped in self.files:
            mapped.end_at_most(max(0, min(end - mapped.start, mapped.size)))

    def disk_sync_names(self) -> None:
        """Make the directory's names durable."""
        if self.disk.size(self.directory) >= 0:
            for directory in self._directories():
                self.disk.sync_dir(directory)
        self._unsynced_names = False

    def remove(self, mapped: MappedFile) -> None:
        """Unlink a segment; readers that hold its memory keep it until they let go."""
        self.disk.remove(mapped.file.path)
        self.files = [other for other in self.files if other is not mapped]
        mapped.file.close()
        self._unsynced_names = True

    def destroy(self) -> None:
        """Remove all segments and the directory."""
        self.drop_ahead()
        for mapped in list(self.files):
            self.remove(mapped)
        self.flushed_where = self.committed_where = 0
        if self.disk.size(self.directory) >= 0:
            self.disk.remove(self.directory)

    def drop_ahead(self) -> None:
        """Remove the segment that was allocated ahead and never used."""
        if self.ahead is not None:
            self.disk.remove(self.ahead.file.path)
            self.ahead.file.close()
            self.ahead = None

    def close(self) -> None:
        """Unmap everything."""
        self.drop_ahead()
        for mapped in self.files:
            mapped.file.close()
        self.files = []


def _growing(file: LazyFile, start: int, allocated: int) -> MappedFile:
    """A segment that is opened by its use, and gets blocks as it is filled."""
    mapped = MappedFile(file, start, allocated=allocated)
    file.is_clean = lambda: mapped.flushed >= mapped.readable
    return mapped
