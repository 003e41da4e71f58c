"""The page docs/peers.md: the table, and everything one needs to disagree with it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.peers.figures import Cell, Spread, best
from bench.peers.limits import TITLES
from bench.peers.peer import Peer
from bench.peers.rounds import Outcome
from bench.peers.rows import FULL, Row, Scale

SAME = "†"
BUSY_SHARE = 0.05  # of the processors' time: where others used more, a machine is not quiet


@dataclass(frozen=True, slots=True)
class Circumstances:
    """Under which a run took place."""

    machine: Mapping[str, Any]
    others: float  # share of the processors' time that other programs used meanwhile
    seconds: float  # that it took
    complete: bool  # all peers and all rows were asked for

    @property
    def quiet(self) -> bool:
        """Whether hardly anything else ran."""
        return self.others <= BUSY_SHARE


@dataclass(frozen=True, slots=True)
class Report:
    """What is written down."""

    peers: Sequence[Peer]
    rows: Sequence[Row]
    scale: Scale
    outcome: Outcome
    circumstances: Circumstances

    @property
    def quotable(self) -> bool:
        """Whether its figures may be compared with others': a full run on a quiet machine."""
        where = self.circumstances
        return where.complete and where.quiet and self.scale == FULL


def number(value: float, unit: str) -> str:
    """As the table writes it."""
    if unit == "s":
        return f"{value:,.2f}"
    return f"{value:,.0f}"


def spread_text(spread: Spread, unit: str, rounds: int) -> str:
    """The median, and the least and the most of several rounds."""
    text = number(spread.median, unit)
    if rounds < 2:
        return text
    return f"{text} ({number(spread.least, unit)}–{number(spread.most, unit)})"


def cell_text(cell: Cell, row: Row, is_best: bool) -> str:
    """A cell of the table; `-` without a figure."""
    if cell.spread is None:
        return "-"
    rounds = len(cell.samples)
    words = [spread_text(cell.spread, row.unit, rounds)]
    if cell.second is not None:
        words.append(spread_text(cell.second, row.unit, rounds))
    text = " / ".join(words)
    return (f"**{text}**" if is_best else text) + (f" {SAME}" if cell.same_as else "")


