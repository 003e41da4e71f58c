"""A histogram with fixed bounds: what takes how long, counted where it happens."""

from bisect import bisect_left


class Histogram:
    """Counts of durations in seconds. bounds: inclusive upper ones, ascending; above is one more.

    One `observe` of a batch is all that it costs: whoever shows it adds up the counts.
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
        """As it is now."""
        made = Histogram(self.bounds)
        made.counts, made.sum = list(self.counts), self.sum
        return made
