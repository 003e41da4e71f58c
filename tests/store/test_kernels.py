"""Kernels against plain-Python twins."""

import ctypes
import re
import sys
import zlib
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from duolog_server.store.columns import Columns
from duolog_server.store.commitlog import topic_field, uniq_key_field
from duolog_server.store.errors import BadMessage
from duolog_server.store.kernels import crc, encode, index, scan, text
from duolog_server.store.kernels.jit import EMPTY_I64, I64, U8
from duolog_server.store.record import RecordHeader
from tests import oracle


def u8(data: bytes) -> U8:
    """Bytes as a kernel takes them."""
    return np.frombuffer(data, np.uint8)


@given(st.binary(max_size=200), st.integers(0, 40), st.integers(0, 40))
def test_crc32_agrees_with_crcmod_and_zlib(data: bytes, skip: int, drop: int) -> None:
    start = min(skip, len(data))
    end = max(start, len(data) - drop)
    found = crc.crc32(u8(data), start, end)
    assert found == oracle.crc32(data[start:end]) == zlib.crc32(data[start:end])


@pytest.mark.parametrize("where", [crc.isal_address, crc.zlib_address, crc.portable_address])
def test_every_crc_implementation_computes_the_same(where: Callable[[], int]) -> None:
    signature = ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_uint64, ctypes.c_char_p, ctypes.c_uint64)
    address = where()
    assert address, "a server installs isal, and a machine that runs Python has libz"
    function = signature(address)
    for size in (0, 1, 15, 16, 17, 31, 32, 100, 1000, 100_000):
        data = bytes(n * 7 % 251 for n in range(size))
        low = 0xFFFFFFFF
        assert function(0, data, size) & low == zlib.crc32(data)
        assert function(zlib.crc32(b"x"), data, size) & low == zlib.crc32(b"x" + data)


def test_a_wrong_crc_implementation_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zlib, "crc32", lambda data: 1)
    assert crc.isal_address() == 0
    monkeypatch.setitem(sys.modules, "isal", None)  # not installed
    assert crc.isal_address() == 0


@given(st.text())
def test_java_hash_counts_utf16_units(value: str) -> None:
    value = value.encode("utf-8", "ignore").decode()
    assert text.java_hash(u8(value.encode())) == oracle.java_hash(value)


def test_java_hash_of_known_texts() -> None:
    known = {"TagA": 2598919, "TagB": 2598920, "T0": 2652, "": 0, "😀": 1772899}
    for value, expected in known.items():
        assert text.java_hash(u8(value.encode())) == expected


def test_index_hash_of_known_texts() -> None:
    assert index.key_hash(u8(b"TopicA#k1")) == 0x717125C9
    # Integer.MIN_VALUE has no absolute value in Java: such a key goes under 0.
    assert oracle.java_hash("polygenelubricants") == -(1 << 31)
    assert index.key_hash(u8(b"polygenelubricants")) == 0


@given(st.binary(max_size=40))
def test_property_blocks_are_clean_exactly_when_python_says_so(data: bytes) -> None:
    def clean() -> bool:
        try:
            value = data.decode()
        except UnicodeDecodeError:
            return False
        if not value:
            return True
        pairs = value.removesuffix("\x02").split("\x02")
        for pair in pairs:
            parts = pair.split("\x01")
            if len(parts) != 2 or not parts[0] or not parts[1]:
                return False
            if any(ord(c) < 32 or ord(c) == 127 for part in parts for c in part):
                return False
        return True

    assert bool(text.properties_clean(u8(data))) == clean()


WELL_KNOWN = [
    "TAGS", "KEYS", "UNIQ_KEY", "DELAY", "TIMER_OUT_MS", "INNER_MULTI_DISPATCH",
    "INNER_MULTI_QUEUE_OFFSET",
]  # fmt: skip


