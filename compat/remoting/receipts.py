"""Receipts of POP, as RocketMQ's clients make them of an answer, and give them back.

A receipt is a text of eight words: the first offset that the answer has of the queue, the time of
the answer, the time for which its messages are invisible, the number of a revive queue, whether the
topic is a retry topic, the broker, the queue, the offset. All messages of an answer share the
fourth word, and a client makes the one after a change of the third from that answer's alone. There
are no revive queues here: the word is the serial number of the deliveries.
"""

import base64
import secrets
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from duolog._message import RETRY_PREFIX

from duolog_server.compat.remoting.codec.bodies import (
    read_list,
    read_name,
    read_object,
    read_text,
)
from duolog_server.compat.remoting.codec.command import NUMBER_MAX, BadRequest

ACKS_MAX = 1024  # of a batch: answers to POP whose messages it acknowledges
RECEIPTS_MAX = 4096  # of a batch
BITS_MAX = 4096  # offsets after the first one of an answer
ORIGINAL, RETRY = "0", "1"
_RETRIES = (RETRY, "2")  # the second is for names that RocketMQ 5 can choose to give retry topics
_WORDS = 8
_OFFSET_MAX = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Receipt:
    """A delivery. is_retry: of the group's retry topic for its topic. serial: proves it."""

    is_retry: bool
    broker_name: str
    queue_id: int
    offset: int
    serial: int


@dataclass(frozen=True, slots=True)
class Acks:
    """Acknowledgements of a group in a topic."""

    group: str
    topic: str
    receipts: tuple[Receipt, ...]


def new_serial() -> int:
    """A random serial number that fits the word of a receipt."""
    return secrets.randbelow(NUMBER_MAX) + 1


def origin_topic(group: str, topic: str) -> str:
    """The topic that a receipt's holder read; clients name the retry topic of a message of it."""
    return topic.removeprefix(f"{RETRY_PREFIX}{group}_")


def read_receipt(text: str) -> Receipt:
    """A receipt of a client. Raises BadRequest."""
    words = text.split(" ")
    try:
        _, _, _, serial, retry, broker_name, queue_id, offset = words[:_WORDS]
        return Receipt(retry in _RETRIES, broker_name, int(queue_id), int(offset), int(serial))
    except ValueError:
        raise BadRequest(f"the field extraInfo is not a receipt: {text[:80]!r}") from None


def read_acks(body: bytes) -> list[Acks]:
    """BatchAckMessageRequestBody. Raises BadRequest."""
    read = read_object(read_text(body), "a batch of acknowledgements")
    broker_name = read_name(read.get("brokerName"), "brokerName")
    rows = read_list(read.get("acks"), "acks", ACKS_MAX)
    found: list[Acks] = []
    left = RECEIPTS_MAX
    for row in rows:
        acks = _acks(read_object(row, "an acknowledgement"), broker_name, left)
        left -= len(acks.receipts)
        found.append(acks)
    return found


def _acks(row: Mapping[str, Any], broker_name: str, most: int) -> Acks:
    first = _number(row, "so", "startOffset")
    queue_id, serial = _number(row, "q", "queueId"), _number(row, "rq", "reviveQueueId")
    is_retry = row.get("r", row.get("retry")) in _RETRIES
    return Acks(
        read_name(row.get("c", row.get("consumerGroup")), "consumerGroup"),
        read_name(row.get("t", row.get("topic")), "topic"),
        tuple(
            Receipt(is_retry, broker_name, queue_id, first + bit, serial)
            for bit in _bits(row.get("b", row.get("bitSet")), most)
        ),
    )


def _number(row: Mapping[str, Any], name: str, long_name: str) -> int:
    value = row.get(name, row.get(long_name))
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _OFFSET_MAX:
        raise BadRequest(f"{long_name} of an acknowledgement is not a number of 0 to 2^63 - 1")
    return value


def _bits(text: object, most: int) -> Iterator[int]:
    """The numbers of the bits that are set, in bytes from the lowest bit on."""
    try:
        data = base64.b64decode(text if isinstance(text, str) else "?", validate=True)
    except ValueError:
        raise BadRequest("bitSet of an acknowledgement is not in base64") from None
    if len(data) * 8 > BITS_MAX:
        raise BadRequest(f"bitSet of an acknowledgement has more than {BITS_MAX} bits")
    number = int.from_bytes(data, "little")
    if number.bit_count() > most:
        raise BadRequest(f"a batch of acknowledgements has more than {RECEIPTS_MAX} messages")
    while number:
        lowest = number & -number
        yield lowest.bit_length() - 1
        number ^= lowest


def offset_infos(places: Iterable[tuple[str, int, int]]) -> tuple[str, str]:
    """The first offset, and all offsets, of each queue in an answer.

    places: topic, queue id and offset of each message, in the order of the records.
    """
    queues: dict[tuple[str, int], list[int]] = {}
    for topic, queue_id, offset in places:
        mark = RETRY if topic.startswith(RETRY_PREFIX) else ORIGINAL
        queues.setdefault((mark, queue_id), []).append(offset)
    first = (f"{mark} {queue} {offsets[0]}" for (mark, queue), offsets in queues.items())
    every = (
        f"{mark} {queue} {','.join(map(str, offsets))}" for (mark, queue), offsets in queues.items()
    )
    return ";".join(first), ";".join(every)


def order_counts(deliveries: Iterable[tuple[int, int, int]]) -> str:
    """How often messages were delivered before, of queue ids and offsets, in groups in order."""
    return ";".join(
        f"{ORIGINAL} qo{queue}%{offset} {count}" for queue, offset, count in deliveries if count
    )
