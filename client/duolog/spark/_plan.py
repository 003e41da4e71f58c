"""The driver's plan before tasks read: topics, the ranges of their queues, and how tasks
share them."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from pyspark.sql.datasource import InputPartition

from duolog import Client, sync
from duolog._descriptions import QueueStats, TopicDescription
from duolog._errors import BadRequest, DuologError, UnknownTopic
from duolog._start import Start
from duolog.spark._options import Offsets, ReadOptions, Times, Where

T = TypeVar("T")
PACKED_MESSAGES = 10_000  # fewer are not worth a task of their own


class DataLoss(DuologError):
    """Messages that were asked for are gone: retention or damage took them."""


class Queue(NamedTuple):
    """One queue of a cluster."""

    topic: str
    group: str
    queue_id: int

    @property
    def name(self) -> str:
        """Within its topic."""
        return f"{self.group}/{self.queue_id}"


@dataclass(frozen=True)
class QueueRange:
    """A part of a queue: offsets from start to before end."""

    queue: Queue
    start: int
    end: int


@dataclass(frozen=True)
class Ranges(InputPartition):
    """Ranges that one task reads from nodes."""

    parts: tuple[QueueRange, ...]


class Planner:
    """Asks the nodes for topics and their queues."""

    def __init__(self, client: sync.Client, options: ReadOptions) -> None:
        self._client = client
        self._options = options

    def topics(self) -> list[TopicDescription]:
        """The topics that are read, once for each replica group. Raises UnknownTopic."""
        options = self._options
        if options.pattern:
            pattern = re.compile(options.pattern)
            found = [t for t in self._client.admin.topics() if pattern.fullmatch(t.topic)]
            if not found:
                raise UnknownTopic(f"no topic matches {options.pattern!r}")
        else:
            found = self._client.admin.topics(options.topics)
            missing = set(options.topics) - {topic.topic for topic in found}
            if missing:
                raise UnknownTopic(f"topic {min(missing)!r} does not exist")
        return sorted(found, key=lambda topic: (topic.topic, topic.group))

    def topics_left(self) -> list[TopicDescription]:
        """The topics that still exist."""
        found = self._client.admin.topics(self._options.topics)
        return sorted(found, key=lambda topic: (topic.topic, topic.group))

    def ends_on_masters(self, queues: Iterable[Queue]) -> dict[Queue, int]:
        """Current ends of queues, from the masters of their replica groups; without those whose
        group has no master that answers. A slave that is behind, or cut off, may say less."""
        wanted = set(queues)

        async def read(made: Client) -> dict[Queue, int]:
            masters = {
                each.group: each.master_endpoint for each in (await made.admin.route()).groups
            }
            found = {}
            for group in sorted({queue.group for queue in wanted}):
                names = sorted({queue.topic for queue in wanted if queue.group == group})
                for topic in await made.topics_at(masters.get(group, ""), names):
                    for stats in topic.stats:
                        found[Queue(topic.topic, group, stats.queue_id)] = stats.max_offset
            return {queue: end for queue, end in found.items() if queue in wanted}

        ends: dict[Queue, int] = self._client.run(read)
        return ends

    def epochs(self, group: str) -> dict[int, tuple[int, str]]:
        """The oldest epochs of a replica group's log by number: start offset and nonce."""

        async def read(made: Client) -> dict[int, tuple[int, str]]:
            for endpoint in await made.replicas(group):
                status = await made.status_of(endpoint)
                if status is not None and status.replication.log_epochs:
                    epochs = status.replication.log_epochs
                    return {each.epoch: (each.start, f"{each.nonce:016x}") for each in epochs}
            return {}

        found: dict[int, tuple[int, str]] = self._client.run(read)
        return found

    def check_names(self, queues: Iterable[Queue]) -> None:
        """Raise BadRequest if offsets are not given for exactly the queues that are read."""
        known = list(queues)
        for option, offsets in (
            ("startingOffsets", self._options.starting),
            ("endingOffsets", self._options.ending),
            ("startingOffsetsByTimestamp", self._options.starting_ms),
            ("endingOffsetsByTimestamp", self._options.ending_ms),
        ):
            if isinstance(offsets, dict):
                _check_queues(option, offsets, known)

    def starting(self, queue: Queue, stats: QueueStats, default: Start) -> int:
        """The start offset for a read of a queue."""
        return self._at(queue, stats, self._options.starting, self._options.starting_ms, default)

    def ending(self, queue: Queue, stats: QueueStats) -> int:
        """The end offset for a read of a queue."""
        return self._at(queue, stats, self._options.ending, self._options.ending_ms, Start.LATEST)

    def _at(
        self,
        queue: Queue,
        stats: QueueStats,
        where: Where | Offsets,
        time_ms: Times | None,
        default: Start,
    ) -> int:
        if isinstance(time_ms, dict):
            time_ms = _given(time_ms, queue)
        if time_ms is not None:
            place = (queue.topic, queue.queue_id)
            return self._client.admin.offset_at_time(*place, time_ms, group=queue.group)
        if isinstance(where, dict):
            # A queue that came after the names were checked begins, or ends, where others do.
            where = default if (given := _given(where, queue)) is None else given
        if where == Start.EARLIEST:
            return stats.min_offset
        return stats.max_offset if where == Start.LATEST else int(where)


