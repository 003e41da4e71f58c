"""IndexFile: add the keys of rows, follow the chain of a hash.

Layout: header 40 bytes, slots of 4, entries of 20 (key hash 4, physical offset 8, seconds since
beginTimestamp 4, previous entry of the slot 4). Entry 0 is unused.
"""

import numpy as np

from duolog_server.store.kernels.bigendian import get32, get32s, get64, put32, put64, same_bytes
from duolog_server.store.kernels.jit import (
    I64,
    U8,
    i64,
    i64_table,
    i64s,
    inlined,
    kernel,
    ro_u8s,
    u8s,
)
from duolog_server.store.kernels.memory import ROWS_AHEAD, fetch
from duolog_server.store.kernels.scan import (
    KEYS_AT,
    KEYS_BYTES,
    PHY,
    STORE_TIME,
    SYSFLAG,
    TOPIC_AT,
    TOPIC_BYTES,
    TRANSACTION_MASK,
    TRANSACTION_ROLLBACK,
    UNIQ_KEY_AT,
    UNIQ_KEY_BYTES,
)
from duolog_server.store.kernels.text import HIGH_BITS, java_hash_from, signed32

HEADER_BYTES = 40
SLOT_BYTES = 4
ENTRY_BYTES = 20
BEGIN_TIME_AT = 0
END_TIME_AT = 8
BEGIN_PHY_AT = 16
END_PHY_AT = 24
SLOT_COUNT_AT = 32
INDEX_COUNT_AT = 36
SPACE = 32

INDEX_OK = 0
INDEX_FILE_FULL = 1


@inlined
def positive_hash(value: int) -> int:
    """Absolute value of a signed Java hash; 0 for Integer.MIN_VALUE."""
    value = signed32(value)
    if value < 0:
        value = -value
    if value == np.int64(0x80000000):
        return np.int64(0)
    return value


@inlined
def _put_key(
    file: U8,
    slots: int,
    index_count: int,
    key_hash: int,
    phy: int,
    store_time: int,
    begin_time: int,
) -> bool:
    """Write one entry and link it to its slot; True if the slot was empty before."""
    slot_at = HEADER_BYTES + (key_hash % slots) * SLOT_BYTES
    previous = get32s(file, slot_at)
    if previous <= 0 or previous >= index_count:
        previous = np.int64(0)
    seconds = np.int64(0)
    if begin_time > 0:
        seconds = (store_time - begin_time) // 1000
        seconds = max(np.int64(0), min(seconds, np.int64(0x7FFFFFFF)))
    at = HEADER_BYTES + slots * SLOT_BYTES + index_count * ENTRY_BYTES
    put32(file, at, key_hash)
    put64(file, at + 4, phy)
    put32(file, at + 12, seconds)
    put32(file, at + 16, previous)
    put32(file, slot_at, index_count)
    return previous == 0


@inlined
def _split(data: U8, start: int, end: int) -> int:
    """Where a key may be hashed in two parts: before its last 4 characters, or at its start.

    Only behind ASCII: no character of several bytes is cut.
    """
    if end - start < 12 or np.uint64(get64(data, end - 8)) & HIGH_BITS != 0:
        return start
    return end - 4


