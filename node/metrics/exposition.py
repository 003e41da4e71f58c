"""Writes samples in Prometheus' text format.

It runs in a thread beside the event loop, which can do nothing while Python runs here: so it
pauses after every few samples, and stops at its deadline.
"""

import time
from collections.abc import Iterable, Iterator
from math import inf, isnan

from prometheus_client import ProcessCollector, generate_latest
from prometheus_client.metrics_core import Metric as Family

from duolog_server.node.metrics.samples import PAUSE_SECONDS, Labels, Sample, Value
from duolog_server.node.metrics.table import METRICS, Metric
from duolog_server.node.runtime.histogram import COUNT, SUM, Histogram

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
AT_ONCE = 200  # samples written between two pauses: about half a millisecond


class Overdue(Exception):
    """The deadline of a scrape has passed, or the node stops."""


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
        self._labels = {
            scope: [_label(name, value) for name, value in values.items()]
            for scope, values in labels.items()
        }
        self._process = ProcessCollector(registry=None)
        self._stopped = False

    def text(self, found: dict[str, list[Sample]], deadline: float) -> list[bytes]:
        """The text, in pieces. Takes the samples. deadline: monotonic seconds. Raises Overdue."""
        pieces = []
        for metric in METRICS:
            for piece in self._pieces(metric, found.pop(metric.name, [])):
                pieces.append(piece)
                if self._stopped or time.monotonic() > deadline:
                    raise Overdue
                time.sleep(PAUSE_SECONDS)
        pieces.append(generate_latest(_Families(self._process.collect())))
        return pieces

    def few(self, found: dict[str, list[Sample]]) -> Iterator[bytes]:
        """The text of few samples, without pauses."""
        for metric in METRICS:
            yield from self._pieces(metric, found.pop(metric.name, []))

    def stop(self) -> None:
        """End what is being written, from any thread."""
        self._stopped = True

    def _pieces(self, metric: Metric, samples: list[Sample]) -> Iterator[bytes]:
        """The family of a metric; without samples, nothing. Takes them, as they are freed so."""
        head = f"# HELP {metric.name} {metric.help}\n# TYPE {metric.name} {metric.kind}\n"
        while samples:
            some = samples[-AT_ONCE:]
            del samples[-AT_ONCE:]
            lines = [line for sample in some for line in self._lines(metric, *sample)]
            yield "".join((head, *lines)).encode()
            head = ""

    def _lines(self, metric: Metric, values: Labels, value: Value) -> Iterator[str]:
        own = map(_label, metric.labels, values)
        labels = ",".join((*self._labels[metric.scope], *own))
        if isinstance(value, Histogram):
            for word, number in value.parts():
                yield _line(*_part(metric.name, labels, word), number)
        else:
            yield _line(metric.name, labels, value)


def _part(name: str, labels: str, part: str) -> tuple[str, str]:
    """The name and the labels of one series of a histogram."""
    if part in (COUNT, SUM):
        return f"{name}{part}", labels
    bound = _label("le", part)
    return f"{name}_bucket", f"{labels},{bound}" if labels else bound


def _line(name: str, labels: str, value: float) -> str:
    return f"{name}{{{labels}}} {_number(value)}\n" if labels else f"{name} {_number(value)}\n"


def _label(name: str, value: str) -> str:
    if "\\" in value or "\n" in value or '"' in value:
        value = value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
    return f'{name}="{value}"'


def _number(value: float) -> str:
    """A value as Go reads it."""
    if isinstance(value, int):
        return str(int(value))  # a boolean as well
    if isnan(value) or value in (inf, -inf):
        return "NaN" if isnan(value) else "+Inf" if value > 0 else "-Inf"
    return repr(float(value))
