"""Copying whole records into a log, so that a kill in the middle leaves the beginning of them.

A process may be killed at any instruction, and the C library's memcpy stores the first bytes of a
long range last. What is copied in one piece may then lack the head of its first record before
whole ones, which recovery cannot tell from damage.
"""

from store.kernels.bigendian import get32, put32
from store.kernels.jit import U8, i64, kernel, ro_u8s, u8s
from store.kernels.memory import copy_bytes

HEAD_BYTES = 8  # size and magic


@kernel(i64, u8s, i64, ro_u8s)
def copy_records(target: U8, at: int, data: U8) -> int:
    """Copy records and blanks to target[at:], which has none, and return the position after them.

    One after the other, each with its magic last. What has no head is copied as it is.
    """
    position, end = 0, len(data)
    while end - position >= HEAD_BYTES:
        size = get32(data, position)
        if size < HEAD_BYTES or size > end - position:
            size = end - position
        copy_bytes(target, at + position + HEAD_BYTES, data, position + HEAD_BYTES, position + size)
        put32(target, at + position, get32(data, position))
        put32(target, at + position + 4, get32(data, position + 4))
        position += size
    return copy_bytes(target, at + position, data, position, end)
