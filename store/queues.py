"""All consume queues of a store, by topic and queue id, with their ext units where enabled."""

from collections.abc import Generator, Iterable, Iterator

from duolog_server.store import lightqueues
from duolog_server.store.consumequeue import ENTRY_BYTES, ConsumeQueue
from duolog_server.store.consumequeueext import ConsumeQueueExt
from duolog_server.store.directories import QUEUES
from duolog_server.store.disk import Disk
from duolog_server.store.errors import BadStoreDirectory, OtherFileSize
from duolog_server.store.mappedfile import FlushJob
from duolog_server.store.openfiles import OpenFiles
from duolog_server.store.options import StoreOptions
from duolog_server.store.queueends import QueueKey
from duolog_server.store.queuelayout import QueueLayout
from duolog_server.store.queuenote import Note, Noted, QueueNotes, combined

ROOT = QUEUES
EXT_ROOT = "consumequeue_ext"
ROOTS = (ROOT, lightqueues.ROOT)
LIGHT = QueueLayout(lightqueues.ROOT, lightqueues.FILE_BYTES, begins_again=True)
QUEUES_AT_ONCE = 200  # processed by one step: about 2 ms


def layout_of(topic: str, options: StoreOptions) -> QueueLayout:
    """How the files of a topic's queues lie; a light queue's name stands for a topic as well."""
    if lightqueues.is_light(topic):
        return LIGHT
    return QueueLayout(ROOT, options.queue_file_bytes)


def new_queue(open_files: OpenFiles, key: QueueKey, options: StoreOptions) -> ConsumeQueue:
    """A queue that is not loaded yet."""
    return ConsumeQueue(open_files, key, layout_of(key[0], options))


