"""The record format, against RocketMQ's own bytes and against the plain-Python twin."""

import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from duolog_server.store.columns import Columns
from duolog_server.store.commitlog import WHOLE, CommitLog, Part, read_record
from duolog_server.store.errors import BadMessage, CorruptRecord
from duolog_server.store.kernels import scan
from duolog_server.store.kernels.jit import EMPTY_I64
from duolog_server.store.names import check_topic
from duolog_server.store.offsets import PhyOffset
from duolog_server.store.osdisk import OsDisk
from duolog_server.store.record import (
    Host,
    RecordHeader,
    decode_properties,
    encode_properties,
    few_message_ids,
    offset_message_id,
    offset_message_ids,
    parse_message_id,
    put_reconsume_times,
    uniq_key,
)
from tests import oracle
from tests.support import options

# What the RocketMQ 4.9.8 store wrote for this message (first record of its log).
ROCKETMQ_RECORD = bytes.fromhex(
    "0000009cdaa320a73610a6860000000000000000000000000000000000000000"
    "00000000000000000000018bcfe568000a010203000004d2000001a1fc063b38"
    "7f00000100002a9f0000000000000000000000000000000568656c6c6f06546f"
    "7069634100364b455953016b31206b3202554e49515f4b455901374630303030"
    "30314142434430303030303030303030303002544147530154616741"
)
ROCKETMQ_PROPERTIES = b"KEYS\x01k1 k2\x02UNIQ_KEY\x017F000001ABCD000000000000\x02TAGS\x01TagA"
STORE_TIME = 0x1A1FC063B38


def written(
    tmp_path: Path,
    columns: Columns,
    header: RecordHeader,
    sealed: bool = False,
    *,
    queue_offset: int,
    part: Part = WHOLE,
) -> bytes:
    """Bytes that the commit log writes for a batch."""
    log = CommitLog(OsDisk(tmp_path), options(enabled_append_prop_crc=sealed))
    where = log.append(columns, header, queue_offset, part)
    data = log.get_data(where.start)[: where.end - where.start].tobytes()
    log.queue.close()
    return data


def test_a_record_has_the_bytes_that_rocketmq_writes(tmp_path: Path) -> None:
    header = RecordHeader(
        "TopicA", 0, 1700000000000, STORE_TIME, Host("10.1.2.3", 1234), Host("127.0.0.1", 10911)
    )
    columns = Columns.of([b"hello"], [ROCKETMQ_PROPERTIES])
    assert written(tmp_path, columns, header, queue_offset=0) == ROCKETMQ_RECORD


def test_rocketmqs_record_is_read_back() -> None:
    record = read_record(np.frombuffer(ROCKETMQ_RECORD, np.uint8), 0, 156, 0)
    assert record.topic == "TopicA"
    assert record.body == b"hello"
    assert record.born_host == Host("10.1.2.3", 1234)
    assert record.store_host == Host("127.0.0.1", 10911)
    assert record.born_time == 1700000000000
    assert record.store_time == STORE_TIME
    assert record.tags_code == 2598919
    assert record.properties == {
        "KEYS": "k1 k2",
        "UNIQ_KEY": "7F000001ABCD000000000000",
        "TAGS": "TagA",
    }
    assert record.message_id == "7F00000100002A9F0000000000000000"


@pytest.mark.parametrize("sealed", [False, True])
@pytest.mark.parametrize("born", ["10.1.2.3", "2001:db8::1"])
@pytest.mark.parametrize("stored", ["127.0.0.1", "::1"])
@pytest.mark.parametrize("topic", ["T", "t" * 127, "r" * 128, "r" * 255])
def test_v1_and_v2_with_ipv4_and_ipv6_hosts_match_the_twin(
    tmp_path: Path, topic: str, stored: str, born: str, sealed: bool
) -> None:
    born_host, store_host = Host(born, 1), Host(stored, 65535)
    header = RecordHeader(
        topic,
        3,
        11,
        12,
        born_host,
        store_host,
        flag=-5,
        reconsume_times=2,
        prepared_offset=PhyOffset(99),
    )
    data = written(tmp_path, Columns.of([b"body"], [b"A\x01b"]), header, sealed, queue_offset=7)
    assert data == oracle.encode_record(
        topic=topic.encode(),
        queue_id=3,
        queue_offset=7,
        physical_offset=0,
        body=b"body",
        properties=b"A\x01b",
        born_time=11,
        store_time=12,
        born_host=born_host.packed(),
        store_host=store_host.packed(),
        flag=-5,
        reconsume_times=2,
        prepared_offset=99,
        sealed=sealed,
    )
    record = read_record(np.frombuffer(data, np.uint8), 0, len(data), 0)
    assert (record.born_host, record.store_host) == (born_host, store_host)
    assert (record.flag, record.reconsume_times, record.prepared_offset) == (-5, 2, 99)
    assert record.topic == topic
    changed = bytearray(b"before" + data)
    put_reconsume_times(changed, 6, len(changed), 15)
    again = read_record(np.frombuffer(changed, np.uint8)[6:], 0, len(data), 0)
    assert again == replace(record, reconsume_times=15, properties=again.properties)


