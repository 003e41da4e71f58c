"""Which clients are members of which groups of consumers and producers.

Pure: time arrives as `mono_ms`.

A member is known by the connection that its heartbeats come over. Every node of a replica group
hears them, so the next master knows the members already.

What all clients say of themselves has a limit together, and what one connection says a smaller one:
a heartbeat may name a thousand groups, each with as many subscriptions.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from duolog import _errors as sdk

from duolog_server.compat.remoting.codec.bodies import ConsumerData, Heartbeat, Subscription
from duolog_server.compat.remoting.port.dispatcher import Peer
from duolog_server.node.identity.access.gate import Principal
from duolog_server.store.clocks import MonoMs

SILENT_MS = 120_000  # RocketMQ's: then a client is gone
MEMBERS_MAX = 10_000  # of one group
SAID_BYTES_MAX = 24 << 20  # of all clients, as they are in memory
PEER_BYTES_MAX = 8 << 20  # of one connection
GROUP_BYTES, SUBSCRIPTION_BYTES = 800, 150  # beside their texts


@dataclass(frozen=True, slots=True)
class Client:
    """The client of a connection, from its last heartbeat."""

    client_id: str
    language: str
    version: int
    heard_ms: MonoMs


@dataclass(slots=True)
class Member:
    """A client in a group. user: who sent its last heartbeat; None where there are no users.

    size: bytes of what it said of it, about. since_ms: when it first said so.
    """

    client_id: str
    data: ConsumerData
    heard_ms: MonoMs
    user: Principal | None
    size: int
    since_ms: MonoMs


Subscriptions = tuple[Subscription, ...]
May = Callable[[Principal | None, str], bool]  # a user, and a group


class Members:
    """All groups that have members now."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[Peer, Member]] = {}
        self._groups_of: dict[Peer, set[str]] = {}  # so that one that ends need not be searched for
        self._producers: dict[str, dict[Peer, Principal | None]] = {}
        self._producer_groups: dict[Peer, frozenset[str]] = {}
        self._clients: dict[Peer, Client] = {}  # until their connections end
        self._named: dict[str, tuple[Peer, Principal | None]] = {}  # producers, by their ids
        self._reads: dict[str, dict[str, Subscription]] = {}  # until a group changes
        # What ends pulls that are held, by client and group, each with its topic.
        self._held: dict[tuple[Peer, str], list[tuple[str, Callable[[], None]]]] = {}
        self._said: dict[Peer, int] = {}  # bytes
        self._said_by_all = 0

    def beat(
        self, peer: Peer, heartbeat: Heartbeat, mono_ms: MonoMs, user: Principal | None = None
    ) -> set[str]:
        """Note a client's heartbeat; the groups that it changes, whose members learn of it.

        A newer version of the same subscriptions is no change: clients of RocketMQ 5 whose queues
        are assigned to them make one each time they rebalance. A group that has too many members
        stays as it is. user: who sent it. Raises Busy, and notes nothing, where there is no memory
        for what it says.
        """
        sizes = self._room_for(peer, heartbeat)
        self._know_as(peer, heartbeat.client_id if heartbeat.producers else "", user)
        self._clients[peer] = Client(
            heartbeat.client_id, heartbeat.language, heartbeat.version, mono_ms
        )
        self._produces(peer, frozenset(heartbeat.producers), user)
        changed = set()
        for data in heartbeat.consumers:
            members = self._groups.setdefault(data.group, {})
            known = members.get(peer)
            if known is None and len(members) >= MEMBERS_MAX:
                continue
            if known is None or (known.client_id, known.data) != (heartbeat.client_id, data):
                self._reads.pop(data.group, None)
                if (
                    known is None
                    or known.client_id != heartbeat.client_id
                    or _unversioned(known.data) != _unversioned(data)
                ):
                    changed.add(data.group)
            size = sizes[data.group]
            self._count(peer, size - (0 if known is None else known.size))
            since = mono_ms if known is None else known.since_ms
            members[peer] = Member(heartbeat.client_id, data, mono_ms, user, size, since)
            if known is not None and known.data.subscriptions != data.subscriptions:
                self._end_held(peer, data.group, known.data.subscriptions, data.subscriptions)
            self._groups_of.setdefault(peer, set()).add(data.group)
        return changed

    def _room_for(self, peer: Peer, heartbeat: Heartbeat) -> dict[str, int]:
        """Bytes of what a heartbeat says, by consumer group. Raises Busy."""
        sizes = {data.group: _size_of(data) for data in heartbeat.consumers}
        known = (self._groups.get(group, {}).get(peer) for group in sizes)
        more = sum(sizes.values()) - sum(member.size for member in known if member is not None)
        new = frozenset(heartbeat.producers) - self._producer_groups.get(peer, frozenset())
        more += sum(map(_size_of_producer, new))
        if more > 0 and (
            self._said.get(peer, 0) + more > PEER_BYTES_MAX
            or self._said_by_all + more > SAID_BYTES_MAX
        ):
            raise sdk.Busy("clients of this node are in too many groups, or read too many topics")
        return sizes

    def _count(self, peer: Peer, size: int) -> None:
        """A connection says so much more, or less."""
        self._said_by_all += size
        said = self._said.get(peer, 0) + size
        if said:
            self._said[peer] = said
        else:
            self._said.pop(peer, None)

    def _produces(self, peer: Peer, groups: frozenset[str], user: Principal | None = None) -> None:
        """A client is a producer of these groups, and of no others."""
        before = self._producer_groups.pop(peer, frozenset())
        for group in before - groups:
            self._count(peer, -_size_of_producer(group))
            del self._producers[group][peer]
            if not self._producers[group]:
                del self._producers[group]
        for group in groups - before:
            self._count(peer, _size_of_producer(group))
        for group in groups:
            self._producers.setdefault(group, {})[peer] = user
        if groups:
            self._producer_groups[peer] = groups

    def _know_as(self, peer: Peer, client_id: str, user: Principal | None = None) -> None:
        """A producer has this id, and no other one; empty for a client that is none.

        An id that a client of another user has stays that one's: replies come by it.
        """
        before = self._clients.get(peer)
        if before is not None and self._holder(before.client_id) is peer:
            del self._named[before.client_id]
        known = self._named.get(client_id)
        if client_id and (known is None or _name_of(known[1]) == _name_of(user)):
            self._named[client_id] = peer, user

    def _holder(self, client_id: str) -> Peer | None:
        known = self._named.get(client_id)
        return known[0] if known is not None else None

    def producer(self, client_id: str) -> tuple[Peer, Principal | None] | None:
        """The connection of a producer, by its id, and its user: the newest of several."""
        return self._named.get(client_id)

    def producers(self, group: str) -> list[tuple[Peer, Principal | None]]:
        """The connections of a group's producers, and their users."""
        return list(self._producers.get(group, {}).items())

    def produces_no_more(self, peer: Peer, group: str) -> None:
        """Remove a client from the producers of a group."""
        producers = self._producers.get(group, {})
        if peer in producers:
            left = self._producer_groups[peer] - {group}
            self._produces(peer, left, producers[peer])
            if not left:
                self._know_as(peer, "")

    def leave(self, peer: Peer, group: str) -> bool:
        """A client leaves a group; whether it was a member."""
        members = self._groups.get(group, {})
        member = members.pop(peer, None)
        if member is None:
            return False
        self._end_held(peer, group, member.data.subscriptions, ())
        self._reads.pop(group, None)
        self._count(peer, -member.size)
        if not members:
            del self._groups[group]
        groups = self._groups_of[peer]
        groups.discard(group)
        if not groups:
            del self._groups_of[peer]
        return True

    def gone(self, peer: Peer) -> set[str]:
        """A connection ended; the consumer groups that its client was in."""
        self._produces(peer, frozenset())
        self._know_as(peer, "")
        self._clients.pop(peer, None)
        return {group for group in list(self._groups_of.get(peer, ())) if self.leave(peer, group)}

    def expire(self, mono_ms: MonoMs) -> set[str]:
        """Let go of silent clients; the groups that they were in."""
        silent = [
            (group, peer)
            for group, members in self._groups.items()
            for peer, member in members.items()
            if member.heard_ms + SILENT_MS < mono_ms
        ]
        return {group for group, peer in silent if self.leave(peer, group)}

    def dismiss(self, may: May) -> set[str]:
        """Let go of clients whose users may no longer consume; the groups that they were in."""
        gone = [
            (group, peer)
            for group, members in self._groups.items()
            for peer, member in members.items()
            if not may(member.user, group)
        ]
        return {group for group, peer in gone if self.leave(peer, group)}

    def ids(self, group: str) -> list[str]:
        """The ids of a group's clients, each of them once."""
        return sorted({member.client_id for member in self._groups.get(group, {}).values()})

    def peers(self, group: str) -> list[tuple[Peer, Principal | None]]:
        """The connections of a group's clients, and their users."""
        return [(peer, member.user) for peer, member in self._groups.get(group, {}).items()]

    def of(self, group: str) -> dict[Peer, Member]:
        """The members of a group, by their connections."""
        return dict(self._groups.get(group, {}))

    def client(self, peer: Peer) -> Client | None:
        """The client of a connection; None before its first heartbeat."""
        return self._clients.get(peer)

    def groups(self) -> list[str]:
        """The consumer groups that have members."""
        return list(self._groups)

    @property
    def producer_count(self) -> int:
        """The number of connections that are producers."""
        return len(self._producer_groups)

    def producer_groups(self) -> list[str]:
        """The producer groups that have members."""
        return list(self._producers)

    def reads(self, group: str) -> dict[str, Subscription]:
        """Subscriptions of a group's members, by topic: the newest of their subscriptions."""
        known = self._reads.get(group)
        if known is None and group in self._groups:
            known = self._reads[group] = self._read(group)
        return known or {}

    def _read(self, group: str) -> dict[str, Subscription]:
        found: dict[str, Subscription] = {}
        for member in self._groups.get(group, {}).values():
            for one in member.data.subscriptions:
                known = found.get(one.topic)
                if known is None or known.version < one.version:
                    found[one.topic] = one
        return found

    def subscription(self, peer: Peer, group: str, topic: str) -> Subscription | None:
        """A client's subscription to a topic as a member of a group; None without one."""
        member = self._groups.get(group, {}).get(peer)
        found = member.data.subscriptions if member is not None else ()
        return next((one for one in found if one.topic == topic), None)

    def broadcast_since(self, peer: Peer, topic: str) -> MonoMs | None:
        """Since when a client reads a topic in a broadcasting group: the first of several."""
        found = (self._groups[group][peer] for group in self._groups_of.get(peer, ()))
        return min(
            (
                member.since_ms
                for member in found
                if member.data.broadcasting
                and any(one.topic == topic for one in member.data.subscriptions)
            ),
            default=None,
        )

    @contextmanager
    def held(self, peer: Peer, group: str, topic: str, end: Callable[[], None]) -> Iterator[None]:
        """A pull that waits. end: called once the client's subscription is another, or none."""
        key, one = (peer, group), (topic, end)
        held = self._held.setdefault(key, [])
        held.append(one)
        try:
            yield
        finally:
            held.remove(one)
            if not held:
                self._held.pop(key, None)

    def _end_held(
        self, peer: Peer, group: str, before: Subscriptions, after: Subscriptions
    ) -> None:
        held = self._held.get((peer, group), ())
        if held:
            selects = [
                {one.topic: (one.kind, one.expression) for one in s} for s in (before, after)
            ]
            for topic, end in held:
                if selects[0].get(topic) != selects[1].get(topic):
                    end()

    def consumer(self, peer: Peer, group: str) -> ConsumerData | None:
        """A client as a member of a group; None where it is none."""
        member = self._groups.get(group, {}).get(peer)
        return member.data if member is not None else None

    def __len__(self) -> int:
        """Members of all groups."""
        return sum(map(len, self._groups.values()))


def _unversioned(data: ConsumerData) -> ConsumerData:
    same = tuple(replace(one, version=0) for one in data.subscriptions)
    return replace(data, subscriptions=tuple(sorted(same, key=lambda one: one.topic)))


def _size_of(data: ConsumerData) -> int:
    """Bytes of a member in memory, about."""
    texts = sum(len(one.topic) + len(one.expression) for one in data.subscriptions)
    return GROUP_BYTES + len(data.group) + texts + SUBSCRIPTION_BYTES * len(data.subscriptions)


def _name_of(user: Principal | None) -> str:
    return user.name if user is not None else ""


def _size_of_producer(group: str) -> int:
    return GROUP_BYTES + len(group)
