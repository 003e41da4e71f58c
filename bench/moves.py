"""Moves of a queue between two replica groups under load: for how long its puts wait.

python -m bench.moves --moves 40 --switches 10 [--sync-flush] [--kafka 4 --mib 1024]

Two groups of two nodes each, as processes; every put waits for both nodes of its group. One task
sends to the queue that moves, one message after another; others send batches to all other queues.
Beside it, in the same run: planned switches of a group's master, and reassignments of a partition
of Kafka with as much data. Prints a table and JSON; exit 1
where a target is missed.
"""

import argparse
import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import duolog
from duolog.testing._cluster import Registry
from duolog.testing._node import ForkedNode, settings_flags
from duolog.testing._ports import free_endpoint

from bench.failover import BATCH, BODY, SETTLE_SECONDS, Acks
from bench.harness import Figure, fresh_directory, print_table
from bench.peers.kafkamoves import reassigned
from duolog_server.demo.measure import percentile

GROUPS = ("a", "b")
NODES = 2
QUEUES = 4
TOPIC = "probe"
WHOLE_SECONDS = 60.0
MOVE_SECONDS = 30.0
SEND_SECONDS = 30.0
IN_FLIGHT = 2  # batches of the load
PAUSE_P50_MS, PAUSE_P99_MS = 15.0, 200.0


@asynccontextmanager
async def groups(scratch: Path, sync_flush: bool) -> AsyncIterator[list[ForkedNode]]:
    """Both groups, whole."""
    registry = Registry()
    settings = {
        "registry.lease_seconds": 2,
        "ha.in_sync_replicas": 2,
        "node.log_level": "warning",
        "store.mapped_file_size_commit_log": 256 << 20,
        "store.flush_disk_type": "SYNC_FLUSH" if sync_flush else "ASYNC_FLUSH",
    }
    nodes = []
    for group in GROUPS:
        for number in range(NODES):
            elects = ("--role", "AUTO", "--registry", registry.endpoint)
            flags = settings_flags({**settings, "node.group": group})
            name = f"{group}{number}"
            nodes.append(ForkedNode(name, *elects, "--ha-listen", free_endpoint(), *flags))
    registry.place(scratch)
    for node in nodes:
        node.place(scratch)
    try:
        registry.start()
        await asyncio.gather(*(asyncio.to_thread(node.start) for node in nodes))
        yield nodes
    finally:
        for process in (*nodes, registry):
            process.end()


async def whole(client: duolog.Client) -> None:
    """Wait until all nodes of both groups are in sync."""
    until = time.monotonic() + WHOLE_SECONDS
    while time.monotonic() < until:
        try:
            found = (await client.admin.route()).groups
        except duolog.DuologError:
            found = ()
        in_sync = [sum(replica.in_sync for replica in group.replicas) for group in found]
        if in_sync == [NODES] * len(GROUPS) and all(group.master for group in found):
            return
        await asyncio.sleep(0.05)
    raise RuntimeError(f"the groups are not whole after {WHOLE_SECONDS:g} s")


@asynccontextmanager
async def load(client: duolog.Client) -> AsyncIterator[Acks]:
    """Batches to all queues but a/0, and single messages to that one; what these were told."""
    acks, over, batches = Acks(), asyncio.Event(), 0

    async def probe(producer: duolog.Producer) -> None:
        while not over.is_set():
            try:
                receipt = await producer.send(TOPIC, BODY, queue_id=0, group="a")
                acks.told.append((time.monotonic(), receipt.epoch))
            except duolog.DuologError:
                acks.failed += 1

    async def fill(producer: duolog.Producer, turn: int) -> None:
        nonlocal batches
        places = [(group, queue) for group in GROUPS for queue in range(QUEUES)][1:]
        while not over.is_set():
            group, queue = places[(turn + batches) % len(places)]
            try:
                await producer.send_batch(TOPIC, [BODY] * BATCH, queue_id=queue, group=group)
            except duolog.DuologError:
                acks.failed += 1
            batches += 1

    async with client.producer(timeout=SEND_SECONDS) as producer:
        tasks = [asyncio.create_task(probe(producer))]
        tasks += [asyncio.create_task(fill(producer, turn)) for turn in range(IN_FLIGHT)]
        try:
            await asyncio.sleep(SETTLE_SECONDS)
            yield acks
        finally:
            over.set()
            await asyncio.gather(*tasks)


