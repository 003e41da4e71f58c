"""ConsumeQueue entries of 20 bytes: physical offset (8), record size (4), tags code (8)."""

import numpy as np

from duolog_server.store.kernels.bigendian import get32s, get64, put32, put64
from duolog_server.store.kernels.jit import (
    I64,
    U8,
    i64,
    i64_table,
    i64s,
    kernel,
    ro_i64s,
    ro_u8s,
    u8s,
)
from duolog_server.store.kernels.scan import PHY, QUEUE_OFFSET, SIZE, TAGS_CODE

ENTRY_BYTES = 20

QUEUE_OK = 0
QUEUE_FILE_FULL = 1
QUEUE_GAP = 2  # a row's queue offset lies after the next entry
QUEUE_BEHIND = 3  # a row's queue offset is already used by another record


@kernel(i64, u8s, i64, i64, i64_table, ro_i64s, i64, i64, i64s)
def put_entries(
    file: U8,
    position: int,
    file_entry: int,
    rows: I64,
    order: I64,
    first: int,
    end: int,
    state: I64,
) -> int:
    """Append rows order[first:end] of one queue to a queue file.

    position: byte position of the next entry. file_entry: queue offset of the file's first entry.
    state: in (end offset of the newest record in this queue), out (the same, position, next row).
    A row whose record ends at or below that offset is already in the queue and is skipped.
    """
    newest = state[0]
    code = QUEUE_OK
    k = first
    while k < end:
        row = order[k]
        phy = rows[PHY, row]
        record_end = phy + rows[SIZE, row]
        if record_end <= newest:
            k += 1
            continue
        expected = file_entry + position // ENTRY_BYTES
        queue_offset = rows[QUEUE_OFFSET, row]
        if queue_offset > expected:
            code = QUEUE_GAP
            break
        if queue_offset < expected:
            code = QUEUE_BEHIND
            break
        if position + ENTRY_BYTES > len(file):
            code = QUEUE_FILE_FULL
            break
        put64(file, position, phy)
        put32(file, position + 8, rows[SIZE, row])
        put64(file, position + 12, rows[TAGS_CODE, row])
        position += ENTRY_BYTES
        newest = record_end
        k += 1
    state[0] = newest
    state[1] = position
    state[2] = k
    return code


@kernel(i64, u8s, i64, i64)
def put_blanks(file: U8, start: int, end: int) -> int:
    """Fill file[start:end] with blank entries (0, 2147483647, 0)."""
    position = start
    while position + ENTRY_BYTES <= end:
        put64(file, position, 0)
        put32(file, position + 8, 0x7FFFFFFF)
        put64(file, position + 12, 0)
        position += ENTRY_BYTES
    return position


@kernel(i64, ro_u8s, i64, i64s)
def walk_entries(file: U8, end: int, state: I64) -> int:
    """Walk entries from the file's start while they are valid (offset >= 0, size > 0).

    state: out (end offset of the newest record found, or -1). Returns the position after the last
    valid entry. Blank entries are valid but have no record.
    """
    position = 0
    newest = np.int64(-1)
    while position + ENTRY_BYTES <= end:
        phy = get64(file, position)
        size = get32s(file, position + 8)
        if phy < 0 or size <= 0:
            break
        if not (phy == 0 and size == 0x7FFFFFFF):
            newest = phy + size
        position += ENTRY_BYTES
    state[0] = newest
    return position


@kernel(i64, ro_u8s, i64, i64, i64)
def first_entry_from(file: U8, start: int, end: int, phy: int) -> int:
    """Position of the first entry in file[start:end] at or after a commit-log offset, or end.

    Offsets of entries rise, except those of blank entries, which are skipped. An unwritten entry
    (size zero: its page never reached the disk) ends the search as well.
    """
    position = start
    while position + ENTRY_BYTES <= end:
        size = get32s(file, position + 8)
        if size <= 0 or (size != 0x7FFFFFFF and get64(file, position) >= phy):
            return position
        position += ENTRY_BYTES
    return end


@kernel(i64, ro_u8s, i64, i64, i64_table)
def read_entries(file: U8, position: int, count: int, out: I64) -> int:
    """Read entries into out[3, count]: physical offset, size, tags code."""
    for k in range(count):
        at = position + k * ENTRY_BYTES
        out[0, k] = get64(file, at)
        out[1, k] = get32s(file, at + 8)
        out[2, k] = get64(file, at + 12)
    return count
