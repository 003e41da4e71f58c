"""A histogram with fixed bounds: what takes how long, counted where it happens."""

from bisect import bisect_left
from collections.abc import Iterator

COUNT, SUM = "_count", "_sum"


class Histogram:
    """Counts of durations in seconds, or of other numbers.

    bounds: inclusive upper ones, ascending; above is one more.
    One `observe` of a batch is all that it costs: the reader adds up the counts.
    """

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, seconds: float) -> None:
        """Count one."""
        self.counts[bisect_left(self.bounds, seconds)] += 1
        self.sum += seconds

    def copy(self) -> "Histogram":
        """A copy of the current state."""
        made = Histogram(self.bounds)
        made.counts, made.sum = list(self.counts), self.sum
        return made

    def parts(self) -> Iterator[tuple[str, float]]:
        """The series that it is shown as: up to each bound, then the count and the sum."""
        count = 0
        for bound, more in zip((*map(str, self.bounds), "+Inf"), self.counts, strict=True):
            count += more
            yield bound, count
        yield COUNT, count
        yield SUM, self.sum
