"""What must hold of a queue's move: the invariants of every state, and of every end."""

from duolog_server.ha.mover import OVER, State
from duolog_server.ha.moverevents import Commit, Retry
from duolog_server.store.moves import Place
from sim.moveworld import (
    GROUPS,
    GUEST,
    OPEN,
    PUT,
    SEAL,
    TOPIC,
    At,
    Log,
    Reading,
    Scenario,
    World,
    at_of,
    number_of,
    place,
)

SPANS_MAX = 4


class Checks(Reading):
    """What is wrong with a state."""

    def __init__(self, scenario: Scenario) -> None:
        super().__init__(scenario)
        self._broken_logs: dict[tuple[Log, int, Log, int, tuple[int, ...], int, bool], str] = {}

    def broken(self, world: World) -> str:
        """The first violated invariant; empty if all hold."""
        a, b = world.sides
        key = (
            a.log,
            a.confirmed,
            b.log,
            b.confirmed,
            world.lost,
            world.unsure,
            self._unsure(world),
        )
        found = self._broken_logs.get(key)
        if found is None:
            found = self._broken_logs[key] = self._broken_of_logs(world)
        if not found and a.ghost:
            found = self._broken_log(a.ghost)
        return found or self._broken_of_masters(world) or self._broken_receipts(world)

    @staticmethod
    def _unsure(world: World) -> bool:
        """Whether a group was set back: until the end, both may take puts."""
        return any(side.doubted for side in world.sides)

    def _broken_of_logs(self, world: World) -> str:
        for side in world.sides:
            found = self._broken_log(side.log)
            if found:
                return found
        return self._broken_opens(world) or self._broken_chain(world)

    def _broken_log(self, log: Log) -> str:
        sealed: dict[int, int] = {}
        guests: dict[int, int] = {0: 0}
        opened: set[int] = {0}
        for record in log:
            kind, queue = record[0], record[1]
            if kind == SEAL and queue not in sealed:
                sealed[queue] = record[2]
            elif kind == GUEST:
                if guests.setdefault(queue, record[2]) != record[2]:
                    return f"M12: queue {queue} is used for two spans"
            elif kind == OPEN:
                opened.add(queue)
            elif kind == PUT and queue in sealed:
                return f"M3: message {record[2]} is stored in sealed queue {queue}"
            elif kind == PUT and queue not in opened:
                return f"M4: message {record[2]} is stored in closed queue {queue}"
        return ""

    def _broken_opens(self, world: World) -> str:
        """Each guest that has begun continues a confirmed seal at its end."""
        for group in (0, 1):
            source = world.sides[1 - group]
            confirmed = source.log[: source.confirmed]
            seals = {r[5]: r[6] for r in confirmed if r[0] == SEAL}
            tables = self.tables(world.sides[group].log)
            for guest in tables.guests.get(TOPIC, {}).values():
                if guest.first is None or self._unsure(world):
                    continue
                end = seals.get(number_of(guest.move))
                if end is None:
                    return f"M1: move {guest.move} has begun, and its seal is not confirmed"
                if end != guest.first:
                    return f"M2: sealed at {end}, begun at {guest.first}"
        return ""

    def _broken_chain(self, world: World) -> str:
        """The messages of the name: once each, in order, without gaps between spans."""
        at, expected, chain = (0, 0), 0, list[int]()
        for _ in range(SPANS_MAX):
            side = world.sides[at[0]]
            confirmed = side.log[: side.confirmed]
            first, entries = self.entries(confirmed, at[1])
            if entries and first != expected:
                return f"M2: {place(at)} begins at {first}, the span before says {expected}"
            seal = self.tables(confirmed).seal_of(TOPIC, at[1])
            chain += entries
            if seal is None:
                break
            if seal.end != first + len(entries):
                return f"M2: {place(at)} is sealed at {seal.end} and has {len(entries)} entries"
            at, expected = at_of(seal.following), seal.first
        found = [one for one in chain if one not in world.lost and one >= world.unsure]
        if len(set(found)) < len(found):
            return f"M5: a message is stored twice: {found}"
        if sorted(found) != found:
            return f"M6: stored out of order: {found}"
        return ""

    def _broken_of_masters(self, world: World) -> str:
        for group in (0, 1):
            side = world.sides[group]
            mover = self.mover(side.mover) if side.mover else None
            set_back = world.left.unclean[1 - group] < self.scenario.left.unclean[1 - group]
            if mover is not None and mover.state is State.RENEWING and not set_back:
                return f"M1: {mover.move} has no guest, and {GROUPS[1 - group]} lost nothing"
            if mover is not None and mover.holds:
                effects = mover.step(Retry())[1]
                if any(isinstance(effect, Commit) for effect in effects):
                    return "a pause waits for the registry"
        if self._unsure(world):
            return ""
        accepting = self._accepting(world)
        if len(accepting) > 1:
            return f"M1: puts are accepted at {accepting}"
        return self._broken_row(world)

    def _accepting(self, world: World) -> list[Place]:
        """The places that take puts."""
        accepting = []
        for group in (0, 1):
            side = world.sides[group]
            mover = self.mover(side.mover) if side.mover else None
            for queue in self.queues(side.log, group):
                at = place((group, queue))
                mine = mover is not None and mover.span.at == at
                stopped = mine and mover is not None and (mover.holds or mover.moved_to)
                if self.takes_puts(side.log, queue) and not stopped:
                    accepting.append(at)
        return accepting

    def _broken_row(self, world: World) -> str:
        row = self.seen(world).row
        if row is None:
            return ""
        side = world.sides[at_of(row.at)[0]]
        if not self.is_open(side.log[: side.confirmed], at_of(row.at)):
            return f"M10: {row} says more than the logs"
        return ""

    def _broken_receipts(self, world: World) -> str:
        for message, (group, queue, offset) in enumerate(world.client.receipts):
            if message in world.lost:
                continue
            side = world.sides[group]
            first, entries = self.entries(side.log[: side.confirmed], queue)
            if not 0 <= offset - first < len(entries) or entries[offset - first] != message:
                return f"M5: message {message} was acknowledged at {offset} of {queue}, and is not"
        return ""

    def _entries(self, world: World, at: At) -> list[int]:
        return self.entries(world.sides[at[0]].log, at[1])[1]

    def broken_end(self, world: World) -> str:
        """What is wrong with a state in which nothing happens any more."""
        if world.client.batch < len(self.scenario.batches):
            return f"M14: message {world.client.first} is never stored"
        at: At = (0, 0)
        chain = set(self._entries(world, at))
        for _ in range(SPANS_MAX):
            side = world.sides[at[0]]
            seal = self.tables(side.log).seal_of(TOPIC, at[1])
            if seal is None:
                break
            at = at_of(seal.following)
            chain.update(self._entries(world, at))
        if self._accepting(world) != [place(at)]:
            return f"M1: puts are accepted at {self._accepting(world)}, and the name ends at {at}"
        if lacking := {*range(world.client.first)} - chain - {*world.lost}:
            return f"M5: messages {lacking} cannot be read"
        row = self.seen(world).row
        if row is not None and (row.move or row.at != place(at)):
            return f"M10: the name ends at {place(at)}, and {row} stays"
        if row is None and at != (0, 0):
            return f"M10: the name ends at {place(at)}, and no row says so"
        for group in (0, 1):
            side = world.sides[group]
            if side.mover and self.mover(side.mover).state not in OVER:
                return f"M14: {self.mover(side.mover)} does not end"
            guests = self.tables(side.log).guests.get(TOPIC, {})
            begun = {guest.came_from for guest in guests.values() if guest.first is not None}
            for queue, guest in guests.items():
                if guest.first is None and not guest.revoked and guest.came_from not in begun:
                    return f"M14: guest {queue} of {GROUPS[group]} is neither opened nor revoked"
        return ""
