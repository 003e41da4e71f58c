"""What abuse costs: a node's memory, and the sends of a client that does no harm.

A neighbour, in a process of its own, sends one message at a time to the node: alone, beside an
attack on the node, and beside the same attack on a bare server on the same machine. Its times
beside the first attack are compared with those beside the second, of the same run: an attacker
takes CPU time from all others on its machine, which is no fault of the node. Memory is the
anonymous memory of the node's process, above what it had before the attack.
"""

import asyncio
import contextlib
import io
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import duolog
import grpc.aio
from duolog.wire import duolog_pb2 as wire
from duolog.wire import duolog_pb2_grpc as stubs

from bench.attacks import Attack, Done
from bench.bareserver import BareServer
from bench.harness import Figure, Node, running
from bench.neighbour import Neighbour, Sends
from duolog_server.compat.hawire import server as slavesport
from duolog_server.demo import certificates, measure
from duolog_server.demo.measure import Load
from duolog_server.demo.ports import free_endpoint
from duolog_server.node.metrics import endpoint
from duolog_server.node.replication import masterstream
from duolog_server.node.runtime.config import LimitsSection
from duolog_server.ops.console.http import connections

MIB_MAX = 64
TIMES_MAX = 2.0
RATE = 250.0
ALONE_SECONDS = 4.0
BESIDE_SECONDS = 6.0  # of each attack
QUIET_SECONDS = 2.0
WATCH_SECONDS = 0.02
REPEATS = 100
GRPC, FRAMES, METRICS, TLS, REMOTING = "gRPC", "frames", "metrics", "TLS", "remoting"
CONSOLE, REPLICATION, SLAVES = "console", "replication", "slaves"
# Connections that a port has, where it is not as many as clients may have.
CONNECTIONS = {
    METRICS: endpoint.CONNECTIONS_MAX,
    CONSOLE: connections.CONNECTIONS_MAX,
    REPLICATION: masterstream.CONNECTIONS_MAX,
    SLAVES: slavesport.CONNECTIONS_MAX,
}


@dataclass(frozen=True, slots=True)
class Case:
    """An attack on a port. name: of `bench.attacks`."""

    words: str
    name: str
    port: str
    count: int


