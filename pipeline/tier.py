"""Tier: sealed segments as Parquet, partitioned by topic and day, each committed once.

Plain Spark reads the folder as a table; the data source's option `tier` reads it and the node as
one. A segment whose job died is done again: its files have the same names, so nothing is doubled.
For the layout of the folder, and how two jobs share it, see `tierarchive`.
"""

import urllib.parse
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from duolog.spark import SCHEMA
from duolog.spark._columns import Columns, record_batch
from duolog.spark._tierfile import file_crc32

from duolog_server.pipeline.columns import UNIT, columns, gather
from duolog_server.pipeline.errors import BadJob
from duolog_server.pipeline.logidentity import LogIdentity, identity_of
from duolog_server.pipeline.segments import (
    Piece,
    Segment,
    Stretch,
    is_written,
    queues_in,
    segments_of,
    walk,
)
from duolog_server.pipeline.session import each
from duolog_server.pipeline.tierarchive import Archive
from duolog_server.store.checkpoint import StoreCheckpoint
from duolog_server.store.commitlog import scan_reason
from duolog_server.store.kernels import scan
from duolog_server.store.kernels.jit import I64, U8
from duolog_server.store.metadata import is_reserved_topic
from duolog_server.store.osdisk import OsDisk

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DAY_MS = 86_400_000
ROW_GROUP_ROWS = 64 << 10
ROW_GROUP_BYTES = 32 << 20
MANIFEST_VERSION = 2


@dataclass(frozen=True)
class TieredSegment:
    """The content of a segment's manifest."""

    segment: str
    rows: int
    files: int
    bytes: int
    before: bool = False  # an earlier run had done it


def tier(
    spark: "SparkSession",
    directory: Path,
    out: Path,
    group: str = "broker-a",
    compression: str = "zstd",
) -> list[TieredSegment]:
    """Write the segments that are sealed, confirmed and not tiered yet. Raises BadJob.

    group: the replica group that the log belongs to.
    """
    archive = Archive(out, group)
    segments, confirmed = segments_of(directory), _confirmed(directory)
    sealed = _sealed(segments, confirmed)
    if sealed:
        identity = identity_of(directory, segments, confirmed)
        archive.settle(identity.part())
    jobs = [
        TierJob(segment, str(out), group, compression, _told(identity, segment))
        for segment in sealed
        if archive.manifest(segment) is None
    ]
    written = {
        job.segment.name
        for job, done in zip(jobs, each(spark, tier_segment, jobs, "tier"), strict=True)
        if done
    }
    found = []
    for segment in sealed:
        manifest = archive.manifest(segment)
        assert manifest is not None, "a task wrote it"
        size = sum(file["bytes"] for file in manifest["files"])
        before = segment.name not in written
        found.append(
            TieredSegment(segment.name, manifest["rows"], len(manifest["files"]), size, before)
        )
    return found


def check(directory: Path, out: Path, group: str) -> None:
    """Raise BadJob for what shows without Spark."""
    Archive(out, group)
    segments_of(directory)


def _confirmed(directory: Path) -> int:
    """The offset up to which the replicas have the log."""
    checkpoint = StoreCheckpoint(OsDisk(directory, read_only=True))
    checkpoint.load(writable=False)
    confirmed = checkpoint.confirm_phy_offset or 1 << 62
    checkpoint.close()
    return confirmed


def _sealed(segments: list[Segment], confirmed: int) -> list[Segment]:
    """Segments that get no more records and that the replicas have completely."""
    used = [k for k, segment in enumerate(segments) if segment.memory()[:8].any()]
    return [s for s in segments[: max(used, default=0)] if s.start + s.size <= confirmed]


def _told(identity: LogIdentity, segment: Segment) -> LogIdentity:
    """A segment's part of the log, from its manifest: the next one's first record continues it."""
    return identity.part((segment.start, segment.start + segment.size))


@dataclass(frozen=True)
class TierJob:
    """A task's part: one segment."""

    segment: Segment
    out: str
    group: str
    compression: str
    identity: LogIdentity = LogIdentity()


def tier_segment(job: TierJob) -> bool:
    """A task: write a segment's files, move them into place, then its manifest.

    False if another job had it done meanwhile. Raises BadJob.
    """
    archive = Archive(Path(job.out), job.group)
    with archive.writing(job.segment) as staging:
        if archive.manifest(job.segment) is not None:
            return False
        writers = _written(job, staging)
        files = []
        for (topic, day), writer in sorted(writers.items()):
            folder = Path(f"topic={urllib.parse.quote(topic, safe='')}") / f"day={day}"
            target = folder / f"{job.group}-{job.segment.name}.parquet"
            files.append(
                {
                    "path": str(target),
                    "topic": topic,
                    "day": day,
                    "rows": writer.rows,
                    "bytes": writer.path.stat().st_size,
                    "crc32": file_crc32(writer.path),
                    "queues": {str(q): list(span) for q, span in sorted(writer.queues.items())},
                }
            )
            archive.place(writer.path, target)
        manifest = {
            "version": MANIFEST_VERSION,
            "segment": job.segment.name,
            "start": job.segment.start,
            "end": job.segment.start + job.segment.size,
            "group": job.group,
            "log": job.identity.to_json(),
            "rows": sum(writer.rows for writer in writers.values()),
            "files": files,
        }
        archive.commit(staging, job.segment, manifest)
    return True


