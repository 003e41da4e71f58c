"""Events that a master's machine receives, and the effects that it returns; all are values.

The owner passes every event once, in the order of arrival, and executes the effects in the order
in which they were returned, with `perform`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from duolog_server.ha.mandate import Mandate
from duolog_server.ha.waiters import Release
from duolog_server.store.status import PutMessageStatus

# -- events ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Received:
    """A frame came on a connection."""

    session: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Disconnected:
    """A connection has closed; the confirm offset does not fall."""

    session: int


@dataclass(frozen=True, slots=True)
class Flushed:
    """The log was synced, or a put of this node's is now enough."""


@dataclass(frozen=True, slots=True)
class Instructed:
    """The failover machine gives this mastership a new mandate."""

    mandate: Mandate


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The store is fenced or the mastership over: the outcome of waiting puts is unknown."""


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
    """Execute the effects of a master's machine."""
    for effect in effects:
        match effect:
            case Release(tokens, status):
                owner.release(tokens, status)
            case Confirmed():
                owner.confirmed()
            case Close(session, reason):
                owner.close(session, reason)
