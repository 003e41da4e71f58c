"""Failover with real processes and a real etcd: how fast it is, and that it does not come unasked.

python -m bench.failover --crashes 50 --switches 50 --minutes 30 --lease 1

Prints a table, and JSON; exit 1 where a target is missed. A round: the group is whole, four tasks
send one message after another, then the master is killed, or another node is ordered to take over.
Full load: three nodes and an etcd take what a producer can send, and the master must not change.
"""

import argparse
import asyncio
import itertools
import json
import random
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import duolog

from bench.harness import Figure, fresh_directory, print_table
from duolog_server.chaos.processes import ProcessTarget
from duolog_server.demo.measure import percentile

SENDERS = 4
WHOLE_SECONDS = 60.0
SEND_SECONDS = 30.0
SETTLE_SECONDS = 0.3  # of sends before a round's event, and a random time more
AFTER_SWITCH_SECONDS = 0.5
TOPIC = "probe"
BATCH, IN_FLIGHT = 4000, 8  # of full load
BODY = b"." * 100
# Segments go as soon as retention looks: minutes of full load are more than a disk's worth.
FLAGS = (
    "--set", "node.log_level=warning",
    "--set", "store.mapped_file_size_commit_log=268435456",
    "--set", "store.disk_max_used_space_ratio=10",
    "--set", "store.file_reserved_time=0",
)  # fmt: skip


@dataclass
class Acks:
    """What the producer was told: when (monotonic s), in which epoch."""

    told: list[tuple[float, int]] = field(default_factory=list)
    failed: int = 0

    def first_of(self, epoch: int) -> float | None:
        """When the first put of an epoch after this one was acknowledged."""
        return next((at for at, of in self.told if of > epoch), None)

    async def after(self, epoch: int, until: float) -> float:
        """Wait for the first put of a later epoch. until: monotonic. Raises RuntimeError."""
        while (first := self.first_of(epoch)) is None:
            if time.monotonic() > until:
                raise RuntimeError(f"no put of an epoch after {epoch} was stored in time")
            await asyncio.sleep(0.005)
        return first

    def longest_gap(self, since: float) -> float:
        """The longest time without an acknowledgement, from the last one before `since` on."""
        before = max((at for at, _ in self.told if at <= since), default=since)
        times = [before, *(at for at, _ in self.told if at > since)]
        return max((b - a for a, b in itertools.pairwise(times)), default=0.0)


@asynccontextmanager
async def sending(client: duolog.Client, chance: random.Random) -> AsyncIterator[Acks]:
    """Send all the time; for a random time before this begins, so that leases differ in age."""
    acks, over = Acks(), asyncio.Event()

    async def send(producer: duolog.Producer) -> None:
        while not over.is_set():
            try:
                receipt = await producer.send(TOPIC, BODY)
                acks.told.append((time.monotonic(), receipt.epoch))
            except duolog.DuologError:
                acks.failed += 1
            await asyncio.sleep(0.001)

    async with client.producer(timeout=SEND_SECONDS) as producer:
        tasks = [asyncio.create_task(send(producer)) for _ in range(SENDERS)]
        try:
            await asyncio.sleep(SETTLE_SECONDS + chance.random())
            assert acks.told, "sends are answered"
            yield acks
        finally:
            over.set()
            await asyncio.gather(*tasks)


async def whole(client: duolog.Client) -> tuple[str, int]:
    """Wait until all three replicas are in sync; master and epoch."""
    until = time.monotonic() + WHOLE_SECONDS
    while time.monotonic() < until:
        try:
            groups = (await client.admin.route()).groups
        except duolog.DuologError:
            groups = ()
        if groups and sum(r.in_sync for r in groups[0].replicas) == 3 and groups[0].master:
            return groups[0].master, groups[0].epoch
        await asyncio.sleep(0.05)
    raise RuntimeError(f"the group is not whole after {WHOLE_SECONDS:g} s")


Round = Callable[[ProcessTarget, duolog.Client, random.Random], Awaitable[tuple[float, int]]]


async def crash(
    target: ProcessTarget, client: duolog.Client, chance: random.Random
) -> tuple[float, int]:
    """Kill the master: seconds to the first put of the next one, and how many sends failed."""
    master, epoch = await whole(client)
    try:
        async with sending(client, chance) as acks:
            killed = time.monotonic()
            await asyncio.to_thread(target.kill, master)
            first = await acks.after(epoch, killed + SEND_SECONDS)
    finally:
        await asyncio.to_thread(target.revive, master)
    return first - killed, acks.failed


async def switch(
    target: ProcessTarget, client: duolog.Client, chance: random.Random
) -> tuple[float, int]:
    """Order a switch: the longest time (s) without a stored put, and how many sends failed."""
    await whole(client)
    async with sending(client, chance) as acks:
        ordered = time.monotonic()
        await client.admin.failover()
        await asyncio.sleep(AFTER_SWITCH_SECONDS)
    return acks.longest_gap(ordered), acks.failed


async def outage(
    target: ProcessTarget, client: duolog.Client, chance: random.Random
) -> tuple[float, int]:
    """Kill all nodes and start them: seconds to the next put, and how many sends failed."""
    _, epoch = await whole(client)
    async with sending(client, chance) as acks:
        killed = time.monotonic()
        await asyncio.gather(*(asyncio.to_thread(target.kill, node) for node in target.nodes))
        async with asyncio.TaskGroup() as starts:
            for node in target.nodes:
                starts.create_task(asyncio.to_thread(target.revive, node))
            first = await acks.after(epoch, killed + WHOLE_SECONDS)
    return first - killed, acks.failed


