"""Where a producer's batches go while a queue moves: never past one that has no answer."""

import asyncio

import duolog
import pytest
from duolog import _ways
from duolog._places import Slot
from duolog._ways import Way, Ways, answered

NAME, OLD, NEW = ("a", 3), ("a", 3), ("b", 4)


class Queue:
    """A queue that the test moves."""

    def __init__(self) -> None:
        self.place: Slot = OLD
        self.ways = Ways(lambda topic, name: self.place)

    @property
    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def begin(self) -> Way | None:
        return self.ways.begin("T", NAME, self.now)

    def begun(self) -> Way:
        way = self.begin()
        assert way is not None
        return way

    def later(self, seconds: float = 60.0) -> "asyncio.Task[Way]":
        work = self.ways.begin_later("T", NAME, self.now + seconds)
        return asyncio.get_running_loop().create_task(work)


async def turn() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_batches_go_side_by_side_and_leave_nothing_behind() -> None:
    queue = Queue()
    first, second = queue.begun(), queue.begun()
    assert first is second
    for way in (first, second):
        assert queue.ways._ways
        queue.ways.end(way, in_doubt=False)
    assert not queue.ways._ways


async def test_a_batch_for_the_new_place_waits_for_those_on_their_way_to_the_old_one() -> None:
    queue = Queue()
    first, second = queue.begun(), queue.begun()
    queue.place = NEW
    assert queue.begin() is None
    waiting = [queue.later(), queue.later()]
    queue.ways.end(first, in_doubt=False)
    await turn()
    assert not any(task.done() for task in waiting)
    queue.ways.end(second, in_doubt=False)
    ways = await asyncio.gather(*waiting)
    assert [way.place for way in ways] == [NEW, NEW]
    assert ways[0].in_flight == 2


async def test_it_waits_no_longer_than_it_has_time() -> None:
    queue = Queue()
    queue.begun()
    queue.place = NEW
    with pytest.raises(duolog.Timeout, match="queue a/3 moved, and earlier batches to a/3 have no"):
        await queue.later(0.0)


async def test_where_a_batch_was_given_up_nothing_goes_elsewhere_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    queue = Queue()
    queue.ways.end(queue.begun(), in_doubt=True)
    way = queue.begun()
    assert way.place == OLD, "it did not move: nothing waits"
    queue.ways.end(way, in_doubt=False)
    queue.place = NEW
    assert queue.begin() is None
    with pytest.raises(duolog.Timeout):
        await queue.later(0.0)
    monkeypatch.setattr(_ways, "DOUBT_SECONDS", 0.0)
    queue.ways._ways["T", NAME].doubt_until = queue.now
    assert (await queue.later()).place == NEW


async def test_a_later_batch_that_is_stored_ends_the_doubt_and_an_earlier_one_does_not() -> None:
    queue = Queue()
    earlier, began = queue.begun(), queue.now
    queue.ways.end(queue.begun(), in_doubt=True)
    earlier.doubt_until += 1.0  # it was given up a second later
    answered(earlier, began)
    queue.ways.end(earlier, in_doubt=False)
    queue.place = NEW
    assert queue.begin() is None
    queue.place = OLD
    later = queue.begun()
    answered(later, queue.now + 1.0)
    queue.ways.end(later, in_doubt=False)
    queue.place = NEW
    assert queue.begun().place == NEW


async def test_queues_whose_doubt_is_over_are_forgotten() -> None:
    queue = Queue()
    for name in (("a", 1), ("a", 2)):
        way = queue.ways.begin("T", name, queue.now)
        assert way is not None
        queue.ways.end(way, in_doubt=True)
        way.doubt_until = queue.now
    assert list(queue.ways._ways) == [("T", ("a", 2))]


async def test_a_batch_that_comes_as_a_way_is_over_goes_behind_those_that_waited() -> None:
    queue = Queue()
    first = queue.begun()
    queue.place = NEW
    waiting = queue.later()
    await turn()
    queue.ways.end(first, in_doubt=False)
    assert queue.begin() is None
    assert (await waiting).place == NEW
    assert queue.begun().in_flight == 2


async def test_batches_that_come_back_go_in_their_order_before_those_that_were_never_sent() -> None:
    queue, order = Queue(), list[int]()
    sent = {100: queue.begun(), 200: queue.begun()}

    async def go(sequence: int = _ways.LAST) -> None:
        if sequence in sent:
            queue.ways.end(sent[sequence], in_doubt=False)
        await queue.ways.begin_later("T", NAME, queue.now + 60, sequence)
        order.append(sequence)

    queue.place = NEW
    async with asyncio.TaskGroup() as tasks:
        for sequence in (_ways.LAST, 200, 100):
            tasks.create_task(go(sequence))
    assert order == [100, 200, _ways.LAST]
    assert not queue.ways._turns