def _given(table: Mapping[str, Mapping[str, T]], queue: Queue) -> T | None:
    """What an option says of a queue, which has its replica group in its name or not."""
    row = table.get(queue.topic, {})
    return row.get(queue.name, row.get(str(queue.queue_id)))


def _check_queues(
    option: str, offsets: Offsets | dict[str, dict[str, int]], queues: list[Queue]
) -> None:
    """Raise BadRequest for a queue that is named and not read, read and not named, or ambiguous."""
    read = {queue.topic for queue in queues}
    if strange := offsets.keys() - read:
        raise BadRequest(f"option {option!r} names topic {min(strange)!r}, which is not read")
    missing = []
    for queue in queues:
        row = offsets.get(queue.topic, {})
        plain = str(queue.queue_id)
        if plain in row and queue.name in row:
            raise BadRequest(
                f"option {option!r}: {queue.topic} has both {plain!r} and {queue.name!r}"
            )
        alike = [q.name for q in queues if (q.topic, q.queue_id) == (queue.topic, queue.queue_id)]
        if plain in row and len(alike) > 1:
            raise BadRequest(
                f"option {option!r}: {queue.topic} has several queues {plain}: give "
                f"{' and '.join(map(repr, alike))}"
            )
        if plain not in row and queue.name not in row:
            missing.append(f"{queue.topic}/{queue.name}")
    known = {(q.topic, name) for q in queues for name in (q.name, str(q.queue_id))}
    for topic, row in offsets.items():
        for name in row:
            if (topic, name) not in known:
                raise BadRequest(
                    f"option {option!r} names queue {name!r} of {topic}, which does not exist"
                )
    if missing:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise BadRequest(
            f"option {option!r} does not name {', '.join(missing[:3])}{more}: it must name every "
            "queue that is read (-2 is earliest, -1 latest)"
        )


def queues_of(topics: Iterable[TopicDescription]) -> dict[Queue, QueueStats]:
    """All queues, by name."""
    return {
        Queue(topic.topic, topic.group, stats.queue_id): stats
        for topic in topics
        for stats in topic.stats
    }


def lost(options: ReadOptions, queue: Queue, first: int, end: int) -> None:
    """Raise DataLoss, unless the reader disabled it."""
    if options.fail_on_data_loss:
        raise DataLoss(
            f"{queue.topic}/{queue.queue_id} no longer has messages {first} to "
            f"{end - 1}; set option 'failOnDataLoss' to false to read without them"
        )


def shared(ranges: list[QueueRange], least: int) -> list[InputPartition]:
    """Ranges as the parts of tasks: split until there are about as many as asked for, or, where
    nothing was asked for, several short ones in one."""
    if least:
        return [Ranges((part,)) for part in _split(ranges, least)]
    packed: list[InputPartition] = []
    parts: list[QueueRange] = []
    for part in ranges:
        parts.append(part)
        if sum(each.end - each.start for each in parts) >= PACKED_MESSAGES:
            packed.append(Ranges(tuple(parts)))
            parts = []
    return [*packed, Ranges(tuple(parts))] if parts else packed


def _split(ranges: list[QueueRange], least: int) -> Iterator[QueueRange]:
    total = sum(part.end - part.start for part in ranges)
    most = max(1, -(-total // least)) if least > len(ranges) else total or 1
    for part in ranges:
        pieces = -(-(part.end - part.start) // most)
        size = -(-(part.end - part.start) // pieces)
        for start in range(part.start, part.end, size):
            yield QueueRange(part.queue, start, min(start + size, part.end))
