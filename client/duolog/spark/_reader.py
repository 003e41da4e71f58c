"""A batch read: what the driver plans, and what tasks fetch."""

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from duolog import sync
from duolog._errors import BadRequest, DuologError, UnknownTopic
from duolog.spark._columns import record_batch
from duolog.spark._options import EARLIEST, LATEST, Offsets, ReadOptions, Where
from duolog.wire import duolog_pb2 as wire

BATCH_MESSAGES = 30_000
BATCH_BYTES = 4 << 20
WAIT_SECONDS = 0.5  # for a replica that is behind


class DataLoss(DuologError):
    """Messages that were asked for are gone: retention or damage took them."""


@dataclass(frozen=True)
class QueueRange(InputPartition):
    """One task's part of a queue: offsets from start to before end."""

    topic: str
    group: str
    queue_id: int
    start: int
    end: int


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
            ranges = [
                found
                for topic in self._topics(client)
                for stats in topic.stats
                if (found := self._range(client, topic, stats)) is not None
            ]
        return list(_split(ranges, options.min_partitions))

    def _topics(self, client: sync.Client) -> list[wire.TopicReply]:
        options = self._options
        if options.pattern:
            pattern = re.compile(options.pattern)
            found = [t for t in client.admin.topics() if pattern.fullmatch(t.topic)]
            if not found:
                raise UnknownTopic(f"no topic matches {options.pattern!r}")
        else:
            found = client.admin.topics(options.topics)
            missing = set(options.topics) - {topic.topic for topic in found}
            if missing:
                raise UnknownTopic(f"topic {min(missing)!r} does not exist")
        named = {topic.topic for topic in found}
        for option, offsets in (
            ("startingOffsets", options.starting),
            ("endingOffsets", options.ending),
        ):
            if isinstance(offsets, dict) and (strange := offsets.keys() - named):
                raise BadRequest(
                    f"option {option!r} names topic {min(strange)!r}, which is not read"
                )
        return sorted(found, key=lambda topic: (topic.topic, topic.group))

    def _range(
        self, client: sync.Client, topic: wire.TopicReply, stats: wire.QueueStats
    ) -> QueueRange | None:
        options = self._options
        low, high = stats.min_offset, stats.max_offset
        start = self._place(options.starting, topic, stats, low)
        end = self._place(options.ending, topic, stats, high)
        place = (topic.topic, stats.queue_id)
        if options.starting_ms is not None:
            start = client.admin.offset_at_time(*place, options.starting_ms, group=topic.group)
        if options.ending_ms is not None:
            end = client.admin.offset_at_time(*place, options.ending_ms, group=topic.group)
        if start < low:
            self._lost(topic.topic, stats.queue_id, start, low)
            start = low
        if end > high:
            self._lost(topic.topic, stats.queue_id, high, end)
            end = high
        if start >= end:
            return None
        return QueueRange(topic.topic, topic.group, stats.queue_id, start, end)

    @staticmethod
    def _place(
        where: Where | Offsets, topic: wire.TopicReply, stats: wire.QueueStats, default: int
    ) -> int:
        if isinstance(where, dict):
            row = where.get(topic.topic, {})
            queue = str(stats.queue_id)
            where = row.get(f"{topic.group}/{queue}", row.get(queue, default))
        if where == EARLIEST:
            return stats.min_offset
        return stats.max_offset if where == LATEST else int(where)

    def _lost(self, topic: str, queue_id: int, first: int, end: int) -> None:
        if self._options.fail_on_data_loss:
            raise DataLoss(
                f"{topic}/{queue_id} does not have its messages {first} to {end - 1}; "
                "option 'failOnDataLoss' = false reads without them"
            )

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """A range's messages as record batches, in the order of their offsets."""
        if not isinstance(partition, QueueRange):  # Spark's own, where there is nothing to read
            return
        arrow = to_arrow_schema(self._schema, timezone="UTC")
        offset, end = partition.start, partition.end
        with sync.Client(self._options.endpoints, timeout=self._options.timeout) as client:
            moved = time.monotonic()
            while offset < end:
                batch = client.pull(
                    partition.topic,
                    partition.queue_id,
                    offset,
                    max_messages=min(BATCH_MESSAGES, end - offset),
                    max_bytes=BATCH_BYTES,
                    wait=WAIT_SECONDS,
                    tags=self._options.tags,
                    group=partition.group,
                ).wire
                following = batch.next_offset
                if batch.lost or batch.status == wire.OFFSET_TOO_SMALL:
                    self._lost(partition.topic, partition.queue_id, offset, following)
                if batch.count:
                    yield record_batch(batch, arrow, end)
                if following > offset:
                    offset, moved = following, time.monotonic()
                elif following < offset or time.monotonic() - moved > self._options.timeout:
                    # There when the read was planned, and given up by an unclean election since; or
                    # no replica that answers has it.
                    self._lost(partition.topic, partition.queue_id, offset, end)
                    return


def _split(ranges: list[QueueRange], least: int) -> Iterator[QueueRange]:
    """Long ranges in pieces, so that there are about as many as asked for."""
    total = sum(part.end - part.start for part in ranges)
    most = max(1, -(-total // least)) if least > len(ranges) else total or 1
    for part in ranges:
        pieces = -(-(part.end - part.start) // most)
        size = -(-(part.end - part.start) // pieces)
        for start in range(part.start, part.end, size):
            end = min(start + size, part.end)
            yield QueueRange(part.topic, part.group, part.queue_id, start, end)
