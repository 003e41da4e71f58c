"""What name servers are told: both forms of the body, as RocketMQ's name server reads them."""

import json
import struct
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duolog_server.compat.remoting.codec.messages import body_crc
from duolog_server.compat.remoting.codec.nameserver import (
    COMPRESSED_FROM,
    RegisterBody,
    RegisteredTopic,
    data_version,
)

VERSION = data_version(3, 1_700_000_000_000, 7)
NAMES = st.from_regex(r"[%|a-zA-Z0-9_-]{1,20}", fullmatch=True)
TOPICS = st.builds(
    RegisteredTopic, NAMES, st.integers(0, 1024), st.integers(0, 7), st.integers(0, 9),
    st.booleans(),
)  # fmt: skip


def made(topics: list[RegisteredTopic], parts: int = 3) -> RegisterBody:
    body = RegisterBody(VERSION, len(topics))
    for first in range(0, len(topics), parts):
        body.add(topics[first : first + parts])
    return body


def inflated(data: bytes) -> tuple[dict[str, Any], list[str], list[str]]:
    """As RegisterBrokerBody.decode reads the compressed form."""
    text, at = zlib.decompress(data), 0

    def piece() -> bytes:
        nonlocal at
        (size,) = struct.unpack_from(">I", text, at)
        found, at = text[at + 4 : at + 4 + size], at + 4 + size
        return found

    version = json.loads(piece())
    (count,) = struct.unpack_from(">I", text, at)
    at += 4
    topics = [piece().decode() for _ in range(count)]
    servers = json.loads(piece())
    assert at == len(text)
    return version, topics, servers


@given(st.lists(TOPICS, max_size=7, unique_by=lambda topic: topic.name))
def test_few_topics_are_plain_json(topics: list[RegisteredTopic]) -> None:
    body = made(topics)
    assert not body.compressed
    found = json.loads(body.finish())
    wrapper = found["topicConfigSerializeWrapper"]
    assert found["filterServerList"] == []
    assert wrapper["dataVersion"] == {
        "counter": 7, "stateVersion": 3, "timestamp": 1_700_000_000_000,
    }  # fmt: skip
    assert wrapper["topicConfigTable"] == {
        one.name: {
            "topicName": one.name,
            "readQueueNums": one.queues,
            "writeQueueNums": one.queues,
            "perm": one.perm,
            "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": one.sysflag,
            "order": one.order,
        }
        for one in topics
    }


@pytest.mark.parametrize("count", [COMPRESSED_FROM, COMPRESSED_FROM + 257])
def test_many_topics_are_compressed(count: int) -> None:
    body = made([RegisteredTopic(f"T{n}", n % 9, 6) for n in range(count)], 256)
    assert body.compressed
    version, topics, servers = inflated(body.finish())
    assert (version["counter"], servers) == (7, [])
    assert topics == [f"T{n} {n % 9} {n % 9} 6 SINGLE_TAG" for n in range(count)]


@pytest.mark.parametrize("added", [0, 2])
def test_the_topics_are_as_many_as_announced(added: int) -> None:
    body = RegisterBody(VERSION, 1)
    with pytest.raises(AssertionError):
        body.add([RegisteredTopic("T", 1, 6)] * added)
        body.finish()


def test_the_crc_is_positive_as_java_has_it() -> None:
    assert body_crc(b"\x00" * 8) == zlib.crc32(b"\x00" * 8) & 0x7FFFFFFF
    assert all(0 <= body_crc(bytes([n])) < 1 << 31 for n in range(64))
