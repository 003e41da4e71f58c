"""The SyncStateSet and its changes: who must hold a put before it is answered.

Rules: every replica that the registry may hold in the set now is required, even while a change is
in flight or its outcome is unknown; a member that leaves is required until the registry has
confirmed the change; a replica that joins holds everything confirmed and everything before this
epoch; two incarnations of a node are two replicas; the set never shrinks below the number of
replicas that puts require, and a connected member does not leave unless that many are connected
without it; a lagging replica joins only if fewer are connected.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from duolog_server.ha.groupstate import Registration, Replica, SyncStateSet
from duolog_server.ha.mandate import ReplicaProgress
from duolog_server.store.clocks import MonoMs


@dataclass(frozen=True, slots=True)
class Seen:
    """Input of a decision about the set.

    needed: replicas that puts require. floor: the offset a replica must hold to join. patience_ms:
    how long a live member may be disconnected or lag. awake_ms: since when the master has run
    without a standstill; what members did before that may not have been read yet. unspared: nodes
    that leave however few are left; they hold the whole log, and no put is stored meanwhile.
    """

    needed: int
    floor: int
    patience_ms: int
    progress: Mapping[Replica, ReplicaProgress]
    registered: Mapping[str, Registration]
    drained: Collection[str]
    awake_ms: MonoMs
    unspared: Collection[str] = ()


class SyncState:
    """The set, and its changes whose outcome is unknown."""

    def __init__(
        self, me: Replica, members: SyncStateSet, revision: int, opened: bool = True
    ) -> None:
        """revision: at which the state key held these members. opened: whether it said so, too."""
        self.me = me
        self.opened = opened
        self.members = members
        self.revision = revision
        self._proposed: dict[int, SyncStateSet] = {}  # by the revision they were checked against
        self._gone_ms: dict[Replica, MonoMs] = {}

    @property
    def required(self) -> SyncStateSet:
        """Every replica that the registry may hold in the set at this moment."""
        return self.members.union(*self._proposed.values())

    @property
    def unsettled(self) -> bool:
        """A change was sent, and may have been applied or may yet be."""
        return bool(self._proposed)

    def propose(self, members: SyncStateSet) -> None:
        """A change is about to be sent, checked against the revision that is known."""
        self._proposed[self.revision] = members | self._proposed.get(self.revision, frozenset())

    def observe(self, members: SyncStateSet, revision: int, opened: bool = True) -> None:
        """The registry holds this now.

        A change that was checked against an older revision has been applied or never will be; one
        that was checked against this revision may still be in flight.
        """
        self.members, self.revision, self.opened = members, revision, opened
        self._proposed = {at: new for at, new in self._proposed.items() if at == revision}

    def wanted(self, seen: Seen, now_ms: MonoMs) -> SyncStateSet | None:
        """The set as it should be, None if it is so already."""
        joining = {
            replica
            for replica, reached in seen.progress.items()
            if replica not in self.members
            and replica.node not in seen.drained
            and reached.held >= seen.floor
            and lives(replica, seen.registered)
        }
        joining -= self._too_late(joining, seen, now_ms)
        unspared = {replica.node for replica in joining}.union(seen.unspared)
        leaving = [
            replica
            for replica in sorted(self.members - {self.me})
            if replica.node in unspared or self._is_late(replica, seen, now_ms)
        ]
        # Members that are certainly gone leave first: those kept for the number should be useful.
        leaving.sort(key=lambda one: (one.node not in unspared, lives(one, seen.registered)))
        found = set(self.members) | joining
        for replica in leaving:
            if replica.node in unspared or self._can_spare(replica, found, seen):
                found.discard(replica)
        return frozenset(found) if found != self.members else None

    def _too_late(self, joining: set[Replica], seen: Seen, now_ms: MonoMs) -> set[Replica]:
        """Replicas that lag, if enough members are connected: they would take turns with those."""
        late = {
            replica
            for replica in joining
            if self._is_over(MonoMs(now_ms - seen.progress[replica].lag_ms), seen, now_ms)
        }
        stay = (self.members | joining) - late
        return late if self._there(stay, seen) >= seen.needed else set()

    def _can_spare(self, replica: Replica, found: Collection[Replica], seen: Seen) -> bool:
        """Whether the remaining members can confirm puts, or at least no fewer than before.

        A lagging member that is connected is worth more than a disconnected one: removing it
        confirms nothing sooner, and it may be the last one that holds everything.
        """
        left = [other for other in found if other != replica]
        there = self._there(left, seen) if replica in seen.progress else len(left)
        return there >= seen.needed

    def _there(self, replicas: Collection[Replica], seen: Seen) -> int:
        """How many of them can confirm a put: connected, and alive by the registry as well.

        The connection of a node that lost its power stays open for a while.
        """
        return sum(
            other == self.me or (other in seen.progress and lives(other, seen.registered))
            for other in replicas
        )

    def _is_late(self, replica: Replica, seen: Seen, now_ms: MonoMs) -> bool:
        reached = seen.progress.get(replica)
        if reached is not None:
            self._gone_ms.pop(replica, None)
            since = MonoMs(now_ms - reached.lag_ms)
            return replica.node in seen.drained or self._is_over(since, seen, now_ms)
        gone_since = self._gone_ms.setdefault(replica, now_ms)
        return not lives(replica, seen.registered) or self._is_over(gone_since, seen, now_ms)

    @staticmethod
    def _is_over(since_ms: MonoMs, seen: Seen, now_ms: MonoMs) -> bool:
        """Whether patience is exhausted; time in which the master stalled does not count."""
        return now_ms - max(since_ms, seen.awake_ms) > seen.patience_ms


def lives(replica: Replica, registered: Mapping[str, Registration]) -> bool:
    """Whether the registry names this replica, and not another incarnation of its node."""
    found = registered.get(replica.node)
    return found is not None and found.replica == replica
