"""A viewer's history of numbers: rates of counters, gauges, and what stalls.

Rules: kept for one viewer. A series has at most POINTS. Of each kind there are at most SERIES_MAX:
the one that nobody has looked at the longest makes room, and while all of them are looked at, a
further one is not kept and has no line.
"""

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf, isnan, nan
from typing import Generic, TypeVar

POINTS = 60  # kept of each series
SERIES_MAX = 2000
LEAST_SECONDS = 0.5  # between two points of a rate
SLOT_SECONDS = 5.0  # of a point of a gauge: they are the last five minutes
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
class _Counter:
    at: float
    count: int | None
    points: "array[float]"


@dataclass(slots=True)
class _Gauge:
    """drawn: slot and newest value that its line is of."""

    slot: int
    points: "array[float]"
    drawn: tuple[int, float] = (0, nan)
    line: str = ""


@dataclass(slots=True)
class _Still:
    since: float
    value: object


class Rates:
    """Numbers by name. now: seconds of a clock that does not go back."""

    def __init__(self) -> None:
        self._counters = _Kept(lambda now: _Counter(now, None, array("d")))
        self._gauges = _Kept(lambda now: _Gauge(_slot(now), array("f")))
        self._still = _Kept(lambda now: _Still(now, None), GAP_SECONDS)

    def note(self, name: str, count: int, now: float) -> tuple[float, ...]:
        """The rates of a counter per second until now, oldest first; none at first.

        A counter that went back began anew.
        """
        known = self._counters.at(name, now)
        if known.count is None:
            known.count = count
        passed = now - known.at
        if passed >= LEAST_SECONDS:
            if count >= known.count:
                _add(known.points, (count - known.count) / passed)
            known.at, known.count = now, count
        return tuple(known.points)

    def gauge(self, name: str, value: float, now: float) -> tuple[float, ...]:
        """The greatest values of a gauge in the last slots, oldest first; nan: not looked at."""
        return tuple(self._gauge(name, value, now).points)

    def line(self, name: str, value: float, now: float) -> str:
        """The sparkline of a gauge, which is drawn again where it has changed."""
        known = self._gauge(name, value, now)
        newest = known.slot, known.points[-1]
        if newest != known.drawn:
            known.line, known.drawn = sparkline(known.points), newest
        return known.line

    def _gauge(self, name: str, value: float, now: float) -> _Gauge:
        known, slot = self._gauges.at(name, now), _slot(now)
        if slot == known.slot and known.points:
            known.points[-1] = max(known.points[-1], value)
            return known
        for _ in range(min(POINTS, slot - known.slot - 1)):
            _add(known.points, nan)
        _add(known.points, value)
        known.slot = slot
        return known

    def still_seconds(self, name: str, value: object, now: float) -> float:
        """For how long a value has been the same, as far as it was looked at."""
        known = self._still.at(name, now)
        if known.value != value:
            known.value, known.since = value, now
        return now - known.since


@dataclass(frozen=True, slots=True)
class Flow:
    """A number that changes, and the line of its last minutes; None until it is known."""

    now: float | None
    line: str

    @staticmethod
    def of(points: Sequence[float]) -> "Flow":
        """A rate a second."""
        return Flow(points[-1] if points else None, sparkline(points))


def _slot(now: float) -> int:
    return int(now // SLOT_SECONDS)


def _add(points: "array[float]", value: float) -> None:
    if len(points) == POINTS:
        del points[0]
    points.append(value)


def sparkline(points: Sequence[float], width: int = 96, height: int = 18) -> str:
    """The path of an SVG line that ends at the right, in a box of that size; nan is a gap."""
    if not points:
        return ""
    most = max((value for value in points if not isnan(value)), default=0.0) or 1.0
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
            path += f"M{first + k * step:.1f} {y}h1"
        elif y and not before == y == after:  # a level part needs its ends only
            path += f"L{first + k * step:.1f} {y}"
    return path
