"""Audit: every record of a store directory verified, in parallel; two replicas compared.

| problem | means |
|---------|-------|
| corrupt | bytes that hold no valid record though valid ones, or other bytes, follow |
| torn tail | something behind the last valid record: a write that never ended |
| misplaced | a segment whose records name offsets of another one |
| short | a segment with another size than the others |
| missing | a segment between others is not there |
| unsealed | a segment in the middle that no blank record ends |
"""

from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from duolog._columns import crc32

from duolog_server.pipeline.errors import BadJob
from duolog_server.pipeline.segments import (
    Piece,
    Segment,
    Stop,
    Stretch,
    is_held,
    is_written,
    named_offset,
    piece_bytes,
    pieces,
    segments_of,
    walk,
)
from duolog_server.pipeline.session import each
from duolog_server.store.commitlog import scan_reason
from duolog_server.store.copied import is_copied
from duolog_server.store.kernels import scan
from duolog_server.store.osdisk import OsDisk

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WINDOW_BYTES = 4 << 20
PROBLEMS_MAX = 1000  # told of one piece


@dataclass
class Problem:
    """A problem. offset: in the commit log; bytes: its size."""

    kind: str
    segment: str
    offset: int
    bytes: int
    reason: str


@dataclass
class Piecewise:
    """The findings of a task in its piece; positions are relative to the segment's start."""

    first: int  # where its first record starts, -1 for none
    end: int  # where its last record or blank ends
    records: int
    bytes: int
    sealed: bool  # the blank record was found
    open_at: int  # where the segment ends in zeros, -1 for nowhere
    first_time: int
    last_time: int
    problems: list[Problem] = field(default_factory=list)


@dataclass
class Audit:
    """The whole directory."""

    directory: str
    held: bool  # by a running node
    copied: bool  # while a node was writing
    segments: int
    records: int
    bytes: int
    min_offset: int
    max_offset: int  # after the last valid record
    first_time: int
    last_time: int
    problems: list[Problem]

    def to_json(self) -> dict[str, Any]:
        """For programs."""
        return asdict(self)


@dataclass
class Difference:
    """The first record in which two replicas differ, as each of them has it."""

    offset: int
    record: dict[str, Any]
    other: dict[str, Any]


def audit(spark: "SparkSession", directory: Path) -> Audit:
    """Verify structure and CRC of every record. Raises BadJob; nothing is changed."""
    segments = segments_of(directory)
    held = is_held(directory)
    copied = is_copied(OsDisk(directory, read_only=True))
    parts = pieces(segments, piece_bytes(segments, spark.sparkContext.defaultParallelism))
    found = _in_order(spark, parts, each(spark, audit_piece, parts, "audit"))
    problems = _layout(segments)
    records = size = 0
    max_offset = segments[0].start
    first_time = last_time = 0
    last_used = max((k for k, piece in enumerate(found) if piece.records), default=0)
    for k, (segment, piece) in enumerate(zip(segments, found, strict=True)):
        records += piece.records
        size += piece.bytes
        if piece.records:
            first_time = first_time or piece.first_time
            last_time = max(last_time, piece.last_time)
        problems += _judged(segment, piece, k, last_used, held or copied)
        if piece.records:
            end = piece.open_at if piece.open_at >= 0 else piece.end
            max_offset = segment.start + end
    return Audit(
        str(directory),
        held,
        copied,
        len(segments),
        records,
        size,
        segments[0].start,
        max_offset,
        first_time,
        last_time,
        problems,
    )


def _layout(segments: list[Segment]) -> list[Problem]:
    problems = []
    usual = max((s.size for s in segments), key=[s.size for s in segments].count)
    for segment in segments:
        if segment.size != usual:
            reason = f"{segment.size} bytes, the other segments have {usual}"
            problems.append(Problem("short", segment.name, segment.start, segment.size, reason))
    for before, after in pairwise(segments):
        end = before.start + usual
        if after.start > end:
            reason = f"no segment holds {end} to {after.start}"
            problems.append(Problem("missing", after.name, end, after.start - end, reason))
    return problems


