"""All consume queues of a store, by topic and queue id, with their ext units where enabled."""

from collections.abc import Iterator

from store.consumequeue import ConsumeQueue
from store.consumequeueext import ConsumeQueueExt
from store.disk import Disk
from store.errors import BadStoreDirectory
from store.options import StoreOptions

ROOT = "consumequeue"
EXT_ROOT = "consumequeue_ext"
QueueKey = tuple[str, int]


class ConsumeQueues:
    """The consume queue table."""

    def __init__(self, disk: Disk, options: StoreOptions) -> None:
        self.disk = disk
        self.options = options
        self.table: dict[QueueKey, ConsumeQueue] = {}
        self.ext: dict[QueueKey, ConsumeQueueExt] = {}
        self._new_directories = False

    def load(self, writable: bool = True) -> None:
        """Open all queues and find how far they are written."""
        for topic in self.disk.list(ROOT):
            for name in self.disk.list(f"{ROOT}/{topic}"):
                if not name.isdecimal():
                    raise BadStoreDirectory(f"{ROOT}/{topic}/{name}", "is no queue id")
                queue = self._make(topic, int(name))
                queue.files.load(writable)
                queue.recover()
                ext = self.ext.get((topic, int(name)))
                if ext is not None:
                    ext.files.load(writable)
                    ext.recover()

    def _make(self, topic: str, queue_id: int) -> ConsumeQueue:
        queue = ConsumeQueue(self.disk, topic, queue_id, self.options.queue_file_bytes)
        self.table[topic, queue_id] = queue
        if self.options.enable_consume_queue_ext:
            self.ext[topic, queue_id] = ConsumeQueueExt(
                self.disk, topic, queue_id, self.options.mapped_file_size_consume_queue_ext
            )
        return queue

    def get(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """The queue, where it has ever had an entry."""
        return self.table.get((topic, queue_id))

    def get_or_make(self, topic: str, queue_id: int) -> ConsumeQueue:
        """The queue, a new empty one where there is none."""
        found = self.table.get((topic, queue_id))
        if found is None:
            self._new_directories = True
            found = self._make(topic, queue_id)
        return found

    def __iter__(self) -> Iterator[ConsumeQueue]:
        """All queues."""
        return iter(list(self.table.values()))

    @property
    def max_physical_offset(self) -> int:
        """End of the newest record that any queue has an entry for, -1 for none."""
        return max((queue.max_physical_offset for queue in self), default=-1)

    def directories_to_sync(self) -> list[str]:
        """Directories above the queues' own that got new names since the last call."""
        if not self._new_directories:
            return []
        self._new_directories = False
        return ["", ROOT, *sorted({f"{ROOT}/{topic}" for topic, _ in self.table})]

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
            for directory in ("", ROOT):
                self.disk.sync_dir(directory)

    def truncate(self, physical_offset: int) -> None:
        """truncateDirtyLogicFiles over all queues."""
        for queue in self:
            queue.truncate(physical_offset)

    def remove(self, topic: str, queue_id: int) -> None:
        """Destroy one queue."""
        queue = self.table.pop((topic, queue_id), None)
        if queue is not None:
            queue.destroy()
        ext = self.ext.pop((topic, queue_id), None)
        if ext is not None:
            ext.destroy()

    def remove_topic(self, topic: str) -> None:
        """Destroy all queues of a topic and their directory."""
        for found, queue_id in list(self.table):
            if found == topic:
                self.remove(topic, queue_id)
        if self.disk.size(f"{ROOT}/{topic}") >= 0:
            self.disk.remove(f"{ROOT}/{topic}")

    def destroy_logics(self) -> None:
        """destroyLogics: drop every queue, where the commit log holds nothing."""
        for topic, queue_id in list(self.table):
            self.remove(topic, queue_id)

    def wipe(self) -> None:
        """Remove every file under the queues' directories, whatever it is."""
        for root in (ROOT, EXT_ROOT):
            wipe_tree(self.disk, root)

    def close(self) -> None:
        """Unmap everything."""
        for queue in self:
            queue.files.close()
        for ext in self.ext.values():
            ext.files.close()


def wipe_tree(disk: Disk, path: str) -> None:
    """Remove everything below a directory, and it."""
    for name in disk.list(path):
        wipe_tree(disk, f"{path}/{name}")
    if disk.size(path) >= 0:
        disk.remove(path)
