"""A self-contained HTML page with tables and plots."""

import html
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 1000, 220, 70, 16, 34
COLOURS = ("#2980b9", "#c0392b", "#16a085", "#8e44ad", "#d35400", "#2c3e50", "#7f8c8d", "#27ae60")
LINES_MAX = len(COLOURS)  # of a plot: each has a colour of its own
Points = Sequence[tuple[float, float]]
Merge = Callable[[Iterable[float]], float]
_PAGE = Environment(
    loader=PackageLoader("duolog_server.pipeline", ""),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    keep_trailing_newline=True,
).get_template("page.html")


def page(title: str, parts: Sequence[str]) -> str:
    """A whole page. parts: HTML."""
    return _PAGE.render(title=title, parts=parts)


def heading(text: str) -> str:
    """A heading between parts."""
    return f"<h2>{html.escape(text)}</h2>"


def facts(rows: Sequence[tuple[str, str]]) -> str:
    """Names with their values."""
    cells = "".join(
        f"<tr><th>{html.escape(name)}</th><td>{html.escape(value)}</td></tr>"
        for name, value in rows
    )
    return f'<table class="words">{cells}</table>'


def table(rows: Sequence[Mapping[str, Any]], most: int = 200) -> str:
    """Rows as a table; only the first ones if there are many."""
    if not rows:
        return "<p>nothing</p>"
    names = list(rows[0])
    head = "".join(f"<th>{html.escape(name)}</th>" for name in names)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(_text(row[name]))}</td>" for name in names) + "</tr>"
        for row in rows[:most]
    )
    more = f"<p>and {len(rows) - most} more</p>" if len(rows) > most else ""
    return f"<table><tr>{head}</tr>{body}</table>{more}"


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:,.1f}"
    return f"{value:,}" if type(value) is int else str(value)


def largest(series: Mapping[str, Points], merge: Merge) -> dict[str, Points]:
    """The largest lines, and all others as one: at each x, their values merged."""
    if len(series) <= LINES_MAX:
        return dict(series)
    order = sorted(series, key=lambda name: (-merge(y for _, y in series[name]), name))
    others: dict[float, list[float]] = {}
    for name in order[LINES_MAX - 1 :]:
        for x, y in series[name]:
            others.setdefault(x, []).append(y)
    kept = {name: series[name] for name in series if name in set(order[: LINES_MAX - 1])}
    rest = f"{len(order) - len(kept)} others ({'sum' if merge is sum else 'highest'})"
    return {**kept, rest: [(x, merge(values)) for x, values in sorted(others.items())]}


def lines(series: Mapping[str, Points], unit: str, labels: Any, merge: Merge = sum) -> str:
    """Lines over time, at most LINES_MAX.

    Args:
        series: by name: points (x, y), y not negative.
        unit: of y.
        labels: called with the least and the greatest x: their texts.
        merge: sum, or max where values of several lines cannot be added.
    """
    series = largest(series, merge)
    points = [point for row in series.values() for point in row]
    if not points:
        return "<p>nothing</p>"
    low, high = min(x for x, _ in points), max(x for x, _ in points)
    top = max(y for _, y in points) or 1
    top = int(top) if top == int(top) else top

    def at(x: float, y: float) -> str:
        across = (x - low) / (high - low) if high > low else 0.5
        return f"{LEFT + across * (WIDTH - LEFT - 20):.1f},{TOP + (1 - y / top) * HEIGHT:.1f}"

    floor = TOP + HEIGHT
    parts = [f'<svg width="{WIDTH}" height="{floor + BOTTOM + 16 * len(series)}" role="img">']
    parts.append(f'<path d="M{LEFT},{TOP}V{floor}H{WIDTH - 20}" fill="none" stroke="#999"/>')
    parts.append(f'<text x="2" y="{TOP + 8}">{_text(top)} {html.escape(unit)}</text>')
    parts.append(f'<text x="2" y="{floor}">0</text>')
    begin, end = labels(low, high)
    parts.append(f'<text x="{LEFT}" y="{floor + 16}">{html.escape(begin)}</text>')
    edge = f'x="{WIDTH - 20}" y="{floor + 16}" text-anchor="end"'
    parts.append(f"<text {edge}>{html.escape(end)}</text>")
    for k, (name, row) in enumerate(series.items()):
        colour = COLOURS[k % len(COLOURS)]
        ordered = sorted(row)
        path = " ".join(at(x, y) for x, y in ordered)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}"/>')
        parts += [
            f'<circle cx="{at(x, y).split(",")[0]}" cy="{at(x, y).split(",")[1]}" r="2" '
            f'fill="{colour}"/>'
            for x, y in ordered
        ]
        y_text = floor + BOTTOM + 16 * k
        parts.append(f'<text x="{LEFT}" y="{y_text}" fill="{colour}">{html.escape(name)}</text>')
    return "".join([*parts, "</svg>"])
