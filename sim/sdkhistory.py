"""The history of SDK programs: sends, deliveries to group members, batches of sinks.

Who reads a queue is checked as it happens. A member is in touch for as long as its last heartbeat
that a master answered lets it count on its queues: for its session, and for the grace of the next
master, which knows nothing of it. Of the members in touch one at most reads a queue.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from duolog_server.linearizable import NEVER, Commit, Read, Told
from sim.witness import Violation

WRITTEN, PUBLISHED = "W", "K"
QUEUES = 3
GROUP = "s"
SESSION_SECONDS = 1.0
CLOCKS = 0.97  # clocks run at most 1 % fast, or slow, against each other

Queue = tuple[str, int]


@dataclass(slots=True)
class Written:
    """A message that a producer sent. outcome: ok, info for may or may not be stored, or refused.

    place: queue id and offset of what was answered ok.
    """

    body: bytes
    writer: str
    outcome: str = "info"
    place: tuple[int, int] = (-1, -1)
    begin: float = 0.0
    end: float = NEVER  # of the answer, where there was one


@dataclass(slots=True)
class Publication:
    """What one publisher staged for a number of a sink: bodies by queue, in their order."""

    sink: str
    batch: int
    bodies: dict[int, list[bytes]]
    answered: bool = False


@dataclass(slots=True)
class Seat:
    """A member of the group, as masters know it.

    told: world time of its last heartbeat. queues: what it may count on while it is in touch. What
    it says that it reads is not enough: it may have been silent for too long.
    """

    told: float
    queues: dict[Queue, float]  # since when, in the world's time
    asked: str = ""  # the mastership that answered


@dataclass(slots=True)
class SdkHistory:
    """Everything that the checks need."""

    written: list[Written] = field(default_factory=list)
    publications: list[Publication] = field(default_factory=list)
    frontier: dict[Queue, int] = field(default_factory=dict)  # handed out below here, no offset not
    handed: dict[Queue, dict[int, bytes]] = field(default_factory=dict)
    reads: dict[Queue, list[Read]] = field(default_factory=dict)  # of what was handed out
    committed: dict[Queue, int] = field(default_factory=dict)
    commits_made: dict[Queue, list[Commit]] = field(default_factory=dict)
    told: dict[Queue, list[Told]] = field(default_factory=dict)
    older_copy_led: bool = False  # both are noted until then
    seats: dict[str, Seat] = field(default_factory=dict)
    deliveries: int = 0
    repeats: int = 0
    takeovers: int = 0
    readers: dict[Queue, str] = field(default_factory=dict)
    in_touch_ms: float = 1000.0
    under_way: int = 0  # sends and publications that programs are at

    @contextmanager
    def busy(self) -> Iterator[None]:
        """A program is at something that may yet be stored."""
        self.under_way += 1
        try:
            yield
        finally:
            self.under_way -= 1

    # -- the group -----------------------------------------------------------------------------

    def heartbeat(
        self, member: str, owned: set[Queue], granted: set[Queue], now: float, node: str
    ) -> None:
        """A master answers a member: nobody else who is in touch has what it is granted."""
        for name, seat in self.seats.items():
            if name == member or now - seat.told >= self.in_touch_ms:
                continue
            both = granted & seat.queues.keys()
            if both:
                raise Violation(
                    f"{node} grants {sorted(both)[0]} to {member} while {name} reads it, which "
                    f"{seat.asked} answered {now - seat.told:.0f} ms ago"
                )
        before = self.seats[member].queues if self.in_touch(member, now) else {}
        mine = granted | (owned & before.keys())
        self.seats[member] = Seat(now, {queue: before.get(queue, now) for queue in mine}, node)

    def left(self, member: str) -> None:
        """A member leaves, and lets go of everything before."""
        self.seats.pop(member, None)

    def in_touch(self, member: str, now: float) -> bool:
        """Whether a member may count on its queues."""
        seat = self.seats.get(member)
        return seat is not None and now - seat.told < self.in_touch_ms

    def may_read(self, member: str, queue: Queue, now: float) -> bool:
        """Whether a queue is a member's own."""
        return self.in_touch(member, now) and queue in self.seats[member].queues

    def gave(self, member: str, queue: Queue, offset: int, body: bytes, now: float) -> None:
        """A member's user gets a message: none before it was passed over."""
        self.deliveries += 1
        self.reads.setdefault(queue, []).append(Read(offset, (body,), now))
        row = self.handed.setdefault(queue, {})
        known = row.setdefault(offset, body)
        if known != body:
            raise Violation(f"{queue} {offset} was {known!r} and is {body!r} for {member}")
        frontier = self.frontier.get(queue, 0)
        if offset > frontier:
            raise Violation(f"{member} is given {queue} {offset}, and nobody {frontier}")
        self.repeats += offset < frontier
        self.frontier[queue] = max(frontier, offset + 1)
        if self.readers.get(queue, member) != member:
            self.takeovers += 1
        self.readers[queue] = member

    def commits(
        self,
        member: str,
        offsets: dict[Queue, int],
        times: tuple[float, float],
        node: str,
        may_go_back: bool,
    ) -> None:
        """A master takes a commit: of what was handed out, and was nobody else's when it came.

        times: when it came, and is answered. may_go_back: an older copy led, and told readers that
        there is less than they had read.
        """
        came, _ = times
        for queue, offset in offsets.items():
            made = Commit(offset, came, NEVER if self.older_copy_led else times[1])
            self.commits_made.setdefault(queue, []).append(made)
            for name, seat in self.seats.items():
                reads = self.in_touch(name, came) and seat.queues.get(queue, came) < came
                if name != member and reads:
                    raise Violation(
                        f"{node} takes {member}'s commit of {queue}, which {name} reads, as "
                        f"{seat.asked} answered"
                    )
            if offset > self.frontier.get(queue, 0):
                raise Violation(
                    f"{node} takes {member}'s commit of {queue} {offset}; "
                    f"{self.frontier.get(queue, 0)} was not consumed"
                )
            known = 0 if may_go_back else self.committed.get(queue, 0)
            self.committed[queue] = max(known, offset)

    def knows(self, offsets: dict[Queue, int], times: tuple[float, float], node: str) -> None:
        """A master tells where the group is: not beyond what was consumed."""
        for queue, offset in offsets.items():
            if not self.older_copy_led:
                self.told.setdefault(queue, []).append(Told(offset, *times))
            if offset > self.frontier.get(queue, 0):
                raise Violation(f"{node} says that {queue} is at {offset}, which nobody consumed")
            if offset < self.committed.get(queue, -1):
                raise Violation(
                    f"{node} says that {queue} is at {offset}, and {self.committed[queue]} "
                    "was committed"
                )
