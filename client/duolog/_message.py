"""Consumed messages: batches of columns, and messages as views into them."""

from array import array
from collections.abc import Iterator

from duolog._columns import (
    ONE_KEY,
    ONE_KEY_SET,
    crc32,
    parse_properties,
    split_keys,
    unpack_numbers,
)
from duolog._errors import CorruptBatch
from duolog.wire import duolog_pb2 as wire

_STORE_PROPERTIES = ("__CRC32#",)
RETRY_PREFIX = "%RETRY%"
DEAD_LETTER_PREFIX = "%DLQ%"


class Batch:
    """Messages of one queue as columns (Arrow's layout): nothing is copied per message.

    Attributes:
        topic: topic name.
        queue_id: queue in the topic.
        count: messages.
        bodies: all bodies, one after the other.
        body_offsets: count + 1 numbers; body k is bodies[body_offsets[k]:body_offsets[k + 1]].
        properties, property_offsets: property texts in the same way.
        next_offset: queue offset to read on from.
        lost: queue entries in this range whose records are gone or corrupt.
        group: replica group of the queue.
    """

    __slots__ = (
        "_wire",
        "bodies",
        "body_offsets",
        "count",
        "group",
        "lost",
        "next_offset",
        "properties",
        "property_offsets",
        "queue_id",
        "queue_offsets",
        "topic",
    )

    def __init__(self, batch: wire.MessageBatch, group: str = "") -> None:
        """Check and take a batch from the wire. Raises CorruptBatch."""
        check_crc(batch)
        _check_shapes(batch)
        self._wire = batch
        self.group = group
        self.topic = batch.topic
        self.queue_id = batch.queue_id
        self.count = batch.count
        self.bodies = batch.bodies
        self.body_offsets = unpack_numbers(batch.body_offsets, "I")
        self.properties = batch.properties
        self.property_offsets = unpack_numbers(batch.property_offsets, "I")
        self.next_offset = batch.next_offset
        self.lost = batch.lost
        base = batch.queue_offset_base
        self.queue_offsets: range | list[int] = range(base, base + batch.count)
        if batch.queue_offset_deltas:
            deltas = unpack_numbers(batch.queue_offset_deltas, "I")
            self.queue_offsets = [base + delta for delta in deltas]

    @property
    def wire(self) -> wire.MessageBatch:
        """The reply as received, for programs that use its columns directly."""
        return self._wire

    @property
    def physical_offsets(self) -> "array[int]":
        """Commit-log offsets."""
        return unpack_numbers(self._wire.physical_offsets, "q")

    @property
    def store_times_ms(self) -> "array[int]":
        """When the node stored them, ms since 1970."""
        return unpack_numbers(self._wire.store_times, "q")

    @property
    def born_times_ms(self) -> "array[int]":
        """When the producer sent them, ms since 1970."""
        return unpack_numbers(self._wire.born_times, "q")

    @property
    def flags(self) -> "array[int]":
        """The users' own flags."""
        return unpack_numbers(self._wire.flags, "i")

    @property
    def reconsume_times(self) -> "array[int]":
        """How often they were consumed before."""
        return unpack_numbers(self._wire.reconsume_times, "i")

    def body_list(self) -> list[bytes]:
        """All bodies."""
        bodies, offsets = self.bodies, self.body_offsets
        return [bodies[offsets[k] : offsets[k + 1]] for k in range(self.count)]

    def __len__(self) -> int:
        """Messages."""
        return self.count

    def __getitem__(self, index: int) -> "Message":
        """One message."""
        if not 0 <= index < self.count:
            raise IndexError(index)
        return Message(self, index)

    def __iter__(self) -> "Iterator[Message]":
        """All messages, as views."""
        return (Message(self, index) for index in range(self.count))


def _check_shapes(batch: wire.MessageBatch) -> None:
    """Raise CorruptBatch unless every column has the size that the count asks for."""
    count = batch.count
    offsets = 4 * (count + 1) if count else 0
    whole = (
        len(batch.body_offsets) == offsets
        and len(batch.property_offsets) == offsets
        and len(batch.queue_offset_deltas) in (0, 4 * count)
        and all(
            len(column) == 8 * count
            for column in (batch.physical_offsets, batch.store_times, batch.born_times)
        )
        and all(
            len(column) == 4 * count
            for column in (batch.flags, batch.sysflags, batch.reconsume_times)
        )
    )
    if not whole:
        raise CorruptBatch(
            f"a batch of {batch.topic}/{batch.queue_id} has columns that do not fit its "
            f"{count} messages"
        )