CASES = (
    Case("10,000 idle connections, gRPC", "idle", GRPC, 10_000),
    Case("10,000 idle connections with HTTP/2, gRPC", "idle_http2", GRPC, 10_000),
    Case("10,000 idle connections, frames", "idle", FRAMES, 10_000),
    Case("10,000 idle connections, metrics", "idle", METRICS, 10_000),
    Case("1,000 greetings of HTTP/2 at a byte a second", "slow_http2", GRPC, 1000),
    Case("1,000 greetings of frames at a byte a second", "slow_frame", FRAMES, 1000),
    Case("1,000 requests for metrics at a byte a second", "slow_http", METRICS, 1000),
    Case("10,000 streams of Telemetry on a connection", "telemetry_streams", GRPC, 10_000),
    Case("10,000 streams of Subscribe on a connection", "subscribe_streams", GRPC, 10_000),
    Case("10,000 pulls that wait on a connection", "poll_streams", GRPC, 10_000),
    Case("headers of 4 MiB, over and over", "huge_header", GRPC, 1 << 20),
    Case("calls with 1,048,576 headers, over and over", "many_headers", GRPC, 1 << 20),
    Case("headers that never end (CONTINUATION), 10 connections", "continuations", GRPC, 10),
    Case("headers that never end behind a call, 10 connections", "late_continuations", GRPC, 10),
    Case("headers that never end, 10 that connect anew", "returning_continuations", GRPC, 10),
    Case(
        "headers that never end behind a call, 10 that connect anew",
        "returning_late_continuations",
        GRPC,
        10,
    ),
    Case("messages that do not end, 10 that connect anew", "returning_halves", GRPC, 10),
    Case("calls that are reset at once", "rapid_resets", GRPC, 1),
    Case("whole requests that are reset at once", "reset_requests", GRPC, 1),
    Case("PING and SETTINGS without an end", "pings", GRPC, 1),
    Case("messages of 1 MiB that are 1 GiB", "bombs", GRPC, 1),
    Case("100 clients that pull 8 MiB and read nothing, gRPC", "deaf_pulls", GRPC, 100),
    Case("100 clients that pull 8 MiB and read nothing, frames", "deaf_frames", FRAMES, 100),
    Case("1,000 handshakes of TLS that do not end", "half_handshakes", TLS, 1000),
    Case("20,000 streams of Telemetry on 10 connections", "many_streams", GRPC, 20_000),
    Case("10 messages of 60 MiB that do not end, gRPC", "half_messages", GRPC, 10),
    Case("100 connections with a message that does not end, gRPC", "half_crowd", GRPC, 100),
    Case("2,000 lists that nobody takes, gRPC", "deaf_calls", GRPC, 2000),
    Case("calls of ever new clients", "strange_clients", GRPC, 20),
    Case("10,000 idle connections that greeted, frames", "idle_frames", FRAMES, 10_000),
    Case("20,000 pulls that wait on a connection, frames", "poll_frames", FRAMES, 20_000),
    Case("2,000 lists that nobody takes, frames", "deaf_lists", FRAMES, 2000),
    Case("10 frames of 32 MiB that do not end", "half_frames", FRAMES, 10),
    Case("10,000 idle connections, remoting", "idle", REMOTING, 10_000),
    Case("20,000 pulls that wait on a connection, remoting", "held_pulls", REMOTING, 20_000),
    Case("requests of 10 bytes without an end, remoting", "small_requests", REMOTING, 5000),
    Case("500 heartbeats of 45,000 subscriptions", "wide_heartbeats", REMOTING, 500),
    Case("a member that comes and leaves beside 1,000", "restless_member", REMOTING, 1000),
    Case("10 requests of 16 MiB that do not end", "half_requests", REMOTING, 10),
    Case("bursts of requests that break", "broken_bursts", REMOTING, 250),
    Case("16 scrapes at a time without an end", "scrapes", METRICS, 16),
    Case("10,000 idle connections, console", "idle", CONSOLE, 10_000),
    Case("1,000 requests for a page at a byte a second", "slow_http", CONSOLE, 1000),
    Case("100 pages of the console at a time without an end", "console_pages", CONSOLE, 100),
    Case("checks of health without an end", "health_checks", GRPC, 100),
    Case("20,000 watches of health on 10 connections", "health_watches", GRPC, 20_000),
    Case("10,000 idle connections with HTTP/2, replication", "idle_http2", REPLICATION, 10_000),
    Case("10,000 slaves that say nothing", "mute_slaves", REPLICATION, 10_000),
    Case("100 slaves with a report that does not end", "half_reports", REPLICATION, 100),
    Case("10,000 idle connections, slaves of RocketMQ", "idle", SLAVES, 10_000),
    Case("slaves of RocketMQ that break off", "half_greetings", SLAVES, 50),
)


def anonymous_mib(pid: int) -> float:
    """Anonymous memory of a process and its children, MiB. Raises OSError."""
    process = Path(f"/proc/{pid}")
    lines = (process / "status").read_text().splitlines()
    own = next((line for line in lines if line.startswith("RssAnon")), "RssAnon: 0 kB")
    children = (process / "task" / str(pid) / "children").read_text().split()
    return int(own.split()[1]) / 1024 + sum(anonymous_mib(int(child)) for child in children)


class Watch:
    """Looks at the memory of a node, and of its console, all the time."""

    def __init__(self, node: Node) -> None:
        self._pid = node.pid
        self.peak = 0.0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def mib(self) -> float:
        """Anonymous memory now, MiB; the highest seen where the process ended."""
        with contextlib.suppress(OSError):
            return anonymous_mib(self._pid)
        return self.peak

    def _run(self) -> None:
        while not self._ended.wait(WATCH_SECONDS):
            self.peak = max(self.peak, self.mib())

    def end(self) -> None:
        """Look no more."""
        self._ended.set()
        self._thread.join()


