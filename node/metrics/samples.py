"""The samples of one scrape, and which of them are left out where there are too many.

Some series there are once in a node; the others belong to a topic, a consumer group or a kind of
client, of which there may be very many. Of these, those with the fewest messages are left out.

There may be hundreds of thousands of series while others send. So they are offered first, in
bundles, as tuples of strings and numbers, which the garbage collector does not follow. Samples are
made of those bundles only that are shown. Bundles and samples are freed as they are taken: all at
once, that stops the process for tens of milliseconds.
"""

from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from duolog_server.node.metrics.table import BY_NAME
from duolog_server.node.runtime.histogram import Histogram

Value = float | Histogram
Labels = tuple[str, ...]  # values, in the order of the table's names
Sample = tuple[Labels, Value]

PAUSE_SECONDS = 0.0002


@dataclass(slots=True)
class Shown:
    """The samples that are shown, by the names of their metrics."""

    found: dict[str, list[Sample]] = field(default_factory=dict)

    def add(self, name: str, value: Value, *labels: str) -> None:
        """Add a sample of a metric of the table, as it is now."""
        assert len(labels) == len(BY_NAME[name].labels), f"{name} has other labels than {labels}"
        if isinstance(value, Histogram):
            value = value.copy()
        self.found.setdefault(name, []).append((labels, value))


Show = Callable[..., None]  # shows a bundle: with a `Shown`, and what was offered


@dataclass(slots=True)
class Samples:
    """All samples of a scrape. node: those that a node has once, shown in any case."""

    node: Shown = field(default_factory=Shown)
    # Of each bundle:
    _traffic: "array[float]" = field(default_factory=lambda: array("d"))
    _series: "array[int]" = field(default_factory=lambda: array("q"))
    _show: list[Show] = field(default_factory=list)
    _facts: list[tuple[Any, ...]] = field(default_factory=list)
    _kept: bytes = b""  # 0 for those that are left out

    def offer(self, traffic: float, series: int, show: Show, *facts: str | float) -> None:
        """A bundle of series that belong together: all of them are shown, or none.

        traffic: messages since the start, and those that wait. show: shows the facts, or nothing
        where what they are about is gone.
        """
        self._traffic.append(traffic)
        self._series.append(series)
        self._show.append(show)
        self._facts.append(facts)

    def one(self, traffic: float, name: str, value: Value, *labels: str) -> None:
        """A bundle of one metric; of a histogram, all series that it consists of."""
        series = len(value.counts) + 2 if isinstance(value, Histogram) else 1
        self.offer(traffic, series, Shown.add, name, value, *labels)  # type: ignore[arg-type]

    def choose(self, series_max: int) -> int:
        """Leave out the bundles with the least traffic; returns how many series these are.

        In a thread: numpy sorts without the interpreter, which lists would keep for tens of ms.
        """
        series = np.array(self._series)
        spare = int(series.sum()) - series_max
        kept = np.ones(len(series), np.uint8)
        dropped = 0
        if spare > 0:
            order = np.lexsort((np.arange(len(series)), np.array(self._traffic)))
            counts = np.cumsum(series[order])
            fewest = int(np.searchsorted(counts, spare)) + 1
            kept[order[:fewest]] = 0
            dropped = int(counts[fewest - 1])
        self._kept = kept.tobytes()
        return dropped

    def take(self) -> Iterator[None]:
        """Show what was chosen, in steps."""
        while self._facts:
            show, facts = self._show.pop(), self._facts.pop()
            if self._kept[len(self._facts)]:
                show(self.node, *facts)
                yield


# Values of labels.
def truth(value: bool) -> str:
    """A boolean as RocketMQ writes it."""
    return "true" if value else "false"


def is_system_group(name: str) -> bool:
    """Whether RocketMQ keeps a group of this name for itself."""
    return name.startswith("CID_RMQ_SYS_")
