"""Metrics that RocketMQ's clients push to the node."""

from collections.abc import Iterator

from duolog_server.node.broker import Broker
from duolog_server.node.metrics.samples import Samples


class MeasuredFacts:
    """Shows it by topic and consumer group."""

    def __init__(self, broker: Broker) -> None:
        self._measures = broker.measures

    def read(self, samples: Samples) -> Iterator[None]:
        """Add all of it. The measures keep so few series that none is left out here."""
        if self._measures is None:
            return
        samples.node.add("duolog_client_points_refused_total", self._measures.refused)
        for name, labels, histogram in self._measures.histograms():
            samples.node.add(name, histogram, *labels)
        yield
        for name, labels, value in self._measures.gauges():
            samples.node.add(name, value, *labels)
        yield
