"""The SyncStateSet and its changes: who must hold a put before it is answered.

Rules: whoever the registry may hold in the set now is required, also while a change is on its way
or its outcome is unknown; a member that goes is required until the registry has said yes; a member
that comes holds everything confirmed and everything from before this epoch; two incarnations of a
node are two replicas; the set never shrinks below the number of replicas that puts ask for, and a
member that is there does not go unless so many are there without it; a replica that is behind
comes in only where fewer are there.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from ha.groupstate import Registration, Replica, SyncStateSet
from ha.mandate import ReplicaProgress
from store.clocks import MonoMs


@dataclass(frozen=True, slots=True)
class Seen:
    """What a change of the set is decided by.

    needed: replicas that puts ask for. floor: what a replica must hold to come in. patience_ms: how
    long a member may be away or behind while it still lives. awake_ms: since when the master has
    not stood still; before that, what members did may not have been read yet.
    """

    needed: int
    floor: int
    patience_ms: int
    progress: Mapping[Replica, ReplicaProgress]
    registered: Mapping[str, Registration]
    drained: Collection[str]
    awake_ms: MonoMs


class SyncState:
    """The set, and the changes of it that are not settled."""

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
        """A change was sent, and may have been made or may yet be."""
        return bool(self._proposed)

    def propose(self, members: SyncStateSet) -> None:
        """A change is about to be sent, checked against the revision that is known."""
        self._proposed[self.revision] = members | self._proposed.get(self.revision, frozenset())

    def observe(self, members: SyncStateSet, revision: int, opened: bool = True) -> None:
        """The registry holds this now.

        A change that was checked against an older revision is made already or never will be; one
        that was checked against this very revision may still be on its way.
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
        renewed = {replica.node for replica in joining}
        leaving = [
            replica
            for replica in sorted(self.members - {self.me})
            if replica.node in renewed or self._is_late(replica, seen, now_ms)
        ]
        # Those who are surely gone first: who stays for the number's sake should be of use.
        leaving.sort(key=lambda one: (one.node not in renewed, lives(one, seen.registered)))
        found = set(self.members) | joining
        for replica in leaving:
            if replica.node in renewed or self._can_spare(replica, found, seen):
                found.discard(replica)
        return frozenset(found) if found != self.members else None

    def _too_late(self, joining: set[Replica], seen: Seen, now_ms: MonoMs) -> set[Replica]:
        """Those who are behind, where enough are there: they would take turns with such members."""
        late = {
            replica
            for replica in joining
            if self._is_over(MonoMs(now_ms - seen.progress[replica].lag_ms), seen, now_ms)
        }
        stay = (self.members | joining) - late
        there = [other for other in stay if other == self.me or other in seen.progress]
        return late if len(there) >= seen.needed else set()

    def _can_spare(self, replica: Replica, found: Collection[Replica], seen: Seen) -> bool:
        """Whether puts can be confirmed by who is left, or no worse than before.

        A late member that is there is worth more than one that is away: without it nothing is
        confirmed sooner, and it may be the last one that holds everything.
        """
        left = [other for other in found if other != replica]
        there = [other for other in left if other == self.me or other in seen.progress]
        return len(there if replica in seen.progress else left) >= seen.needed

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
        """Whether patience is: the time in which the master stood still counts against nobody."""
        return now_ms - max(since_ms, seen.awake_ms) > seen.patience_ms


def lives(replica: Replica, registered: Mapping[str, Registration]) -> bool:
    """Whether the registry names this very replica, and not another one of its node."""
    found = registered.get(replica.node)
    return found is not None and found.replica == replica
