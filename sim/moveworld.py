"""States of a queue's move: two groups' logs and masters, a registry, calls, a producer.

A state is a tuple of numbers as far as possible; what the machines hold is in a pool, so that
states are small. `Reading` is what a log says, by the real tables of `store/moves.py`.
"""

from typing import Any, NamedTuple

from duolog_server.ha.mover import Mover, move_id
from duolog_server.ha.moverevents import Seen
from duolog_server.store.moves import Guest, Moves, Place, Seal, guest_record, seal_record

TOPIC = "t"
GROUPS = ("a", "b")
KINDS = ("put", "seal", "guest", "open", "revoke")
PUT, SEAL, GUEST, OPEN, REVOKE = range(len(KINDS))
EPOCHS_MAX = MOVES_MAX = 10

Record = tuple[int, ...]  # kind, queue id, fields
Log = tuple[Record, ...]
Said = tuple[Any, ...]  # what happened, as parts: most are never printed
At = tuple[int, int]  # group, queue id


class Put(NamedTuple):
    """A batch on its way: so many messages from the first one on, to a place."""

    first: int
    messages: int
    at: At


class Former(NamedTuple):
    """A former master that lives on: its log, how far it knows it confirmed, its mover."""

    log: Log = ()
    confirmed: int = 0
    mover: int = 0


class Side(NamedTuple):
    """A group. ghost: the log of another member of the set, until this master has confirmed.

    mover: of its master. doubted: confirmed records were lost, and may not be made good yet.
    """

    log: Log = ()
    confirmed: int = 0
    settled: int = 1
    ghost: Log = ()
    mover: int = 0
    former: Former | None = None
    doubted: int = 0


class Left(NamedTuple):
    """What may still happen."""

    moves: int = 1
    failovers: tuple[int, int] = (0, 0)
    zombies: int = 0
    unclean: tuple[int, int] = (0, 0)
    wipes: int = 0
    aborts: int = 0
    lost_commits: int = 1


class Client(NamedTuple):
    """A producer: the batch that it sends, what of it is not stored yet, where, and receipts."""

    batch: int = 0
    first: int = 0
    at: At = (0, 0)
    receipts: tuple[tuple[int, int, int], ...] = ()  # group, queue id, offset of each message


class World(NamedTuple):
    """A state; numbers stand for values of the machine."""

    sides: tuple[Side, Side]
    seen: int
    commits: tuple[tuple[int, int], ...] = ()  # group, commit
    calls: tuple[tuple[int, int], ...] = ()  # group that asks, request
    replies: tuple[tuple[int, int], ...] = ()  # group that asked, reply
    puts: tuple[Put, ...] = ()
    client: Client = Client()
    lost: tuple[int, ...] = ()  # messages whose confirmed record an unclean election lost
    unsure: int = (
        0  # messages first sent before the last one: what was set back may take them twice
    )
    removed: int = 0  # rows
    left: Left = Left()

    def with_sent(self, kind: str, new: Any) -> "World":
        """This state after one more commit, call, reply or put was sent."""
        known = getattr(self, kind)
        if new in known:
            return self
        sent: dict[str, Any] = {kind: tuple(sorted((*known, new)))}
        return self._replace(**sent)


Step = tuple[Said, World]


class Scenario(NamedTuple):
    """Bounds of an exploration. batches: the sizes of what the producer sends."""

    name: str
    left: Left
    batches: tuple[int, ...] = (1, 1)


class Pool:
    """Numbers for values, so that states are small; 0 is None."""

    def __init__(self) -> None:
        self._numbers: dict[Any, int] = {None: 0}
        self.values: list[Any] = [None]

    def number(self, value: Any) -> int:
        """The number of a value; equal values have the same one."""
        known = self._numbers.get(value)
        if known is None:
            known = self._numbers[value] = len(self.values)
            self.values.append(value)
        return known


def place(at: At) -> Place:
    """A place as the machine names it."""
    return Place(GROUPS[at[0]], at[1])


def at_of(place_: Place) -> At:
    """The other way round."""
    return GROUPS.index(place_.group), place_.queue_id


def move_name(number: int) -> str:
    """The id of a move."""
    times, number = divmod(number, len(GROUPS) * EPOCHS_MAX * MOVES_MAX)
    group, rest = divmod(number, EPOCHS_MAX * MOVES_MAX)
    move = move_id(GROUPS[group], *divmod(rest, MOVES_MAX))
    return f"{move}.{times}" if times else move


