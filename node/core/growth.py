"""Recent growth of totals. Pure: time arrives as seconds of a monotonic clock.

No timer samples totals: they are compared with what they were when they were asked for before. So
a total that nobody asks for costs nothing, and the first answer is about the time since the start.
"""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import NamedTuple

KEYS_MAX = 10_000  # totals, once for each span; those that were not asked for longest are forgotten


class Growth(NamedTuple):
    """Growth of a total, and its seconds."""

    amount: float
    seconds: float

    @property
    def rate(self) -> float:
        """Per second."""
        return self.amount / self.seconds if self.seconds > 0 else 0.0

    def within(self, seconds: float) -> float:
        """How much of it falls into so many seconds, if it came evenly."""
        return self.amount * min(1.0, seconds / self.seconds) if self.seconds > 0 else 0.0


@dataclass(slots=True)
class _Seen:
    """Two earlier answers: when, and the total."""

    older: tuple[float, float]
    newer: tuple[float, float]


class Totals:
    """Totals that begin at 0, and may begin again."""

    def __init__(self, began: float, most: int = KEYS_MAX) -> None:
        self._began = (began, 0.0)
        self._most = most
        self._seen: dict[tuple[Hashable, float], _Seen] = {}

    def growth(self, key: Hashable, total: float, span: float, now: float) -> Growth:
        """Over at least `span` seconds, as far as it was asked for before, or since the start."""
        seen = self._seen.pop((key, span), None) or _Seen(self._began, self._began)
        due = now - seen.newer[0] >= span
        since, before = seen.newer if due else seen.older
        if due:
            seen.older, seen.newer = seen.newer, (now, total)
        self._seen[key, span] = seen
        if len(self._seen) > self._most:
            del self._seen[next(iter(self._seen))]
        return Growth(total - before if total >= before else total, now - since)

    def __len__(self) -> int:
        return len(self._seen)
