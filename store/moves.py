"""Moves: queues that are sealed here and continue elsewhere, and guests, which carry on others'.

The name of a queue is the place of its birth. A place that carries a span of another name is a
guest: reserved first, closed to puts and readers, then opened at the offset at which the span
before it was sealed; or revoked, which uses up its id. Records in the log say so. Of those that
contradict each other the first one counts: a log may hold those of a master that the next one did
not know.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from duolog_server.store.queueends import QueueKey

Json = dict[str, Any]


class Place(NamedTuple):
    """A queue of a replica group."""

    group: str
    queue_id: int

    def __str__(self) -> str:
        """As commands take and show it."""
        return f"{self.group}/{self.queue_id}"


@dataclass(frozen=True, slots=True)
class Seal:
    """A queue ends at an offset, and continues elsewhere.

    first: the offset at which the next place begins. It is the end, but for a log that had lost its
    seal: what it stored since lies beside that place, or what it lost lies before it.
    """

    end: int
    following: Place
    move: str
    first: int = -1  # as it is passed: the end

    def __post_init__(self) -> None:
        """The next place begins where this one ends."""
        if self.first < 0:
            object.__setattr__(self, "first", self.end)


@dataclass(frozen=True, slots=True)
class Guest:
    """A queue that carries on another one. first: its first offset; None: it is reserved."""

    name: Place
    came_from: Place
    move: str
    first: int | None = None
    revoked: bool = False


class Resets(NamedTuple):
    """The resets of a consumer group in a queue: see `store.crossing.Progress`."""

    number: int = 0
    going_back: int | None = None


class Closed(NamedTuple):
    """Why a queue takes no messages, and where it continues; None: not known here."""

    reason: str
    following: Place | None


@dataclass(slots=True)
class Moves:
    """Seals and guests, by topic and queue id; resets across them, by topic, group and queue id.

    gone: replica groups that have left for good. Nobody comes from there any more.
    """

    seals: dict[str, dict[int, Seal]] = field(default_factory=dict)
    guests: dict[str, dict[int, Guest]] = field(default_factory=dict)
    resets: dict[tuple[str, str], dict[int, Resets]] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)

    def seal_of(self, topic: str, queue_id: int) -> Seal | None:
        """The seal of a queue."""
        return self.seals.get(topic, {}).get(queue_id)

    def guest_of(self, topic: str, queue_id: int) -> Guest | None:
        """What a queue carries on; None for a queue that is a name."""
        return self.guests.get(topic, {}).get(queue_id)

    def follows(self, topic: str, queue_id: int) -> bool:
        """Whether a queue is a guest, to which consumer groups come from the place before it."""
        guest = self.guest_of(topic, queue_id)
        return guest is not None and guest.came_from.group not in self.gone

    def first_of(self, topic: str, queue_id: int) -> int | None:
        """The first offset of an open guest."""
        guest = self.guest_of(topic, queue_id)
        return guest.first if guest is not None else None

    def reserved_by(self, topic: str, move: str) -> tuple[int, Guest] | None:
        """The guest that a move reserved, whatever became of it."""
        found = self.guests.get(topic, {}).items()
        return next(((queue_id, one) for queue_id, one in found if one.move == move), None)

    def begun_from(self, topic: str, place: Place) -> tuple[int, Guest] | None:
        """The guest that continues a place, once it is open."""
        found = self.guests.get(topic, {}).items()
        begun = (row for row in found if row[1].came_from == place and row[1].first is not None)
        return next(begun, None)

    def open_guests(self, topic: str) -> list[int]:
        """The open guests of a topic, by their ids."""
        guests = self.guests.get(topic, {}).items()
        return sorted(queue_id for queue_id, guest in guests if guest.first is not None)

    def later_here(self, group: str, topic: str, queue_id: int) -> list[int]:
        """The later queues of this group that carry the name of one, in their order.

        group: this one. A queue that comes back has a higher id than all before it.
        """
        guests = self.guests.get(topic, {})
        guest = guests.get(queue_id)
        name = guest.name if guest is not None else Place(group, queue_id)
        return sorted(
            one
            for one, span in guests.items()
            if one > queue_id and span.name == name and span.first is not None
        )

    def opened(self) -> Iterator[tuple[QueueKey, int]]:
        """The open guests, and their first offsets."""
        for topic, guests in self.guests.items():
            for queue_id, guest in guests.items():
                if guest.first is not None:
                    yield (topic, queue_id), guest.first

    def closed(self, topic: str, queue_id: int) -> Closed | None:
        """Why a queue takes no messages, None if it does."""
        seal, guest = self.seal_of(topic, queue_id), self.guest_of(topic, queue_id)
        if seal is not None:
            to = seal.following
            reason = f"queue {topic}/{queue_id} ends at {seal.end}, and continues at {to}"
            return Closed(reason, to)
        if guest is None or guest.first is not None:
            return None
        why = "never was opened" if guest.revoked else "is not open yet"
        return Closed(f"queue {topic}/{queue_id} is there for a move, and {why}", None)

    # -- changes -------------------------------------------------------------------------------

    def apply_seal(self, change: Json) -> None:
        """Seal a queue; or, once the place behind a seal was lost, name another one."""
        end, to = _offset(change["end"]), _place(change["group"], change["to"])
        seal = Seal(end, to, _move(change), _offset(change.get("first", end)))
        topic, queue_id = _key(change)
        seals = self.seals.setdefault(topic, {})
        known = seals.setdefault(queue_id, seal)
        if known.move == change.get("replaces"):
            seals[queue_id] = replace(seal, end=known.end)

    def apply_guest(self, change: Json) -> None:
        """Reserve a guest."""
        (topic, queue_id), move = _key(change), _move(change)
        guest = Guest(_place(change["group"], change["of"]), _place(*change["from"]), move)
        if self.reserved_by(topic, move) is None:
            self.guests.setdefault(topic, {}).setdefault(queue_id, guest)

    def apply_open(self, change: Json) -> None:
        """Open a reserved guest; a place is continued by one."""
        guest = self.guest_of(*_key(change))
        if guest is not None and self.begun_from(str(change["topic"]), guest.came_from) is None:
            self._settle(change, first=_offset(change["first"]))

    def apply_revoke(self, change: Json) -> None:
        """Give up a reserved guest."""
        self._settle(change, revoked=True)

    def apply_gone(self, change: Json) -> list[QueueKey]:
        """A replica group has left: the guests that came from there."""
        name = str(change["replica_group"])
        self.gone.add(name)
        return [
            (topic, queue_id)
            for topic, guests in self.guests.items()
            for queue_id, guest in guests.items()
            if guest.came_from.group == name
        ]

    def _settle(self, change: Json, **how: Any) -> None:
        (topic, queue_id), move = _key(change), _move(change)
        guest = self.guest_of(topic, queue_id)
        if guest is not None and guest.move == move and guest.first is None and not guest.revoked:
            self.guests[topic][queue_id] = replace(guest, **how)

    def forget(self, topic: str) -> None:
        """Forget a topic that was deleted, or is made again."""
        self.seals.pop(topic, None)
        self.guests.pop(topic, None)
        self.forget_resets(lambda key: key[0] == topic)

    def forget_resets(self, gone: Callable[[tuple[str, str]], bool]) -> None:
        """Forget the resets of a topic, or of a consumer group. gone: of a topic and a group."""
        for key in [key for key in self.resets if gone(key)]:
            del self.resets[key]

    # -- snapshots -----------------------------------------------------------------------------

    def rows(self) -> Json:
        """A copy for a snapshot; `from_rows` reads it. Empty if nothing ever moved."""
        seals = {
            topic: {
                str(q): [one.end, *one.following, one.move, *_first_of(one)]
                for q, one in sorted(rows.items())
            }
            for topic, rows in sorted(self.seals.items())
        }
        guests = {
            topic: {
                str(q): [*one.name, *one.came_from, one.move, one.first, one.revoked]
                for q, one in sorted(rows.items())
            }
            for topic, rows in sorted(self.guests.items())
        }
        resets = {
            f"{topic}@{group}": {str(q): list(one) for q, one in sorted(rows.items())}
            for (topic, group), rows in sorted(self.resets.items())
        }
        found: Json = {"seals": seals, "guests": guests} if seals or guests else {}
        if self.gone:
            found["gone"] = sorted(self.gone)
        return {**found, "resets": resets} if resets else found

    @staticmethod
    def from_rows(value: Json) -> "Moves":
        """The tables of a snapshot; of one that has none, empty ones.

        Raises one of `store.metadata.NOT_THE_SHAPE` if they are none.
        """
        made = Moves()
        for topic, q, (end, group, to, move, *first) in _rows_of(value.get("seals")):
            seal = Seal(_offset(end), _place(group, to), str(move), *map(_offset, first))
            made.seals.setdefault(topic, {})[q] = seal
        for topic, q, (group, of, before, at, move, first, revoked) in _rows_of(
            value.get("guests")
        ):
            opened = None if first is None else _offset(first)
            guest = Guest(_place(group, of), _place(before, at), str(move), opened, bool(revoked))
            made.guests.setdefault(topic, {})[q] = guest
        made.gone.update(map(str, value.get("gone", ())))
        for key, q, (number, back) in _rows_of(value.get("resets")):
            topic, _, group = key.partition("@")
            going_back = None if back is None else _offset(back)
            made.resets.setdefault((topic, group), {})[q] = Resets(_offset(number), going_back)
        return made

    def copy(self) -> "Moves":
        """Tables of their own, with the same rows."""
        return Moves(
            {topic: dict(rows) for topic, rows in self.seals.items()},
            {topic: dict(rows) for topic, rows in self.guests.items()},
            {key: dict(rows) for key, rows in self.resets.items()},
            set(self.gone),
        )

    def take(self, other: "Moves") -> None:
        """Take the rows of other tables."""
        self.seals, self.guests, self.resets = other.seals, other.guests, other.resets
        self.gone = other.gone


# -- the records of a master, as `Moves` reads them ------------------------------------------------


def seal_record(topic: str, queue_id: int, seal: Seal, replaces: str = "") -> Json:
    """The change that seals a queue. replaces: the move of the seal that this one replaces."""
    group, to = seal.following
    where = {"end": seal.end, "group": group, "to": to, "move": seal.move}
    first = {"first": seal.first} if _first_of(seal) else {}
    instead = {"replaces": replaces} if replaces else {}
    return {"op": "seal", "topic": topic, "queue": queue_id, **where, **first, **instead}


def guest_record(topic: str, queue_id: int, guest: Guest) -> Json:
    """The change that reserves a guest."""
    group, of = guest.name
    places = {"group": group, "of": of, "from": list(guest.came_from)}
    return {"op": "guest", "topic": topic, "queue": queue_id, **places, "move": guest.move}


def _first_of(seal: Seal) -> list[int]:
    """Where the next place begins, if that is not the end."""
    return [seal.first] if seal.first != seal.end else []


def _key(change: Json) -> QueueKey:
    return str(change["topic"]), _offset(change["queue"])


def _place(group: Any, queue_id: Any) -> Place:
    return Place(str(group), _offset(queue_id))


def _move(change: Json) -> str:
    return str(change["move"])


def _offset(value: Any) -> int:
    number = int(value)
    if number < 0:
        raise ValueError(f"{number} is no queue id or offset")
    return number


def _rows_of(value: Any) -> Iterator[tuple[str, int, list[Any]]]:
    for topic, rows in (value or {}).items():
        for queue_id, row in rows.items():
            yield str(topic), _offset(queue_id), row
