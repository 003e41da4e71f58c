"""The registry in this process's memory: for tests, and for several nodes in one process."""

import threading
import time
from collections.abc import Iterator

from duolog_server.ha.registry import Changes, Grant, RegistryTable, Snapshot, Transaction

POLL_SECONDS = 0.05


class MemoryRegistry:
    """`ha.registry.Registry` on a table, with the monotonic clock. Safe to use from threads."""

    def __init__(self) -> None:
        self._table = RegistryTable()
        self._changed = threading.Condition()

    def _expire(self) -> float:
        now = time.monotonic() * 1000
        self._table.expire(now)
        return now

    def lease(self, ttl_seconds: int) -> Grant:
        """A new lease."""
        with self._changed:
            return Grant(self._table.grant(ttl_seconds * 1000, self._expire()), ttl_seconds)

    def renew(self, lease: int) -> int:
        """Renew."""
        with self._changed:
            return self._table.renew(lease, self._expire()) // 1000

    def commit(self, transaction: Transaction) -> int | None:
        """Make the changes, or none."""
        with self._changed:
            self._expire()
            revision = self._table.commit(transaction)
            self._changed.notify_all()
            return revision

    def get(self, prefix: str) -> Snapshot:
        """The keys with a prefix."""
        with self._changed:
            self._expire()
            return self._table.get(prefix)

    def changes(
        self, prefix: str, after_revision: int, timeout_seconds: float
    ) -> Iterator[Changes]:
        """Changes after a revision, until the timeout."""
        deadline = time.monotonic() + timeout_seconds
        while (left := deadline - time.monotonic()) > 0:
            with self._changed:
                self._expire()
                found = self._table.changes(prefix, after_revision)
                if found.revision == after_revision:
                    self._changed.wait(min(left, POLL_SECONDS))
            after_revision = found.revision
            if found.rows:
                yield found

    def compact(self) -> None:
        """Forget what was changed up to now, as etcd does from time to time."""
        with self._changed:
            self._table.compact()

    def drop(self, lease: int) -> None:
        """End a lease."""
        with self._changed:
            self._table.drop(lease)
            self._changed.notify_all()

    def silent(self) -> dict[str, str]:
        """It has no members."""
        return {}

    def close(self) -> None:
        """Does nothing."""
