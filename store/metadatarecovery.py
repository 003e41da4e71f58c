"""The metadata tables at start: the newest snapshot that can be trusted, then the log.

A snapshot is trusted if its checksum is right, its last record is where the log has it, and the log
still has the next record. If no snapshot can be trusted, all records left in the log are applied:
to empty tables if the log says that it began with such, otherwise to the best tables found. Nothing
is written here: the caller writes new snapshots, as after every start (`due`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from duolog_server.store import jsontext
from duolog_server.store.disk import Disk
from duolog_server.store.errors import BadStoreFile
from duolog_server.store.metadata import NOT_THE_SHAPE, Json, Metadata
from duolog_server.store.metadatafiles import (
    BACKUP,
    DELAYS,
    EXPORTS,
    FILTERS,
    MARK,
    OFFSETS,
    SNAPSHOT,
    TOPICS,
    Export,
    MetadataFiles,
    Saved,
    Snapshots,
    crc_of,
    is_marked,
    read_export,
)

# A broker of RocketMQ 4.9 writes these whenever it stops. If all are its own, it ran here; a single
# one is a damaged file.
PERSISTED = (OFFSETS, DELAYS, FILTERS)


class MetadataRecords(Protocol):
    """The metadata queue of a recovered store."""

    first: int  # queue offset of the oldest record

    @property
    def end(self) -> int | None:
        """Queue offset after the newest record; None: a master may have newer ones."""

    def place(self, offset: int) -> int:
        """Log offset of a record, -1 if the queue does not have it."""

    def read(self, offset: int) -> tuple[Sequence[bytes], int]:
        """Bodies of records from an offset on, and where the next ones begin (offset: no more)."""


@dataclass(frozen=True, slots=True)
class Doubt:
    """A file under config/ that was not trusted, why, and what was done."""

    file: str
    reason: str
    action: str


@dataclass(slots=True)
class Recovered:
    """The tables, applied up to `tables.applied`.

    foreign: tables came from files that another program wrote, so the log does not have them.
    partial: some topics may be missing; the queues tell which.
    replayed_from: the log's records were applied from this one on.
    lacking: some of these could not be read.
    """

    tables: Metadata
    foreign: list[str] = field(default_factory=list)
    partial: bool = False
    replayed_from: int = 0
    lacking: bool = False


@dataclass(slots=True)
class MetadataRecovery:
    """Takes the snapshots, and reads the other files of config/, once."""

    snapshots: Snapshots
    files: MetadataFiles
    records: MetadataRecords
    report: Callable[[Doubt], None]
    _lacking: bool = False

    @property
    def disk(self) -> Disk:
        """The disk with config/."""
        return self.snapshots.disk

    def run(self) -> Recovered:
        """Find the tables. Raises BadStoreFile if another program's file cannot be read."""
        found, wrong = self._snapshots()
        if not found and not wrong:
            if not self._is_ours():
                return self._begin()
            wrong[SNAPSHOT] = "it and its backup are missing"
        chosen = next((s for s in found if s.path not in wrong), None)
        if chosen is None:
            self._tell(wrong, "all records in the log are applied again")
            return self._from_the_log(found)
        self._tell(wrong, f"{chosen.path} is used, and the records after it are applied")
        tables = chosen.tables
        if not tables.births.known:
            self._find_births(tables)
        foreign, whole = self._compare(tables, found, SNAPSHOT not in wrong)
        if not wrong:
            self.files.found(chosen, whole)
        return Recovered(tables, foreign, replayed_from=tables.applied)

    def _tell(self, wrong: dict[str, str], action: str) -> None:
        for path, reason in wrong.items():
            self.report(Doubt(path, reason, action))

    # -- snapshots -----------------------------------------------------------------------------

    def _snapshots(self) -> tuple[list[Saved], dict[str, str]]:
        """The valid snapshots, newest first, and the problems of the two files."""
        found, wrong = self.snapshots.found, self.snapshots.wrong
        if wrong.keys() == {SNAPSHOT, BACKUP} and set(wrong.values()) == {"it is missing"}:
            wrong.clear()  # there never was one, or both are lost: the log tells which
        wrong.update({s.path: why for s in found if (why := self._mismatch(s))})
        if len(found) == 2 and found[0].tables.applied < found[1].tables.applied:
            wrong.setdefault(SNAPSHOT, "it is older than its backup")
            found.reverse()
        return found, wrong

    def _mismatch(self, saved: Saved) -> str:
        """Why the log does not continue a snapshot, empty if it does."""
        applied, records = saved.tables.applied, self.records
        if records.end is not None and applied > records.end:
            return f"it holds records up to {applied}, but the log ends at {records.end}"
        if applied < records.first:
            return f"it holds records up to {applied}, but the oldest in the log is {records.first}"
        place = records.place(applied - 1) if applied else -1
        if -1 not in (place, saved.place) and place != saved.place:
            return f"its last record is at {saved.place}, in the log that record is at {place}"
        return ""

    # -- RocketMQ's files ----------------------------------------------------------------------

    def _compare(
        self, tables: Metadata, found: list[Saved], certain: bool
    ) -> tuple[list[str], set[str]]:
        """Compare RocketMQ's files with the snapshots: those it wrote since, and those that are
        intact.

        certain: the newest snapshot exists, so a file that it does not know is damaged.
        """
        foreign: list[str] = []
        whole: set[str] = set()
        known = {e.path: [saved.exports.get(e.path, []) for saved in found] for e in EXPORTS}
        rocketmq = all(self._is_foreign(e, known[e.path]) for e in EXPORTS if e.path in PERSISTED)
        for export in EXPORTS:
            crcs = known[export.path]
            if rocketmq and self._is_foreign(export, crcs):
                read_export(self.disk, export, export.path, tables)
                foreign.append(export.path)
                action = "its table is used"
                self.report(Doubt(export.path, "RocketMQ has written it since", action))
                continue
            reason = self._what_is_wrong(export, crcs)
            if reason is None:
                continue
            if not reason:
                whole.add(export.path)
            elif certain and crcs[0]:
                self.report(Doubt(export.path, reason, f"it is rewritten from {SNAPSHOT}"))
        return foreign, whole

    def _what_is_wrong(self, export: Export, crcs: list[list[int]]) -> str | None:
        """The problem of a file, empty for none; None for one left by an interrupted save."""
        try:
            crc = crc_of(self.disk.read(export.path))
        except OSError as error:
            return f"it cannot be read: {error.strerror or error}"
        if crcs[0] and crc == crcs[0][0]:
            return ""
        return None if any(crc in row for row in crcs) else "its checksum does not match"

    def _is_foreign(self, export: Export, crcs: list[list[int]]) -> bool:
        """Tell whether a file holds a table that RocketMQ may have written."""
        try:
            data = read_export(self.disk, export, export.path, Metadata())
        except (OSError, ValueError):
            return False
        ours = any(crc_of(text) in row for row in crcs for text in (data, data + MARK))
        return not ours and not is_marked(data)

    def _is_ours(self) -> bool:
        """Whether duolog kept its metadata here before, although no snapshot is left."""
        if self.records.first or self.records.end or self.records.place(0) >= 0:
            return True
        paths = [e.path for e in EXPORTS if self.disk.size(e.path) > 0]
        return any(self.disk.read(path).endswith(MARK) for path in paths)

    def _begin(self) -> Recovered:
        """A new directory, or one that another program wrote: its tables are taken."""
        tables = Metadata()
        foreign = [e.path for e in EXPORTS if self._read_either(e, tables, strict=True)]
        return Recovered(tables, foreign, partial=TOPICS not in foreign)

    def _read_either(self, export: Export, tables: Metadata, strict: bool) -> bool:
        """Read a table from its file or its backup; whether there was one.

        Raises BadStoreFile if strict and neither of the existing files can be read.
        """
        problem = ""
        for path in (export.path, export.path + ".bak"):
            try:
                if self.disk.size(path) > 0:
                    read_export(self.disk, export, path, tables)
                    return True
            except (OSError, ValueError) as error:
                problem = problem or f"{path}: {error}"
        if problem and strict:
            raise BadStoreFile(export.path, f"it and its backup cannot be read: {problem}")
        return False

    # -- the log -------------------------------------------------------------------------------

    def _from_the_log(self, found: list[Saved]) -> Recovered:
        """Apply all records in the log; they tell to which tables."""
        tables = self._replayed(Metadata())
        if tables.complete and self.records.first == 0:
            return Recovered(tables, lacking=self._lacking)
        base = found[0].tables if found else self._best_tables()
        base.applied = self.records.first
        replayed = self._replayed(base)
        return Recovered(
            replayed, partial=True, replayed_from=self.records.first, lacking=self._lacking
        )

    def _best_tables(self) -> Metadata:
        """Without any snapshot: the tables in RocketMQ's files, as they are."""
        tables = Metadata()
        for export in EXPORTS:
            if self._read_either(export, tables, strict=False):
                action = "its table is used as it is, and the log's records are applied to it"
                self.report(Doubt(export.path, "no snapshot vouches for it", action))
        self._adopt_unchecked(tables)
        return tables

    def _adopt_unchecked(self, tables: Metadata) -> None:
        """The rest, from a snapshot of an older version, which had no checksum."""
        try:
            value: Json = jsontext.loads(self.disk.read(SNAPSHOT).decode())
            tables.adopt_own({"floors": value["queueFloors"], **value})
        except (OSError, *NOT_THE_SHAPE):
            return

    def _find_births(self, tables: Metadata) -> None:
        """A node of version 0.1.0 wrote the snapshot, between two of this one, perhaps."""
        tables.births.known = True
        offset = self.records.first
        while offset < tables.applied:
            bodies, following = self.records.read(offset)
            if following <= offset:
                return
            tables.note_births(bodies)
            offset = following

    def _replayed(self, tables: Metadata) -> Metadata:
        tables.applied = max(tables.applied, self.records.first)
        while True:
            bodies, following = self.records.read(tables.applied)
            if following <= tables.applied:
                return tables
            self._lacking = self._lacking or len(bodies) < following - tables.applied
            for body in bodies:
                tables.apply(body)
            tables.applied = following
