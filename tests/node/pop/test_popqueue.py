"""Messages that a group has taken from one queue, against a plain model; invariants."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duolog_server.node.pop import popqueue
from duolog_server.node.pop.popqueue import Lease, OffsetRanges, PopQueue
from duolog_server.store.clocks import MonoMs

STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["take", "pass", "finish", "change", "suspend", "expire", "put_off", "release", "order"]
        ),
        st.integers(0, 9),
    ),
    max_size=60,
)
DONE = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 4)), max_size=4)
ENDS_MS = 10


class Consumers:
    """Consumers of one group, and what they have done by their own account."""

    def __init__(self, queue: PopQueue) -> None:
        self.queue = queue
        self.now = MonoMs(0)
        self.serial = 0
        self.done = {offset for offset in range(60) if offset in queue.done}
        self.done |= set(range(queue.committed))

    def lease_ends(self) -> MonoMs:
        return MonoMs(self.now + ENDS_MS)

    def take(self, number: int) -> None:
        queue = self.queue
        if queue.blocked:
            return
        for _ in range(1 + number % 3):
            queue.skip_done()
            offset = queue.next
            assert offset not in self.done, "what is done is given to nobody"
            assert offset not in queue.leases
            self.serial += 1
            queue.take(offset, Lease(self.serial, self.lease_ends(), "c", held=offset % 2 == 0))

    def passed(self, number: int) -> None:
        if not self.queue.blocked:
            end = self.queue.next + number % 3
            self.done |= set(range(self.queue.next, end))
            self.queue.pass_over(end)

    def out(self, number: int) -> int | None:
        leases = sorted(self.queue.leases)
        return leases[number % len(leases)] if leases else None

    def finish(self, number: int) -> None:
        offset = self.out(number)
        if offset is not None:
            self.queue.finish(offset)
            self.done.add(offset)

    def change(self, number: int) -> None:
        offset = self.out(number)
        if offset is not None:
            self.serial += 1
            lease = self.queue.leases[offset]
            self.queue.change(offset, lease, self.serial, self.lease_ends())

    def suspend(self, number: int) -> None:
        offset = self.out(number)
        if offset is not None:
            self.queue.suspend(offset, self.lease_ends())

    def put_off(self, number: int) -> None:
        offset = self.out(number)
        if offset is not None:
            self.queue.put_off(offset, self.lease_ends())

    def expire(self, number: int) -> None:
        self.now = MonoMs(self.now + number)
        for offset in self.queue.expired(self.now):
            if number % 2:
                self.queue.put_off(offset, self.lease_ends())
            else:
                self.queue.finish(offset)
                self.done.add(offset)

    def release(self, _: int) -> None:
        self.queue.release("c", MonoMs(self.now + 1))

    def order(self, number: int) -> None:
        self.queue.deliver_in_order(number % 2 == 0)
        assert self.queue.orderly or number % 2, "it begins at once"

    def step(self, what: str, number: int) -> None:
        do: dict[str, Callable[[int], None]] = {"pass": self.passed}
        do.get(what, getattr(self, what, self.passed))(number)
        assert self.queue.validate() == ""
        known = {offset for offset in range(200) if offset in self.queue.done}
        assert known | set(range(self.queue.committed)) == self.done


@given(STEPS, DONE, st.integers(0, 10), st.booleans())
def test_acknowledged_messages_are_never_delivered_again(
    steps: list[tuple[str, int]], done: list[tuple[int, int]], low: int, orderly: bool
) -> None:
    ranges = [(first, first + count) for first, count in done]
    consumers = Consumers(PopQueue.resumed(low, ranges, orderly))
    assert consumers.queue.validate() == ""
    assert consumers.done >= set(range(low))
    for what, number in steps:
        consumers.step(what, number)


@pytest.mark.parametrize("orderly", [False, True])
def test_a_lease_extended_twice_expires_once(orderly: bool) -> None:
    queue = PopQueue(0, orderly)
    queue.take(0, Lease(1, MonoMs(10), "c"))
    queue.put_off(0, MonoMs(30))
    queue.put_off(0, MonoMs(20))
    assert queue.expired(MonoMs(40)) == ([] if orderly else [0])
    assert list(queue.leases) == ([] if orderly else [0])
    assert queue.attempts == ({0: 1} if orderly else {})


def test_no_more_messages_are_out_than_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(popqueue, "IN_FLIGHT_MAX", 2)
    queue = PopQueue(0)
    blocked = []
    for offset in range(2):
        blocked.append(queue.blocked)
        queue.take(offset, Lease(1, MonoMs(10), "c"))
    assert [*blocked, queue.blocked] == [False, False, True]


def test_a_client_that_is_gone_twice_holds_its_messages_no_longer() -> None:
    queue = PopQueue(0)
    queue.take(0, Lease(1, MonoMs(100), "c", held=True))
    queue.release("c", MonoMs(10))
    queue.release("c", MonoMs(20))
    assert queue.expired(MonoMs(10)) == [0]


def test_a_suspended_queue_waits_as_a_whole_and_counts_no_attempt() -> None:
    queue = PopQueue(0, orderly=True)
    for offset in (0, 1):
        queue.take(offset, Lease(offset, MonoMs(10), "c"))
    queue.suspend(0, MonoMs(50))
    queue.expired(MonoMs(40))
    assert queue.blocked
    queue.expired(MonoMs(50))
    assert not queue.blocked
    assert (queue.next, queue.attempts) == (0, {0: 0, 1: 0})


def test_an_order_that_ends_passes_over_nothing_that_was_given_back() -> None:
    queue = PopQueue(0, orderly=True)
    for offset, ends in ((0, 10), (1, 20)):
        queue.take(offset, Lease(1, MonoMs(ends), "c"))
    queue.expired(MonoMs(15))
    queue.deliver_in_order(False)
    assert queue.blocked, "0 is before 1, which is out"
    queue.finish(1)
    queue.deliver_in_order(False)
    assert not queue.orderly
    assert queue.next == 0


def test_recorded_and_acknowledged_messages_are_not_redelivered() -> None:
    queue = PopQueue.resumed(5, [(6, 8)], orderly=False)
    queue.take(5, Lease(1, MonoMs(10), "c"))
    queue.finish(5)
    assert (queue.committed, queue.next) == (8, 8)
    assert queue.validate() == ""
    queue = PopQueue.resumed(7, [(5, 9), (11, 12)], orderly=False)
    assert (queue.committed, queue.done.pairs()) == (9, [[11, 12]])
    assert queue.validate() == ""


def given_one() -> PopQueue:
    queue = PopQueue(3)
    queue.take(3, Lease(1, MonoMs(10), "c"))
    queue.take(4, Lease(2, MonoMs(10), "c"))
    queue.finish(4)
    assert queue.validate() == ""
    return queue


def damaged(queue: PopQueue, what: str, value: object) -> str:
    setattr(queue, what, value)
    return queue.validate()


@pytest.mark.parametrize(
    ("what", "value", "wrong"),
    [
        ("committed", 4, "committed 4, done are [[4, 5]]"),
        ("committed", 6, "committed 6, done are [[4, 5]]"),
        ("next", 2, "gives 2 next, committed 3"),
        ("next", 3, "3 is out, not in [3, 3)"),
        ("done", OffsetRanges([(3, 5)]), "committed 3, done are [[3, 5]]"),
        ("_deadlines", [(MonoMs(10), 3, 2)], "no timer for 3, whose lease ends at 10"),
        ("_deadlines", [(MonoMs(9), 3, 1)], "no timer for 3, whose lease ends at 10"),
    ],
)
def test_validate_reports_an_inconsistent_queue(what: str, value: object, wrong: str) -> None:
    assert damaged(given_one(), what, value) == wrong


def test_validate_reports_wrong_leases_and_ranges() -> None:
    queue = given_one()
    queue.leases[4] = queue.leases[3]
    assert queue.validate() == "4 is out, and done"
    queue.leases.clear()
    queue.attempt_id = "a"
    assert queue.validate() == "repeats attempt 'a', none of whose messages are out"
    ranges = OffsetRanges([(1, 3), (5, 6)])
    assert ranges.validate() == ""
    ranges._ends[0] = 5
    assert ranges.validate() == "range [5, 6) follows one that ends at 5"
    ranges._ends[0] = 1
    assert ranges.validate() == "range [1, 1) follows one that ends at -1"
    assert damaged(given_one(), "done", ranges) == "done: range [1, 1) follows one that ends at -1"