@given(
    bodies=st.lists(st.binary(max_size=60), min_size=1, max_size=20),
    texts=st.lists(
        st.sampled_from([b"", b"A\x01b", b"KEYS\x01k v\x02", "N\x01ü€😀".encode()]), min_size=20
    ),
    producer=st.sampled_from([b"", b"0123456789"]),
    sealed=st.booleans(),
)
def test_a_batch_is_what_the_twin_writes_record_by_record(
    tmp_path_factory: pytest.TempPathFactory,
    bodies: list[bytes],
    texts: list[bytes],
    producer: bytes,
    sealed: bool,
) -> None:
    texts = texts[: len(bodies)]
    data = written(
        tmp_path_factory.mktemp("batch"),
        Columns.of(bodies, texts),
        RecordHeader("T", 1, 5, 6),
        sealed,
        queue_offset=100,
        part=Part(producer=producer, sequence=0xFFFFFFFFFF00),
    )
    position = 0
    for number, (body, text) in enumerate(zip(bodies, texts, strict=True)):
        if producer:
            key = uniq_key(producer, 0xFFFFFFFFFF00 + number).encode()
            joint = b"\x02" if text and not text.endswith(b"\x02") else b""
            text = text + joint + b"UNIQ_KEY\x01" + key
        expected = oracle.encode_record(
            topic=b"T",
            queue_id=1,
            queue_offset=100 + number,
            physical_offset=position,
            body=body,
            properties=text,
            born_time=5,
            store_time=6,
            sealed=sealed,
        )
        assert data[position : position + len(expected)] == expected
        position += len(expected)
    assert position == len(data)


@given(st.data())
def test_the_scan_accepts_what_the_twin_accepts(data: st.DataObject) -> None:
    record = oracle.encode_record(
        topic=b"Topic",
        queue_id=1,
        queue_offset=2,
        physical_offset=0,
        body=data.draw(st.binary(max_size=30)),
        properties=b"TAGS\x01x\x02KEYS\x01a b",
        born_time=3,
        store_time=4,
        sealed=data.draw(st.booleans()),
    )
    damaged = bytearray(record)
    for _ in range(data.draw(st.integers(0, 3))):
        at = data.draw(st.integers(0, len(record) - 1))
        damaged[at] = data.draw(st.integers(0, 255))
    memory = np.frombuffer(bytes(damaged), np.uint8)
    rows = np.empty((scan.COLUMNS, 4), np.int64)
    result = np.zeros(2, np.int64)
    scan.scan(memory, 0, len(memory), 0, True, EMPTY_I64, rows, result)
    parsed = oracle.parse_record(bytes(damaged), 0, 0)
    assert (result[0] == 1) == (parsed is not None)
    if parsed is not None:
        assert rows[scan.SIZE, 0] == parsed.size
        assert rows[scan.QUEUE_OFFSET, 0] == parsed.queue_offset
        assert rows[scan.STORE_TIME, 0] == parsed.store_time
        tags = oracle.properties_of(parsed.properties).get(b"TAGS", b"")
        if tags.isascii():
            assert rows[scan.TAGS_CODE, 0] == oracle.java_hash(tags.decode())


