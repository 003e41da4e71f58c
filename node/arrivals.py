"""Who waits for messages of which queue: long polls and subscriptions, woken without polling."""

import asyncio
from collections.abc import Iterable

QueueKey = tuple[str, int]


class ArrivalBoard:
    """Events to set when a queue gets messages."""

    def __init__(self) -> None:
        self._watchers: dict[QueueKey, set[asyncio.Event]] = {}

    def watch(self, key: QueueKey, event: asyncio.Event) -> None:
        """Set the event whenever the queue gets messages."""
        self._watchers.setdefault(key, set()).add(event)

    def unwatch(self, key: QueueKey, event: asyncio.Event) -> None:
        """Stop that."""
        watchers = self._watchers.get(key)
        if watchers is not None:
            watchers.discard(event)
            if not watchers:
                del self._watchers[key]

    def arrived(self, keys: Iterable[QueueKey]) -> None:
        """Wake whoever watches these queues."""
        for key in keys:
            for event in self._watchers.get(key, ()):
                event.set()

    def __len__(self) -> int:
        """Watched queues, each as often as it is watched."""
        return sum(len(events) for events in self._watchers.values())
