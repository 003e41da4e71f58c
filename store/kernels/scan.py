"""Records in, rows out: find, verify and describe the records of a stretch of the commit log.

A row table is an int64 array [COLUMNS, capacity]; its positions are relative to the buffer.
"""

import numpy as np

from duolog_server.store.kernels.bigendian import get16, get32, get32s, get64, same_bytes
from duolog_server.store.kernels.crc import crc32_range
from duolog_server.store.kernels.encode import RECORD_CRC_NAME
from duolog_server.store.kernels.jit import (
    I64,
    U8,
    boolean,
    i64,
    i64_table,
    i64s,
    inlined,
    kernel,
    ro_i64s,
    ro_u8s,
)
from duolog_server.store.kernels.memory import ROWS_AHEAD, fetch, fetch_ahead
from duolog_server.store.kernels.text import (
    FOUND,
    RECORD_CRC_BYTES,
    begins,
    find_well_known,
    java_hash_from,
    signed32,
)

MAGIC_V1 = 0xDAA320A7
MAGIC_V2 = 0xDAA320AB
MAGIC_BLANK = 0xCBD43194

# Columns of a row table.
PHY = 0
SIZE = 1
QUEUE_ID = 2
QUEUE_OFFSET = 3
TAGS_CODE = 4
STORE_TIME = 5
SYSFLAG = 6
TOPIC_AT = 7
TOPIC_BYTES = 8
UNIQ_KEY_AT = 9
UNIQ_KEY_BYTES = 10
KEYS_AT = 11
KEYS_BYTES = 12
GROUP = 13
BODY_AT = 14
BODY_BYTES = 15
PROPERTIES_AT = 16
PROPERTIES_BYTES = 17
BORN_TIME = 18
FLAG = 19
RECONSUME_TIMES = 20
PREPARED_OFFSET = 21
MULTI = 22  # 1 if the record is also in light queues
COLUMNS = 23
# Those that are positions in the buffer.
POSITIONS = (TOPIC_AT, UNIQ_KEY_AT, KEYS_AT, BODY_AT, PROPERTIES_AT)

# Why a scan stopped.
SCAN_END = 0  # at the end of the buffer
SCAN_FULL = 1  # the row table is full
SCAN_BLANK = 2  # at the blank record that ends a file
SCAN_BAD_MAGIC = 3
SCAN_BAD_CRC = 4
SCAN_BAD_SIZE = 5
SCAN_BAD_OFFSET = 6
SCAN_PARTIAL = 7  # a record reaches past the end of the buffer

RECORD_MIN = 91
BORN_HOST_V6 = 0x10
STORE_HOST_V6 = 0x20
TRANSACTION_MASK = 0xC
TRANSACTION_COMMIT = 0x8
TRANSACTION_ROLLBACK = 0xC
SCHEDULE_TOPIC = np.frombuffer(b"SCHEDULE_TOPIC_XXXX", np.uint8)
TIMER_TOPIC = np.frombuffer(b"rmq_sys_wheel_timer", np.uint8)
LIGHT_START = np.frombuffer(b"%LMQ%$", np.uint8)
TIME_DIGITS_MAX = 15


@inlined
def _same(data: U8, at: int, size: int, text: U8) -> bool:
    if size != len(text):
        return False
    for k in range(size):
        if data[at + k] != text[k]:
            return False
    return True


@inlined
def _sealed(data: U8, properties_at: int, properties_bytes: int) -> bool:
    """Whether a property block ends with the CRC of the whole record."""
    if properties_bytes < RECORD_CRC_BYTES:
        return False
    start = properties_at + properties_bytes - RECORD_CRC_BYTES
    for k in range(len(RECORD_CRC_NAME)):
        if data[start + k] != RECORD_CRC_NAME[k]:
            return False
    return True


@inlined
def _seal_holds(data: U8, start: int, end: int) -> bool:
    written = np.int64(0)
    if data[end - 1] != 2:
        return False
    for k in range(10):
        digit = np.int64(data[end - 2 - k]) - 48
        if digit < 0 or digit > 9:
            return False
        written = written * 10 + digit
    return written == crc32_range(data, start, end - RECORD_CRC_BYTES)


@inlined
def decimal(data: U8, at: int, size: int, digits_max: int) -> int:
    """The decimal number of `size` digits at a position; -1 if it is invalid."""
    if size == 0 or size > digits_max:
        return np.int64(-1)
    value = np.int64(0)
    for k in range(size):
        digit = np.int64(data[at + k]) - 48
        if digit < 0 or digit > 9:
            return np.int64(-1)
        value = value * 10 + digit
    return value