def test_a_sealed_record_shows_a_flip_of_any_byte() -> None:
    record = oracle.encode_record(
        topic=b"T",
        queue_id=0,
        queue_offset=0,
        physical_offset=0,
        body=b"x" * 20,
        properties=b"A\x01b",
        born_time=1,
        store_time=2,
        sealed=True,
    )
    seal = len(record) - 20
    for at in range(len(record)):
        damaged = bytearray(record)
        damaged[at] ^= 0x10
        if seal <= at < seal + 9:
            continue  # the seal's own name: without it the record is an unsealed one
        with pytest.raises(CorruptRecord):
            read_record(np.frombuffer(bytes(damaged), np.uint8), 0, len(record), 0)


def test_a_record_that_names_another_offset_is_refused() -> None:
    with pytest.raises(CorruptRecord, match="another offset"):
        read_record(np.frombuffer(ROCKETMQ_RECORD, np.uint8), 0, 156, 4096)


def test_an_empty_body_has_crc_zero(tmp_path: Path) -> None:
    data = written(tmp_path, Columns.of([b""]), RecordHeader("T", 0, 1, 2), queue_offset=0)
    assert data[8:12] == bytes(4)
    assert read_record(np.frombuffer(data, np.uint8), 0, len(data), 0).body == b""


def test_message_ids_have_16_or_28_bytes() -> None:
    v4 = offset_message_id(Host("10.0.0.1", 10911), PhyOffset(0x1234))
    assert v4 == "0A00000100002A9F0000000000001234"
    assert parse_message_id(v4) == (Host("10.0.0.1", 10911), 0x1234)
    v6 = offset_message_id(Host("::1", 1), PhyOffset(5))
    for host in (Host("10.0.0.1", 10911), Host("::1", 1)):
        places = [0, 5, 1 << 31, 1 << 32, (1 << 62) + 11]
        single = [offset_message_id(host, PhyOffset(place)) for place in places]
        assert offset_message_ids(host, np.array(places, np.int64)) == ",".join(single)
        assert few_message_ids(host, places) == single
    assert len(v6) == 56
    assert parse_message_id(v6) == (Host("::1", 1), 5)


@pytest.mark.parametrize("text", ["", "zz", "0A", "0" * 30, "0" * 34, "g" * 32])
def test_invalid_message_ids_are_refused(text: str) -> None:
    with pytest.raises(BadMessage):
        parse_message_id(text)


def test_uniq_key_is_32_hex_digits_of_producer_and_sequence() -> None:
    assert uniq_key(b"\x01" * 10, 0xABC) == "01" * 10 + "000000000ABC"


def test_property_text_is_written_without_and_read_with_a_last_separator() -> None:
    assert encode_properties({"A": "1", "B": "2"}) == "A\x011\x02B\x012"
    assert decode_properties("A\x011\x02B\x012\x02") == {"A": "1", "B": "2"}
    assert decode_properties("A\x01\x02\x01x\x02novalue\x02A\x011\x02A\x012") == {"A": "2"}


@pytest.mark.parametrize("properties", [{"": "x"}, {"x": ""}, {"a\x01": "b"}, {"a": "b\x02"}])
def test_properties_that_cannot_be_written_are_refused(properties: dict[str, str]) -> None:
    with pytest.raises(BadMessage):
        encode_properties(properties)


@pytest.mark.parametrize("name", ["T", "a-b_c%d|e", "x" * 127])
def test_valid_topic_names_are_accepted(name: str) -> None:
    check_topic(name)


@pytest.mark.parametrize("name", ["", "x" * 128, "../x", "a/b", "a\0b", "a b", "ü", "a.b", "\n"])
def test_invalid_topic_names_are_rejected(name: str) -> None:
    with pytest.raises(BadMessage):
        check_topic(name)


def test_an_invalid_name_is_refused_with_the_rule_and_a_name_to_use() -> None:
    with pytest.raises(BadMessage) as caught:
        check_topic("orders.eu/created.v2")
    assert str(caught.value) == (
        "topic 'orders.eu/created.v2' has './': RocketMQ allows letters, digits and %|_- in names; "
        "try 'orders_eu_created_v2'"
    )


def test_sysflag_bits_of_hosts_are_set_by_the_hosts_alone() -> None:
    header = RecordHeader("T", 0, 1, 2, Host("::1", 1), Host("1.2.3.4", 2), sysflag=0x20 | 0x1)
    (sysflag,) = struct.unpack_from(">I", header.packed(), 36)
    assert sysflag == 0x10 | 0x1
