"""A batch read: what the driver plans, and what tasks fetch."""

from collections.abc import Iterator
from typing import Any

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from duolog import sync
from duolog.spark._fetch import fetch
from duolog.spark._options import EARLIEST, ReadOptions
from duolog.spark._plan import Planner, Queue, QueueRange, Ranges, lost, queues_of, shared
from duolog.wire import duolog_pb2 as wire


class BatchReader(DataSourceReader):
    """Reads the ranges that were there when the read was planned."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        """schema: some of the columns."""
        self._options = options
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        """Ranges of all queues. Raises UnknownTopic, BadRequest, DataLoss, Unavailable."""
        options = self._options
        with sync.Client(options.endpoints, timeout=options.timeout) as client:
            planner = Planner(client, options)
            topics = planner.topics()
            planner.check_names(topics)
            ranges = [
                found
                for queue, stats in queues_of(topics).items()
                if (found := self._range(planner, queue, stats)) is not None
            ]
        return shared(ranges, options.min_partitions)

    def _range(self, planner: Planner, queue: Queue, stats: wire.QueueStats) -> QueueRange | None:
        low, high = stats.min_offset, stats.max_offset
        start = planner.starting(queue, stats, EARLIEST)
        end = planner.ending(queue, stats)
        if start < low:
            lost(self._options, queue, start, low)
            start = low
        if end > high:
            lost(self._options, queue, high, end)
            end = high
        return QueueRange(queue, start, end) if start < end else None

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """A task's ranges as record batches."""
        if isinstance(partition, Ranges):  # else Spark's own: there is nothing to read
            yield from fetch(self._options, self._schema, partition.parts)
