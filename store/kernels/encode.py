"""Columns in, commit-log records out: a whole batch, assembled in the mapped file by one call.

The header template holds the fields that all records of the batch share (magic, queue id, flag,
sysflag, born time and host, store time and host, ...), up to and including BODYLENGTH. For each
record the kernel patches size, CRC, queue offset, physical offset and body length. The magic code
is stored last, so a half-written record of a killed process is never taken for a whole one.
"""

import numpy as np

from duolog_server.store.kernels.bigendian import get32, put16, put32, put64
from duolog_server.store.kernels.crc import crc32_range
from duolog_server.store.kernels.jit import (
    I64,
    U8,
    U32,
    boolean,
    i64,
    i64s,
    inlined,
    kernel,
    ro_i64_table,
    ro_u8s,
    ro_u32s,
    u8s,
)
from duolog_server.store.kernels.memory import copy_bytes, fetch_ahead
from duolog_server.store.kernels.text import (
    PROPERTY_SEPARATOR,
    RECORD_CRC_BYTES,
    properties_are_clean,
)

BLANK_MIN = 8
# Records whose magic is stored, and that are sealed, at once: a CRC of what was stored right before
# waits until all of that has left the processor's store buffer.
FINISHED_AT_ONCE = 16
FINISHED_BYTES = 8 << 10  # or fewer records: what is sealed is still in the first cache
UNIQ_KEY_BYTES = 41  # "UNIQ_KEY" 0x01 and 32 hex digits
UNIQ_KEY_NAME = b"UNIQ_KEY\x01"
RECORD_CRC_NAME = np.frombuffer(b"__CRC32#\x01", np.uint8)

# Header fields that may differ between the messages of a batch.
FIELD_FLAG = 0
FIELD_SYSFLAG = 1
FIELD_BORN_TIME = 2
FIELD_RECONSUME_TIMES = 3
FIELD_PREPARED_OFFSET = 4
FIELDS = 5
# Of messages of several queues also these.
FIELD_QUEUE_ID = 5
FIELD_QUEUE_OFFSET = 6
SINGLES_FIELDS = 7
NO_FIELDS: I64 = np.empty((FIELDS, 0), np.int64)
HOST_BITS = 0x30  # bits of the sysflag that say which hosts are IPv6

# Results of check_columns, which stores in `where` the message at fault.
COLUMNS_OK = 0
OFFSETS_LIE = 1
BODY_TOO_LARGE = 2
PROPERTIES_TOO_LARGE = 3
PROPERTIES_MALFORMED = 4


@kernel(i64, ro_u32s, i64, ro_u8s, ro_u32s, i64, i64, i64s)
def check_columns(
    body_offsets: U32,
    bodies_size: int,
    properties: U8,
    property_offsets: U32,
    body_max: int,
    properties_max: int,
    where: I64,
) -> int:
    """Check the offsets and property blocks of a batch before any of it is used.

    properties_max: largest property block of a client; the rest is for what the store appends.
    Both offset arrays have count + 1 entries; the caller has checked that.
    """
    count = len(body_offsets) - 1
    where[0] = 0
    if body_offsets[0] != 0 or property_offsets[0] != 0:
        return OFFSETS_LIE
    properties_size = len(properties)
    for k in range(count):
        where[0] = k
        low = np.int64(body_offsets[k])
        high = np.int64(body_offsets[k + 1])
        if high < low or high > bodies_size:
            return OFFSETS_LIE
        if high - low > body_max:
            return BODY_TOO_LARGE
        low = np.int64(property_offsets[k])
        high = np.int64(property_offsets[k + 1])
        if high < low or high > properties_size:
            return OFFSETS_LIE
        if high - low > properties_max:
            return PROPERTIES_TOO_LARGE
        if not properties_are_clean(properties, low, high):
            return PROPERTIES_MALFORMED
    where[0] = count
    if np.int64(body_offsets[count]) != bodies_size:
        return OFFSETS_LIE
    if np.int64(property_offsets[count]) != properties_size:
        return OFFSETS_LIE
    return COLUMNS_OK


