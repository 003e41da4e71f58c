"""What the failover machine is told, and what it answers: events and effects, all of them values.

The owner tells every event once, in the order in which it came, and does the effects in the order
in which they were answered.
"""

from dataclasses import dataclass
from typing import Any

from ha.epochs import Epoch
from ha.groupstate import Registration
from ha.mandate import Mandate
from ha.membership import Membership
from ha.registry import Snapshot, Transaction
from store.clocks import MonoMs

# -- events ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Leased:
    """A lease was granted, or renewed; it is good until the deadline on this node's clock."""

    lease: int
    deadline_ms: MonoMs


@dataclass(frozen=True, slots=True)
class LeaseLost:
    """The registry does not know the lease any more."""

    lease: int


@dataclass(frozen=True, slots=True)
class Observed:
    """The group's keys, read after the last `Observe` was asked for; None: the read failed."""

    snapshot: Snapshot | None


@dataclass(frozen=True, slots=True)
class Committed:
    """The answer to a transaction: its revision, None where a check failed."""

    number: int
    revision: int | None


@dataclass(frozen=True, slots=True)
class Uncertain:
    """No answer to a transaction: it was made, or may yet be, or never."""

    number: int


@dataclass(frozen=True, slots=True)
class Changed:
    """Something changed in the registry: look."""


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


@dataclass(frozen=True, slots=True)
class Noted:
    """A membership that was to be noted is on the disk; None: it has no room for it now."""

    membership: Membership | None


@dataclass(frozen=True, slots=True)
class HandOver:
    """An operator wants another node to be the master; empty: any other."""

    target: str
    token: Any


@dataclass(frozen=True, slots=True)
class ElectUnclean:
    """An operator makes this node the master, whatever others may have held. epoch: the last."""

    epoch: Epoch
    token: Any


@dataclass(frozen=True, slots=True)
class Contradicted:
    """The master of an epoch lacks what this node knows to be confirmed."""

    epoch: Epoch
    reason: str


@dataclass(frozen=True, slots=True)
class FoundOlder:
    """This node lacks what it has acknowledged: its master says so, or its log is damaged."""

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
    """Get a lease and keep it renewed; an older one is not renewed any more."""


@dataclass(frozen=True, slots=True)
class DropLease:
    """End a lease."""

    lease: int


@dataclass(frozen=True, slots=True)
class Observe:
    """Read the group's keys, one read at a time."""


@dataclass(frozen=True, slots=True)
class Commit:
    """Send a transaction, once: no answer is Uncertain."""

    number: int
    transaction: Transaction


@dataclass(frozen=True, slots=True)
class Note:
    """Note a membership durably, one at a time, then say `Noted`: until then nothing is decided."""

    membership: Membership


@dataclass(frozen=True, slots=True)
class Lead:
    """Open the epoch as its master, then do what `leads` says; or what `cannot_lead` says."""

    epoch: Epoch
    mandate: Mandate


@dataclass(frozen=True, slots=True)
class Instruct:
    """Tell the master at once what it goes by from now on.

    With a smaller set, or a lease that goes on, it may confirm what it holds already.
    """

    mandate: Mandate


@dataclass(frozen=True, slots=True)
class Follow:
    """Copy this master's log, and accept nothing older than its epoch."""

    master: Registration
    epoch: Epoch


@dataclass(frozen=True, slots=True)
class Stand:
    """Lead nobody, follow nobody."""

    reason: str


@dataclass(frozen=True, slots=True)
class Wake:
    """Step with a Tick at this time at the latest."""

    at_ms: MonoMs


@dataclass(frozen=True, slots=True)
class Answer:
    """Tell an operator; empty error: done. unknown: it may be done all the same, now or later."""

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
