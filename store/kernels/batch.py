"""Splitting the body of a classic batch: one message behind the other, as clients send it.

| bytes | field |
|------:|-------|
| 4 | length of all of it |
| 4, 4 | magic code and CRC; both unused |
| 4 | flag |
| 4, n | body |
| 2, n | properties |

Source: Apache RocketMQ 4.9.8, MessageDecoder.encodeMessage.
"""

import numpy as np

from duolog_server.store.kernels.bigendian import get16, get32s
from duolog_server.store.kernels.jit import (
    I64,
    U8,
    U32,
    i64,
    i64s,
    inlined,
    kernel,
    ro_i64s,
    ro_u8s,
    u8s,
    u32s,
)
from duolog_server.store.kernels.memory import copy_bytes
from duolog_server.store.kernels.text import NAME_VALUE_SEPARATOR, PROPERTY_SEPARATOR

FLAG_AT, BODY_SIZE_AT, BODY_AT = 12, 16, 20
LEAST_BYTES = 22
CUT, SIZE_LIES, BODY_LIES, PROPERTIES_LIE = -1, -2, -3, -4
ZERO = np.frombuffer(b"0", np.uint8)
FALSE = np.frombuffer(b"false", np.uint8)


@kernel(i64, ro_u8s, i64s)
def count(data: U8, where: I64) -> int:
    """The number of messages, or what is wrong with one: its size, and a size in it, in where."""
    at = np.int64(0)
    found = np.int64(0)
    while at < len(data):
        left = len(data) - at
        where[1] = left
        if left < LEAST_BYTES:
            return CUT
        size = get32s(data, at)
        where[0] = size
        if size < LEAST_BYTES or size > left:
            return SIZE_LIES
        body_size = get32s(data, at + BODY_SIZE_AT)
        where[1] = body_size
        if body_size < 0 or body_size > size - LEAST_BYTES:
            return BODY_LIES
        text_size = get16(data, at + BODY_AT + body_size)
        where[1] = text_size
        if text_size != size - LEAST_BYTES - body_size:
            return PROPERTIES_LIE
        at += size
        found += 1
    return found


@inlined
def _is_text(data: U8, start: int, end: int, text: U8, first: int, last: int) -> bool:
    """Whether data[start:end] is text[first:last]."""
    if end - start != last - first:
        return False
    for k in range(end - start):
        if data[start + k] != text[first + k]:
            return False
    return True


@inlined
def _is_named(data: U8, start: int, end: int, names: U8, ends: I64) -> bool:
    """Whether data[start:end] is one of the names."""
    first = np.int64(0)
    for k in range(len(ends)):
        if _is_text(data, start, end, names, first, ends[k]):
            return True
        first = ends[k]
    return False


@kernel(
    i64,
    *(ro_u8s, ro_u8s, ro_i64s, ro_u8s, ro_i64s),
    *(u8s, u32s, u8s, u32s, i64s),
)
def split(
    data: U8,
    unsaid: U8,
    unsaid_ends: I64,
    later: U8,
    later_ends: I64,
    bodies: U8,
    body_offsets: U32,
    texts: U8,
    text_offsets: U32,
    flags: I64,
) -> int:
    """Take the messages of a batch apart, whose number `count` told.

    Left out are the last separators of property texts, properties without a value, which RocketMQ
    does not read either, and those that `unsaid` names: names behind each other, and where each
    ends. bodies, texts: of as many bytes as data. Returns how many messages have a property that
    `later` names, with a value other than 0 and false.
    """
    at = np.int64(0)
    body_end = np.int64(0)
    text_end = np.int64(0)
    waiting = np.int64(0)
    number = np.int64(0)
    body_offsets[0] = 0
    text_offsets[0] = 0
    while at < len(data):
        flags[number] = get32s(data, at + FLAG_AT)
        position = at + BODY_AT + get32s(data, at + BODY_SIZE_AT)
        body_end = copy_bytes(bodies, body_end, data, at + BODY_AT, position)
        at += get32s(data, at)
        position += 2
        end = at
        while end > position and data[end - 1] == PROPERTY_SEPARATOR:
            end -= 1
        is_later = False
        is_first = True
        while position < end:
            separator = np.int64(-1)
            stop = position
            while stop < end and data[stop] != PROPERTY_SEPARATOR:
                if separator < 0 and data[stop] == NAME_VALUE_SEPARATOR:
                    separator = stop
                stop += 1
            has_value = stop == position or data[stop - 1] != NAME_VALUE_SEPARATOR
            if has_value and (
                separator < 0 or not _is_named(data, position, separator, unsaid, unsaid_ends)
            ):
                if not is_first:
                    texts[text_end] = PROPERTY_SEPARATOR
                    text_end += 1
                is_first = False
                text_end = copy_bytes(texts, text_end, data, position, stop)
                if separator >= 0 and _is_named(data, position, separator, later, later_ends):
                    value = separator + 1
                    is_later |= not (
                        _is_text(data, value, stop, ZERO, 0, len(ZERO))
                        or _is_text(data, value, stop, FALSE, 0, len(FALSE))
                    )
            position = stop + 1
        if is_later:
            waiting += 1
        number += 1
        body_offsets[number] = body_end
        text_offsets[number] = text_end
    return waiting
