"""A scene: one event that happens to a machine in one state, and what the machine does.

Real stores, real handshakes and a real registry table bring the machine into its state: nothing in
it is set by hand. docs/transitions.md is written from the scenes of slavescenes.py,
sessionscenes.py, failoverscenes.py and moverscenes.py. An event's name begins with its type; after
a colon follows what is special about it.
"""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Scene:
    """What was seen: the state before, what happened, what the machine said, the state then."""

    state: str
    event: str
    said: tuple[str, ...]
    after: str

    @property
    def kind(self) -> str:
        """The event's type alone."""
        return self.event.partition(":")[0]


def names(said: Iterable[object]) -> tuple[str, ...]:
    """Of effects, each kind once, in the order in which they are said."""
    return tuple(dict.fromkeys(type(effect).__name__ for effect in said))
