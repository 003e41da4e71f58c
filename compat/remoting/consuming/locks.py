"""Locks of queues, for consumers that read in order. Pure: time arrives as `mono_ms`.

A lock is one client's until it is released, or not renewed for a minute. Consumers share queues out
by the list of members; the lock is what keeps the next one waiting until the last one is done with
a queue.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from duolog_server.store.clocks import MonoMs
from duolog_server.store.queueends import QueueKey

LOCK_MS = 60_000  # RocketMQ's: clients renew every 20 s
LOCKS_MAX = 100_000  # of all groups; each takes 300 bytes


@dataclass(slots=True)
class _Lock:
    client_id: str
    until_ms: MonoMs


class QueueLocks:
    """The locks of all groups."""

    def __init__(self) -> None:
        self._locks: dict[tuple[str, QueueKey], _Lock] = {}

    def lock(
        self, group: str, client_id: str, queues: Iterable[QueueKey], mono_ms: MonoMs
    ) -> list[QueueKey]:
        """Lock queues for a client, or renew its locks; those that it has now."""
        until, held = MonoMs(mono_ms + LOCK_MS), []
        for key in queues:
            known = self._locks.get((group, key))
            if known is None and len(self._locks) >= LOCKS_MAX:
                continue
            if known is None or known.client_id == client_id or known.until_ms < mono_ms:
                self._locks[group, key] = _Lock(client_id, until)
                held.append(key)
        return held

    def unlock(self, group: str, client_id: str, queues: Iterable[QueueKey]) -> None:
        """A client is done with queues; those of others stay locked."""
        for key in queues:
            known = self._locks.get((group, key))
            if known is not None and known.client_id == client_id:
                del self._locks[group, key]

    def expire(self, mono_ms: MonoMs) -> None:
        """Forget what was not renewed."""
        for place in [place for place, one in self._locks.items() if one.until_ms < mono_ms]:
            del self._locks[place]

    def __len__(self) -> int:
        """Locks of all groups."""
        return len(self._locks)
