"""A run as a page: what was asked, what was found, and the timeline as a plot."""

import html
from collections import Counter
from pathlib import Path

from duolog_server.chaos.history import FAIL, OK, UNKNOWN
from duolog_server.chaos.run import Result
from duolog_server.pipeline import page as pages

WIDTH, HEIGHT, LEFT, TOP = 1100, 260, 60, 30
COLOURS = {
    "kill": "#c0392b",
    "pause": "#8e44ad",
    "disconnect": "#d35400",
    "cut_one_way": "#e67e22",
    "restart": "#16a085",
    "etcd_kill": "#2c3e50",
    "disk_full": "#7f8c8d",
    "power_cut_all": "#000000",
    "switch": "#2980b9",
}
EPOCH_COLOURS = ("#eaf2f8", "#fef5e7")


def write(result: Result, path: Path, title: str) -> None:
    """Write the page."""
    path.write_text(page(result, title))


def page(result: Result, title: str) -> str:
    """The page's text."""
    verdict = "passed" if result.passed else f"invalid: {result.invalid}"
    verdict = "FAILED" if result.findings else verdict
    outcomes = result.history.outcomes()
    kinds = Counter(fault.kind for fault in result.faults)
    windows = result.unavailable()
    rows = [
        ("verdict", verdict),
        ("faults", ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items())) or "none"),
        ("sends", f"{outcomes[OK]:,} ok, {outcomes[UNKNOWN]:,} unknown, {outcomes[FAIL]:,} failed"),
        ("polls", f"{len(result.history.polls):,}"),
        *((k.replace("_", " "), f"{n:,}") for k, n in result.history.other_outcomes().items()),
        ("log compared", f"{result.log_bytes:,} bytes on {len(result.history.drains)} replicas"),
        ("elections", f"{len(result.epochs)}"),
        ("without an answer", f"{len(windows)} spans, {sum(b - a for a, b in windows):.1f} s"),
        ("lasted", f"{result.seconds:.0f} s"),
    ]
    rows += [
        (f"first answer after {kind}", quantiles(result, kind))
        for kind in sorted({row.kind for row in result.failovers})
    ]
    if result.refusals:
        counts = Counter(result.refusals).most_common()
        told = "; ".join(f"{count} {why}" for why, count in counts)
        rows.append(("switches ordered again", told))
    tone = "good" if result.passed else "bad"
    found = "".join(f'<li class="bad">{html.escape(str(row))}</li>' for row in result.findings)
    parts = [
        f'<p class="{tone}">{html.escape(verdict)}</p>',
        pages.facts(rows),
        f"<ul>{found}</ul>",
        plot(result),
        legend(),
        pages.heading("Faults"),
        faults_table(result),
    ]
    return pages.page(title, parts)


def quantiles(result: Result, kind: str) -> str:
    """p50, p99 and the longest."""
    p50, p99 = result.quantile((kind,), 0.5), result.quantile((kind,), 0.99)
    count = sum(1 for row in result.failovers if row.kind == kind)
    longest = result.quantile((kind,), 1.0)
    return f"p50 {p50:.2f} s, p99 {p99:.2f} s, longest {longest:.2f} s ({count})"


def plot(result: Result) -> str:
    """Throughput over time, epochs behind it, faults and windows without an answer."""
    total = max(result.seconds, 1e-9)
    bins = max(1, min(WIDTH - LEFT, int(total * 2)))
    counts = [0] * bins
    for send in result.history.acknowledged():
        counts[min(bins - 1, int(send.end / total * bins))] += 1
    per_second = [count / (total / bins) for count in counts]
    highest = max([*per_second, 1.0])

    def x(at: float) -> float:
        return LEFT + min(1.0, max(0.0, at / total)) * (WIDTH - LEFT)

    def y(rate: float) -> float:
        return TOP + HEIGHT - rate / highest * HEIGHT

    parts = [f'<svg width="{WIDTH + 20}" height="{TOP + HEIGHT + 60}">']
    changes = [*result.epochs, (total, 0, "")]
    for k, (at, epoch, master) in enumerate(result.epochs):
        end = changes[k + 1][0]
        parts.append(
            f'<rect x="{x(at):.1f}" y="{TOP}" width="{max(0.5, x(end) - x(at)):.1f}" '
            f'height="{HEIGHT}" fill="{EPOCH_COLOURS[k % 2]}">'
            f"<title>epoch {epoch}: {html.escape(master)}</title></rect>"
        )
    for a, b in result.unavailable():
        parts.append(
            f'<rect x="{x(a):.1f}" y="{TOP + HEIGHT + 4}" width="{max(1.0, x(b) - x(a)):.1f}" '
            f'height="8" fill="#c0392b"><title>no answer for {b - a:.2f} s</title></rect>'
        )
    points = " ".join(
        f"{x((k + 0.5) / bins * total):.1f},{y(rate):.1f}" for k, rate in enumerate(per_second)
    )
    parts.append(f'<polyline points="{points}" fill="none" stroke="#1e8449" stroke-width="1"/>')
    for fault in result.faults:
        colour = COLOURS.get(fault.kind, "#555")
        parts.append(
            f'<line x1="{x(fault.struck):.1f}" x2="{x(fault.struck):.1f}" y1="{TOP - 12}" '
            f'y2="{TOP + HEIGHT}" stroke="{colour}" stroke-width="1">'
            f"<title>{fault.kind} {html.escape(fault.hit)} at {fault.struck:.1f} s</title></line>"
        )
    for k in range(6):
        at = total * k / 5
        parts.append(f'<text x="{x(at):.0f}" y="{TOP + HEIGHT + 30}">{at:.0f} s</text>')
    parts.append(f'<text x="2" y="{TOP + 10}">{highest:,.0f}/s</text>')
    parts.append(f'<text x="2" y="{TOP + HEIGHT}">0</text></svg>')
    return "".join(parts)


def legend() -> str:
    """Which line is which."""
    words = [f'<span style="color:{colour}">| {kind}</span>' for kind, colour in COLOURS.items()]
    return (
        f"<p>{' '.join(words)}<br>green: acknowledged puts a second; bands: epochs (who led, on "
        "the mouse); red below: no put was answered</p>"
    )


def faults_table(result: Result) -> str:
    """Every fault."""
    rows = [
        {
            "struck (s)": fault.struck,
            "fault": fault.kind,
            "node": fault.hit,
            "from": fault.other,
            "undone (s)": fault.undone,
        }
        for fault in result.faults
    ]
    return pages.table(rows, most=len(rows))
