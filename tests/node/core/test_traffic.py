"""Flows: what passed, by topic and group, in bounded memory."""

from node.core.traffic import Flows, Traffic


def test_a_flow_adds_up_messages_and_bytes() -> None:
    flows: Flows[str] = Flows()
    flows.add("a", 3, 30)
    flows.add("b", 1)
    flows.add("a", 2, 5)
    found = {key: (flow.messages, flow.body_bytes) for key, flow in flows.table.items()}
    assert found == {"a": (5, 35), "b": (1, 0)}


def test_over_the_limit_the_flow_that_began_first_begins_again() -> None:
    flows: Flows[int] = Flows(3)
    for key in (0, 1, 2, 0, 3, 1, 4):
        flows.add(key, 1)
    assert {key: flow.messages for key, flow in flows.table.items()} == {2: 1, 3: 1, 4: 1}
    flows.add(0, 1)
    assert flows.table[0].messages == 1
    assert len(flows.table) == 3


def test_reads_are_counted_by_whether_they_found_messages() -> None:
    traffic = Traffic()
    for found in (0, 1, 5, 0, 0):
        traffic.read(found)
    assert (traffic.reads_found, traffic.reads_missed) == (2, 3)
