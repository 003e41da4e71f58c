"""Rates of totals: between a scrape and one that was some time before it.

No timer samples anything: without scrapes there are no rates, and nobody who asks for them.
"""

from collections.abc import Hashable


class Rates:
    """Per second, over at least so many seconds as far as scrapes go back, and about twice as many
    at most where they come often. The first one is over the time since the start.
    """

    def __init__(self, seconds: float, now: float) -> None:
        """now: seconds of a monotonic clock, as everywhere here."""
        self._seconds = seconds
        self._older: tuple[float, dict[Hashable, float]] = (now, {})
        self._newer = self._older
        self._base = self._older
        self._filling: dict[Hashable, float] | None = None
        self._now = now

    def begin(self, now: float) -> None:
        """A scrape begins. One that was not ended counts for nothing."""
        due = now - self._newer[0] >= self._seconds
        self._now, self._base = now, self._newer if due else self._older
        self._filling = {} if due else None

    def note(self, key: Hashable, total: float) -> None:
        """Keep a total whose rate is not shown now: a later scrape may show it."""
        if self._filling is not None:
            self._filling[key] = total

    def per_second(self, key: Hashable, total: float) -> float:
        """The rate of a total, which begins at 0, and may begin again."""
        self.note(key, total)
        before = self._base[1].get(key, 0)
        elapsed = self._now - self._base[0]
        return (total - before if total >= before else total) / elapsed if elapsed > 0 else 0.0

    def end(self) -> None:
        """The scrape has asked for all totals: later ones may be compared with it."""
        if self._filling is not None:
            self._older, self._newer = self._newer, (self._now, self._filling)
            self._filling = None
