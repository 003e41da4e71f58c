"""Pending timed messages, against a plain model."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duolog_server.node.deferred import pendingtimers
from duolog_server.node.deferred.pendingtimers import PendingTimers

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.lists(st.integers(0, 1000), min_size=1, max_size=40)),
        st.tuples(st.just("due"), st.integers(0, 1000)),
        st.tuples(st.just("done"), st.lists(st.integers(0, 300), max_size=10)),
        st.tuples(st.just("put_back"), st.integers(0, 1000)),
    ),
    max_size=30,
)


@given(STEPS, st.integers(0, 5))
@settings(max_examples=200, deadline=None)
def test_due_messages_match_those_of_a_model(steps: list[tuple[str, object]], low: int) -> None:
    before = pendingtimers.HEAP_MAX, pendingtimers.RUNS_MAX, pendingtimers.ROOM_MIN
    pendingtimers.HEAP_MAX, pendingtimers.RUNS_MAX, pendingtimers.ROOM_MIN = 16, 3, 4
    try:
        timers = PendingTimers(low)
        waiting: dict[int, int] = {}  # offset: time, of those not given
        given_away: set[int] = set()
        end = low
        for step, what in steps:
            if step == "add":
                times = np.array(what, np.int64)
                timers.add(times, end)
                waiting.update({end + k: int(time) for k, time in enumerate(times)})
                end += len(times)
            elif step == "due":
                found = timers.due(int(what), 1 << 30).tolist()  # type: ignore[call-overload]
                wanted = {offset for offset, time in waiting.items() if time <= int(what)}  # type: ignore[call-overload]
                assert found == sorted(wanted), "each once"
                given_away.update(found)
                for offset in found:
                    del waiting[offset]
            elif step == "done":
                offsets = np.array(what, np.int64)
                timers.done(offsets)
                for offset in offsets:
                    waiting.pop(int(offset), None)
                    given_away.discard(int(offset))
            else:
                back = sorted(given_away)[:3]
                timers.put_back(np.array(back, np.int64), np.full(len(back), what, np.int64))
                for offset in back:
                    given_away.discard(offset)
                    waiting[offset] = int(what)  # type: ignore[call-overload]
            assert timers.validate(given_away) == ""
            pending = set(waiting) | given_away
            assert timers.count == len(pending)
            assert timers.low == min(pending, default=end)
            assert all(timers.waits(offset) == (offset in pending) for offset in range(end + 2))
    finally:
        pendingtimers.HEAP_MAX, pendingtimers.RUNS_MAX, pendingtimers.ROOM_MIN = before


def test_validate_reports_inconsistent_timers() -> None:
    timers = PendingTimers(5)
    timers.add(np.array([30, 10, 20], np.int64), 5)
    assert timers.validate() == ""
    assert list(timers.due(10, 10)) == [6]
    assert timers.validate() == "1 are in no run and never due, the first is 6"
    assert timers.validate([6]) == ""
    timers.count = 2
    assert timers.validate() == "3 wait, counted as 2"
    timers.count, timers.low = 3, 6
    assert timers.validate() == "5 and 7 wait, not in [6, 8)"
    timers.low = 9
    assert timers.validate() == "low 9 is not in [5, 8]"


def test_timers_are_planned_in_runs_in_order_with_a_limit_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pendingtimers, "HEAP_MAX", 4)
    timers = PendingTimers(0)
    timers.add(np.arange(4, dtype=np.int64), 0)
    assert (len(timers._runs), timers.validate()) == (1, "")
    timers._runs[0].at = 1
    assert timers.validate() == "1 are in no run and never due, the first is 0"
    timers = PendingTimers(0)
    timers.add(np.arange(100, dtype=np.int64), 0)
    assert len(timers.due(1000, 10)) == 10
    assert len(timers.due(1000, 200)) == 90
    timers = PendingTimers(0)
    timers.add(np.zeros(5, np.int64), 0)
    with pytest.raises(AssertionError):
        timers.add(np.zeros(5, np.int64), 3)


def test_what_is_due_and_when_is_known_across_the_heap_and_the_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As the console and `overdue_ms` show it; a recalled message counts until its time."""
    monkeypatch.setattr(pendingtimers, "HEAP_MAX", 3)
    timers = PendingTimers(10)
    assert timers.first_ms() is None
    assert timers.due_by([100]) == [0]
    timers.add(np.array([50, 20, 40], np.int64), 10)  # a run
    timers.add(np.array([60, 30], np.int64), 13)  # in the heap
    assert timers.first_ms() == 20
    assert timers.due_by([19, 20, 30, 45, 60]) == [0, 1, 2, 3, 5]
    heap, run = timers.parts()
    assert (heap[0].tolist(), heap[1].tolist()) == ([30, 60], [14, 13])
    assert (run[0].tolist(), run[1].tolist()) == ([20, 40, 50], [11, 12, 10])
    timers.done(np.array([11], np.int64))
    assert timers.first_ms() == 20
    assert timers.due(20, 10).tolist() == []
    assert timers.first_ms() == 30
    assert timers.due_by([20, 30]) == [0, 1]
    assert timers.due(30, 10).tolist() == [14]
    assert timers.first_ms() == 40
    assert timers.due(50, 10).tolist() == [10, 12]
    assert timers.first_ms() == 60, "the whole run was given"
    assert timers.wait(np.array([9, 10, 11, 13, 14, 15], np.int64)).tolist() == [0, 1, 0, 1, 1, 0]
    timers.done(np.arange(10, 15, dtype=np.int64))
    assert (timers.count, timers.low, timers.end, timers.first_ms()) == (0, 15, 15, None)


