"""Planted bugs: code with a function replaced or removed during a run."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from unittest import mock

from sim.faults import Fault

Patch = tuple[Any, str, Any]


@dataclass(frozen=True, slots=True)
class Mutant:
    """A planted bug: its name, its description, and what it replaces."""

    name: str
    story: str
    patches: Callable[[], list[Patch]]
    elected: bool | None = None  # in elected groups only, or in all
    weather: Callable[[int], list[Fault]] | None = None  # the faults that a seed must have
    moves: bool = False  # in runs with two replica groups, between which queues move

    @contextlib.contextmanager
    def planted(self) -> Iterator[None]:
        """The code with the bug in it."""
        with contextlib.ExitStack() as stack:
            for target, attribute, value in self.patches():
                stack.enter_context(mock.patch.object(target, attribute, value))
            yield


@dataclass(frozen=True, slots=True)
class Bugs:
    """Makes bugs of elected groups. weather: the faults that their seeds must have."""

    weather: Callable[[int], list[Fault]]

    def __call__(
        self,
        name: str,
        story: str,
        patches: Callable[[], list[Patch]],
        weather: Callable[[int], list[Fault]] | None = None,
    ) -> Mutant:
        """One of them. weather: in the place of the others'."""
        return Mutant(name, story, patches, True, weather or self.weather)


def nothing(*_: Any, **__: Any) -> None:
    """What is left out."""


async def nothing_later(*_: Any, **__: Any) -> None:
    """What is left out of a coroutine."""


def left_out(owner: Any, name: str) -> Callable[[], list[Patch]]:
    """Remove a step."""
    return lambda: [(owner, name, nothing)]


def left_out_later(owner: Any, name: str) -> Callable[[], list[Patch]]:
    """Remove a step that is a coroutine."""
    return lambda: [(owner, name, nothing_later)]
