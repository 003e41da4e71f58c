"""Snapshots of the metadata tables under config/.

`duologMetadata.json` is the snapshot: all tables, the position in the metadata queue up to which
they are good, and a checksum over every byte. It is replaced at once, so tables of two moments
never meet; its `.bak` is another whole snapshot. The other files hold one table each in RocketMQ's
shape. They are written for RocketMQ, and read only where RocketMQ wrote them: they end with
MARK, white space that a JSON parser skips and RocketMQ does not write. The snapshot
knows the checksum of each, so damage to them is seen, too. It also holds the end of every queue, as
queue files that are lost cannot be rebuilt from records that retention has deleted.
"""

import contextlib
import json
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from duolog_server.store import jsontext
from duolog_server.store.clocks import WallMs
from duolog_server.store.delay import SCHEDULE_TOPIC
from duolog_server.store.disk import Disk
from duolog_server.store.metadata import (
    NOT_THE_SHAPE,
    SYSTEM_TOPIC,
    Json,
    Metadata,
    Snapshot,
    offsets_of,
    topics_of,
)
from duolog_server.store.queueends import QueueKey

TOPICS = "config/topics.json"
GROUPS = "config/subscriptionGroup.json"
OFFSETS = "config/consumerOffset.json"
DELAYS = "config/delayOffset.json"
FILTERS = "config/consumerFilter.json"
SNAPSHOT = "config/duologMetadata.json"
BACKUP = SNAPSHOT + ".bak"
MARK = b"\n\t \t\n"
_HEAD = b'{"crc32":"%08x","metadata":\n'
_HEAD_BYTES = len(_HEAD % 0)
_TAIL = b"\n}\n"


@dataclass(frozen=True, slots=True)
class SavedEnds:
    """How far every queue reached, with entries of all records below a log offset.

    rows: by topic and queue id, the next queue offset and the end of the newest record. Light
    queues, which may begin again at any offset, are left out.
    """

    position: int = -1  # -1: not known
    rows: dict[str, dict[str, list[int]]] = field(default_factory=dict)
    applied: int = 0  # how many metadata records the snapshot holds: 0 where there is none

    @staticmethod
    def of(value: Json) -> "SavedEnds":
        """Read them from a snapshot; one of an older version has none."""
        rows = {
            str(topic): {str(int(q)): [int(row[0]), int(row[1])] for q, row in queues.items()}
            for topic, queues in (value.get("ends") or {}).items()
        }
        return SavedEnds(int(value.get("endsAt", -1)), rows, int(value.get("applied", 0)))

    def to_json(self) -> Json:
        """Encode the tables as `of` reads them."""
        return {"endsAt": self.position, "ends": self.rows}

    def __iter__(self) -> Iterator[tuple[QueueKey, int, int]]:
        """Each queue, its next offset, and the end of its newest record."""
        for topic, queues in self.rows.items():
            for queue_id, (end, newest) in queues.items():
                yield (topic, int(queue_id)), end, newest


class NotASnapshot(ValueError):
    """A file without a valid snapshot; the text says what is wrong with it."""


NO_ENDS = SavedEnds()


@dataclass(frozen=True, slots=True)
class Saved:
    """A snapshot that passed its checksum.

    place: log offset of the last record in it, -1 where that was not known. exports: checksums
    of RocketMQ's files, as they were written with it and before it.
    """

    path: str
    tables: Metadata
    place: int
    exports: dict[str, list[int]]
    ends: SavedEnds


@dataclass(frozen=True, slots=True)
class Export:
    """One of RocketMQ's files: how its table gets out of a snapshot, and back into the tables."""

    path: str
    rows: Callable[[Snapshot], Json]
    wrap: Callable[[Json, Json], Json]  # from entries and a data version
    adopt: Callable[[Metadata, Json], None]


def _adopt_topics(tables: Metadata, value: Json) -> None:
    tables.topics = topics_of(value["topicConfigTable"], tables.moves)


def _adopt_groups(tables: Metadata, value: Json) -> None:
    rows = value["subscriptionGroupTable"]
    tables.groups = {str(name): dict(row) for name, row in rows.items()}


def _adopt_offsets(tables: Metadata, value: Json) -> None:
    tables.offsets = offsets_of(value["offsetTable"])


def _adopt_delays(tables: Metadata, value: Json) -> None:
    tables.delay_offsets = {int(level): int(o) for level, o in value["offsetTable"].items()}


