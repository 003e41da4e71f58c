"""Receipts: positions of stored messages, a producer's answer."""

from dataclasses import dataclass
from typing import Any

from duolog._descriptions import QueuePlace
from duolog._errors import ResultUnknown
from duolog._places import Slot
from duolog.wire import duolog_pb2 as wire

_STATUS_NAMES: dict[int, str] = {number: name for name, number in wire.PutStatus.items()}


@dataclass(slots=True)
class Unconfirmed:
    """What is known of messages that have no definite answer.

    status: the last one with which a master stored them and could not confirm it; empty for none.
    """

    status: str = ""

    def error(self, why: str) -> ResultUnknown:
        """Tell a program that waits no longer."""
        stored = "the messages may or may not be stored"
        if self.status:
            stored = f"the master stored the messages ({self.status}), and they may be lost with it"
        return ResultUnknown(f"{why}; {stored}", self.status)


class Receipt:
    """Position of a stored message.

    With the status PUT_OK, it survives what the node's `durability` says, `duolog cluster status`
    shows it: by default (`process`, as in RocketMQ) a kill of the process, and no power cut of the
    machine; `power` both; `replicas` the loss of a node; `replicas+power` a power cut of all.
    """

    # A view: a receipt is made for each message, and few are read. No constructor: see Posted.
    __slots__ = ("_part", "_place", "_producer_id")
    _part: "Part"
    _place: int
    _producer_id: bytes

    @property
    def topic(self) -> str:
        """Topic name."""
        return self._part.topic

    @property
    def queue_id(self) -> int:
        """Queue in the topic: its name, with `group`, which it keeps where it moves."""
        return self._part.queue_id

    @property
    def queue_offset(self) -> int:
        """Index in the queue."""
        return self._part.queue_offset + self._place

    @property
    def unique_key(self) -> str:
        """The message's UNIQ_KEY property."""
        return unique_key(self._producer_id, self._part.sequence + self._place)

    @property
    def store_time_ms(self) -> int:
        """When the node stored it, ms since 1970."""
        return self._part.store_time_ms

    @property
    def status(self) -> str:
        """PUT_OK; of a producer that accepts weak receipts, also why it is not confirmed."""
        return self._part.status

    @property
    def duplicate(self) -> bool:
        """Whether the node had it already, from an earlier try."""
        return self._part.duplicate

    @property
    def epoch(self) -> int:
        """Number of the mastership that answered."""
        return self._part.epoch

    @property
    def group(self) -> str:
        """Replica group in which the queue was made."""
        return self._part.group

    @property
    def place(self) -> QueuePlace:
        """Where the queue was when the node answered; of a delayed message, where it waits."""
        return self._part.place

    def _values(self) -> tuple[Any, ...]:
        return tuple(getattr(self, name) for name in _RECEIPT_FIELDS)

    def __eq__(self, other: object) -> bool:
        """Whether they tell of the same message, and the same of it."""
        return isinstance(other, Receipt) and self._values() == other._values()

    def __hash__(self) -> int:
        """As they are equal."""
        return hash(self._values())

    def __repr__(self) -> str:
        """All that it tells."""
        told = zip(_RECEIPT_FIELDS, self._values(), strict=True)
        return f"Receipt({', '.join(f'{name}={value!r}' for name, value in told)})"


_RECEIPT_FIELDS = (
    *("topic", "queue_id", "queue_offset", "unique_key", "store_time_ms"),
    *("status", "duplicate", "epoch", "group", "place"),
)


def status_name(status: int) -> str:
    """The name of a put's status."""
    return _STATUS_NAMES.get(status, str(status))


def unique_key(producer_id: bytes, sequence: int) -> str:
    """UNIQ_KEY that a node gives the message of a producer's sequence."""
    return (producer_id + sequence.to_bytes(6, "big")).hex().upper()


@dataclass(frozen=True, slots=True)
class BatchReceipt:
    """Positions of a stored batch: one part per request, in the order of its messages.

    What it survives with the status PUT_OK: see `Receipt`.
    """

    count: int
    parts: tuple["Part", ...]

    @property
    def status(self) -> str:
        """PUT_OK where every part is."""
        return next((part.status for part in self.parts if part.status != "PUT_OK"), "PUT_OK")


@dataclass(frozen=True, slots=True)
class Part:
    """Messages [first, first + count) of a batch, stored at consecutive queue offsets.

    group, queue_id: the queue's name. place: see `Receipt`.
    """

    topic: str
    queue_id: int
    first: int
    count: int
    queue_offset: int
    sequence: int
    store_time_ms: int
    status: str
    duplicate: bool = False
    epoch: int = 0
    group: str = ""
    place: QueuePlace = QueuePlace("", 0)

    def receipt(self, k: int, producer_id: bytes) -> Receipt:
        """Position of the k-th of its messages."""
        made = Receipt()
        made._part = self
        made._place = k
        made._producer_id = producer_id
        return made


@dataclass(frozen=True, slots=True)
class Sent:
    """Messages [first, first + count) of a batch, and the queue that they were sent to."""

    name: Slot
    place: Slot
    first: int
    count: int


def parts_of(request: wire.AppendRequest, reply: wire.AppendReply, sent: Sent) -> list[Part]:
    """Positions of messages that were sent, from an answer."""
    moved, place = reply.HasField("stored_at"), QueuePlace(*sent.place)
    if moved:
        place = QueuePlace(reply.stored_at.group, reply.stored_at.queue_id)
    status, parts, done = _STATUS_NAMES[reply.status], list[Part](), 0
    for run in reply.duplicates:
        # Of a producer whose id was given, it may be in another queue.
        here = run.topic == request.topic and (moved or run.queue_id == request.queue_id)
        group, queue_id = sent.name if here else (sent.place[0], run.queue_id)
        parts.append(
            Part(
                run.topic,
                queue_id,
                sent.first + done,
                run.count,
                run.queue_offset,
                request.sequence + done,
                reply.store_time,
                status,
                True,
                reply.master_epoch,
                group,
                place,
            )
        )
        done += run.count
    if done < sent.count:
        parts.append(
            Part(
                request.topic,
                sent.name[1],
                sent.first + done,
                sent.count - done,
                reply.queue_offset,
                request.sequence + done,
                reply.store_time,
                status,
                False,
                reply.master_epoch,
                sent.name[0],
                place,
            )
        )
    return parts
