"""What was tiered: Parquet files that hold the older part of queues, as manifests tell."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from duolog._errors import BadRequest
from duolog.spark._plan import Queue, QueueRange

MANIFEST = "_manifest"
BATCH_ROWS = 30_000


@dataclass(frozen=True)
class TierFile:
    """A task's part: the rows of one file that lie in some ranges of its topic's queues."""

    path: str
    topic: str
    ranges: tuple[QueueRange, ...]


class Tier:
    """The files of a tiered store, and which offsets of which queues they hold."""

    def __init__(self, root: str) -> None:
        """Read the manifests. Raises BadRequest where there are none, or one is damaged."""
        self._root = Path(root)
        self._files: dict[Queue, list[tuple[int, int, str]]] = {}
        paths = sorted((self._root / MANIFEST).glob("*/*.json"))
        if not paths:
            raise BadRequest(f"option 'tier': {root} has no {MANIFEST}/GROUP/SEGMENT.json")
        for path in paths:
            try:
                self._take(json.loads(path.read_text()))
            except (ValueError, KeyError, TypeError) as error:
                raise BadRequest(f"option 'tier': {path} is no manifest ({error})") from None

    def _take(self, manifest: dict[str, Any]) -> None:
        for file in manifest["files"]:
            for queue_id, (first, end) in file["queues"].items():
                queue = Queue(str(file["topic"]), str(manifest["group"]), int(queue_id))
                self._files.setdefault(queue, []).append((int(first), int(end), str(file["path"])))

    def reach(self, queue: Queue) -> tuple[int, int] | None:
        """The offsets [first, end) that the files hold of a queue without a gap; None for none.

        A segment may be missing in between: what comes after it is left to the nodes.
        """
        spans = sorted(self._files.get(queue, ()))
        if not spans:
            return None
        first, end, _ = spans[0]
        for low, high, _ in spans:
            if low > end:
                break
            end = max(end, high)
        return first, end

    def parts(self, ranges: list[QueueRange]) -> list[TierFile]:
        """The files that hold some ranges."""
        by_path: dict[str, list[QueueRange]] = {}
        for part in ranges:
            for first, end, path in self._files.get(part.queue, ()):
                low, high = max(first, part.start), min(end, part.end)
                if low < high:
                    by_path.setdefault(path, []).append(QueueRange(part.queue, low, high))
        return [
            TierFile(str(self._root / path), found[0].queue.topic, tuple(found))
            for path, found in sorted(by_path.items())
        ]


def read_tier(part: TierFile, schema: pa.Schema, tags: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
    """The rows of a file, as the columns of a schema."""
    needed = {field.name for field in schema} - {"topic"} | {"queue_id", "queue_offset"}
    if tags:
        needed.add("tags")
    with pq.ParquetFile(part.path) as file:
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
