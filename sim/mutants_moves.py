"""python -m sim.mutants_moves [NAME]: planted bugs of a queue's move, and shortest traces to them.

They are for the models (`sim/movemodel.py`, `sim/crossmodel.py`), so `sim.mutants` does not list
them. Bugs of what is not built yet are planted into the model's producer, node or reader, which
stand for it: these are marked with `STANDS_IN`.

The models cannot see some bugs yet, and none is faked:

- A second end is accepted by the target: only the master that began a move seals it, so in a right
  source no second end arises. A unit test shows the refusal.
- A move that was never reserved is revoked without a record: a late reservation brings it back into
  the row, and it is revoked again, as often as late answers allow. A unit test shows the record.
- A former master revokes a later one's move: it would have to ask while that one reserves, and so
  both groups to be set back. A unit test shows that it does not.
- A first batch is refused, and a second one accepted: a producer has one batch in flight here.
- A delay is delivered into a sealed queue, or forwarded without a lookup: no delays here.
- An append with an older layout is accepted: queues do not double here.
"""

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from duolog_server.ha import mover as machine
from duolog_server.ha import movetarget
from duolog_server.ha.mover import Mover, State
from duolog_server.ha.moverevents import Abort, Open, Reserve, Revoke, Revoked
from duolog_server.store import crossing
from duolog_server.store.moves import Moves
from sim import crossmodel, movemodel
from sim.bounded import Outcome
from sim.crossmodel import Crossings, Readers
from sim.movemodel import SCENARIOS, Model
from sim.moveworld import Put, Step, World, at_of
from sim.planted import Mutant, Patch

CROSSING = "crossing"
STANDS_IN = "(stands in) "
STATES_MAX = 50_000  # a hunt ends


@dataclass(frozen=True, slots=True)
class Planted:
    """A planted bug, and the scenario that shows it."""

    mutant: Mutant
    scenario: str

    def hunt(self) -> Outcome:
        """Explore with the bug in the code."""
        with self.mutant.planted():
            if self.scenario == CROSSING:
                return crossmodel.explore()
            scenario = next(one for one in SCENARIOS if one.name == self.scenario)
            return movemodel.explore(scenario, STATES_MAX)


# -- the source ------------------------------------------------------------------------------------


def _opened_unconfirmed() -> list[Patch]:
    """The target is asked once the seal is in the log."""
    original = Mover._held

    def held(self: Any, end: int) -> Any:
        mover, effects = original(self, end)
        opening = replace(mover, state=State.OPENING)
        return opening, (*effects, *opening._awaited())

    return [(Mover, "_held", held)]


def _sealed_in_memory() -> list[Patch]:
    """The master knows that the queue is sealed, and its log does not."""
    original = Mover._held

    def held(self: Any, end: int) -> Any:
        mover, _ = original(self, end)
        return mover._go(State.OPENING)

    return [(Mover, "_held", held)]


def _end_too_early() -> list[Patch]:
    """A queue ends where it is confirmed, whatever is on its way."""
    original = Model.end_of

    def end_of(self: Any, side: Any, queue: int) -> int:
        return original(self, side._replace(log=side.log[: side.confirmed]), queue)

    return [(Model, "end_of", end_of)]


def _unasked() -> list[Patch]:
    """A master whose log has no seal takes puts, whatever it lost."""
    original = machine.resume

    def resume(start: Any, topic: str, at: Any) -> Any:
        found = original(start, topic, at)
        return None if found is not None and found.state is State.ASKING else found

    return [(machine, "resume", resume)]


def _row_over_log() -> list[Patch]:
    """A new master continues the move that the row names, whatever its log lost."""
    original = machine.resume

    def resume(start: Any, topic: str, at: Any) -> Any:
        found, row = original(start, topic, at), start.seen.row
        if found is not None and found.state is State.REVOKING and row is not None:
            return replace(found, state=State.RESERVING, move=row.move)
        return found

    return [(machine, "resume", resume)]


def _row_inside() -> list[Patch]:
    """Puts continue once the registry has it."""
    return [(machine, "HOLDING", machine.HOLDING | {State.WITNESSING})]


def _absence_believed() -> list[Patch]:
    """What a new master's log lacks, it believes at once never to have been."""
    original = machine.resume

    def resume(start: Any, topic: str, at: Any) -> Any:
        found = original(start, topic, at)
        return found and replace(found, settled=True)

    return [(machine, "resume", resume)]