def _adopt_filters(tables: Metadata, value: Json) -> None:
    rows = value["filterDataByTopic"]
    tables.filters = {str(name): dict(row["groupFilterData"]) for name, row in rows.items()}
    tables.filter_changes += 1


EXPORTS = (
    Export(
        TOPICS,
        lambda snapshot: snapshot.topics,
        lambda rows, version: {"dataVersion": version, "topicConfigTable": rows},
        _adopt_topics,
    ),
    Export(
        GROUPS,
        lambda snapshot: snapshot.groups,
        lambda rows, version: {"dataVersion": version, "subscriptionGroupTable": rows},
        _adopt_groups,
    ),
    Export(
        OFFSETS,
        lambda snapshot: snapshot.offsets,
        lambda rows, version: {"offsetTable": rows},
        _adopt_offsets,
    ),
    Export(
        DELAYS,
        lambda snapshot: snapshot.delays,
        lambda rows, version: {"offsetTable": rows},
        _adopt_delays,
    ),
    Export(
        FILTERS,
        lambda snapshot: snapshot.filters,
        lambda rows, version: {
            "filterDataByTopic": {
                name: {"groupFilterData": row, "topic": name} for name, row in rows.items()
            }
        },
        _adopt_filters,
    ),
)


def is_marked(data: bytes) -> bool:
    """Whether a file in RocketMQ's format may have been written here, whole or truncated.

    RocketMQ's text ends with its closing brace.
    """
    return data.rstrip() != data


def crc_of(data: bytes) -> int:
    """The checksum of an exported file, as kept in a snapshot."""
    return zlib.crc32(data)