def number_of(move: str) -> int:
    """The other way round."""
    group, epoch, rest = move.split("-")
    number, _, times = rest.partition(".")
    at = len(GROUPS) * int(times or 0) + GROUPS.index(group)
    return (at * EPOCHS_MAX + int(epoch)) * MOVES_MAX + int(number)


def seal_of(queue: int, seal: Seal, replaces: str) -> Record:
    """A seal as numbers."""
    before = number_of(replaces) if replaces else -1
    return SEAL, queue, seal.end, *at_of(seal.following), number_of(seal.move), seal.first, before


def record_of(change: dict[str, Any]) -> Record:
    """A metadata record of the target as numbers."""
    queue, move = int(change["queue"]), number_of(change["move"])
    if change["op"] == "guest":
        name, came_from = Place(change["group"], change["of"]), Place(*change["from"])
        return (GUEST, queue, move, *at_of(name), *at_of(came_from))
    if change["op"] == "open":
        return (OPEN, queue, int(change["first"]), move)
    return (REVOKE, queue, move)


def change_of(record: Record) -> dict[str, Any]:
    """The other way round, for the tables."""
    kind, queue, *fields = record
    if kind == SEAL:
        end, group, to, move, first, before = fields
        seal = Seal(end, Place(GROUPS[group], to), move_name(move), first)
        return seal_record(TOPIC, queue, seal, move_name(before) if before >= 0 else "")
    if kind == GUEST:
        move, group, of, from_group, from_queue = fields
        name, came_from = Place(GROUPS[group], of), Place(GROUPS[from_group], from_queue)
        return guest_record(TOPIC, queue, Guest(name, came_from, move_name(move)))
    change: dict[str, Any] = {"topic": TOPIC, "queue": queue}
    if kind == OPEN:
        change["first"], move = fields
    else:
        (move,) = fields
    return change | {"move": move_name(move)}


class Reading:
    """What a state says: its logs, by the tables of a node, its masters and its row."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.pool = Pool()
        self._tables: dict[Log, Moves] = {}

    def tables(self, log: Log) -> Moves:
        """The tables of a log."""
        moves = self._tables.get(log)
        if moves is None:
            moves = Moves()
            for record in log:
                match record[0]:
                    case 1:
                        moves.apply_seal(change_of(record))
                    case 2:
                        moves.apply_guest(change_of(record))
                    case 3:
                        moves.apply_open(change_of(record))
                    case 4:
                        moves.apply_revoke(change_of(record))
            self._tables[log] = moves
        return moves

    def takes_puts(self, log: Log, queue: int) -> bool:
        """Whether the store takes puts, as far as its log says."""
        return self.tables(log).closed(TOPIC, queue) is None

    def is_open(self, log: Log, at: At) -> bool:
        """Whether a place carries the name, or carried it."""
        return at == (0, 0) or self.tables(log).first_of(TOPIC, at[1]) is not None

    def entries(self, log: Log, queue: int) -> tuple[int, list[int]]:
        """The first offset of a queue, and its messages."""
        guest = self.tables(log).guest_of(TOPIC, queue)
        first = (guest.first or 0) if guest is not None else 0
        return first, [record[2] for record in log if record[0] == PUT and record[1] == queue]

    def end_of(self, side: Side, queue: int) -> int:
        """The next offset of a queue, as its node tells the mover."""
        first, entries = self.entries(side.log, queue)
        return first + len(entries)

    def queues(self, log: Log, group: int) -> list[int]:
        """The queues of a group that ever were anything; b's own one is not used."""
        found = {record[1] for record in log}
        return sorted(found | {0} if group == 0 else found)

    def reached(self) -> frozenset[str]:
        """The states of movers and the kinds of records that there were so far."""
        movers = {one.state.value for one in self.pool.values if isinstance(one, Mover)}
        return frozenset(movers | {KINDS[record[0]] for log in self._tables for record in log})

    def mover(self, number: int) -> Mover:
        """The mover of a number."""
        found = self.pool.values[number]
        assert isinstance(found, Mover)
        return found

    def seen(self, world: World) -> Seen:
        """The row of a state."""
        found = self.pool.values[world.seen]
        assert isinstance(found, Seen)
        return found