def _first_is_end() -> list[Patch]:
    """A seal that is made again says that the next place begins where this one ends now."""
    original = Mover._sealed_again

    def sealed_again(self: Any, begun: Any, replaces: str = "") -> Any:
        return original(self, replace(begun, first=-1), replaces)

    return [(Mover, "_sealed_again", sealed_again)]


def _row_is_enough() -> list[Patch]:
    """A lost seal is made again by what the row says, and nobody is asked."""
    original = machine.resume

    def resume(start: Any, topic: str, at: Any) -> Any:
        found = original(start, topic, at)
        if found is None or found.state is not State.ASKING:
            return found
        to = start.seen.row.at
        return replace(found, state=State.OPENING, move="a-1-1", to=to, end=0)

    return [(machine, "resume", resume)]


def _aborted_late() -> list[Patch]:
    """A move is aborted after its seal was stored."""
    original = Mover.step

    def step(self: Any, event: Any) -> Any:
        if isinstance(event, Abort) and self.state in (State.SEALING, State.OPENING):
            return self._go(State.REVOKING)
        return original(self, event)

    return [(Mover, "step", step)]


# -- the store -------------------------------------------------------------------------------------


def _seal_ignored() -> list[Patch]:
    """The store takes puts into a sealed queue, as an older version does."""
    original = Moves.closed

    def closed(self: Any, topic: str, queue_id: int) -> Any:
        return None if self.seal_of(topic, queue_id) else original(self, topic, queue_id)

    return [(Moves, "closed", closed)]


def _guest_ignored() -> list[Patch]:
    """The store takes puts into a guest that is not open."""
    original = Moves.closed

    def closed(self: Any, topic: str, queue_id: int) -> Any:
        return original(self, topic, queue_id) if self.seal_of(topic, queue_id) else None

    return [(Moves, "closed", closed)]


# -- the target ------------------------------------------------------------------------------------


def _own_beginning() -> list[Patch]:
    """The target begins where its own queue does."""
    original = movetarget.records_for

    def records_for(moves: Any, topic: str, request: Any, next_id: int) -> Any:
        if isinstance(request, Open):
            request = replace(request, first=0)
        return original(moves, topic, request, next_id)

    return [(movetarget, "records_for", records_for)]


def _guest_reused() -> list[Patch]:
    """The queue id of a revoked guest is used again."""
    original = movetarget.records_for

    def records_for(moves: Any, topic: str, request: Any, next_id: int) -> Any:
        free = [queue_id for queue_id, one in moves.guests.get(topic, {}).items() if one.revoked]
        return original(moves, topic, request, free[0] if free else next_id)

    return [(movetarget, "records_for", records_for)]


def _reopened() -> list[Patch]:
    """A queue that comes back is given the id that it had."""
    original = movetarget.records_for

    def records_for(moves: Any, topic: str, request: Any, next_id: int) -> Any:
        if isinstance(request, Reserve) and moves.seal_of(topic, request.name.queue_id):
            next_id = request.name.queue_id
        return original(moves, topic, request, next_id)

    return [(movetarget, "records_for", records_for)]


def _revoke_forgotten() -> list[Patch]:
    """The target says that a move is revoked, and stores nothing."""
    original = movetarget.reply_to

    def reply_to(moves: Any, topic: str, group: str, request: Any) -> Any:
        reply = original(moves, topic, group, request)
        if reply is None and isinstance(request, Revoke):
            return Revoked(request.move)
        return reply

    return [(movetarget, "reply_to", reply_to)]


def _revokes_all() -> list[Patch]:
    """Whatever a place has reserved is revoked with the move that is named."""
    replies, records = movetarget.reply_to, movetarget.records_for

    def undecided(moves: Any, topic: str, request: Any) -> list[tuple[int, str]]:
        found = moves.guests.get(topic, {}).items() if isinstance(request, Revoke) else []
        return [(q, one.move) for q, one in found if one.first is None and not one.revoked]

    def reply_to(moves: Any, topic: str, group: str, request: Any) -> Any:
        waits = undecided(moves, topic, request)
        return None if waits else replies(moves, topic, group, request)

    def records_for(moves: Any, topic: str, request: Any, next_id: int) -> Any:
        revoked = [
            {"op": "revoke", "topic": topic, "queue": queue_id, "move": move}
            for queue_id, move in undecided(moves, topic, request)
        ]
        return revoked or records(moves, topic, request, next_id)

    return [(movetarget, "reply_to", reply_to), (movetarget, "records_for", records_for)]


