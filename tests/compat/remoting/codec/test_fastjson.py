"""Bodies in the JSON of RocketMQ's Java programs."""

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duolog_server.compat.remoting.codec.command import BadRequest
from duolog_server.compat.remoting.codec.fastjson import MessageQueue, dumps, loads

TEXTS = st.text(st.characters(codec="utf-8"))
NUMBERS = st.integers(-(1 << 63), 1 << 63) | st.floats(allow_nan=False, allow_infinity=False)
PLAIN = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner),
    max_leaves=20,
)
QUEUES = st.builds(MessageQueue, TEXTS, st.integers(0, 99), TEXTS)


@given(PLAIN)
def test_json_is_read_as_json_is(value: object) -> None:
    assert loads(json.dumps(value).encode()) == value


@given(
    st.dictionaries(st.text(st.characters(codec="utf-8")) | st.integers() | QUEUES, st.integers())
)
def test_what_is_written_is_read(value: object) -> None:
    assert loads(dumps(value)) == value


def test_numbers_as_keys_are_not_quoted() -> None:
    assert dumps({"offsetTable": {"t@g": {0: 12, 1: 7}}}) == b'{"offsetTable":{"t@g":{0:12,1:7}}}'
    assert loads(b'{"offsetTable": {"t@g": {0:12, 1 : 7}}}') == {
        "offsetTable": {"t@g": {0: 12, 1: 7}}
    }


def test_queues_as_keys() -> None:
    text = b'{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"t"}:{"brokerOffset":9}}}'
    value = {"offsetTable": {MessageQueue("b", 0, "t"): {"brokerOffset": 9}}}
    assert loads(text) == value
    assert dumps(value) == text


def test_null_members_are_not_written() -> None:
    assert dumps({"a": None, "b": [None, True]}) == b'{"b":[null,true]}'


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"[1,", b'{"a"}', b'{"a":}', b'{{"x":1}:2}', b"{true:1}", b'"a', b"1 2", b"nul",
        b"\xff", b"[" * 100, b"1" * 500, b'{"a":1,}', b"[1 2]", b"{1.5:2}",
    ],
)  # fmt: skip
def test_what_is_no_json_is_refused(body: bytes) -> None:
    with pytest.raises(BadRequest):
        loads(body)


@given(st.binary(max_size=64))
def test_any_bytes_are_read_or_refused(body: bytes) -> None:
    with contextlib.suppress(BadRequest):
        loads(body)
