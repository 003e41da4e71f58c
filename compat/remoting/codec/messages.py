"""Messages on their way in: the properties text, and the CRC of a body.

Properties are `name 0x01 value 0x02` each, the last separator may be missing.
"""

import zlib

PAIR, END = b"\x01", b"\x02"
# Properties of a message that is delivered at its time.
LATER = (b"DELAY", b"TIMER_DELIVER_MS", b"TIMER_DELAY_MS", b"TIMER_DELAY_SEC")


def properties_text(text: str) -> bytes:
    """The properties of a header as records have them, without the last separator."""
    return without_empty(text.encode().rstrip(END))


def without_empty(text: bytes) -> bytes:
    """Properties without those whose value is empty: RocketMQ reads no such ones."""
    if PAIR + END not in text and not text.endswith(PAIR):
        return text
    return END.join(pair for pair in text.split(END) if not pair.endswith(PAIR))


def property_of(text: bytes, name: bytes) -> str | None:
    """The value of one property; None if the message lacks it."""
    wanted = name + PAIR
    if wanted not in text:
        return None
    for pair in text.split(END):
        if pair.startswith(wanted):
            return pair[len(wanted) :].decode(errors="replace")
    return None


def without(text: bytes, *names: bytes) -> bytes:
    """Properties without those of some names."""
    for name in names:
        if name in text:
            pairs = text.split(END)
            return END.join([pair for pair in pairs if pair.partition(PAIR)[0] not in names])
    return text


def body_crc(body: bytes) -> int:
    """RocketMQ's CRC of a body: CRC-32 without its first bit, which would be the sign in Java."""
    return zlib.crc32(body) & 0x7FFFFFFF
