"""python -m sim.movemodel: explores the protocol of a queue's move, every order of events.

python -m sim.movemodel                      the scenarios of the unit tests
python -m sim.movemodel --deep               with bounds that take minutes
python -m sim.movemodel --only unclean       one scenario
python -m sim.mutants_moves NAME             with a planted bug: prints a shortest trace to it

Two groups, abstracted to what the protocol is about: a log of records and puts, how far it is
confirmed, and the longer log that another member of its set may still lead with. Their masters run
the real `ha/mover.py` and `ha/movetarget.py` over the real tables of `store/moves.py`; there is no
second copy of the rules. What may happen, in any order:

- a call, an answer or a put that was ever sent arrives: late, again, or never;
- a group confirms what it holds; its master dies, and the next one leads with any end of the log
  that was not confirmed, one that a master in between did not have included; the former one may
  live on: it sends, and answers what its log knows, but confirms nothing;
- an unclean election, or a backup, loses confirmed records of a group; the registry loses its rows;
- a commit of a row is executed at any later time, and its answer is lost;
- one producer sends batches in order, one at a time, and stays with a place until it answers.

States are visited breadth-first, so the trace of a violation is a shortest one. From every state a
fair run without faults must lead to an end (M14), in which M5, M8 and M10 are looked at once more.

What is checked: M1-M6, M10, M12, M14 here, M7 and M8 in `sim/crossmodel.py`. Not to be said here:
M9 (nothing is delayed), M11 (no bytes), M13 (no group is retired).
"""

import argparse
import sys
import time
from collections.abc import Iterator
from typing import Any

from duolog_server.ha import mover as machine
from duolog_server.ha import movetarget
from duolog_server.ha.mover import Span, State
from duolog_server.ha.moverevents import (
    Abort,
    Answered,
    Append,
    Call,
    Commit,
    Committed,
    Conflict,
    Effect,
    Event,
    Held,
    Hold,
    Lost,
    Reply,
    Request,
    Retry,
    Sealed,
    Seen,
    Settled,
)
from duolog_server.store.moves import Place
from sim.bounded import STATES_MAX, Outcome, explored
from sim.movechecks import Checks
from sim.moveworld import (
    GROUPS,
    OPEN,
    PUT,
    TOPIC,
    At,
    Client,
    Former,
    Left,
    Log,
    Put,
    Record,
    Said,
    Scenario,
    Side,
    Step,
    World,
    at_of,
    place,
    record_of,
    seal_of,
)

REVISIONS_MAX = 100
UNASKED = frozenset({State.ASKING, State.REVOKING, State.SEALING})
LIVES = ".1"  # a former master, until it has had a move renewed

SCENARIOS = (
    Scenario("failovers", Left(failovers=(2, 1)), (1,)),
    Scenario("batches", Left(failovers=(1, 0)), (2, 1)),
    Scenario("zombies", Left(failovers=(1, 0), zombies=1, aborts=1), (1,)),
    Scenario("unclean", Left(unclean=(1, 0), failovers=(1, 0), zombies=1, lost_commits=0), (1,)),
    Scenario("targets", Left(unclean=(1, 0), failovers=(0, 1), zombies=1, lost_commits=0), ()),
    Scenario("guests", Left(unclean=(0, 1), lost_commits=0), (1,)),
    Scenario("both", Left(unclean=(1, 1), lost_commits=0), ()),
    Scenario("registry", Left(wipes=1, unclean=(1, 0)), (1,)),
    Scenario("rows", Left(moves=2, wipes=1, failovers=(0, 1), lost_commits=0), ()),
    Scenario("aborts", Left(moves=2, aborts=1, failovers=(0, 1), lost_commits=0), (1,)),
    Scenario("back", Left(moves=2, failovers=(1, 0), lost_commits=0), (1, 1)),
)
DEEP = (
    Scenario("failovers", Left(failovers=(2, 2)), (2, 1)),
    Scenario("zombies", Left(failovers=(2, 0), zombies=1, aborts=1), (1, 1)),
    Scenario("unclean", Left(unclean=(1, 0), failovers=(1, 0), zombies=1), (1,)),
    Scenario("registry", Left(wipes=1, failovers=(1, 0), unclean=(1, 0)), (1,)),
    Scenario("targets", Left(unclean=(1, 0), failovers=(0, 1), zombies=1, lost_commits=0), (1,)),
    Scenario("guests", Left(unclean=(0, 1), failovers=(1, 1), zombies=1, lost_commits=0), (1, 1)),
    Scenario("both", Left(moves=2, unclean=(1, 1), lost_commits=0), (1,)),
    Scenario("rows", Left(moves=2, wipes=2, failovers=(1, 1)), (1,)),
    Scenario("aborts", Left(moves=2, aborts=2, failovers=(1, 1), lost_commits=0), (1,)),
    Scenario("back", Left(moves=2, failovers=(1, 1), aborts=1), (1,)),
)


