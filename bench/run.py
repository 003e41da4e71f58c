"""All figures, each with the ratio to its limit of the same run; JSON into bench/results.

python -m bench.run [--only NAME ...] [--compare bench/results/OLDER.json]
"""

import argparse
import asyncio
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from bench import (
    limits,
    manyqueues,
    oneatatime,
    posts,
    replication,
    services,
    spark,
    starts,
)
from bench.harness import Figure, print_table, running, take_pages
from bench.kernels import kernels
from bench.syncconsumer import rate_in_a_process
from duolog_server.demo import measure
from duolog_server.demo.measure import Load

RESULTS = Path(__file__).parent / "results"


async def produce_small() -> list[Figure]:
    async with limits.bare() as bare:
        unary = await bare.unary_rate()
    async with running() as (_, client):
        await measure.produce_batches(client, Load(200_000, 100), 50_000)
        pages = await asyncio.to_thread(take_pages, 2 << 30)
        found = await measure.produce_batches(client, Load(4_000_000, 100), 50_000)
        behind = (await client.admin.node_status()).dispatch_behind_ms_max
    rate = found.messages / found.seconds
    return [
        Figure(
            "produce 100 B, async flush",
            ">= 2,000,000 msg/s",
            f"{rate:,.0f} msg/s, {rate / unary:.0f} x",
            f"unary {unary:,.0f}/s, new pages {pages / 1e6:,.0f} MB/s",
            rate >= 2_000_000,
            {
                "msg_per_s": rate,
                "unary_per_s": unary,
                "new_page_bytes_per_s": pages,
                "ratio": rate / unary,
            },
        ),
        Figure(
            "dispatch behind at full rate",
            "<= 100 ms",
            f"{behind} ms (longest)",
            "",
            behind <= 100,
            {"ms_max": behind},
        ),
    ]


async def produce_large() -> list[Figure]:
    async with limits.bare() as bare:
        stream = await bare.stream_rate()
    async with running() as (_, client):
        await measure.produce_batches(client, Load(20_000, 1024), 10_000)
        pages = await asyncio.to_thread(take_pages)
        found = await measure.produce_batches(client, Load(600_000, 1024), 10_000)
    rate = found.bytes / found.seconds
    return [
        Figure(
            "produce 1 KiB",
            ">= 500 MB/s",
            f"{rate / 1e6:,.0f} MB/s, {rate / stream:.2f}",
            f"stream {stream / 1e6:,.0f} MB/s, new pages {pages / 1e6:,.0f} MB/s",
            rate >= 500e6,
            {
                "bytes_per_s": rate,
                "stream_bytes_per_s": stream,
                "new_page_bytes_per_s": pages,
                "ratio": rate / stream,
            },
        )
    ]


async def consume() -> list[Figure]:
    async with running() as (node, client):
        await measure.produce_batches(client, Load(4_000_000, 100), 50_000)
        async with client.consumer("columns", "bench") as consumer:
            columns = await measure.consume(consumer, 4_000_000, False)
        async with client.consumer("objects", "bench") as consumer:
            objects = await measure.consume(consumer, 4_000_000, True)
        sync = await asyncio.to_thread(rate_in_a_process, node.endpoint, "bench", 4_000_000)
    return [
        _consumed("columns", columns.messages / columns.seconds, 4_000_000),
        _consumed("objects", objects.messages / objects.seconds, 1_000_000),
        _consumed("objects, synchronous client", sync, 1_000_000),
    ]


def _consumed(how: str, rate: float, target: int) -> Figure:
    return Figure(
        f"consume 100 B as {how}",
        f">= {target:,} msg/s",
        f"{rate:,.0f} msg/s",
        "",
        rate >= target,
        {"msg_per_s": rate},
    )


async def group_commit() -> list[Figure]:
    async with running("--set", "store.flush_disk_type=SYNC_FLUSH") as (_, client):
        before = await client.admin.node_status()
        found = await measure.produce_singly(client, Load(20_000, 100), 64)
        after = await client.admin.node_status()
    flushes = after.flushes - before.flushes
    each = found.messages / flushes
    return [
        Figure(
            "sync flush, 64 senders",
            ">= 15 messages per fdatasync",
            f"{each:.1f} ({found.messages / found.seconds:,.0f} msg/s)",
            "",
            each >= 15,
            {"messages_per_sync": each, "msg_per_s": found.messages / found.seconds},
        )
    ]


FIGURES: dict[str, Callable[[], Awaitable[list[Figure]]]] = {
    "kernels": kernels,
    "produce_small": produce_small,
    "produce_large": produce_large,
    "consume": consume,
    "one_at_a_time": oneatatime.one_at_a_time,
    "group_commit": group_commit,
    "idle": starts.idle,
    "killed": starts.killed,
    "sync_produce": replication.sync_produce,
    "sync_one": replication.sync_one,
    "catch_up": replication.catch_up,
    "transactions": services.transactions,
    "pending": services.pending,
    "due": services.due,
    "idle_polls": services.idle_polls,
    "posts": posts.posts,
    "many_sends": posts.many_sends,
    "many_queues": manyqueues.many_queues,
    "very_many_queues": manyqueues.very_many_queues,
    "spark_read_small": spark.read_small,
    "spark_read_large": spark.read_large,
    "spark_write": spark.write,
    "spark_micro_batches": spark.micro_batches,
    "spark_audit": spark.audit,
}


def machine() -> dict[str, Any]:
    """What ran it."""
    model = ""
    if Path("/proc/cpuinfo").exists():
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next((line.partition(": ")[2] for line in lines if "model name" in line), "")
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "commit": commit,
        "time": int(time.time()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", choices=list(FIGURES))
    parser.add_argument("--compare", type=Path)
    arguments = parser.parse_args()
    figures: list[Figure] = []
    for name in arguments.only or FIGURES:
        print(f"measuring {name}", file=sys.stderr)
        figures += asyncio.run(FIGURES[name]())  # type: ignore[arg-type]
    older = {}
    if arguments.compare:
        for row in json.loads(arguments.compare.read_text())["figures"]:
            older[row["name"]] = row["measured"]
    print_table(figures, older)
    RESULTS.mkdir(exist_ok=True)
    target = RESULTS / f"{time.strftime('%Y%m%d-%H%M%S')}.json"
    rows = [vars(figure) for figure in figures]
    target.write_text(json.dumps({"machine": machine(), "figures": rows}, indent=1))
    print(f"written to {target}", file=sys.stderr)


if __name__ == "__main__":
    main()
