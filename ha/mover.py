"""The move of a queue to another replica group, as its source's master runs it: seal, open, cross.

A value: each event gives the next one and the effects. A later master of the source starts it anew
from its log's tables, the row and nothing else (`resume`), so every step can be repeated.

Rules: the source's log decides where the queue ends, the target's log whether it has begun there;
the row is a lock on moves and a hint. Nothing is opened before its seal is confirmed. Only the
master that began a move seals it, unless the target says that it has begun. What a log lacks counts
once this mastership has confirmed something: until then a later master may have it. Puts wait for
the target only once a seal is stored, or may have been lost; they never wait for the registry.

| state | puts | leaves it by |
|-------|------|--------------|
| PREPARING | stored | the row names the move → RESERVING, another one → ENDED; aborted → CLEARING |
| RESERVING | stored | the target's word → SEALING; refused, aborted → REVOKING |
| SEALING | held | the seal is confirmed → OPENING |
| OPENING | held | the target's word → WITNESSING |
| WITNESSING | moved | the row names the new place → DONE |
| DONE | moved | |
| ASKING | held | begun → SEALING; nothing → REVOKING, CLEARING or ENDED, by the row |
| REVOKING | stored | revoked → CLEARING, begun → SEALING |
| CLEARING | stored | the row names no move → ENDED |
| ENDED | stored | |
| STRANDED | held | the target's word, which it changed → WITNESSING |
"""

import enum
from dataclasses import dataclass, replace

from duolog_server.ha.moverevents import (
    Abort,
    Answered,
    Append,
    Ask,
    Call,
    Commit,
    Committed,
    Conflict,
    Effect,
    Event,
    Held,
    Hold,
    Nothing,
    NotSealed,
    Open,
    Opened,
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
)
from duolog_server.store.moves import Moves, Place, Seal


class State(enum.Enum):
    """How far a move is."""

    PREPARING = "PREPARING"
    RESERVING = "RESERVING"
    SEALING = "SEALING"
    OPENING = "OPENING"
    WITNESSING = "WITNESSING"
    DONE = "DONE"
    ASKING = "ASKING"
    REVOKING = "REVOKING"
    CLEARING = "CLEARING"
    ENDED = "ENDED"
    STRANDED = "STRANDED"