def test_a_due_message_is_given_once_at_the_limit_of_a_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pendingtimers, "HEAP_MAX", 4)
    timers = PendingTimers(0)
    timers.add(np.array([1, 2, 3, 4], np.int64), 0)
    assert timers.due(4, 3).tolist() == [0, 1, 2]
    assert timers.due(3, 3).tolist() == []
    assert timers.due(4, 3).tolist() == [3]
    timers.put_back(np.array([1], np.int64), np.array([7], np.int64))
    assert timers.due(6, 3).tolist() == []
    assert timers.due(7, 3).tolist() == [1]
    timers.add(np.array([2, 2, 2], np.int64), 4)
    assert [len(timers.due(2, 2)) for _ in range(3)] == [2, 1, 0], "in the heap"


def test_a_message_is_due_by_its_time_wherever_it_lies() -> None:
    timers = PendingTimers(100)
    timers.add(np.array([5], np.int64), 100)
    assert timers.due(4, 10).tolist() == []
    assert timers.due(5, 10).tolist() == [100]


def test_room_is_made_without_losing_what_waits() -> None:
    timers = PendingTimers(0)
    timers.add(np.zeros(pendingtimers.ROOM_MIN, np.int64), 0)
    beyond = np.array([pendingtimers.ROOM_MIN], np.int64)
    assert timers.wait(beyond).tolist() == [0]
    timers.done(beyond)
    assert timers.count == pendingtimers.ROOM_MIN
    timers.done(np.arange(pendingtimers.ROOM_MIN - 1, dtype=np.int64))
    timers.add(np.zeros(3, np.int64), pendingtimers.ROOM_MIN)
    assert timers.validate() == ""
    assert (timers.count, timers.low) == (4, pendingtimers.ROOM_MIN - 1)
    assert len(timers.due(0, 2 * pendingtimers.ROOM_MIN)) == 4


def test_many_runs_become_few_and_lose_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pendingtimers, "HEAP_MAX", 2)
    monkeypatch.setattr(pendingtimers, "RUNS_MAX", 3)
    timers = PendingTimers(0)
    for k in range(8):
        timers.add(np.array([10 + k, 100 + k], np.int64), 2 * k)
        assert len(timers._runs) <= 3
        assert timers.validate() == ""
    assert timers.due(13, 100).tolist() == [0, 2, 4, 6]
    timers.done(np.array([0, 2, 4, 6], np.int64))
    timers.add(np.array([15, 16], np.int64), 16)
    assert timers.due(16, 100).tolist() == [8, 10, 12, 16, 17]
    assert timers.due(200, 100).tolist() == [1, 3, 5, 7, 9, 11, 13, 14, 15]
