"""Bar charts as SVG by hand: one panel a row, a bar a peer, a line from the least to the most.

Colours follow the reader's scheme, light or dark; the background stays the page's own.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from bench.peers.figures import Cell
from bench.peers.page import Report, number
from bench.peers.rows import Row

WIDTH = 820
LABELS = 160  # width of the peers' names
VALUES = 130  # room for the figure behind the longest bar
BAR = 16
STEP = 22
HEAD = 34
GAP = 22
STYLE = """
text { font: 12px system-ui, sans-serif; fill: #1f2328; }
.title { font-weight: 600; font-size: 13px; }
.quiet { fill: #59636e; }
.bar { fill: #8c959f; }
.own { fill: #0969da; }
.second { opacity: .35; }
.spread { stroke: #1f2328; stroke-width: 1.5; }
.axis { stroke: #d1d9e0; }
@media (prefers-color-scheme: dark) {
  text { fill: #f0f6fc; }
  .quiet { fill: #9198a1; }
  .bar { fill: #656c76; }
  .own { fill: #4493f8; }
  .spread { stroke: #f0f6fc; }
  .axis { stroke: #3d444d; }
}
"""


@dataclass(frozen=True, slots=True)
class Plot:
    """Panels of one file."""

    name: str
    title: str
    rows: Sequence[str]


PLOTS = (
    Plot(
        "throughput",
        "Messages and bytes a second",
        ("batch_small", "post_small", "batch_large", "post_large", "consume"),
    ),
    Plot(
        "replicated",
        "Replicated",
        ("replicated_batch_small", "replicated_post_small", "replicated_batch_large"),
    ),
    Plot(
        "latency",
        "One at a time, processor time, recovery",
        ("single", "replicated_single", "server_cpu_batch", "client_cpu_batch", "recovery"),
    ),
)


@dataclass(frozen=True, slots=True)
class _Bar:
    title: str
    own: bool
    cell: Cell


def drawing(report: Report, plot: Plot) -> str:
    """The SVG of a plot; rows without a figure have no panel, a plot without panels is empty."""
    panels, top = [], 8
    for name in plot.rows:
        row = next((row for row in report.rows if row.name == name), None)
        bars = _bars(report, row) if row is not None else []
        if row is not None and bars:
            panels.append(_panel(row, bars, top))
            top += HEAD + STEP * len(bars) + GAP
    if not panels:
        return ""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{top}" '
        f'viewBox="0 0 {WIDTH} {top}" role="img" aria-label="{escape(plot.title)}">\n'
        f"<title>{escape(plot.title)}</title>\n<style>{STYLE}</style>\n"
        + "\n".join(panels)
        + "\n</svg>\n"
    )


def _bars(report: Report, row: Row) -> list[_Bar]:
    found = []
    for peer in report.peers:
        cell = report.outcome.cells.get((peer.name, row.name), Cell())
        if cell.samples:
            found.append(_Bar(peer.facts.title, peer.name == "duolog", cell))
    return found


def _panel(row: Row, bars: Sequence[_Bar], top: int) -> str:
    best = "more is better" if row.more_is_better else "less is better"
    spreads = [spread for bar in bars for spread in (bar.cell.spread, bar.cell.second) if spread]
    scale = (WIDTH - LABELS - VALUES) / (max(spread.most for spread in spreads) or 1.0)
    bottom = top + HEAD + STEP * len(bars) - (STEP - BAR)
    lines = [
        f'<text class="title" x="0" y="{top + 14}">{escape(row.title)}, {escape(row.unit)} '
        f'<tspan class="quiet" font-weight="400">({best})</tspan></text>',
        f'<line class="axis" x1="{LABELS}" x2="{LABELS}" y1="{top + HEAD - 6}" y2="{bottom + 4}"/>',
    ]
    for place, bar in enumerate(bars):
        lines += _bar(bar, row.unit, top + HEAD + STEP * place, scale)
    return "\n".join(lines)


def _bar(bar: _Bar, unit: str, y: int, scale: float) -> list[str]:
    spread, second = bar.cell.spread, bar.cell.second
    assert spread is not None, "a bar has samples"
    kind, middle = "own" if bar.own else "bar", y + BAR / 2
    text, farthest = number(spread.median, unit), spread.most
    lines = [
        f'<text x="{LABELS - 8}" y="{y + 12}" text-anchor="end">{escape(bar.title)}</text>',
    ]
    if second is not None:
        text, farthest = f"{text} / {number(second.median, unit)}", max(farthest, second.median)
        lines.append(_rectangle(f"{kind} second", y, second.median * scale))
    lines.append(_rectangle(kind, y, spread.median * scale))
    if spread.most > spread.least:
        x1, x2 = LABELS + spread.least * scale, LABELS + spread.most * scale
        lines.append(
            f'<line class="spread" x1="{x1:.1f}" x2="{x2:.1f}" y1="{middle}" y2="{middle}"/>'
        )
    x = LABELS + farthest * scale + 6
    lines.append(f'<text x="{x:.1f}" y="{y + 12}">{escape(text)}</text>')
    return lines


def _rectangle(kind: str, y: int, width: float) -> str:
    return (
        f'<rect class="{kind}" x="{LABELS}" y="{y}" width="{max(width, 1):.1f}" height="{BAR}" '
        f'rx="2"/>'
    )
