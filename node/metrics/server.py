"""The metrics of a node, served: what `metrics.listen` opens."""

import asyncio
import ssl
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from time import monotonic

from duolog import __version__

from duolog_server.node.broker import Broker
from duolog_server.node.metrics.clientfacts import ClientFacts, Clients, MeasuredFacts
from duolog_server.node.metrics.endpoint import Admit, Endpoint
from duolog_server.node.metrics.exposition import CONTENT_TYPE, Exposition, Overdue
from duolog_server.node.metrics.groupfacts import GroupFacts
from duolog_server.node.metrics.nodefacts import NodeFacts, Ports, RemotingFacts
from duolog_server.node.metrics.rates import Rates
from duolog_server.node.metrics.samples import Samples
from duolog_server.node.metrics.table import (
    EXPORTED,
    EXPORTED_BROKER,
    EXPORTED_RUNTIME,
    NATIVE,
    OWN,
    PROCESS,
)
from duolog_server.node.metrics.topicfacts import RuntimeFacts, TopicFacts
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


# Scrapes: read the node's state on the event loop in small steps, and write it in a thread.
#
# One at a time: others wait for their turn, up to their deadline. Between two, the node has a rest
# of some times what the last one took: who only asks for metrics does not keep it from its work.
STEP_SECONDS = 0.001  # longest time that the loop reads without a pause
RESTS = 4  # times what a scrape took
REST_SECONDS_MAX = 1.0
WRITE_SECONDS = 0.5  # left for sending the answer

Facts = Callable[[Samples], Iterator[None]]  # adds samples; may be interrupted where it yields


class Scrapes:
    """Makes the text of a node's metrics. facts: read on the loop. late: read in the thread."""

    def __init__(
        self,
        facts: Facts,
        late: Callable[[Samples], None],
        exposition: Exposition,
        series_max: int,
    ) -> None:
        self._facts = facts
        self._late = late
        self._exposition = exposition
        self._series_max = series_max
        self._turn = asyncio.Lock()
        self._rests_until = 0.0  # loop time
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="duolog-metrics")

    async def text(self, deadline: float) -> list[bytes]:
        """The metrics as of now, in pieces. deadline: loop time. Raises TimeoutError."""
        loop = asyncio.get_running_loop()
        deadline -= WRITE_SECONDS
        async with asyncio.timeout_at(deadline), self._turn:
            await asyncio.sleep(self._rests_until - loop.time())
            began = loop.time()
            try:
                return await self._made(deadline)
            finally:
                rest = min(REST_SECONDS_MAX, RESTS * (loop.time() - began))
                self._rests_until = loop.time() + rest

    async def _made(self, deadline: float) -> list[bytes]:
        loop, samples = asyncio.get_running_loop(), Samples()
        until = loop.time() + STEP_SECONDS
        for _ in self._facts(samples):
            if loop.time() >= until:
                await asyncio.sleep(0)
                until = loop.time() + STEP_SECONDS
        abandoned = threading.Event()
        try:
            return await loop.run_in_executor(
                self._thread, self._write, samples, deadline, abandoned
            )
        finally:
            abandoned.set()  # where nobody waits for the text, the thread ends

    def _write(self, samples: Samples, deadline: float, abandoned: threading.Event) -> list[bytes]:
        """Write it, in the thread. asyncio's clock is the monotonic one. Raises TimeoutError."""
        self._late(samples)
        left_out, count = samples.over(self._series_max)
        samples.node.add("duolog_metrics_series_dropped", count)
        try:
            return self._exposition.text(samples.taken(left_out), deadline, abandoned)
        except Overdue:
            raise TimeoutError from None

    def stop(self) -> None:
        """End what the thread writes: the process cannot end before it."""
        self._exposition.stop()
        self._thread.shutdown(wait=False, cancel_futures=True)
