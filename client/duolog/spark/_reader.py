"""A batch read: what the driver plans, and what tasks fetch."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from duolog import sync
from duolog.spark._fetch import fetch
from duolog.spark._oneline import one_line
from duolog.spark._options import EARLIEST, ReadOptions, past_end
from duolog.spark._plan import Planner, Queue, QueueRange, Ranges, lost, queues_of, shared
from duolog.spark._tier import Tier
from duolog.spark._tierfile import TierFile, read_tier
from duolog.wire import duolog_pb2 as wire


@dataclass(frozen=True)
class TierPart(InputPartition):
    """What one task reads from a file."""

    file: TierFile


class BatchReader(DataSourceReader):
    """Reads the ranges that were there when the read was planned."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        """schema: some of the columns."""
        self._options = options
        self._schema = schema

    @one_line
    def partitions(self) -> list[InputPartition]:
        """Ranges of all queues. Raises UnknownTopic, BadRequest, DataLoss, Unavailable."""
        options = self._options
        tier = Tier(options.tier) if options.tier else None
        old: list[QueueRange] = []
        new: list[QueueRange] = []
        with sync.Client(options.endpoints, timeout=options.timeout) as client:
            planner = Planner(client, options)
            topics = planner.topics()
            queues = queues_of(topics)
            planner.check_names(queues)
            if tier is not None:
                for group in sorted({topic.group for topic in topics}):
                    tier.check_log(group, planner.epochs(group))
            for queue, stats in queues.items():
                reach = tier.reach(queue) if tier is not None else None
                node_min = stats.min_offset
                if reach is not None:
                    stats.min_offset = min(node_min, reach[0])
                    stats.max_offset = max(stats.max_offset, reach[1])
                part = self._range(planner, queue, stats)
                if part is None:
                    continue
                # The node may drop tomorrow what is tiered: what both have comes from the files.
                cut = part.start if reach is None else min(max(part.start, reach[1]), part.end)
                old.append(QueueRange(queue, part.start, cut))
                if cut < max(node_min, cut):
                    lost(options, queue, cut, min(node_min, part.end))
                new.append(QueueRange(queue, max(cut, node_min), part.end))
        files = tier.parts([part for part in old if part.start < part.end]) if tier else []
        ranges = shared([part for part in new if part.start < part.end], options.min_partitions)
        return [*(TierPart(file) for file in files), *ranges]

    def _range(self, planner: Planner, queue: Queue, stats: wire.QueueStats) -> QueueRange | None:
        low, high = stats.min_offset, stats.max_offset
        start = planner.starting(queue, stats, EARLIEST)
        end = planner.ending(queue, stats)
        options = self._options
        if end < low:  # all of it is gone
            if end:
                lost(options, queue, start if start < end else 0, end)
            return None
        timed = options.starting_ms is not None or options.ending_ms is not None
        if start > end and options.fail_on_data_loss and not timed:
            raise past_end(queue.topic, queue.name, start, end)
        if start < low:
            lost(options, queue, start, low)
            start = low
        if end > high:
            lost(options, queue, high, end)
            end = high
        return QueueRange(queue, start, end) if start < end else None

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """A task's ranges as record batches."""
        if isinstance(partition, TierPart):
            arrow = to_arrow_schema(self._schema, timezone="UTC")
            yield from read_tier(partition.file, arrow, self._options.tags)
        elif isinstance(partition, Ranges):  # else Spark's own: there is nothing to read
            yield from fetch(self._options, self._schema, partition.parts)
