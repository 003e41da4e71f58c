"""Plans of moves, on loads that are made up."""

from types import SimpleNamespace
from typing import Any

import pytest
from duolog import QueueMoves, QueuePlace, QueueSpan, QueueStats, TopicDescription
from hypothesis import given
from hypothesis import strategies as st

from duolog_server.ops.inspection.balance import BYTES, GAIN, SPREAD, Queue, Step, loads_of, plan

GROUPS = ("a", "b", "c")
LOADS = st.dictionaries(
    st.builds(Queue, st.sampled_from(["S", "T"]), st.sampled_from(GROUPS), st.integers(0, 5)),
    st.integers(0, 1000).map(float),
    max_size=20,
)


def sums(loads: dict[Queue, float], steps: list[Step] | None = None) -> dict[str, float]:
    """The load of each group, after some steps."""
    to = {step.queue: step.to for step in steps or []}
    found = dict.fromkeys(GROUPS, 0.0)
    for queue, load in loads.items():
        found[to.get(queue, queue.group)] += load
    return found


def test_the_hottest_group_gives_away_the_queue_that_evens_out_most() -> None:
    loads = {
        Queue("T", "a", 0): 900.0,
        Queue("T", "a", 1): 400.0,
        Queue("T", "a", 2): 50.0,
        Queue("T", "b", 0): 100.0,
    }
    assert plan(loads, ("a", "b"), (), 4) == [Step(Queue("T", "a", 1), "b", 400.0)]


def test_a_new_group_takes_its_share_in_bounded_steps() -> None:
    loads = {Queue("T", "a", number): 10.0 for number in range(8)}
    steps = plan(loads, ("a", "b"), (), 3)
    assert [step.to for step in steps] == ["b"] * 3
    assert len(plan(loads, ("a", "b"), (), 100)) == 3, "50 and 30 are within a quarter of 40"


def test_one_hot_queue_does_not_wander() -> None:
    """Where it goes, that group is the hottest."""
    assert plan({Queue("T", "a", 0): 1000.0}, GROUPS, (), 4) == []


def test_a_group_that_leaves_gives_all_away_the_largest_first() -> None:
    loads = {Queue("T", "a", 0): 1.0, Queue("T", "a", 1): 5.0, Queue("T", "b", 0): 3.0}
    steps = plan(loads, GROUPS, ("a",), 4)
    assert steps == [
        Step(Queue("T", "a", 1), "c", 5.0),
        Step(Queue("T", "a", 0), "b", 1.0),
    ]


def test_a_queue_without_load_leaves_as_well() -> None:
    assert plan({Queue("T", "a", 0): 0.0}, ("a", "b"), ("a",), 4)


def test_somebody_has_to_stay() -> None:
    with pytest.raises(ValueError, match="no replica group stays"):
        plan({}, ("a",), ("a",), 4)


@given(LOADS, st.sets(st.sampled_from(GROUPS), max_size=2), st.integers(0, 6))
def test_a_plan_moves_each_queue_once_and_ends(
    loads: dict[Queue, float], leaving: set[str], steps_max: int
) -> None:
    steps = plan(loads, GROUPS, leaving, steps_max)
    assert len(steps) <= steps_max
    assert len({step.queue for step in steps}) == len(steps)
    for step in steps:
        assert step.to not in leaving
        assert step.to != step.queue.group
        assert step.load == loads[step.queue]
    if len(steps) < steps_max:
        assert not any(sums(loads, steps)[group] for group in leaving)


@given(LOADS)
def test_after_a_plan_was_carried_out_the_next_one_is_empty_or_worth_it(
    loads: dict[Queue, float],
) -> None:
    steps = plan(loads, GROUPS, (), 100)
    to = {step.queue: step for step in steps}
    after: dict[Queue, float] = {}
    for queue, load in loads.items():
        step = to.get(queue)
        number = 100 + len(after) if step else queue.queue_id
        after[Queue(queue.topic, step.to if step else queue.group, number)] = load
    before, highest = max(sums(loads).values()), max(sums(loads, steps).values())
    assert highest <= before
    again = plan(after, GROUPS, (), 100)
    assert not again or max(sums(after, again).values()) <= highest * (1 - GAIN)
    assert SPREAD > GAIN


async def test_a_queue_that_moved_keeps_the_bytes_that_it_left() -> None:
    """Or others would follow it, one plan after another, until its first group had none left."""
    stats = [QueueStats(k, 0, 9, log_bytes=100) for k in range(4)]
    guest = QueueStats(4, 9, 10, log_bytes=10)
    a = TopicDescription(topic="T", group="a", queues=4, stats=tuple(stats))
    b = TopicDescription(topic="T", group="b", queues=0, stats=(guest,))
    old, new = QueuePlace("a", 0), QueuePlace("b", 4)
    spans = (
        QueueSpan("T", old, old, 0, 9, None, new, 0, 9),
        QueueSpan("T", old, new, 9, None, old, None, 9, 10),
    )

    async def moves() -> QueueMoves:
        return QueueMoves(spans=spans)

    async def topics(sizes: bool) -> list[TopicDescription]:
        return [a, b]

    client: Any = SimpleNamespace(admin=SimpleNamespace(moves=moves, topics=topics))
    loads = await loads_of(client, BYTES, 1.0)
    others = {Queue("T", "a", k): 100.0 for k in range(1, 4)}
    assert loads == {Queue("T", "b", 4): 110.0, **others}
