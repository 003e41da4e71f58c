"""Exploration of a bounded model: every state that it can reach, and an end from each."""

from collections import deque
from collections.abc import Hashable, Iterable, Iterator
from typing import Any, NamedTuple, Protocol, TypeVar

S = TypeVar("S", bound=Hashable)
STATES_MAX = 10_000_000
HEAL_STEPS = 200


class Model(Protocol[S]):
    """What can happen to a state, and what must hold. What is wrong is a text; empty: nothing."""

    def successors(self, state: S) -> Iterable[tuple[Any, S]]:
        """Every event that may be the next one, and the state after it."""

    def fair(self, state: S) -> Iterable[tuple[Any, S]]:
        """Those of them that no fault is needed for."""

    def calmed(self, state: S) -> S:
        """The state after the last fault: what is on its way is lost."""

    def broken(self, state: S) -> str:
        """What is wrong with a state."""

    def broken_end(self, state: S) -> str:
        """What is wrong with a state in which nothing happens any more."""


class Outcome(NamedTuple):
    """The end of an exploration. trace: the events to the violation. reached: what there was."""

    states: int
    violation: str = ""
    trace: tuple[str, ...] = ()
    reached: frozenset[str] = frozenset()


def explored(model: Model[S], start: S, states_max: int = STATES_MAX) -> Outcome:
    """Visit the states breadth-first, up to the first violation: its trace is a shortest one."""
    came: dict[S, tuple[S, Any] | None] = {start: None}
    good: set[S] = set()
    queue = deque([start])
    while queue:
        state = queue.popleft()
        found = model.broken(state) or _healed(model, state, good)
        if found:
            return Outcome(len(came), found, tuple(_steps(came, state))[::-1])
        if len(came) > states_max:
            return Outcome(len(came), "too many states")
        for said, after in model.successors(state):
            if after is not state and after not in came:
                came[after] = (state, said)
                queue.append(after)
    return Outcome(len(came))


def _healed(model: Model[S], state: S, good: set[S]) -> str:
    """What is wrong at the end of a fair run without faults."""
    path, state = [], model.calmed(state)
    for _ in range(HEAL_STEPS):
        if state in good:
            break
        path.append(state)
        after = next((one for _, one in model.fair(state) if one != state), None)
        if after is None:
            found = model.broken_end(state)
            if found:
                return found
            break
        state = after
    else:
        return "M14: a fair run does not end"
    good.update(path)
    return ""


def _steps(came: dict[S, tuple[S, Any] | None], state: S) -> Iterator[str]:
    step = came[state]
    while step is not None:
        state, said = step
        yield said if isinstance(said, str) else " ".join(map(str, said))
        step = came[state]
