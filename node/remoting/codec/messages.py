"""Messages on their way in: the properties text, and the body of a batch.

Properties are `name 0x01 value 0x02` each, the last separator may be missing. A batch is one
message behind the other:

| bytes | field |
|------:|-------|
| 4 | length of all of it |
| 4, 4 | magic code and CRC; both unused |
| 4 | flag |
| 4, n | body |
| 2, n | properties |

Source: Apache RocketMQ 4.9.8, MessageDecoder.encodeMessage.
"""

import struct
import zlib
from dataclasses import dataclass

from node.remoting.codec.errors import BadRequest

PAIR, END = b"\x01", b"\x02"
_FIXED = struct.Struct(">iiiii")  # with the length of the body
_SHORT = struct.Struct(">h")
LEAST_BYTES = _FIXED.size + _SHORT.size
BATCH_MESSAGES_MAX = 1 << 16


@dataclass(frozen=True, slots=True)
class BatchMessage:
    """One message of a batch. properties: without the last separator."""

    flag: int
    body: bytes
    properties: bytes


def properties_text(text: str) -> bytes:
    """The properties of a header as records have them, without the last separator."""
    return without_empty(text.encode().rstrip(END))


def without_empty(text: bytes) -> bytes:
    """Properties without those whose value is empty: RocketMQ reads no such ones."""
    if PAIR + END not in text and not text.endswith(PAIR):
        return text
    return END.join(pair for pair in text.split(END) if not pair.endswith(PAIR))


def property_of(text: bytes, name: bytes) -> str | None:
    """The value of one property; None where there is no such property."""
    wanted = name + PAIR
    if wanted not in text:
        return None
    for pair in text.split(END):
        if pair.startswith(wanted):
            return pair[len(wanted) :].decode(errors="replace")
    return None


def without(text: bytes, *names: bytes) -> bytes:
    """Properties without those of some names."""
    if not any(name + PAIR in text for name in names):
        return text
    return END.join(pair for pair in text.split(END) if pair.partition(PAIR)[0] not in names)


def read_batch(body: bytes) -> list[BatchMessage]:
    """The messages of a batch, at least one. Raises BadRequest."""
    found: list[BatchMessage] = []
    at = 0
    while at < len(body):
        if len(found) == BATCH_MESSAGES_MAX:
            raise BadRequest(f"a batch has more than {BATCH_MESSAGES_MAX} messages")
        message, at = _next_of(body, at)
        found.append(message)
    if not found:
        raise BadRequest("a batch has no messages")
    return found


def _next_of(body: bytes, at: int) -> tuple[BatchMessage, int]:
    left = len(body) - at
    if left < LEAST_BYTES:
        raise BadRequest(f"a batch ends within a message: {left} bytes are left")
    size, _, _, flag, body_size = _FIXED.unpack_from(body, at)
    if not LEAST_BYTES <= size <= left:
        raise BadRequest(f"a message of a batch has {size} bytes, {left} are left")
    if not 0 <= body_size <= size - LEAST_BYTES:
        raise BadRequest(f"a message of {size} bytes in a batch has a body of {body_size}")
    begin = at + _FIXED.size
    texts = begin + body_size
    (text_size,) = _SHORT.unpack_from(body, texts)
    end = texts + _SHORT.size + text_size
    if text_size < 0 or end != at + size:
        raise BadRequest(f"a message of {size} bytes in a batch has {text_size} of properties")
    text = body[texts + _SHORT.size : end].rstrip(END)
    return BatchMessage(flag, body[begin:texts], text), end


def write_batch(messages: list[BatchMessage]) -> bytes:
    """A batch, as clients make it."""
    parts: list[bytes] = []
    for one in messages:
        size = LEAST_BYTES + len(one.body) + len(one.properties)
        parts += (_FIXED.pack(size, 0, 0, one.flag, len(one.body)), one.body)
        parts += (_SHORT.pack(len(one.properties)), one.properties)
    return b"".join(parts)


def body_crc(body: bytes) -> int:
    """RocketMQ's CRC of a body: CRC-32 without its first bit, which would be the sign in Java."""
    return zlib.crc32(body) & 0x7FFFFFFF


__all__ = [
    "END",
    "BatchMessage",
    "body_crc",
    "properties_text",
    "property_of",
    "read_batch",
    "without",
    "without_empty",
    "write_batch",
]
