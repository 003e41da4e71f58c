"""All consume queues of a store, by topic and queue id, with their ext units where enabled."""

from collections.abc import Iterator

from store import lightqueues
from store.consumequeue import ConsumeQueue
from store.consumequeueext import ConsumeQueueExt
from store.disk import Disk
from store.errors import BadStoreDirectory
from store.openfiles import OpenFiles
from store.options import StoreOptions
from store.queuenote import Note, QueueNotes

ROOT = "consumequeue"
EXT_ROOT = "consumequeue_ext"
ROOTS = (ROOT, lightqueues.ROOT)
QueueKey = tuple[str, int]


def new_queue(
    disk: Disk,
    topic: str,
    queue_id: int,
    options: StoreOptions,
    open_files: OpenFiles | None = None,
) -> ConsumeQueue:
    """A queue that is not loaded yet: a topic's, or a light one."""
    light = lightqueues.is_light(topic)
    size, root = options.queue_file_bytes, ROOT
    if light:
        size, root = lightqueues.FILE_BYTES, lightqueues.ROOT
    return ConsumeQueue(disk, topic, queue_id, size, root, light, open_files)


class ConsumeQueues:
    """The consume queue table, light queues among them."""

    def __init__(self, disk: Disk, options: StoreOptions) -> None:
        self.disk = disk
        self.options = options
        self._open_files = OpenFiles(disk)
        self.table: dict[QueueKey, ConsumeQueue] = {}
        self.touched: set[QueueKey] = set()  # may have entries that are not on disk
        self.changed: set[QueueKey] = set()  # since the last note of their ends
        self.ends = QueueNotes(disk)
        self.doubted: dict[QueueKey, str] = {}  # whose files cannot be right, and why
        self.ext: dict[QueueKey, ConsumeQueueExt] = {}
        self._new_directories: set[str] = set()

    def load(self, writable: bool = True) -> None:
        """Open all queues and find how far they are written.

        Queues whose files cannot be right are left out, and are in `doubted`.
        """
        for root in ROOTS:
            for topic in self.disk.list(root):
                if (root == lightqueues.ROOT) != lightqueues.is_light(topic):
                    raise BadStoreDirectory(f"{root}/{topic}", "is no name for a queue there")
                for name in self.disk.list(f"{root}/{topic}"):
                    if not name.isdecimal():
                        raise BadStoreDirectory(f"{root}/{topic}/{name}", "is no queue id")
                    self._load_queue(topic, int(name), writable)

    def _load_queue(self, topic: str, queue_id: int, writable: bool) -> None:
        queue = self._make(topic, queue_id)
        ext = self.ext.get((topic, queue_id))
        try:
            queue.files.load(writable)
            queue.recover()
            if ext is not None:
                ext.files.load(writable)
                ext.recover()
        except BadStoreDirectory as error:
            self.doubted[topic, queue_id] = str(error)

    def touch(self, key: QueueKey) -> None:
        """A queue gets entries."""
        self.touched.add(key)
        self.changed.add(key)

    def note_all(self) -> None:
        """Take every queue for changed since the last note."""
        self.changed.update(self.table)

    def note(self, position: int, index_end: int) -> Note:
        """A note of all queues' ends: to be written when everything is synced."""
        changed = [queue for key in self.changed if (queue := self.table.get(key)) is not None]
        self.changed.clear()
        return self.ends.note(changed, position, index_end)

    def delete_before(self, physical_offset: int) -> int:
        """Remove files that only name records below an offset; how many."""
        removed = 0
        for key, queue in list(self.table.items()):
            count = queue.delete_before(physical_offset)
            if count:
                self.changed.add(key)
            removed += count
        return removed

    def _make(self, topic: str, queue_id: int) -> ConsumeQueue:
        queue = new_queue(self.disk, topic, queue_id, self.options, self._open_files)
        self.table[topic, queue_id] = queue
        if self.options.enable_consume_queue_ext and not lightqueues.is_light(topic):
            self.ext[topic, queue_id] = ConsumeQueueExt(
                self.disk,
                topic,
                queue_id,
                self.options.mapped_file_size_consume_queue_ext,
                EXT_ROOT,
                self._open_files,
            )
        return queue

    def get(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """The queue, where it has ever had an entry."""
        return self.table.get((topic, queue_id))

    def get_or_make(self, topic: str, queue_id: int) -> ConsumeQueue:
        """The queue, a new empty one where there is none."""
        found = self.table.get((topic, queue_id))
        if found is None:
            found = self._make(topic, queue_id)
            self._new_directories.add(found.files.directory.rpartition("/")[0])
        return found

    def to_flush(self) -> list[ConsumeQueue]:
        """Queues that may have entries that are not on disk: few of many, for the most part."""
        return [queue for key in sorted(self.touched) if (queue := self.table.get(key)) is not None]

    def flushed(self) -> None:
        """After a successful flush: note how far each of them is on disk."""
        for queue in self.to_flush():
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
        """Make every entry durable that was found in files: a kill leaves some in page caches.

        From here on a file counts as synced as far as it is filled.
        """
        rows = [queue.files for queue in self] + [ext.files for ext in self.ext.values()]
        for files in rows:
            for mapped in files.files:
                mapped.file.sync()
            files.disk_sync_names()
        if rows:
            for directory in ("", *ROOTS):
                if not directory or self.disk.size(directory) >= 0:
                    self.disk.sync_dir(directory)

    def let_go(self) -> None:
        """Close the files of entries that were dropped; called while nobody syncs any."""
        for queue in self.to_flush():
            queue.let_go()

    def truncate(self, physical_offset: int) -> None:
        """truncateDirtyLogicFiles over all queues."""
        for key, queue in list(self.table.items()):
            if queue.max_physical_offset > physical_offset:
                self.changed.add(key)
            queue.truncate(physical_offset)

    def remove(self, topic: str, queue_id: int) -> None:
        """Destroy one queue, on purpose: nobody will miss its files."""
        self.ends.removed((topic, queue_id))
        self._destroy(topic, queue_id)

    def _destroy(self, topic: str, queue_id: int) -> None:
        queue = self.table.pop((topic, queue_id), None)
        self.touched.discard((topic, queue_id))
        if queue is not None:
            queue.destroy()
        ext = self.ext.pop((topic, queue_id), None)
        if ext is not None:
            ext.destroy()

    def discard(self, key: QueueKey) -> None:
        """Drop a queue and whatever lies in its directories: the log has it all."""
        topic, queue_id = key
        for part in (self.table.pop(key, None), self.ext.pop(key, None)):
            if part is not None:
                part.files.close()
        self.touched.discard(key)
        root = lightqueues.ROOT if lightqueues.is_light(topic) else ROOT
        for above in (root, EXT_ROOT):
            wipe_tree(self.disk, f"{above}/{topic}/{queue_id}")

    def remove_topic(self, topic: str) -> None:
        """Destroy all queues of a topic and their directory."""
        for found, queue_id in list(self.table):
            if found == topic:
                self.remove(topic, queue_id)
        self._new_directories.discard(f"{ROOT}/{topic}")
        if self.disk.size(f"{ROOT}/{topic}") >= 0:
            self.disk.remove(f"{ROOT}/{topic}")

    def remove_light(self, name: str) -> None:
        """Destroy a light queue and its directory."""
        self.remove(name, 0)
        self._new_directories.discard(f"{lightqueues.ROOT}/{name}")
        if self.disk.size(f"{lightqueues.ROOT}/{name}") >= 0:
            self.disk.remove(f"{lightqueues.ROOT}/{name}")

    def destroy_logics(self) -> None:
        """destroyLogics: drop every queue; the log has it all, or holds nothing."""
        for topic, queue_id in list(self.table):
            self._destroy(topic, queue_id)

    def wipe(self) -> None:
        """Remove every file under the queues' directories, whatever it is."""
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