def _own_row_only() -> list[Patch]:
    """A registry that lost its rows is told of a move only if it names that move."""
    original = movetarget.to_publish

    def to_publish(moves: Any, topic: str, at: Any, row: Any) -> Any:
        guest = moves.guest_of(topic, at.queue_id)
        other = row is not None and guest is not None and row.move != guest.move
        return None if other else original(moves, topic, at, row)

    return [(movetarget, "to_publish", to_publish)]


def _absence_told() -> list[Patch]:
    """A former master of the target says what its log lacks."""
    return [(movetarget, "is_absence", lambda reply: False)]


# -- producers and their nodes, which the model stands in for --------------------------------------


def _held_is_stored() -> list[Patch]:
    """A put that waited for the seal is answered PUT_OK."""

    def moved(self: Any, world: World, put: Put, stored: int, to: Any) -> World:
        if (put.first, put.at) != (world.client.first, world.client.at):
            return world
        _, entries = self.entries(world.sides[put.at[0]].log, put.at[1])
        receipts = tuple((*put.at, len(entries) + n) for n in range(put.messages))
        batch = world.client.batch + 1
        client = world.client._replace(
            batch=batch,
            first=put.first + put.messages,
            receipts=(*world.client.receipts, *receipts),
        )
        sent: World = self._send(world._replace(client=client))
        return sent

    return [(Model, "moved", moved)]


def _moved_unseen() -> list[Patch]:
    """A sealed queue has forgotten what is stored in it."""
    original = Model._offer

    def offer(self: Any, world: World, put: Put) -> World:
        side = world.sides[put.at[0]]
        mover = self.mover(side.mover) if side.mover else None
        if mover is not None and mover.moved_to and at_of(mover.span.at) == put.at:
            went: World = self.moved(world, put, 0, mover.moved_to)
            return went
        return original(self, world, put)

    return [(Model, "_offer", offer)]


def _partly_is_whole() -> list[Patch]:
    """A batch of which a part is stored is sent on as a whole."""
    original = Model.moved

    def moved(self: Any, world: World, put: Put, stored: int, to: Any) -> World:
        return original(self, world, put, 0, to)

    return [(Model, "moved", moved)]


def _place_unasked() -> list[Patch]:
    """What has no answer is sent to the new place, once that is known."""
    original = Model._operator

    def operator(self: Any, world: World) -> Iterator[Step]:
        yield from original(self, world)
        row, client = self.seen(world).row, world.client
        if row is not None and at_of(row.at) != client.at:
            elsewhere = client._replace(at=at_of(row.at))
            yield ("the producer looks at the row",), self._send(world._replace(client=elsewhere))

    return [(Model, "_operator", operator)]


# -- crossings -------------------------------------------------------------------------------------


def _by_delivery() -> list[Patch]:
    """A group crosses once it was given the last message of a span."""
    original = Crossings._read

    def read(self: Any, state: Readers, span: int) -> Iterator[tuple[str, Readers]]:
        for said, after in original(self, state, span):
            if span < 2 and after.given[span] == crossmodel.ENDS[span]:
                resets = after.here[span].resets
                after = self._hear(after, span + 1, crossmodel.ENDS[span], resets)
            yield said, after

    return [(Crossings, "_read", read)]


def _parent_only() -> list[Patch]:
    """A reset closes the span that follows, and none behind it."""
    original = crossing.to_close
    return [(crossing, "to_close", lambda firsts, offset: original(firsts, offset)[-1:])]


def _resets_close_nothing() -> list[Patch]:
    return [(crossing, "to_close", lambda firsts, offset: [])]


def _told_once() -> list[Patch]:
    """A crossing is reported once, whether it is answered or not."""

    def told(self: Any, state: Readers, span: int, sent: Any) -> Readers:
        found: Readers = self._set(state, span, crossing.on_answer(state.here[span], sent))
        return found

    return [(Crossings, "_told", told)]


