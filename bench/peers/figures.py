"""Samples of the rounds, and what is said of them: the median, the least and the most."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median

from bench.peers.peer import Facts
from bench.peers.rows import BY_NAME, Row


@dataclass(frozen=True, slots=True)
class Sample:
    """One round's figure. second: the p99 of a row that gives p50 and p99."""

    value: float
    second: float | None = None


@dataclass(frozen=True, slots=True)
class Spread:
    """Of several rounds."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Of at least one value."""
        assert values, "a spread has values"
        return cls(median(values), min(values), max(values))


@dataclass(slots=True)
class Cell:
    """A row of a peer: samples, or why there are none."""

    samples: list[Sample] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    same_as: str = ""  # the row whose figures these are

    @property
    def spread(self) -> Spread | None:
        """Of the rounds' values; None without any."""
        return Spread.of([sample.value for sample in self.samples]) if self.samples else None

    @property
    def second(self) -> Spread | None:
        """Of the rounds' second values, where the row has them."""
        seconds = [sample.second for sample in self.samples if sample.second is not None]
        return Spread.of(seconds) if seconds else None


Cells = dict[tuple[str, str], Cell]  # by the names of peer and row


def runs_for(facts: Facts, rows: Iterable[Row]) -> list[Row]:
    """The rows that are run with a peer so that these have figures, in the table's order."""
    wanted = set()
    for row in rows:
        if row.name not in facts.empty:
            wanted.add(BY_NAME[facts.same_as.get(row.name, row.name)].run)
    return [row for row in BY_NAME.values() if row.name in wanted]


def fill_equal(cells: Cells, peer: str, facts: Facts) -> None:
    """Give rows that are another row's figure that figure, and say so."""
    for name, other in facts.same_as.items():
        if (source := cells.get((peer, other))) is not None:
            cells[peer, name] = Cell(source.samples, source.reasons, other)


def best(cells: Cells, row: Row, peers: Iterable[str]) -> str | None:
    """The peer with the best median of a row; None where fewer than two have one."""
    found = {
        peer: spread.median
        for peer in peers
        if (cell := cells.get((peer, row.name))) is not None and (spread := cell.spread) is not None
    }
    if len(found) < 2:
        return None
    choose = max if row.more_is_better else min
    return choose(found, key=lambda peer: found[peer])