@inlined
def delivery_code(
    data: U8, delay_at: int, delay_bytes: int, store_time: int, delays_ms: I64
) -> int:
    """Delivery time of a delayed record; -1 if its DELAY is not a level."""
    level = decimal(data, delay_at, delay_bytes, 9)
    if level <= 0:
        return np.int64(-1)
    if len(delays_ms) == 0:
        return store_time + 1000
    return store_time + delays_ms[min(level, len(delays_ms)) - 1]


@inlined
def read_record(
    data: U8,
    position: int,
    end: int,
    phy: int,
    check_crc: bool,
    delays_ms: I64,
    rows: I64,
    n: int,
    found: I64,
) -> int:
    """Verify the record at a position and describe it in column n of rows; return a SCAN_ code."""
    if position + 8 > end:
        return SCAN_PARTIAL
    size = get32(data, position)
    magic = get32(data, position + 4)
    if magic == MAGIC_BLANK:
        return SCAN_BLANK
    if magic != MAGIC_V1 and magic != MAGIC_V2:
        return SCAN_BAD_MAGIC
    if size < RECORD_MIN or size > np.int64(0x7FFFFFFF):
        return SCAN_BAD_SIZE
    if position + size > end:
        return SCAN_PARTIAL
    stop = position + size
    if get64(data, position + 28) != phy:
        return SCAN_BAD_OFFSET
    sysflag = get32(data, position + 36)
    at = position + 48
    at += 20 if sysflag & BORN_HOST_V6 else 8
    store_time_at = at
    at += 8
    at += 20 if sysflag & STORE_HOST_V6 else 8
    if at + 19 > stop:
        return SCAN_BAD_SIZE
    reconsume_times = get32s(data, at)
    prepared_offset = get64(data, at + 4)
    body_bytes = get32(data, at + 12)
    body_at = at + 16
    topic_length_bytes = 1 if magic == MAGIC_V1 else 2
    if body_at + body_bytes + topic_length_bytes + 2 > stop:
        return SCAN_BAD_SIZE
    topic_at = body_at + body_bytes
    topic_bytes = np.int64(data[topic_at]) if topic_length_bytes == 1 else get16(data, topic_at)
    topic_at += topic_length_bytes
    if topic_at + topic_bytes + 2 > stop:
        return SCAN_BAD_SIZE
    properties_bytes = get16(data, topic_at + topic_bytes)
    properties_at = topic_at + topic_bytes + 2
    if properties_at + properties_bytes != stop or properties_bytes > 32767:
        return SCAN_BAD_SIZE
    if check_crc:
        # Texts never end with NUL: if one does, its last page did not reach the disk.
        if topic_bytes > 0 and data[topic_at + topic_bytes - 1] == 0:
            return SCAN_BAD_CRC
        if properties_bytes > 0 and data[stop - 1] == 0:
            return SCAN_BAD_CRC
        if _sealed(data, properties_at, properties_bytes):
            if not _seal_holds(data, position, stop):
                return SCAN_BAD_CRC
        elif body_bytes > 0:
            crc = crc32_range(data, body_at, topic_at - topic_length_bytes)
            if crc & np.int64(0x7FFFFFFF) != get32(data, position + 8):
                return SCAN_BAD_CRC
    store_time = get64(data, store_time_at)
    find_well_known(data, properties_at, stop, found)
    tags_code = np.int64(0)
    if found[1] > 0:
        tags_code = signed32(java_hash_from(np.int64(0), data, found[0], found[0] + found[1]))
    if found[7] > 0 and _same(data, topic_at, topic_bytes, SCHEDULE_TOPIC):
        delivery = delivery_code(data, found[6], found[7], store_time, delays_ms)
        if delivery >= 0:
            tags_code = delivery
    elif found[9] > 0 and _same(data, topic_at, topic_bytes, TIMER_TOPIC):
        delivery = decimal(data, found[8], found[9], TIME_DIGITS_MAX)
        if delivery >= 0:
            tags_code = delivery
    rows[PHY, n] = phy
    rows[SIZE, n] = size
    rows[QUEUE_ID, n] = get32s(data, position + 12)
    rows[QUEUE_OFFSET, n] = get64(data, position + 20)
    rows[TAGS_CODE, n] = tags_code
    rows[STORE_TIME, n] = store_time
    rows[SYSFLAG, n] = sysflag
    rows[TOPIC_AT, n] = topic_at
    rows[TOPIC_BYTES, n] = topic_bytes
    rows[UNIQ_KEY_AT, n] = found[4]
    rows[UNIQ_KEY_BYTES, n] = found[5]
    rows[KEYS_AT, n] = found[2]
    rows[KEYS_BYTES, n] = found[3]
    rows[BODY_AT, n] = body_at
    rows[BODY_BYTES, n] = body_bytes
    rows[PROPERTIES_AT, n] = properties_at
    rows[PROPERTIES_BYTES, n] = properties_bytes
    rows[BORN_TIME, n] = get64(data, position + 40)
    rows[FLAG, n] = get32s(data, position + 16)
    rows[RECONSUME_TIMES, n] = reconsume_times
    rows[PREPARED_OFFSET, n] = prepared_offset
    rows[MULTI, n] = 1 if found[11] > 0 and found[13] > 0 else 0
    return SCAN_END