HOLDING = frozenset({State.SEALING, State.OPENING, State.ASKING, State.STRANDED})
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
    """The machine. epoch: of its master. end, to: of the seal, -1 and None before it is known.

    settled: what this log lacks, no later master has. move: in ASKING the one that is revoked, or
    empty. burnt: those that were revoked.
    """

    span: Span
    target: str
    move: str
    epoch: int
    state: State
    seen: Seen
    end: int = -1
    to: Place | None = None
    settled: bool = True
    burnt: tuple[str, ...] = ()

    @property
    def holds(self) -> bool:
        """Whether puts to the queue wait."""
        return self.state in HOLDING

    @property
    def moved_to(self) -> Place | None:
        """Where puts are to go; None: they are stored here, or wait."""
        return self.to if self.state in MOVED else None

    @property
    def is_own(self) -> bool:
        """Whether it began in this mastership: without a seal, nothing has begun at the target."""
        return began_in(self.move) == self.epoch

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
                # Where the target has begun, the end stays as it is.
                return replace(self, end=-1 if self.is_own else self.end), (Hold(),)
            case Sealed() if self.state is State.SEALING:
                return self._go(State.OPENING)
            case Answered(reply) if self.settled and self._concerns(reply):
                return self._answered(reply)
            case Abort() if self.state is State.PREPARING:
                return self._go(State.CLEARING)  # nothing is reserved before the row is written
            case Abort() if self.state is State.RESERVING:
                return self._go(State.REVOKING)
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
            case State.RESERVING:
                return (Call(Reserve(self.move, span.name, span.at)),)
            case State.OPENING | State.STRANDED if self.settled:
                return (Call(Open(self.move, self.end)),)
            case State.ASKING | State.REVOKING if self.settled:
                return (Call(Revoke(self.move, span.name, span.at) if self.move else Ask(span.at)),)
        return ()

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
            case State.WITNESSING, Row() if names_later(row, self.span):
                return self._go(following, seen=seen)
            case State.CLEARING, Row() if row.move not in ("", self.move, *self.burnt):
                return self._go(following, seen=seen)  # what it names is asked about by itself
        return self._go(self.state, seen=seen)

    # -- the source's log --------------------------------------------------------------------------

    def _held(self, end: int) -> tuple["Mover", tuple[Effect, ...]]:
        if self.state is not State.SEALING or self.to is None:
            return self, ()
        if self.end < 0:
            sealing = replace(self, end=end)
        elif end <= self.end:
            sealing = self
        else:
            return self._stranded(f"the queue has offsets up to {end}")
        return sealing, (Append(Seal(sealing.end, self.to, self.move)),)

    def _stranded(self, reason: str) -> tuple["Mover", tuple[Effect, ...]]:
        said = f"puts wait: move {self.move} to {self.to} at offset {self.end}: {reason}"
        return replace(self, state=State.STRANDED), (Report(said),)

    # -- the target --------------------------------------------------------------------------------

    def _concerns(self, reply: Reply) -> bool:
        """Whether a reply is to a request of this move, or says what else has begun from here."""
        asks = self.state in (State.ASKING, State.REVOKING)
        unnamed = not self.move and isinstance(reply, Reserved)
        return reply.move == self.move or unnamed or (asks and isinstance(reply, Opened))

    def _answered(self, reply: Reply) -> tuple["Mover", tuple[Effect, ...]]:
        match self.state, reply:
            case State.RESERVING, Reserved(_, place):
                return replace(self, state=State.SEALING, to=place), (Hold(),)
            case State.RESERVING, Refused() | Revoked():
                return self._go(State.REVOKING)
            case State.OPENING | State.STRANDED, Opened(_, place, first):
                if (place, first) != (self.to, self.end):
                    return self._stranded(f"the target began {place} at {first}")
                return self._moved(place)
            case State.OPENING, Refused(_, reason):
                return self._stranded(reason)
            case State.OPENING, Revoked():
                return self._stranded("the target revoked it")
            case State.ASKING | State.REVOKING, Opened(move, place, first):
                # The seal was lost with the end of this log, and is made again. While REVOKING only
                # if that left no mark; then it strands if puts went beyond.
                found = replace(self, state=State.SEALING, move=move, to=place, end=first)
                return found, (Hold(),)
            case State.ASKING, Reserved(move) if self._is_older(move):
                return self._go(State.ASKING, move=move)
            case State.ASKING, Revoked(move):
                return self._go(State.ASKING, move="", burnt=(*self.burnt, move))
            case State.ASKING, Nothing():
                return self._given_back()
            case State.REVOKING, Revoked():
                return self._go(State.CLEARING)
        return self, ()

    def _is_older(self, move: str) -> bool:
        """Whether a move may be revoked: one of a later master than this one may live."""
        return move not in self.burnt and began_in(move) < self.epoch

    def _moved(self, place: Place) -> tuple["Mover", tuple[Effect, ...]]:
        """Puts continue before the registry hears of it."""
        row = self.seen.row
        witnessed = row is not None and names_later(row, self.span)
        mover, awaited = self._go(State.DONE if witnessed else State.WITNESSING)
        return mover, (Release(place), *awaited)

    def _given_back(self) -> tuple["Mover", tuple[Effect, ...]]:
        """Puts are stored here; what the row names is revoked, too, and the row cleared."""
        row = self.seen.row
        if row is None or row.at != self.span.at:
            mover, awaited = self._go(State.ENDED)
        elif row.move and row.move not in self.burnt:
            mover, awaited = self._go(State.REVOKING, move=row.move, target=row.target)
        else:
            mover, awaited = self._go(State.CLEARING)
        return mover, (Release(None), *awaited)


# -- how it starts ---------------------------------------------------------------------------------


def move_id(group: str, epoch: int, number: int) -> str:
    """The id of a move: its source, the epoch of the master that begins it, a number of its own.

    A target knows moves of many sources by their ids, and remembers those of a source that was
    restored: so numbers are not used again, even where epochs are.
    """
    return f"{group}-{epoch}-{number}"


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
    """What a new master of a source goes by: its epoch, the tables of its whole log, the row.

    doubted: a group to be asked whatever the row says, because this log lost confirmed
    records in an unclean election, and since then no answer of that group was confirmed here.
    """

    epoch: int
    moves: Moves
    seen: Seen
    doubted: str = ""


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
        return replace(mover, end=seal.end, to=to, settled=False)
    if moves.closed(topic, at.queue_id) is not None:
        return None
    if start.doubted:
        return Mover(span, start.doubted, "", start.epoch, State.ASKING, seen, settled=False)
    if row is not None and row.move and row.at == at:
        # No seal was lost, so none was confirmed and nothing has begun: puts need not wait.
        found = Mover(span, row.target, row.move, start.epoch, State.REVOKING, seen)
        return replace(found, settled=False)
    return None


def names_later(row: Row, span: Span) -> bool:
    """Whether a row names a place behind a span's; or one long before, which is replaced anyway."""
    return row.at not in (span.at, span.came_from)
