"""Writes into a log in an order of which a kill at any instruction leaves a log.

The C library stores the bytes of a long range in any order, the first ones last. A range that is
copied or cleared in one piece may then lack the head of a record before whole ones, which recovery
cannot tell from damage. Calls of it follow each other.
"""

import numpy as np

from duolog_server.store.kernels.bigendian import get32, put32
from duolog_server.store.kernels.jit import U8, i64, kernel, ro_u8s, u8s
from duolog_server.store.kernels.memory import copy_bytes

HEAD_BYTES = 8  # size and magic
STEP_BYTES = 64  # less than a record has


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


@kernel(i64, u8s, i64, i64)
def clear_back(target: U8, start: int, end: int) -> int:
    """Zero target[start:end] from its end on, and return its start: what is left is a beginning."""
    zeros = np.zeros(STEP_BYTES, np.uint8)
    while end > start:
        low = max(start, end - STEP_BYTES)
        copy_bytes(target, low, zeros, 0, end - low)
        end = low
    return start
