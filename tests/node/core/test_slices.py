"""Long work in slices: they end by time, and lose nothing."""

import pytest

from duolog_server.node.core import slices, turnbudget
from duolog_server.node.core.slices import Slices
from duolog_server.node.core.turnbudget import TurnBudget
from tests.turns import counted_turns


async def test_slices_end_by_time_and_keep_what_they_get(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0

    def seconds() -> float:
        nonlocal now
        now += turnbudget.SLICE_SECONDS / 2
        return now

    made = Slices(TurnBudget(seconds))
    with counted_turns() as turns:
        assert [one async for one in made.each(range(10))] == list(range(10))
        assert turns() >= 5
    assert [part async for part in made.parts(range(5), 2)] == [[0, 1], [2, 3], [4]]
    monkeypatch.setattr(slices, "SORTED_AT_ONCE", 3)
    words = ["d", "a", "c", "b", "a", "e", "z", "y"]
    assert list(await made.ordered(words)) == sorted(words)
    made = Slices(TurnBudget(lambda: 0.0))
    with counted_turns() as turns:
        assert [one async for one in made.each(range(1000))] == list(range(1000))
        assert turns() == 0