@kernel(i64, ro_u8s, i64, i64, i64, boolean, ro_i64s, i64_table, i64s)
def scan(
    data: U8,
    start: int,
    end: int,
    base: int,
    check_crc: bool,
    delays_ms: I64,
    rows: I64,
    result: I64,
) -> int:
    """Describe the records of data[start:end] up to the first incomplete or invalid one.

    base: commit-log offset of data[0].
    result: (rows filled, position after the last valid record). Returns a SCAN_ code.
    """
    found = np.empty(FOUND, np.int64)
    capacity = rows.shape[1]
    position = start
    n = 0
    code = SCAN_END
    while True:
        if position >= end:
            break
        if n == capacity:
            code = SCAN_FULL
            break
        code = read_record(
            data, position, end, base + position, check_crc, delays_ms, rows, n, found
        )
        if code != SCAN_END:
            break
        size = rows[SIZE, n]
        fetch_ahead(data, position, size)
        position += size
        n += 1
    result[0] = n
    result[1] = position
    return code


@kernel(i64, ro_u8s, i64, i64, i64)
def find_record(data: U8, start: int, end: int, base: int) -> int:
    """Position of the next whole, verified record that starts in [start, end), or -1.

    A record contains its own offset, so bytes that only resemble a record are not taken for one.
    """
    found = np.empty(FOUND, np.int64)
    rows = np.empty((COLUMNS, 1), np.int64)
    delays = np.empty(0, np.int64)
    size = len(data)
    for position in range(start, min(end, size - RECORD_MIN + 1)):
        if (
            data[position + 4] == 0xDA
            and data[position + 5] == 0xA3
            and data[position + 6] == 0x20
            and read_record(data, position, size, base + position, True, delays, rows, 0, found)
            == SCAN_END
        ):
            return position
    return -1


@inlined
def _comma(data: U8, position: int, end: int) -> int:
    """Position of the next comma, or the end."""
    while position < end and data[position] != 44:
        position += 1
    return position


@kernel(i64, ro_u8s, i64_table, i64, i64_table)
def fan_out(data: U8, rows: I64, n: int, out: I64) -> int:
    """Copy each record's row for every light queue that it is in, with that queue's place.

    out: a row table; rows past its capacity are only counted. Returns the number of rows. A name
    without an offset, or one that is not a light queue's, is skipped.
    """
    found = np.empty(FOUND, np.int64)
    capacity = out.shape[1]
    count = np.int64(0)
    for k in range(n):
        if rows[MULTI, k] == 0:
            continue
        start = rows[PROPERTIES_AT, k]
        find_well_known(data, start, start + rows[PROPERTIES_BYTES, k], found)
        name, names_end = found[10], found[10] + found[11]
        number, numbers_end = found[12], found[12] + found[13]
        while name < names_end and number < numbers_end:
            name_end = _comma(data, name, names_end)
            number_end = _comma(data, number, numbers_end)
            offset = decimal(data, number, number_end - number, 18)
            long_enough = name_end - name > len(LIGHT_START)
            if offset >= 0 and long_enough and begins(data, name, LIGHT_START):
                if count < capacity:
                    for column in range(COLUMNS):
                        out[column, count] = rows[column, k]
                    out[TOPIC_AT, count] = name
                    out[TOPIC_BYTES, count] = name_end - name
                    out[QUEUE_ID, count] = 0
                    out[QUEUE_OFFSET, count] = offset
                count += 1
            name = name_end + 1
            number = number_end + 1
    return count


