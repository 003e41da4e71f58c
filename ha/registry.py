"""The registry: the small, linearizable map that holds what a cluster agrees on.

Six verbs: lease, renew, commit (compare and set), get, changes, drop. etcd in clusters, memory in
tests and within one process. `RegistryTable` is the map itself without a clock or a network: the
memory registry and the simulator's etcd are made of it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

GONE_MAX = 10_000  # deleted keys that a table remembers for `changes`


class RegistryError(Exception):
    """Base class of a registry's errors."""


class RegistryUnavailable(RegistryError):
    """No answer in time: a commit may have been applied, or may yet be."""


class LeaseGone(RegistryError):
    """The lease has expired or was dropped, and all keys bound to it with it."""


class Compacted(RegistryError):
    """The registry does not know what changed since a revision: its keys must be read anew."""


@dataclass(frozen=True, slots=True)
class Row:
    """A key's value. Revisions are of the whole map; lease 0: bound to none."""

    value: bytes
    create_revision: int
    mod_revision: int
    lease: int = 0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All keys with a prefix, as of one revision."""

    revision: int
    rows: Mapping[str, Row]


@dataclass(frozen=True, slots=True)
class Changes:
    """What changed up to a revision: rows by key, None for a key that is gone."""

    revision: int
    rows: Mapping[str, Row | None]


@dataclass(frozen=True, slots=True)
class Grant:
    """A new lease. ttl_seconds: what the registry gave it, which may be more than was asked for."""

    lease: int
    ttl_seconds: int


@dataclass(frozen=True, slots=True)
class Check:
    """A key was last changed at this revision; 0: it does not exist."""

    key: str
    mod_revision: int


@dataclass(frozen=True, slots=True)
class Put:
    """Set a key, bound to a lease or to none (0)."""

    key: str
    value: bytes
    lease: int = 0


@dataclass(frozen=True, slots=True)
class Delete:
    """Remove a key."""

    key: str


@dataclass(frozen=True, slots=True)
class Transaction:
    """Changes that are made together if all checks hold, or not at all."""

    checks: tuple[Check, ...]
    changes: tuple[Put | Delete, ...]


class Registry(Protocol):
    """The registry's port. Every call has a deadline of its own.

    All raise RegistryUnavailable where no member answers in time.
    """

    def lease(self, ttl_seconds: int) -> Grant:
        """A new lease: keys bound to it vanish when it is not renewed for so long as it says."""

    def renew(self, lease: int) -> int:
        """Renew; the ttl in seconds. Raises LeaseGone."""

    def commit(self, transaction: Transaction) -> int | None:
        """Make the changes; the new revision, None if a check failed. Raises LeaseGone."""

    def get(self, prefix: str) -> Snapshot:
        """All keys with a prefix; linearizable: never older than any commit answered before."""

    def changes(
        self, prefix: str, after_revision: int, timeout_seconds: float
    ) -> Iterator[Changes]:
        """All changes of keys with a prefix after a revision, as they come; ends at the timeout.

        Raises Compacted, also where the registry is older than the revision.
        """

    def drop(self, lease: int) -> None:
        """End a lease now; a lease that does not exist is not an error."""

    def silent(self) -> dict[str, str]:
        """Addresses of members that do not answer, and why; empty where there is only one."""

    def close(self) -> None:
        """Release the resources of the calls; calls in flight fail with RegistryUnavailable."""


@dataclass(slots=True)
class RegistryTable:
    """The map: revisions, leases with deadlines on the owner's clock (ms)."""

    revision: int = 1
    rows: dict[str, Row] = field(default_factory=dict)
    leases: dict[int, tuple[int, float]] = field(default_factory=dict)  # ttl, deadline
    compacted: int = 0  # what changed up to this revision is not known
    _last_lease: int = 0
    _gone: dict[str, int] = field(default_factory=dict)  # deleted keys, and when

    def grant(self, ttl_ms: int, now_ms: float) -> int:
        """A new lease."""
        self._last_lease += 1
        self.leases[self._last_lease] = (ttl_ms, now_ms + ttl_ms)
        return self._last_lease

    def renew(self, lease: int, now_ms: float) -> int:
        """Renew; its ttl. Raises LeaseGone."""
        self.expire(now_ms)
        if lease not in self.leases:
            raise LeaseGone(f"lease {lease} is gone")
        ttl = self.leases[lease][0]
        self.leases[lease] = (ttl, now_ms + ttl)
        return ttl

    def drop(self, lease: int) -> None:
        """End a lease and delete the keys bound to it."""
        self.leases.pop(lease, None)
        gone = [key for key, row in self.rows.items() if row.lease == lease]
        if gone:
            self.revision += 1
        for key in gone:
            self._delete(key)

    def expire(self, now_ms: float) -> None:
        """Drop the leases that have expired."""
        for lease in [k for k, (_, deadline) in self.leases.items() if deadline <= now_ms]:
            self.drop(lease)

    def commit(self, transaction: Transaction) -> int | None:
        """Apply, or None. Raises LeaseGone where a put names a lease that is gone."""
        for check in transaction.checks:
            row = self.rows.get(check.key)
            if (row.mod_revision if row is not None else 0) != check.mod_revision:
                return None
        for change in transaction.changes:
            if isinstance(change, Put) and change.lease and change.lease not in self.leases:
                raise LeaseGone(f"lease {change.lease} is gone")
        self.revision += 1
        for change in transaction.changes:
            if isinstance(change, Delete):
                self._delete(change.key)
                continue
            self._gone.pop(change.key, None)
            before = self.rows.get(change.key)
            created = before.create_revision if before is not None else self.revision
            self.rows[change.key] = Row(change.value, created, self.revision, change.lease)
        return self.revision

    def get(self, prefix: str) -> Snapshot:
        """The keys with a prefix."""
        rows = {key: row for key, row in self.rows.items() if key.startswith(prefix)}
        return Snapshot(self.revision, rows)

    def changes(self, prefix: str, after_revision: int) -> Changes:
        """What changed since a revision. Raises Compacted."""
        if not self.compacted <= after_revision <= self.revision:
            raise Compacted(f"revision {after_revision} is not in {self.compacted}-{self.revision}")
        found: dict[str, Row | None] = {}
        if after_revision < self.revision:
            gone = (key for key, revision in self._gone.items() if revision > after_revision)
            found = {key: None for key in gone if key.startswith(prefix)}
            rows = self.get(prefix).rows
            found |= {key: row for key, row in rows.items() if row.mod_revision > after_revision}
        return Changes(self.revision, found)

    def compact(self) -> None:
        """Forget what was changed up to now."""
        self.compacted = self.revision
        self._gone.clear()

    def _delete(self, key: str) -> None:
        """Delete a key in the current revision."""
        if self.rows.pop(key, None) is None:
            return
        if len(self._gone) >= GONE_MAX:
            self.compacted = self.revision - 1
            self._gone = {k: at for k, at in self._gone.items() if at == self.revision}
        self._gone[key] = self.revision
