"""Text inside records: Java string hashes, property blocks, UTF-8 checks.

A property block is `name 0x01 value 0x02 name 0x01 value ...`, with or without a final 0x02. A pair
counts if name and value are both non-empty; of two pairs with the same name the later one wins.
"""

import numpy as np

from duolog_server.store.kernels.bigendian import ONE, THREE, TWO, get32, get64
from duolog_server.store.kernels.jit import I64, U8, boolean, i64, inlined, kernel, ro_u8s

NAME_VALUE_SEPARATOR = 1
PROPERTY_SEPARATOR = 2
FOUND = 14  # numbers that `find_well_known` stores
TAGS = int.from_bytes(b"TAGS", "big")
KEYS = int.from_bytes(b"KEYS", "big")
UNIQ_KEY = int.from_bytes(b"UNIQ_KEY", "big")
SEAL = int.from_bytes(b"__CRC32#", "big")
RECORD_CRC_BYTES = 20  # "__CRC32#" 0x01 ten digits 0x02
DELAY = np.frombuffer(b"DELAY", np.uint8)
TIMER_OUT_MS = np.frombuffer(b"TIMER_OUT_MS", np.uint8)
MULTI_DISPATCH = np.frombuffer(b"INNER_MULTI_DISPATCH", np.uint8)
MULTI_QUEUE_OFFSET = np.frombuffer(b"INNER_MULTI_QUEUE_OFFSET", np.uint8)
# A byte is below 3 if neither itself nor the sum of its low bits and 0x7D reaches 0x80. Such a sum
# has no carry into the next byte of a word.
LOW_BITS = np.uint64(0x7F7F7F7F7F7F7F7F)
HIGH_BITS = np.uint64(0x8080808080808080)
TO_THREE = np.uint64(0x7D7D7D7D7D7D7D7D)


@inlined
def java_hash_from(value: int, data: U8, start: int, end: int) -> int:
    """Continue Java's String.hashCode over UTF-8 text, in UTF-16 units; unsigned, 32 bits."""
    mask = np.int64(0xFFFFFFFF)
    position = start
    # ASCII, four characters at a time: a step need not wait for the multiplication of the previous
    # one. Positions are unsigned here, as in `bigendian`.
    while position + 4 <= end:
        at = np.uint64(position)
        first, second = np.int64(data[at]), np.int64(data[at + ONE])
        third, fourth = np.int64(data[at + TWO]), np.int64(data[at + THREE])
        if (first | second | third | fourth) >= 0x80:
            break
        value = (value * 31**4 + first * 31**3 + second * 31**2 + third * 31 + fourth) & mask
        position += 4
    while position < end:
        lead = np.int64(data[position])
        point = lead
        length = 1
        if lead >= 0xF0 and position + 3 < end:
            point = (
                ((lead & 0x07) << 18)
                | ((np.int64(data[position + 1]) & 0x3F) << 12)
                | ((np.int64(data[position + 2]) & 0x3F) << 6)
                | (np.int64(data[position + 3]) & 0x3F)
            )
            length = 4
        elif lead >= 0xE0 and position + 2 < end:
            point = (
                ((lead & 0x0F) << 12)
                | ((np.int64(data[position + 1]) & 0x3F) << 6)
                | (np.int64(data[position + 2]) & 0x3F)
            )
            length = 3
        elif lead >= 0xC0 and position + 1 < end:
            point = ((lead & 0x1F) << 6) | (np.int64(data[position + 1]) & 0x3F)
            length = 2
        if point >= 0x10000:
            point -= 0x10000
            value = (value * 31 + (0xD800 + (point >> 10))) & mask
            value = (value * 31 + (0xDC00 + (point & 0x3FF))) & mask
        else:
            value = (value * 31 + point) & mask
        position += length
    return value


@inlined
def signed32(value: int) -> int:
    """Reinterpret an unsigned 32-bit number as a signed one."""
    if value >= np.int64(0x80000000):
        return value - np.int64(0x100000000)
    return value


@kernel(i64, ro_u8s)
def java_hash(data: U8) -> int:
    """Java's `String.hashCode` of UTF-8 text, as a signed number."""
    return signed32(java_hash_from(np.int64(0), data, 0, len(data)))