class ConsumeQueues:
    """The consume queue table, light queues among them."""

    def __init__(self, disk: Disk, options: StoreOptions) -> None:
        self.disk = disk
        self.options = options
        self._open_files = OpenFiles(disk)
        self.table: dict[QueueKey, ConsumeQueue] = {}
        self.touched: set[QueueKey] = set()  # may have entries that are not on disk
        self.fresh: set[QueueKey] = set()  # those of them that got any since the last flush
        self.changed: set[QueueKey] = set()  # since the last note of their ends
        self.hidden: set[QueueKey] = set()  # may have files of entries below their minimum alone
        self.not_deleted = ""  # why some of these could not be removed in the last round
        self.ends = QueueNotes(disk)
        self.noted: Noted | None = None  # what was there when the store was opened
        self.trusted: set[QueueKey] = set()  # whose files are unchanged since the note
        self.doubted: dict[QueueKey, str] = {}  # whose files are invalid, and why
        self.ext: dict[QueueKey, ConsumeQueueExt] = {}
        self._new_directories: set[str] = set()

    def load(self, writable: bool = True, trusting: bool = True) -> None:
        """Find all queues and how far they are written: in the note, or in their files.

        trusting: files that look untouched are; after a power cut they may not be, as a sync of
        data leaves the change time for later.

        Queues whose files cannot be right are in `doubted`. Sources of both: `store.queuenote`.
        Raises OtherFileSize where not the files are wrong, but the configured size.
        """
        self.noted = self.ends.load() if writable else None
        trusting = trusting and self.noted is not None and self.noted.digests_hold
        for root in ROOTS:
            for topic in self.disk.list(root):
                if layout_of(topic, self.options).root != root:
                    raise BadStoreDirectory(f"{root}/{topic}", "is not a valid queue name")
                for name in self.disk.list(f"{root}/{topic}"):
                    if not name.isdecimal():
                        raise BadStoreDirectory(f"{root}/{topic}/{name}", "is not a queue id")
                    self._load_queue(topic, int(name), writable, trusting)
        self._check_size()

    def _check_size(self) -> None:
        """Tell files of another configured size from files that were cut short."""
        if any(queue.files.files for queue in self if not queue.begins_again):
            return
        other: OtherFileSize | None = None
        for key in self.doubted:
            files = self.table[key].files
            listing = self.disk.look(files.directory)
            if self.table[key].begins_again:
                continue
            if files.file_size in listing.sizes:
                return
            row = self.noted.queues.get(key) if self.noted is not None else None
            for name, size in zip(listing.names, listing.sizes, strict=True):
                cut = row is not None and int(listing.names[-1]) + listing.sizes[-1] < row.end
                if size > 0 and size % ENTRY_BYTES == 0 and not cut:
                    path = f"{files.directory}/{name}"
                    other = other or OtherFileSize(path, size, files.file_size)
        if other is not None:
            raise other

    def _load_queue(self, topic: str, queue_id: int, writable: bool, trusting: bool) -> None:
        key = (topic, queue_id)
        queue = self._make(key)
        ext = self.ext.get(key)
        listing = self.disk.look(queue.files.directory)
        row = self.noted.queues.get(key) if self.noted is not None else None
        digests = [listing.digest]
        if ext is not None:
            digests.append(self.disk.look(ext.files.directory).digest)
        as_noted = trusting and row is not None and row.digest == combined(digests) != 0
        try:
            queue.files.load_listed(listing, writable)
            if (
                row is not None
                and as_noted
                and queue.trust(row.end, row.newest, row.minimum, row.held_from)
            ):
                self.trusted.add(key)
            else:
                queue.recover()
            if ext is not None:
                ext.files.load(writable)
                ext.recover()
        except BadStoreDirectory as error:
            self.doubted[key] = str(error)

    def touch(self, key: QueueKey) -> None:
        """A queue gets entries."""
        self.touched.add(key)
        self.fresh.add(key)
        self.changed.add(key)

    def reach(self, key: QueueKey, floor: int) -> None:
        """Extend a queue's end to an offset at least: all before it is used. Raises OSError."""
        queue = self.table.get(key)
        if floor and (queue is None or queue.max_offset < floor):
            self.get_or_make(*key).end_at_least(floor)
            self.touch(key)

    def note_all(self) -> None:
        """Treat every queue as changed since the last note."""
        self.changed.update(self.table)

    def fill(self, note: Note) -> Generator[None, None, None]:
        """Note the ends of all queues that changed: to be written when everything is synced.

        A few queues at each step; what they get meanwhile lies at and after the note's position.
        """
        for number, key in enumerate(list(self.changed), 1):
            self.changed.discard(key)
            queue = self.table.get(key)
            if queue is not None:
                self.ends.add(note, queue, self._directories(key, queue))
            if number % QUEUES_AT_ONCE == 0:
                yield
        self.ends.finish(note)

    def _directories(self, key: QueueKey, queue: ConsumeQueue) -> list[str]:
        ext = self.ext.get(key)
        return [part.files.directory for part in (queue, ext) if part is not None]

    def noted_now(self, note: Note) -> None:
        """Apply a written note; queues it could not cover are in the next one."""
        self.changed.update(self.ends.written(note))

    def delete_before(self, physical_offset: int) -> int:
        """Remove files that only name records below an offset; how many."""
        removed = 0
        for key, queue in list(self.table.items()):
            count = queue.delete_before(physical_offset)
            if count:
                self.changed.add(key)
            removed += count
        return removed

    def raise_minimum(self, key: QueueKey, queue_offset: int) -> None:
        """Hide entries of a queue below an offset from readers."""
        queue = self.table.get(key)
        if queue is None:
            return
        if queue.raise_minimum(queue_offset):
            self.changed.add(key)
        if queue.has_hidden_files:  # also at a start: a stop may have come before the note
            self.hidden.add(key)

    def show_hidden(self, key: QueueKey, physical_offset: int) -> None:
        """Begin a queue again with its first entry of a record at or after an offset."""
        queue = self.table.get(key)
        if queue is not None:
            queue.forget_minimum()
            queue.correct_min_offset(physical_offset)
            self.changed.add(key)

    def delete_hidden(self) -> int:
        """Remove files, never a queue's last, of entries below its minimum alone; how many.

        Only once the note tells of that minimum: after a kill, they would be missed without it. A
        queue whose file cannot be removed hinders no other one; the next round tries again.
        """
        removed, self.not_deleted = 0, ""
        for key in list(self.hidden):
            queue = self.table.get(key)
            try:
                count = queue.delete_hidden(self.ends.minimum_of(key)) if queue is not None else 0
            except OSError as error:
                self.not_deleted = f"{key[0]}/{key[1]}: {error.strerror or error}"
                self.changed.add(key)  # others of its files may be gone
                continue
            if count:
                self.changed.add(key)
                removed += count
            if queue is None or not queue.has_hidden_files:
                self.hidden.discard(key)
        return removed

    def _make(self, key: QueueKey) -> ConsumeQueue:
        queue = self.table[key] = new_queue(self._open_files, key, self.options)
        if self.options.enable_consume_queue_ext and not queue.begins_again:
            layout = QueueLayout(EXT_ROOT, self.options.mapped_file_size_consume_queue_ext)
            self.ext[key] = ConsumeQueueExt(self._open_files, key, layout)
        return queue

    def get(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """The queue, where it has ever had an entry."""
        return self.table.get((topic, queue_id))

    def get_or_make(self, topic: str, queue_id: int) -> ConsumeQueue:
        """The queue, a new empty one if there is none."""
        found = self.table.get((topic, queue_id))
        if found is None:
            found = self._make((topic, queue_id))
            self._new_directories.add(found.files.directory.rpartition("/")[0])
        return found

    def begins_again(self, key: QueueKey) -> bool:
        """Whether a queue of this kind, which may be gone, may begin again: see `QueueLayout`."""
        return layout_of(key[0], self.options).begins_again

    @property
    def is_crowded(self) -> bool:
        """Whether files wait for a sync that could be closed after it."""
        return self._open_files.is_crowded

    def make_room(self) -> bool:
        """Sync queues if no more files may be opened otherwise; whether that was the case."""
        if not self._open_files.is_full:
            return False
        self.sync_touched()
        return True

    def to_flush(self, all_of_them: bool) -> list[ConsumeQueue]:
        """Queues that may have unsynced entries: all of them, or only those with new entries since
        the last call.
        """
        keys = self.touched if all_of_them else self.fresh
        found = [queue for key in sorted(keys) if (queue := self.table.get(key)) is not None]
        self.fresh.clear()
        return found

    def flushed(self, flushed: Iterable[ConsumeQueue]) -> None:
        """After a successful flush: note how far each of them is on disk."""
        for queue in flushed:
            last = queue.files.last
            if last is not None:
                queue.files.flushed_where = last.start + last.flushed
            if last is None or last.flushed >= last.readable:
                self.touched.discard((queue.topic, queue.queue_id))
        self._open_files.close_some()

    def __iter__(self) -> Iterator[ConsumeQueue]:
        """All queues."""
        return iter(list(self.table.values()))

    @property
    def max_physical_offset(self) -> int:
        """End of the newest record that any queue has an entry for, -1 for none."""
        return max((queue.max_physical_offset for queue in self), default=-1)

    def directories_to_sync(self) -> list[str]:
        """Directories above the queues' own that got new names since the last call."""
        above = {name for name in self._new_directories if self.disk.size(name) >= 0}
        self._new_directories -= above  # the others wait for their first file
        if not above:
            return []
        return ["", *sorted({name.partition("/")[0] for name in above}), *sorted(above)]

    def sync(self) -> None:
        """Sync all entries found in files: after a kill, some are only in the page cache."""
        rows = [queue.files for queue in self] + [ext.files for ext in self.ext.values()]
        for files in rows:
            for mapped in files.files:
                mapped.file.sync()
            files.disk_sync_names()
        if rows:
            for directory in ("", *ROOTS):
                if not directory or self.disk.size(directory) >= 0:
                    self.disk.sync_dir(directory)

    def sync_touched(self) -> None:
        """Sync queues that may have unsynced entries, so that files can be closed."""
        queues = self.to_flush(all_of_them=True)
        rows = [queue.files for queue in queues] + [ext.files for ext in self.ext.values()]
        jobs = [job for files in rows if (job := files.flush_job(0)) is not None]
        work = FlushJob.of(self.disk, jobs)
        work.run()
        work.done()
        self.flushed(queues)

    def take_for_unsynced(self) -> None:
        """Have the next flushes sync queues that do not match the note."""
        for key, queue in self.table.items():
            if key in self.trusted or not queue.files.files:
                continue
            queue.files.take_for_unsynced()
            ext = self.ext.get(key)
            if ext is not None:
                ext.files.take_for_unsynced()
            self.touch(key)

    def rewind(self, physical_offset: int) -> None:
        """Drop the entries of records from an offset on, which are dispatched again at once."""
        for key, queue in self.table.items():
            if queue.max_physical_offset > physical_offset:
                self.trusted.discard(key)
            queue.rewind(physical_offset)

    def settle(self) -> None:
        """After a rewind and the dispatch: remove files of entries that did not come again."""
        for queue in self:
            queue.settle()

    def truncate(self, physical_offset: int) -> None:
        """truncateDirtyLogicFiles over all queues."""
        self.ends.entries_go()
        for key, queue in list(self.table.items()):
            if queue.max_physical_offset > physical_offset:
                self.changed.add(key)
            queue.truncate(physical_offset)

    def remove(self, topic: str, queue_id: int) -> None:
        """Remove one queue on purpose: its files are not reported as missing."""
        self.ends.removed((topic, queue_id))
        self._destroy(topic, queue_id)

    def _destroy(self, topic: str, queue_id: int) -> None:
        queue = self.table.pop((topic, queue_id), None)
        self._forget((topic, queue_id))
        if queue is not None:
            queue.destroy()
        ext = self.ext.pop((topic, queue_id), None)
        if ext is not None:
            ext.destroy()

    def _forget(self, key: QueueKey) -> None:
        for kept in (self.touched, self.fresh, self.trusted):
            kept.discard(key)

    def discard(self, key: QueueKey) -> None:
        """Drop a queue and everything in its directories; it can be rebuilt from the log."""
        for part in (self.table.pop(key, None), self.ext.pop(key, None)):
            if part is not None:
                part.files.close()
        self._forget(key)
        topic, queue_id = key
        for root in (layout_of(topic, self.options).root, EXT_ROOT):
            wipe_tree(self.disk, f"{root}/{topic}/{queue_id}")

    def remove_topic(self, topic: str) -> None:
        """Destroy all queues of a topic and their directories."""
        for found, queue_id in list(self.table):
            if found == topic:
                self.remove(topic, queue_id)
        self.remove_directory(topic)

    def remove_directory(self, topic: str) -> None:
        """Remove the directories of a topic whose queues are gone."""
        directory = f"{layout_of(topic, self.options).root}/{topic}"
        self._new_directories.discard(directory)
        if self.disk.size(directory) >= 0:
            self.disk.remove(directory)
        wipe_tree(self.disk, f"{EXT_ROOT}/{topic}")  # units may be off by now

    def destroy_logics(self) -> None:
        """Drop every queue (RocketMQ: destroyLogics); they can be rebuilt, or the log is empty."""
        for topic, queue_id in list(self.table):
            self._destroy(topic, queue_id)

    def wipe(self) -> None:
        """Remove every file under the queues' directories."""
        for root in (*ROOTS, EXT_ROOT):
            wipe_tree(self.disk, root)

    def close(self) -> None:
        """Unmap everything."""
        for queue in self:
            queue.let_go()
            queue.files.close()
        for ext in self.ext.values():
            ext.files.close()
        self.ends.close()


def wipe_tree(disk: Disk, path: str) -> None:
    """Remove everything below a directory, and it."""
    for name in disk.list(path):
        wipe_tree(disk, f"{path}/{name}")
    if disk.size(path) >= 0:
        disk.remove(path)