@inlined
def seal_record(target: U8, start: int, end: int) -> None:
    """Write the digits of the CRC over all bytes before it, least significant digit first."""
    # Unsigned, because numba rounds a signed division as Python does, which takes far longer.
    crc = np.uint32(crc32_range(target, start, end - RECORD_CRC_BYTES))
    upper = crc // np.uint32(100_000_000)
    lower = np.int64(crc - upper * np.uint32(100_000_000))
    put64(target, end - 11, _decimal_digits(lower))
    put16(target, end - 3, _two_digits(np.int64(upper)))


@inlined
def _two_digits(number: int) -> int:
    """The text of two digits, least significant one first, as a number of 2 bytes."""
    tens = (number * 103) >> 10
    return ((number - tens * 10) << 8) + tens + 0x3030


@inlined
def _decimal_digits(number: int) -> int:
    """The text of 8 digits, least significant one first, as a number of 8 bytes.

    All pairs of parts are divided at once: by 10,000, by 100, by 10.
    """
    tens = np.int64(np.uint32(number) // np.uint32(10_000))
    parts = ((number - tens * 10_000) << 32) + tens
    tens = ((parts * 10_486) >> 20) & 0x0000007F0000007F
    parts = ((parts - tens * 100) << 16) + tens
    tens = ((parts * 103) >> 10) & 0x000F000F000F000F
    return ((parts - tens * 10) << 8) + tens + 0x3030303030303030


@inlined
def _hex_digits(number: int) -> int:
    """The text of 8 upper-case hex digits, as a number of 8 bytes."""
    digits = ((number & 0xFFFF0000) << 16) | (number & 0xFFFF)
    digits = ((digits << 8) | digits) & 0x00FF00FF00FF00FF
    digits = ((digits << 4) | digits) & 0x0F0F0F0F0F0F0F0F
    letters = ((digits + 0x0606060606060606) >> 4) & 0x0101010101010101
    return digits + 0x3030303030303030 + letters * 7


@inlined
def put_hex(target: U8, at: int, number: int) -> None:
    """Write the 12 upper-case hex digits of a number."""
    put64(target, at, _hex_digits(number >> 16))
    put32(target, at + 8, _hex_digits(number & 0xFFFF) & 0xFFFFFFFF)


@inlined
def _properties_bytes(
    properties: U8, property_offsets: U32, k: int, uniq_key_bytes: int, record_crc: bool
) -> int:
    low = np.int64(property_offsets[k])
    high = np.int64(property_offsets[k + 1])
    size = high - low
    if uniq_key_bytes > 0:
        if size > 0 and properties[high - 1] != PROPERTY_SEPARATOR:
            size += 1
        size += uniq_key_bytes
        if record_crc:
            size += 1 + RECORD_CRC_BYTES
    elif record_crc:
        if size > 0 and properties[high - 1] != PROPERTY_SEPARATOR:
            size += 1
        size += RECORD_CRC_BYTES
    return size


@inlined
def _finish(target: U8, start: int, end: int, magic: int, record_crc: bool) -> int:
    """Store the magic of assembled records, then seal them; return the end.

    A reader that sees the magic finds a whole record: these stores come last.
    """
    position = start
    while position < end:
        put32(target, position + 4, magic)
        position += get32(target, position)
    if record_crc:
        position = start
        while position < end:
            size = get32(target, position)
            seal_record(target, position, position + size)
            position += size
    return end


@kernel(
    i64,
    *(u8s, i64, i64, i64),
    *(ro_u8s, ro_u8s),
    *(ro_u8s, ro_u32s, ro_u8s, ro_u32s, i64),
    *(i64, ro_u8s, i64, boolean, ro_i64_table, i64s),
)
def encode(
    target: U8,
    start: int,
    limit: int,
    base: int,
    header: U8,
    topic: U8,
    bodies: U8,
    body_offsets: U32,
    properties: U8,
    property_offsets: U32,
    first: int,
    queue_offset: int,
    uniq_key: U8,
    sequence: int,
    record_crc: bool,
    fields: I64,
    result: I64,
) -> int:
    """Assemble the messages of a batch, from `first` on, as records in target[start:limit].

    base: commit-log offset of target[0]. queue_offset and sequence are those of message `first`.
    topic: as records have it, with its length before it and 2 bytes after it for PROPERTIESLENGTH.
    uniq_key: UNIQ_KEY_NAME and 20 hex digits of the producer id, or empty for no UNIQ_KEY.
    fields: [FIELDS, count] table of the fields that differ between messages, [FIELDS, 0] for none;
    [SINGLES_FIELDS, count] where their queues differ as well.
    Stops before a record that would leave less than 8 bytes in the file.
    result[0] becomes the number of assembled messages; returns the position after the last one.
    Where result has count + 1 numbers, result[1 + k] becomes the commit-log offset of message k.
    """
    count = len(body_offsets) - 1
    header_bytes = len(header)
    uniq_key_bytes = UNIQ_KEY_BYTES if len(uniq_key) > 0 else 0
    fixed = header_bytes + len(topic)
    magic = np.int64(0)
    for b in range(4):
        magic = (magic << 8) | np.int64(header[4 + b])
    position = unfinished = start
    done = np.int64(0)
    for k in range(first, count):
        body_low = np.int64(body_offsets[k])
        body_high = np.int64(body_offsets[k + 1])
        body_bytes = body_high - body_low
        properties_bytes = _properties_bytes(
            properties, property_offsets, k, uniq_key_bytes, record_crc
        )
        size = fixed + body_bytes + properties_bytes
        if position + size + BLANK_MIN > limit:
            break
        fetch_ahead(target, position, size)
        # The magic of the header stays zero until the record is complete.
        put32(target, position, size)
        put32(target, position + 4, 0)
        at = copy_bytes(target, position + 8, header, 8, header_bytes)
        put64(target, position + 20, queue_offset + done)
        put64(target, position + 28, base + position)
        if fields.shape[1] > 0:
            hosts = np.int64(header[39]) & HOST_BITS
            put32(target, position + 16, fields[FIELD_FLAG, k] & np.int64(0xFFFFFFFF))
            put32(target, position + 36, (fields[FIELD_SYSFLAG, k] & ~HOST_BITS) | hosts)
            put64(target, position + 40, fields[FIELD_BORN_TIME, k])
            put32(target, at - 16, fields[FIELD_RECONSUME_TIMES, k])
            put64(target, at - 12, fields[FIELD_PREPARED_OFFSET, k])
            if fields.shape[0] > FIELDS:
                put32(target, position + 12, fields[FIELD_QUEUE_ID, k])
                put64(target, position + 20, fields[FIELD_QUEUE_OFFSET, k])
        put32(target, at - 4, body_bytes)
        at = copy_bytes(target, at, bodies, body_low, body_high)
        if body_bytes > 0:
            # Of the source: a load across two stores of the copy would wait for both.
            crc = crc32_range(bodies, body_low, body_high)
            put32(target, position + 8, crc & np.int64(0x7FFFFFFF))
        else:
            put32(target, position + 8, 0)
        at = copy_bytes(target, at, topic, 0, len(topic))
        put16(target, at - 2, properties_bytes)
        low = np.int64(property_offsets[k])
        high = np.int64(property_offsets[k + 1])
        at = copy_bytes(target, at, properties, low, high)
        open_ended = high > low and properties[high - 1] != PROPERTY_SEPARATOR
        if open_ended and (uniq_key_bytes > 0 or record_crc):
            target[at] = PROPERTY_SEPARATOR
            at += 1
        if uniq_key_bytes > 0:
            at = copy_bytes(target, at, uniq_key, 0, len(uniq_key))
            put_hex(target, at, sequence + done)
            at += 12
            if record_crc:
                target[at] = PROPERTY_SEPARATOR
                at += 1
        if record_crc:
            at = copy_bytes(target, at, RECORD_CRC_NAME, 0, len(RECORD_CRC_NAME))
            target[at + 10] = PROPERTY_SEPARATOR
            at += 11
        if len(result) > count:
            result[1 + k] = base + position
        position = at
        done += 1
        if done % FINISHED_AT_ONCE == 0 or position - unfinished >= FINISHED_BYTES:
            unfinished = _finish(target, unfinished, position, magic, record_crc)
    _finish(target, unfinished, position, magic, record_crc)
    result[0] = done
    return position
