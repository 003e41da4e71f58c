"""Batches as columns: one blob and an offsets array of count + 1 little-endian uint32.

Rules: nothing is done per message that C code can do for the batch.
"""

import struct
import sys
from array import array
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate

from duolog._checks import checked_text, checked_texts, encoded
from duolog._errors import BadRequest

try:
    from isal.isal_zlib import crc32 as _crc32  # ten times as fast, where it is installed
except ImportError:
    from zlib import crc32 as _crc32

_ONE = struct.Struct("<II")  # offsets of a single value
NAME_VALUE_SEPARATOR = "\x01"
PROPERTY_SEPARATOR = "\x02"
_BIG_ENDIAN = sys.byteorder == "big"
# The store makes these itself, or acts on them: user properties may not be named so.
RESERVED = frozenset(
    (
        *("KEYS", "TAGS", "UNIQ_KEY", "WAIT", "DELAY", "REAL_TOPIC", "REAL_QID", "RETRY_TOPIC"),
        *("ORIGIN_MESSAGE_ID", "RECONSUME_TIME", "MAX_RECONSUME_TIMES", "TRAN_MSG", "PGROUP"),
        *("MIN_OFFSET", "MAX_OFFSET", "BUYER_ID", "TRANSFER_FLAG", "CORRECTION_FLAG", "MQ2_FLAG"),
        *("CONSUME_START_TIME", "TRANSACTION_CHECK_TIMES", "CHECK_IMMUNITY_TIME_IN_SECONDS"),
        *("TRAN_PREPARED_QUEUE_OFFSET", "INNER_NUM", "INNER_BASE", "INNER_MULTI_DISPATCH"),
        *("INNER_MULTI_QUEUE_OFFSET", "POP_CK", "POP_CK_OFFSET", "1ST_POP_TIME", "INSTANCE_ID"),
        *("CLUSTER", "MSG_REGION", "TRACE_ON", "__CRC32#", "TIMER_DELIVER_MS", "TIMER_OUT_MS"),
        *("DLQ_ORIGIN_TOPIC", "DLQ_ORIGIN_MESSAGE_ID"),
    )
)

# Says that KEYS is one key with spaces in it, which the format takes for several.
ONE_KEY, ONE_KEY_SET = "ONE_KEY", "true"
COPY_MARK = "REDELIVERED_FROM"  # says which dead letter a message is a copy of
KEY_SEPARATOR = " "  # as in RocketMQ: keys may have any other kind of space in them


def split_keys(text: str) -> list[str]:
    """The keys in a KEYS property, or in what a user enters for one."""
    return [key for key in text.split(KEY_SEPARATOR) if key]


def offset_bytes(offset: int) -> bytes:
    """A queue offset as a CRC covers it."""
    return offset.to_bytes(8, "little", signed=True)


def _numbers(values: Iterable[int]) -> bytes:
    numbers = array("I", values)
    assert numbers.itemsize == 4, "array('I') has 4 bytes on every platform CPython supports"
    if _BIG_ENDIAN:
        numbers.byteswap()
    return numbers.tobytes()


def pack(values: Sequence[bytes]) -> tuple[bytes, bytes]:
    """Blob and offsets of values. BadRequest if they do not fit 4 GiB."""
    if len(values) == 1:  # a message that goes out alone
        blob = values[0]
        if len(blob) < 1 << 32:
            return blob, _ONE.pack(0, len(blob))
    blob = b"".join(values)
    if len(blob) >= 1 << 32:
        raise BadRequest("a batch holds less than 4 GiB")
    lengths = list(map(len, values))
    if lengths and lengths.count(lengths[0]) == len(lengths):
        return blob, _even(lengths[0], len(lengths))
    return blob, _numbers(accumulate(lengths, initial=0))


@lru_cache(16)
def _even(length: int, count: int) -> bytes:
    """Offsets of values that are equally long, as in one batch after the other."""
    if not length:
        return bytes(4 * (count + 1))
    return _numbers(range(0, length * count + 1, length))


def repeat(value: bytes, count: int) -> tuple[bytes, bytes]:
    """Blob and offsets of one value, count times; both empty for an empty value."""
    if not value:
        return b"", b""
    return value * count, _even(len(value), count)


def unpack_numbers(data: bytes, code: str) -> "array[int]":
    """An array column: code `I` uint32, `i` int32, `q` int64."""
    numbers = array(code)
    numbers.frombytes(data)
    if _BIG_ENDIAN:
        numbers.byteswap()
    return numbers


def crc32(*parts: bytes | memoryview, start: int = 0) -> int:
    """CRC-32 over parts, one after the other, and after what gave start."""
    crc = start
    for part in parts:
        crc = _crc32(part, crc)
    return crc


def property_text(
    tags: str | None, keys: str | Sequence[str], properties: Mapping[str, str] | None
) -> bytes:
    """Property text of a message; BadRequest for what cannot be written in one.

    keys: several, or a str that is one.
    """
    pairs: dict[str, str] = {}
    if properties and not hasattr(properties, "items"):
        raise BadRequest(f"properties must be a dict of str, not {type(properties).__name__}")
    for name, value in (properties or {}).items():
        if name in RESERVED:
            raise BadRequest(f"property name {name!r} is reserved")
        pairs[name] = value
    if tags:
        pairs["TAGS"] = tags
    if keys:
        pairs["KEYS"] = _joined(keys)
    for name, value in pairs.items():
        if type(value) is not str or type(name) is not str:
            checked_text("tags" if name == "TAGS" else f"the value of property {name!r}", value)
            checked_text("the name of a property", name)
        if not name or not value:
            raise BadRequest(f"property {name!r} has an empty name or value")
        if not (name.isprintable() and value.isprintable()) and _has_control(name + value):
            raise BadRequest(f"property {name!r} has control characters")
    text = PROPERTY_SEPARATOR.join(
        name + NAME_VALUE_SEPARATOR + value for name, value in pairs.items()
    )
    return encoded("the text of the properties", text)


def _joined(keys: str | Sequence[str]) -> str:
    if type(keys) is not tuple and type(keys) is not list:
        keys = checked_texts("keys", keys)
    try:
        joined = KEY_SEPARATOR.join(keys)
    except TypeError:
        checked_texts("keys", keys)  # says which is none
        raise
    if joined.count(KEY_SEPARATOR) >= len(keys) or not all(keys):
        raise BadRequest("a key must not be empty or contain a space")
    return joined


def _has_control(text: str) -> bool:
    return any(ord(c) < 32 or ord(c) == 127 for c in text)


def parse_properties(text: bytes) -> dict[str, str]:
    """Read a property text."""
    found = {}
    for pair in text.decode(errors="replace").split(PROPERTY_SEPARATOR):
        name, separator, value = pair.partition(NAME_VALUE_SEPARATOR)
        if separator and name and value:
            found[name] = value
    return found
