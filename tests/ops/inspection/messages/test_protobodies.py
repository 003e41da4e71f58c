"""Bodies that are Protobuf: what they show, and what is wrong with descriptors."""

import contextlib
import json
import os
import time
from pathlib import Path

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from hypothesis import given
from hypothesis import strategies as st

from duolog_server.ops.inspection.messages.protobodies import (
    FILE_BYTES_MAX,
    UNNAMED,
    BadBody,
    BadDescriptors,
    ProtoRule,
    ProtoType,
    ProtoTypes,
    as_json,
)
from tests.protobufs import ORDER, descriptors, file_of, order

UNKNOWN = b"\x78\x05\x78\x06\xa2\x06\x01a"  # field 15 twice, field 100


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> ProtoType:
    return ProtoType.of(f"{file_of(tmp_path_factory.mktemp('protobuf'))}:{ORDER}")


def test_every_field_has_its_name_or_its_number(made: ProtoType) -> None:
    one = order(id=1 << 60, state=1, card="4111", raw=b"\xff", parent={"id": 2})
    one.lines.add(article="duck", count=2)
    one.prices["a"].count = 3
    one.at.FromMilliseconds(1_700_000_000_000)
    one.more.Pack(one.lines[0])
    assert made.value(one.SerializeToString()) == {
        "id": 1 << 60,
        "lines": [{"article": "duck", "count": 2}],
        "state": "PAID",
        "card": "4111",
        "raw": "/w==",
        "at": "2023-11-14T22:13:20Z",
        "parent": {"id": 2},
        "more": {"@type": "type.googleapis.com/shop.Line", "article": "duck", "count": 2},
        "prices": {"a": {"count": 3}},
    }
    body = order(id=1, state=7, more={"type_url": "x/none.None", "value": b"a"}).SerializeToString()
    found = made.value(body + UNKNOWN)
    assert found == {
        "id": 1,
        "state": 7,
        "more": {"type_url": "x/none.None", "value": "YQ=="},
        "15": [5, 6],
        "100": "YQ==",
    }
    named = made.value(body + UNKNOWN, named=True)
    assert named == {"id": 1, "state": 7, "more": UNNAMED, "15": UNNAMED, "100": UNNAMED}
    body = order(at={"seconds": 1 << 60}).SerializeToString()
    assert made.value(body) == {"at": {"seconds": 1 << 60}}


@pytest.mark.parametrize(
    "body", [b"\xff", b"hello", b"\x3a\xff\xff\xff\xff\x0f", b"\x22\x02\xff\xfe"]
)
def test_what_is_no_message_is_told(made: ProtoType, body: bytes) -> None:
    with pytest.raises(BadBody, match="not a valid shop"):
        made.value(body)


def test_deep_messages_are_told_and_small_ones_read_in_a_moment(made: ProtoType) -> None:
    one = order(id=1)
    for _ in range(90):
        outer = type(one)()
        outer.parent.CopyFrom(one)
        one = outer
    assert made.value(one.SerializeToString())
    body = one.SerializeToString()
    for _ in range(200):
        size, length = len(body), b""
        while size > 127:
            length += bytes([size & 127 | 128])
            size >>= 7
        body = b"\x3a" + length + bytes([size]) + body
    with pytest.raises(BadBody):
        made.value(body)
    began = time.process_time()
    found = made.value(b"\x12\x00" * 32_000)
    assert found == {"lines": [{}] * 32_000}
    assert time.process_time() - began < 5


@given(st.binary(max_size=200))
def test_any_body_is_shown_or_told(made: ProtoType, body: bytes) -> None:
    with contextlib.suppress(BadBody):  # and nothing else
        json.loads(as_json(made.value(body)))


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (None, "cannot read"),
        (b"", "has no descriptors"),
        (b"\xff\xff", "is not a file of descriptors"),
        (b"syntax = 'proto3';", "is not a file of descriptors"),
    ],
)
def test_a_file_that_is_wrong_is_told(tmp_path: Path, content: bytes | None, told: str) -> None:
    path = tmp_path / "shop.desc"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(BadDescriptors, match=told):
        ProtoType(path, ORDER)


def test_a_file_that_cannot_be_used_is_told(tmp_path: Path) -> None:
    alone = FileDescriptorSet(file=[descriptors().file[-1]])
    with pytest.raises(BadDescriptors, match="--include_imports"):
        ProtoType(file_of(tmp_path, alone), ORDER)
    path = tmp_path / "shop.desc"
    with path.open("wb") as file:
        file.truncate(FILE_BYTES_MAX + 1)
    with pytest.raises(BadDescriptors, match="larger than"):
        ProtoType(path, ORDER)
    os.mkfifo(tmp_path / "pipe")
    for irregular in (tmp_path, tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(BadDescriptors, match="not a regular file"):
            ProtoType(irregular, "T")
    with pytest.raises(
        BadDescriptors, match=r"no message type 'shop.None'; it has shop.Line, shop"
    ):
        ProtoType(file_of(tmp_path), "shop.None")


@pytest.mark.parametrize("text", ["", "a", "a=b", "=f:T", "a=:T", "a=f:", " =f:T"])
def test_a_rule_that_is_wrong_is_told(text: str) -> None:
    with pytest.raises(BadDescriptors, match="TOPIC=FILE:TYPE"):
        ProtoRule.of(text)


def test_the_first_rule_of_a_topic_counts(tmp_path: Path) -> None:
    file = file_of(tmp_path)
    types = ProtoTypes.of([f"orders-x={file}:shop.Line", f"orders*={file}:{ORDER}", "bad=/none:T"])
    found = [types.type_of(topic) for topic in ("orders-x", "orders-y", "other")]
    assert [one and one.type_name for one in found] == ["shop.Line", ORDER, None]
    assert types.wrong == ["bad=/none:T: cannot read /none: No such file or directory"]
    with pytest.raises(BadDescriptors):
        types.type_of("bad")
