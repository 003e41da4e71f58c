"""When the committed offsets of groups last changed, as this process has seen it."""

from duolog_server.store.clocks import MonoMs
from duolog_server.store.metadata import Metadata


class Progress:
    """Times of changes, by topic, group and queue. A process knows of none before it began."""

    def __init__(self, mono_ms: MonoMs) -> None:
        self._began = mono_ms
        self._moved: dict[tuple[str, str], dict[int, MonoMs]] = {}

    def note(self, tables: Metadata, mono_ms: MonoMs) -> None:
        """Take what has changed out of the tables."""
        if not tables.moved:
            return
        for topic, group, queue in tables.moved:
            self._moved.setdefault((topic, group), {})[queue] = mono_ms
        tables.moved.clear()
        if len(self._moved) > 2 * len(tables.offsets):  # the rest are of deleted topics and groups
            self._moved = {key: row for key, row in self._moved.items() if key in tables.offsets}

    def last_ms(self, group: str, topic: str, queue_id: int) -> MonoMs:
        """When a group last committed something new in a queue."""
        return self._moved.get((topic, group), {}).get(queue_id, self._began)
