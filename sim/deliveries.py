"""Deliveries of masters to consumers, and the checks of each of them."""

from dataclasses import dataclass, field

from duolog_server.node.pop.popservice import Handle, PopRequest
from sim.witness import Violation

Mastership = tuple[str, int, int]  # node, process, epoch
Place = tuple[str, str, int, int]  # group, topic, queue id, queue offset


def place_of(group: str, handle: Handle) -> Place:
    """What a delivery gives to a group."""
    return group, handle.topic, handle.queue_id, handle.offset


@dataclass(slots=True)
class Lease:
    """A delivery that nobody has acknowledged. end: ms on the clock of the node that made it."""

    serial: int
    end: float
    attempt_id: str = ""


@dataclass(slots=True)
class Deliveries:
    """Leases, and what is done."""

    acknowledged: dict[str, set[bytes]] = field(default_factory=dict)  # bodies, by group
    leases: dict[tuple[Mastership, Place], Lease] = field(default_factory=dict)
    done: set[tuple[Mastership, Place]] = field(default_factory=set)
    passed: set[Place] = field(default_factory=set)  # acknowledged by anybody, ever
    deliveries: int = 0
    repeats: int = 0

    def given(self, who: Mastership, now: float, request: PopRequest, handle: Handle) -> Place:
        """A master delivers a message: no consumer has it, and none has acknowledged it."""
        place = place_of(request.group, handle)
        self.deliveries += 1
        before = self.leases.get((who, place))
        again = before is not None and before.attempt_id == request.attempt_id
        if before is not None and before.end > now + 1 and not again:
            raise Violation(f"{who} gives {place} to two consumers")
        if (who, place) in self.done:
            raise Violation(f"{who} gives {place} again, which was acknowledged")
        self.repeats += place in self.passed or before is not None
        return place

    def leased(self, who: Mastership, now: float, request: PopRequest, handle: Handle) -> None:
        """It is the consumer's for a while."""
        end = now + request.invisible_ms
        place = place_of(request.group, handle)
        self.leases[who, place] = Lease(handle.serial, end, request.attempt_id)

    def settled(
        self, who: Mastership, group: str, handle: Handle, body: bytes, dead: bool = False
    ) -> None:
        """A master takes an acknowledgement; dead: of a message that its consumer gives up."""
        place = place_of(group, handle)
        lease = self.leases.pop((who, place), None)
        if lease is not None and lease.serial != handle.serial:
            raise Violation(f"{who} takes an older acknowledgement of {place}")
        if lease is None and place not in self.passed:
            raise Violation(f"{who} takes an acknowledgement of {place}, which it has not given")
        self.done.add((who, place))
        self.passed.add(place)
        if not dead:
            self.acknowledged.setdefault(group, set()).add(body)

    def changed(self, who: Mastership, group: str, handle: Handle, end: float) -> None:
        """A lease ends at another time, and goes by another number."""
        place = place_of(group, handle)
        self.leases[who, place] = Lease(handle.serial, end)
