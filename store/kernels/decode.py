"""Records in, columns out: the messages of a read, assembled by one call per segment."""

import numpy as np

from duolog_server.store.kernels.bigendian import get32s, get64
from duolog_server.store.kernels.jit import (
    I64,
    U8,
    boolean,
    i64,
    i64_table,
    i64s,
    kernel,
    ro_i64s,
    ro_u8s,
    u8s,
)
from duolog_server.store.kernels.memory import copy_bytes
from duolog_server.store.kernels.queue import ENTRY_BYTES
from duolog_server.store.kernels.scan import (
    BODY_AT,
    BODY_BYTES,
    BORN_TIME,
    COLUMNS,
    FLAG,
    PROPERTIES_AT,
    PROPERTIES_BYTES,
    RECONSUME_TIMES,
    SCAN_END,
    STORE_TIME,
    SYSFLAG,
    read_record,
)
from duolog_server.store.kernels.text import FOUND

# Columns of the table that a read fills, one row per message.
OUT_QUEUE_OFFSET = 0
OUT_PHY = 1
OUT_STORE_TIME = 2
OUT_BORN_TIME = 3
OUT_FLAG = 4
OUT_SYSFLAG = 5
OUT_RECONSUME_TIMES = 6
OUT_BODY_END = 7
OUT_PROPERTIES_END = 8
OUT_SIZE = 9
OUT_COLUMNS = 10

DECODE_OK = 0  # all entries were processed
DECODE_FULL = 1  # no room for the next message
DECODE_OTHER_SEGMENT = 2  # the next entry points outside this segment
DECODE_CORRUPT = 3  # the record of the next entry is incomplete or invalid
DECODE_BLANK = 4  # the next entry is blank: it has no record

# Indexes of `state`.
STATE_ENTRY = 0
STATE_MESSAGES = 1
STATE_BODY_BYTES = 2
STATE_PROPERTIES_BYTES = 3
STATE_SIZE = 4


@kernel(
    i64,
    *(ro_u8s, i64, i64, i64),
    *(ro_u8s, i64, i64),
    *(ro_i64s, i64, boolean),
    *(u8s, u8s, i64_table, i64s),
)
def decode(
    queue: U8,
    queue_at: int,
    entries: int,
    queue_offset: int,
    log: U8,
    log_base: int,
    log_end: int,
    tags_codes: I64,
    messages_max: int,
    check_crc: bool,
    bodies: U8,
    properties: U8,
    table: I64,
    state: I64,
) -> int:
    """Copy the records that queue entries point to into columns; return a DECODE_ code.

    queue_at, queue_offset: byte position and queue offset of entry 0; state[STATE_ENTRY] entries
    have been processed already. log_end: bytes of this segment that may be read. tags_codes: wanted
    hashes, empty for all. Appends to bodies, properties and table, which `state` says how full are.
    """
    found = np.empty(FOUND, np.int64)
    rows = np.empty((COLUMNS, 1), np.int64)
    delays = np.empty(0, np.int64)
    entry = state[STATE_ENTRY]
    n = state[STATE_MESSAGES]
    body_end = state[STATE_BODY_BYTES]
    properties_end = state[STATE_PROPERTIES_BYTES]
    code = DECODE_OK
    while entry < entries:
        at = queue_at + entry * ENTRY_BYTES
        phy = get64(queue, at)
        size = get32s(queue, at + 8)
        if phy == 0 and size == 0x7FFFFFFF:
            code = DECODE_BLANK
            break
        if len(tags_codes) > 0:
            wanted = False
            tags_code = get64(queue, at + 12)
            for k in range(len(tags_codes)):
                if tags_codes[k] == tags_code:
                    wanted = True
                    break
            if not wanted:
                entry += 1
                continue
        if n >= messages_max:
            code = DECODE_FULL
            break
        position = phy - log_base
        if position < 0 or position >= len(log):
            code = DECODE_OTHER_SEGMENT
            break
        if size <= 0 or position + size > log_end:
            code = DECODE_CORRUPT
            break
        if (
            read_record(log, position, position + size, phy, check_crc, delays, rows, 0, found)
            != SCAN_END
        ):
            code = DECODE_CORRUPT
            break
        body_bytes = rows[BODY_BYTES, 0]
        properties_bytes = rows[PROPERTIES_BYTES, 0]
        if (
            n >= table.shape[1]
            or body_end + body_bytes > len(bodies)
            or properties_end + properties_bytes > len(properties)
        ):
            code = DECODE_FULL
            break
        source = rows[BODY_AT, 0]
        copy_bytes(bodies, body_end, log, source, source + body_bytes)
        source = rows[PROPERTIES_AT, 0]
        copy_bytes(properties, properties_end, log, source, source + properties_bytes)
        body_end += body_bytes
        properties_end += properties_bytes
        table[OUT_QUEUE_OFFSET, n] = queue_offset + entry
        table[OUT_PHY, n] = phy
        table[OUT_STORE_TIME, n] = rows[STORE_TIME, 0]
        table[OUT_BORN_TIME, n] = rows[BORN_TIME, 0]
        table[OUT_FLAG, n] = rows[FLAG, 0]
        table[OUT_SYSFLAG, n] = rows[SYSFLAG, 0]
        table[OUT_RECONSUME_TIMES, n] = rows[RECONSUME_TIMES, 0]
        table[OUT_BODY_END, n] = body_end
        table[OUT_PROPERTIES_END, n] = properties_end
        table[OUT_SIZE, n] = size
        n += 1
        entry += 1
    state[STATE_ENTRY] = entry
    state[STATE_MESSAGES] = n
    state[STATE_BODY_BYTES] = body_end
    state[STATE_PROPERTIES_BYTES] = properties_end
    return code
