"""A replica group's masterships as a line, with the gaps without a master. Pure.

Rules: lengths are on a logarithmic scale, so that seconds of a gap and days of a mastership can
both be seen; where a text needs more room, its part of the line is longer. The mastership that goes
on has the length of its text, so that the line changes only when something happens. Units are those
of SVG, a pixel each.
"""

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from duolog_server.ops.console.view.formatting import duration, pause
from duolog_server.ops.inspection.masterships import Led

HEIGHT = 72
SCALE = 14.0  # for ten times as long
LEAST_MS = 100.0  # has no length
LETTER = 7.0  # of the font, at most on the average
LETTERS_MIN = 6  # "3.4 s" is not shorter than "60 ms"
MARGIN = 16.0  # beside a text
NAME_MAX = 16  # letters of a node's name; the table has all of them
LINE_MAX = 14  # letters of a cause before it wraps
LINES_MAX = 3


@dataclass(frozen=True, slots=True)
class Span:
    """A mastership. label: its epoch and master. length: how long it lasted; empty: it lasts."""

    begin: float
    end: float
    label: str
    length: str
    title: str

    @property
    def middle(self) -> float:
        """The x at which its texts are centred."""
        return (self.begin + self.end) / 2


@dataclass(frozen=True, slots=True)
class Gap:
    """A gap without a master. length: how long. cause: of the mastership after it, in lines."""

    begin: float
    end: float
    length: str
    cause: Sequence[str]
    title: str

    @property
    def middle(self) -> float:
        """The x at which its texts are centred."""
        return (self.begin + self.end) / 2


@dataclass(frozen=True, slots=True)
class TimeLine:
    """says: the line for who cannot see it."""

    width: float
    spans: Sequence[Span]
    gaps: Sequence[Gap]
    says: str
    height: int = HEIGHT


def time_line(masterships: Sequence[Led]) -> TimeLine:
    """The line of some masterships, the oldest first."""
    at, spans, gaps = 0.0, list[Span](), list[Gap]()
    for number, one in enumerate(masterships):
        if number:
            gap = _gap(at, one)
            gaps.append(gap)
            at = gap.end
        span = _span(at, one)
        spans.append(span)
        at = span.end
    return TimeLine(at, spans, gaps, _says(masterships))


def _span(begin: float, one: Led) -> Span:
    label = f"{one.epoch} {_short(one.master)}"
    length = "" if one.lasted_ms is None else duration(one.lasted_ms)
    width = max(_room(label, length), _scaled(one.lasted_ms))
    lasted = f"led for {length}" if length else "leads now"
    title = f"Epoch {one.epoch}: {one.master} {lasted}."
    return Span(begin, begin + width, label, length, title)


def _gap(begin: float, after: Led) -> Gap:
    length = "?" if after.unled_ms is None else pause(after.unled_ms)
    cause = textwrap.wrap(after.cause, LINE_MAX, max_lines=LINES_MAX, placeholder="…")
    width = max(_room(length, *cause), _scaled(after.unled_ms))
    return Gap(begin, begin + width, length, cause, f"Before epoch {after.epoch}, {_unled(after)}.")


def _unled(after: Led) -> str:
    """How long the group had no master before a mastership, and why."""
    cause = f": {after.cause}" if after.cause else ""
    if after.unled_ms is None:
        return f"it is not known how long there was no master{cause}"
    return f"no master for {pause(after.unled_ms)}{cause}"


def _says(masterships: Sequence[Led]) -> str:
    if not masterships:
        return ""
    last = masterships[-1]
    told = f"{last.master} leads epoch {last.epoch}"
    if len(masterships) > 1:
        told += f"; before, {_unled(last)}"
    return f"Time-line of masters: {told}. The table has all of it."


def _scaled(length_ms: int | None) -> float:
    return SCALE * math.log10(1 + max(0, length_ms or 0) / LEAST_MS)


def _room(*lines: str) -> float:
    return LETTER * max(LETTERS_MIN, *map(len, lines)) + MARGIN


def _short(name: str) -> str:
    return name if len(name) <= NAME_MAX else f"{name[: NAME_MAX - 1]}…"
