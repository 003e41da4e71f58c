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
                found = {int(offset) for offset in timers.due(int(what), 1 << 30)}  # type: ignore[call-overload]
                wanted = {offset for offset, time in waiting.items() if time <= int(what)}  # type: ignore[call-overload]
                assert found == wanted
                given_away |= found
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