async def moved(client: duolog.Client, acks: Acks, at: duolog.QueuePlace) -> duolog.QueueMove:
    """Move the queue to the other group. Raises RuntimeError where it does not move."""
    to = GROUPS[1 - GROUPS.index(at.group)]
    until = time.monotonic() + MOVE_SECONDS
    move = await client.admin.move_queue(TOPIC, at.queue_id, to, group=at.group)
    while not move.is_over and time.monotonic() < until:
        await asyncio.sleep(0.02)
        move = await client.admin.move_queue(TOPIC, at.queue_id, to, group=at.group)
    if not move.has_moved or move.to is None:
        raise RuntimeError(f"{at} has not moved to {to}: {move.state} {move.reason}")
    await asyncio.sleep(SETTLE_SECONDS)
    return move


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured. mib: in the queue before its first move. how: messages are flushed."""

    moves: int
    switches: int
    mib: int
    how: str


async def measured(nodes: list[ForkedNode], plan: Plan) -> list[Figure]:
    """Moves there and back, then switches."""
    pauses: list[float] = []
    gaps: list[float] = []
    switched: list[float] = []
    endpoints = [node.endpoint for node in nodes]
    async with duolog.Client(endpoints, timeout=SEND_SECONDS) as client:
        await whole(client)
        await client.admin.create_topic(TOPIC, QUEUES)
        async with client.producer(timeout=SEND_SECONDS) as producer:
            for _ in range(plan.mib):
                await producer.send_batch(TOPIC, [bytes(1024)] * 1024, queue_id=0, group="a")
        at = duolog.QueuePlace("a", 0)
        async with load(client) as acks:
            for _ in range(plan.moves):
                began = time.monotonic()
                move = await moved(client, acks, at)
                assert move.to is not None, "it has moved"
                at = move.to
                pauses.append(move.pause_ms)
                gaps.append(acks.longest_gap(began) * 1000)
        failed = acks.failed
        await whole(client)
        async with load(client) as acks:
            for _ in range(plan.switches):
                began = time.monotonic()
                await client.admin.failover()
                await asyncio.sleep(1.0)
                switched.append(acks.longest_gap(began) * 1000)
                await whole(client)
    p50, p99 = percentile(pauses, 0.5), percentile(pauses, 0.99)
    beside = f"planned switch p50 {percentile(switched, 0.5):.0f} ms" if switched else ""
    return [
        Figure(
            f"puts to a queue that moves wait, under load, {plan.how}, {plan.moves} moves",
            f"p50 <= {PAUSE_P50_MS:g} ms, p99 <= {PAUSE_P99_MS:g} ms, no send fails",
            f"p50 {p50:.0f} ms, p99 {p99:.0f} ms, longest {max(pauses):.0f} ms; between two "
            f"answers p50 {percentile(gaps, 0.5):.0f} ms, longest {max(gaps):.0f} ms; "
            f"{failed} failed",
            beside,
            p50 <= PAUSE_P50_MS and p99 <= PAUSE_P99_MS and not failed,
            {"p50_ms": p50, "p99_ms": p99, "max_ms": max(pauses), "failed": failed},
        )
    ]


def of_kafka(mib: int, times: int) -> Figure:
    """Reassignments of a partition."""
    with fresh_directory() as scratch:
        gaps, seconds = reassigned(scratch, mib, times)
    p50, took = percentile(gaps, 0.5), percentile(seconds, 0.5)
    return Figure(
        f"a partition of Kafka with {mib} MiB is reassigned, without other load, {times} times",
        "none",
        f"between two answers p50 {p50:.0f} ms, longest {max(gaps):.0f} ms; it takes {took:.0f} s",
        "",
        True,
        {"gap_p50_ms": p50, "gap_max_ms": max(gaps), "seconds_p50": took},
    )


def main() -> int:
    """Run it."""
    parser = argparse.ArgumentParser(prog="python -m bench.moves")
    parser.add_argument("--moves", type=int, default=40)
    parser.add_argument("--switches", type=int, default=0, help="planned switches, beside them")
    parser.add_argument("--kafka", type=int, default=0, help="reassignments in Kafka, beside them")
    parser.add_argument("--mib", type=int, default=0, help="in the queue before the first move")
    parser.add_argument("--sync-flush", action="store_true")
    arguments = parser.parse_args()
    how = "SYNC_FLUSH" if arguments.sync_flush else "ASYNC_FLUSH"
    plan = Plan(arguments.moves, arguments.switches, arguments.mib, how)

    async def run() -> list[Figure]:
        with fresh_directory() as scratch:
            async with groups(scratch, arguments.sync_flush) as nodes:
                return await measured(nodes, plan)

    figures = asyncio.run(run())
    if arguments.kafka:
        figures.append(of_kafka(plan.mib, arguments.kafka))
    print_table(figures)
    print(json.dumps({figure.name: figure.numbers for figure in figures}))
    return 0 if all(figure.reached for figure in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
