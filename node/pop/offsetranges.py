"""A set of offsets as disjoint, sorted ranges: the messages of a queue that are done."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable


class OffsetRanges:
    """Half-open ranges that never touch each other."""

    def __init__(self, ranges: Iterable[Iterable[int]] = ()) -> None:
        """ranges: (first, end) pairs."""
        self._firsts: list[int] = []
        self._ends: list[int] = []
        for first, end in ranges:
            self.add(first, end)

    def __len__(self) -> int:
        """The number of ranges."""
        return len(self._firsts)

    def __contains__(self, offset: int) -> bool:
        return self.end_of(offset) > offset

    def end_of(self, offset: int) -> int:
        """End of the range that contains an offset; the offset itself if none does."""
        at = bisect_right(self._firsts, offset) - 1
        return self._ends[at] if at >= 0 and offset < self._ends[at] else offset

    def next_after(self, offset: int) -> int | None:
        """Start of the first range after an offset."""
        at = bisect_right(self._firsts, offset)
        return self._firsts[at] if at < len(self._firsts) else None

    def add(self, first: int, end: int) -> None:
        """Add [first, end), merged with the ranges that it overlaps or touches."""
        if first >= end:
            return
        low = bisect_left(self._ends, first)
        high = bisect_right(self._firsts, end)
        if low < high:
            first = min(first, self._firsts[low])
            end = max(end, self._ends[high - 1])
        self._firsts[low:high] = [first]
        self._ends[low:high] = [end]

    def drop_below(self, offset: int) -> None:
        """Remove everything below an offset."""
        at = bisect_right(self._ends, offset)
        del self._firsts[:at], self._ends[:at]
        if self._firsts:
            self._firsts[0] = max(self._firsts[0], offset)

    def validate(self) -> str:
        """The first violated invariant, empty if all hold: sorted, with a gap between any two."""
        before = -1
        for first, end in zip(self._firsts, self._ends, strict=True):
            if not before < first < end:
                return f"range [{first}, {end}) follows one that ends at {before}"
            before = end
        return ""

    def pairs(self) -> list[list[int]]:
        """All ranges as [first, end] lists."""
        return [[first, end] for first, end in zip(self._firsts, self._ends, strict=True)]