def check_crc(batch: wire.MessageBatch) -> None:
    """Raise CorruptBatch where a batch is not what the node sent."""
    if batch.crc32 != crc32(
        batch.bodies, batch.body_offsets, batch.properties, batch.property_offsets
    ):
        raise CorruptBatch(f"a batch of {batch.topic}/{batch.queue_id} was damaged in transit")


class Message:
    """One message, a view into its batch."""

    __slots__ = ("_batch", "_index")

    def __init__(self, batch: Batch, index: int) -> None:
        """Point at message `index` of a batch."""
        self._batch = batch
        self._index = index

    @property
    def batch(self) -> Batch:
        """The batch that it came in."""
        return self._batch

    @property
    def topic(self) -> str:
        """The topic it was sent to."""
        if self._batch.topic.startswith(RETRY_PREFIX):
            return self.properties.get("RETRY_TOPIC", self._batch.topic)
        return self._batch.topic

    @property
    def stored_topic(self) -> str:
        """The topic it was read from: the group's retry topic, where it was sent back."""
        return self._batch.topic

    @property
    def queue_id(self) -> int:
        """Queue, of the topic it was read from."""
        return self._batch.queue_id

    @property
    def group(self) -> str:
        """Replica group of the queue."""
        return self._batch.group

    @property
    def queue_offset(self) -> int:
        """Index in the queue."""
        return self._batch.queue_offsets[self._index]

    @property
    def physical_offset(self) -> int:
        """Byte position in the commit log."""
        return self._batch.physical_offsets[self._index]

    @property
    def store_time_ms(self) -> int:
        """When the node stored it, ms since 1970."""
        return self._batch.store_times_ms[self._index]

    @property
    def born_time_ms(self) -> int:
        """When the producer sent it, ms since 1970."""
        return self._batch.born_times_ms[self._index]

    @property
    def flag(self) -> int:
        """The user's own flag."""
        return self._batch.flags[self._index]

    @property
    def sysflag(self) -> int:
        """RocketMQ's bits: compression, transaction, address families."""
        return unpack_numbers(self._batch.wire.sysflags, "i")[self._index]

    @property
    def reconsume_times(self) -> int:
        """How often it was consumed before."""
        return self._batch.reconsume_times[self._index]

    @property
    def body(self) -> bytes:
        """The body."""
        batch, index = self._batch, self._index
        return batch.bodies[batch.body_offsets[index] : batch.body_offsets[index + 1]]

    @property
    def size(self) -> int:
        """Bytes of the body."""
        offsets, index = self._batch.body_offsets, self._index
        return offsets[index + 1] - offsets[index]

    @property
    def property_text(self) -> bytes:
        """All properties as they are stored."""
        batch, index = self._batch, self._index
        start, end = batch.property_offsets[index], batch.property_offsets[index + 1]
        return batch.properties[start:end]

    @property
    def properties(self) -> dict[str, str]:
        """All properties, the well-known ones too."""
        found = parse_properties(self.property_text)
        for name in _STORE_PROPERTIES:
            found.pop(name, None)
        return found

    @property
    def tags(self) -> str:
        """The TAGS property, empty for none."""
        return self.properties.get("TAGS", "")

    @property
    def keys(self) -> list[str]:
        """The words of the KEYS property, or all of it where ONE_KEY says that it is one key."""
        text = self.properties.get("KEYS", "")
        one = self.properties.get(ONE_KEY) == ONE_KEY_SET
        return [text] if one and text else split_keys(text)

    @property
    def unique_key(self) -> str:
        """The UNIQ_KEY property: the id the producer gave it."""
        return self.properties.get("UNIQ_KEY", "")

    def __repr__(self) -> str:
        """Its position and size."""
        return f"Message({self.topic}/{self.queue_id}@{self.queue_offset}, {self.size} bytes)"
