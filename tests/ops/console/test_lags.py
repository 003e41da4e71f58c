"""How a group's lag develops on its page, and which queue is stuck."""

from dataclasses import replace
from typing import Any

import pytest
from duolog import GroupDescription, GroupQueue

from duolog_server.ops.console.pages.groups import STILL_SECONDS, lag_flows, queue_rows, stuck
from duolog_server.ops.console.view.rates import POINTS, Rates
from duolog_server.ops.console.view.visits import Visit

CLIENT: Any = None
GROUP = GroupDescription("g", 0, ())
IDLE = "idle"  # a member whose program has asked for nothing


def looks(*seconds: float) -> list[Visit]:
    """A viewer looks at these times."""
    rates = Rates()
    return [Visit(CLIENT, (), {}, {}, now, rates) for now in seconds]


def queue(committed: int | None, end: int, member: str = "m-1", number: int = 0) -> GroupQueue:
    lag = end - (committed or 0)
    return GroupQueue("T", "a", number, committed, 0, end, lag, 1000 * lag, member, member == IDLE)


@pytest.mark.parametrize(
    ("member", "told"),
    [
        ("m-1", " Member m-1 has committed nothing in T/0 for 41\u202fs."),
        (IDLE, " Member idle is connected, and has not polled T/0 yet."),
        ("", " No offset was committed in T/0 for 41\u202fs."),
    ],
)
def test_a_queue_that_is_stuck_is_told_with_its_member(member: str, told: str) -> None:
    first, second, third = looks(100.0, 100.0 + STILL_SECONDS - 1, 141.0)
    assert stuck(queue_rows(first, GROUP, [queue(3, 9, member)])) == ""
    assert stuck(queue_rows(second, GROUP, [queue(3, 9, member)])) == "", "not yet"
    assert stuck(queue_rows(third, GROUP, [queue(3, 9, member)])) == "", "nobody looked meanwhile"
    *_, last = every = looks(*range(100, 142))
    for visit in every[:-1]:
        queue_rows(visit, GROUP, [queue(3, 9, member)])
    other = queue(8, 9, "m-2", number=1)
    assert stuck(queue_rows(last, GROUP, [other, queue(3, 9, member)])) == told


def test_a_queue_that_moves_is_idle_or_just_began_is_not_stuck() -> None:
    for number, visit in enumerate(looks(*range(100))):
        rows = queue_rows(visit, GROUP, [queue(number, 200), queue(7, 7, number=1)])
        assert [row.still_ms for row in rows] == [0, 0]
    (late,) = looks(0.0)
    assert stuck(queue_rows(late, GROUP, [])) == ""
    *before, now = looks(*range(100))
    for visit in before:
        queue_rows(visit, GROUP, [queue(7, 7)])
    (row,) = queue_rows(now, GROUP, [queue(7, 8)])
    assert row.still_ms == 0


def test_queues_that_no_member_owns_have_the_consumers_of_their_group() -> None:
    """RocketMQ's clients consume without owning queues."""
    (visit,) = looks(0.0)
    for clients, state in ((1, "Catching up"), (0, "No consumers")):
        found = replace(GROUP, clients=clients)
        assert [row.state for row in queue_rows(visit, found, [queue(1, 2, "")])] == [state]


def test_queues_that_a_group_begins_to_read_are_no_burst() -> None:
    first, second, third = looks(0.0, 1.0, 2.0)
    few, all_of_them = (queue(5, 5),), (queue(5, 5), queue(10**6, 10**6, number=1))
    for visit in (first, second):
        lag_flows(visit, GroupDescription("g", 1, few))
    flows = lag_flows(third, GroupDescription("g", 1, all_of_them))
    for name in ("stored", "read"):
        assert (flows[name].now, list(flows[name].points)) == (None, [0.0])


def test_the_flows_of_a_group_are_kept_as_long_as_they_are_looked_at() -> None:
    start, first, second = looks(-5.0, 0.0, 10.0)
    lag_flows(start, GroupDescription("g", 1, (queue(0, 100), queue(None, 0, number=1))))
    lag_flows(first, GroupDescription("g", 1, (queue(0, 100), queue(None, 0, number=1))))
    flows = lag_flows(second, GroupDescription("g", 1, (queue(50, 300), queue(None, 0, number=1))))
    now = {name: flow.now for name, flow in flows.items()}
    assert now == {"behind": 250, "oldest": 250_000, "stored": 20.0, "read": 5.0}
    assert all(flow.line for flow in flows.values())
    assert lag_flows(first, GroupDescription("empty", 0, ()))["oldest"].now == 0
    queues = [queue(0, 10 + number, number=number) for number in range(500)]
    for visit in looks(*range(0, 5 * POINTS, 5)):
        rows = queue_rows(visit, GROUP, queues)
    assert all(row.line.startswith("M0.0 ") for row in rows)
    assert all(row.still_ms == 295_000 for row in rows)
