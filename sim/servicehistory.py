"""What clients of the services did and were told, and what an observer saw on the nodes."""

from dataclasses import dataclass, field

from duolog_server.linearizable import NEVER
from duolog_server.node.pop.popservice import Popped, PopRequest
from duolog_server.store.grouptopics import retry_topic
from sim.deliveries import Deliveries, Mastership, Place
from sim.witness import Violation

TOPIC, DELAYED, COMMITTED, COPIES = "P", "D", "X", "C"
GROUP, ORDERLY, PRODUCERS = "g", "o", "t"
QUEUES = 2
RETRIES_MAX = 2
POISON = b"poison"  # how a message begins that no consumer of GROUP can process


def retry_of(group: str) -> str:
    """Where a group finds again what it did not acknowledge."""
    return retry_topic(group, TOPIC)


def hopeless(group: str, body: bytes) -> bool:
    """Whether no consumer of a group can process a message."""
    return group == GROUP and body.startswith(POISON)


@dataclass(slots=True)
class Sent:
    """A message. outcome: ok, info for may or may not be stored, or refused."""

    body: bytes
    outcome: str = "info"
    number: int = 0  # its sequence
    level: int = 0
    deliver_ms: int = 0
    recalled: str = ""  # ok, or maybe
    decision: str = ""  # what its producer wants: commit, rollback, or nothing
    decided: bool = False  # that was answered
    settled_in: int = -1  # the epoch in which that was answered first
    deciding: float = NEVER  # world time at which its producer first told it
    settled: float = NEVER  # and was first answered
    origin: int = -1  # of a half message, its first queue offset
    place: int = -1  # of its record in the log, where a node told
    stored: float = 0.0  # world time
    stored_by: "Mastership | None" = None


@dataclass(slots=True)
class ServiceHistory(Deliveries):
    """Everything that the checks in the end need, and the checks of every delivery."""

    popped: list[Sent] = field(default_factory=list)
    delayed: list[Sent] = field(default_factory=list)
    halves: list[Sent] = field(default_factory=list)
    copies: list[Sent] = field(default_factory=list)
    # When a master was seen to have stored a message, by its topic and offset: world time, its
    # wall clock, and who it was. What a later master stores there takes its place.
    seen: dict[tuple[str, int], tuple[float, int, Mastership]] = field(default_factory=dict)
    ends: dict[tuple[Mastership, str], int] = field(default_factory=dict)
    places: dict[tuple[str, bytes], Place] = field(default_factory=dict)  # of the last delivery
    masterships: set[Mastership] = field(default_factory=set)
    attempts: dict[bytes, set[int]] = field(default_factory=dict)  # of messages without hope

    def delivered(
        self, who: Mastership, now: float, request: PopRequest, found: list[Popped]
    ) -> None:
        """A master gives messages away: nobody has them, and nobody was done with them."""
        for popped in found:
            handle = popped.handle
            place = self.given(who, now, request, handle)
            least = 1 + (handle.topic == retry_of(request.group))
            most = RETRIES_MAX + 1 if request.group == GROUP else popped.attempt
            if not least <= popped.attempt <= most:
                raise Violation(f"{who} gives {place} as attempt {popped.attempt}")
            if hopeless(request.group, popped.body):
                self.attempts.setdefault(popped.body, set()).add(popped.attempt)
            self._alone(who, now, place, popped.body)
            self.leased(who, now, request, handle)
        if request.group == ORDERLY:
            self._in_order(who, found)

    def _alone(self, who: Mastership, now: float, place: Place, body: bytes) -> None:
        """The first master gives a copy away when the one before it was given up, and not sooner.

        A later one may find both: the message, whose progress was not recorded, and its copy.
        """
        self.masterships.add(who)
        before = self.places.get((place[0], body))
        self.places[place[0], body] = place
        if before is None or before[1] != TOPIC or len(self.masterships) > 1:
            return  # whether a copy is stored may be unknown: then another one is
        lease = self.leases.get((who, before))
        if before != place and (
            before in self.passed or (lease is not None and lease.end > now + 1)
        ):
            raise Violation(f"{who} gives {place}, a copy of {before}, which is not given up")

    def _in_order(self, who: Mastership, found: list[Popped]) -> None:
        together = {
            (ORDERLY, popped.handle.topic, popped.handle.queue_id, popped.handle.offset)
            for popped in found
        }
        for popped in found:
            handle = popped.handle
            for earlier in range(handle.offset):
                place = (ORDERLY, handle.topic, handle.queue_id, earlier)
                if place not in together and place not in self.passed:
                    raise Violation(f"{who} gives {handle} before {earlier} is done")

    def asked(self, who: Mastership, sent: Sent) -> None:
        """A master asks what became of a half message: nobody of its epoch or before was told."""
        if 0 <= sent.settled_in <= who[2]:
            raise Violation(f"{who} asks about {sent.body!r}, decided in epoch {sent.settled_in}")

    def stored(self, who: Mastership, topic: str, end: int, world: float, wall: int) -> None:
        """How far a queue of a master has come."""
        for offset in range(self.ends.get((who, topic), 0), end):
            self.seen[topic, offset] = world, wall, who
        self.ends[who, topic] = end

    def began(self, who: Mastership, topic: str, end: int) -> None:
        """What a master has from others."""
        self.ends.setdefault((who, topic), end)
