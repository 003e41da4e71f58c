"""What a master's machine is told, and what it answers: events and effects, all of them values.

The owner tells every event once, in the order in which it came, and does the effects in the order
in which they were answered.
"""

from dataclasses import dataclass

from ha.grouptransfer import Release
from ha.mandate import Mandate

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

    offset: int


Effect = Close | Release | Confirmed
