"""Events that the failover machine receives, and the effects that it returns; all are values.

The owner passes every event once, in the order of arrival, and executes the effects in the order
in which they were returned.
"""

from dataclasses import dataclass
from typing import Any

from duolog_server.ha.beginnings import Cause
from duolog_server.ha.epochs import Epoch
from duolog_server.ha.groupstate import Registration
from duolog_server.ha.mandate import Mandate
from duolog_server.ha.membership import Membership
from duolog_server.ha.registry import Snapshot, Transaction
from duolog_server.store.clocks import MonoMs

# -- events ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Leased:
    """A lease was granted, or renewed; it is good until the deadline on this node's clock."""

    lease: int
    deadline_ms: MonoMs


@dataclass(frozen=True, slots=True)
class LeaseLost:
    """The lease no longer exists in the registry."""

    lease: int


@dataclass(frozen=True, slots=True)
class Observed:
    """The group's keys, read after the last `Observe`; None: the read failed."""

    snapshot: Snapshot | None


@dataclass(frozen=True, slots=True)
class Committed:
    """The answer to a transaction: its revision, None where a check failed."""

    number: int
    revision: int | None


@dataclass(frozen=True, slots=True)
class Uncertain:
    """A transaction has no answer: it may have been applied, may yet be, or may never be."""

    number: int


@dataclass(frozen=True, slots=True)
class Changed:
    """Something changed in the registry: read it."""


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


@dataclass(frozen=True, slots=True)
class Noted:
    """A membership was saved to the disk; None: the disk has no room for it now."""

    membership: Membership | None


@dataclass(frozen=True, slots=True)
class HandOver:
    """An operator wants another node to be the master; empty: any other."""

    target: str
    token: Any


@dataclass(frozen=True, slots=True)
class ElectUnclean:
    """An operator makes this node the master, even with less log than others. epoch: the last."""

    epoch: Epoch
    token: Any


@dataclass(frozen=True, slots=True)
class Contradicted:
    """The master of an epoch lacks bytes that this node knows to be confirmed."""

    epoch: Epoch
    reason: str


@dataclass(frozen=True, slots=True)
class FoundOlder:
    """This node lacks acknowledged bytes: its master says so, or its log is damaged."""

    reason: str


Event = (
    Leased
    | LeaseLost
    | Observed
    | Committed
    | Uncertain
    | Changed
    | Tick
    | Noted
    | HandOver
    | ElectUnclean
    | Contradicted
    | FoundOlder
)


# -- effects ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AskLease:
    """Get a lease and keep it renewed; an older one is no longer renewed."""


@dataclass(frozen=True, slots=True)
class DropLease:
    """End a lease."""

    lease: int


@dataclass(frozen=True, slots=True)
class Observe:
    """Read the group's keys, one read at a time."""


@dataclass(frozen=True, slots=True)
class Commit:
    """Send a transaction, once; without an answer it is `Uncertain`."""

    number: int
    transaction: Transaction


@dataclass(frozen=True, slots=True)
class Note:
    """Save a membership durably, one at a time, then pass `Noted`: nothing is decided before."""

    membership: Membership


@dataclass(frozen=True, slots=True)
class Lead:
    """Open the epoch as its master, then execute what `leads` returns; or `cannot_lead`.

    cause: why there is an election. unled_since_ms: when this node first knew of no master; None:
    it had known of none since its start.
    """

    epoch: Epoch
    mandate: Mandate
    cause: Cause = Cause.STARTED
    unled_since_ms: MonoMs | None = None


@dataclass(frozen=True, slots=True)
class Instruct:
    """Give the master its new mandate at once.

    With a smaller set, or a lease that is still valid, it may confirm what it holds already.
    """

    mandate: Mandate


@dataclass(frozen=True, slots=True)
class Follow:
    """Copy this master's log, and accept nothing older than its epoch."""

    master: Registration
    epoch: Epoch


@dataclass(frozen=True, slots=True)
class Stand:
    """Neither lead nor follow."""

    reason: str


@dataclass(frozen=True, slots=True)
class Wake:
    """Step with a Tick at this time at the latest."""

    at_ms: MonoMs


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer an operator; empty error: done. unknown: it may be done nevertheless, now or later."""

    token: Any
    error: str
    unknown: bool = False


Effect = (
    AskLease
    | DropLease
    | Observe
    | Commit
    | Note
    | Lead
    | Instruct
    | Follow
    | Stand
    | Wake
    | Answer
)
