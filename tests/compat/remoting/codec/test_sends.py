"""Headers read by position are read as any other, whatever is wrong with them."""

import json
import struct
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duolog_server.compat.remoting.codec import sends
from duolog_server.compat.remoting.codec.command import BadFrame, Command, Serialization, read
from duolog_server.compat.remoting.codec.frames import FRAME_BYTES_MAX, FrameReader
from duolog_server.compat.remoting.codec.sends import read_sent

PROPERTIES = "UNIQ_KEY\x017F000001AAAA18B4AAC20D\x02WAIT\x01true\x02TAGS\x01été"
FIELDS = {
    "a": "bench",
    "b": "T",
    "c": "TBW102",
    "d": "4",
    "e": "3",
    "f": "0",
    "g": "1764500000000",
    "h": "0",
    "i": PROPERTIES,
    "j": "0",
    "k": "false",
    "m": "false",
}
TEXTS = st.one_of(
    st.sampled_from(
        ["", "0", "007", "-1", "1" * 19, "true", PROPERTIES, 'a"b', "a\\b", "\x01\x02"]
    ),
    st.text(max_size=12),
    st.text('\\u0012\x01\x02"é{},:', max_size=12),
)
NUMBERS = st.sampled_from([0, 1, 7, 310, 10, 401, 999_999_999, 1 << 31, -1])


def written(fields: dict[str, str], **other: Any) -> bytes:
    """A header as RocketMQ's Java client writes it."""
    header = {"code": 310, "extFields": fields, "flag": 0, "language": "JAVA", "opaque": 12}
    header |= {"serializeTypeCurrentRPC": "JSON", "version": 401, **other}
    return json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()


def result(reading: Callable[[int, bytes, bytes], Command], header: bytes) -> Command | str:
    try:
        return reading(Serialization.JSON, header, b"body")
    except BadFrame as error:
        return str(error)


def test_a_send_of_the_java_client_is_read_by_position() -> None:
    first = read_sent(Serialization.JSON, written(FIELDS), b"body")
    changed = {**FIELDS, "e": "0", "g": "1764500000001", "i": "K\x01v"}
    second = read_sent(Serialization.JSON, written(changed, opaque=13), b"other")
    assert first == read(Serialization.JSON, written(FIELDS), b"body")
    assert second == read(Serialization.JSON, written(changed, opaque=13), b"other")
    assert (first.fields["i"], second.fields["i"]) == (PROPERTIES, "K\x01v")
    assert first.template is not None
    assert first.template is second.template
    another = read_sent(Serialization.JSON, written({**FIELDS, "b": "U"}), b"")
    assert another.template is not first.template


@pytest.mark.parametrize(
    "fields",
    [
        {**FIELDS, "AccessKey": "k", "Signature": "s"},
        {**FIELDS, "i": 'K\x01"v"'},
        {**FIELDS, "i": "K\x01\\u0001"},
        {**FIELDS, "e": "-1"},
        dict(reversed(FIELDS.items())),
    ],
)
def test_what_is_unusual_is_read_by_its_names(fields: dict[str, str]) -> None:
    found = read_sent(Serialization.JSON, written(fields), b"")
    assert found.template is None
    assert found.fields == fields


@given(st.dictionaries(st.sampled_from("abcdefghijklmn"), TEXTS), NUMBERS, NUMBERS, NUMBERS, TEXTS)
def test_any_field_is_read_alike(
    changed: dict[str, str], code: int, opaque: int, version: int, language: str
) -> None:
    fields = dict(sorted({**FIELDS, **changed}.items()))
    header = written(fields, code=code, opaque=opaque, version=version, language=language)
    assert result(read_sent, header) == result(read, header)
    header = written(fields)
    assert result(read_sent, header) == result(read, header)


@given(
    st.lists(
        st.tuples(
            st.integers(0, 400),
            st.integers(0, 3),
            st.one_of(
                st.binary(max_size=3),
                st.sampled_from([b'"', b"\\", b'","', b"\\u0001", b"0", b"{", b"\xff"]),
                st.sampled_from([b'"e":"1",', b'"i":"",', b'"j":"1",', b'"n":"b"']),
            ),
        ),
        min_size=1,
        max_size=3,
    )
)
def test_a_damaged_header_is_read_alike(cuts: list[tuple[int, int, bytes]]) -> None:
    header = written(FIELDS)
    for at, count, put in cuts:
        at %= len(header) + 1
        header = header[:at] + put + header[at + count :]
    assert result(read_sent, header) == result(read, header)


def test_every_byte_of_a_header_may_be_another() -> None:
    header = written({**FIELDS, "i": "K\x01v"})
    for at in range(len(header)):
        for put in (*b'"\\0{},:e\x00\x1f\x7f\xff', header[at] ^ 1):
            damaged = header[:at] + bytes((put,)) + header[at + 1 :]
            assert result(read_sent, damaged) == result(read, damaged)


def test_templates_are_bounded_and_short() -> None:
    sends._template.cache_clear()
    for number in range(sends.TEMPLATES + 10):
        read_sent(Serialization.JSON, written({**FIELDS, "b": f"T{number}"}), b"")
    assert sends._template.cache_info().currsize == sends.TEMPLATES
    long = read_sent(
        Serialization.JSON, written({**FIELDS, "a": "g" * sends.TEMPLATE_CHARACTERS}), b""
    )
    assert long.template is None


def test_a_long_header_is_read_by_its_names() -> None:
    short = len(written({**FIELDS, "i": ""}))
    for size, is_found in ((sends.HEADER_BYTES - short, True), (sends.HEADER_BYTES, False)):
        header = written({**FIELDS, "i": "x" * size})
        found = read_sent(Serialization.JSON, header, b"")
        assert found == read(Serialization.JSON, header, b"")
        assert (found.template is not None) == is_found


def test_frames_are_read_so() -> None:
    header = written(FIELDS)
    reader = FrameReader(FRAME_BYTES_MAX)
    reader.feed(struct.pack(">II", 4 + len(header) + 4, len(header)) + header + b"body")
    found = reader.next()
    assert found is not None
    assert found.template is not None
    assert found.bare().template is None
