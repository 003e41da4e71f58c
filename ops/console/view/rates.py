"""A viewer's history of numbers: rates of counters, gauges, and what stalls.

Rules: kept for one viewer. A series has at most POINTS. Of each kind there are at most SERIES_MAX:
the one that nobody has looked at the longest makes room, and while all of them are looked at, a
further one is not kept and has no line.
"""

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf, isnan, nan
from typing import Generic, TypeVar

from duolog import Durations

POINTS = 60  # kept of each series
SERIES_MAX = 2000
LEAST_KNOWN = 3  # points, or there is no line
LEAST_SECONDS = 0.5  # of which a rate is
SLOT_SECONDS = 5.0  # of a point: they are the last five minutes
GAP_SECONDS = 15.0  # what was not looked at for longer is no longer looked at

T = TypeVar("T")


class _Kept(Generic[T]):
    """Series by name, in the order in which they were looked at."""

    def __init__(self, made: Callable[[float], T], last_seconds: float = inf) -> None:
        """last_seconds: after which a series that was not looked at begins anew."""
        self._made = made
        self._last_seconds = last_seconds
        self._series: dict[str, tuple[float, T]] = {}

    def at(self, name: str, now: float) -> T:
        """A series, which is looked at by this; a new one where there is none."""
        known = self._series.pop(name, None)
        if known is None or now - known[0] > self._last_seconds:
            series = self._made(now)
        else:
            series = known[1]
        if self._has_room(now):
            self._series[name] = now, series
        return series

    def _has_room(self, now: float) -> bool:
        if len(self._series) < SERIES_MAX:
            return True
        oldest = next(iter(self._series))
        if now - self._series[oldest][0] <= GAP_SECONDS:
            return False
        del self._series[oldest]
        return True


@dataclass(slots=True)
class _Gauge:
    """drawn: slot and newest value that its line is of."""

    slot: int
    points: "array[float]" = field(default_factory=lambda: array("f"))
    drawn: tuple[int, float] = (0, nan)
    line: str = ""

    def put(self, slot: int, value: float) -> None:
        """The value of a slot, in the place of one that it has."""
        if slot == self.slot and self.points:
            self.points[-1] = value
            return
        missed = slot - self.slot - 1 if self.points else 0
        between = nan if missed * SLOT_SECONDS >= GAP_SECONDS else value  # looks are rare
        for one in (*[between] * min(POINTS, missed), value):
            if len(self.points) == POINTS:
                del self.points[0]
            self.points.append(one)
        self.slot = slot


@dataclass(slots=True)
class _Counter:
    """at, count: of the last look. rate: between the last two. begun: the look from which the mean
    of the slot is.
    """

    at: float
    count: int | None
    means: _Gauge
    rate: float | None = None
    begun: tuple[float, int] = (0.0, 0)
    origin: str = ""


@dataclass(slots=True)
class _Spread:
    """counts: of the last look. begun: those from which the values of the slot are."""

    slot: int
    counts: Sequence[int] = ()
    begun: Sequence[int] = ()
    origin: str = ""


@dataclass(slots=True)
class _Still:
    since: float
    value: object


