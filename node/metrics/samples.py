"""The samples of one scrape, and which of them are left out where there are too many.

Some series there are once in a node; the others belong to a topic, a consumer group or a kind of
client, of which there may be very many. Of these, those with the fewest messages are left out.

A scrape may make hundreds of thousands of samples while others send. So they lie in one list, as
tuples of strings and numbers, which the garbage collector does not follow; and they are freed as
they are taken: all at once, that stops the process for tens of milliseconds.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from duolog_server.node.metrics.table import BY_NAME
from duolog_server.node.runtime.histogram import Histogram

Value = float | Histogram
Labels = tuple[str, ...]  # values, in the order of the table's names
# Name, labels, value.
Sample = tuple[str, Labels, Value]

TAKEN_AT_ONCE = 200  # bundles taken between two pauses: about 0.2 ms
PAUSE_SECONDS = 0.0002


@dataclass(slots=True)
class Bundle:
    """The samples of one topic, one group in a topic, or one kind of client; or of the node."""

    samples: list[Sample] = field(default_factory=list)
    # Whether histograms stay whole. Otherwise a sample is one series: that of a bucket has its
    # bound as one more label, those of the count and the sum a word (`Histogram.parts`).
    histograms: bool = True

    def add(self, name: str, value: Value, *labels: str) -> None:
        """Add a sample of a metric of the table; of a histogram, all that it consists of."""
        assert len(labels) == len(BY_NAME[name].labels), f"{name} has other labels than {labels}"
        if self.histograms or not isinstance(value, Histogram):
            self.samples.append((name, labels, value))
            return
        self.samples += [(name, (*labels, part), number) for part, number in value.parts()]


@dataclass(slots=True)
class Samples:
    """All samples of a scrape."""

    node: Bundle = field(default_factory=Bundle)
    _rows: list[Sample] = field(default_factory=list)  # of all bundles, one after another
    _bundles: list[tuple[float, int]] = field(default_factory=list)  # traffic, and the first row

    def bundle(self, traffic: float) -> Bundle:
        """A new bundle of samples that belong together: all of them are shown, or none.

        traffic: messages since the start, and those that wait. The bundle before it is complete.
        """
        self._bundles.append((traffic, len(self._rows)))
        return Bundle(self._rows, histograms=False)

    def over(self, series_max: int) -> tuple[set[int], int]:
        """The bundles to leave out, by number, and how many series these are."""
        spare = len(self._rows) - series_max
        if spare <= 0:
            return set(), 0
        ends = [*(first for _, first in self._bundles[1:]), len(self._rows)]
        left_out, count = set[int](), 0
        for number in sorted(range(len(ends)), key=self._bundles.__getitem__):
            if count >= spare:
                break
            left_out.add(number)
            count += ends[number] - self._bundles[number][1]
        return left_out, count

    def taken(self, left_out: set[int]) -> Iterator[Sample]:
        """Take all samples except those left out, in a thread: with pauses."""
        while self._bundles:
            _, first = self._bundles.pop()
            if len(self._bundles) not in left_out:
                yield from self._rows[first:]
            del self._rows[first:]
            if len(self._bundles) % TAKEN_AT_ONCE == 0:
                time.sleep(PAUSE_SECONDS)
        yield from self.node.samples


# Values of labels.
def truth(value: bool) -> str:
    """A boolean as RocketMQ writes it."""
    return "true" if value else "false"


def is_system_group(name: str) -> bool:
    """Whether RocketMQ keeps a group of this name for itself."""
    return name.startswith("CID_RMQ_SYS_")