def _written(job: TierJob, staging: Path) -> "dict[tuple[str, str], _Writer]":
    """A segment's messages in files of their own, by topic and day."""
    writers: dict[tuple[str, str], _Writer] = {}
    memory = job.segment.memory(0, job.segment.size)
    for topic, batch in _batches(memory, job.segment):
        for day, part in _by_day(batch):
            key = topic, day
            if key not in writers:
                path = staging / f"{len(writers)}.parquet"
                writers[key] = _Writer(path, job.compression)
            writers[key].add(part)
    for writer in writers.values():
        writer.close()
    return writers


def _arrow_schema() -> pa.Schema:
    from pyspark.sql.pandas.types import to_arrow_schema

    whole = to_arrow_schema(SCHEMA, timezone="UTC")
    return pa.schema([field for field in whole if field.name != "topic"])


class _Writer:
    """One Parquet file: rows sorted by queue and offset in each row group."""

    def __init__(self, path: Path, compression: str) -> None:
        self.path = path
        self.rows = 0
        self.queues: dict[int, tuple[int, int]] = {}  # [first, end) of each
        self._schema = _arrow_schema()
        self._file = pq.ParquetWriter(
            path, self._schema, compression=compression, use_dictionary=["tags", "queue_id"]
        )
        self._held: list[pa.RecordBatch] = []
        self._held_rows = self._held_bytes = 0

    def add(self, batch: pa.RecordBatch) -> None:
        queue_id = batch.column("queue_id")[0].as_py()
        offsets = batch.column("queue_offset")
        first, end = offsets[0].as_py(), offsets[-1].as_py() + 1
        known = self.queues.get(queue_id, (first, end))
        self.queues[queue_id] = (min(known[0], first), max(known[1], end))
        self.rows += batch.num_rows
        self._held.append(batch)
        self._held_rows += batch.num_rows
        self._held_bytes += batch.nbytes
        if self._held_rows >= ROW_GROUP_ROWS or self._held_bytes >= ROW_GROUP_BYTES:
            self._write()

    def _write(self) -> None:
        if self._held:
            table = pa.Table.from_batches(self._held)
            ordered = table.sort_by([("queue_id", "ascending"), ("queue_offset", "ascending")])
            self._file.write_table(ordered)
            self._held = []
            self._held_rows = self._held_bytes = 0

    def close(self) -> None:
        self._write()
        self._file.close()


def _batches(memory: U8, segment: Segment) -> Iterator[tuple[str, pa.RecordBatch]]:
    """The visible messages of users' topics, a queue's stretch at a time."""
    schema = _arrow_schema()
    for step in walk(memory, Piece(segment, 0, segment.size), True):
        if not isinstance(step, Stretch):
            sound = step.code in (scan.SCAN_END, scan.SCAN_BLANK)
            if not sound and (step.following < len(memory) or is_written(memory, step.position)):
                raise BadJob(
                    f"{segment.path} has no valid record at {step.position} "
                    f"({scan_reason(step.code)}): audit it, and repair it from a replica"
                )
            continue
        for (topic, _), chosen in queues_in(memory, step):
            if not is_reserved_topic(topic):
                batch = _columns(memory, segment, step.rows[:, chosen], topic)
                yield topic, record_batch(batch, schema, 1 << 62)


def _columns(memory: U8, segment: Segment, rows: I64, topic: str) -> Columns:
    """Rows of one queue as columns."""
    units = np.zeros(rows.shape[1], UNIT)
    units["phy"], units["size"] = rows[scan.PHY], rows[scan.SIZE]
    gathered = gather(units.view(np.uint8), memory, segment.start, False)
    assert gathered.table.shape[1] == len(units), "the records were verified just now"
    queue_id, offsets = int(rows[scan.QUEUE_ID, 0]), rows[scan.QUEUE_OFFSET]
    return columns((topic, queue_id), offsets, gathered)


def _by_day(batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    """A batch cut where the day (of the store time, UTC) changes."""
    times = batch.column("store_time").cast(pa.int64()).to_numpy() // 1000
    days = times // DAY_MS
    cuts = [0, *(np.flatnonzero(np.diff(days)) + 1).tolist(), len(days)]
    for first, end in pairwise(cuts):
        when = datetime.fromtimestamp(int(days[first]) * DAY_MS / 1000, UTC)
        yield f"{when:%Y-%m-%d}", batch.slice(first, end - first)
