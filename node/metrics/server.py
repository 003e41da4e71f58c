"""The metrics of a node, served: what `metrics.listen` opens."""

import ssl
from collections.abc import Iterator
from time import monotonic

from duolog import __version__

from duolog_server.node.broker import Broker
from duolog_server.node.metrics.clientfacts import ClientFacts, Clients
from duolog_server.node.metrics.endpoint import Admit, Endpoint
from duolog_server.node.metrics.exposition import CONTENT_TYPE, Exposition
from duolog_server.node.metrics.groupfacts import GroupFacts
from duolog_server.node.metrics.measuredfacts import MeasuredFacts
from duolog_server.node.metrics.nodefacts import NodeFacts
from duolog_server.node.metrics.rates import Rates
from duolog_server.node.metrics.remotingfacts import Ports, RemotingFacts
from duolog_server.node.metrics.runtimefacts import RuntimeFacts
from duolog_server.node.metrics.samples import Samples
from duolog_server.node.metrics.scrapes import Scrapes
from duolog_server.node.metrics.table import (
    EXPORTED,
    EXPORTED_BROKER,
    EXPORTED_RUNTIME,
    NATIVE,
    OWN,
    PROCESS,
)
from duolog_server.node.metrics.topicfacts import TopicFacts
from duolog_server.node.metrics.trafficfacts import TrafficFacts
from duolog_server.node.runtime.config import MetricsSection


class MetricsServer:
    """Reads a broker's parts whenever it is asked; made after recovery."""

    def __init__(
        self,
        broker: Broker,
        options: MetricsSection,
        ports: Ports,
        clients: Clients,
        admit: Admit | None = None,
    ) -> None:
        """clients: those of RocketMQ's gRPC API. admit: None without access control."""
        self._node = NodeFacts(broker, ports.frames)
        now = monotonic()
        self._rates = ten, minute = Rates(10, now), Rates(60, now)
        self._parts = (
            self._node.read,
            TrafficFacts(broker).read,
            GroupFacts(broker, minute).read,
            TopicFacts(broker, minute).read,
            RuntimeFacts(broker, ten, minute).read,
            ClientFacts(broker, clients).read,
            MeasuredFacts(broker).read,
            RemotingFacts(ports).read,
        )
        exposition = Exposition(_labels(broker))
        self._scrapes = Scrapes(self._read, self._node.read_late, exposition, options.series_max)
        self._endpoint = Endpoint(self._scrapes.text, CONTENT_TYPE, admit)

    @property
    def port(self) -> int:
        """The port; 0 before it listens."""
        return self._endpoint.port

    async def start(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> None:
        """Listen; with port 0 on a free one. tls: None for plain text. Raises OSError."""
        await self._endpoint.start(host, port, tls)

    async def stop(self) -> None:
        """Close the port and end running requests."""
        await self._endpoint.stop()
        self._scrapes.stop()

    def _read(self, samples: Samples) -> Iterator[None]:
        now = monotonic()
        for rates in self._rates:
            rates.begin(now)
        for read in self._parts:
            yield from read(samples)
        for rates in self._rates:
            rates.end()


def _labels(broker: Broker) -> dict[str, dict[str, str]]:
    """The labels that all series of a scope have."""
    node = broker.node
    return {
        OWN: {"cluster": node.cluster, "replica_group": node.group, "node_id": node.name},
        NATIVE: {"cluster": node.cluster, "node_type": "broker", "node_id": node.name},
        PROCESS: {},
        EXPORTED: {"cluster": node.cluster, "broker": node.group},
        EXPORTED_BROKER: {
            "cluster": node.cluster,
            "brokerIP": broker.advertised,
            "broker": node.group,
        },
        EXPORTED_RUNTIME: {
            "cluster": node.cluster,
            "brokerIP": broker.advertised,
            "brokerHost": broker.advertised,
            "des": f"duolog {__version__}",
            "boottime": str(broker.started_ms),
            "broker_version": __version__,
        },
    }
