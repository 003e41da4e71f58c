"""The history of clients of lite topics, and a simple model of their subscriptions."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from duolog_server.node.pop.popservice import Popped, PopRequest, PopService
from duolog_server.node.pop.subscriber import Subscriber
from duolog_server.store.lightqueues import lite_queue, lite_topic_of
from sim.deliveries import Deliveries, Mastership, place_of
from sim.services import Process
from sim.witness import Violation

PARENT = "L"
SHARED, EXCLUSIVE = "ls", "lx"  # groups
QUEUES = 2
NAMES = tuple(f"n{k}" for k in range(7))
LEFT_ALONE = NAMES[-1]  # nobody subscribes to it in the end
TTL_MS = 900

Boot = tuple[str, int]  # a node and the number of its process
Pair = tuple[str, str]  # client and lite topic


@dataclass(slots=True)
class LiteSent:
    """A message. outcome: ok, info for may or may not be stored, or refused."""

    body: bytes
    name: str
    outcome: str = "info"


@dataclass(slots=True)
class Subscriptions:
    """What the clients of a group subscribe to on one node."""

    named: dict[str, set[str]] = field(default_factory=dict)  # by client
    everything: set[str] = field(default_factory=set)

    def wants(self, client: str, name: str) -> bool:
        """Whether a client is given messages of a lite topic."""
        return client in self.everything or name in self.named.get(client, ())

    def _rivals(self, client: str, name: str) -> list[str]:
        return [other for other, names in self.named.items() if other != client and name in names]

    def add(self, client: str, names: Iterable[str], exclusive: bool) -> set[Pair]:
        """A client asks for more; who loses what by that."""
        lost: set[Pair] = set()
        own = self.named.setdefault(client, set())
        for name in names:
            for rival in self._rivals(client, name) if exclusive and name not in own else ():
                self.named[rival].discard(name)
                lost.add((rival, name))
            own.add(name)
        return lost

    def replace(self, client: str, names: Iterable[str], exclusive: bool) -> None:
        """A client repeats all that it wants: that takes nothing from others."""
        before = self.named.get(client, set())
        self.named[client] = {
            name
            for name in names
            if name in before or not (exclusive and self._rivals(client, name))
        }

    def remove(self, client: str, names: Iterable[str]) -> None:
        """A client asks for less."""
        self.named.setdefault(client, set()).difference_update(names)

    def leave(self, client: str) -> None:
        """A client is gone."""
        self.named.pop(client, None)
        self.everything.discard(client)


@dataclass(slots=True)
class LiteHistory(Deliveries):
    """The data for the final checks, and the checks of every delivery."""

    sent: list[LiteSent] = field(default_factory=list)
    subscriptions: dict[tuple[Boot, str], Subscriptions] = field(default_factory=dict)
    bodies: dict[tuple[str, int], bytes] = field(default_factory=dict)  # by light queue and offset
    forgotten: dict[tuple[Boot, str], int] = field(default_factory=dict)  # light queues: their ends
    ends: dict[str, int] = field(default_factory=dict)  # the same, by what any node read
    changes: int = 0  # of subscriptions

    def of(self, node: Process, group: str) -> Subscriptions:
        """What clients of a group subscribe to on a node."""
        return self.subscriptions.setdefault(((node.name, node.boot), group), Subscriptions())

    def forgot(self, node: Process, ends: dict[str, int]) -> None:
        """A node read in its log that light queues are forgotten."""
        for queue, end in ends.items():
            self.forgotten[(node.name, node.boot), queue] = end
            self.ends[queue] = max(end, self.ends.get(queue, 0))

    def delivered(
        self, node: Process, who: Mastership, request: PopRequest, found: list[Popped]
    ) -> None:
        """A master gives messages away: of what its consumer subscribes to, in order."""
        subscriptions = self.of(node, request.group)
        for popped in found:
            handle = popped.handle
            name = lite_topic_of(handle.topic)
            place = place_of(request.group, handle)
            if not popped.body.startswith(name.encode() + b"-"):
                raise Violation(f"{who} gives {popped.body!r} as one of lite topic {name}")
            known = self.bodies.setdefault((handle.topic, handle.offset), popped.body)
            if known != popped.body:
                raise Violation(f"{handle.topic} {handle.offset} was {known!r}: {popped.body!r}")
            lease = self.leases.get((who, place))
            again = lease is not None and lease.end > node.mono()  # else it is given to two
            if not (subscriptions.wants(request.client, name) or again):
                raise Violation(f"{who} gives {popped.body!r} to {request.client}, unasked")
            if handle.offset < self.forgotten.get((who[:2], handle.topic), 0):
                raise Violation(f"{who} gives {place}, which is forgotten")
            self.given(who, node.mono(), request, handle)
            self.leased(who, node.mono(), request, handle)
        self._in_order(node, who, request.group, found)

    def nothing_for(self, node: Process, pop: PopService, subscriber: Subscriber) -> None:
        """A master has nothing for a consumer: or what there is, it knows of, and looks at next."""
        subscriptions = self.of(node, subscriber.group)
        for name in NAMES:
            queue = queue_of(name)
            if queue in subscriber.ready or not subscriptions.wants(subscriber.client, name):
                continue
            low, high = node.store.queue_range(queue, 0)
            begin = max(low, self.ends.get(queue, 0))
            known = [pop.has_done(subscriber.group, queue, 0, k) for k in range(begin, high)]
            if False in known and None not in known:  # somebody has what is None
                raise Violation(f"{node.name} overlooks {queue}, for {subscriber.client}")

    def _in_order(self, node: Process, who: Mastership, group: str, found: list[Popped]) -> None:
        """Nothing of a lite topic is given before all that was stored before it is done."""
        together = {place_of(group, popped.handle) for popped in found}
        for popped in found:
            queue, _, offset = popped.handle.topic, popped.handle.queue_id, popped.handle.offset
            low, _ = node.store.queue_range(queue, 0)
            for earlier in range(max(low, self.ends.get(queue, 0)), offset):
                place = (group, queue, 0, earlier)
                if place not in together and place not in self.passed:
                    raise Violation(f"{who} gives {queue} {offset} before {earlier} is done")


def queue_of(name: str) -> str:
    """A lite topic's light queue."""
    return lite_queue(PARENT, name)
