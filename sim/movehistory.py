"""The history of programs that use queues which move: sends, and what the group was given."""

from dataclasses import dataclass, field

from duolog_server.store.moves import Place
from sim.witness import Violation

TOPIC = "M"
QUEUES = 2  # of each replica group
GROUP = "g"


@dataclass(slots=True)
class Sent:
    """A message of a producer. outcome: ok, info for may or may not be stored, or refused.

    place: of what was answered ok; None where that tells no place. turn: among those with its key.
    """

    body: bytes
    key: str = ""
    turn: int = 0
    delayed: bool = False
    outcome: str = "info"
    place: Place | None = None
    offset: int = -1


@dataclass(slots=True)
class MoveHistory:
    """Everything that the checks need."""

    sent: list[Sent] = field(default_factory=list)
    given: dict[Place, dict[int, bytes]] = field(default_factory=dict)
    frontier: dict[Place, int] = field(default_factory=dict)  # handed out below here, no offset not
    deliveries: int = 0
    repeats: int = 0
    under_way: int = 0  # sends and moves that programs are at

    def gave(self, member: str, place: Place, offset: int, body: bytes, first: int) -> None:
        """A member's user gets a message: none before it was passed over. first: of its span."""
        self.deliveries += 1
        known = self.given.setdefault(place, {}).setdefault(offset, body)
        if known != body:
            raise Violation(f"{place} {offset} was {known!r} and is {body!r} for {member}")
        frontier = self.frontier.get(place, first)
        if offset > frontier:
            raise Violation(f"{member} is given {place} {offset}, and nobody {frontier}")
        self.repeats += offset < frontier
        self.frontier[place] = max(frontier, offset + 1)
