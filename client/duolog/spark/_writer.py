"""Writes: tasks stage their rows, and one call publishes what all of them staged.

A batch is identified by its sink and number, never by its partitions: whatever is repeated (a task,
a whole batch, the call that publishes it), one of the tries becomes visible.
"""

import time
import uuid
import zlib
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from duolog import Client, sync
from duolog._errors import BadRequest, MessageTooLarge, UnknownTopic
from duolog._sink import Sink, SinkState
from duolog._sparkworker import task_begins
from duolog.spark._fetch import client_of
from duolog.spark._oneline import one_line
from duolog.spark._options import WriteOptions
from duolog.spark._rows import Request, RowsToRequests, check_writable

IN_FLIGHT_MAX = 4
QUERY = "sql.streaming.queryId"


@dataclass(frozen=True)
class Staged(WriterCommitMessage):
    """Staged requests of one task."""

    sink: str
    group: str  # replica group
    partition: int
    staged: tuple[int, ...]
    query: str = ""  # of a stream, its `foreachBatch` included: its query's id


class _Writer:
    """Writing shared by batches and streams."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        """Raises BadRequest if the rows are not messages."""
        check_writable(schema, options.topic)
        self._options = options

    def _stage(self, sink_name: str, batches: Iterator[Any], query: str) -> Staged:
        """Stage a task's rows, a few requests on their way at a time."""
        task_begins()
        client = client_of(self._options)
        group = _group(client, sink_name, self._options.topic)
        sink = client.run(lambda made: made.sink(sink_name, group))
        context = TaskContext.get()
        partition = context.partitionId() if context is not None else 0
        dealer: RowsToRequests | None = None
        staged: list[int] = []
        under_way: deque[Any] = deque()
        try:
            for batch in _joined(batches):
                if dealer is None:
                    queues = _queues(client, sink.group)
                    dealer = RowsToRequests(self._options.topic, queues, partition)
                born = int(time.time() * 1000)
                for request in dealer.requests(batch):
                    if len(under_way) >= IN_FLIGHT_MAX:
                        staged += under_way.popleft().result()
                    under_way.append(client.start(_staging(sink, request, born)))
            while under_way:
                staged += under_way.popleft().result()
        finally:
            for future in under_way:
                future.cancel()
        return Staged(sink_name, sink.group, partition, tuple(staged), query)

    def _publish(self, number: int, messages: list[Any]) -> None:
        """Make a batch visible, unless it is. Raises BadRequest if a query publishes a number again
        that it does not repeat.

        A publisher that the user names knows by itself what was published, and outside of streams
        each further write with a published number is a repeat.
        """
        parts = sorted((m for m in messages if m is not None), key=lambda m: m.partition)
        staged = [offset for part in parts for offset in part.staged]
        if not staged:
            return
        options, told = self._options, parts[0]
        with options.caller.client(options.endpoints, options.timeout) as client:

            async def publish(made: Client) -> SinkState | None:
                sink = await made.sink(told.sink, told.group)
                publisher = options.publisher or told.query
                before = await sink.publish(number, staged, options.contents, publisher)
                return await sink.state() if before else None

            found: SinkState | None = client.run(publish)
        if found is not None and told.query and not options.publisher:
            check_repeated(told.sink, number, told.query, found)


class BatchWriter(_Writer, DataSourceArrowWriter):
    """One batch write, published when all tasks are done."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        # Made once for the whole job: the same in all tasks and in commit.
        self._sink = options.sink or f"batch-{uuid.uuid4()}"
        with options.caller.client(options.endpoints, options.timeout) as client:
            if options.topic and not client.admin.topics([options.topic]):
                raise BadRequest(f"option 'topic': {options.topic!r} does not exist")

    @one_line
    def write(self, iterator: Iterator[Any]) -> Staged:
        """Stage a task's rows."""
        return self._stage(self._sink, iterator, _query())

    @one_line
    def commit(self, messages: list[Any]) -> None:
        """Publish. Raises BadRequest."""
        self._publish(self._options.batch, messages)

    def abort(self, messages: list[Any]) -> None:
        """Abandon staged messages: they never become visible."""


