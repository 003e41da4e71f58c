"""What a master's machine is told, and what it answers: events and effects, all of them values.

The owner tells every event once, in the order in which it came, and does the effects in the order
in which they were answered, with `perform`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ha.grouptransfer import Release
from ha.mandate import Mandate
from store.status import PutMessageStatus

# -- events ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Received:
    """A frame came on a connection."""

    session: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Disconnected:
    """A connection is gone; what was confirmed stays confirmed."""

    session: int


@dataclass(frozen=True, slots=True)
class Flushed:
    """The log was synced, or a put of this node's is now enough."""


@dataclass(frozen=True, slots=True)
class Instructed:
    """The failover machine says what this mastership goes by from now on."""

    mandate: Mandate


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The store is fenced or the mastership over: nobody knows what becomes of puts that wait."""


Event = Received | Disconnected | Flushed | Instructed | Tick | Ended


# -- effects ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Close:
    """End a connection."""

    session: int
    reason: str


@dataclass(frozen=True, slots=True)
class Confirmed:
    """The confirm offset moved: dispatch."""


CONFIRMED = Confirmed()
Effect = Close | Release | Confirmed


# -- who does them ---------------------------------------------------------------------------------


class MasterOwner(Protocol):
    """A node that is a master."""

    def release(self, tokens: Sequence[Any], status: PutMessageStatus) -> None:
        """Answer the puts that waited."""

    def confirmed(self) -> None:
        """The confirm offset moved: dispatch, and let the slaves know."""

    def close(self, session: int, reason: str) -> None:
        """End a connection."""


def perform(effects: Iterable[Effect], owner: MasterOwner) -> None:
    """Do what a master's machine says."""
    for effect in effects:
        match effect:
            case Release(tokens, status):
                owner.release(tokens, status)
            case Confirmed():
                owner.confirmed()
            case Close(session, reason):
                owner.close(session, reason)