@inlined
def utf8_step(data: U8, position: int, end: int) -> int:
    """Length of the UTF-8 sequence at a position; 0 if it is invalid."""
    lead = data[position]
    if lead < 0x80:
        return 1
    if lead < 0xC2 or lead > 0xF4:
        return 0
    length = 2 if lead < 0xE0 else (3 if lead < 0xF0 else 4)
    if position + length > end:
        return 0
    for k in range(1, length):
        if data[position + k] & 0xC0 != 0x80:
            return 0
    second = data[position + 1]
    if lead == 0xE0 and second < 0xA0:
        return 0
    if lead == 0xED and second > 0x9F:
        return 0
    if lead == 0xF0 and second < 0x90:
        return 0
    if lead == 0xF4 and second > 0x8F:
        return 0
    return length


@inlined
def properties_are_clean(data: U8, start: int, end: int) -> bool:
    """Whether a block consists of correctly separated pairs of non-empty printable UTF-8 texts."""
    position = start
    pair_start = start
    separator = np.int64(-1)
    while position < end:
        byte = data[position]
        if byte == NAME_VALUE_SEPARATOR:
            if separator >= 0 or position == pair_start:
                return False
            separator = position
            position += 1
        elif byte == PROPERTY_SEPARATOR:
            if separator < 0 or position == separator + 1:
                return False
            separator = np.int64(-1)
            position += 1
            pair_start = position
        else:
            if byte < 0x20 or byte == 0x7F:
                return False
            step = utf8_step(data, position, end)
            if step == 0:
                return False
            position += step
    if pair_start == end:
        return True
    return separator >= 0 and separator + 1 < end


@kernel(boolean, ro_u8s)
def properties_clean(data: U8) -> bool:
    """Whether a property block may be stored."""
    return properties_are_clean(data, 0, len(data))


@inlined
def begins(data: U8, position: int, text: U8) -> bool:
    """Whether a text is at a position; the caller has checked that it fits."""
    for k in range(len(text)):
        if data[position + k] != text[k]:
            return False
    return True


@inlined
def _until_separator(data: U8, position: int, end: int) -> int:
    """Position of the next byte up to PROPERTY_SEPARATOR, or the end; 8 bytes at a time."""
    while position + 8 <= end:
        word = np.uint64(get64(data, position))
        if (((word & LOW_BITS) + TO_THREE) | word) & HIGH_BITS != HIGH_BITS:
            break
        position += 8
    while position < end and data[np.uint64(position)] > PROPERTY_SEPARATOR:
        position += 1
    return position


@inlined
def find_well_known(data: U8, start: int, end: int, found: I64) -> None:
    """Find the values that the engine needs in a property block.

    found: FOUND numbers, (position, length) of TAGS, KEYS, UNIQ_KEY, DELAY, TIMER_OUT_MS,
    INNER_MULTI_DISPATCH, INNER_MULTI_QUEUE_OFFSET; length 0 if absent.
    """
    for k in range(FOUND):
        found[k] = 0
    position = start
    if (
        end - start > RECORD_CRC_BYTES
        and get64(data, end - RECORD_CRC_BYTES) == SEAL
        and data[np.uint64(end - RECORD_CRC_BYTES - 1)] == PROPERTY_SEPARATOR
        and data[np.uint64(end - RECORD_CRC_BYTES + 8)] == NAME_VALUE_SEPARATOR
    ):
        end -= RECORD_CRC_BYTES  # at the end of almost every record, and of no use here
    while position < end:
        separator = stop = _until_separator(data, position, end)
        while stop < end and data[np.uint64(stop)] != PROPERTY_SEPARATOR:
            stop = _until_separator(data, stop + 1, end)
        name_length = separator - position
        if (
            name_length > 0
            and stop > separator + 1
            and data[np.uint64(separator)] == NAME_VALUE_SEPARATOR
        ):
            slot = -1
            if name_length == 4:
                name = get32(data, position)
                if name == TAGS:
                    slot = 0
                elif name == KEYS:
                    slot = 2
            elif name_length == 8:
                if get64(data, position) == UNIQ_KEY:
                    slot = 4
            elif name_length == len(DELAY):
                if begins(data, position, DELAY):
                    slot = 6
            elif name_length == len(TIMER_OUT_MS):
                if begins(data, position, TIMER_OUT_MS):
                    slot = 8
            elif name_length == len(MULTI_DISPATCH):
                if begins(data, position, MULTI_DISPATCH):
                    slot = 10
            elif name_length == len(MULTI_QUEUE_OFFSET) and begins(
                data, position, MULTI_QUEUE_OFFSET
            ):
                slot = 12
            if slot >= 0:
                found[slot] = separator + 1
                found[slot + 1] = stop - separator - 1
        position = stop + 1
