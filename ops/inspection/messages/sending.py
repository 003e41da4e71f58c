"""A message that an operator sends, or sends again.

Rules: a message that is sent again is a new one. It has the body, the keys, the tag and the users'
properties of the old one; what nodes and SDKs set themselves is set anew.
"""

from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field

from duolog import Client, Message, NoSuchMessage, Receipt
from duolog._columns import ONE_KEY, RESERVED, split_keys
from duolog._tracecontext import TRACEPARENT, TRACESTATE

from duolog_server.ops.inspection.messages.copies import Copy, send_again
from duolog_server.ops.inspection.messages.trace import place_text
from duolog_server.store.metadata import is_reserved_topic

NOT_SENT_AGAIN = "only nodes write to {topic}: its messages cannot be sent again"
NODES_OWN = "%"  # retries, dead letters
NOT_COPIED = RESERVED | {ONE_KEY, TRACEPARENT, TRACESTATE}


@dataclass(frozen=True, slots=True)
class Draft:
    """A message to be sent. key: its queue follows from it, and it is found by it. keys: further
    ones. queue_id: instead of that queue; group: the replica group of it. delay_seconds: until
    consumers get it. original: the stored message that it is a copy of.
    """

    topic: str
    body: bytes
    key: str = ""
    keys: Sequence[str] = ()
    tags: str = ""
    properties: Mapping[str, str] = field(default_factory=dict)
    queue_id: int | None = None
    group: str = ""
    delay_seconds: float | None = None
    original: Message | None = None


def is_users(topic: str) -> bool:
    """Whether a topic is one of users, not one that nodes keep. Only these are sent to."""
    return not (topic.startswith(NODES_OWN) or is_reserved_topic(topic))


async def send(client: Client, draft: Draft) -> Receipt:
    """Send it. Raises what a producer's `send` does."""
    async with client.producer() as producer:

        def plainly() -> Awaitable[Receipt]:
            return producer.send(
                draft.topic,
                draft.body,
                key=draft.key or None,
                keys=draft.keys,
                tags=draft.tags or None,
                properties=dict(draft.properties),
                queue_id=draft.queue_id,
                group=draft.group or None if draft.queue_id is not None else None,
                delay=draft.delay_seconds,
            )

        if draft.original is None:
            return await plainly()
        to, delay = draft.queue_id, draft.delay_seconds
        return await send_again(
            producer, Copy(draft.original, draft.topic, NOT_COPIED, to, delay), plainly
        )


async def message_at(
    client: Client, topic: str, queue_id: int, offset: int, group: str | None = None
) -> Message:
    """The message at a place. Raises NoSuchMessage, UnknownTopic, BadRequest."""
    batch = await client.pull(topic, queue_id, offset, max_messages=1, group=group)
    found = next((one for one in batch if one.queue_offset == offset), None)
    if found is None:
        raise NoSuchMessage(f"no message at {place_text(topic, queue_id, offset)}")
    return found


def copy_of(message: Message) -> Draft:
    """The same message, to be sent again to its topic and queue."""
    properties = message.properties
    return Draft(
        message.stored_topic,
        message.body,
        keys=split_keys(properties.get("KEYS", "")),
        tags=properties.get("TAGS", ""),
        properties={name: one for name, one in properties.items() if name not in NOT_COPIED},
        queue_id=message.queue_id,
        group=message.group,
        original=message,
    )