def _what(record: Record) -> tuple[int, int]:
    """The kind of a record of the target, and its move."""
    return record[0], record[3] if record[0] == OPEN else record[2] if len(record) > 2 else -1


class Model(Checks):
    """The successors of a state."""

    def __init__(self, scenario: Scenario) -> None:
        super().__init__(scenario)
        self._steps: dict[tuple[int, Event], tuple[int, tuple[Effect, ...]]] = {}
        self._served: dict[tuple[Log, int, int], Log | int] = {}
        self._firsts = [sum(scenario.batches[:n]) for n in range(len(scenario.batches) + 1)]

    def start(self) -> World:
        """The first state: queue 0 of group a, and a producer that sends to it."""
        world = World((Side(), Side()), self.pool.number(Seen()), left=self.scenario.left)
        return self._send(world)

    def epoch(self, left: Left, group: int) -> int:
        """The epoch of a group's master: every failover began one."""
        first = self.scenario.left
        unclean = first.unclean[group] - left.unclean[group]
        return 1 + first.failovers[group] - left.failovers[group] + unclean

    # -- what the machine does ---------------------------------------------------------------------

    def drive(self, world: World, group: int, event: Event) -> World:
        """Pass an event to a group's mover, and do what it says."""
        side = world.sides[group]
        mover, effects = self._step(side.mover, event)
        if mover != side.mover:
            world = self._with(world, group, mover=mover)
        for effect in effects:
            world = self._do(world, group, effect)
        return self._asked(world, group)

    def _asked(self, world: World, group: int) -> World:
        """A source's doubt ends once the other group's word is confirmed here."""
        side = world.sides[group]
        if not side.doubted or not side.settled or not side.mover:
            return world
        asked = self.mover(side.mover).state not in UNASKED
        return self._with(world, group, doubted=0) if asked else world

    def _step(self, number: int, event: Event) -> tuple[int, tuple[Effect, ...]]:
        """The next value of a mover; as it is pure, it is asked once."""
        found = self._steps.get((number, event))
        if found is None:
            mover, effects = self.mover(number).step(event)
            found = self._steps[number, event] = self.pool.number(mover), effects
        return found

    def _do(self, world: World, group: int, effect: Effect) -> World:
        side = world.sides[group]
        match effect:
            case Commit():
                return world.with_sent("commits", (group, self.pool.number(effect)))
            case Call(request):
                return world.with_sent("calls", (group, self.pool.number(request)))
            case Hold():
                queue = self.mover(side.mover).span.at.queue_id
                return self.drive(world, group, Held(self.end_of(side, queue)))
            case Append(seal, replaces):
                queue = self.mover(side.mover).span.at.queue_id
                record = seal_of(queue, seal, replaces)
                return self._with(world, group, log=(*side.log, record))
        return world

    @staticmethod
    def _with(world: World, group: int, **changes: Any) -> World:
        sides = list(world.sides)
        sides[group] = sides[group]._replace(**changes)
        return world._replace(sides=(sides[0], sides[1]))

    # -- what may happen ---------------------------------------------------------------------------

    def successors(self, world: World) -> Iterator[Step]:
        """Every event that may be the next one, and the state after it."""
        yield from self.fair(world)
        yield from self._operator(world)
        for group in (0, 1):
            yield from self._former(world, group)
            yield from self._failover(world, group)
        left = world.left
        if left.wipes and world.seen != self.pool.number(Seen()):
            yield (
                ("the registry loses its rows",),
                world._replace(
                    seen=self.pool.number(Seen()),
                    commits=(),
                    left=left._replace(wipes=left.wipes - 1),
                ),
            )
        if left.lost_commits:
            for commit in world.commits:
                done = self._commit(world, commit, answered=False)
                if done is not None:
                    after = done.left._replace(lost_commits=left.lost_commits - 1)
                    yield (*self._said(commit), "is lost its answer"), done._replace(left=after)

    def fair(self, world: World) -> Iterator[Step]:
        """What no fault is needed for."""
        for group in (0, 1):
            side = world.sides[group]
            if side.confirmed < len(side.log) or not side.settled:
                yield (GROUPS[group], "confirms"), self._confirm(world, group)
        for commit in world.commits:
            done = self._commit(world, commit, answered=True)
            if done is not None:
                yield self._said(commit), done
        for call in world.calls:
            yield (*self._said(call), "arrives"), self._serve(world, call)
        for group, number in world.replies:
            if world.sides[group].mover:
                reply: Reply = self.pool.values[number]
                yield (reply, "arrives"), self.drive(world, group, Answered(reply))
        for put in world.puts:
            yield (put, "arrives"), self._offer(world, put)
        for group in (0, 1):
            yield from self._by_itself(world, group)

    def _said(self, sent: tuple[int, int]) -> Said:
        return GROUPS[sent[0]] + "'s", self.pool.values[sent[1]]

    def _by_itself(self, world: World, group: int) -> Iterator[Step]:
        """A master tries again, looks at the row, or writes it anew."""
        side, seen = world.sides[group], self.seen(world)
        mover = self.mover(side.mover) if side.mover else None
        over = mover is None or mover.state in machine.OVER
        if not over and not any(by == group for by, _ in world.commits):
            yield (GROUPS[group], "tries again"), self.drive(world, group, Retry())
        if not side.settled:
            return
        confirmed = self.tables(side.log[: side.confirmed])
        for queue in self.queues(side.log, group):
            at = place((group, queue))
            row = movetarget.to_publish(confirmed, TOPIC, at, seen.row)
            if row is not None and row != seen.row:
                again = self.pool.number(Seen(row, self._revision(world)))
                yield (GROUPS[group], "publishes", row), world._replace(seen=again)
            sealed = self.tables(side.log).seal_of(TOPIC, queue) is not None
            if not over or (sealed and seen.row is not None and seen.row.at != at):
                continue
            start = machine.Start(self.epoch(world.left, group), self.tables(side.log), seen)
            found = machine.resume(start, TOPIC, at)
            if found is not None and found.state not in machine.OVER:
                noticed = self._with(world, group, mover=self.pool.number(found))
                yield (GROUPS[group], "sees", seen.row), self.drive(noticed, group, Settled())
        for queue, seal in self.tables(side.log).seals.get(TOPIC, {}).items():
            to = at_of(seal.following)
            if not self.is_open(world.sides[to[0]].log, to) and world.sides[to[0]].settled:
                said = (GROUPS[group], "tells of a consumer group", seal.following, "which is lost")
                yield said, self._lost(world, group, queue)
        row = seen.row
        mine = row is not None and not row.move and row.at.group == GROUPS[group]
        if row is not None and mine and not self.is_open(side.log[: side.confirmed], at_of(row.at)):
            gone = world._replace(seen=self.pool.number(Seen()), removed=world.removed + 1)
            yield (GROUPS[group], "removes", row), gone

    def _operator(self, world: World) -> Iterator[Step]:
        left = world.left
        for group in (0, 1):
            side = world.sides[group]
            mover = self.mover(side.mover) if side.mover else None
            if left.moves and side.settled and (mover is None or mover.state in machine.OVER):
                for queue in self.queues(side.log, group):
                    opened = self.takes_puts(side.log[: side.confirmed], queue)
                    if opened and self.takes_puts(side.log, queue):
                        yield self._begin(world, (group, queue))
            if left.aborts and mover is not None and mover.state not in machine.OVER:
                ended = self.drive(world, group, Abort())
                if ended != world:
                    after = left._replace(aborts=left.aborts - 1)
                    yield (GROUPS[group], "aborts"), ended._replace(left=after)

    def _begin(self, world: World, at: At) -> Step:
        group, left = at[0], world.left
        number = 1 + self.scenario.left.moves - left.moves
        move = machine.move_id(GROUPS[group], self.epoch(left, group), number)
        span = Span.of(self.tables(world.sides[group].log), TOPIC, place(at))
        mover, effects = machine.begin(span, GROUPS[1 - group], move, self.seen(world))
        world = self._with(world, group, mover=self.pool.number(mover))
        for effect in effects:
            world = self._do(world, group, effect)
        return (f"{move} of {place(at)}", "begins"), world._replace(
            left=left._replace(moves=left.moves - 1)
        )

    # -- logs --------------------------------------------------------------------------------------

    def _confirm(self, world: World, group: int) -> World:
        side = world.sides[group]
        settled = bool(side.settled)
        world = self._with(world, group, confirmed=len(side.log), settled=1, ghost=())
        if not side.mover:
            return world
        if not settled:
            world = self.drive(world, group, Settled())
        mover = self.mover(side.mover)
        if mover.state is State.SEALING and mover.end >= 0:
            world = self.drive(world, group, Sealed())
        return self._asked(world, group)

    def _failover(self, world: World, group: int) -> Iterator[Step]:
        side, left, name = world.sides[group], world.left, GROUPS[group]
        former = Former(side.log, side.confirmed, side.mover)
        if left.failovers[group]:
            fewer = tuple(n - (i == group) for i, n in enumerate(left.failovers))
            after = left._replace(failovers=(fewer[0], fewer[1]))
            ends = {side.log[:k] for k in range(side.confirmed, len(side.log) + 1)}
            if side.ghost:
                ends |= {side.ghost[:k] for k in range(side.confirmed, len(side.ghost) + 1)}
            for log in sorted(ends):
                others = [one for one in (side.log, side.ghost) if log[: len(one)] != one]
                ghost = max(others, key=len, default=())
                new = side._replace(log=log, ghost=ghost, settled=0, former=None)
                yield (name, "fails over with", log), self._lead(world, group, new, after)
                if left.zombies:
                    new = new._replace(former=former)
                    fewer_left = after._replace(zombies=left.zombies - 1)
                    said = (name, "fails over with", log, "and the former master lives on")
                    yield said, self._lead(world, group, new, fewer_left)
        if left.unclean[group]:
            sent = min(world.client.batch + 1, len(self.scenario.batches))
            for kept in range(side.confirmed):
                log = side.log[:kept]
                gone = {r[2] for r in side.log[kept : side.confirmed] if r[0] == PUT}
                new = Side(log, kept, 0, former=former if left.zombies else None, doubted=1)
                fewer = tuple(n - (i == group) for i, n in enumerate(left.unclean))
                after = left._replace(unclean=(fewer[0], fewer[1]))
                lost = tuple(sorted(gone | set(world.lost)))
                set_back = world._replace(lost=lost, unsure=self._firsts[sent])
                if group == 1:  # a backup takes longer than calls do
                    set_back = set_back._replace(calls=(), replies=())
                led = self._lead(set_back, group, new, after)
                yield (name, "fails over uncleanly with", log), led

    def _lead(self, world: World, group: int, side: Side, left: Left) -> World:
        """A new master takes up what its log and the row say."""
        epoch, tables = self.epoch(left, group), self.tables(side.log)
        start = machine.Start(epoch, tables, self.seen(world))
        found = [
            mover
            for queue in self.queues(side.log, group)
            if (mover := machine.resume(start, TOPIC, place((group, queue))))
        ]
        found.sort(key=lambda mover: mover.state in machine.OVER)
        side = side._replace(mover=self.pool.number(found[0] if found else None))
        commits = tuple(one for one in world.commits if one[0] != group)  # they check the lock
        world = self._with(world, group, **side._asdict())
        return world._replace(commits=commits, left=left)

    # -- the registry and the calls ----------------------------------------------------------------

    def _revision(self, world: World) -> int:
        """The next one; those of before a loss of rows do not come again."""
        gone = self.scenario.left.wipes - world.left.wipes + world.removed
        return 1 + (self.seen(world).revision or REVISIONS_MAX * gone)

    def _commit(self, world: World, sent: tuple[int, int], answered: bool) -> World | None:
        """A commit is executed; None: unanswered, and without an effect."""
        group, number = sent
        commit: Commit = self.pool.values[number]
        seen = self.seen(world)
        rest = world._replace(commits=tuple(one for one in world.commits if one != sent))
        if commit.revision != seen.revision:
            return self.drive(rest, group, Conflict(seen)) if answered else None
        written = Seen(commit.row, self._revision(world))
        rest = rest._replace(seen=self.pool.number(written))
        answer = Committed(commit.row, written.revision)
        return self.drive(rest, group, answer) if answered else rest

    def _serve(self, world: World, call: tuple[int, int]) -> World:
        """A request reaches the other group's master."""
        asks, number = call
        target = 1 - asks
        side = world.sides[target]
        if not side.settled:
            return world
        found = self._answer(side, target, number)
        if isinstance(found, int):
            return world.with_sent("replies", (asks, found))
        return world if found == side.log else self._with(world, target, log=found)

    def _answer(self, side: Side | Former, target: int, number: int) -> Log | int:
        """The reply's number, or the log with what makes one."""
        key = (side.log, side.confirmed, number)
        found = self._served.get(key)
        if found is None:
            found = self._served[key] = self._ask(side, target, self.pool.values[number])
        return found

    def _ask(self, side: Side | Former, target: int, request: Request) -> Log | int:
        confirmed = self.tables(side.log[: side.confirmed])
        reply = movetarget.reply_to(confirmed, TOPIC, GROUPS[target], request)
        if reply is not None:
            return self.pool.number(reply)
        next_id = 1 + max((record[1] for record in side.log), default=0)
        records = [
            record_of(one) for one in movetarget.records_for(confirmed, TOPIC, request, next_id)
        ]
        waiting = {_what(record) for record in side.log[side.confirmed :]}
        again = any(_what(record) in waiting for record in records)
        return side.log if again else (*side.log, *records)

    def _former(self, world: World, group: int) -> Iterator[Step]:
        """The former master takes answers, sends calls, and answers; it stores nothing."""
        former = world.sides[group].former
        if former is None:
            return
        for asks, call in world.calls:
            found = self._answer(former, group, call) if asks != group else ()
            if not isinstance(found, int) or (asks, found) in world.replies:
                continue
            reply = self.pool.values[found]
            if not movetarget.is_absence(reply):
                answered = world.with_sent("replies", (asks, found))
                yield ("the former master of", GROUPS[group], "answers", reply), answered
        if not former.mover or self.mover(former.mover).move.endswith(LIVES):
            return
        before = self.mover(former.mover)
        replies = [self.pool.values[reply] for by, reply in world.replies if by == group]
        events: list[Event] = [*(Answered(reply) for reply in replies), Retry()]
        for event in events:
            mover, effects = self._step(former.mover, event)
            after = self._with(world, group, former=former._replace(mover=mover))
            for effect in effects:
                if isinstance(effect, Call):
                    after = self._do(after, group, effect)
            yield ("the former master of", GROUPS[group], "takes", event), after
        if before.moved_to is not None:
            for put in world.puts:
                if put.at == at_of(before.span.at):
                    _, entries = self.entries(former.log, put.at[1])
                    if put.first not in entries:
                        went = self.moved(world, put, 0, before.moved_to)
                        yield ("the former master of", GROUPS[group], "answers", put), went

    # -- the producer, and what a node does with its puts ------------------------------------------

    def _send(self, world: World) -> World:
        client = world.client
        if client.batch >= len(self.scenario.batches):
            return world
        end = self._firsts[client.batch + 1]
        put = Put(client.first, end - client.first, client.at)
        return world.with_sent("puts", put)

    def _offer(self, world: World, put: Put) -> World:
        """A put reaches the master of its place."""
        group, queue = put.at
        side = world.sides[group]
        entries = self.entries(side.log, queue)[1]
        wanted = range(put.first, put.first + put.messages)
        stored = sum(message in entries for message in wanted)  # a crash keeps the first ones
        mover = self.mover(side.mover) if side.mover else None
        if mover is not None and mover.span.at != place(put.at):
            mover = None
        if not self.is_open(side.log, put.at):
            return self._unknown(world, put)
        if stored == put.messages:
            return self.stored(world, put, stored)
        if mover is not None and mover.moved_to is not None:
            return self.moved(world, put, stored, mover.moved_to)
        holds = mover is not None and mover.holds
        if holds or not self.takes_puts(side.log, queue):
            return world
        records = tuple((PUT, queue, message) for message in wanted[stored:])
        return self._with(world, group, log=(*side.log, *records))

    def _unknown(self, world: World, put: Put) -> World:
        """What was passed on comes back: the place is not there any more, or not yet."""
        client, group = world.client, 1 - put.at[0]
        seals = self.tables(world.sides[group].log).seals.get(TOPIC, {})
        before = [queue for queue, seal in seals.items() if seal.following == place(put.at)]
        if not world.sides[group].settled:
            return world
        if before:
            world = self._lost(world, group, before[0])
        if (put.first, put.at) != (client.first, client.at):
            return world
        at = (group, before[0]) if before else (0, 0)
        return self._send(world._replace(client=client._replace(at=at)))

    def _lost(self, world: World, group: int, queue: int) -> World:
        """A master hears that the place behind a seal is not there."""
        side = world.sides[group]
        mover = self.mover(side.mover) if side.mover else None
        if mover is None or mover.state in machine.OVER:
            epoch = self.epoch(world.left, group)
            start = machine.Start(epoch, self.tables(side.log), Seen())
            found = machine.resume(start, TOPIC, place((group, queue)))
            return self.drive(
                self._with(world, group, mover=self.pool.number(found)), group, Settled()
            )
        return self.drive(world, group, Lost()) if mover.span.at.queue_id == queue else world

    def receipts_of(self, world: World, put: Put, stored: int) -> list[tuple[int, int, int]] | None:
        """Where the first messages of a batch are; None: not all of them are confirmed."""
        group, queue = put.at
        side = world.sides[group]
        first, entries = self.entries(side.log[: side.confirmed], queue)
        wanted = range(put.first, put.first + stored)
        if not side.settled or any(message not in entries for message in wanted):
            return None
        return [(group, queue, first + entries.index(message)) for message in wanted]

    def stored(self, world: World, put: Put, stored: int) -> World:
        """PUT_OK, once all of it is confirmed."""
        client, receipts = world.client, self.receipts_of(world, put, stored)
        if receipts is None or (put.first, put.at) != (client.first, client.at):
            return world
        batch = client.batch + 1
        known = (*client.receipts, *receipts)
        return self._send(
            world._replace(client=Client(batch, self._firsts[batch], client.at, known))
        )

    def moved(self, world: World, put: Put, stored: int, to: Place) -> World:
        """MOVED: the first ones are stored here, the rest goes to another place."""
        client, receipts = world.client, self.receipts_of(world, put, stored)
        if receipts is None or (put.first, put.at) != (client.first, client.at):
            return world
        known = (*client.receipts, *receipts)
        rest = client._replace(first=client.first + stored, at=at_of(to), receipts=known)
        return self._send(world._replace(client=rest))

    def calmed(self, world: World) -> World:
        """After the last fault: nothing may rely on what is on its way."""
        return world._replace(calls=(), replies=(), commits=())


