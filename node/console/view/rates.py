"""Counters as rates, with the last minutes of each. For one viewer, while it looks."""

from collections import deque
from dataclasses import dataclass, field

POINTS = 60  # kept of each rate
SERIES_MAX = 2000
LEAST_SECONDS = 0.5  # between two points


@dataclass(slots=True)
class _Series:
    at: float
    count: int
    points: deque[float] = field(default_factory=lambda: deque(maxlen=POINTS))


class Rates:
    """Rates of counters by name; a counter that went back began anew."""

    def __init__(self) -> None:
        self._series: dict[str, _Series] = {}

    def note(self, name: str, count: int, now: float) -> tuple[float, ...]:
        """The rates per second until now, oldest first; none at first. now: seconds."""
        known = self._series.pop(name, None)
        if known is None:
            while len(self._series) >= SERIES_MAX:
                del self._series[next(iter(self._series))]  # noted the longest ago
            self._series[name] = _Series(now, count)
            return ()
        self._series[name] = known
        passed = now - known.at
        if passed >= LEAST_SECONDS:
            if count >= known.count:
                known.points.append((count - known.count) / passed)
            known.at, known.count = now, count
        return tuple(known.points)


def sparkline(points: tuple[float, ...], width: int = 96, height: int = 18) -> str:
    """The points of an SVG polyline: a line from the left, in a box of that size."""
    if not points:
        return ""
    most = max(points) or 1.0
    step = width / (POINTS - 1)
    first = width - step * (len(points) - 1)
    return " ".join(
        f"{first + k * step:.1f},{height - 1 - (height - 2) * value / most:.1f}"
        for k, value in enumerate(points)
    )


__all__ = ["Rates", "sparkline"]
