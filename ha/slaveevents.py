"""What a slave's machine is told, and what it answers: events and effects, all of them values.

The owner tells every event once, in the order in which it came, and does the effects in the order
in which they were answered, with `perform`.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from ha.epochs import Epoch

# -- events ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Connected:
    """The stream to the master is open."""


@dataclass(frozen=True, slots=True)
class Received:
    """The master sent a frame."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Flushed:
    """The commit log was synced."""


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


@dataclass(frozen=True, slots=True)
class Lost:
    """The stream is closed."""

    reason: str


Event = Connected | Received | Flushed | Tick | Lost


# -- effects ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Send:
    """Send a frame to the master."""

    data: bytes


@dataclass(frozen=True, slots=True)
class CloseStream:
    """End the connection; the state says whether and why it is useless to hurry back."""

    reason: str


@dataclass(frozen=True, slots=True)
class Applied:
    """The log or the confirm offset moved: dispatch."""


@dataclass(frozen=True, slots=True)
class FlushSoon:
    """The master counts what is on disk: sync now."""


@dataclass(frozen=True, slots=True)
class Adopt:
    """Take this snapshot of the metadata tables for one's own."""

    metadata: bytes


@dataclass(frozen=True, slots=True)
class Contradicts:
    """The master of this epoch lacks what this node knows to be confirmed: it may not lead."""

    epoch: Epoch
    reason: str


@dataclass(frozen=True, slots=True)
class OlderCopy:
    """This node lacks what it has acknowledged: it must become another replica.

    Its master says so, or its log is damaged and is repaired once that is done.
    """

    reason: str


Effect = Send | CloseStream | Applied | FlushSoon | Adopt | Contradicts | OlderCopy


# -- who does them ---------------------------------------------------------------------------------


class SlaveOwner(Protocol):
    """A node that follows a master."""

    def send(self, data: bytes) -> None:
        """Send a frame to the master, behind those before it."""

    def applied(self) -> None:
        """Log or confirm offset moved: dispatch."""

    def flush_soon(self) -> None:
        """Have the log synced, then say `Flushed`."""

    def adopt(self, metadata: bytes) -> None:
        """Take the master's tables for this node's own."""

    def contradicted(self, epoch: Epoch, reason: str) -> None:
        """The master of an epoch lacks what was confirmed."""

    def older_copy(self, reason: str) -> None:
        """This node lacks what it has acknowledged."""

    def close_stream(self, reason: str) -> None:
        """End the connection, then say `Lost`."""


def perform(effects: Iterable[Effect], owner: SlaveOwner) -> None:
    """Do what a slave's machine says."""
    for effect in effects:
        match effect:
            case Send(data):
                owner.send(data)
            case Applied():
                owner.applied()
            case FlushSoon():
                owner.flush_soon()
            case Adopt(metadata):
                owner.adopt(metadata)
            case Contradicts(epoch, reason):
                owner.contradicted(epoch, reason)
            case OlderCopy(reason):
                owner.older_copy(reason)
            case CloseStream(reason):
                owner.close_stream(reason)