class MetadataFiles:
    """Writes snapshots; one at a time, in any thread."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._trusted = False  # the next save may turn the present file into the backup
        # `Metadata.changes` and the segment of the queues' ends that the two snapshots hold.
        self._newest = self._backup = (-1, -1)
        self._written: dict[str, Json] = {}  # entries of the exports, as they are on disk
        self._crcs: dict[str, list[int]] = {}

    def found(self, saved: Saved, whole: set[str]) -> None:
        """The newest snapshot was read and is valid, and so are these exports.

        The next write may turn it into the backup, and need not write those exports again.
        """
        self._trusted = True
        self._newest = (saved.tables.changes, -1)
        snapshot = saved.tables.snapshot()
        self._written = {e.path: e.rows(snapshot) for e in EXPORTS if e.path in whole}
        self._crcs = dict(saved.exports)

    def due(self, changes: int, segment: int = 0) -> bool:
        """Whether to write: there are changes, or the backup is older than the snapshot.

        Retention deletes records, so the backup must not depend on those between the two, nor
        either of them on whole segments after it. segment: the number of the one being written.
        """
        return not self._newest == self._backup == (changes, segment)

    def write(
        self,
        snapshot: Snapshot,
        place: int,
        wall_ms: WallMs,
        ends: SavedEnds = NO_ENDS,
        segment: int = 0,
    ) -> None:
        """Replace the snapshot, then those of RocketMQ's files whose tables changed.

        After a crash at any point one of the two snapshots is whole.
        """
        version: Json = {"counter": snapshot.changes, "timestamp": wall_ms}
        texts: dict[str, tuple[Json, bytes]] = {}
        for export in EXPORTS:
            rows = export.rows(snapshot)
            if self._written.get(export.path) != rows:
                text = jsontext.dumps(export.wrap(rows, version)).encode() + MARK
                texts[export.path] = (rows, text)
        for path, (_, text) in texts.items():
            self._crcs[path] = [crc_of(text), *self._crcs.get(path, [])][:2]
        data = encode(snapshot, place, self._crcs, ends)
        if self._trusted:
            jsontext.replace(self._disk, SNAPSHOT, data)
            backup = self._newest
        else:  # the present file may be damaged: it must not replace a good backup
            for path in (SNAPSHOT, BACKUP):
                jsontext.replace(self._disk, path, data, backup=False)
            backup = (snapshot.changes, segment)
            self._trusted = True
        for path, (rows, text) in texts.items():
            jsontext.replace(self._disk, path, text)
            self._written[path] = rows
        self._newest, self._backup = (snapshot.changes, segment), backup  # until then it is due


def encode(
    snapshot: Snapshot, place: int, exports: dict[str, list[int]], ends: SavedEnds = NO_ENDS
) -> bytes:
    """The text of a snapshot, preceded by its checksum."""
    value = {**snapshot.tables(), "place": place, "exports": exports}
    if ends.position >= 0:
        value |= ends.to_json()
    # Entry by entry: a single call would block all other threads while it runs.
    body = ",\n".join(f"{json.dumps(name)}:{_rows(rows)}" for name, rows in value.items())
    data = ("{" + body + "}").encode()
    return _HEAD % zlib.crc32(data) + data + _TAIL


def _rows(value: Any) -> str:
    if not isinstance(value, dict):
        return json.dumps(value)
    rows = (
        f"{json.dumps(str(name))}:{json.dumps(row, separators=(',', ':'))}"
        for name, row in value.items()
    )
    return "{" + ",\n".join(rows) + "}"


def decode(path: str, data: bytes) -> Saved:
    """Read a snapshot. Raises NotASnapshot."""
    if not data:
        raise NotASnapshot("it is empty")
    body = data[_HEAD_BYTES : -len(_TAIL)]
    if data != _HEAD % zlib.crc32(body) + body + _TAIL:
        raise NotASnapshot("its checksum does not match")
    try:
        value = json.loads(body)
        exports = {str(name): [int(crc) for crc in row] for name, row in value["exports"].items()}
        tables, ends = Metadata.from_json(value), SavedEnds.of(value)
        return Saved(path, tables, int(value["place"]), exports, ends)
    except NOT_THE_SHAPE as error:
        raise NotASnapshot(f"it has an unexpected structure: {error!r}") from None


@dataclass(frozen=True, slots=True)
class Snapshots:
    """The snapshot and its backup, decoded once.

    found: the valid ones, in this order. wrong: what is wrong with one of the two files, by path.
    """

    disk: Disk
    found: list[Saved] = field(default_factory=list)
    wrong: dict[str, str] = field(default_factory=dict)

    @staticmethod
    def read(disk: Disk) -> "Snapshots":
        """Read the snapshot and its backup."""
        made = Snapshots(disk)
        for path in (SNAPSHOT, BACKUP):
            try:
                made.found.append(decode(path, disk.read(path)))
            except FileNotFoundError:
                made.wrong[path] = "it is missing"
            except OSError as error:
                made.wrong[path] = f"it cannot be read: {error.strerror or error}"
            except NotASnapshot as error:
                made.wrong[path] = str(error)
        return made

    @property
    def ends(self) -> SavedEnds:
        """The queues' ends in the newest of them that has any."""
        found = [NO_ENDS, *(saved.ends for saved in self.found)]
        return max(found, key=lambda ends: (ends.position, ends.applied))

    def consumed(self) -> dict[QueueKey, int]:
        """How far groups and delay levels have consumed queues of existing topics, by the tables.

        Such a queue had messages below that offset, whatever its files say: so had the queue of
        changes to the tables below what they have of it.
        """
        tables = self.found[0].tables if self.found else Metadata()
        for export in EXPORTS if not self.found else ():
            with contextlib.suppress(OSError, ValueError):
                read_export(self.disk, export, export.path, tables)
        return consumed_of(tables) | {(SYSTEM_TOPIC, 0): tables.applied}


def consumed_of(tables: Metadata) -> dict[QueueKey, int]:
    """How far groups and delay levels have consumed queues of existing topics."""
    found = {(SCHEDULE_TOPIC, level - 1): offset for level, offset in tables.delay_offsets.items()}
    for (topic, _), row in tables.offsets.items():
        for queue_id, offset in row.items() if topic in tables.topics else ():
            first = tables.moves.first_of(topic, queue_id)
            if first is None or offset > first:  # else it may have had none yet
                found[topic, queue_id] = max(found.get((topic, queue_id), 0), offset)
    return found


def read_export(disk: Disk, export: Export, path: str, tables: Metadata) -> bytes:
    """Take a table from one of RocketMQ's files; the file's bytes.

    Raises OSError, and ValueError if the file holds no such table; the tables then stay.
    """
    data = disk.read(path)
    try:
        export.adopt(tables, jsontext.loads(data.decode()))
    except NOT_THE_SHAPE as error:
        raise ValueError(f"it has an unexpected structure: {error!r}") from None
    return data
