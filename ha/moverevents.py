"""What the machine of a move receives and returns, and what its two groups say to each other.

All are values. The owner passes every event once, in the order of arrival, and executes the effects
in the order in which they were returned.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from duolog_server.store.moves import Place, Seal

# -- the row of a queue in the registry ------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Row:
    """What the registry says of a queue that moved: a lock on moves, and a hint. The logs decide.

    at: the place that takes puts. move, target: the move that has begun and not ended; empty: none.
    """

    name: Place
    at: Place
    move: str = ""
    target: str = ""


@dataclass(frozen=True, slots=True)
class Seen:
    """A row as it was read, and the revision of its last change; None and 0: there is none."""

    row: Row | None = None
    revision: int = 0


# -- what a source asks its target -----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Reserve:
    """Reserve a queue id for a move: closed to puts and readers."""

    move: str
    name: Place
    came_from: Place


@dataclass(frozen=True, slots=True)
class Open:
    """Begin the guest of a move at this offset; the seal that says so is confirmed."""

    move: str
    first: int


@dataclass(frozen=True, slots=True)
class Revoke:
    """Never begin the guest of a move, even if it was not reserved; or say what has begun."""

    move: str
    name: Place
    came_from: Place


@dataclass(frozen=True, slots=True)
class Ask:
    """Say what has begun that comes from this place, else what is reserved, else whether the place
    that the row names takes the puts of the name.

    It revokes nothing: as a request may arrive late, it would revoke a later move.
    """

    name: Place
    came_from: Place
    named: Place


Request = Reserve | Open | Revoke | Ask


@dataclass(frozen=True, slots=True)
class Reserved:
    """The queue id of a move is reserved."""

    move: str
    place: Place


@dataclass(frozen=True, slots=True)
class Opened:
    """The guest of a move has begun, here and at this offset."""

    move: str
    place: Place
    first: int


@dataclass(frozen=True, slots=True)
class Revoked:
    """The guest of a move has not begun and never will."""

    move: str


@dataclass(frozen=True, slots=True)
class Refused:
    """Nothing was done."""

    move: str
    reason: str


@dataclass(frozen=True, slots=True)
class Unknown:
    """Nothing is reserved for the move. To a source that had it reserved: the log has lost it."""

    move: str


@dataclass(frozen=True, slots=True)
class Carries:
    """Nothing comes from the place, but the one that the row names carries the name on from this
    offset, and takes its puts: the places between them are lost.
    """

    move: str
    place: Place
    first: int


@dataclass(frozen=True, slots=True)
class Nothing:
    """Nothing that comes from the place has begun or may begin."""

    move: str = ""


Reply = Reserved | Opened | Revoked | Refused | Unknown | Carries | Nothing
_RANKS = (Opened, Reserved, Carries, Nothing)


def joined(replies: Sequence[Reply]) -> Reply:
    """What the groups that were asked say together; one that has begun counts before all else."""
    return min(replies, key=lambda reply: _RANKS.index(type(reply)))


# -- events ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Settled:
    """All that the log held when this mastership began is confirmed: what it lacks, is not."""


@dataclass(frozen=True, slots=True)
class Committed:
    """This row was written, with this revision."""

    row: Row
    revision: int


@dataclass(frozen=True, slots=True)
class Conflict:
    """The row was not written, because it is another one by now."""

    seen: Seen


@dataclass(frozen=True, slots=True)
class Held:
    """No put to the queue is on its way into the log, which has the queue's offsets up to end."""

    end: int


@dataclass(frozen=True, slots=True)
class NotSealed:
    """The seal was not stored, and never will be."""


@dataclass(frozen=True, slots=True)
class Sealed:
    """The seal is confirmed."""


@dataclass(frozen=True, slots=True)
class Answered:
    """The target answered."""

    reply: Reply


@dataclass(frozen=True, slots=True)
class Lost:
    """The next place knows nothing of this one, by what it answers to puts that are passed on."""


@dataclass(frozen=True, slots=True)
class Retry:
    """No answer came in time, from the registry or the target."""


@dataclass(frozen=True, slots=True)
class Abort:
    """An operator, or the time that a move may take before its seal, ends it."""


@dataclass(frozen=True, slots=True)
class Passed:
    """The target has no master, and by the row the queue has moved on from it."""

    seen: Seen


@dataclass(frozen=True, slots=True)
class Left:
    """The target's group has left for good: nothing begins there any more."""


Event = (
    Settled
    | Committed
    | Conflict
    | Held
    | NotSealed
    | Sealed
    | Answered
    | Lost
    | Passed
    | Left
    | Retry
    | Abort
)


# -- effects ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Commit:
    """Write the row if this is still its revision and this node the master; else `Conflict`."""

    row: Row
    revision: int


@dataclass(frozen=True, slots=True)
class Call:
    """Send a request to the master of the target, once; without an answer it is `Retry`.

    `Ask` goes to all other groups; without the answer of each it is `Retry` as well, unless one
    says that something has begun. The answer is `joined`.
    """

    request: Request


@dataclass(frozen=True, slots=True)
class Hold:
    """Hold what is put into the queue from now on, then pass `Held`."""


@dataclass(frozen=True, slots=True)
class Append:
    """Append a seal; `Sealed` once it is confirmed. replaces: the move whose seal it replaces.

    `NotSealed` where it could not be stored: the queue may have grown when it is tried again.
    """

    seal: Seal
    replaces: str = ""


@dataclass(frozen=True, slots=True)
class Release:
    """Answer what is held: it belongs to this place; None: store it."""

    place: Place | None


@dataclass(frozen=True, slots=True)
class Report:
    """Tell the operator why a move ended."""

    reason: str


Effect = Commit | Call | Hold | Append | Release | Report
