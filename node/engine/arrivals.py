"""Notifies long polls and subscriptions when their queues get messages."""

from collections.abc import Iterable
from typing import Protocol

from duolog_server.store.queueends import QueueKey


class Watcher(Protocol):
    """An object to notify: an asyncio.Event, or one that wakes several waiters in turn."""

    def set(self) -> None:
        """The queue may have new messages."""


class ArrivalBoard:
    """The watchers of every queue."""

    def __init__(self) -> None:
        # In order of arrival, in which they are notified.
        self._watchers: dict[QueueKey, dict[Watcher, None]] = {}
        self._count = 0

    def watch(self, key: QueueKey, event: Watcher) -> None:
        """Notify a watcher whenever the queue gets messages."""
        watchers = self._watchers.setdefault(key, {})
        if event not in watchers:
            watchers[event] = None
            self._count += 1

    def unwatch(self, key: QueueKey, event: Watcher) -> None:
        """Stop notifying a watcher."""
        watchers = self._watchers.get(key)
        if watchers is not None and event in watchers:
            del watchers[event]
            self._count -= 1
            if not watchers:
                del self._watchers[key]

    def arrived(self, keys: Iterable[QueueKey]) -> None:
        """Notify the watchers of these queues."""
        for key in keys:
            for event in self._watchers.get(key, ()):
                event.set()

    def validate(self) -> str:
        """The first violated invariant, empty if all hold: the count is that of the watchers."""
        watched = sum(map(len, self._watchers.values()))
        if watched != self._count:
            return f"{watched} watchers, counted as {self._count}"
        if not all(self._watchers.values()):
            return "the board has a queue without a watcher"
        return ""

    def __len__(self) -> int:
        """The number of watchers of all queues."""
        return self._count