def _judged(
    segment: Segment, piece: Piecewise, index: int, last_used: int, growing: bool
) -> list[Problem]:
    """The problems of a segment in the context of the whole log."""
    if not piece.records and piece.open_at == 0:
        return []  # allocated ahead, or nothing is written yet
    if index < last_used and piece.open_at >= 0 and not piece.sealed:
        if piece.problems:  # it is not a tail: later segments contain records
            return [replace(p, kind="corrupt") for p in piece.problems]
        offset = segment.start + piece.open_at
        left = segment.size - piece.open_at
        reason = "it ends in zeros, but later segments hold records"
        return [Problem("unsealed", segment.name, offset, left, reason)]
    if growing:  # a record that was being written when it was read or copied is no damage
        return [p for p in piece.problems if p.kind != "torn tail"]
    return piece.problems


def audit_piece(piece: Piece) -> Piecewise:
    """A task: the records of one piece."""
    segment = piece.segment
    memory = segment.memory(piece.first, piece.end)
    found = Piecewise(-1, piece.first, 0, 0, False, -1, 0, 0)
    for step in walk(memory, piece, True):
        if isinstance(step, Stretch):
            rows, n = step.rows, step.count
            start = int(rows[scan.PHY, 0]) - segment.start
            found.first = start if found.first < 0 else found.first
            found.records += n
            found.bytes += int(rows[scan.SIZE, :n].sum())
            times = rows[scan.STORE_TIME, :n]
            found.first_time = found.first_time or int(times[0])
            found.last_time = max(found.last_time, int(times.max()))
            found.end = int(rows[scan.PHY, n - 1] + rows[scan.SIZE, n - 1]) - segment.start
            continue
        _stopped(memory, segment, step, found)
        found.end = max(found.end, step.following)
    return found


def _stopped(memory: Any, segment: Segment, stop: Stop, found: Piecewise) -> None:
    if stop.code == scan.SCAN_END:
        return
    if stop.code == scan.SCAN_BLANK:
        found.sealed = True
        size = int.from_bytes(memory[stop.position : stop.position + 4].tobytes(), "big")
        if size != len(memory) - stop.position:
            _tell(found, "corrupt", segment, stop, "the blank record has the wrong size")
        return
    if stop.following < len(memory):
        _tell(found, "corrupt", segment, stop, scan_reason(stop.code))
        return
    if not is_written(memory, stop.position):
        found.open_at = stop.position
        return
    named = named_offset(memory, stop.position)
    if stop.position == 0 and named not in (-1, segment.start):
        reason = f"its first record names offset {named}"
        _tell(found, "misplaced", segment, stop, reason)
        return
    _tell(found, "torn tail", segment, stop, scan_reason(stop.code))
    found.open_at = stop.position


def _tell(found: Piecewise, kind: str, segment: Segment, stop: Stop, reason: str) -> None:
    if len(found.problems) < PROBLEMS_MAX:
        offset, size = segment.start + stop.position, stop.following - stop.position
        found.problems.append(Problem(kind, segment.name, offset, size, reason))


def _in_order(spark: "SparkSession", parts: list[Piece], found: list[Piecewise]) -> list[Piecewise]:
    """Join the pieces of each segment.

    Each piece must begin where the one before it ended. If one does not (a body that looks like a
    record), the segment is read again as a whole.
    """
    segments = list(dict.fromkeys(part.segment for part in parts))
    by_segment = [
        [one for part, one in zip(parts, found, strict=True) if part.segment == segment]
        for segment in segments
    ]
    again = [k for k, parts in enumerate(by_segment) if not _joined(parts)]
    whole = [Piece(segments[k], 0, segments[k].size) for k in again]
    for k, piece in zip(again, each(spark, audit_piece, whole, "audit again"), strict=True):
        by_segment[k] = [piece]
    return [_merged(parts) for parts in by_segment]


def _joined(parts: list[Piecewise]) -> bool:
    end = parts[0].end
    closed = parts[0].sealed or parts[0].open_at >= 0
    for part in parts[1:]:
        if part.first >= 0 and (closed or part.first != end):
            return False
        end = part.end if part.first >= 0 else end
        closed = closed or part.sealed or part.open_at >= 0
    return True


