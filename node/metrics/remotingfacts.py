"""Metrics of the port of RocketMQ's remoting protocol, if a node has one."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from duolog_server.node.core.calltimes import CallTimes
from duolog_server.node.metrics.formatting import truth
from duolog_server.node.metrics.nodefacts import Connections
from duolog_server.node.metrics.samples import Samples

PROTOCOL = "remoting"
Times = CallTimes[tuple[str, str, bool, str]]  # request, response code, long polling, result


@dataclass(frozen=True, slots=True)
class Ports:
    """Metrics of the clients' ports. remoting: None without that port.

    name_servers: those that the node registers at, and those of them that do not know it.
    """

    frames: Connections
    remoting: "tuple[Connections, Times] | None" = None
    name_servers: Callable[[], Mapping[str, int]] = dict


class RemotingFacts:
    """Reads it."""

    def __init__(self, ports: Ports) -> None:
        self._remoting = ports.remoting
        self._name_servers = ports.name_servers

    def read(self, samples: Samples) -> Iterator[None]:
        """Add all of it, in a few steps."""
        if self._remoting is None:
            return
        connections, times = self._remoting
        node = samples.node
        node.add("duolog_remoting_connections", connections.count())
        node.add("duolog_remoting_refused_connections_total", connections.refused())
        node.add("duolog_remoting_buffered_bytes", connections.buffered_bytes())
        for name, count in self._name_servers().items():
            node.add(f"duolog_{name}", count)
        yield
        for (request, code, waits, result), took in list(times.table.items()):
            labels = PROTOCOL, request, code, truth(waits), result
            samples.bundle(sum(took.counts)).add("rocketmq_rpc_latency", took, *labels)
            yield