@kernel(i64, u8s, i64, i64, ro_u8s, i64_table, i64, i64s)
def put_keys(file: U8, slots: int, entries: int, data: U8, rows: I64, end: int, state: I64) -> int:
    """Index the keys of rows up to `end`: UNIQ_KEY first, then each token of KEYS.

    state, in and out: (next row, keys of that row already indexed). Rows of rolled-back messages,
    and those below the file's newest offset, are skipped.
    """
    begin_time = get64(file, BEGIN_TIME_AT)
    end_phy = get64(file, END_PHY_AT)
    slot_count = get32(file, SLOT_COUNT_AT)
    index_count = max(np.int64(1), get32(file, INDEX_COUNT_AT))
    end_time = get64(file, END_TIME_AT)
    begin_phy = get64(file, BEGIN_PHY_AT)
    # Rows of a topic begin alike, and UNIQ_KEYs of a producer: what is the same is hashed once.
    prefix = known = known_at = np.int64(0)
    prefixed = known_bytes = np.int64(-1)
    row = state[0]
    done = state[1]
    code = INDEX_OK
    while row < end:
        phy = rows[PHY, row]
        rolled_back = (rows[SYSFLAG, row] & TRANSACTION_MASK) == TRANSACTION_ROLLBACK
        if (phy < end_phy and done == 0) or rolled_back:
            row += 1
            done = np.int64(0)
            continue
        if row + ROWS_AHEAD < end:
            fetch(data, rows[TOPIC_AT, row + ROWS_AHEAD])
            fetch(data, rows[UNIQ_KEY_AT, row + ROWS_AHEAD])
        topic, size = rows[TOPIC_AT, row], rows[TOPIC_BYTES, row]
        if prefixed < 0 or not (
            rows[TOPIC_BYTES, prefixed] == size
            and same_bytes(data, rows[TOPIC_AT, prefixed], topic, size)
        ):
            prefix = java_hash_from(np.int64(0), data, topic, topic + size)
            prefix = (prefix * 31 + 35) & np.int64(0xFFFFFFFF)  # '#'
            prefixed = row
            known_bytes = np.int64(-1)
        token = np.int64(0)
        position = rows[UNIQ_KEY_AT, row]
        stop = position + rows[UNIQ_KEY_BYTES, row]
        keys_stop = rows[KEYS_AT, row] + rows[KEYS_BYTES, row]
        in_keys = False
        if rows[UNIQ_KEY_BYTES, row] == 0:
            in_keys = True
            position = rows[KEYS_AT, row]
        full = False
        while True:
            if in_keys:
                while position < keys_stop and data[position] == SPACE:
                    position += 1
                if position >= keys_stop:
                    break
                stop = position
                while stop < keys_stop and data[stop] != SPACE:
                    stop += 1
            if token >= done:
                if index_count >= entries:
                    full = True
                    break
                split = position if in_keys else _split(data, position, stop)
                size = split - position
                if in_keys:
                    value = prefix
                elif size != known_bytes or not same_bytes(data, known_at, position, size):
                    value = known = java_hash_from(prefix, data, position, split)
                    known_at, known_bytes = position, size
                else:
                    value = known
                key_hash = positive_hash(java_hash_from(value, data, split, stop))
                store_time = rows[STORE_TIME, row]
                if _put_key(file, slots, index_count, key_hash, phy, store_time, begin_time):
                    slot_count += 1
                if index_count <= 1:
                    begin_phy = phy
                    begin_time = store_time
                index_count += 1
                end_phy = phy
                end_time = store_time
            token += 1
            if in_keys:
                position = stop
            else:
                in_keys = True
                position = rows[KEYS_AT, row]
        if full:
            done = token
            code = INDEX_FILE_FULL
            break
        row += 1
        done = np.int64(0)
    put64(file, BEGIN_TIME_AT, begin_time)
    put64(file, END_TIME_AT, end_time)
    put64(file, BEGIN_PHY_AT, begin_phy)
    put64(file, END_PHY_AT, end_phy)
    put32(file, SLOT_COUNT_AT, slot_count)
    put32(file, INDEX_COUNT_AT, index_count)
    state[0] = row
    state[1] = done
    return code


@kernel(i64, ro_u8s, i64, i64, i64, i64, i64, i64s)
def find_key(
    file: U8, slots: int, entries: int, key_hash: int, begin_ms: int, end_ms: int, out: I64
) -> int:
    """Collect the offsets of a hash stored in [begin_ms, end_ms], newest first; return the count.

    Entry times are whole seconds since the file's first entry, so begin_ms is lowered by a second:
    no entry of the window is missed, and the caller checks the exact times of the records.
    """
    index_count = get32(file, INDEX_COUNT_AT)
    if index_count <= 1 or index_count > entries:
        return 0
    begin_time = get64(file, BEGIN_TIME_AT)
    at = get32s(file, HEADER_BYTES + (key_hash % slots) * SLOT_BYTES)
    found = 0
    earliest = begin_ms - 1000
    while 0 < at < index_count and found < len(out):
        entry = HEADER_BYTES + slots * SLOT_BYTES + at * ENTRY_BYTES
        seconds = get32s(file, entry + 12)
        if seconds < 0:
            break
        time = begin_time + seconds * 1000
        if get32(file, entry) == key_hash and earliest <= time <= end_ms:
            out[found] = get64(file, entry + 4)
            found += 1
        previous = get32s(file, entry + 16)
        if previous == at or time < earliest:
            break
        at = previous
    return found


@kernel(i64, ro_u8s)
def key_hash(text: U8) -> int:
    """The hash under which the text `topic#key` is indexed."""
    return positive_hash(java_hash_from(np.int64(0), text, 0, len(text)))