def quantile_ms(sends: Sends, share: float) -> float:
    """Of the times of sends; 0 for none."""
    times = sorted(seconds for _, seconds in sends)
    return 1000 * times[min(len(times) - 1, int(len(times) * share))] if times else 0.0


def between(sends: Sends, begin: float, end: float) -> Sends:
    """Those that were due in a time."""
    return [one for one in sends if begin <= one[0] < end]


@dataclass(frozen=True, slots=True)
class Sending:
    """The neighbour's sends: alone, beside an attack on the node, and on a bare server."""

    alone: Sends
    beside: Sends
    bare: Sends


@dataclass(frozen=True, slots=True)
class Found:
    """What an attack cost. bare: what the attacker did to a bare server."""

    peak_mib: float
    after_mib: float
    sending: Sending
    did: Done
    bare: Done


@dataclass(frozen=True, slots=True)
class Target:
    """A node, the address of each of its ports, and the key that frames begin with."""

    node: Node
    ports: dict[str, str]
    key: bytes

    def attack(self, name: str, port: str, count: int) -> Attack:
        """An attack on a port."""
        return Attack(name, self.ports[port], count, self.key)


Times = tuple[float, float]


async def attacked(begin: Callable[[], Attack]) -> tuple[Times, Done]:
    """Let an attacker go on for a while; between when, and what it did."""
    began = time.monotonic()
    attack = await asyncio.to_thread(begin)
    try:
        await asyncio.sleep(BESIDE_SECONDS)
        over = time.monotonic()
        return (began, over), await asyncio.to_thread(attack.finish)
    finally:
        attack.kill()


async def attacked_elsewhere(case: Case, target: Target, sent: Sequence[int]) -> tuple[Times, Done]:
    """The same attack on a bare server. sent: see Done, of the attack on the node."""
    most = CONNECTIONS.get(case.port, LimitsSection().connections_max)
    server = await asyncio.to_thread(BareServer, most, sent)
    try:
        return await attacked(lambda: Attack(case.name, server.endpoint, case.count, target.key))
    finally:
        server.kill()


async def suffered(target: Target, case: Case) -> Found:
    """One attack, and the neighbour before and beside it, and beside one on a bare server."""
    node = target.node
    neighbour = await asyncio.to_thread(Neighbour, node.endpoint, "neighbour", RATE)
    try:
        began = time.monotonic()
        await asyncio.sleep(ALONE_SECONDS)
        watch = Watch(node)
        before = watch.mib()
        times, did = await attacked(lambda: target.attack(case.name, case.port, case.count))
        await asyncio.sleep(QUIET_SECONDS)
        watch.end()
        after = watch.mib()
        bare_times, bare = await attacked_elsewhere(case, target, did.sent)
        sends = await asyncio.to_thread(neighbour.finish)
    finally:
        neighbour.kill()
    sending = Sending(
        between(sends, began, times[0]), between(sends, *times), between(sends, *bare_times)
    )
    return Found(watch.peak - before, after - before, sending, did, bare)


def figures_of(case: Case, found: Found) -> list[Figure]:
    """Memory and times of an attack."""
    sending = found.sending
    each = (sending.beside, sending.bare, sending.alone)
    beside, bare, alone = (quantile_ms(sends, 0.99) for sends in each)
    halves = [quantile_ms(sends, 0.5) for sends in each]
    times = beside / bare if bare else float("inf")
    did = ", ".join(f"{name} {count:,}" for name, count in found.did.counts.items())
    return [
        Figure(
            f"{case.words}: memory",
            f"<= {MIB_MAX} MiB more",
            f"{found.peak_mib:.0f} MiB more, {found.after_mib:.0f} MiB after",
            did,
            found.peak_mib <= MIB_MAX,
            {"peak_mib": found.peak_mib, "after_mib": found.after_mib},
        ),
        Figure(
            f"{case.words}: a neighbour's p99",
            f"<= {TIMES_MAX:g} x of a bare server attacked",
            f"{beside:.2f} ms, {times:.2f} x (p50 {halves[0]:.2f} ms)",
            f"bare {bare:.2f} ms (p50 {halves[1]:.2f} ms), alone {alone:.2f} ms "
            f"(p50 {halves[2]:.2f} ms); attacker's CPU {found.did.cpu_seconds:.1f} s, "
            f"bare {found.bare.cpu_seconds:.1f} s",
            times <= TIMES_MAX,
            {"p99_ms": beside, "bare_p99_ms": bare, "alone_p99_ms": alone, "ratio": times},
        ),
    ]


