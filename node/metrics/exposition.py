"""Writes samples in Prometheus' text format; the one module that knows its library.

It runs in a thread beside the event loop, which can do nothing while Python runs here: so it
pauses after every few samples, and stops at its deadline.
"""

import threading
import time
from collections.abc import Iterable, Iterator

from prometheus_client import ProcessCollector, generate_latest
from prometheus_client.metrics_core import Metric as Family

from duolog_server.node.metrics.samples import PAUSE_SECONDS, Sample
from duolog_server.node.metrics.table import METRICS, Metric
from duolog_server.node.runtime.histogram import COUNT, SUM, Histogram

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
AT_ONCE = 100  # samples written between two pauses: about half a millisecond
SORTED_AT_ONCE = 1000  # samples taken before it looks whether anybody waits for them
HEADER_LINES = 2  # HELP and TYPE


class Overdue(Exception):
    """The deadline of a scrape has passed, its client is gone, or the node stops."""


class _Families:
    """Families as the library's function takes them."""

    def __init__(self, families: Iterable[Family]) -> None:
        self._families = families

    def collect(self) -> Iterable[Family]:
        """See `prometheus_client.registry.Collector`."""
        return self._families


class Exposition:
    """Writes the metrics of one node. labels: values of the labels that all series of a scope
    have, by scope.
    """

    def __init__(self, labels: dict[str, dict[str, str]]) -> None:
        self._labels = labels
        self._process = ProcessCollector(registry=None)
        self._stopped = False

    def text(
        self, samples: Iterable[Sample], deadline: float, abandoned: threading.Event | None = None
    ) -> list[bytes]:
        """The text, in pieces. deadline: of the monotonic clock. abandoned: set from any thread
        once nobody wants it. Raises Overdue.
        """
        found: dict[str, list[Sample]] = {}
        abandoned = abandoned or threading.Event()
        for number, sample in enumerate(samples):
            found.setdefault(sample[0], []).append(sample)
            if number % SORTED_AT_ONCE == 0 and abandoned.is_set():
                raise Overdue
        pieces = []
        for metric in METRICS:
            for piece in self._pieces(metric, found.pop(metric.name, [])):
                pieces.append(piece)
                if self._stopped or abandoned.is_set() or time.monotonic() > deadline:
                    raise Overdue
                time.sleep(PAUSE_SECONDS)
        pieces.append(generate_latest(_Families(self._process.collect())))
        return pieces

    def stop(self) -> None:
        """End what is being written, from any thread."""
        self._stopped = True

    def _pieces(self, metric: Metric, samples: list[Sample]) -> Iterator[bytes]:
        """The family of a metric; without samples, nothing."""
        for begin in range(0, len(samples), AT_ONCE):
            name = metric.name.removesuffix("_total") if metric.kind == "counter" else metric.name
            family = Family(name, metric.help, metric.kind)
            for sample in samples[begin : begin + AT_ONCE]:
                self._add(family, metric, sample)
            text = generate_latest(_Families([family]))
            yield text if begin == 0 else text.split(b"\n", HEADER_LINES)[HEADER_LINES]

    def _add(self, family: Family, metric: Metric, sample: Sample) -> None:
        _, values, value = sample
        part = values[-1] if len(values) > len(metric.labels) else ""  # of a histogram
        labels = {**self._labels[metric.scope], **dict(zip(metric.labels, values, strict=not part))}
        if isinstance(value, Histogram):
            for word, number in value.parts():
                self._add_part(family, metric, labels, word, number)
        elif part:
            self._add_part(family, metric, labels, part, value)
        else:
            family.add_sample(metric.name, labels, value)

    @staticmethod
    def _add_part(
        family: Family, metric: Metric, labels: dict[str, str], part: str, value: float
    ) -> None:
        """One series of a histogram."""
        if part in (COUNT, SUM):
            family.add_sample(f"{metric.name}{part}", labels, value)
        else:
            family.add_sample(f"{metric.name}_bucket", {**labels, "le": part}, value)
