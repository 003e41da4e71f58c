"""The move of a queue to another replica group, as its source's master runs it: seal, open, cross.

A value: each event gives the next one and the effects. A later master of the source starts it anew
from its log's tables, the row and nothing else (`resume`), so every step can be repeated.

Rules: the source's log decides where the queue ends, the target's log whether it has begun there;
the row is a lock on moves and a hint. Nothing is opened before its seal is confirmed. Only the
master that began a move seals it, unless the target says that it has begun. What a log lacks counts
once this mastership has confirmed something: until then a later master may have it. Puts wait for
the target only once a seal is stored, or was lost by what the row says; they never wait for the
registry.

A log that was set back (restored, elected uncleanly) has lost seals, or guests. A row that names
neither this place nor the one before it tells of a seal that this log lacks: all groups are asked,
and the queue is sealed again where it ends now. A target that knows nothing of a move that it had
reserved has lost its guest: another one is reserved under the next id, and the seal replaced.

| state | puts | leaves it by |
|-------|------|--------------|
| PREPARING | stored | the row names the move → RESERVING, another one → ENDED; aborted → CLEARING |
| RESERVING | stored | the target's word → SEALING; refused, aborted → REVOKING |
| SEALING | held | the seal is confirmed → OPENING; aborted before it is stored → REVOKING |
| OPENING | held | the target's word → WITNESSING, SEALING; lost there → RENEWING; moved on → DONE |
| RENEWING | held | the target's word → SEALING |
| WITNESSING | moved | the row names the new place → DONE; that is lost → OPENING |
| DONE | moved | |
| ASKING | held | begun → SEALING; nothing → CLEARING |
| REVOKING | stored | revoked, its group has left → CLEARING; begun → SEALING |
| CLEARING | stored | the row names no move → ENDED |
| ENDED | stored | |
"""

import enum
from dataclasses import dataclass, replace

from duolog_server.ha.moverevents import (
    Abort,
    Answered,
    Append,
    Ask,
    Call,
    Carries,
    Commit,
    Committed,
    Conflict,
    Effect,
    Event,
    Held,
    Hold,
    Left,
    Lost,
    Nothing,
    NotSealed,
    Open,
    Opened,
    Passed,
    Refused,
    Release,
    Reply,
    Report,
    Reserve,
    Reserved,
    Retry,
    Revoke,
    Revoked,
    Row,
    Sealed,
    Seen,
    Settled,
    Unknown,
)
from duolog_server.store.moves import Moves, Place, Seal


class State(enum.Enum):
    """How far a move is."""

    PREPARING = "PREPARING"
    RESERVING = "RESERVING"
    SEALING = "SEALING"
    OPENING = "OPENING"
    RENEWING = "RENEWING"
    WITNESSING = "WITNESSING"
    DONE = "DONE"
    ASKING = "ASKING"
    REVOKING = "REVOKING"
    CLEARING = "CLEARING"
    ENDED = "ENDED"


