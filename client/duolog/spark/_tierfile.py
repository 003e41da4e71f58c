"""One file of a tiered store: verified as a whole, then read."""

import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from duolog._columns import crc32
from duolog._errors import Fatal
from duolog.spark._plan import QueueRange

BATCH_ROWS = 30_000
CRC_STEP = 16 << 20


class TierDamaged(Fatal):
    """A file of a tiered store is missing, or is not the one its manifest names."""

    def __init__(self, path: Path | str, found: str, wanted: str) -> None:
        super().__init__(
            f"{path} {found}, but its manifest says {wanted}: restore this file; or, if "
            "the node still has the segment, remove the manifest and run tier again"
        )


@dataclass(frozen=True)
class TierFile:
    """A task's part: the rows of one file that lie in some ranges of its topic's queues."""

    path: str
    topic: str
    ranges: tuple[QueueRange, ...]
    rows: int  # of the whole file
    size: int
    crc32: int | None  # None: written by a version that noted none


def check_size(path: Path | str, size: int) -> None:
    """Raise TierDamaged for a file that is not there, or has another size."""
    try:
        found = Path(path).stat().st_size
    except (FileNotFoundError, NotADirectoryError):
        raise TierDamaged(path, "is missing", f"{size:,} bytes") from None
    if found != size:
        raise TierDamaged(path, f"has {found:,} bytes", f"{size:,}")


def file_crc32(path: Path | str) -> int:
    """CRC-32 of a file's bytes."""
    with open(path, "rb") as file:
        if not file.seek(0, 2):
            return crc32(b"")
        with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
            found = 0
            with memoryview(mapped) as view:
                for at in range(0, len(view), CRC_STEP):
                    found = crc32(view[at : at + CRC_STEP], start=found)
            return found


def _verified(part: TierFile) -> pq.ParquetFile:
    """The file, opened. Raises TierDamaged."""
    check_size(part.path, part.size)
    if part.crc32 is not None and (found := file_crc32(part.path)) != part.crc32:
        raise TierDamaged(part.path, f"has CRC-32 {found:08x}", f"{part.crc32:08x}")
    try:
        file = pq.ParquetFile(part.path)
    except (pa.ArrowException, OSError) as error:
        raise TierDamaged(part.path, f"cannot be read ({error})", f"{part.rows:,} rows") from None
    if file.metadata.num_rows != part.rows:
        file.close()
        raise TierDamaged(part.path, f"has {file.metadata.num_rows:,} rows", f"{part.rows:,}")
    return file


def read_tier(part: TierFile, schema: pa.Schema, tags: tuple[str, ...]) -> Iterator[Any]:
    """The rows of a file, as the columns of a schema. Raises TierDamaged."""
    needed = {field.name for field in schema} - {"topic"} | {"queue_id", "queue_offset"}
    if tags:
        needed.add("tags")
    with _verified(part) as file:
        for batch in file.iter_batches(BATCH_ROWS, columns=sorted(needed)):
            queues, offsets = batch.column("queue_id"), batch.column("queue_offset")
            inside = [
                pc.and_(
                    pc.equal(queues, wanted.queue.queue_id),
                    pc.and_(pc.greater_equal(offsets, wanted.start), pc.less(offsets, wanted.end)),
                )
                for wanted in part.ranges
            ]
            keep = reduce(pc.or_, inside)
            if tags:
                keep = pc.and_(keep, pc.is_in(batch.column("tags"), value_set=pa.array(tags)))
            chosen = batch.filter(keep)
            if not chosen.num_rows:
                continue
            arrays = [
                pa.repeat(pa.scalar(part.topic), chosen.num_rows)
                if field.name == "topic"
                else chosen.column(field.name).cast(field.type)
                for field in schema
            ]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)
