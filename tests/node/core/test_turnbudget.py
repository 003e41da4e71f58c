"""However many long calls are under way, a turn of the event loop has one slice of their work."""

import asyncio
import gc
import weakref
from collections import defaultdict
from collections.abc import AsyncIterator, Coroutine
from itertools import groupby, pairwise
from typing import Any

import pytest

from duolog_server.node.core import turnbudget as module
from duolog_server.node.core.slices import Slices
from duolog_server.node.core.turnbudget import TurnBudget, budget_of_loop, without_budget
from tests.until import until

SLICE = 4  # of the test's clock, which only the steps of the calls move


class Work:
    """Calls that share a budget, and what they did by turns of the loop."""

    def __init__(self) -> None:
        self.now = 0.0
        self.turn = 0
        self.steps: defaultdict[int, float] = defaultdict(float)  # time that steps took, by turn
        self.order: list[str] = []  # of steps
        self.budget = TurnBudget(lambda: self.now)
        self._tasks: list[asyncio.Task[None]] = []

    def begin(self, name: str, steps: int, took: float = 1) -> asyncio.Task[None]:
        """A call of so many steps."""
        task = asyncio.create_task(self._call(name, steps, took))
        self._tasks.append(task)
        return task

    async def _call(self, name: str, steps: int, took: float) -> None:
        slices = Slices(self.budget)
        for _ in range(steps):
            await slices.turn()
            self.now += took
            self.steps[self.turn] += took
            self.order.append(name)

    async def count_turns(self) -> None:
        """Without an end."""
        while True:
            self.turn += 1
            await asyncio.sleep(0)

    async def some_turns(self, count: int) -> None:
        for _ in range(count):
            await asyncio.sleep(0)

    async def all_done(self) -> None:
        await asyncio.gather(*self._tasks)


@pytest.fixture
async def work(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Work]:
    monkeypatch.setattr(module, "SLICE_SECONDS", SLICE)
    made = Work()
    counting = asyncio.create_task(made.count_turns())
    yield made
    counting.cancel()


async def test_a_turn_has_one_slice_and_a_call_alone_has_it_at_once(work: Work) -> None:
    for number in range(50):
        work.begin(f"call {number}", steps=20)
    await work.all_done()
    assert sum(work.steps.values()) == 50 * 20
    assert max(work.steps.values()) == SLICE
    turns = sorted(work.steps)
    assert all(later - turn >= 2 for turn, later in pairwise(turns))
    for _ in range(2):  # the second one in the same turn, with what the first has left
        call: Coroutine[Any, Any, None] = work._call("alone", 2, 1)
        with pytest.raises(StopIteration):
            call.send(None)
    call = work._call("too late", 1, 1)
    assert call.send(None) is not None, "it waits"
    call.close()
    work.begin("one", steps=3 * SLICE)
    work.begin("two", steps=1)
    await work.all_done()
    await work.some_turns(3)
    assert not work.budget._turn.is_planned
    assert not work.budget._begin
    assert not work.budget._go_on


async def test_calls_that_go_on_have_slices_in_turn(work: Work) -> None:
    for number in range(5):
        work.begin(f"call {number}", steps=10 * SLICE)
    await work.all_done()
    slices = [name for name, _ in groupby(work.order)]
    assert len(slices) == 50
    middle = slices[12:36]  # all have begun, and none has ended
    assert all(len(set(middle[at : at + 5])) == 5 for at in range(len(middle) - 5))


async def test_a_short_call_does_not_wait_for_a_slice_of_each_long_one(work: Work) -> None:
    long = [work.begin(f"long {number}", steps=1000) for number in range(100)]
    await work.some_turns(1000)
    assert len(set(work.order)) == 100, "all have begun"
    before = len(work.order)
    await work.begin("short", steps=1)
    assert len(work.order) - before <= 3 * SLICE
    for task in long:
        task.cancel()


async def test_short_calls_share_a_slice_and_keep_their_order(work: Work) -> None:
    long = work.begin("long", steps=1000)
    await work.some_turns(3)
    names = [f"short {number}" for number in range(100)]
    await asyncio.gather(*(work.begin(name, steps=1, took=0.25) for name in names))
    assert [name for name in work.order if name != "long"] == names
    assert max(work.steps.values()) == SLICE
    assert len(work.steps) < 20, "16 of them fit a slice, and those of the other are between"
    long.cancel()


async def test_a_call_that_is_cancelled_while_it_waits_keeps_nobody_waiting(work: Work) -> None:
    work.begin("first", steps=2 * SLICE)
    cancelled = [work.begin(f"cancelled {number}", steps=1) for number in range(3)]
    work.begin("last", steps=1)
    await work.some_turns(1)
    for task in cancelled:
        task.cancel()
    await asyncio.gather(*cancelled, return_exceptions=True)
    await until(lambda: work.order.count("last") + work.order.count("first") >= 2 * SLICE + 1)
    assert len(work.order) == 2 * SLICE + 1


async def test_all_calls_of_a_loop_share_its_budget() -> None:
    assert budget_of_loop() is budget_of_loop() is not None


async def test_in_the_simulator_no_call_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SLICE_SECONDS", 0.0)
    without_budget(asyncio.get_running_loop())
    for _ in range(3):
        with pytest.raises(StopIteration):
            Slices().turn().send(None)


def test_a_loop_that_is_gone_leaves_no_budget() -> None:
    async def list_something() -> None:
        await Slices().turn()

    loop = asyncio.new_event_loop()
    loop.run_until_complete(list_something())
    loop.close()
    gone = weakref.ref(loop)
    del loop
    gc.collect()
    assert gone() is None