def _merged(parts: list[Piecewise]) -> Piecewise:
    """Merge pieces that join; a piece without records after the blank is ignored."""
    whole = parts[0]
    for part in parts[1:]:
        if part.first < 0:
            continue
        whole.records += part.records
        whole.bytes += part.bytes
        whole.sealed = whole.sealed or part.sealed
        whole.open_at = part.open_at if part.open_at >= 0 else whole.open_at
        whole.end = max(whole.end, part.end)
        whole.last_time = max(whole.last_time, part.last_time)
        whole.problems += part.problems
    return whole


# -- two replicas ----------------------------------------------------------------------------------


def compare(spark: "SparkSession", directory: Path, other: Path, end: int) -> Difference | None:
    """The first record before an offset in which the logs of two replicas differ; None if they do
    not.

    Windows of the log are compared by their digests, and only a window that differs is examined.
    What only one of them holds (older segments, a longer log) is no difference. Raises BadJob.
    """
    mine, others = segments_of(directory), segments_of(other)
    begin = max(mine[0].start, others[0].start)
    if begin >= end:
        raise BadJob(f"{directory} and {other} have no offset in common")
    windows = [(at, min(at + WINDOW_BYTES, end)) for at in range(begin, end, WINDOW_BYTES)]
    batches = [windows[k : k + 16] for k in range(0, len(windows), 16)]
    left = each(spark, _Digests(mine), batches, "digests")
    right = each(spark, _Digests(others), batches, "digests of the other")
    for batch, one, two in zip(batches, left, right, strict=True):
        for window, digest, other_digest in zip(batch, one, two, strict=True):
            if digest != other_digest:
                return _difference(mine, others, *window)
    return None


@dataclass(frozen=True)
class _Digests:
    """A task: the digests of windows of one log."""

    segments: list[Segment]

    def __call__(self, windows: list[tuple[int, int]]) -> list[int]:
        return [crc32(log_bytes(self.segments, *window)) for window in windows]


def log_bytes(segments: list[Segment], start: int, end: int) -> bytes:
    """Bytes [start, end) of a log, without holes."""
    parts = []
    for segment in segments:
        low, high = max(start, segment.start), min(end, segment.start + segment.size)
        if low < high:
            parts.append(segment.memory()[low - segment.start : high - segment.start].tobytes())
    return b"".join(parts)


def _difference(
    mine: list[Segment], others: list[Segment], start: int, end: int
) -> Difference | None:
    one, two = log_bytes(mine, start, end), log_bytes(others, start, end)
    length = min(len(one), len(two))
    left, right = np.frombuffer(one, np.uint8, length), np.frombuffer(two, np.uint8, length)
    unequal = np.flatnonzero(left != right)
    at = start + (int(unequal[0]) if len(unequal) else length)
    record, other = _record_at(mine, at), _record_at(others, at)
    offset = min(record.get("offset", at), other.get("offset", at))
    return Difference(offset, record, other)


def _record_at(segments: list[Segment], offset: int) -> dict[str, Any]:
    """The record that contains an offset, or what is there instead."""
    segment = next((s for s in segments if s.start <= offset < s.start + s.size), None)
    if segment is None:
        return {"offset": offset, "problem": "no segment holds it"}
    memory = segment.memory()
    inside = offset - segment.start
    for step in walk(memory, Piece(segment, 0, inside + 1), True):
        if isinstance(step, Stop):
            if step.position <= inside < step.following:
                reason = scan_reason(step.code)
                return {"offset": segment.start + step.position, "problem": reason}
            continue
        last = step.count - 1
        rows = step.rows
        if int(rows[scan.PHY, last] + rows[scan.SIZE, last]) <= offset:
            continue
        row = int(np.searchsorted(rows[scan.PHY, : step.count], offset, side="right")) - 1
        at, size = int(rows[scan.TOPIC_AT, row]), int(rows[scan.TOPIC_BYTES, row])
        return {
            "offset": int(rows[scan.PHY, row]),
            "bytes": int(rows[scan.SIZE, row]),
            "topic": memory[at : at + size].tobytes().decode(errors="replace"),
            "queue_id": int(rows[scan.QUEUE_ID, row]),
            "queue_offset": int(rows[scan.QUEUE_OFFSET, row]),
            "store_time": int(rows[scan.STORE_TIME, row]),
        }
    return {"offset": offset, "problem": "no record"}
