"""Commands and frames of the remoting protocol: round trips, cuts, lengths that lie."""

import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duolog_server.compat.remoting.codec.command import (
    HEADER_BYTES_MAX,
    LANGUAGES,
    LONG_CHARACTERS,
    ONEWAY,
    RESPONSE,
    BadFrame,
    Command,
    Serialization,
)
from duolog_server.compat.remoting.codec.frames import FRAME_BYTES_MAX, FrameReader

INT32 = st.integers(-(1 << 31), (1 << 31) - 1)
INT16 = st.integers(-(1 << 15), (1 << 15) - 1)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
COMMANDS = st.builds(
    Command,
    code=INT16,
    opaque=INT32,
    fields=st.dictionaries(TEXTS.filter(bool), TEXTS, max_size=6),
    body=st.binary(max_size=200),
    remark=TEXTS,
    flag=INT32,
    language=st.sampled_from(LANGUAGES),
    version=INT16,
    serialization=st.sampled_from(Serialization),
)


def reader(frame_bytes_max: int = FRAME_BYTES_MAX) -> FrameReader:
    return FrameReader(frame_bytes_max)


def read_all(data: bytes, *, step: int = 0) -> list[Command]:
    made, found = reader(), []
    step = step or len(data) or 1
    for at in range(0, len(data), step):
        made.feed(data[at : at + step])
        while (command := made.next()) is not None:
            found.append(command)
    return found


@given(COMMANDS)
def test_a_command_is_read_as_it_was_written(command: Command) -> None:
    assert read_all(command.frame()) == [command]


@pytest.mark.parametrize("size", [LONG_CHARACTERS, LONG_CHARACTERS + 1])
def test_long_texts_are_escaped_as_short_ones_are(size: int) -> None:
    for char in (*map(chr, range(0x100)), "\u2028", "\U0001f600"):
        command = Command(0, fields={"ids": "0" * (size - 1) + char})
        assert read_all(command.frame()) == [command]
        assert json.loads(command.head()[8:])["extFields"] == command.fields


@given(st.lists(COMMANDS, max_size=4), st.integers(1, 64))
def test_frames_are_found_however_they_arrive(commands: list[Command], step: int) -> None:
    data = b"".join(command.frame() for command in commands)
    assert read_all(data, step=step) == commands


@pytest.mark.parametrize("serialization", Serialization)
def test_a_frame_cut_at_any_byte_waits_for_the_rest(serialization: Serialization) -> None:
    command = Command(310, 7, {"a": "g", "i": "K\x01v"}, b"body", serialization=serialization)
    data = command.frame()
    for cut in range(len(data)):
        made = reader()
        made.feed(data[:cut])
        assert made.next() is None
        assert made.held_bytes == cut
        made.feed(data[cut:])
        assert made.next() == command
        assert made.held_bytes == 0


@given(st.binary(max_size=300))
def test_any_bytes_are_a_command_or_no_frame(data: bytes) -> None:
    try:
        read_all(data)
    except BadFrame:
        pass


@given(st.sampled_from(Serialization), st.binary(max_size=120))
def test_any_header_is_a_command_or_no_frame(serialization: Serialization, header: bytes) -> None:
    lengths = struct.pack(">II", 4 + len(header), serialization << 24 | len(header))
    try:
        (found,) = read_all(lengths + header)
    except BadFrame:
        return
    assert read_all(found.frame()) == [found]  # it has no text that cannot be written


@pytest.mark.parametrize("at", range(40))
def test_a_binary_header_with_any_byte_changed_is_a_command_or_no_frame(at: int) -> None:
    command = Command(11, 3, {"topic": "T"}, remark="r", serialization=Serialization.ROCKETMQ)
    frame = bytearray(command.frame())
    for value in range(256):
        frame[at % len(frame)] = value
        try:
            read_all(bytes(frame))
        except BadFrame:
            pass


@pytest.mark.parametrize(
    ("size", "header", "wrong"),
    [
        (FRAME_BYTES_MAX + 1, 10, "a frame of"),
        (0xFFFFFFFF, 10, "a frame of"),
        (3, 0, "a header of"),
        (20, 17, "a header of"),
        (FRAME_BYTES_MAX, HEADER_BYTES_MAX + 1, "a header of"),
        (0x16030102, 0, "TLS"),
    ],
)
def test_lengths_are_checked_before_anything_else_comes(size: int, header: int, wrong: str) -> None:
    made = reader()
    made.feed(struct.pack(">II", size, header))
    with pytest.raises(BadFrame, match=wrong):
        made.next()


def test_a_tls_handshake_is_recognised_by_its_first_byte() -> None:
    made = reader()
    made.feed(b"\x16")
    with pytest.raises(BadFrame, match="TLS"):
        made.next()


def test_the_limit_of_a_node_holds_where_it_is_lower() -> None:
    made = reader(100)
    made.feed(struct.pack(">II", 101, 0))
    with pytest.raises(BadFrame, match="the limit is 100"):
        made.next()


def json_frame(header: object) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack(">II", 4 + len(text), len(text)) + text


def test_a_header_of_a_newer_client_is_read_without_what_is_not_known() -> None:
    header = {
        "code": 105,
        "opaque": 9,
        "extFields": {"topic": "T", "nothing": None, "count": 3, "yes": True},
        "language": "ZIG",
        "version": 500,
        "suspended": False,
        "stopwatch": {"running": True},
    }
    (found,) = read_all(json_frame(header))
    assert found.fields == {"topic": "T", "count": "3", "yes": "true"}
    assert (found.code, found.opaque, found.language, found.version) == (105, 9, "ZIG", 500)
    assert not found.is_response
    assert not found.is_oneway


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"[]",
        b"{",
        b"[" * 100_000,
        b'{"code":' + b"1" * 5000 + b"}",
        {"code": "10"},
        {"code": 1 << 31},
        {"opaque": True},
        {"extFields": []},
        {"extFields": {"a": {}}},
        {"extFields": {str(k): "" for k in range(257)}},
        {"remark": []},
        b'{"remark":"\xff"}',
        b'{"remark":"\xed\xa0\x80"}',  # half a character
        '{"remark":"\\ud800"}'.encode("utf-16"),
    ],
)
def test_a_header_that_cannot_be_read_is_no_frame(header: object) -> None:
    with pytest.raises(BadFrame):
        read_all(json_frame(header))


def test_halves_of_characters_do_not_pass() -> None:
    (found,) = read_all(
        json_frame(b'{"extFields":{"t":"a\\ud800b\\uD83D\\uDE00"},"remark":"\\udc00"}')
    )
    assert found.fields == {"t": "a\ufffdb\U0001f600"}
    assert found.remark == "\ufffd"


@pytest.mark.parametrize("serialization", Serialization)
def test_a_remark_may_quote_half_a_character(serialization: Serialization) -> None:
    request = Command(17, 1, serialization=serialization)
    (found,) = read_all(request.answer(1, "no \ud800", {"\udc00": "\udfff"}).frame())
    assert (found.code, found.remark[:-1], len(found.fields)) == (1, "no ", 1)
    found.frame()


@pytest.mark.parametrize("serialization", Serialization)
def test_an_answer_repeats_number_and_form_of_its_request(serialization: Serialization) -> None:
    request = Command(38, 12, flag=ONEWAY, serialization=serialization)
    assert request.is_oneway
    answer = request.answer(1, "nobody", {"a": "b"}, b"x")
    assert answer.is_response
    assert (answer.opaque, answer.flag, answer.serialization) == (12, RESPONSE, serialization)
    assert read_all(answer.frame()) == [answer]
