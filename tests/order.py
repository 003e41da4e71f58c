"""The order of tests with several workers: those that take long come first, on all of them.

xdist gives each worker an equal share of the tests, in their order, and lets a worker that has
ended its own take the last of another's. With long tests at the end, one worker would run them
while the others have nothing to do.

Rules: the tests of a module stay together, and so do the folders whose tests share what they start;
every worker finds the same order.
"""

from collections.abc import Iterable, Sequence
from typing import TypeVar

LONG = ("long", "interop", "browser", "process")  # markers, those of the longest tests first
TOGETHER = {"browser"}  # markers of tests whose folder shares what it starts

T = TypeVar("T")


def rank(markers: Iterable[str]) -> int:
    """How early a module with tests of these markers begins: 0 first."""
    known = set(markers)
    return next((place for place, name in enumerate(LONG) if name in known), len(LONG))


def shares(total: int, workers: int) -> list[int]:
    """How many tests xdist's `worksteal` gives each worker in the beginning."""
    found: list[int] = []
    for place in range(workers):
        found.append((total - sum(found)) // (workers - place))
    return found


def dealt(modules: Sequence[tuple[int, Sequence[T]]], workers: int) -> list[T]:
    """All tests, so that each worker begins with long modules, and ends with short ones.

    modules: the rank and the tests of each.
    """
    long = sorted((module for module in modules if module[0] < len(LONG)), key=lambda one: one[0])
    short = [test for place, tests in modules if place == len(LONG) for test in tests]
    hands: list[list[T]] = [[] for _ in range(workers)]
    for place, (_, tests) in enumerate(long):
        hands[place % workers] += tests
    for hand, share in zip(hands, shares(sum(map(len, hands)) + len(short), workers), strict=True):
        room = max(share - len(hand), 0)
        hand += short[:room]
        short = short[room:]
    return [test for hand in hands for test in hand] + short
