"""Charts of a viewer's last five minutes: lines over axes with labels, as an SVG's paths. Pure.

Rules: heights begin at 0, and all lines of a chart have one scale. The plot has a unit for each
slot of time, and changes only when the newest slot or a value does.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isnan

from duolog_server.ops.console.view.rates import POINTS, SLOT_SECONDS, Flow, sparkline

WIDTH, HEIGHT = POINTS - 1, 100
STEPS = (1, 2, 5, 10)
NONE = "–"


@dataclass(frozen=True, slots=True)
class Line:
    """A series. value: the newest one, in words. path: in the plot."""

    name: str
    value: str
    path: str


@dataclass(frozen=True, slots=True)
class Band:
    """A time without a master, in the plot."""

    begin: float
    width: float
    title: str


@dataclass(frozen=True, slots=True)
class Chart:
    """ticks: labels of the height, from the top. values: of each line, the newest last, in words,
    as JSON. end_ms: wall clock at the begin of the newest slot. says: the chart for who cannot see
    it.
    """

    title: str
    ticks: Sequence[str]
    lines: Sequence[Line]
    values: str
    end_ms: int
    says: str
    bands: Sequence[Band] = ()


@dataclass(frozen=True, slots=True)
class Axes:
    """What the charts of a page share. now: as of the visit. wall_ms: wall clock then."""

    now: float
    wall_ms: int

    @property
    def end_ms(self) -> int:
        """Wall clock at the begin of the newest slot."""
        return self.wall_ms - int(self.now % SLOT_SECONDS * 1000)

    def band(self, begin_ms: int, end_ms: int, title: str) -> Band | None:
        """A time without a master; None: it is not in the plot."""
        begin, end = (self._place(ms) for ms in (begin_ms, end_ms))
        return Band(begin, max(0.5, round(end - begin, 1)), title) if end > 0 else None

    def _place(self, ms: int) -> float:
        slots = (self.end_ms - ms) / 1000 / SLOT_SECONDS
        return round(min(float(WIDTH), max(0.0, WIDTH - slots)), 1)

    def chart(
        self,
        title: str,
        flows: Mapping[str, Flow],
        told: Callable[[float], str],
        least: float,
        bands: Sequence[Band] = (),
    ) -> Chart:
        """told: a value in words. least: the height of the plot is not lower."""
        known = [value for flow in flows.values() for value in flow.points if not isnan(value)]
        top = _rounded_up(max(known, default=0.0), least)
        lines = [
            Line(
                name,
                NONE if flow.now is None else told(flow.now),
                sparkline(flow.points, WIDTH, HEIGHT, top),
            )
            for name, flow in flows.items()
        ]
        words = [
            [NONE if isnan(value) else told(value) for value in flow.points]
            for flow in flows.values()
        ]
        peak = f", at most {told(max(known))} in the last 5 minutes" if known else ", no data yet"
        now = ", ".join(f"{line.name} {line.value}" for line in lines)
        ticks = [told(top), told(top / 2), told(0)]
        return Chart(
            title, ticks, lines, json.dumps(words), self.end_ms, f"{title}: {now}{peak}", bands
        )


def _rounded_up(peak: float, least: float) -> float:
    """A height that is 1, 2 or 5 times a power of ten."""
    if peak <= least:
        return least
    power = 10.0 ** math.floor(math.log10(peak))
    return next((step * power for step in STEPS if peak <= step * power), 10 * power)
