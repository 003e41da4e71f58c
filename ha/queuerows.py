"""Rows of queues that move in the registry: their keys and their JSON.

They are not below the cluster's groups, each part of which an older node takes for a group.
"""

import json
from collections.abc import Mapping
from typing import Any

from duolog_server.ha.moverevents import Row, Seen
from duolog_server.ha.registry import Snapshot
from duolog_server.store.moves import Place

ROOT = "/duolog-queues"


class BadRow(Exception):
    """A row holds what this version does not understand."""

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(f"cannot read {key} in the registry: {reason}")
        self.key = key


def rows_prefix(cluster: str) -> str:
    """Prefix of all rows of a cluster."""
    return f"{ROOT}/{cluster}/"


def row_key(cluster: str, topic: str, name: Place) -> str:
    """The key of a queue by its name, the place of its birth."""
    return f"{rows_prefix(cluster)}{topic}/{name.group}/{name.queue_id}"


def row_to_bytes(row: Row) -> bytes:
    """As JSON."""
    move = {"move": row.move, "target": row.target} if row.move else {}
    value = {"name": list(row.name), "at": list(row.at), **move}
    return json.dumps(value, separators=(",", ":")).encode()


def row_from_bytes(key: str, data: bytes) -> Row:
    """A row. Raises BadRow."""
    try:
        value = json.loads(data)
        move, target = str(value.get("move", "")), str(value.get("target", ""))
        row = Row(_place(value["name"]), _place(value["at"]), move, target)
        if bool(move) != bool(target):
            raise ValueError(f"move {move!r} to {target!r}")
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise BadRow(key, f"{type(error).__name__}: {error}") from error
    return row


def seen_in(snapshot: Snapshot, key: str) -> Seen:
    """The row of a key. Raises BadRow."""
    found = snapshot.rows.get(key)
    if found is None:
        return Seen()
    return Seen(row_from_bytes(key, found.value), found.mod_revision)


def rows_of(
    snapshot: Snapshot, cluster: str
) -> tuple[Mapping[tuple[str, Place], Seen], list[BadRow]]:
    """All rows of a cluster by topic and name, and those that cannot be read."""
    prefix = rows_prefix(cluster)
    found: dict[tuple[str, Place], Seen] = {}
    bad: list[BadRow] = []
    for key in sorted(snapshot.rows):
        if not key.startswith(prefix):
            continue
        topic = key[len(prefix) :].partition("/")[0]
        try:
            seen = seen_in(snapshot, key)
        except BadRow as error:
            bad.append(error)
            continue
        assert seen.row is not None, "it is there"
        if row_key(cluster, topic, seen.row.name) != key:
            bad.append(BadRow(key, f"it is of queue {seen.row.name}"))
            continue
        found[topic, seen.row.name] = seen
    return found, bad


def _place(value: Any) -> Place:
    group, queue_id = value
    if not isinstance(group, str) or isinstance(queue_id, bool) or int(queue_id) < 0:
        raise ValueError(f"{value!r} is no place")
    return Place(group, int(queue_id))
