"""What lets a consumer group into a span; tests/sim/test_movemodel.py explores every order."""

from duolog_server.store.crossing import (
    Close,
    Crossed,
    Progress,
    go_back,
    gone_back,
    may_read,
    on_answer,
    on_close,
    on_closed,
    on_crossed,
    to_close,
    to_tell,
)


def test_a_group_is_let_into_a_guest_once_it_has_an_offset_there() -> None:
    assert may_read(Progress(), is_guest=False)
    assert not may_read(Progress(), is_guest=True)
    assert may_read(on_crossed(Progress(), Crossed(10, 0)), is_guest=True)


def test_a_crossing_is_told_from_the_end_on_until_it_is_answered() -> None:
    assert to_tell(Progress(), 10) is None
    assert to_tell(Progress(9), 10) is None
    told = to_tell(Progress(10), 10)
    assert told == Crossed(10, 0)
    assert to_tell(on_answer(Progress(10), told), 10) is None


def test_a_crossing_moves_a_group_forward_only() -> None:
    assert on_crossed(Progress(14), Crossed(10, 0)) == Progress(14)


def test_what_was_told_before_a_reset_does_not_count_after_it() -> None:
    closed = on_close(Progress(14), Close(1))
    assert not may_read(closed, is_guest=True)
    assert on_crossed(closed, Crossed(10, 0)) == closed
    assert on_crossed(closed, Crossed(10, 1)) == Progress(10, 1)
    assert on_close(Progress(12, 1), Close(1)) == Progress(12, 1)
    assert on_answer(Progress(10, 1), Crossed(10, 0)) == Progress(10, 1)


def test_a_reset_closes_all_later_spans_the_last_one_first() -> None:
    assert to_close([0, 10, 20, 30], 5) == [3, 2, 1]
    assert to_close([0, 10, 20, 30], 10) == [3, 2]
    assert to_close([0, 10, 20, 30], 35) == []


def test_a_reset_lets_nobody_read_until_it_is_done() -> None:
    begun = go_back(Progress(10, 0, 0), 3, is_guest=False)
    assert begun is not None
    assert not may_read(begun, is_guest=False)
    assert to_tell(begun, 10) is None
    assert on_crossed(begun, Crossed(2, 5)) == begun
    assert gone_back(begun) == Progress(3, 1)


def test_no_reset_where_the_group_has_not_come() -> None:
    assert go_back(Progress(), 12, is_guest=True) is None
    assert go_back(Progress(), 2, is_guest=False) == Progress(None, 1, -1, 2)


def test_a_reset_takes_a_later_number_than_one_that_it_meets() -> None:
    here = Progress(10, 1, going_back=3)
    assert on_closed(here, Progress(None, 1)) == (here, True)
    assert on_closed(here, Progress(15, 1)) == (Progress(10, 2, going_back=3), False)
    assert on_closed(here, Progress(15, 4)) == (Progress(10, 5, going_back=3), False)
    assert on_closed(here, Progress(15, 0)) == (Progress(10, 2, going_back=3), False)
    assert on_closed(here, Progress(None, 4)) == (here, True)
