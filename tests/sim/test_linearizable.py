"""The checker of histories agrees with a search through all orders, and finds what clients may not
be told.
"""

import itertools
import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duolog_server.chaos import linearizable as chaos
from duolog_server.linearizable import NEVER, NONE, Append, Commit, Read, Told, log, progress
from tests.cluster.test_checkers import a_history


@dataclass(frozen=True)
class Whole:
    """A read of a whole queue after everything else."""

    bodies: tuple[str, ...]
    begin: float = 100.0
    end: float = 100.0


Step = Callable[[Any, Any], Any]  # the state after an operation, or None where its answer is wrong


def orders(operations: Sequence[Any]) -> Iterable[Sequence[Any]]:
    """Every order of these that keeps what ended before something else began before that."""
    for order in itertools.permutations(operations):
        if all(
            not later.end < getattr(earlier, "begin", -math.inf)
            for earlier, later in itertools.combinations(order, 2)
        ):
            yield order


def searched(operations: Sequence[Any], state: Any, step: Step) -> bool:
    """Whether some order explains all answers; what was not answered may be left out."""
    surely = [one for one in operations if one.end != NEVER]
    maybe = [one for one in operations if one.end == NEVER]
    for count in range(len(maybe) + 1):
        for some in itertools.combinations(maybe, count):
            for order in orders([*surely, *some]):
                now = state
                for one in order:
                    now = step(now, one)
                    if now is None:
                        break
                else:
                    return True
    return False


def of_a_log(state: tuple[Hashable, ...], one: Any) -> tuple[Hashable, ...] | None:
    if isinstance(one, Append):
        return (*state, one.body) if one.offset in (NONE, len(state)) else None
    if isinstance(one, Whole):
        return state if state == one.bodies else None
    found = state[one.first : one.first + len(one.bodies)]
    return state if found == tuple(one.bodies) else None


def of_a_group(state: int, one: Any) -> int | None:
    if isinstance(one, Commit):
        return max(state, one.offset)
    return state if one.offset == state else None


times = st.tuples(st.integers(0, 6), st.integers(0, 4)).map(lambda t: (t[0], t[0] + t[1]))


@st.composite
def log_histories(draw: st.DrawFn) -> tuple[list[Append], list[Read], list[str]]:
    """Mostly right ones: what is stored is given, and answers agree with it but for a few."""
    stored = list(draw(st.permutations("abc")))[: draw(st.integers(0, 3))]
    if draw(st.integers(0, 9)) == 0:
        stored += draw(st.sampled_from([["a"], ["x"]]))
    appends = []
    for body in "abc":
        (begin, end), how = draw(times), draw(st.integers(0, 9))
        place = stored.index(body) if body in stored else NONE
        told = draw(st.integers(0, 3)) if how == 9 else NONE if how > 6 else place
        unknown = place == NONE and how < 9
        if how and not (unknown and how < 3):
            weak = draw(st.sampled_from([NONE] * 3 + [place, 1]))  # stored there, and perhaps lost
            row = (NEVER, weak) if unknown or how < 3 else (end, told)
            appends.append(Append(body, begin, *row))
    reads = []
    for _ in range(draw(st.integers(0, 2))):
        first, (_, end) = draw(st.integers(0, 2)), draw(times)
        found = stored[first : first + draw(st.integers(0, 2))]
        reads.append(Read(first, draw(st.sampled_from([found] * 9 + [["b"]])), end))
    return appends, reads, stored


@settings(max_examples=300)
@given(log_histories())
def test_a_queue_is_judged_as_by_a_search_through_all_orders(
    history: tuple[list[Append], list[Read], list[str]],
) -> None:
    appends, reads, stored = history
    operations = [*appends, *(read for read in reads if read.bodies), Whole(tuple(stored))]
    assert (log(appends, reads, stored) == "") == searched(operations, (), of_a_log)


@settings(max_examples=300)
@given(
    st.lists(st.tuples(st.integers(0, 3), times, st.booleans()), max_size=3),
    st.lists(st.tuples(st.integers(NONE, 3), times), max_size=2),
)
def test_a_groups_progress_is_judged_as_by_a_search_through_all_orders(
    made: list[tuple[int, tuple[int, int], bool]], asked: list[tuple[int, tuple[int, int]]]
) -> None:
    commits = [Commit(at, t[0], t[1] if answered else NEVER) for at, t, answered in made]
    told = [Told(at, *t) for at, t in asked]
    assert (progress(commits, told) == "") == searched([*commits, *told], NONE, of_a_group)


WRITTEN = [Append("a", 0, 2, 0), Append("b", 1, 3, 1), Append("c", 4)]


@pytest.mark.parametrize(
    ("more", "reads", "stored", "why"),
    [
        ([], [Read(0, "ab", 6), Read(2, "c", 6)], "abc", ""),
        ([Append("d", 7, 8, 2)], [Read(2, "d", 9), Read(3, "c", 11)], "abdc", ""),
        ([], [Read(0, "ba", 6)], "abc", "was read at offset 0"),
        ([], [Read(2, "c", 3)], "abc", "not before 4"),
        ([], [], "a", "acknowledged 'b' is not stored"),
        ([], [], "abcb", "'b' is stored twice"),
        ([], [], "abx", "no send that may have stored it"),
        ([Append("d", 7, 8, 3)], [], "abd", "not at offset 3, but at 2"),
        ([Append("d", 7, 8)], [], "adb", "not at offset 1, but at 2"),
        ([Append("d", 1, 1.5), Append("e", 1.7, 2)], [], "abed", "'d' at offset 3"),
    ],
)
def test_what_may_not_become_of_a_queue_is_found(
    more: list[Append], reads: list[Read], stored: str, why: str
) -> None:
    found = log([*WRITTEN, *more], reads, stored)
    assert why in found if why else not found


@pytest.mark.parametrize(
    ("told", "why"),
    [
        ([Told(NONE, 0, 1), Told(5, 1, 2), Told(5, 6, 7)], ""),
        ([Told(5, 6, 7), Told(4, 8, 9)], "5 was committed, and 4 was told afterwards"),
        ([Told(NONE, 6, 7)], "4 was committed, and -1 was told afterwards"),
        ([Told(6, 6, 7)], "6 was told, and nobody committed it"),
        ([Told(7, 6, 7), Told(7, 8, 9)], ""),
        ([Told(8, 6, 7)], "8 was told by 7, and not reached before 8"),
        ([Told(8, 8, 9), Told(7, 10, 11)], "8 was told by 9, and not reached before 10"),
    ],
)
def test_what_may_not_become_of_a_groups_progress_is_found(told: list[Told], why: str) -> None:
    made = [Commit(4, 0, 5), Commit(5, 1, 3), Commit(8, 8)]
    assert progress(made, told, {7}) == why


def test_a_chaos_history_is_checked_and_a_message_in_anothers_place_found() -> None:
    history = a_history()
    assert chaos.findings(history) == []
    for queues in history.drains.values():
        queues["t", 0] = [(0, "m0"), (1, "m2"), (2, "m1")]
    assert [found.kind for found in chaos.findings(history)] == ["not linearizable"]
