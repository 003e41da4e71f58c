"""Figures of replication and of the simulator."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from statistics import median

import duolog

from bench import catchup, limits
from bench.harness import Figure, Node, fresh_directory, pair, running, take_pages
from bench.pingpong import ping_pong
from bench.usage import CpuOf
from duolog_server.demo import measure
from duolog_server.demo.measure import Load

CATCH_UP_BYTES = 2 << 30
ROUNDS = 3


async def sync_produce() -> list[Figure]:
    """SYNC_MASTER and slave against one ASYNC_MASTER, in turns."""
    alone, together = [], []
    for _ in range(ROUNDS):
        async with running() as (node, client):
            alone.append(await _batches(client, (node,)))
        async with pair() as (master, slave, client):
            together.append(await _batches(client, (master, slave)))
    limit, rate = (median(row.rate for row in rows) for rows in (alone, together))
    client_cpu, master_cpu, slave_cpu = map(
        median, zip(*(row.cpu_seconds for row in together), strict=True)
    )
    # No order of the work is quicker: it takes three processes, and they share the cores.
    cores = len(os.sched_getaffinity(0))
    busy = cores / (client_cpu + master_cpu + slave_cpu)
    return [
        Figure(
            "SYNC_MASTER produce 100 B, two nodes",
            ">= 0.7 x ASYNC_MASTER and one node",
            f"{rate:,.0f} msg/s, {rate / limit:.2f} x; CPU ns a message: client "
            f"{1e9 * client_cpu:.0f}, master {1e9 * master_cpu:.0f}, slave {1e9 * slave_cpu:.0f}",
            f"one node {limit:,.0f} msg/s; {cores} cores always busy {busy:,.0f} msg/s",
            rate >= 0.7 * limit,
            {
                "msg_per_s": rate,
                "alone_msg_per_s": limit,
                "ratio": rate / limit,
                "client_cpu_s": client_cpu,
                "master_cpu_s": master_cpu,
                "slave_cpu_s": slave_cpu,
            },
        )
    ]


@dataclass(frozen=True, slots=True)
class _Batches:
    """Messages a second, and seconds of CPU for each in the client and in the nodes."""

    rate: float
    cpu_seconds: tuple[float, ...]


async def _batches(client: duolog.Client, nodes: Sequence[Node]) -> _Batches:
    await measure.produce_batches(client, Load(200_000, 100), 50_000)
    await asyncio.to_thread(take_pages, len(nodes) << 30)
    cpus = [CpuOf(None), *(CpuOf(node.pid) for node in nodes)]
    found = await measure.produce_batches(client, Load(2_000_000, 100), 50_000)
    each = tuple(cpu.seconds() / found.messages for cpu in cpus)
    return _Batches(found.messages / found.seconds, each)


async def sync_one() -> list[Figure]:
    """One send at a time through a master and its slave, against bare ping-pongs, in turns."""
    found: list[_OneAtATime] = []
    async with ping_pong() as bare, pair() as (master, slave, client):
        await measure.produce_singly(client, Load(500, 100))
        for _ in range(5):
            stream, tcp = await bare.stream(1000), await bare.tcp(1000)
            relayed = await bare.relayed(1000)
            client_cpu, master_cpu, slave_cpu = CpuOf(None), CpuOf(master.pid), CpuOf(slave.pid)
            ours = await measure.produce_singly(client, Load(1000, 100))
            found.append(
                _OneAtATime(
                    stream.p50,
                    tcp.p50,
                    measure.percentile(ours.latencies, 0.5),
                    measure.percentile(ours.latencies, 0.99),
                    client_cpu.seconds() / ours.messages,
                    master_cpu.seconds() / ours.messages,
                    slave_cpu.seconds() / ours.messages,
                    stream.cpu,
                    relayed.p50,
                    relayed.cpu,
                )
            )
    numbers = {
        f"{field.name}_s": median(getattr(row, field.name) for row in found)
        for field in fields(_OneAtATime)
    }
    us = {name.removesuffix("_s"): 1e6 * value for name, value in numbers.items()}
    ratio = us["p50"] / (us["stream"] + us["tcp"])
    return [
        Figure(
            "SYNC_MASTER, one send at a time, p50",
            "p50 <= 1.25 x (a bare gRPC stream + a bare TCP ping-pong)",
            f"p50 {us['p50']:.0f} us, {ratio:.2f} x; p99 {us['p99']:.0f} us; CPU us a message: "
            f"client {us['client_cpu']:.0f}, master {us['master_cpu']:.0f}, "
            f"slave {us['slave_cpu']:.0f}",
            f"stream {us['stream']:.0f} us (CPU {us['stream_cpu']:.0f}), TCP {us['tcp']:.0f} us; "
            f"client, relay and echo that do nothing: {us['relayed']:.0f} us "
            f"(CPU {us['relayed_cpu']:.0f})",
            ratio <= 1.25,
            numbers | {"ratio": ratio},
        )
    ]


@dataclass(frozen=True, slots=True)
class _OneAtATime:
    """One turn: seconds of the limits, of a send, and of CPU for each message."""

    stream: float
    tcp: float
    p50: float
    p99: float
    client_cpu: float
    master_cpu: float
    slave_cpu: float
    stream_cpu: float
    relayed: float
    relayed_cpu: float


async def catch_up() -> list[Figure]:
    """An empty slave copies 2 GiB."""
    async with limits.bare_channel() as channel:
        stream = await limits.stream_rate(channel)
    with fresh_directory() as root:
        measure.fill_store(root / "data", CATCH_UP_BYTES, 1024)
        copied, pages = await catchup.of_nodes(root, root / "data")
    return [
        Figure(
            "catch-up of a slave 2 GiB behind",
            ">= 0.6 of a bare 1 MiB stream",
            f"{copied}; {copied.rate / stream:.2f}",
            f"stream {stream / 1e6:,.0f} MB/s, new pages {pages / 1e6:,.0f} MB/s",
            copied.rate >= 0.6 * stream,
            asdict(copied)
            | {"bytes_per_s": copied.rate}
            | {"stream_bytes_per_s": stream, "new_page_bytes_per_s": pages},
        )
    ]


async def simulator() -> list[Figure]:
    """Fresh seeds on one core."""
    command = [sys.executable, "-m", "sim", "--seeds", "200", "--jobs", "1", "--json"]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    row = json.loads(found.stdout)
    rate, events = row["seeds_per_second_per_core"], row["events"] / row["seeds"]
    return [
        Figure(
            "simulator, 3 nodes",
            ">= 10 seeds/s a core at ~5,000 events",
            f"{rate} seeds/s at {events:,.0f} events ({rate * events:,.0f} events/s)",
            "",
            rate * events >= 50_000,
            {"seeds_per_s": rate, "events_per_seed": events},
        )
    ]
