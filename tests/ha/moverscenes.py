"""A queue's move in each of its states, and all that may happen to it."""

from collections.abc import Iterator

from duolog_server.ha.mover import Mover, Span, Start, State, begin, resume
from duolog_server.ha.moverevents import (
    Abort,
    Answered,
    Carries,
    Committed,
    Conflict,
    Effect,
    Event,
    Held,
    Left,
    Lost,
    Nothing,
    NotSealed,
    Opened,
    Passed,
    Refused,
    Reserved,
    Retry,
    Revoked,
    Row,
    Sealed,
    Seen,
    Settled,
    Unknown,
)
from duolog_server.store.moves import Moves, Place
from tests.ha.scenes import Scene, names
from tests.known import known

STATES = tuple(state.value for state in State)
TOPIC = "orders"
HERE, THERE = Place("a", 3), Place("b", 4)
SPAN = Span(HERE, HERE)
PREPARED = Row(HERE, HERE, "a-2-1", "b")
DONE = Row(HERE, THERE)
CLEAR = Row(HERE, HERE)
LATER = Place("c", 1)
DOUBTED = Row(HERE, LATER)
SEAL = {"topic": TOPIC, "queue": 3, "end": 10, "group": "b", "to": 4, "move": "a-2-1"}

RESERVING: tuple[Event, ...] = (Committed(PREPARED, 7),)
SEALING: tuple[Event, ...] = (*RESERVING, Answered(Reserved("a-2-1", THERE)), Held(10))
OPENING: tuple[Event, ...] = (*SEALING, Sealed())
WITNESSING: tuple[Event, ...] = (*OPENING, Answered(Opened("a-2-1", THERE, 10)))
REVOKING: tuple[Event, ...] = (*RESERVING, Abort())
RENEWING: tuple[Event, ...] = (*OPENING, Answered(Unknown("a-2-1")))
CLEARING: tuple[Event, ...] = (*REVOKING, Answered(Revoked("a-2-1")))

PATHS: dict[State, tuple[Event, ...]] = {
    State.PREPARING: (),
    State.RESERVING: RESERVING,
    State.SEALING: SEALING,
    State.OPENING: OPENING,
    State.WITNESSING: WITNESSING,
    State.DONE: (*WITNESSING, Committed(DONE, 8)),
    State.REVOKING: REVOKING,
    State.CLEARING: CLEARING,
    State.ENDED: (*CLEARING, Committed(CLEAR, 8)),
    State.RENEWING: RENEWING,
}
OWN_ROW = {State.PREPARING: PREPARED, State.WITNESSING: DONE, State.CLEARING: CLEAR}
MOVED_ON = Row(HERE, Place("c", 1))
EVENTS: dict[str, Event] = {
    "Committed: the row of a state that was left": Committed(Row(HERE, Place("a", 9)), 9),
    "Conflict: there is no row": Conflict(Seen()),
    "Conflict: the row names another move": Conflict(Seen(Row(HERE, HERE, "a-2-0", "b"), 9)),
    "Conflict: the row names a later place": Conflict(Seen(MOVED_ON, 9)),
    "Held": Held(10),
    "NotSealed": NotSealed(),
    "Sealed": Sealed(),
    "Answered Reserved": Answered(Reserved("a-2-1", THERE)),
    "Answered Opened: at the end": Answered(Opened("a-2-1", THERE, 10)),
    "Answered Opened: at another offset": Answered(Opened("a-2-1", THERE, 9)),
    "Answered Revoked": Answered(Revoked("a-2-1")),
    "Answered Refused": Answered(Refused("a-2-1", "unknown")),
    "Answered Unknown": Answered(Unknown("a-2-1")),
    "Answered Carries: the place that the row names": Answered(Carries("c-1-1", LATER, 20)),
    "Answered Nothing": Answered(Nothing()),
    "Answered Reserved: of another move": Answered(Reserved("a-1-1", THERE)),
    "Answered Reserved: of the next id": Answered(Reserved("a-2-1.1", Place("b", 5))),
    "Answered Revoked: of the next id": Answered(Revoked("a-2-1.1")),
    "Lost: the next place knows nothing of this one": Lost(),
    "Passed: the target has no master, the row names a later place": Passed(Seen(MOVED_ON, 9)),
    "Left: the target's group": Left(),
    "Retry": Retry(),
    "Abort": Abort(),
}


def after(*events: Event) -> tuple[Mover, tuple[Effect, ...]]:
    """A move that begins and takes these events; the effects of the last one."""
    mover, effects = begin(SPAN, "b", "a-2-1", Seen())
    for event in events:
        mover, effects = mover.step(event)
    return mover, effects


def resumed(moves: Moves, row: Row | None) -> Mover:
    """The move as the master of epoch 3 finds it."""
    return known(resume(Start(3, moves, Seen(row, 5 if row else 0)), TOPIC, HERE))


def sealed() -> Moves:
    """The tables of a source that has stored its seal."""
    moves = Moves()
    moves.apply_seal(SEAL)
    return moves


def scenes() -> Iterator[Scene]:
    """Every event in every state."""
    for state in State:
        mover = resumed(Moves(), DOUBTED) if state is State.ASKING else after(*PATHS[state])[0]
        if state is State.ASKING:
            yield played(mover, "Settled: what the log held at its start is confirmed", Settled())
            mover, _ = mover.step(Settled())
        elif state is State.OPENING:
            found = resumed(sealed(), PREPARED)
            yield played(found, "Settled: what the log held at its start is confirmed", Settled())
        if state in OWN_ROW:
            row = OWN_ROW[state]
            yield played(mover, "Committed: the row of this state", Committed(row, 9))
            yield played(mover, "Conflict: the row of this state", Conflict(Seen(row, 9)))
        for name, event in EVENTS.items():
            yield played(mover, name, event)


def played(mover: Mover, name: str, event: Event) -> Scene:
    """One event."""
    then, effects = mover.step(event)
    return Scene(mover.state.value, name, names(effects), then.state.value)
