"""The order of tests with several workers."""

import pytest

from tests.order import LONG, dealt, rank, shares

SHORT = len(LONG)


def test_the_rank_is_that_of_the_longest_marker() -> None:
    assert rank(["process", "timeout", "long"]) == LONG.index("long")
    assert rank(["process"]) == LONG.index("process")
    assert rank(["timeout"]) == rank([]) == SHORT


@pytest.mark.parametrize(("total", "workers"), [(0, 2), (9, 2), (10, 3), (11, 4), (5, 1)])
def test_shares_are_equal_and_none_is_left_out(total: int, workers: int) -> None:
    found = shares(total, workers)
    assert sum(found) == total
    assert max(found) - min(found) <= 1


def test_each_worker_begins_with_long_modules_and_ends_with_short_tests() -> None:
    modules = [
        (SHORT, ["a1", "a2", "a3"]),
        (2, ["b1"]),
        (0, ["c1", "c2"]),
        (SHORT, ["d1", "d2", "d3"]),
        (0, ["e1"]),
    ]
    found = dealt(modules, 2)
    first, _ = shares(len(found), 2)
    assert found[:first] == ["c1", "c2", "b1", "a1", "a2"]
    assert found[first:] == ["e1", "a3", "d1", "d2", "d3"]


@pytest.mark.parametrize("workers", [1, 2, 5, 12])
def test_no_test_is_lost_or_doubled(workers: int) -> None:
    modules = [(k % (SHORT + 1), [f"{k}-{n}" for n in range(k * 3 % 7)]) for k in range(11)]
    found = dealt(modules, workers)
    assert sorted(found) == sorted(test for _, tests in modules for test in tests)