@given(
    st.lists(
        st.tuples(
            st.sampled_from([*WELL_KNOWN, "A", "TAG", "KEYSX", "INNER_MULTI_DISPATCX"]),
            st.text("abc \x01é", max_size=20),
        ),
        max_size=6,
    )
)
def test_well_known_properties_are_found_as_python_finds_them(pairs: list[tuple[str, str]]) -> None:
    block = "\x02".join(f"{name}\x01{value}" for name, value in pairs).encode()
    found = np.zeros(text.FOUND, np.int64)
    text.find_well_known(u8(block), 0, len(block), found)
    expected = oracle.properties_of(block)
    for slot, name in enumerate(WELL_KNOWN):
        at, size = found[2 * slot], found[2 * slot + 1]
        assert block[at : at + size] == expected.get(name.encode(), b"")


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["T", "topic", "topix"]),
            st.sampled_from(["", "ABCDEFGHIJKL", "XBCDEFGHIJKL", "éAé😀BCDEFGHIJ"]),
            st.text("01é😀", max_size=3),
            st.lists(st.text("01é😀", min_size=1, max_size=14), max_size=2),
        ),
        max_size=8,
    )
)
@example(
    [("T", "ABCDEFGHIJKL", "", []), ("T", "XBCDEFGHIJKL", "", []), ("U", "XBCDEFGHIJKL", "", [])]
)
def test_keys_that_begin_alike_are_indexed_by_the_hash_of_all_of_them(
    records: list[tuple[str, str, str, list[str]]],
) -> None:
    """Within a topic, the beginning that the UNIQ_KEYs of neighbours share is hashed once."""
    log, expected = b"", list[int]()
    for topic, beginning, end, keys in records:
        unique = beginning + end
        pairs = [("UNIQ_KEY", unique)] if unique else []
        pairs += [("KEYS", " ".join(keys))] if keys else []
        properties = "\x02".join(f"{name}\x01{value}" for name, value in pairs).encode()
        log += oracle.encode_record(
            topic=topic.encode(),
            queue_id=0,
            queue_offset=0,
            physical_offset=len(log),
            body=b"",
            properties=properties,
            born_time=0,
            store_time=1,
        )
        expected += [oracle.index_hash(f"{topic}#{key}") for key in [unique, *keys] if key]
    memory, rows = u8(log), np.empty((scan.COLUMNS, len(records)), np.int64)
    scan.scan(memory, 0, len(log), 0, False, EMPTY_I64, rows, np.zeros(2, np.int64))
    slots, room = 7, len(expected) + 1
    file = np.zeros(index.HEADER_BYTES + slots * 4 + room * index.ENTRY_BYTES, np.uint8)
    index.put_keys(file, slots, room, memory, rows, len(records), np.zeros(2, np.int64))
    entries = file[index.HEADER_BYTES + slots * 4 + index.ENTRY_BYTES :].tobytes()
    hashes = [int.from_bytes(entries[at : at + 4], "big") for at in range(0, len(entries), 20)]
    assert hashes == expected


def test_rows_are_grouped_by_topic_and_queue_in_their_order() -> None:
    log, position = b"", 0
    expected: dict[tuple[bytes, int], list[int]] = {}
    for number in range(200):
        topic, queue = [b"A", b"AB", b"B"][number * 7 % 3], number * 5 % 4
        record = oracle.encode_record(
            topic=topic,
            queue_id=queue,
            queue_offset=number,
            physical_offset=position,
            body=b"",
            properties=b"",
            born_time=0,
            store_time=1,
        )
        expected.setdefault((topic, queue), []).append(number)
        log += record
        position += len(record)
    rows = np.empty((scan.COLUMNS, 256), np.int64)
    result = np.zeros(2, np.int64)
    assert scan.scan(u8(log), 0, len(log), 0, True, EMPTY_I64, rows, result) == scan.SCAN_END
    order, starts = np.empty(256, np.int64), np.empty(257, np.int64)
    groups = scan.group_rows(u8(log), rows, 200, order, starts)
    found = [order[starts[g] : starts[g + 1]].tolist() for g in range(groups)]
    assert found == list(expected.values())


HEX_KEYS = st.tuples(
    st.sampled_from([b"A" * 20, b"A" * 19 + b"B", b"B" + b"A" * 19, b"A" * 8 + b"B" + b"A" * 11]),
    st.integers(0, 3),
).map(lambda key: b"%s%012X" % key)
ODD_KEYS = st.sampled_from([b"", b"K", b"A" * 31, b"G" + b"A" * 31, b"A" * 20 + b"z" * 12])


@given(st.lists(st.tuples(HEX_KEYS | ODD_KEYS, st.integers(0, 1), st.integers(0, 2)), max_size=30))
def test_runs_are_consecutive_sequences_at_consecutive_offsets_of_a_queue(
    records: list[tuple[bytes, int, int]],
) -> None:
    rows = np.zeros((scan.COLUMNS, len(records)), np.int64)
    data, expected = b"", list[list[int]]()
    for k, (key, queue, offset) in enumerate(records):
        rows[[scan.GROUP, scan.QUEUE_OFFSET, scan.UNIQ_KEY_AT, scan.UNIQ_KEY_BYTES], k] = (
            (queue, offset, len(data), len(key))
        )  # fmt: skip
        data += key
        if not re.fullmatch(b"[0-9A-F]{32}", key):
            continue
        number = int(key[20:], 16)
        before = records[k - 1] if k else (b"", -1, -1)
        follows = before == (b"%s%012X" % (key[:20], number - 1), queue, offset - 1)
        if follows and number:
            expected[-1][1] += 1
        else:
            expected.append([k, 1, number])
    runs = np.zeros((3, len(records)), np.int64)
    count = scan.sequence_runs(u8(data), rows, len(records), runs)
    assert runs[:, :count].T.tolist() == expected


