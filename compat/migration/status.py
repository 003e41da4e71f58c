"""How a follower stands, in a file of its directory that it replaces every second; and checksums.

For operators, and lost without harm: it is not synced. What must be durable is in `state`.
"""

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from duolog_server.compat.migration.follower import Follower
from duolog_server.compat.migration.state import STATUS_PATH
from duolog_server.node.runtime.clocks import wall_ms

STALE_MS = 5000


@dataclass(frozen=True, slots=True)
class Status:
    """behind_ms: how long ago the copy last had all of the broker's log; -1: it never did.

    tables_read_ms: when the tables were read last; 0: not in this run. offsets: topics and groups
    that have some.
    """

    written_ms: int
    reason: str
    end: int
    flushed: int
    dispatched: int
    broker_end: int
    behind_bytes: int
    behind_ms: int
    topics: int
    groups: int
    offsets: int
    tables_read_ms: int

    @property
    def is_stale(self) -> bool:
        """The process that wrote it is gone or hung, or the clock was set."""
        return abs(wall_ms() - self.written_ms) > STALE_MS


def status_of(follower: Follower) -> Status:
    """The current status."""
    now, store, tables = wall_ms(), follower.store, follower.tables
    behind_ms = max(0, now - follower.caught_up_ms) if follower.caught_up_ms else -1
    has_all = follower.behind_bytes == 0 and not follower.reason
    return Status(
        now,
        follower.reason or follower.tables_reason,
        follower.end,
        store.flushed_offset,
        store.dispatched_offset,
        follower.broker_end,
        follower.behind_bytes,
        0 if has_all and follower.caught_up_ms else behind_ms,
        len(tables.topics),
        len(tables.groups),
        len(tables.offsets),
        follower.tables_read_ms,
    )


def write(directory: Path, status: Status) -> None:
    """Replace the file. Raises OSError."""
    temporary = directory / (STATUS_PATH + ".tmp")
    temporary.write_text(json.dumps(asdict(status)))
    os.replace(temporary, directory / STATUS_PATH)


def read(directory: Path) -> Status | None:
    """The last written status; None if unreadable."""
    try:
        found = Status(**json.loads((directory / STATUS_PATH).read_text()))
    except (OSError, RecursionError, TypeError, ValueError):
        return None
    fields = asdict(found)
    texts = isinstance(fields.pop("reason"), str)
    return found if texts and all(type(value) is int for value in fields.values()) else None


READ_BYTES = 1 << 20


def checksums_of(directory: Path, end: int) -> Iterator[tuple[str, str]]:
    """Name and SHA-256 of every full segment that was copied. Raises OSError.

    end: where the copied part of the log ends.
    """
    paths = sorted(path for path in (directory / "commitlog").iterdir() if path.name.isdecimal())
    for path in paths:
        if int(path.name) + path.stat().st_size > end:  # also one that is allocated ahead
            continue
        digest = hashlib.sha256()
        with path.open("rb") as file:
            while data := file.read(READ_BYTES):
                digest.update(data)
        yield path.name, digest.hexdigest()
