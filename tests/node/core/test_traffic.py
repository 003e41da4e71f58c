"""Flows: what passed, by topic and group, in bounded memory."""

import pytest

from duolog_server.node.core.traffic import Flows, Traffic
from duolog_server.store.columns import Columns


def test_flows_add_up_and_the_one_that_began_first_makes_room() -> None:
    flows: Flows[str] = Flows()
    flows.add("a", 3, 30)
    flows.add("b", 1)
    flows.add("a", 2, 5)
    found = {key: (flow.messages, flow.body_bytes) for key, flow in flows.table.items()}
    assert found == {"a": (5, 35), "b": (1, 0)}
    few: Flows[int] = Flows(3)
    for key in (0, 1, 2, 0, 3, 1, 4):
        few.add(key, 1)
    assert {key: flow.messages for key, flow in few.table.items()} == {2: 1, 3: 1, 4: 1}
    few.add(0, 1)
    assert few.table[0].messages == 1
    assert len(few.table) == 3


def test_reads_and_each_message_of_a_batch_are_counted() -> None:
    traffic = Traffic()
    for found in (0, 1, 5, 0, 0):
        traffic.read(found)
    assert (traffic.reads_found, traffic.reads_missed) == (2, 3)
    kib = 1 << 10
    assert sizes_of((1, [0])) == [1, 0, 0, 0, 0, 0, 0]
    assert sizes_of((1, [kib])) == [1, 0, 0, 0, 0, 0, 0], "bounds are inclusive"
    assert sizes_of((1, [kib + 1])) == [0, 1, 0, 0, 0, 0, 0]
    assert sizes_of((1, [5 << 20])) == [0, 0, 0, 0, 0, 0, 1]
    assert sizes_of((3, [kib] * 3), (1, [10])) == [4, 0, 0, 0, 0, 0, 0]
    many = [10, kib, kib + 1, 4 * kib, 513 * kib]
    assert sizes_of((5, many)) == [2, 2, 0, 1, 0, 0, 0]
    assert sizes_of((1, [5000, 10, 2000])) == [0, 1, 0, 0, 0, 0, 0]
    assert sizes_of((2, [5000, 10, 2000])) == [1, 1, 0, 0, 0, 0, 0]


def sizes_of(*batches: tuple[int, list[int]]) -> list[int]:
    """What is counted of batches: messages stored now, and the sizes of all bodies."""
    traffic = Traffic()
    for stored, lengths in batches:
        traffic.receive("T", "normal", stored, Columns.of([b"x" * length for length in lengths]))
    flow = traffic.received.table["T", "normal"]
    assert sum(flow.sizes) == flow.messages
    return flow.sizes


def test_the_ages_of_decided_half_messages_are_kept_for_so_many_topics(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("duolog_server.node.core.traffic.FLOWS_MAX", 2)
    traffic = Traffic()
    for topic in ("A", "B", "B", "C"):
        traffic.finish(topic, commit=topic != "C", age_seconds=61.0)
    assert {topic: ages.counts for topic, ages in traffic.finished.items()} == {
        "B": [0, 0, 2, 0, 0, 0, 0],
        "C": [0, 0, 1, 0, 0, 0, 0],
    }
    assert list(traffic.committed.table) == ["A", "B"]
    assert list(traffic.rolled_back.table) == ["C"]
