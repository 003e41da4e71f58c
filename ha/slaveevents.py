"""Events that a slave's machine receives, and the effects that it returns; all are values.

The owner passes every event once, in the order of arrival, and executes the effects in the order
in which they were returned, with `perform`.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from duolog_server.ha.epochs import Epoch

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
    """End the connection; the state says whether and why an early retry is useless."""

    reason: str


@dataclass(frozen=True, slots=True)
class Applied:
    """The log or the confirm offset moved: dispatch."""


@dataclass(frozen=True, slots=True)
class FlushSoon:
    """The master counts what is on disk: sync now."""


@dataclass(frozen=True, slots=True)
class Adopt:
    """Adopt this snapshot of the metadata tables."""

    metadata: bytes


@dataclass(frozen=True, slots=True)
class Contradicts:
    """The master of this epoch lacks bytes known here to be confirmed: it may not lead."""

    epoch: Epoch
    reason: str


@dataclass(frozen=True, slots=True)
class OlderCopy:
    """The node found that it lacks bytes that it acknowledged: it must become another replica.

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
        """Sync the log, then pass `Flushed`."""

    def adopt(self, metadata: bytes) -> None:
        """Adopt the master's tables."""

    def contradicted(self, epoch: Epoch, reason: str) -> None:
        """The master of an epoch lacks confirmed bytes."""

    def older_copy(self, reason: str) -> None:
        """Report that this node lacks bytes that it acknowledged."""

    def close_stream(self, reason: str) -> None:
        """End the connection, then say `Lost`."""


def perform(effects: Iterable[Effect], owner: SlaveOwner) -> None:
    """Execute the effects of a slave's machine."""
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