@asynccontextmanager
async def warm() -> AsyncIterator[Target]:
    """A node that has stored and served large reads: what is not given back is there already."""
    free_endpoint(), free_endpoint()  # RocketMQ's slaves use the port two below
    others = (REMOTING, FRAMES, METRICS, TLS, CONSOLE, REPLICATION, SLAVES)
    ports = {name: free_endpoint() for name in others}
    with tempfile.TemporaryDirectory(prefix="duolog-bench-") as directory:
        with contextlib.redirect_stdout(io.StringIO()):
            certificates.main([directory])
        settings = (
            f"tls.listen={ports[TLS]}",
            f"tls.cert={directory}/node.pem",
            f"tls.key={directory}/node.key",
            f"node.frames_listen={ports[FRAMES]}",
            f"metrics.listen={ports[METRICS]}",
            f"remoting.listen={ports[REMOTING]}",
            f"console.listen={ports[CONSOLE]}",
            f"ha.listen={ports[REPLICATION]}",
            f"rocketmq_slaves.listen={ports[SLAVES]}",
            "rocketmq_slaves.allow=127.0.0.0/8",
            "store.mapped_file_size_commit_log=67108864",
        )
        words = [word for setting in settings for word in ("--set", setting)]
        async with running(*words) as (node, client):
            ports[GRPC] = node.endpoint
            for topic in ("quiet", "neighbour"):
                await client.admin.create_topic(topic, 1)
            for number in range(5):  # for lists that are long
                await client.admin.create_topic(f"wide{number}", 1000)
            await measure.produce_batches(client, Load(40_000, 1000), 5000)
            for _ in range(4):
                await asyncio.gather(*(_pulled(client, queue) for queue in range(4)))
            async with grpc.aio.insecure_channel(node.endpoint) as channel:
                route = await stubs.AdminStub(channel).Route(wire.RouteRequest())
            yield Target(node, ports, route.frames_key)


async def _pulled(client: duolog.Client, queue: int) -> None:
    await client.pull("bench", queue, 0)


async def abuse(cases: tuple[Case, ...] = CASES) -> list[Figure]:
    """Each attack, on one node after the other: nothing of one shall help or hurt the next."""
    figures = []
    for case in cases:
        async with warm() as target:
            figures += figures_of(case, await suffered(target, case))
    return figures


async def abuse_repeated() -> list[Figure]:
    """Connections, streams and resets, again and again on one node: what stays."""
    names = (
        ("idle", GRPC, 200),
        ("idle", FRAMES, 200),
        ("telemetry_streams", GRPC, 500),
        ("deaf_pulls", GRPC, 10),
        ("deaf_frames", FRAMES, 10),
    )
    rounds = REPEATS // len(names)
    found: list[float] = []
    async with warm() as target:
        watch = Watch(target.node)
        for _ in range(rounds):
            for name, port, count in names:
                attack = await asyncio.to_thread(target.attack, name, port, count)
                await asyncio.to_thread(attack.finish)
            found.append(watch.mib())
        watch.end()
    half = len(found) // 2
    growth = max(found[half:]) - max(found[:half])
    return [
        Figure(
            f"{REPEATS} attacks on one node: growth of the second half",
            "<= 8 MiB",
            f"{growth:.0f} MiB",
            f"the first half ends at {found[half - 1]:.0f} MiB",
            growth <= 8,
            {"mib": growth},
        )
    ]


__all__ = ["CASES", "Case", "Found", "Sending", "abuse", "abuse_repeated", "figures_of"]
