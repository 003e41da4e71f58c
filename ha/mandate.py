"""The terms on which an elected master stores and acknowledges, and what failover reads of it.

Only the failover machine issues a mandate, a new one whenever something in it changes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from duolog_server.ha.groupstate import Replica, SyncStateSet
from duolog_server.ha.guarantee import Guarantee
from duolog_server.store.clocks import MonoMs


@dataclass(frozen=True, slots=True)
class ReplicaProgress:
    """A connected replica: the log offset that counts, and how long ago it had everything."""

    held: int
    lag_ms: int


@dataclass(frozen=True, slots=True)
class Mandate:
    """Instructions for the master of one epoch, `me`.

    members: the SyncStateSet as the registry has it. required: every replica that may be in it at
    this moment. deadline_ms: of the lease; nothing is stored or acknowledged from then on. opened:
    the group has a state to return to. paused: why puts are refused for a moment, empty if they are
    accepted. guarantee: what puts are promised, by the group or by this node's stronger settings.
    """

    me: Replica
    members: SyncStateSet
    required: SyncStateSet
    deadline_ms: MonoMs
    opened: bool = True
    paused: str = ""
    guarantee: Guarantee = Guarantee()

    def held(self, own: int, progress: Mapping[Replica, ReplicaProgress]) -> int:
        """Offset below which all required replicas have the log; 0 if one is not connected."""
        least = own
        for replica in self.required:
            if replica == self.me:
                continue
            reached = progress.get(replica)
            if reached is None:
                return 0
            least = min(least, reached.held)
        return least


class Mastership(Protocol):
    """An elected master, as its failover machine sees it: to read, never to change."""

    @property
    def epoch_confirmed(self) -> bool:
        """The barrier of this epoch is on all required replicas."""

    @property
    def log_end(self) -> int:
        """The end of the log."""

    @property
    def join_floor(self) -> int:
        """The offset that a replica must hold to join the SyncStateSet."""

    @property
    def patience_ms(self) -> int:
        """How long a live member may be disconnected or lag."""

    def held_by(self, replica: Replica) -> int:
        """Offset that a connected replica has acknowledged, durably if required; 0 for none."""

    def progress(self, now_ms: MonoMs) -> Mapping[Replica, ReplicaProgress]:
        """The offset of each connected replica, and its lag in time."""