class StreamWriter(_Writer, DataSourceStreamArrowWriter):
    """Micro-batches of a query, each published once, however often it is requested."""

    @one_line
    def write(self, iterator: Iterator[Any]) -> Staged:
        """Stage a task's rows."""
        query = _query()
        sink = self._options.sink or (f"query-{query}" if query else "")
        if not sink:
            raise BadRequest("option 'sinkId' is missing, and the query has no id: give one")
        return self._stage(sink, iterator, query)

    @one_line
    def commit(self, messages: list[Any], batchId: int) -> None:
        """Publish, with the name that the tasks staged for. Raises BadRequest."""
        self._publish(batchId, messages)

    def abort(self, messages: list[Any], batchId: int) -> None:
        """Abandon staged messages: they never become visible; published ones stay."""


def _query() -> str:
    """The id of the query that this task works for; empty outside of streams."""
    context = TaskContext.get()
    return (context.getLocalProperty(QUERY) if context is not None else None) or ""


def check_repeated(sink: str, number: int, query: str, state: SinkState) -> None:
    """Raise BadRequest if a micro-batch that the sink has published is none that Spark repeats.

    It repeats the last one of a query at most. Another one has other rows, which nobody would see:
    the checkpoint is a new one, or an older copy.
    """
    others = state.publisher not in ("", query)  # none: published by a version that noted none
    if number < state.batch or others:
        raise BadRequest(
            f"sink {sink!r} has published its batches up to "
            f"{state.batch}{(f' for query {state.publisher}' if others else '')}, but "
            f"this query starts batch {number}: its checkpoint does not belong to those "
            "batches. Nothing of this batch was published; restore that checkpoint, or "
            "give another sinkId"
        )


def _group(client: sync.Client, sink: str, topic: str) -> str | None:
    """The replica group a sink writes to, None for what follows from its name."""
    return client.run(lambda made: sink_group(made, sink, topic)) if topic else None


async def sink_group(client: Client, sink: str, topic: str) -> str:
    """The replica group a sink writes to: one that holds its topic, always the same.

    Where the sink has published before, it stays where it is: a topic may come to lie in more
    groups. One that has nothing of it but queues that moved there takes none by itself.
    Raises UnknownTopic.
    """
    found = await client.admin.topics([topic])
    groups = sorted(each.group for each in found if each.queues)
    if not groups:
        raise UnknownTopic(f"topic {topic!r} does not exist")
    if len(groups) > 1:
        for group in groups:
            if await (await client.sink(sink, group)).state() is not None:
                return group
    return groups[zlib.crc32(sink.encode()) % len(groups)]


def _staging(
    sink: Sink, request: Request, born: int
) -> Callable[[Client], Coroutine[Any, Any, list[int]]]:
    return lambda _: _staged(sink, request, born)


async def _staged(sink: Sink, request: Request, born: int) -> list[int]:
    """Stage a request, in parts where the node takes no message as large as it."""
    try:
        made = await sink.stage(
            request.topic, request.queue_id, request.bodies, request.texts, born
        )
        return [made]
    except MessageTooLarge:
        if request.count < 2:
            raise
        parts = [await _staged(sink, half, born) for half in request.halves()]
        return [*parts[0], *parts[1]]


def _queues(client: sync.Client, group: str) -> dict[str, int]:
    """Queues of the topics that a replica group holds."""
    found = [topic for topic in client.admin.topics() if topic.group == group and topic.queues]
    return {topic.topic: topic.queues for topic in found}


def _joined(batches: Iterator[Any], least: int = 30_000, most: int = 3 << 20) -> Iterator[Any]:
    """Spark's batches of 10,000 rows, several in one."""
    held: list[Any] = []
    rows = size = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        held.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= least or size >= most:
            yield pa.Table.from_batches(held).combine_chunks().to_batches()[0]
            held, rows, size = [], 0, 0
    if held:
        yield pa.Table.from_batches(held).combine_chunks().to_batches()[0]
