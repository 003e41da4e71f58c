"""Which clients are connected, as far as they say what they are."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from duolog_server.node.broker import Broker
from duolog_server.node.metrics.samples import Samples, is_system_group, truth

# By the number of RocketMQ's ClientType, 1 is a producer.
PRODUCER = 1
MODES = {2: "push", 3: "pop", 4: "pull", 5: "push", 6: "pop"}


class Client(Protocol):
    """A client of RocketMQ's gRPC API."""

    @property
    def kind(self) -> int:
        """The client's ClientType."""

    @property
    def group(self) -> str:
        """The client's consumer group."""

    @property
    def language(self) -> str:
        """The client's language, as reported."""

    @property
    def version(self) -> str:
        """The client's version, as reported."""


Clients = Callable[[], Sequence[Client]]


class ClientFacts:
    """Counts them by what they are. clients: RocketMQ's; the SDK's members the broker knows."""

    def __init__(self, broker: Broker, clients: Clients) -> None:
        self._broker = broker
        self._clients = clients

    def read(self, samples: Samples) -> Iterator[None]:
        """Add all of them, in steps."""
        producers: Counter[tuple[str, ...]] = Counter()
        consumers: Counter[tuple[str, ...]] = Counter()
        for client in self._clients():
            said = client.language, client.version
            if client.kind == PRODUCER:
                producers[*said, "grpc"] += 1
            elif client.kind in MODES:
                consumers[client.group, *said, MODES[client.kind], "grpc"] += 1
            yield
        for group, _, members in self._broker.groups.reading(self._broker.times.mono_ms()):
            consumers[group, "PYTHON", "", "push", "duolog"] += members
            yield
        for labels, count in producers.items():
            samples.one(count, "rocketmq_producer_connections", count, *labels)
        for labels, count in consumers.items():
            system = truth(is_system_group(labels[0]))
            samples.one(count, "rocketmq_consumer_connections", count, *labels, system)
        yield


# Metrics that RocketMQ's clients push to the node.
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