HOLDING = frozenset({State.SEALING, State.OPENING, State.RENEWING, State.ASKING})
MOVED = frozenset({State.WITNESSING, State.DONE})
OVER = frozenset({State.DONE, State.ENDED})
AFTER_THE_ROW = {
    State.PREPARING: State.RESERVING,
    State.WITNESSING: State.DONE,
    State.CLEARING: State.ENDED,
}


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of a name, at the place that takes its puts or took them last."""

    name: Place
    at: Place
    came_from: Place | None = None

    @staticmethod
    def of(moves: Moves, topic: str, at: Place) -> "Span":
        """The span that a queue of this group carries."""
        guest = moves.guest_of(topic, at.queue_id)
        if guest is None:
            return Span(at, at)
        return Span(guest.name, at, guest.came_from)


@dataclass(frozen=True, slots=True)
class Mover:
    """The machine. epoch: of its master. end, first, to: of the seal, -1 and None before each is
    known; first is -1 as well where it is the end.

    settled: what this log lacks, no later master has. move: in ASKING the one that is revoked, or
    empty. burnt: those that were revoked. replaces: the move of the seal that is replaced, if any.
    """

    span: Span
    target: str
    move: str
    epoch: int
    state: State
    seen: Seen
    end: int = -1
    first: int = -1
    to: Place | None = None
    settled: bool = True
    burnt: tuple[str, ...] = ()
    replaces: str = ""

    @property
    def holds(self) -> bool:
        """Whether puts to the queue wait."""
        return self.state in HOLDING

    @property
    def moved_to(self) -> Place | None:
        """Where puts are to go; None: they are stored here, or wait."""
        return self.to if self.state in MOVED else None

    @property
    def _begins(self) -> int:
        """Where the next place begins."""
        return self.end if self.first < 0 else self.first

    @property
    def has_begun(self) -> bool:
        """Whether the target has begun, and this log lost that: puts wait for the seal."""
        return self.first >= 0 or bool(self.replaces)

    @property
    def is_unsealed(self) -> bool:
        """Whether it can be ended: nothing has begun, and no seal may be stored."""
        if self.state is State.SEALING:
            return self.end < 0 and self.first < 0
        return self.state in (State.PREPARING, State.RESERVING)

    def step(self, event: Event) -> tuple["Mover", tuple[Effect, ...]]:
        """Take one event."""
        match event:
            case Retry():
                return self, self._awaited()
            case Settled():
                return self._go(self.state, settled=True)
            case Committed(row, revision):
                return self._written(Seen(row, revision))
            case Conflict(seen):
                return self._overtaken(seen)
            case Held(end):
                return self._held(end)
            case NotSealed() if self.state is State.SEALING:
                return replace(self, end=self.end if self.replaces else -1), (Hold(),)
            case Sealed() if self.state is State.SEALING:
                return self._go(State.OPENING)
            case Answered(reply) if self.settled and self._concerns(reply):
                return self._answered(reply)
            case Lost() if self.state is State.WITNESSING:
                return self._go(State.OPENING)
            case Passed(Seen(row=Row(at=at)) as seen) if self.state is State.OPENING:
                return replace(self, state=State.DONE, seen=seen), (Release(at),)
            case Left() if self.state is State.REVOKING and self.settled:
                return self._go(State.CLEARING)
            case Abort() if self.is_unsealed:
                return self._aborted()
        return self, ()

    def _go(self, state: State, **changes: object) -> tuple["Mover", tuple[Effect, ...]]:
        mover = replace(self, state=state, **changes)  # type: ignore[arg-type]
        return mover, mover._awaited()

    def _awaited(self) -> tuple[Effect, ...]:
        """What the state waits for the answer to."""
        span = self.span
        match self.state:
            case State.PREPARING | State.WITNESSING | State.CLEARING:
                return (Commit(self._row(), self.seen.revision),)
            case State.RESERVING | State.RENEWING:
                return (Call(Reserve(self.move, span.name, span.at)),)
            case State.OPENING if self.settled:
                return (Call(Open(self.move, self._begins)),)
            case State.ASKING if self.settled and not self.move:
                row = self.seen.row
                return (Call(Ask(span.name, span.at, row.at if row is not None else span.at)),)
            case State.ASKING | State.REVOKING if self.settled:
                return (Call(Revoke(self.move, span.name, span.at)),)
        return ()

    def _aborted(self) -> tuple["Mover", tuple[Effect, ...]]:
        if self.state is State.PREPARING:
            return self._go(State.CLEARING)  # nothing is reserved before the row is written
        mover, awaited = self._go(State.REVOKING)
        return mover, (Release(None), *awaited) if self.holds else awaited

    # -- the registry ------------------------------------------------------------------------------

    def _row(self) -> Row:
        """What the registry says once this state is left."""
        span = self.span
        if self.state is State.PREPARING:
            return Row(span.name, span.at, self.move, self.target)
        return Row(span.name, self.moved_to or span.at)

    def _written(self, seen: Seen) -> tuple["Mover", tuple[Effect, ...]]:
        following = AFTER_THE_ROW.get(self.state)
        if following is None or seen.row != self._row():
            return replace(self, seen=seen), ()  # written late, for a state that was left
        return self._go(following, seen=seen)

    def _overtaken(self, seen: Seen) -> tuple["Mover", tuple[Effect, ...]]:
        following, row = AFTER_THE_ROW.get(self.state), seen.row
        if following is None:
            return replace(self, seen=seen), ()
        if row == self._row():
            return self._go(following, seen=seen)  # it was written, and the answer lost
        match self.state, row:
            case State.PREPARING, Row() if row.move or row.at != self.span.at:
                ended = replace(self, state=State.ENDED, seen=seen)
                why = "it moves already" if row.move else f"it is at {row.at} by the registry"
                return ended, (Report(f"{why}: try again"),)
            case State.WITNESSING, Row() if self._is_witnessed(row):
                return self._go(following, seen=seen)
            case State.CLEARING, Row() if row.move not in ("", self.move, *self.burnt):
                return self._go(following, seen=seen)  # what it names is asked about by itself
            case State.CLEARING, Row() if names_later(row, self.span):
                return self._go(following, seen=seen)  # so is this
        return self._go(self.state, seen=seen)

    def _is_witnessed(self, row: Row) -> bool:
        """Whether a row names the new place or a later one; the target has lost those that it had
        before its guest was reserved anew.
        """
        lost = self.replaces and self.to is not None and row.at.group == self.to.group
        return row.at == self.to or (names_later(row, self.span) and not lost)

    # -- the source's log --------------------------------------------------------------------------

    def _held(self, end: int) -> tuple["Mover", tuple[Effect, ...]]:
        if self.state is not State.SEALING or self.to is None:
            return self, ()
        sealing = replace(self, end=self.end if self.replaces else end)
        seal = Seal(sealing.end, self.to, self.move, self.first)
        return sealing, (Append(seal, self.replaces),)

    # -- the target --------------------------------------------------------------------------------

    def _concerns(self, reply: Reply) -> bool:
        """Whether a reply is to a request of this move, or says what else has begun from here."""
        if reply.move == self.move or isinstance(reply, Opened):
            return True
        return not self.move and isinstance(reply, Reserved | Carries)

    def _answered(self, reply: Reply) -> tuple["Mover", tuple[Effect, ...]]:
        match self.state, reply:
            case State.RESERVING, Reserved(_, place):
                return replace(self, state=State.SEALING, to=place), (Hold(),)
            case State.RESERVING, Refused() | Revoked():
                return self._go(State.REVOKING)
            case State.OPENING, Opened(_, place, first):
                if (place, first) == (self.to, self._begins):
                    return self._moved(place)
                return self._sealed_again(reply, replaces=self.move)
            case State.OPENING | State.RENEWING, Unknown() | Revoked():
                lost = self.move if self.state is State.OPENING else self.replaces
                return self._go(State.RENEWING, move=renewed(self.move), replaces=lost)
            case State.RENEWING, Reserved(_, place):
                return replace(self, state=State.SEALING, to=place), (Hold(),)
            case State.RENEWING | State.RESERVING | State.REVOKING, Opened():
                return self._sealed_again(reply)
            case State.ASKING, Opened() | Carries():
                return self._sealed_again(reply)
            case State.ASKING, Reserved(move, place) if self._is_older(move):
                return self._go(State.ASKING, move=move, target=place.group)
            case State.ASKING, Revoked(move):
                return self._go(State.ASKING, move="", burnt=(*self.burnt, move))
            case State.ASKING, Nothing():
                return self._given_back()
            case State.REVOKING, Revoked():
                return self._go(State.CLEARING)
        return self, ()

    def _sealed_again(
        self, begun: Opened | Carries, replaces: str = ""
    ) -> tuple["Mover", tuple[Effect, ...]]:
        """The next place has begun: this log lost its seal, or that one the guest of the seal."""
        place, instead = begun.place, replaces or self.replaces
        found = replace(self, move=begun.move, target=place.group, to=place, first=begun.first)
        return replace(found, state=State.SEALING, replaces=instead), (Hold(),)

    def _is_older(self, move: str) -> bool:
        """Whether a move may be revoked: one of a later master than this one may live."""
        return move not in self.burnt and began_in(move) < self.epoch

    def _moved(self, place: Place) -> tuple["Mover", tuple[Effect, ...]]:
        """Puts continue before the registry hears of it."""
        row = self.seen.row
        witnessed = row is not None and self._is_witnessed(row)
        mover, awaited = self._go(State.DONE if witnessed else State.WITNESSING)
        return mover, (Release(place), *awaited)

    def _given_back(self) -> tuple["Mover", tuple[Effect, ...]]:
        """Nobody has what the row says of this queue: puts are stored here, and it is corrected."""
        mover, awaited = self._go(State.CLEARING)
        return mover, (Release(None), *awaited)


# -- how it starts ---------------------------------------------------------------------------------


def move_id(group: str, epoch: int, number: int) -> str:
    """The id of a move: its source, the epoch of the master that begins it, a number of its own.

    A target knows moves of many sources by their ids, and remembers those of a source that was
    restored: so numbers are not used again, even where epochs are.
    """
    return f"{group}-{epoch}-{number}"


def renewed(move: str) -> str:
    """The id of the move that replaces one which its target lost: the same by every master."""
    source, _, number = move.rpartition("-")
    number, _, times = number.partition(".")
    return f"{source}-{number}.{int(times or 0) + 1}"


def is_renewed(move: str) -> bool:
    """Whether a move replaces one which its target lost."""
    return "." in move.rpartition("-")[2]


def began_in(move: str) -> int:
    """The epoch of the master that began a move. Raises ValueError or IndexError if it is none."""
    return int(move.split("-")[-2])


def begin(span: Span, target: str, move: str, seen: Seen) -> tuple[Mover, tuple[Effect, ...]]:
    """A new move, of a queue that takes puts; its opening, if it is a guest, is confirmed.

    move: a `move_id` of this mastership.
    """
    mover = Mover(span, target, move, began_in(move), State.PREPARING, seen)
    return mover.step(Conflict(seen))


@dataclass(frozen=True, slots=True)
class Start:
    """What a new master of a source goes by: its epoch, the tables of its whole log, the row."""

    epoch: int
    moves: Moves
    seen: Seen


def resume(start: Start, topic: str, at: Place) -> Mover | None:
    """The move of a queue as a new master of its source finds it; None: there is none.

    The tables are those of all that its log holds, which may be more than is confirmed; `Settled`
    comes once it is.
    """
    moves, seen, row = start.moves, start.seen, start.seen.row
    span, seal = Span.of(moves, topic, at), moves.seal_of(topic, at.queue_id)
    if seal is not None:
        to = seal.following
        state = State.DONE if row is not None and row.at == to else State.OPENING
        mover = Mover(span, to.group, seal.move, start.epoch, state, seen)
        return replace(mover, end=seal.end, first=seal.first, to=to, settled=False)
    if row is None or moves.closed(topic, at.queue_id) is not None:
        return None
    if row.move and row.at == at:
        # Unless this log was set back, no seal was confirmed, and nothing has begun.
        found = Mover(span, row.target, row.move, start.epoch, State.REVOKING, seen)
        return replace(found, settled=False)
    here_before = row.at.group == at.group and moves.seal_of(topic, row.at.queue_id) is not None
    if not names_later(row, span) or here_before:
        return None
    return Mover(span, row.at.group, "", start.epoch, State.ASKING, seen, settled=False)


def names_later(row: Row, span: Span) -> bool:
    """Whether a row names a place behind a span's; or one long before, which is replaced anyway."""
    return row.at not in (span.at, span.came_from)
