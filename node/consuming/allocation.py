"""Assignment of a topic's queues to the members of a group: RocketMQ's named strategies.

| name | AllocateMessageQueueStrategy | deals out |
|------|------------------------------|-----------|
| AVG | ...Averagely | even, consecutive shares |
| AVG_BY_CIRCLE | ...AveragelyByCircle | one by one, in turn |
| CONSISTENT_HASH | ...ConsistentHash | by a ring of hashes: a member that comes or goes moves few |
| CONFIG | ...ByConfig | to each member what it names |
| MACHINE_ROOM | ...ByMachineRoom | only to members that name the queues' room |
| MACHINE_ROOM_NEARBY | AllocateMachineRoomNearby | to members of the queues' room, else to all |

The room of a queue is what stands before `@` in the name of its replica group. Queues and members
come sorted, and every member gets the same answer. Source: Apache RocketMQ 4.9, client.consumer
.rebalance.
"""

import hashlib
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass

from duolog import _errors as sdk

Queue = tuple[str, int]
VIRTUAL_NODES = 10
DEFAULT = "AVG"


@dataclass(frozen=True, slots=True)
class Wish:
    """A member's declaration. rooms: the rooms it is in. queues: its queues under CONFIG."""

    strategy: str = DEFAULT
    rooms: tuple[str, ...] = ()
    queues: frozenset[Queue] = frozenset()


@dataclass(frozen=True, slots=True)
class Deal:
    """One topic's queues, the members that read it, and the replica group that holds it."""

    queues: list[Queue]
    members: dict[str, Wish]
    replica_group: str = ""

    @property
    def room(self) -> str:
        """The room of the queues."""
        return self.replica_group.partition("@")[0]

    def among(self, members: dict[str, Wish]) -> "Deal":
        """The same queues for some of the members."""
        return Deal(self.queues, members, self.replica_group)


def check_strategy(name: str) -> str:
    """A strategy's name; the default for none. Raises BadRequest."""
    if name and name not in STRATEGIES:
        raise sdk.BadRequest(
            f"rebalance strategy {name!r} is unknown; strategies: {', '.join(STRATEGIES)}"
        )
    return name or DEFAULT


def average(deal: Deal, member: str) -> list[Queue]:
    """AVG."""
    index = sorted(deal.members).index(member)
    share, rest = divmod(len(deal.queues), len(deal.members))
    start = index * share + min(index, rest)
    return deal.queues[start : start + share + (1 if index < rest else 0)]


def by_circle(deal: Deal, member: str) -> list[Queue]:
    """AVG_BY_CIRCLE."""
    return deal.queues[sorted(deal.members).index(member) :: len(deal.members)]


def _ring_hash(text: str) -> int:
    return int.from_bytes(hashlib.md5(text.encode(), usedforsecurity=False).digest()[:4], "big")


def consistent_hash(deal: Deal, member: str) -> list[Queue]:
    """CONSISTENT_HASH: each queue goes to the next point of the ring, ten points a member."""
    names = sorted(deal.members)
    ring = {_ring_hash(f"{name}-{k}"): name for name in names for k in range(VIRTUAL_NODES)}
    points = sorted(ring)

    def owner(queue: Queue) -> str:
        topic, queue_id = queue
        text = f"MessageQueue [topic={topic}, brokerName={deal.replica_group}, queueId={queue_id}]"
        return ring[points[bisect_left(points, _ring_hash(text)) % len(points)]]

    return [queue for queue in deal.queues if owner(queue) == member]


def by_config(deal: Deal, member: str) -> list[Queue]:
    """CONFIG."""
    return [queue for queue in deal.queues if queue in deal.members[member].queues]


def by_machine_room(deal: Deal, member: str) -> list[Queue]:
    """MACHINE_ROOM: even shares first, the rest one by one."""
    members = sorted(name for name, wish in deal.members.items() if deal.room in wish.rooms)
    if member not in members:
        return []
    index, (share, rest) = members.index(member), divmod(len(deal.queues), len(members))
    found = deal.queues[index * share : (index + 1) * share]
    if index < rest:
        found.append(deal.queues[index + share * len(members)])
    return found


def machine_room_nearby(deal: Deal, member: str) -> list[Queue]:
    """MACHINE_ROOM_NEARBY: among the members of the room, otherwise among all, as AVG."""
    near = {name: wish for name, wish in deal.members.items() if deal.room in wish.rooms}
    if near and member not in near:
        return []
    return average(deal.among(near) if near else deal, member)


STRATEGIES: dict[str, Callable[[Deal, str], list[Queue]]] = {
    "AVG": average,
    "AVG_BY_CIRCLE": by_circle,
    "CONSISTENT_HASH": consistent_hash,
    "CONFIG": by_config,
    "MACHINE_ROOM": by_machine_room,
    "MACHINE_ROOM_NEARBY": machine_room_nearby,
}


def allocate(strategy: str, deal: Deal, member: str) -> list[Queue]:
    """The share of one member."""
    return STRATEGIES[strategy](deal, member)
