"""How a mastership began: why, and after how long without a master. Its barrier record says it.

For operators alone: no decision is based on it.
"""

import enum
from collections.abc import Mapping
from dataclasses import dataclass

from duolog_server.store.clocks import MonoMs


class Cause(enum.StrEnum):
    """Why a mastership began.

    | cause | before it |
    |-------|-----------|
    | STARTED | no other master: the group began, or the configuration names the master |
    | HANDED_OVER | a planned switch, or a drain |
    | LEASE_ENDED | the last master stopped, died, or could not renew its lease |
    | DEPOSED | a member proved that the last master lacked confirmed messages |
    | UNCLEAN | an operator elected this node by hand, whatever others held |
    """

    STARTED = "STARTED"
    HANDED_OVER = "HANDED_OVER"
    LEASE_ENDED = "LEASE_ENDED"
    DEPOSED = "DEPOSED"
    UNCLEAN = "UNCLEAN"


@dataclass(frozen=True, slots=True)
class Beginning:
    """unled_ms: how long the group had no master, as the new master knows; None: unknown."""

    cause: Cause | None = None
    unled_ms: int | None = None

    def to_json(self) -> dict[str, str | int]:
        """Encode as fields of a barrier record."""
        fields = {"cause": self.cause, "unledMs": self.unled_ms}
        return {name: value for name, value in fields.items() if value is not None}

    @staticmethod
    def from_json(value: Mapping[str, object]) -> "Beginning":
        """Unknown where a barrier does not say it, or an unknown version wrote it."""
        cause, unled_ms = value.get("cause"), value.get("unledMs")
        return Beginning(
            Cause[cause] if isinstance(cause, str) and cause in Cause.__members__ else None,
            unled_ms if isinstance(unled_ms, int) and 0 <= unled_ms < 1 << 63 else None,
        )


STARTED = Beginning(Cause.STARTED)


def beginning(
    cause: Cause, unled_since_ms: MonoMs | None, followed_ms: MonoMs | None, now_ms: MonoMs
) -> Beginning:
    """How a mastership begins now.

    unled_since_ms: when the registry first named no master. followed_ms: when this node last heard
    from a master that it followed. A master that fails answers nobody before its lease ends, too;
    in a planned switch it may have had nothing to say for a while.
    """
    known = [since for since in (unled_since_ms,) if since is not None]
    if cause is Cause.LEASE_ENDED and followed_ms is not None:
        known.append(followed_ms)
    return Beginning(cause, max(0, now_ms - min(known)) if known else None)