def explore(scenario: Scenario, states_max: int = STATES_MAX) -> Outcome:
    """Visit the states of a scenario."""
    model = Model(scenario)
    return explored(model, model.start(), states_max)._replace(reached=model.reached())


def report(scenario: Scenario, outcome: Outcome, seconds: float) -> str:
    """An outcome, as it is printed."""
    head = f"{scenario.name}: {outcome.states} states in {seconds:.1f} s of processor time"
    if not outcome.violation:
        return f"{head}, no violation"
    return "\n".join([f"{head}: {outcome.violation}", *(f"  {said}" for said in outcome.trace)])


def main(arguments: list[str] | None = None) -> int:
    """Explore; the status is 1 where an invariant does not hold."""
    parser = argparse.ArgumentParser(prog="python -m sim.movemodel", description=__doc__)
    parser.add_argument("--deep", action="store_true", help="with larger bounds")
    parser.add_argument("--only", default="", help="one scenario")
    chosen = parser.parse_args(arguments)
    failed = 0
    for scenario in DEEP if chosen.deep else SCENARIOS:
        if chosen.only in ("", scenario.name):
            began = time.process_time()
            outcome = explore(scenario)
            print(report(scenario, outcome, time.process_time() - began), flush=True)
            failed |= bool(outcome.violation)
    return failed


if __name__ == "__main__":
    sys.exit(main())
