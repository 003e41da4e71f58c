"""The masterships of a replica group in words: how long each lasted, and what came before it. Pure.

Rules: a mastership ends when nobody leads any more, not when the next one begins. Its times are of
its master's clock, the time without a master is of the next one's: where clocks differ, a length
may be wrong by as much, and is never negative.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from duolog import Mastership  # most of a command's start

LAST_MASTER = "the last master"  # where the one before is not known


@dataclass(frozen=True, slots=True)
class Led:
    """A mastership.

    begin_ms: ms since 1970. lasted_ms: None: it lasts. cause: why it began, in words; empty: not
    known. unled_ms: how long nobody led before it; None: not known, or nobody had led yet.
    """

    epoch: int
    master: str
    begin_ms: int
    lasted_ms: int | None
    cause: str
    unled_ms: int | None


def led(masterships: "Sequence[Mastership]") -> list[Led]:
    """The masterships that a group's master tells, in their order: the oldest first."""
    found = []
    for at, one in enumerate(masterships):
        before = masterships[at - 1].master if at else LAST_MASTER
        lasted = _lasted_ms(one, masterships[at + 1]) if at + 1 < len(masterships) else None
        cause = _words(one.cause, before)
        found.append(Led(one.epoch, one.master, one.begin_ms, lasted, cause, one.unled_ms))
    return found


def _lasted_ms(one: "Mastership", following: "Mastership") -> int:
    return max(0, following.begin_ms - (following.unled_ms or 0) - one.begin_ms)


def _words(cause: str, before: str) -> str:
    """A cause as a sentence has it. before: the master before; a newer version has other causes."""
    match cause:
        case "STARTED":
            return "start"
        case "HANDED_OVER":
            return "planned switch"
        case "LEASE_ENDED":
            return f"the lease of {before} ended"
        case "DEPOSED":
            return f"{before} lacked confirmed messages"
        case "UNCLEAN":
            return "unclean election by hand"
        case _:
            return cause.lower().replace("_", " ")
