"""Figures of replication."""

import asyncio
import time
from collections import defaultdict
from pathlib import Path
from statistics import median

import duolog
from duolog.testing._ports import free_endpoint

from bench import limits
from bench.harness import (
    Figure,
    Node,
    fresh_directory,
    pair,
    running,
    take_pages,
)
from duolog_server.demo import measure
from duolog_server.demo.measure import Load, percentile

CATCH_UP_BYTES = 2 << 30
ROUNDS = 3
NO_FRAMES = "ha.frames_listen="
POLL_SECONDS = 0.05
WAIT_SECONDS = 300.0


async def sync_produce() -> list[Figure]:
    """SYNC_MASTER and slave against one ASYNC_MASTER, in turns."""
    alone, together = [], []
    for _ in range(ROUNDS):
        async with running() as (_, client):
            alone.append(await _batches(client, 1))
        async with pair() as client:
            together.append(await _batches(client, 2))
    limit, rate = median(alone), median(together)
    return [
        Figure(
            "SYNC_MASTER produce 100 B, two nodes",
            ">= 0.7 x ASYNC_MASTER and one node",
            f"{rate:,.0f} msg/s, {rate / limit:.2f} x",
            f"one node {limit:,.0f} msg/s",
            rate >= 0.7 * limit,
            {"msg_per_s": rate, "alone_msg_per_s": limit, "ratio": rate / limit},
        )
    ]


async def _batches(client: duolog.Client, nodes: int) -> float:
    """Messages a second."""
    await measure.produce_batches(client, Load(200_000, 100), 50_000)
    await asyncio.to_thread(take_pages, nodes << 30)
    found = await measure.produce_batches(client, Load(2_000_000, 100), 50_000)
    return found.messages / found.seconds


async def sync_one() -> list[Figure]:
    """One send at a time through a master and its slave, against bare ping-pongs, in turns.

    The master and its slave speak frames, or gRPC; the client speaks frames.
    """
    found: dict[str, list[float]] = defaultdict(list)
    async with limits.bare() as bare, pair() as frames, pair("--set", NO_FRAMES) as over_grpc:
        clients = {"frames": frames, "gRPC": over_grpc}
        for client in clients.values():
            await measure.produce_singly(client, Load(500, 100))
        for _ in range(5):
            found["stream"].append(percentile(await bare.stream_times(1000), 0.5))
            found["tcp"].append(percentile(await bare.tcp_times(1000), 0.5))
            for name, client in clients.items():
                ours = await measure.produce_singly(client, Load(1000, 100))
                found[name].append(percentile(ours.latencies, 0.5))
                found[f"{name} p99"].append(percentile(ours.latencies, 0.99))
    middle = {name: median(values) for name, values in found.items()}
    us = {name: f"{1e6 * value:.0f} us" for name, value in middle.items()}
    bare_chains = {
        "frames": ("two bare TCP ping-pongs", 2 * middle["tcp"]),
        "gRPC": ("a bare gRPC stream + a bare TCP ping-pong", middle["stream"] + middle["tcp"]),
    }
    figures = []
    for name, (chain, limit) in bare_chains.items():
        p50, p99 = middle[name], middle[f"{name} p99"]
        figures.append(
            Figure(
                f"SYNC_MASTER, one send at a time, replication over {name}, p50",
                f"<= 1.2 x ({chain})",
                f"{us[name]}, {p50 / limit:.2f} x; p99 {us[f'{name} p99']}",
                f"stream {us['stream']}, TCP {us['tcp']}",
                p50 <= 1.2 * limit,
                {"p50_s": p50, "p99_s": p99, "limit_s": limit, "ratio": p50 / limit},
            )
        )
    return figures


async def catch_up() -> list[Figure]:
    """An empty slave copies 2 GiB."""
    async with limits.bare() as bare:
        stream = await bare.stream_rate()
    with fresh_directory() as root:
        measure.fill_store(root / "data", CATCH_UP_BYTES, 1024)
        rate, pages = await _copied(root)
    return [
        Figure(
            "catch-up of a slave 2 GiB behind",
            ">= 0.6 of a bare 1 MiB stream",
            f"{rate / 1e6:,.0f} MB/s, {rate / stream:.2f}",
            f"stream {stream / 1e6:,.0f} MB/s, new pages {pages / 1e6:,.0f} MB/s",
            rate >= 0.6 * stream,
            {"bytes_per_s": rate, "stream_bytes_per_s": stream, "new_page_bytes_per_s": pages},
        )
    ]


async def _copied(root: Path) -> tuple[float, float]:
    """Bytes a second, from the first on, at which a new slave copies root/data; and of new pages.

    Raises TimeoutError.
    """
    port = free_endpoint()
    master = Node(root / "data", "--ha-listen", port, name="master", log=root / "master.log")
    slave = Node(root / "slave", "--role", "SLAVE", "--ha-master", port)
    master.start()
    try:
        async with duolog.Client(master.endpoint, timeout=120) as client:
            await master.wait_ready(client)
            end = (await client.admin.node_status()).max_offset

            async def reached(offset: int) -> tuple[int, float]:
                while True:
                    rows = (await client.admin.node_status()).replication.slaves
                    found = rows[0].received_offset if rows else 0
                    if found >= offset:
                        return found, time.perf_counter()
                    await asyncio.sleep(POLL_SECONDS)

            pages = await asyncio.to_thread(take_pages, end)
            slave.start()
            async with asyncio.timeout(WAIT_SECONDS):
                first, began = await reached(1)
                last, ended = await reached(end)
            return (last - first) / (ended - began), pages
    finally:
        slave.stop()
        master.stop()
