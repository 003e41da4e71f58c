"""Messages that an operator looks for."""

from collections.abc import Sequence
from urllib.parse import urlencode

from duolog import (
    BadRequest,
    Client,
    DelayedMessage,
    FoundMessage,
    Message,
    NoPermission,
    NoSuchMessage,
    UnknownTopic,
)

from duolog_server.ops.inspection.messages.places import OFFSET_MAX, Place
from duolog_server.ops.inspection.messages.trace import TraceRecord, parse
from duolog_server.ops.inspection.topics import parts_of
from duolog_server.store.metadata import TRACE_TOPIC

RECORDS_MAX = 64  # of one message in the trace topic


async def by_time(
    client: Client, topic: str, begin_ms: int, end_ms: int, count: int
) -> list[Message]:
    """The first messages of a topic that were stored in a span of time, in all its queues.

    Raises UnknownTopic. end_ms: 0 for no end. count: at most so many.
    """
    found: list[Message] = []
    for part in await parts_of(client, topic):
        for queue in part.stats:
            place = topic, queue.queue_id
            offset = await client.admin.offset_at_time(*place, begin_ms, group=part.group)
            batch = await client.pull(*place, offset, max_messages=count, group=part.group)
            found += [one for one in batch if not end_ms or one.store_time_ms <= end_ms]
            # At once: a topic may have very many queues, and a message keeps its batch.
            found = sorted(found, key=lambda one: (one.store_time_ms, one.physical_offset))[:count]
    return found


async def delayed_at(client: Client, topic: str, due_ms: int, place: Place) -> DelayedMessage:
    """The message of a topic that waits for a time, at a place. Raises NoSuchMessage."""
    before = f"{due_ms}/0/{place.offset - 1}" if place.offset else f"{due_ms - 1}/0/{OFFSET_MAX}"
    after = urlencode({place.replica_group: before})
    page = await client.admin.delayed_page(after=after, limit=1, group=place.replica_group)
    for row in page.rows:
        if (row.topic, row.level, row.queue_offset) == (topic, 0, place.offset):
            return row
    raise NoSuchMessage(f"no message of {topic} waits at {place} for this time any more")


async def client_records(client: Client, unique_key: str) -> list[TraceRecord]:
    """Trace records of RocketMQ's clients for a message; empty if the caller may not read them."""
    if not unique_key:
        return []
    try:
        notes: Sequence[FoundMessage] = await client.admin.find(
            TRACE_TOPIC, key=unique_key, count=RECORDS_MAX
        )
    except (BadRequest, NoPermission, NoSuchMessage, UnknownTopic):
        return []
    records = [record for note in notes for record in parse(note.body)]
    return [record for record in records if record.message_id == unique_key]
