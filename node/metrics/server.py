"""The metrics of a node, served: what `metrics.listen` opens."""

from collections.abc import Iterator

from node.broker import Broker
from node.config import MetricsSection
from node.metrics.clientfacts import ClientFacts, Clients
from node.metrics.endpoint import Endpoint
from node.metrics.exposition import CONTENT_TYPE, Exposition
from node.metrics.groupfacts import GroupFacts
from node.metrics.nodefacts import Connections, NodeFacts
from node.metrics.samples import Samples
from node.metrics.scrapes import Scrapes
from node.metrics.table import NATIVE, OWN, PROCESS
from node.metrics.trafficfacts import TrafficFacts


class MetricsServer:
    """Reads a broker's parts whenever it is asked; made after recovery."""

    def __init__(
        self, broker: Broker, options: MetricsSection, frames: Connections, clients: Clients
    ) -> None:
        """clients: those of RocketMQ's gRPC API."""
        self._node = NodeFacts(broker, frames)
        self._parts = (
            self._node.read,
            TrafficFacts(broker).read,
            GroupFacts(broker).read,
            ClientFacts(broker, clients).read,
        )
        exposition = Exposition(_labels(broker))
        self._scrapes = Scrapes(self._read, self._node.read_late, exposition, options.series_max)
        self._endpoint = Endpoint(self._scrapes.text, CONTENT_TYPE)

    @property
    def port(self) -> int:
        """Where it listens; 0 before."""
        return self._endpoint.port

    async def start(self, host: str, port: int) -> None:
        """Listen; with port 0 on a free one. Raises OSError."""
        await self._endpoint.start(host, port)

    async def stop(self) -> None:
        """Close the port and end what is under way."""
        await self._endpoint.stop()
        self._scrapes.stop()

    def _read(self, samples: Samples) -> Iterator[None]:
        for read in self._parts:
            yield from read(samples)


def _labels(broker: Broker) -> dict[str, dict[str, str]]:
    """The labels that all series of a scope have."""
    node = broker.node
    return {
        OWN: {"cluster": node.cluster, "replica_group": node.group, "node_id": node.name},
        NATIVE: {"cluster": node.cluster, "node_type": "broker", "node_id": node.name},
        PROCESS: {},
    }


__all__ = ["MetricsServer"]