def table(report: Report) -> str:
    """The comparison in Markdown."""
    names = [peer.name for peer in report.peers]
    lines = [
        "| work | " + " | ".join(peer.facts.title for peer in report.peers) + " |",
        "|---|" + "--:|" * len(names),
    ]
    for row in report.rows:
        # Who is ahead is said only of figures that may be quoted.
        ahead = best(report.outcome.cells, row, names) if report.quotable else None
        cells = [
            cell_text(report.outcome.cells.get((name, row.name), Cell()), row, name == ahead)
            for name in names
        ]
        lines.append(f"| {row.title}, {row.unit} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def limits_table(report: Report) -> str:
    """Bare limits of the same run."""
    lines = ["| limit | measured |", "|---|--:|"]
    for name, values in report.outcome.limits.items():
        title, unit = TITLES.get(name, (name, ""))
        lines.append(f"| {title}, {unit} | {spread_text(Spread.of(values), unit, len(values))} |")
    return "\n".join(lines)


def empty_cells(report: Report) -> str:
    """Why cells have no figure, or one of fewer rounds; the same reason once."""
    found: dict[tuple[str, str], list[str]] = {}
    for peer in report.peers:
        for row in report.rows:
            cell = report.outcome.cells.get((peer.name, row.name), Cell())
            reasons = cell.reasons or (
                [peer.facts.empty[row.name]] if row.name in peer.facts.empty else []
            )
            for reason in dict.fromkeys(reasons):
                found.setdefault((peer.facts.title, reason), []).append(row.title)
    return "\n".join(
        f"- {title}, {'all rows' if len(rows) == len(report.rows) else '; '.join(rows)}: {reason}"
        for (title, reason), rows in found.items()
    )


def standing(report: Report) -> str:
    """What kind of run this was."""
    where, scale = report.circumstances, report.scale
    words = [
        f"{scale.rounds} round{'s' if scale.rounds > 1 else ''}, {scale.seconds:g} s a figure, "
        f"{where.seconds / 60:.0f} minutes in all; other programs used {100 * where.others:.0f} % "
        f"of the time of {where.machine['cores']} cores."
    ]
    if report.quotable:
        return words[0]
    reasons = []
    if scale != FULL:
        reasons.append("a run of fewer rounds or of less time than a full one")
    if not where.complete:
        reasons.append("a run of some peers or rows")
    if not where.quiet:
        reasons.append("a run on a machine on which others worked at the same time")
    return (
        f"**These figures are not to be quoted: they are of {_listed(reasons)}.** "
        f"`make bench-peers` on a quiet machine replaces this page. {words[0]}"
    )


def _listed(words: Sequence[str]) -> str:
    """a, b, and c."""
    return ", and ".join(part for part in (", ".join(words[:-1]), words[-1]) if part)


def peer_section(report: Report, peer: Peer) -> str:
    """Settings, versions, and what speaks for and against."""
    facts = peer.facts
    lines = [f"### {facts.title}", ""]
    if versions := report.outcome.versions.get(peer.name):
        lines.append("- Versions: " + ", ".join(f"{k} {v}" for k, v in versions.items()) + ".")
    processes = f"{facts.processes} and 1 client"
    if facts.replicated_processes:
        processes += f"; replicated: {facts.replicated_processes} and 1 client"
    lines.append(f"- Processes: {processes}.")
    lines += [f"- {text[0].upper()}{text[1:]}." for text in facts.settings]
    lines += [f"- Speaks {text}." for text in facts.favours]
    return "\n".join(lines)


PAGE = """# duolog beside its peers

Written by `make bench-peers` (`python -m bench.peers`). {standing}

{table}

Each cell is the median of the rounds, with the least and the most in parentheses; in a full run on
a quiet machine the best of a row is bold. {same} marks the figure of another row: the peer has one
call for both.

Bare limits of the same rounds:

{limits}

## Cells without a figure, or with fewer rounds

{empty}

## What is measured

- Machine: {cpu}, {cores} cores, Linux {kernel}, Python {python}; commit {commit}. Servers and
  client share the cores: a client that costs more leaves its server less.
- One broker and one client process, each with the peer's own official client, over loopback.
  Replicated rows have two copies (JetStream three), all on this machine and this disk.
- Acknowledged from the page cache: no peer syncs a message before it acknowledges it.
- Peers run in turns; each round starts with another one, on new directories and new processes.
- A producing client warms up for {warm:g} s and then measures {seconds:g} s, until the last
  acknowledgement. A message that is not acknowledged fails the cell.
- Right before a client sends as fast as it can, {pages} MiB of a file's pages are taken from the
  machine and given back, alike for every peer: a virtual machine gets memory that it did not use
  from its host, slowly (the last limit above), and a broker's memory is in use.
- "One at a time" waits for each acknowledgement before the next message. On an idle virtual
  machine, waking a sleeping core takes most of that time: compare within a run only.
- Consumption reads a topic that was filled before, from its beginning, and fails if it gets one
  message more or less. The clock runs from the first delivery, whose messages are not counted.
- Processor time is what all servers, or the client, used by /proc while the client measured, for a
  million acknowledged messages of 100 B.
- Recovery (JetStream in one round, Kafka in two): {recovered} MiB in messages of 1 KiB, SIGKILL to
  the broker, then from the start of its process to the first acknowledged message of a client that
  was there before and keeps trying.
- All bodies are the letter x; nobody compresses.

## Peers

{peers}
"""


def page(report: Report) -> str:
    """The whole page."""
    where = report.circumstances.machine
    return PAGE.format(
        standing=standing(report),
        table=table(report),
        same=SAME,
        limits=limits_table(report),
        empty=empty_cells(report) or "None.",
        cpu=where["cpu"] or "unknown processor",
        cores=where["cores"],
        kernel=where["kernel"],
        python=where["python"],
        commit=where["commit"] or "unknown",
        warm=report.scale.warm_seconds,
        seconds=report.scale.seconds,
        recovered=report.scale.recovered_bytes >> 20,
        pages=report.scale.pages_bytes >> 20,
        peers="\n\n".join(peer_section(report, peer) for peer in report.peers),
    )
