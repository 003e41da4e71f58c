"""Tier: sealed segments as Parquet, partitioned by topic and day, each committed once.

```
OUT/topic=orders/day=2026-11-21/broker-a-00000000000000000000.parquet
OUT/_manifest/broker-a/00000000000000000000.json     written last: the segment is tiered
```

Plain Spark reads OUT as a table; the data source's option `tier` reads it and the node as one. A
segment whose job died is done again: its files have the same names, so nothing is doubled.
"""

import json
import os
import shutil
import tempfile
import urllib.parse
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from duolog.spark import SCHEMA
from duolog.spark._columns import Columns, record_batch
from duolog.spark._tier import MANIFEST

from pipeline.columns import UNIT, columns, gather
from pipeline.errors import BadJob
from pipeline.segments import Piece, Segment, Stretch, is_written, queues_in, segments_of, walk
from pipeline.session import each
from store.checkpoint import StoreCheckpoint
from store.commitlog import scan_reason
from store.kernels import scan
from store.kernels.jit import I64, U8
from store.metadata import is_reserved_topic
from store.osdisk import OsDisk

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DAY_MS = 86_400_000
ROW_GROUP_ROWS = 64 << 10
ROW_GROUP_BYTES = 32 << 20
STAGING = "_staging"


@dataclass(frozen=True)
class TieredSegment:
    """What the manifest says of one."""

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
    """Write what is sealed, confirmed and not there yet. Raises BadJob.

    group: the replica group whose log it is.
    """
    sealed = _sealed(directory)
    if out.exists() and not out.is_dir():
        raise BadJob(f"{out} is no directory")
    out.mkdir(parents=True, exist_ok=True)
    done = {s.name: _read_manifest(out, group, s) for s in sealed}
    wanted = [s for s in sealed if done[s.name] is None]
    jobs = [TierJob(segment, str(out), group, compression) for segment in wanted]
    each(spark, tier_segment, jobs, "tier")
    found = []
    for segment in sealed:
        manifest = done[segment.name] or _read_manifest(out, group, segment)
        assert manifest is not None, "the task wrote it"
        size = sum(file["bytes"] for file in manifest["files"])
        before = done[segment.name] is not None
        found.append(
            TieredSegment(segment.name, manifest["rows"], len(manifest["files"]), size, before)
        )
    shutil.rmtree(out / STAGING, ignore_errors=True)
    return found


def _sealed(directory: Path) -> list[Segment]:
    """Segments that get no more records, as far as the replicas have them."""
    segments = segments_of(directory)
    used = [k for k, segment in enumerate(segments) if segment.memory()[:8].any()]
    checkpoint = StoreCheckpoint(OsDisk(directory, read_only=True))
    checkpoint.load(writable=False)
    confirmed = checkpoint.confirm_phy_offset or 1 << 62
    checkpoint.close()
    return [s for s in segments[: max(used, default=0)] if s.start + s.size <= confirmed]


def manifest_path(out: Path, group: str, segment: Segment) -> Path:
    """Where a segment's manifest lies."""
    return out / MANIFEST / group / f"{segment.name}.json"


def _read_manifest(out: Path, group: str, segment: Segment) -> dict[str, Any] | None:
    path = manifest_path(out, group, segment)
    try:
        return dict(json.loads(path.read_text()))
    except FileNotFoundError:
        return None
    except ValueError:
        raise BadJob(f"{path} is no manifest: remove it, and the segment is done again") from None


@dataclass(frozen=True)
class TierJob:
    """A task's part: one segment."""

    segment: Segment
    out: str
    group: str
    compression: str


def tier_segment(job: TierJob) -> int:
    """A task: write a segment's files, move them into place, then its manifest; the rows."""
    out = Path(job.out)
    (out / STAGING).mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(dir=out / STAGING))  # of this attempt alone
    writers: dict[tuple[str, str], _Writer] = {}
    memory = job.segment.memory(0, job.segment.size)
    for topic, batch in _batches(memory, job.segment):
        for day, part in _by_day(batch):
            key = topic, day
            if key not in writers:
                path = staging / f"{len(writers)}.parquet"
                writers[key] = _Writer(path, job.compression)
            writers[key].add(part)
    files = []
    for (topic, day), writer in sorted(writers.items()):
        writer.close()
        folder = out / f"topic={urllib.parse.quote(topic, safe='')}" / f"day={day}"
        target = folder / f"{job.group}-{job.segment.name}.parquet"
        folder.mkdir(parents=True, exist_ok=True)
        files.append(
            {
                "path": str(target.relative_to(out)),
                "topic": topic,
                "day": day,
                "rows": writer.rows,
                "bytes": writer.path.stat().st_size,
                "queues": {str(q): list(span) for q, span in sorted(writer.queues.items())},
            }
        )
        _sync(writer.path)
        os.replace(writer.path, target)
        _sync(folder)
    rows = sum(writer.rows for writer in writers.values())
    manifest = {
        "segment": job.segment.name,
        "start": job.segment.start,
        "end": job.segment.start + job.segment.size,
        "group": job.group,
        "rows": rows,
        "files": files,
    }
    path = manifest_path(out, job.group, job.segment)
    path.parent.mkdir(parents=True, exist_ok=True)
    staged = staging / "manifest.json"
    staged.write_text(json.dumps(manifest))
    _sync(staged)
    os.replace(staged, path)
    _sync(path.parent)
    shutil.rmtree(staging, ignore_errors=True)
    return rows


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


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
        for topic, _, chosen in queues_in(memory, step):
            if not is_reserved_topic(topic):
                batch = _columns(memory, segment, step.rows[:, chosen], topic)
                yield topic, record_batch(batch, schema, 1 << 62)


def _columns(memory: U8, segment: Segment, rows: I64, topic: str) -> Columns:
    """Rows of one queue as columns."""
    units = np.zeros(rows.shape[1], UNIT)
    units["phy"], units["size"] = rows[scan.PHY], rows[scan.SIZE]
    room = int(rows[scan.SIZE].sum())
    table, bodies, properties = gather(
        units.view(np.uint8), len(units), 0, memory, segment.start, room, False
    )
    assert table.shape[1] == len(units), "the records were verified just now"
    queue_id, offsets = int(rows[scan.QUEUE_ID, 0]), rows[scan.QUEUE_OFFSET]
    return columns(topic, queue_id, offsets, table, bodies, properties)


def _by_day(batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    """A batch cut where the day (of the store time, UTC) changes."""
    times = batch.column("store_time").cast(pa.int64()).to_numpy() // 1000
    days = times // DAY_MS
    cuts = [0, *(np.flatnonzero(np.diff(days)) + 1).tolist(), len(days)]
    for first, end in pairwise(cuts):
        when = datetime.fromtimestamp(int(days[first]) * DAY_MS / 1000, UTC)
        yield f"{when:%Y-%m-%d}", batch.slice(first, end - first)