def test_find_record_is_not_fooled_by_bytes_that_resemble_a_record() -> None:
    inner = oracle.encode_record(
        topic=b"T", queue_id=0, queue_offset=0, physical_offset=0, body=b"x", properties=b"",
        born_time=0, store_time=1,
    )  # fmt: skip
    genuine_at = 13 + len(inner)
    genuine = oracle.encode_record(
        topic=b"T", queue_id=0, queue_offset=1, physical_offset=genuine_at, body=b"y",
        properties=b"", born_time=0, store_time=1,
    )  # fmt: skip
    data = bytes(13) + inner + genuine
    assert scan.find_record(u8(data), 0, len(data), 0) == genuine_at


@pytest.mark.parametrize(
    ("body_offsets", "property_offsets", "why"),
    [
        ([0, 5, 3], [0, 0, 0], "offsets"),
        ([1, 2, 3], [0, 0, 0], "offsets"),
        ([0, 2, 9], [0, 0, 0], "offsets"),
        ([0, 2, (1 << 32) - 1], [0, 0, 0], "offsets"),
        ([0, 2, 4], [0, 0, 0], "offsets"),
        ([0, 2, 5], [0, 4, 0], "offsets"),
        ([0, 2, 5], [0, 0, 1], "offsets"),
    ],
)
def test_inconsistent_offsets_are_refused(
    body_offsets: list[int], property_offsets: list[int], why: str
) -> None:
    columns = Columns.from_wire(
        b"hello",
        np.array(body_offsets, "<u4").tobytes(),
        b"",
        np.array(property_offsets, "<u4").tobytes(),
    )
    with pytest.raises(BadMessage, match=why):
        columns.check(1000)


@given(st.binary(max_size=64), st.binary(max_size=24), st.binary(max_size=24), st.binary())
def test_arbitrary_columns_are_valid_or_refused(
    bodies: bytes, body_offsets: bytes, property_offsets: bytes, properties: bytes
) -> None:
    try:
        columns = Columns.from_wire(bodies, body_offsets, properties, property_offsets)
        columns.check(1000)
    except BadMessage:
        return
    ends = columns.body_offsets.tolist()
    assert ends == sorted(ends)
    assert ends[-1] == len(bodies)


SIZES = [0, 1, 15, 16, 17, 33, 400]  # of batches, around those that are finished at once


@pytest.mark.parametrize("count", SIZES[1:])
@pytest.mark.parametrize("sequence", [0, 9, 0xFFF8, 0x9FFFF9F0, (1 << 48) - 400])
def test_every_record_of_a_batch_has_its_key_and_its_seal(count: int, sequence: int) -> None:
    header = RecordHeader("T", 1, 2, 3)
    target: U8 = np.zeros(count * 200, np.uint8)
    end, fitted = encoded(target, header, count, sequence)
    assert fitted == count
    position, sealed_low = 0, False
    for k in range(count):
        size = int.from_bytes(target[position : position + 4].tobytes(), "big")
        record = target[position : position + size].tobytes()
        body, _, tail = record.partition(b"\x02__CRC32#\x01")
        assert record[4:8] == header.packed()[4:8]
        assert body.endswith(b"UNIQ_KEY\x01" + b"70" * 10 + f"{sequence + k:012X}".encode())
        crc = zlib.crc32(record[:-20])
        assert tail == f"{crc:010}"[::-1].encode() + b"\x02"
        sealed_low = sealed_low or crc < 100_000_000
        position += size
    assert position == end
    assert sealed_low or count < SIZES[-1]  # leading zeros


@pytest.mark.parametrize("whole", SIZES)
def test_a_batch_that_does_not_fit_leaves_whole_records(whole: int) -> None:
    header = RecordHeader("T", 1, 2, 3)
    target: U8 = np.zeros(100_000, np.uint8)
    size = encoded(target, header, 1, 0)[0]
    target[:] = 0
    end, fitted = encoded(target[: whole * size + size], header, whole + 5, 0)
    assert (end, fitted) == (whole * size, whole)
    rows: I64 = np.empty((scan.COLUMNS, whole + 1), np.int64)
    result: I64 = np.zeros(2, np.int64)
    assert scan.scan(target, 0, end, 0, True, EMPTY_I64, rows, result) == scan.SCAN_END
    assert result.tolist() == [whole, end]
    assert not target[end:].any()


def encoded(target: U8, header: RecordHeader, count: int, sequence: int) -> tuple[int, int]:
    """The end of a batch's sealed records, and how many fitted."""
    result: I64 = np.zeros(1, np.int64)
    end = encode.encode(
        target, 0, len(target), 0,
        np.frombuffer(header.packed(), np.uint8), topic_field("T", header.topic_length_bytes()),
        np.frombuffer(b"body" * count, np.uint8), np.arange(count + 1, dtype=np.uint32) * 4,
        np.empty(0, np.uint8), np.zeros(count + 1, np.uint32), 0, 0,
        uniq_key_field(b"p" * 10), sequence, True, encode.NO_FIELDS, result,
    )  # fmt: skip
    return int(end), int(result[0])
