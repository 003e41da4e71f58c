"""The samples of one scrape, and which of them are left out where there are too many.

Some series there are once in a node; the others belong to a topic, a consumer group or a kind of
client, of which there may be very many. Of these, those with the fewest messages are left out.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from node.histogram import Histogram
from node.metrics.table import BY_NAME

Value = float | Histogram
Labels = tuple[str, ...]  # values, in the order of the table's names
# Name, labels, value: plain tuples, which the garbage collector need not follow.
Sample = tuple[str, Labels, Value]


@dataclass(slots=True)
class Bundle:
    """The samples of one topic, one group in a topic, or one kind of client; or of the node.

    traffic: messages since the start, and those that wait. series: how many its samples make.
    """

    traffic: float = 0.0
    series: int = 0
    samples: list[Sample] = field(default_factory=list)

    def add(self, name: str, value: Value, *labels: str) -> None:
        """Add a sample of a metric of the table; of a histogram, all that it consists of."""
        assert len(labels) == len(BY_NAME[name].labels), f"{name} has other labels than {labels}"
        self.samples.append((name, labels, value))
        self.series += len(value.counts) + 2 if isinstance(value, Histogram) else 1


@dataclass(slots=True)
class Samples:
    """All samples of a scrape."""

    node: Bundle = field(default_factory=Bundle)
    bundles: list[Bundle] = field(default_factory=list)

    def bundle(self, traffic: float) -> Bundle:
        """A new bundle of samples that belong together: all of them are shown, or none."""
        made = Bundle(traffic)
        self.bundles.append(made)
        return made

    def limited(self, series_max: int) -> tuple[list[Sample], int]:
        """The samples to show, and how many series are left out of them.

        Those of the node are always shown.
        """
        spare = sum(bundle.series for bundle in self.bundles) - series_max
        if spare <= 0:
            return self._of(self.bundles), 0
        dropped = count = 0
        ordered = sorted(self.bundles, key=lambda one: one.traffic)
        while count < spare:
            count += ordered[dropped].series
            dropped += 1
        return self._of(ordered[dropped:]), count

    def _of(self, bundles: Sequence[Bundle]) -> list[Sample]:
        return [*self.node.samples, *(sample for one in bundles for sample in one.samples)]
