"""How the files of a consume queue lie: in which directory, how large, and from where on."""

from dataclasses import dataclass

from duolog_server.store.queueends import QueueKey


@dataclass(frozen=True, slots=True)
class QueueLayout:
    """The files of all queues of one kind: in ROOT/TOPIC/QUEUE_ID, of file_bytes each.

    begins_again: a gap that no lost records explain means that what came before is gone. Such a
    queue has few entries: its first file starts with the first of them.
    """

    root: str
    file_bytes: int
    begins_again: bool = False

    def __post_init__(self) -> None:
        """A kind of queues has a directory, and its files hold something."""
        assert self.root, "the store's own directory holds no queues"
        assert self.file_bytes > 0, "no entry lies in an empty file"

    def directory(self, key: QueueKey) -> str:
        """The directory of one queue's files."""
        topic, queue_id = key
        return f"{self.root}/{topic}/{queue_id}"
