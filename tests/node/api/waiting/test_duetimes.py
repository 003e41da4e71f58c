"""The order of delayed messages, against a plain model."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from duolog import BadRequest, Unavailable
from hypothesis import given, settings
from hypothesis import strategies as st

from duolog_server.node.api.waiting.duetimes import FIRST, Due, bounds, due_of, next_due
from duolog_server.node.deferred import pendingtimers
from duolog_server.node.deferred.pendingtimers import PendingTimers
from duolog_server.store.kernels.jit import I64

TIMES = st.integers(0, 12)  # few: many messages are due at the same time


@dataclass
class Node:
    """What the order is made of: pending timed messages, and queues of levels."""

    pending: Any
    queues: list[list[int]] = field(default_factory=list)  # times, by level
    delivered: int = 0  # of each level

    @property
    def levels_ms(self) -> list[int]:
        return [1000] * len(self.queues)

    @property
    def waiting(self) -> int:
        return int(self.pending.count)

    def undelivered(self, level: int) -> tuple[int, int]:
        end = len(self.queues[level - 1])
        return min(end, self.delivered), end

    def entries(self, topic: str, queue_id: int, offset: int, count: int) -> I64:
        times = self.queues[queue_id][offset : offset + count]
        return np.array([[0] * len(times), [0] * len(times), times], np.int64).reshape(3, -1)

    def all(self, timed: dict[int, int]) -> list[Due]:
        """All that wait, in order."""
        levels = [
            Due(times[offset], level, offset)
            for level, times in enumerate(self.queues, 1)
            for offset in range(*self.undelivered(level))
        ]
        return sorted([*levels, *(Due(time, 0, offset) for offset, time in timed.items())])


def pages(node: Node, limit: int) -> list[Due]:
    """All of them, page after page."""
    found: list[Due] = []
    after, rounds = FIRST, 0
    while True:
        part = next_due(node, node, after, limit)  # type: ignore[arg-type]
        assert len(part.rows) <= limit
        found += part.rows
        rounds += 1
        assert rounds < 1000, "each page leads on"
        if part.reached is None:
            return found
        assert part.reached > after
        after = part.reached


@given(
    st.lists(st.lists(TIMES, min_size=1, max_size=30), max_size=6),
    st.sets(st.integers(0, 100), max_size=20),
    st.lists(st.lists(TIMES, max_size=20).map(sorted), max_size=3),
    st.integers(0, 4),
    st.integers(1, 9),
)
@settings(max_examples=300, deadline=None)
def test_pages_have_each_message_once_in_order(
    batches: list[list[int]], done: set[int], queues: list[list[int]], delivered: int, limit: int
) -> None:
    before = pendingtimers.HEAP_MAX, pendingtimers.RUNS_MAX, pendingtimers.ROOM_MIN
    pendingtimers.HEAP_MAX, pendingtimers.RUNS_MAX, pendingtimers.ROOM_MIN = 16, 3, 4
    try:
        timers, end = PendingTimers(0), 0
        timed: dict[int, int] = {}
        for batch in batches:
            timers.add(np.array(batch, np.int64), end)
            timed.update(enumerate(batch, end))
            end += len(batch)
        timers.done(np.array(sorted(done), np.int64))
        timed = {offset: time for offset, time in timed.items() if offset not in done}
        node = Node(timers, queues, delivered)
        wanted = node.all(timed)
        assert pages(node, limit) == wanted
        waiting, first, last = bounds(node, node)  # type: ignore[arg-type]
        assert waiting == len(wanted)
        if wanted:
            assert first <= wanted[0].time_ms
            assert last >= wanted[-1].time_ms
        else:
            assert (first, last) == (0, 0)
    finally:
        pendingtimers.HEAP_MAX, pendingtimers.RUNS_MAX, pendingtimers.ROOM_MIN = before


def test_a_million_at_one_time_are_in_the_order_of_their_offsets() -> None:
    timers, count = PendingTimers(0), 1_000_000
    for first in range(0, count, 50_000):
        timers.add(np.full(50_000, 7, np.int64), first)
    node = Node(timers)
    part = next_due(node, node, Due(7, 0, 499_999), 3)  # type: ignore[arg-type]
    assert [row.offset for row in part.rows] == [500_000, 500_001, 500_002]
    assert part.reached == part.rows[-1]
    node = Node(None)
    with pytest.raises(Unavailable):
        next_due(node, node, FIRST, 1)  # type: ignore[arg-type]
    assert due_of(Due(1, 2, 3).to_text()) == Due(1, 2, 3)
    assert due_of("") == FIRST


@pytest.mark.parametrize("text", ["x", "1/2", "1/2/3/4", "-1/0/0", f"0/0/{1 << 63}", "1/\u0663/0"])
def test_what_is_no_end_of_a_page_is_refused(text: str) -> None:
    with pytest.raises(BadRequest):
        due_of(text)
