from hypothesis import given
from hypothesis import strategies as st

from duolog_server.ha.waiters import OffsetWaiters


def test_ready_waiters_are_released_past_those_that_are_not() -> None:
    """Head-of-line blocking: a put that waits for more than later ones delays none of them."""
    waiters: OffsetWaiters[str] = OffsetWaiters()
    waiters.add(1000, 5.0, "far")
    waiters.add(10, 5.0, "near")
    assert waiters.release(10) == ["near"]
    assert waiters.expire(5.0) == ["far"]
    assert len(waiters) == 0


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("add"), st.integers(0, 50), st.integers(0, 50)),
            st.tuples(st.just("release"), st.integers(0, 50), st.just(0)),
            st.tuples(st.just("expire"), st.integers(0, 50), st.just(0)),
        )
    )
)
def test_every_waiter_is_notified_once_and_in_order(steps: list[tuple[str, int, int]]) -> None:
    waiters: OffsetWaiters[int] = OffsetWaiters()
    plain: dict[int, tuple[int, int]] = {}
    for number, (what, a, b) in enumerate(steps):
        if what == "add":
            waiters.add(a, b, number)
            plain[number] = (a, b)
        elif what == "release":
            due = sorted((k for k, v in plain.items() if v[0] <= a), key=lambda k: (plain[k][0], k))
            assert waiters.release(a) == due
        else:
            due = sorted((k for k, v in plain.items() if v[1] <= a), key=lambda k: (plain[k][1], k))
            assert waiters.expire(a) == due
        if what != "add":
            plain = {k: v for k, v in plain.items() if k not in due}
        assert len(waiters) == len(plain)
        assert waiters.first == min((offset for offset, _ in plain.values()), default=None)
    assert waiters.drain() == sorted(plain)
    assert len(waiters) == 0
    assert waiters.first is None


def test_remaining_waiters_keep_their_order_when_cancelled_ones_are_dropped() -> None:
    waiters: OffsetWaiters[int] = OffsetWaiters()
    for number in range(200):
        offset = 37 * number % 200
        waiters.add(offset, 1.0 if number % 10 else 9.0, offset)
    assert len(waiters.expire(1.0)) == 180
    assert waiters.release(1000) == list(range(0, 200, 10))


def test_cancelled_waiters_leave_nothing_behind() -> None:
    """Most puts of a master with hanging slaves end at their deadline, none by its offset."""
    waiters: OffsetWaiters[int] = OffsetWaiters()
    for number in range(1000):
        waiters.add(1000 - number, number, number)
    assert waiters.expire(989) == list(range(990))
    assert len(waiters._by_offset) == len(waiters) == 10
    few = 64 + 2 * 10
    for number in range(few - 10):
        waiters.add(5000, -1, number)
    waiters.expire(0)
    assert len(waiters._by_offset) == few, "a few are not worth the work"
    waiters.add(5000, -1, 0)
    waiters.expire(0)
    assert len(waiters._by_offset) == 10
    assert waiters.release(1000) == list(range(999, 989, -1))
