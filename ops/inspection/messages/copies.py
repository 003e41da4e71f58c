"""A stored message that is sent again, regardless of the limits on clients' sends.

Rules: limits of clients do not keep a stored message from being sent again: they may have been
others when it was stored, or RocketMQ's. What exceeds them goes as the copy of the stored message,
to the replica group that has it; that node compares the two.
"""

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from duolog import BadRequest, Message, Receipt, UnknownTopic
from duolog._columns import COPY_MARK, NAME_VALUE_SEPARATOR, PROPERTY_SEPARATOR
from duolog._producer import Message as Outgoing
from duolog._producer import Producer
from duolog._terms import Terms
from duolog._unrouted import Place

from duolog_server.store.record import KEPT_FLAGS, PROPERTIES_BYTES_MAX, room_for

_ROOM = PROPERTIES_BYTES_MAX - room_for({"UNIQ_KEY": 32})  # which the copy gets anew
_OF_ALL = frozenset(("KEYS", "TAGS"))  # reserved, and users' own all the same


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