@inlined
def _same_queue(data: U8, rows: I64, other: int, at: int, size: int, queue: int) -> bool:
    if rows[QUEUE_ID, other] != queue or rows[TOPIC_BYTES, other] != size:
        return False
    return same_bytes(data, rows[TOPIC_AT, other], at, size)


@kernel(i64, ro_u8s, i64_table, i64, i64s, i64s)
def group_rows(data: U8, rows: I64, n: int, order: I64, starts: I64) -> int:
    """Group rows by (topic, queue id), keeping their order inside a group.

    order: row numbers, group after group. starts: where each group starts in `order`, and the end
    (capacity n + 1). Returns the number of groups.
    """
    table_size = 16
    while table_size < 2 * n + 2:
        table_size *= 2
    slots = np.full(table_size, -1, np.int64)
    firsts = np.empty(n, np.int64)
    groups = 0
    previous = np.int64(-1)
    for k in range(n):
        at = rows[TOPIC_AT, k]
        size = rows[TOPIC_BYTES, k]
        queue = rows[QUEUE_ID, k]
        group = np.int64(-1)
        if k + ROWS_AHEAD < n:
            fetch(data, rows[TOPIC_AT, k + ROWS_AHEAD])
        if previous >= 0 and _same_queue(data, rows, firsts[previous], at, size, queue):
            group = previous
        else:
            slot = java_hash_from(queue * 31 + 7, data, at, at + size) & (table_size - 1)
            while slots[slot] >= 0:
                if _same_queue(data, rows, firsts[slots[slot]], at, size, queue):
                    group = slots[slot]
                    break
                slot = (slot + 1) & (table_size - 1)
            if group < 0:
                group = np.int64(groups)
                slots[slot] = group
                firsts[group] = k
                starts[group] = 0
                groups += 1
        rows[GROUP, k] = group
        starts[group] += 1
        previous = group
    total = np.int64(0)
    for group in range(groups):
        size = starts[group]
        starts[group] = total
        firsts[group] = total
        total += size
    starts[groups] = total
    for k in range(n):
        group = rows[GROUP, k]
        order[firsts[group]] = k
        firsts[group] += 1
    return groups


@inlined
def _hex_value(digit: int) -> int:
    if 48 <= digit <= 57:
        return digit - 48
    if 65 <= digit <= 70:
        return digit - 55
    return np.int64(-1)


@inlined
def _same_producer(data: U8, at: int, other: int) -> bool:
    """Whether two UNIQ_KEYs begin with the same 20 bytes."""
    return same_bytes(data, at, other, 20)


@inlined
def _sequence(data: U8, at: int, same: bool) -> int:
    """The number in the last 12 hex digits of a 32-digit UNIQ_KEY; -1 if it is not such a key.

    same: the first 20 are known to be hex digits.
    """
    if not same:
        for k in range(20):
            if _hex_value(np.int64(data[np.uint64(at + k)])) < 0:
                return np.int64(-1)
    value = np.int64(0)
    for k in range(20, 32):
        digit = _hex_value(np.int64(data[np.uint64(at + k)]))
        if digit < 0:
            return np.int64(-1)
        value = value * 16 + digit
    return value


@kernel(i64, ro_u8s, i64_table, i64, i64_table)
def sequence_runs(data: U8, rows: I64, n: int, runs: I64) -> int:
    """Find runs of consecutive sequences at consecutive offsets of one queue; return their number.

    runs: [3, n] table of (first row, messages, first sequence). Rows must be grouped (GROUP set).
    """
    count = 0
    previous = np.int64(-2)
    for k in range(n):
        sequence = np.int64(-1)
        same = False
        if rows[UNIQ_KEY_BYTES, k] == 32:
            at = rows[UNIQ_KEY_AT, k]
            same = previous >= 0 and _same_producer(data, at, rows[UNIQ_KEY_AT, k - 1])
            sequence = _sequence(data, at, same)
        if sequence < 0:
            previous = np.int64(-2)
            continue
        if (
            same
            and sequence == previous + 1
            and rows[GROUP, k] == rows[GROUP, k - 1]
            and rows[QUEUE_OFFSET, k] == rows[QUEUE_OFFSET, k - 1] + 1
        ):
            runs[1, count - 1] += 1
        else:
            runs[0, count] = k
            runs[1, count] = 1
            runs[2, count] = sequence
            count += 1
        previous = sequence
    return count