class Rates:
    """Numbers by name. now: seconds of a clock that does not go back."""

    def __init__(self) -> None:
        self._counters = _Kept(lambda now: _Counter(now, None, _Gauge(_slot(now))))
        self._gauges = _Kept(lambda now: _Gauge(_slot(now)))
        self._spreads = _Kept(lambda now: _Spread(_slot(now)))
        self._still = _Kept(lambda now: _Still(now, None), GAP_SECONDS)

    def note(self, name: str, count: int, now: float, origin: str = "") -> "Flow":
        """The rate of a counter per second, and its means in the last slots.

        A counter that went back began anew. origin: who counts; another one began by itself.
        """
        known, slot = self._counters.at(name, now), _slot(now)
        if known.count is None or known.origin != origin:
            known.at, known.count, known.begun, known.rate = now, count, (now, count), None
            known.origin = origin
        passed = now - known.at
        if passed >= LEAST_SECONDS:
            if count >= known.count:
                if slot != known.means.slot:
                    known.begun = known.at, known.count
                since, before = known.begun
                known.rate = (count - known.count) / passed
                known.means.put(slot, (count - before) / (now - since))
            else:
                known.begun = now, count
            known.at, known.count = now, count
        return Flow(known.rate, tuple(known.means.points))

    def noted(self, name: str, now: float) -> "Flow":
        """The means of a counter in the last slots, while nobody counts: a gap since then."""
        means, slot = self._counters.at(name, now).means, _slot(now)
        if means.points and slot != means.slot:
            means.put(slot, nan)
        return Flow(None, tuple(means.points))

    def gauge(self, name: str, value: float, now: float) -> "Flow":
        """A value, and the greatest ones of the last slots, oldest first; nan: not looked at."""
        return Flow(value, tuple(self._gauge(name, value, now).points))

    def quantile(
        self, name: str, share: float, spread: Durations, now: float, origin: str
    ) -> "Flow":
        """What a share of the durations did not exceed in each of the last slots; nan: nothing
        took time then. origin: as for `note`.
        """
        known, slot, counts = self._spreads.at(name, now), _slot(now), spread.counts
        if (known.origin, len(known.counts)) != (origin, len(counts)):
            known.begun = known.counts = counts
        elif slot != known.slot:
            known.begun = known.counts
        known.slot, known.counts, known.origin = slot, counts, origin
        new = [count - before for count, before in zip(counts, known.begun, strict=True)]
        value, series = quantile_of(share, spread.bounds, new), self._gauges.at(name, now)
        series.put(slot, value)
        return Flow(None if isnan(value) else value, tuple(series.points))

    def line(self, name: str, value: float, now: float) -> str:
        """The sparkline of a gauge, which is drawn again where it has changed."""
        known = self._gauge(name, value, now)
        newest = known.slot, known.points[-1]
        if newest != known.drawn:
            known.line, known.drawn = sparkline(known.points), newest
        return known.line

    def _gauge(self, name: str, value: float, now: float) -> _Gauge:
        known, slot = self._gauges.at(name, now), _slot(now)
        same = slot == known.slot and known.points
        known.put(slot, max(known.points[-1], value) if same else value)
        return known

    def still_seconds(self, name: str, value: object, now: float) -> float:
        """For how long a value has been the same, as far as it was looked at."""
        known = self._still.at(name, now)
        if known.value != value:
            known.value, known.since = value, now
        return now - known.since


@dataclass(frozen=True, slots=True)
class Flow:
    """A number that changes, and its last minutes; None until it is known."""

    now: float | None
    points: Sequence[float]

    @property
    def line(self) -> str:
        """Its last minutes as a sparkline."""
        return sparkline(self.points)


def quantile_of(share: float, bounds: Sequence[float], counts: Sequence[int]) -> float:
    """What a share of some durations did not exceed, taken as evenly spread between two bounds; nan
    where there are none. counts: up to each bound, and above the last one, which is then the
    answer.
    """
    rank = share * sum(counts)
    low, below = 0.0, 0
    for bound, count in zip(bounds, counts, strict=False):
        if count and below + count >= rank:
            return low + (bound - low) * (rank - below) / count
        low, below = bound, below + count
    return low if rank else nan


def _slot(now: float) -> int:
    return int(now // SLOT_SECONDS)


def sparkline(points: Sequence[float], width: int = 96, height: int = 20, most: float = 0.0) -> str:
    """The path of an SVG line that ends at the right, in a box of that size; nan is a gap.

    most: what reaches its top; 0: the greatest of the points.
    """
    known = [value for value in points if not isnan(value)]
    if len(known) < LEAST_KNOWN:
        return ""
    most = most or max(known) or 1.0
    step = width / (POINTS - 1)
    first = width - step * (len(points) - 1)
    heights = [
        "" if isnan(value) else f"{height - 1 - (height - 2) * value / most:.1f}"
        for value in points
    ]
    path = ""
    for k, (before, y, after) in enumerate(
        zip(["", *heights[:-1]], heights, [*heights[1:], ""], strict=True)
    ):
        if y and not before:
            path += f"M{first + k * step:.1f} {y}{'' if after else 'h1'}"
        elif y and not before == y == after:  # a level part needs its ends only
            path += f"L{first + k * step:.1f} {y}"
    return path
