"""What a node knows of all replica groups of its cluster: read once, then kept by changes.

With many groups, reading the keys of all of them at each change would cost the square of the
cluster. Elections do not go by this: a node reads its own group's keys for itself.
"""

import threading
import time
from collections.abc import Callable
from contextlib import suppress

import structlog
from duolog._backoff import BackOff
from duolog._runtime import MACHINE

from duolog_server.ha.groupstate import BadState, Keys, View, cluster_prefix, group_of, view_of
from duolog_server.ha.registry import (
    Changes,
    Compacted,
    Registry,
    RegistryError,
    Row,
    Snapshot,
)

log = structlog.get_logger("duolog.ha")

STREAM_SECONDS = 30.0  # longest life of one watch
# About how often everything is read anew: a registry that was restored may have passed the known
# revision, and some versions of etcd lose events around a compaction.
READ_SECONDS = 120.0
# Pauses, with jitter: all nodes of a cluster lose their watches together, and reading everything
# anew is the most expensive request that they make.
FIRST_SECONDS, LONGEST_SECONDS = 0.1, 3.0


class RegistryWatch:
    """Keeps the views of all groups; runs in a thread of its own."""

    def __init__(
        self, registry: Registry, cluster: str, learn: Callable[[dict[str, View]], None]
    ) -> None:
        """learn: gets the views of all groups by name, in order, whenever one has changed."""
        self._registry = registry
        self._cluster = cluster
        self._learn = learn
        self._revision: int | None = None  # up to which changes are known; None: read anew
        self._read_at = 0.0  # when that is due, on the monotonic clock
        self._rows: dict[str, dict[str, Row]] = {}  # by group and key
        self._views: dict[str, View] = {}

    def run(self, ended: threading.Event) -> None:
        """Watch until the event is set and the registry is closed."""
        pauses = BackOff(first_seconds=FIRST_SECONDS, longest_seconds=LONGEST_SECONDS)
        prefix = cluster_prefix(self._cluster)
        while not ended.is_set():
            try:
                revision = self._read(prefix) if self._revision is None else self._revision
                for changes in self._registry.changes(prefix, revision, STREAM_SECONDS):
                    if ended.is_set():
                        return
                    self._take(changes)
                    pauses.reset()
                pauses.reset()
                if time.monotonic() >= self._read_at:
                    self._revision = None
            except RegistryError as error:
                if isinstance(error, Compacted):
                    self._revision = None
                log.debug("cannot watch the replica groups", reason=str(error))
                ended.wait(pauses.next())

    def _read(self, prefix: str) -> int:
        """Read all groups anew; the revision."""
        snapshot = self._registry.get(prefix)
        self._read_at = time.monotonic() + READ_SECONDS * MACHINE.chance.uniform(0.5, 1.5)
        gone = {key: None for rows in self._rows.values() for key in rows}
        self._take(Changes(snapshot.revision, {**gone, **snapshot.rows}))
        return snapshot.revision

    def _take(self, changes: Changes) -> None:
        """Change the rows, and the views of their groups only."""
        changed = set()
        for key, row in changes.rows.items():
            if not (name := group_of(key, self._cluster)):
                continue
            changed.add(name)
            rows = self._rows.setdefault(name, {})
            if row is not None:
                rows[key] = row
            else:
                rows.pop(key, None)
        views = dict(self._views)  # others hold the old one
        for name in changed:
            views.pop(name, None)
            if not self._rows[name]:
                del self._rows[name]
                continue
            with suppress(BadState):
                keys = Keys(self._cluster, name)
                views[name] = view_of(Snapshot(changes.revision, self._rows[name]), keys)
        self._revision, self._views = changes.revision, dict(sorted(views.items()))
        self._learn(self._views)
