"""Retry topics: whose copies are in one."""

from itertools import accumulate

import numpy as np
import pytest

from duolog_server.node.pop.retrytopics import copies_from
from duolog_server.store.grouptopics import retry_topic
from duolog_server.store.kernels import decode
from duolog_server.store.kernels.jit import I64
from duolog_server.store.offsets import QueueOffset
from duolog_server.store.reader import GetMessageStatus, GetResult


def _read(origins: list[str]) -> GetResult:
    """Copies of these topics; "" does not say of which."""
    texts = [f"RETRY_TOPIC\x01{origin}\x02".encode() if origin else b"" for origin in origins]
    table: I64 = np.zeros((decode.OUT_COLUMNS, len(texts)), np.int64)
    table[decode.OUT_PROPERTIES_END] = list(accumulate(map(len, texts)))
    end = QueueOffset(len(texts))
    first = QueueOffset(0)
    return GetResult(GetMessageStatus.FOUND, end, first, end, b"", b"".join(texts), table)


@pytest.mark.parametrize(
    ("group", "topic", "own"),
    [
        ("a_b", "c", ["c", "", "%RETRY%a_b_c", "before"]),
        ("a", "b_c", ["b_c", "", "%RETRY%a_b_c", "before"]),
    ],
)
def test_copies_of_a_group_and_topic_are_told_from_those_of_another(
    group: str, topic: str, own: list[str]
) -> None:
    read = _read(["c", "b_c", "", "%RETRY%a_b_c", "before"])
    found = copies_from(topic, retry_topic(group, topic), read)
    assert found.properties == _read(own).properties


def test_dead_letters_that_failed_again_are_their_own_groups() -> None:
    read = _read(["T", "%DLQ%h"])
    found = copies_from("%DLQ%h", retry_topic("g", "%DLQ%h"), read)
    assert found.count == 2
