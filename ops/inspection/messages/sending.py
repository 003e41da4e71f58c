"""A message that an operator sends, or sends again.

Rules: a message that is sent again is a new one. It has the body, the keys, the tag and the users'
properties of the old one; what nodes and SDKs set themselves is set anew. Limits of clients do not
keep a stored message from being sent again: they may have been others when it was stored, or
RocketMQ's. What exceeds them goes as the copy of the stored message, to the replica group that has
it; that node compares the two.
"""

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from duolog import BadRequest, Client, Message, NoSuchMessage, Receipt, UnknownTopic
from duolog._columns import (
    COPY_MARK,
    NAME_VALUE_SEPARATOR,
    ONE_KEY,
    PROPERTY_SEPARATOR,
    RESERVED,
    split_keys,
)
from duolog._producer import Message as Outgoing
from duolog._producer import Producer
from duolog._terms import Terms
from duolog._tracecontext import TRACEPARENT, TRACESTATE
from duolog._unrouted import Place

from duolog_server.ops.inspection.messages.trace import place_text
from duolog_server.store.metadata import is_reserved_topic
from duolog_server.store.record import KEPT_FLAGS, PROPERTIES_BYTES_MAX, room_for

_ROOM = PROPERTIES_BYTES_MAX - room_for({"UNIQ_KEY": 32})  # which the copy gets anew
_OF_ALL = frozenset(("KEYS", "TAGS"))  # reserved, and users' own all the same
NOT_SENT_AGAIN = "only nodes write to {topic}: its messages cannot be sent again"
NODES_OWN = "%"  # retries, dead letters


@dataclass(frozen=True, slots=True)
class Copy:
    """A stored message, and where to it goes once more. queue_id: None for any of the replica
    group. left_out: properties that the copy does not have. mark: the value of COPY_MARK.
    """

    of: Message
    topic: str
    left_out: frozenset[str]
    queue_id: int | None = None
    delay_seconds: float | None = None
    mark: str = ""

    def text(self) -> bytes:
        """The copy's properties; without the mark where a record has no room for it."""
        kept = {
            name: value
            for name, value in self.of.properties.items()
            if name in _OF_ALL or name not in self.left_out
        }
        text = _text(kept)
        if self.mark:
            kept[COPY_MARK] = self.mark
            marked = _text(kept)
            text = marked if len(marked) <= _ROOM else text
        return text

    def outgoing(self) -> Outgoing:
        """The copy as a producer sends it."""
        of = self.of
        terms = Terms.of(self.delay_seconds, None, None, time.time_ns() // 1_000_000)
        origin = of.stored_topic, of.queue_id, of.queue_offset
        terms = Terms(terms.deliver_time, copied_from=origin)
        return Outgoing(self.topic, None, terms, of.body, self.text())


def _text(properties: dict[str, str]) -> bytes:
    return PROPERTY_SEPARATOR.join(
        name + NAME_VALUE_SEPARATOR + value for name, value in properties.items()
    ).encode()


async def send_again(
    producer: Producer, copy: Copy, plainly: Callable[[], Awaitable[Receipt]]
) -> Receipt:
    """Send it plainly, with many others, or as a copy where it has what clients may not send.

    Raises what a producer's `send` does.
    """
    refused: BadRequest | None = None
    if not copy.of.sysflag & KEPT_FLAGS:
        try:
            return await plainly()
        except BadRequest as error:
            refused = error
    place = Place(copy.topic, None, copy.queue_id, copy.of.group)
    try:
        return await producer.send_copy(place, copy.outgoing())
    except UnknownTopic:  # in that replica group
        if refused is not None:
            raise refused from None
        raise


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
