"""Plain-Python twins of the kernels: slow, obvious, independent. crcmod and struct do the work."""

import struct
from dataclasses import dataclass

import crcmod.predefined

crc32 = crcmod.predefined.mkCrcFun("crc-32")

MAGIC_V1 = 0xDAA320A7
MAGIC_V2 = 0xDAA320AB


def java_hash(text: str) -> int:
    """String.hashCode, signed."""
    value = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for (unit,) in struct.iter_unpack(">H", units):
        value = (31 * value + unit) & 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value


def index_hash(text: str) -> int:
    """Hash of an index key."""
    value = abs(java_hash(text))
    return 0 if value == 1 << 31 else value


def encode_record(
    *,
    topic: bytes,
    queue_id: int,
    queue_offset: int,
    physical_offset: int,
    body: bytes,
    properties: bytes,
    born_time: int,
    store_time: int,
    born_host: bytes = b"\x7f\0\0\1\0\0\x2a\x9f",
    store_host: bytes = b"\x7f\0\0\1\0\0\x2a\x9f",
    flag: int = 0,
    sysflag: int = 0,
    reconsume_times: int = 0,
    prepared_offset: int = 0,
    sealed: bool = False,
) -> bytes:
    """One record, field by field as the format table says."""
    if len(born_host) == 20:
        sysflag |= 0x10
    if len(store_host) == 20:
        sysflag |= 0x20
    v2 = len(topic) > 127
    if sealed:
        if properties and not properties.endswith(b"\x02"):
            properties += b"\x02"
        properties += b"__CRC32#\x010000000000\x02"

    def build(crc_digits: bytes | None) -> bytes:
        text = properties
        if crc_digits is not None:
            text = text[:-11] + crc_digits + b"\x02"
        tail = b"".join(
            (
                struct.pack(">i", len(body)),
                body,
                struct.pack(">H", len(topic)) if v2 else struct.pack(">B", len(topic)),
                topic,
                struct.pack(">h", len(text)),
                text,
            )
        )
        head = b"".join(
            (
                struct.pack(">I", MAGIC_V2 if v2 else MAGIC_V1),
                struct.pack(">I", crc32(body) & 0x7FFFFFFF if body else 0),
                struct.pack(">ii", queue_id, flag),
                struct.pack(">qq", queue_offset, physical_offset),
                struct.pack(">iq", sysflag, born_time),
                born_host,
                struct.pack(">q", store_time),
                store_host,
                struct.pack(">iq", reconsume_times, prepared_offset),
            )
        )
        return struct.pack(">i", 4 + len(head) + len(tail)) + head + tail

    record = build(None)
    if not sealed:
        return record
    digits = f"{crc32(record[:-20]):010d}"[::-1].encode()
    return build(digits)


@dataclass(frozen=True)
class Parsed:
    """What a record says."""

    size: int
    queue_id: int
    queue_offset: int
    physical_offset: int
    store_time: int
    topic: bytes
    body: bytes
    properties: bytes


def parse_record(data: bytes, position: int, physical_offset: int) -> Parsed | None:
    """The record at a position, or None where it is not whole and right."""
    try:
        size, magic, crc, queue_id, _ = struct.unpack_from(">iIIii", data, position)
        if magic not in (MAGIC_V1, MAGIC_V2) or size < 91 or position + size > len(data):
            return None
        queue_offset, phy, sysflag, _ = struct.unpack_from(">qqIq", data, position + 20)
        at = position + 48 + (20 if sysflag & 0x10 else 8)
        (store_time,) = struct.unpack_from(">q", data, at)
        at += 8 + (20 if sysflag & 0x20 else 8) + 12
        (body_bytes,) = struct.unpack_from(">i", data, at)
        if body_bytes < 0:
            return None
        body = data[at + 4 : at + 4 + body_bytes]
        at += 4 + body_bytes
        if magic == MAGIC_V1:
            topic_bytes, at = data[at], at + 1
        else:
            (topic_bytes,) = struct.unpack_from(">H", data, at)
            at += 2
        topic = data[at : at + topic_bytes]
        at += topic_bytes
        (properties_bytes,) = struct.unpack_from(">h", data, at)
        properties = data[at + 2 : at + 2 + properties_bytes]
        if properties_bytes < 0 or at + 2 + properties_bytes != position + size:
            return None
    except (struct.error, IndexError):
        return None
    if phy != physical_offset:
        return None
    if topic.endswith(b"\0") or properties.endswith(b"\0"):
        return None
    tail = properties[-20:]
    if len(tail) == 20 and tail.startswith(b"__CRC32#\x01"):
        if not tail.endswith(b"\x02"):
            return None
        digits = tail[9:19][::-1].decode("latin-1")
        if not (digits.isascii() and digits.isdecimal()):
            return None
        if crc32(data[position : position + size - 20]) != int(digits):
            return None
    elif body and crc32(body) & 0x7FFFFFFF != crc:
        return None
    return Parsed(size, queue_id, queue_offset, phy, store_time, topic, body, properties)


def properties_of(text: bytes) -> dict[bytes, bytes]:
    """Pairs of a property block; the later of two of one name wins."""
    found = {}
    for pair in text.split(b"\x02"):
        name, separator, value = pair.partition(b"\x01")
        if separator and name and value:
            found[name] = value
    return found


def said_properties(text: bytes, unsaid: tuple[bytes, ...] = ()) -> bytes:
    """Properties as they are stored: without those of some names, and those without a value."""
    kept = []
    for pair in text.rstrip(b"\x02").split(b"\x02"):
        name, separator, _ = pair.partition(b"\x01")
        if not pair.endswith(b"\x01") and not (separator and name in unsaid):
            kept.append(pair)
    return b"\x02".join(kept)


def is_for_later(text: bytes) -> bool:
    """Whether a message is delivered at its time."""
    later = ("DELAY", "TIMER_DELIVER_MS", "TIMER_DELAY_MS", "TIMER_DELAY_SEC")
    pairs = [pair.partition(b"\x01") for pair in text.split(b"\x02")]
    return any(
        separator and name.decode("latin-1") in later and value not in (b"0", b"false")
        for name, separator, value in pairs
    )