def _one_early() -> list[Patch]:
    """A group crosses when it has committed all but the last message."""
    original = crossing.to_tell
    return [(crossing, "to_tell", lambda here, end: original(here, end - 1))]


def _unnumbered() -> list[Patch]:
    """A report from before a reset counts after it."""
    original = crossing.on_crossed

    def on_crossed(here: Any, told: Any) -> Any:
        return original(here, replace(told, resets=max(told.resets, here.resets)))

    return [(crossing, "on_crossed", on_crossed)]


def _numbers_meet() -> list[Patch]:
    """A reset believes a span closed that another reset has opened under its number."""
    return [(crossing, "on_closed", lambda here, there: (here, True))]


def _bug(name: str, story: str, patches: Callable[[], list[Patch]], scenario: str) -> Planted:
    return Planted(Mutant(name, story, patches), scenario)


MOVES = [
    _bug(
        "move-open-unconfirmed", "opened before the seal is safe", _opened_unconfirmed, "failovers"
    ),
    _bug("move-seal-in-memory", "the seal is in no log", _sealed_in_memory, "failovers"),
    _bug(
        "move-end-too-early", STANDS_IN + "the end is taken too early", _end_too_early, "failovers"
    ),
    _bug("move-seal-ignored", "a sealed queue takes puts", _seal_ignored, "rows"),
    _bug("move-guest-ignored", "a closed guest takes puts", _guest_ignored, "failovers"),
    _bug("move-own-beginning", "the target chooses the offset", _own_beginning, "batches"),
    _bug("move-guest-reused", "a revoked queue id is used again", _guest_reused, "aborts"),
    _bug("move-reopened", "a queue that comes back is opened again", _reopened, "back"),
    _bug("move-unasked", "an unclean source does not ask", _unasked, "unclean"),
    _bug("move-revoke-forgotten", "a revoked move can be opened", _revoke_forgotten, "unclean"),
    _bug("move-row-over-log", "the row is believed over the log", _row_over_log, "unclean"),
    _bug("move-row-inside", "puts wait for the registry", _row_inside, "failovers"),
    _bug("move-absence-believed", "a later master has the seal", _absence_believed, "failovers"),
    _bug("move-first-is-end", "a seal made again says its own end", _first_is_end, "unclean"),
    _bug("move-row-is-enough", "a lost seal is made again unasked", _row_is_enough, "unclean"),
    _bug("move-aborted-late", "aborted after the seal", _aborted_late, "aborts"),
    _bug("move-revokes-all", "a late revocation ends a later move", _revokes_all, "aborts"),
    _bug("move-own-row-only", "a row stays behind the logs", _own_row_only, "rows"),
    _bug("move-absence-told", "a former target knows of no move", _absence_told, "targets"),
    _bug(
        "move-held-stored", STANDS_IN + "a held put is answered PUT_OK", _held_is_stored, "batches"
    ),
    _bug("move-moved-unseen", STANDS_IN + "stored, and told moved", _moved_unseen, "batches"),
    _bug("move-partly-whole", STANDS_IN + "a part is sent again", _partly_is_whole, "batches"),
    _bug("move-place-unasked", STANDS_IN + "sent on without asking", _place_unasked, "batches"),
    _bug("cross-by-delivery", STANDS_IN + "delivered is enough", _by_delivery, CROSSING),
    _bug("cross-parent-only", "only the next span is closed", _parent_only, CROSSING),
    _bug("cross-reset-closes-nothing", "a reset closes no span", _resets_close_nothing, CROSSING),
    _bug("cross-told-once", "a lost crossing is not repeated", _told_once, CROSSING),
    _bug("cross-one-early", "crossed at the last offset but one", _one_early, CROSSING),
    _bug("cross-unnumbered", "an old crossing opens a gate again", _unnumbered, CROSSING),
    _bug("cross-numbers-meet", "two resets have one number", _numbers_meet, CROSSING),
]


def main(names: list[str]) -> int:
    """Hunt; the status is 1 where one is missed."""
    missed = 0
    for planted in MOVES:
        if not names or planted.mutant.name in names:
            outcome = planted.hunt()
            print(
                f"{planted.mutant.name}: {outcome.violation or 'MISSED'} ({outcome.states} states)"
            )
            for said in outcome.trace if names else ():
                print(f"  {said}")
            missed |= not outcome.violation
    return missed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
