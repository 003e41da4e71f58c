"""The group coordinator: assigns queues to members. Pure: time arrives as `mono_ms`.

Queues are assigned by the strategy that all members of a group use. A queue moves to another member
only after its reader has released it or is gone: reading a queue is holding its lock, and ordered
consumption needs no other lock.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from duolog import _errors as sdk
from duolog._message import RETRY_PREFIX

from duolog_server.node.consuming.allocation import DEFAULT, Deal, Queue, Wish, allocate
from duolog_server.node.core.connected import Consumer, Read
from duolog_server.node.engine.storetimes import StoreTimes
from duolog_server.store.clocks import MonoMs

SESSION_MS_MIN = 1000
SESSION_MS_MAX = 300_000
MEMBERS_MAX = 1000
NO_GRACE = MonoMs(0)


@dataclass(slots=True)
class Member:
    """One consumer of a group."""

    topics: tuple[str, ...]
    expires_ms: MonoMs
    wish: Wish = field(default_factory=Wish)
    owned: set[Queue] = field(default_factory=set)  # queues that it reports to read
    granted: set[Queue] = field(default_factory=set)  # queues that it was granted
    not_polled: bool = False  # see Heartbeat
    expression: str = ""  # see Heartbeat
    is_sql: bool = False
    since_ms: MonoMs = NO_GRACE  # since when it has had the queues that it has


@dataclass(slots=True)
class Group:
    """Members of one group."""

    members: dict[str, Member] = field(default_factory=dict)
    generation: int = 0


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A member's report.

    topics: that it reads. owned: queues that it reads now. session_ms: silence after which it is
    gone. outdated: the master that it counts on is not the last one before this: the one between
    never heard of the member, and may have given its queues to others. not_polled: its program has
    not asked it for messages yet. expression: by which it selects messages, SQL92 where is_sql;
    empty where it does not say.
    """

    topics: tuple[str, ...]
    owned: frozenset[Queue] = frozenset()
    session_ms: int = 10_000
    wish: Wish = field(default_factory=Wish)
    outdated: bool = False
    not_polled: bool = False
    expression: str = ""
    is_sql: bool = False


@dataclass(frozen=True, slots=True)
class Assignment:
    """The answer to a heartbeat.

    foreign: what the member claimed and another one was given, as nobody had heard of its claim, or
    may have been given. It has to let go of that before it is given it again.
    """

    generation: int
    queues: list[Queue]
    members: int
    pending: bool  # a queue assigned to this member is still held by another
    foreign: list[Queue]


