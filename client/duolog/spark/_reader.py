"""A batch read: what the driver plans, and what tasks fetch."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from duolog._descriptions import QueueStats, TopicDescription
from duolog._start import Start
from duolog.spark._fetch import fetch
from duolog.spark._oneline import one_line
from duolog.spark._options import ReadOptions, past_end
from duolog.spark._plan import Planner, Queue, QueueRange, Ranges, lost, queues_of, shared
from duolog.spark._tier import Tier, sources
from duolog.spark._tierfile import TierFile, read_tier


@dataclass(frozen=True)
class TierPart(InputPartition):
    """A part of a file that one task reads."""

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
        with options.caller.client(options.endpoints, options.timeout) as client:
            planner = Planner(client, options)
            topics = planner.topics()
            queues = queues_of(topics)
            if tier is not None:
                _check_groups(tier, planner, topics)
                queues |= _tiered_only(tier, queues)
            planner.check_names(queues)
            for queue, stats in queues.items():
                held = tier.held(queue) if tier is not None else []
                on_nodes = stats.min_offset, stats.max_offset
                if held:
                    low, high = held[0][0], held[-1][1]
                    stats = replace(
                        stats,
                        min_offset=min(stats.min_offset, low),
                        max_offset=max(stats.max_offset, high),
                    )
                part = self._range(planner, queue, stats)
                if part is None:
                    continue
                found = sources(part, held, on_nodes)
                for gone in found.gone:
                    lost(options, queue, gone.start, gone.end)
                old += found.files
                new += found.nodes
        files = tier.parts(old) if tier is not None else []
        ranges = shared(new, options.min_partitions)
        return [*(TierPart(file) for file in files), *ranges]

    def _range(self, planner: Planner, queue: Queue, stats: QueueStats) -> QueueRange | None:
        low, high = stats.min_offset, stats.max_offset
        start = planner.starting(queue, stats, Start.EARLIEST)
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


def _check_groups(tier: Tier, planner: Planner, topics: list[TopicDescription]) -> None:
    """Raise BadRequest if files are not of the log that they are read beside."""
    for group in sorted({topic.group for topic in topics}):
        epochs = planner.epochs(group)
        tier.check_log(group, epochs)
        tier.check_names(group, epochs)


def _tiered_only(tier: Tier, queues: dict[Queue, QueueStats]) -> dict[Queue, QueueStats]:
    """Queues of the same topics that only files have: a topic was made again with fewer."""
    known = {(queue.topic, queue.group) for queue in queues}
    found = {}
    for queue in tier.queues():
        if (queue.topic, queue.group) in known and queue not in queues:
            first, _ = tier.held(queue)[0]
            stats = QueueStats(queue_id=queue.queue_id, min_offset=first, max_offset=first)
            found[queue] = stats
    return found
