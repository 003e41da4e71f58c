"""The work of tasks: pull ranges of queues, the next batch while the last one is worked on."""

import time
from collections.abc import Iterable, Iterator
from typing import Any

from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from duolog import sync
from duolog._caller import Caller
from duolog._errors import UnknownTopic
from duolog._sparkworker import task_begins
from duolog.spark._columns import record_batch, wire_columns
from duolog.spark._local import MESSAGES_MIN, local_queue
from duolog.spark._options import ReadOptions, WriteOptions
from duolog.spark._plan import QueueRange, lost
from duolog.wire import duolog_pb2 as wire

BATCH_MESSAGES = 30_000
BATCH_BYTES = 4 << 20
WAIT_MS = 500  # for a replica that is behind

_clients: dict[tuple[str, float, Caller], sync.Client] = {}


def client_of(options: ReadOptions | WriteOptions) -> sync.Client:
    """A client for the life of this process: Spark's workers do one task after the other.

    Another one where the file with the password has changed.
    """
    caller = options.caller.with_password()
    key = options.endpoints, options.timeout, caller
    if key not in _clients:
        _clients[key] = caller.client(options.endpoints, options.timeout)
    return _clients[key]


def fetch(options: ReadOptions, schema: StructType, parts: Iterable[QueueRange]) -> Iterator[Any]:
    """Ranges of queues as record batches, each range in the order of its offsets.

    Raises DataLoss, and what `duolog.Client.fetch` raises.
    """
    task_begins()
    arrow = to_arrow_schema(schema, timezone="UTC")
    columns = wire_columns(schema.names)
    client = client_of(options)
    for part in parts:
        yield from _fetch_one(client, options, arrow, columns, part)


def _fetch_one(
    client: sync.Client,
    options: ReadOptions,
    arrow: Any,
    columns: list[wire.Column],
    part: QueueRange,
) -> Iterator[Any]:
    queue, end = part.queue, part.end
    offset = part.start
    if options.local_reads and not options.tags and end - offset >= MESSAGES_MIN:
        files = local_queue(client, options.endpoints, queue)
        if files is not None:
            for columns_read in files.batches(offset, end):
                offset = columns_read.next_offset
                yield record_batch(columns_read, arrow, end)
            if offset >= end:
                return

    def pull(offset: int, from_slaves: bool) -> Any:
        request = wire.PullRequest(
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=offset,
            max_messages=min(BATCH_MESSAGES, end - offset),
            max_bytes=BATCH_BYTES,
            wait_ms=WAIT_MS,
            tags=options.tags,
            columns=columns,
        )
        return client.start(lambda made: made.fetch(request, queue.group, from_slaves=from_slaves))

    moved, from_slaves = time.monotonic(), True
    pulled = pull(offset, from_slaves)
    try:
        while True:
            try:
                batch: wire.MessageBatch = pulled.result()
            except UnknownTopic:
                if from_slaves:  # one may not have heard of the topic yet
                    from_slaves, pulled = False, pull(offset, False)
                    continue
                lost(options, queue, offset, end)  # deleted since the read was planned
                return
            following = batch.next_offset
            if batch.lost or batch.status == wire.OFFSET_TOO_SMALL:
                lost(options, queue, offset, following)
            if following > offset:
                offset, moved = following, time.monotonic()
            elif following < offset or time.monotonic() - moved > options.timeout:
                # There when the read was planned, and given up by an unclean election since; or
                # neither a slave nor the master has it.
                lost(options, queue, offset, end)
                return
            else:  # a slave that has fallen behind answers so for as long as it is
                from_slaves = False
            if offset < end:
                pulled = pull(offset, from_slaves)
            if batch.count:
                yield record_batch(batch, arrow, end)
            if offset >= end:
                return
    finally:
        pulled.cancel()
