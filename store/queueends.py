"""The end of every queue: the queue offset of its next message."""

from collections.abc import Iterable

from duolog_server.store.lightqueues import is_light, parent_of

QueueKey = tuple[str, int]  # topic and queue id


class QueueEnds(dict[QueueKey, int]):
    """A table of queues and their ends, with its light queues indexed by topic.

    There may be very many queues, so finding or counting some must not scan all of them.
    """

    def __init__(self, rows: Iterable[tuple[QueueKey, int]] = ()) -> None:
        super().__init__()
        self._light: dict[str, dict[str, None]] = {}
        self.light_count = 0
        for key, end in rows:
            self[key] = end

    def __setitem__(self, key: QueueKey, end: int) -> None:
        """Set the end of a queue, which may be new."""
        if key not in self and is_light(key[0]):
            self._light.setdefault(parent_of(key[0]), {})[key[0]] = None
            self.light_count += 1
        super().__setitem__(key, end)

    def forget(self, key: QueueKey) -> None:
        """Remove a queue."""
        if self.pop(key, None) is None or not is_light(key[0]):
            return
        parent = parent_of(key[0])
        names = self._light[parent]
        del names[key[0]]
        self.light_count -= 1
        if not names:
            del self._light[parent]

    def light_of(self, topic: str) -> list[str]:
        """The light queues of a topic."""
        return list(self._light.get(topic, ()))

    def light_names(self) -> list[str]:
        """All light queues."""
        return [name for names in self._light.values() for name in names]
