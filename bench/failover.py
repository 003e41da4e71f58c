"""Elections that should not be: three nodes and an etcd at full produce load, for some minutes.

python -m bench.failover --minutes 10        prints JSON; exit 1 where the master changed
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

from cluster.chaos.processes import ProcessTarget

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


async def load(target: ProcessTarget, seconds: float) -> dict[str, object]:
    """Produce as fast as the group takes it; what it did, and how often it elected."""
    endpoints = [target.endpoint(node) for node in target.nodes]
    async with duolog.Client(endpoints, timeout=30) as client:
        until = time.monotonic() + 60
        while True:
            route = await client.admin.route()
            whole = route.groups and sum(r.in_sync for r in route.groups[0].replicas) == 3
            if whole or time.monotonic() > until:
                break
            await asyncio.sleep(0.1)
        before = route.groups[0].epoch
        await client.admin.create_topic("load", 8)
        bodies = [b"." * BODY_BYTES] * BATCH
        sent = unknown = 0
        longest = 0.0
        end = time.monotonic() + seconds

        async def produce(producer: duolog.Producer) -> None:
            nonlocal sent, unknown, longest
            while time.monotonic() < end:
                began = time.monotonic()
                try:
                    sent += (await producer.send_batch("load", bodies)).count
                except duolog.DuologError:
                    unknown += 1
                longest = max(longest, time.monotonic() - began)

        async with client.producer(timeout=30) as producer:
            await asyncio.gather(*(produce(producer) for _ in range(IN_FLIGHT)))
        after = (await client.admin.route()).groups[0].epoch
    return {
        "minutes": round(seconds / 60, 1),
        "messages_per_second": round(sent / seconds),
        "false_failovers": after - before,
        "failed_batches": unknown,
        "longest_batch_seconds": round(longest, 2),
    }


def main() -> int:
    """Run it."""
    parser = argparse.ArgumentParser(prog="python -m bench.failover")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--lease", type=int, default=3)
    arguments = parser.parse_args()
    scratch = Path(tempfile.mkdtemp(prefix="duolog-load-"))
    target = ProcessTarget(scratch, lease_seconds=arguments.lease, flags=FLAGS)
    try:
        target.start()
        result = asyncio.run(load(target, arguments.minutes * 60))
    finally:
        target.stop()
        shutil.rmtree(scratch, ignore_errors=True)
    print(json.dumps(result))
    return 1 if result["false_failovers"] else 0


if __name__ == "__main__":
    sys.exit(main())