class GroupCoordinator:
    """All groups that have members now."""

    def __init__(self, grace_until_ms: MonoMs = NO_GRACE, replica_group: str = "") -> None:
        """grace_until_ms: until then members keep the queues they read, and get no others.

        For a new coordinator, which does not know the existing members yet.
        """
        self._replica_group = replica_group
        self._grace_until_ms = grace_until_ms
        self._groups: dict[str, Group] = {}

    def begin_again(self, grace_until_ms: MonoMs) -> None:
        """The mastership has changed: the members are no longer known, see `__init__`."""
        self._grace_until_ms = grace_until_ms
        self._groups = {}

    def validate(self, mono_ms: MonoMs) -> str:
        """The first violated invariant between two calls; empty if all hold.

        A queue has one reader in a group, which reads its topic. Members use one strategy, and a
        silent member expires in time.
        """
        for name, group in self._groups.items():
            wrong = self._wrong_with(group, mono_ms)
            if wrong:
                return f"group {name}: {wrong}"
        return ""

    @staticmethod
    def _wrong_with(group: Group, mono_ms: MonoMs) -> str:
        members = group.members
        if not 0 < len(members) <= MEMBERS_MAX:
            return f"{len(members)} members"
        if len({member.wish.strategy for member in members.values()}) > 1:
            return "its members go by several strategies"
        held: dict[Queue, str] = {}
        for name, member in members.items():
            if member.expires_ms > mono_ms + SESSION_MS_MAX:
                return f"{name} lives for {member.expires_ms - mono_ms} ms without a heartbeat"
            foreign = {queue for queue in member.granted if queue[0] not in member.topics}
            if foreign:
                return f"{name} was granted {sorted(foreign)}, and reads {member.topics}"
            for queue in member.owned | member.granted:
                other = held.setdefault(queue, name)
                if other != name:
                    return f"{queue} is held by {other} and {name}"
        return ""

    def heartbeat(
        self,
        group_name: str,
        member_id: str,
        beat: Heartbeat,
        queues: Mapping[str, Sequence[int]],
        mono_ms: MonoMs,
    ) -> Assignment | None:
        """Renew a member; None if the group is full.

        queues: that the group may read, of every topic that any of its members reads.

        Raises BadRequest if its strategy is not the one of the other members.
        """
        group = self._living(group_name, mono_ms) or Group()
        topics, wish = beat.topics, beat.wish
        for name, other in group.members.items():
            if name != member_id and other.wish.strategy != wish.strategy:
                raise sdk.BadRequest(
                    f"group {group_name} uses rebalance strategy {other.wish.strategy}: "
                    f"a member that asks for {wish.strategy} cannot join"
                )
        session = max(SESSION_MS_MIN, min(beat.session_ms or 10_000, SESSION_MS_MAX))
        member = group.members.get(member_id)
        if member is None:
            if len(group.members) >= MEMBERS_MAX:
                return None
            self._groups[group_name] = group
            member = group.members[member_id] = Member(topics, mono_ms, wish)
            group.generation += 1
        elif (member.topics, member.wish) != (topics, wish):
            member.topics, member.wish = topics, wish
            group.generation += 1
        member.expires_ms = MonoMs(mono_ms + session)
        member.not_polled = beat.not_polled
        member.expression, member.is_sql = beat.expression, beat.is_sql
        target = self._share(group, member_id, queues)
        held = self._held_by_others(group, member_id)
        foreign = beat.owned if beat.outdated else beat.owned & held
        member.owned = set(beat.owned - foreign)  # an expired member may not know it
        granted = {queue for queue in target if queue not in held | foreign}
        if mono_ms < self._grace_until_ms:
            granted &= beat.owned  # others may still read queues that they no longer hold
        if granted != member.granted:
            group.generation += 1
            member.since_ms = mono_ms
        member.granted = granted
        return Assignment(
            group.generation,
            sorted(granted),
            len(group.members),
            len(granted) < len(target),
            sorted(foreign),
        )

    def _share(
        self, group: Group, member_id: str, readable: Mapping[str, Sequence[int]]
    ) -> list[Queue]:
        share: list[Queue] = []
        member = group.members[member_id]
        for topic in member.topics:
            readers = {name: m.wish for name, m in group.members.items() if topic in m.topics}
            queues = [(topic, queue) for queue in readable.get(topic, ())]
            deal = Deal(queues, readers, self._replica_group)
            # Some member must read what members sent back, whichever topics they name.
            retried = topic.startswith(RETRY_PREFIX)
            share += allocate(DEFAULT if retried else member.wish.strategy, deal, member_id)
        return share

    @staticmethod
    def _held_by_others(group: Group, member_id: str) -> set[Queue]:
        held: set[Queue] = set()
        for name, member in group.members.items():
            if name != member_id:
                held |= member.owned | member.granted
        return held

    def _living(self, group_name: str, mono_ms: MonoMs) -> Group | None:
        """A group with the members whose sessions have not expired; None without any."""
        group = self._groups.get(group_name)
        if group is None:
            return None
        for name in [n for n, member in group.members.items() if member.expires_ms < mono_ms]:
            del group.members[name]
            group.generation += 1
        if not group.members:
            del self._groups[group_name]
            return None
        return group

    def leave(self, group_name: str, member_id: str) -> None:
        """Remove a member."""
        group = self._groups.get(group_name)
        if group is not None and group.members.pop(member_id, None) is not None:
            group.generation += 1
            if not group.members:
                del self._groups[group_name]

    def may_commit(
        self, group_name: str, member_id: str, queues: set[Queue], mono_ms: MonoMs
    ) -> bool:
        """Tell whether a member may commit for queues: they are its own, or surely nobody's.

        While members keep what they read, one that was not heard of yet may read what nobody claims
        here: then only a heartbeat shows whose a queue is.
        """
        group = self._living(group_name, mono_ms)
        member = group.members.get(member_id) if group is not None else None
        if member is not None:
            return queues <= member.granted | member.owned
        if mono_ms < self._grace_until_ms:
            return False
        return group is None or not queues & self._held_by_others(group, member_id)

    def readers(self, group_name: str, mono_ms: MonoMs) -> dict[Queue, str]:
        """The current reader of each queue."""
        group = self._living(group_name, mono_ms)
        if group is None:
            return {}
        return {queue: name for name, member in group.members.items() for queue in member.granted}

    def not_polled(self, group_name: str) -> set[str]:
        """Members whose programs have not asked them for messages yet."""
        group = self._groups.get(group_name)
        return {name for name, m in group.members.items() if m.not_polled} if group else set()

    def members(self, group_name: str, mono_ms: MonoMs) -> int:
        """The number of members of a group."""
        group = self._living(group_name, mono_ms)
        return len(group.members) if group is not None else 0

    def living(self, group_name: str, mono_ms: MonoMs) -> Mapping[str, Member]:
        """The members of a group, by id."""
        group = self._living(group_name, mono_ms)
        return group.members if group is not None else {}

    def topics(self, group_name: str) -> set[str]:
        """Topics that a group's members read."""
        group = self._groups.get(group_name)
        return {t for m in group.members.values() for t in m.topics} if group else set()

    def reading(self, mono_ms: MonoMs) -> Iterator[tuple[str, set[str], int]]:
        """Groups with members, the topics that these read, and how many they are.

        May be left between two groups; ends no session, as calls of members do.
        """
        for name, group in list(self._groups.items()):
            living = [member for member in group.members.values() if member.expires_ms >= mono_ms]
            if living:
                yield name, {topic for member in living for topic in member.topics}, len(living)

    def readers_of(self, topic: str, mono_ms: MonoMs) -> set[str]:
        """Groups with members that read a topic."""
        return {name for name in self.names(mono_ms) if topic in self.topics(name)}

    def names(self, mono_ms: MonoMs) -> set[str]:
        """Groups that have members."""
        return {name for name in list(self._groups) if self._living(name, mono_ms) is not None}


# Members of groups, by frames and the native API, among the consumers that are connected.
class MemberTable:
    """Tells of them. Where they are, they do not say here."""

    def __init__(self, groups: GroupCoordinator, times: StoreTimes) -> None:
        self._groups = groups
        self._times = times

    def consumers(self, groups: Collection[str]) -> Iterator[tuple[str, Consumer]]:
        """See Tells."""
        now = self._times.mono_ms()
        for group in groups:
            for name, member in self._groups.living(group, now).items():
                reads = (Read(topic, member.expression, member.is_sql) for topic in member.topics)
                yield (
                    group,
                    Consumer(
                        name, tuple(reads), of_sdk=True, shares=True, since_ms=member.since_ms
                    ),
                )

    def readers(self, topic: str) -> set[str]:
        """See Tells."""
        return self._groups.readers_of(topic, self._times.mono_ms())

    def counts(self) -> tuple[int, int]:
        """See Tells. Producers are members of nothing."""
        return 0, sum(members for _, _, members in self._groups.reading(self._times.mono_ms()))