async def roll(
    target: ProcessTarget, client: duolog.Client, chance: random.Random
) -> tuple[float, int]:
    """Drain and restart one node after the other: longest time (s) without a stored put."""
    await whole(client)
    async with sending(client, chance) as acks:
        began = time.monotonic()
        for node in target.nodes:
            await client.admin.drain(node)
            await asyncio.to_thread(target.restart, node)
            await client.admin.drain(node, undo=True)
            await whole(client)
    return acks.longest_gap(began), acks.failed


async def rounds(
    target: ProcessTarget, count: int, one: Round, title: str, most: tuple[float, float]
) -> Figure:
    """So many rounds, with a client that is used to the group. most: seconds, p50 and p99."""
    endpoints = [target.endpoint(node) for node in target.nodes]
    chance = random.Random(1)
    async with duolog.Client(endpoints, timeout=SEND_SECONDS) as client:
        await whole(client)
        await client.admin.create_topic(TOPIC, 4)
        found = [await one(target, client, chance) for _ in range(count)]
    seconds, failed = [took for took, _ in found], sum(failed for _, failed in found)
    p50, p99 = percentile(seconds, 0.5), percentile(seconds, 0.99)
    return Figure(
        f"{title}, lease {target.lease_seconds} s, {count} times",
        f"p50 <= {most[0]:g} s, p99 <= {most[1]:g} s, no send fails",
        f"p50 {p50:.3f} s, p99 {p99:.3f} s, longest {max(seconds):.3f} s, {failed} failed",
        "",
        p50 <= most[0] and p99 <= most[1] and not failed,
        {"p50_s": p50, "p99_s": p99, "max_s": max(seconds), "failed": failed},
    )


async def full_load(target: ProcessTarget, minutes: float) -> Figure:
    """Produce as fast as the group takes it; how often it elected meanwhile."""
    endpoints = [target.endpoint(node) for node in target.nodes]
    sent = failed = 0
    longest = 0.0
    async with duolog.Client(endpoints, timeout=30) as client:
        _, before = await whole(client)
        await client.admin.create_topic("load", 8)
        end = time.monotonic() + 60 * minutes

        async def produce(producer: duolog.Producer) -> None:
            nonlocal sent, failed, longest
            while time.monotonic() < end:
                began = time.monotonic()
                try:
                    receipt = await producer.send_batch("load", [BODY] * BATCH)
                    sent += receipt.count  # read after the wait: others count as well
                except duolog.DuologError:
                    failed += 1
                longest = max(longest, time.monotonic() - began)

        async with client.producer(timeout=30) as producer:
            await asyncio.gather(*(produce(producer) for _ in range(IN_FLIGHT)))
        elections = (await client.admin.route()).groups[0].epoch - before
    rate = sent / (60 * minutes)
    return Figure(
        f"{minutes:g} minutes of full load, lease {target.lease_seconds} s: elections",
        "0, no batch fails",
        f"{elections}; {failed} failed; {rate:,.0f} msg/s in sync on three nodes, longest batch "
        f"{longest:.2f} s",
        "",
        not elections and not failed,
        {"elections": elections, "failed": failed, "msg_per_s": rate, "longest_s": longest},
    )


async def measured(target: ProcessTarget, arguments: argparse.Namespace) -> list[Figure]:
    """What was asked for."""
    figures = []
    if arguments.crashes:
        title = "SIGKILL of the master, to the first put"
        figures.append(await rounds(target, arguments.crashes, crash, title, (1.4, 2)))
    if arguments.switches:
        title = "planned switch, time without an acknowledged put"
        figures.append(await rounds(target, arguments.switches, switch, title, (0.1, 0.1)))
    if arguments.outages:
        title = "SIGKILL of all three, to the first put"
        figures.append(await rounds(target, arguments.outages, outage, title, (6, 6)))
    if arguments.rolls:
        title = "restart of each node, drained, longest time without an acknowledged put"
        figures.append(await rounds(target, arguments.rolls, roll, title, (0.2, 0.2)))
    if arguments.minutes:
        figures.append(await full_load(target, arguments.minutes))
    return figures


def main() -> int:
    """Run it."""
    parser = argparse.ArgumentParser(prog="python -m bench.failover")
    parser.add_argument("--minutes", type=float, default=0.0, help="of full load")
    parser.add_argument("--crashes", type=int, default=0, help="SIGKILLs of the master")
    parser.add_argument("--switches", type=int, default=0, help="planned switches")
    parser.add_argument("--outages", type=int, default=0, help="SIGKILLs of all nodes at once")
    parser.add_argument("--rolls", type=int, default=0, help="restarts of all nodes in turn")
    parser.add_argument("--lease", type=int, default=1, help="seconds")
    arguments = parser.parse_args()
    with fresh_directory() as scratch:
        target = ProcessTarget(scratch, lease_seconds=arguments.lease, flags=FLAGS)
        try:
            target.start()
            figures = asyncio.run(measured(target, arguments))
        finally:
            target.stop()
    print_table(figures)
    print(json.dumps({figure.name: figure.numbers for figure in figures}))
    return 0 if all(figure.reached for figure in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
