"""The metrics of a node, served: what `metrics.listen` opens."""

import asyncio
import ssl
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from time import monotonic, thread_time

import structlog
from duolog import __version__
from duolog._background import Background

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

log = structlog.get_logger("duolog.node")


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
        sources = Sources(self._read, self._node.read, self._node.read_late)
        self._scrapes = Scrapes(sources, exposition, options.series_max)
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
        await self._scrapes.stop()

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
# One at a time, for all who wait; it is finished even if they leave, and its text kept. Who would
# wait too long for a new one gets the last one, with its age. Between two, the node has a rest of
# some times what the last one took: who only asks for metrics does not keep it from its work.
STEP_SECONDS = 0.001  # longest time that the loop reads without a pause
RESTS = 4  # times the CPU that a scrape took
REST_SECONDS_MAX = 10.0
REST_WAITED_FOR_SECONDS = 1.0  # during the rest before that, the last text is the answer
MAKING_SECONDS_MAX = 60.0
WRITE_SECONDS = 0.5  # left for sending the answer
PATIENCE = 0.5  # share of its time that a request waits before it gets the last text

Facts = Callable[[Samples], Iterator[None]]  # adds samples; may be interrupted where it yields


@dataclass(frozen=True, slots=True)
class _Text:
    """A finished text, and the loop time at which its reading began."""

    began: float
    pieces: list[bytes]


@dataclass(frozen=True, slots=True)
class Sources:
    """What is read for a text. facts: on the loop. own: of these, the few that the node has once.
    late: in the thread.
    """

    facts: Facts
    own: Facts
    late: Callable[[Samples], None]


class Scrapes:
    """Makes the text of a node's metrics."""

    def __init__(self, sources: Sources, exposition: Exposition, series_max: int) -> None:
        self._sources = sources
        self._exposition = exposition
        self._series_max = series_max
        self._last: _Text | None = None
        self._making: asyncio.Task[None] | None = None
        self._makings = Background()
        self._worked = 0.0  # seconds of CPU that the last one took
        self._rests_until = 0.0  # loop time
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="duolog-metrics")

    async def text(self, deadline: float) -> list[bytes]:
        """The metrics in pieces: those of now, or the last ones where these take too long, and the
        node's own alone where there are none yet. deadline: loop time.
        """
        loop = asyncio.get_running_loop()
        now = loop.time()
        until = begins = deadline - WRITE_SECONDS
        if self._last is not None:
            until = min(until, now + PATIENCE * (deadline - now))
            begins = min(until, now + REST_WAITED_FOR_SECONDS)
        if self._making is None and self._rests_until < begins:
            self._making = self._makings.start(self._make())
        if self._making is not None:
            done, _ = await asyncio.wait((self._making,), timeout=until - now)
            for making in done:
                if not making.cancelled():  # by a stop
                    making.result()
        last = self._last or self._own()
        samples = Samples()
        samples.node.add("duolog_metrics_age_seconds", loop.time() - last.began)
        return [*last.pieces, *self._exposition.few(samples.node.found)]

    def _own(self) -> _Text:
        """The node's own metrics: a hundred series, at once."""
        samples, began = Samples(), asyncio.get_running_loop().time()
        for _ in self._sources.own(samples):
            pass
        return _Text(began, list(self._exposition.few(samples.node.found)))

    async def _make(self) -> None:
        """Make a text and keep it."""
        loop = asyncio.get_running_loop()
        try:
            await asyncio.sleep(self._rests_until - loop.time())
            began, self._worked = loop.time(), 0.0
            self._last = _Text(began, await self._made(began + MAKING_SECONDS_MAX))
        except TimeoutError:
            log.warning("metrics took too long to collect", seconds=MAKING_SECONDS_MAX)
        finally:
            self._making = None
            self._rests_until = loop.time() + min(REST_SECONDS_MAX, RESTS * self._worked)

    async def _made(self, deadline: float) -> list[bytes]:
        loop, samples = asyncio.get_running_loop(), Samples()
        async with asyncio.timeout_at(deadline):
            await self._in_steps(self._sources.facts(samples))
            dropped = await loop.run_in_executor(self._thread, samples.choose, self._series_max)
            samples.node.add("duolog_metrics_series_dropped", dropped)
            await self._in_steps(samples.take())
            return await loop.run_in_executor(self._thread, self._write, samples, deadline)

    async def _in_steps(self, work: Iterator[None]) -> None:
        """Work on the loop; others have their turn after each step."""
        until, began = monotonic() + STEP_SECONDS, thread_time()
        for _ in work:
            if monotonic() >= until:
                self._worked += thread_time() - began
                await asyncio.sleep(0)
                until, began = monotonic() + STEP_SECONDS, thread_time()
        self._worked += thread_time() - began

    def _write(self, samples: Samples, deadline: float) -> list[bytes]:
        """Write it, in the thread. asyncio's clock is the monotonic one. Raises TimeoutError."""
        began = thread_time()
        self._sources.late(samples)
        try:
            return self._exposition.text(samples.node.found, deadline)
        except Overdue:
            raise TimeoutError from None
        finally:
            self._worked += thread_time() - began

    async def stop(self) -> None:
        """End what is being made: the process cannot end before the thread."""
        self._exposition.stop()
        await self._makings.stop()
        self._thread.shutdown(wait=False, cancel_futures=True)
