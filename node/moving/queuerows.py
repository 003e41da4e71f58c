"""What the registry says of the queues of a cluster that move: read by all, written by masters."""

from collections.abc import Callable, Mapping
from typing import Protocol

import structlog
from duolog import _errors as sdk

from duolog_server.ha.groupstate import retired_key
from duolog_server.ha.moverevents import Commit, Committed, Conflict, Seen
from duolog_server.ha.queuerows import (
    BadRow,
    row_key,
    row_to_bytes,
    rows_of,
    rows_prefix,
    seen_in,
)
from duolog_server.ha.registry import Check, Delete, Put, RegistryError, Snapshot
from duolog_server.store.moves import Place

log = structlog.get_logger("duolog.moves")

Rows = Mapping[tuple[str, Place], Seen]  # by topic and name


class RowStore(Protocol):
    """The registry, as the node's election gives it to moves."""

    async def read_rows(self, prefix: str) -> Snapshot:
        """Read rows. Raises RegistryUnavailable."""

    async def change_rows(
        self, known: tuple[Check, ...], rows: tuple[Put | Delete, ...]
    ) -> int | None:
        """Change rows as the master; the revision, None where a check failed.

        Raises NotMaster, and RegistryUnavailable: they may be changed, or may yet be.
        """


class QueueRows:
    """The rows of a cluster."""

    def __init__(self, cluster: str, store: Callable[[], RowStore | None]) -> None:
        """store: None on a node without a registry, whose queues do not move."""
        self._cluster = cluster
        self._store = store
        self._bad: set[str] = set()  # keys of rows that were logged

    @property
    def there(self) -> bool:
        """Whether this node has a registry."""
        return self._store() is not None

    async def read_all(self) -> Rows:
        """All that can be read; the others are logged once. Raises Unavailable."""
        found, bad = rows_of(await self._read(rows_prefix(self._cluster)), self._cluster)
        for error in bad:
            if error.key not in self._bad:
                self._bad.add(error.key)
                log.error("a row of a moved queue cannot be read", key=error.key, reason=str(error))
        return found

    async def retired(self) -> set[str]:
        """The replica groups that have left for good. Raises Unavailable."""
        prefix = retired_key(self._cluster)
        return {key[len(prefix) :] for key in (await self._read(prefix)).rows}

    async def read(self, topic: str, name: Place) -> Seen:
        """The row of a queue. Raises Unavailable, also where this version cannot read it."""
        key = row_key(self._cluster, topic, name)
        try:
            return seen_in(await self._read(key), key)
        except BadRow as error:
            raise sdk.Unavailable(str(error)) from None

    async def commit(self, topic: str, commit: Commit) -> Committed | Conflict:
        """Write a row if it is as it was read. Raises Unavailable, and NotMaster.

        After Unavailable it may be written, or may yet be; or the group changed, and it is not.
        """
        key = row_key(self._cluster, topic, commit.row.name)
        write = Put(key, row_to_bytes(commit.row))
        revision = await self._change(Check(key, commit.revision), write)
        if revision is not None:
            return Committed(commit.row, revision)
        seen = await self.read(topic, commit.row.name)
        if seen.revision == commit.revision:
            raise sdk.Unavailable("the state of the group changed meanwhile")
        return Conflict(seen)

    async def remove(self, topic: str, name: Place, revision: int) -> None:
        """Remove the row of a queue unless it was changed. Raises as `commit`."""
        key = row_key(self._cluster, topic, name)
        await self._change(Check(key, revision), Delete(key))

    async def _read(self, prefix: str) -> Snapshot:
        try:
            return await self._known().read_rows(prefix)
        except RegistryError as error:
            raise sdk.Unavailable(f"the registry does not answer: {error}") from None

    async def _change(self, known: Check, row: Put | Delete) -> int | None:
        try:
            return await self._known().change_rows((known,), (row,))
        except RegistryError as error:
            raise sdk.Unavailable(f"the registry does not answer: {error}") from None

    def _known(self) -> RowStore:
        store = self._store()
        if store is None:
            raise sdk.Unavailable("this node has no registry")
        return store
