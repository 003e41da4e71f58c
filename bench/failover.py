"""Failover with real processes and a real etcd: how fast it is, and that it does not come unasked.

python -m bench.failover --crashes 50 --switches 50 --minutes 30 --lease 1

Prints a table, and JSON; exit 1 where a target is missed. Full load: three nodes and an etcd take
what a producer can send, and the master must not change.
"""

import argparse
import asyncio
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path

import duolog

from bench import takeovers
from bench.harness import Figure, print_table
from duolog_server.chaos.processes import ProcessTarget

BATCH = 4000
BODY_BYTES = 100
IN_FLIGHT = 8
# Segments go as soon as retention looks: minutes of full load are more than a disk's worth.
FLAGS = (
    "--set", "node.log_level=warning",
    "--set", "store.mapped_file_size_commit_log=268435456",
    "--set", "store.disk_max_used_space_ratio=10",
    "--set", "store.file_reserved_time=0",
)  # fmt: skip


async def load(target: ProcessTarget, seconds: float) -> dict[str, float]:
    """Produce as fast as the group takes it; what it did, and how often it elected."""
    endpoints = [target.endpoint(node) for node in target.nodes]
    async with duolog.Client(endpoints, timeout=30) as client:
        _, before = await takeovers.whole(client)
        await client.admin.create_topic("load", 8)
        bodies = [b"." * BODY_BYTES] * BATCH
        sent = failed = 0
        longest = 0.0
        end = time.monotonic() + seconds

        async def produce(producer: duolog.Producer) -> None:
            nonlocal sent, failed, longest
            while time.monotonic() < end:
                began = time.monotonic()
                try:
                    receipt = await producer.send_batch("load", bodies)
                    sent += receipt.count  # read after the wait: others count as well
                except duolog.DuologError:
                    failed += 1
                longest = max(longest, time.monotonic() - began)

        async with client.producer(timeout=30) as producer:
            await asyncio.gather(*(produce(producer) for _ in range(IN_FLIGHT)))
        after = (await client.admin.route()).groups[0].epoch
    return {
        "minutes": round(seconds / 60, 1),
        "messages_per_second": round(sent / seconds),
        "false_failovers": after - before,
        "failed_batches": failed,
        "longest_batch_seconds": round(longest, 2),
    }


def full_load(target: ProcessTarget, minutes: float) -> Figure:
    """Elections in so many minutes of full load."""
    found = asyncio.run(load(target, 60 * minutes))
    rate, elections = found["messages_per_second"], found["false_failovers"]
    return Figure(
        f"{minutes:g} minutes of full load, lease {target.lease_seconds} s: elections",
        "0",
        f"{elections:.0f}; {rate:,.0f} msg/s in sync on three nodes, "
        f"longest batch {found['longest_batch_seconds']} s",
        "",
        not elections and not found["failed_batches"],
        found,
    )


def main() -> int:
    """Run it."""
    parser = argparse.ArgumentParser(prog="python -m bench.failover")
    parser.add_argument("--minutes", type=float, default=0.0, help="of full load")
    parser.add_argument("--crashes", type=int, default=0, help="SIGKILLs of the master")
    parser.add_argument("--switches", type=int, default=0, help="planned switches")
    parser.add_argument("--lease", type=int, default=1, help="seconds")
    arguments = parser.parse_args()
    scratch = Path(tempfile.mkdtemp(prefix="duolog-load-"))
    target = ProcessTarget(scratch, lease_seconds=arguments.lease, flags=FLAGS)
    figures: list[Figure] = []
    try:
        target.start()
        if arguments.crashes:
            figures.append(takeovers.crashes(target, arguments.crashes))
        if arguments.switches:
            figures.append(takeovers.switches(target, arguments.switches))
        if arguments.minutes:
            figures.append(full_load(target, arguments.minutes))
    finally:
        target.stop()
        shutil.rmtree(scratch, ignore_errors=True)
    print_table(figures)
    print(json.dumps({figure.name: figure.numbers for figure in figures}))
    return 0 if all(figure.reached for figure in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
