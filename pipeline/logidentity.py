"""The identity of a log: its epochs and the first records of its segments.

Replicas of one log agree in both; two logs differ in the nonce of their first epoch, or, where
another program wrote them and there are no epochs, in the first record of a segment.
"""

import hashlib
import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from duolog_server.pipeline.errors import BadJob
from duolog_server.pipeline.segments import Segment
from duolog_server.store import jsontext
from duolog_server.store.errors import BadStoreFile
from duolog_server.store.kernels import scan
from duolog_server.store.osdisk import OsDisk

EPOCHS = "config/epochs.json"
EPOCHS_KEPT = 16  # the oldest ones tell logs apart
_HEAD_BYTES = 64  # of a segment that begins with no record

Epochs = dict[int, tuple[int, str]]  # by number: start offset and nonce


@dataclass(frozen=True)
class LogIdentity:
    """The known part of a log's identity."""

    epochs: Epochs = field(default_factory=dict)
    first_records: dict[int, str] = field(default_factory=dict)  # digest by segment's start
    # Of the segment that is being written: where nobody synced it, a crash may replace the record.
    newest_record: dict[int, str] = field(default_factory=dict)

    def __str__(self) -> str:
        """A short text: the oldest epoch, or the oldest record."""
        if self.epochs:
            number = min(self.epochs)
            start, nonce = self.epochs[number]
            return f"epoch {number} from {start} on with nonce {nonce}"
        if self.first_records:
            start = min(self.first_records)
            return f"record {self.first_records[start]} at {start}"
        return "no epoch and no whole segment"

    def differs(self, other: "LogIdentity") -> str:
        """The contradiction between two identities; empty for none."""
        for number in sorted(self.epochs.keys() & other.epochs.keys()):
            if self.epochs[number] != other.epochs[number]:
                return f"epoch {number}"
        for start in sorted(self.first_records.keys() & other.first_records.keys()):
            if self.first_records[start] != other.first_records[start]:
                return f"the record at {start}"
        return ""

    def meets(self, other: "LogIdentity") -> bool:
        """Whether they have anything in common that proves one log."""
        return bool(
            self.epochs.items() & other.epochs.items()
            or self._records().items() & other._records().items()
        )

    def _records(self) -> dict[int, str]:
        return self.newest_record | self.first_records

    def joined(self, others: Iterable["LogIdentity"]) -> "LogIdentity":
        """Combined with other identities of the same log."""
        made = LogIdentity(dict(self.epochs), dict(self.first_records), dict(self.newest_record))
        for other in others:
            made.epochs.update(other.epochs)
            made.first_records.update(other.first_records)
            made.newest_record.update(other.newest_record)
        return made

    def part(self, starts: Iterable[int] | None = None) -> "LogIdentity":
        """The oldest epochs, and some of the records, or all."""
        oldest = dict(sorted(self.epochs.items())[:EPOCHS_KEPT])
        if starts is None:
            return LogIdentity(oldest, self.first_records, self.newest_record)
        wanted = set(starts)
        records, newest = (
            {at: digest for at, digest in known.items() if at in wanted}
            for known in (self.first_records, self.newest_record)
        )
        return LogIdentity(oldest, records, newest)

    def to_json(self) -> dict[str, Any]:
        """The form for files."""
        return {
            "epochs": [[number, *row] for number, row in sorted(self.epochs.items())],
            "firstRecords": {str(at): digest for at, digest in sorted(self.first_records.items())},
            "newestRecord": {str(at): digest for at, digest in self.newest_record.items()},
        }

    @staticmethod
    def from_json(value: dict[str, Any]) -> "LogIdentity":
        """Parse `to_json`'s output. Raises ValueError, KeyError, TypeError."""
        return LogIdentity(
            {int(number): (int(start), str(nonce)) for number, start, nonce in value["epochs"]},
            {int(at): str(digest) for at, digest in value["firstRecords"].items()},
            {int(at): str(digest) for at, digest in value["newestRecord"].items()},
        )


def identity_of(directory: Path, segments: list[Segment], confirmed: int) -> LogIdentity:
    """The identity of a store directory, as far as its log is confirmed. Raises BadJob."""
    records = {
        segment.start: digest
        for segment in segments
        if segment.start < confirmed and (digest := _first_record(segment, confirmed))
    }
    newest = {max(records): records.pop(max(records))} if records else {}
    return LogIdentity(_epochs(directory, confirmed), records, newest)


def _epochs(directory: Path, confirmed: int) -> Epochs:
    try:
        value = jsontext.load(OsDisk(directory, read_only=True), EPOCHS)
        rows = value["epochs"] if value is not None else []
        return {int(n): (int(start), str(x)) for n, start, x in rows if int(start) < confirmed}
    except (BadStoreFile, ValueError, KeyError, TypeError) as error:
        raise BadJob(f"cannot use {directory / EPOCHS}: {error}") from None


def _first_record(segment: Segment, confirmed: int) -> str:
    """Digest of a segment's first record; empty if it is missing or not confirmed."""
    memory = segment.memory()
    head = memory[:_HEAD_BYTES].tobytes()
    if len(head) < _HEAD_BYTES or not any(head[:8]):
        return ""
    size, magic = struct.unpack(">iI", head[:8])
    whole = magic in (scan.MAGIC_V1, scan.MAGIC_V2) and _HEAD_BYTES <= size <= len(memory)
    if whole:
        head = memory[:size].tobytes()
    if segment.start + len(head) > confirmed:
        return ""
    return hashlib.blake2b(head, digest_size=16).hexdigest()
