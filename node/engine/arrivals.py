"""Who waits for messages of which queue: long polls and subscriptions, woken without polling."""

from collections.abc import Iterable
from typing import Protocol

from store.queueends import QueueKey


class Watcher(Protocol):
    """Something to set: an asyncio.Event, or who wakes others in turn."""

    def set(self) -> None:
        """There may be something new."""


class ArrivalBoard:
    """Whom to tell when a queue gets messages."""

    def __init__(self) -> None:
        # In the order in which they came, which is the order in which they are woken.
        self._watchers: dict[QueueKey, dict[Watcher, None]] = {}
        self._count = 0

    def watch(self, key: QueueKey, event: Watcher) -> None:
        """Set the event whenever the queue gets messages."""
        watchers = self._watchers.setdefault(key, {})
        if event not in watchers:
            watchers[event] = None
            self._count += 1

    def unwatch(self, key: QueueKey, event: Watcher) -> None:
        """Stop that."""
        watchers = self._watchers.get(key)
        if watchers is not None and event in watchers:
            del watchers[event]
            self._count -= 1
            if not watchers:
                del self._watchers[key]

    def arrived(self, keys: Iterable[QueueKey]) -> None:
        """Wake whoever watches these queues."""
        for key in keys:
            for event in self._watchers.get(key, ()):
                event.set()

    def validate(self) -> str:
        """What is wrong with this board, empty for nothing: its count is that of its watchers."""
        watched = sum(map(len, self._watchers.values()))
        if watched != self._count:
            return f"{watched} watchers, counted as {self._count}"
        if not all(self._watchers.values()):
            return "a queue is on the board that nobody watches"
        return ""

    def __len__(self) -> int:
        """Watched queues, each as often as it is watched."""
        return self._count
