"""How long producers wait for the next master: after a SIGKILL of the last one, and in a switch.

A round is: the group is whole, four tasks send one message after another, then the master is
killed, or another node is ordered to take over. What is told of a round is what the SDK's producer
saw, and where the time went by what the registry showed.
"""

import asyncio
import itertools
import os
import random
import statistics
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import duolog

from bench.harness import Figure
from duolog_server.chaos.processes import ProcessTarget
from duolog_server.demo.measure import percentile
from duolog_server.ha.groupstate import Keys, view_of
from duolog_server.ha.registry import Put, RegistryError, Transaction
from duolog_server.node.election.etcd import EtcdRegistry

SENDERS = 4
WHOLE_SECONDS = 60.0
SEND_SECONDS = 30.0
SETTLE_SECONDS = 0.3  # of sends before a round's event, and a random time more
AFTER_SWITCH_SECONDS = 0.5
TOPIC = "probe"
LIMIT_TRIES = 50
KEYS = Keys("DefaultCluster", "broker-a")


@dataclass
class Seen:
    """When the registry showed what (monotonic s): the lock gone, and another one."""

    lock_gone: float = 0.0
    elected: float = 0.0


class RegistryEye(threading.Thread):
    """Watches the group's lock."""

    def __init__(self, endpoints: tuple[str, ...]) -> None:
        super().__init__(daemon=True)
        self._registry = EtcdRegistry(endpoints, 2.0)
        self._over = threading.Event()
        self.seen = Seen()

    def run(self) -> None:
        """Until `end`."""
        first = 0  # lease of the lock as it is at first
        while not self._over.is_set():
            try:
                snapshot = self._registry.get(KEYS.prefix)
                now, lock = time.monotonic(), view_of(snapshot, KEYS).lock
                lease = lock.lease if lock is not None else 0
                first = first or lease
                if lease != first:  # gone, or taken again between two reads
                    self.seen.lock_gone = self.seen.lock_gone or now
                    if lease:
                        self.seen.elected = self.seen.elected or now
                self._registry.watch(KEYS.prefix, snapshot.revision, 5.0)
            except RegistryError:
                self._over.wait(0.05)

    def end(self) -> None:
        """Stop it."""
        self._over.set()
        self._registry.close()
        self.join(5.0)


@dataclass
class Acks:
    """What the producer was told: when (monotonic s), in which epoch."""

    told: list[tuple[float, int]] = field(default_factory=list)
    failed: int = 0

    def first_of(self, epoch: int) -> float | None:
        """When the first put of an epoch after this one was acknowledged."""
        return next((at for at, of in self.told if of > epoch), None)

    def longest_gap(self, since: float) -> float:
        """The longest time without an acknowledgement, from the last one before `since` on."""
        before = max((at for at, _ in self.told if at <= since), default=since)
        times = [before, *(at for at, _ in self.told if at > since)]
        return max((b - a for a, b in itertools.pairwise(times)), default=0.0)


@asynccontextmanager
async def sending(client: duolog.Client) -> AsyncIterator[Acks]:
    """Send all the time."""
    acks, over = Acks(), asyncio.Event()

    async def send(producer: duolog.Producer) -> None:
        while not over.is_set():
            try:
                receipt = await producer.send(TOPIC, b"." * 100)
                acks.told.append((time.monotonic(), receipt.epoch))
            except duolog.DuologError:
                acks.failed += 1
            await asyncio.sleep(0.001)

    async with client.producer(timeout=SEND_SECONDS) as producer:
        tasks = [asyncio.create_task(send(producer)) for _ in range(SENDERS)]
        try:
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
    raise RuntimeError("the group is not whole")


async def _settled(acks: Acks, chance: random.Random) -> None:
    """Some sends, for a random time: the lease is renewed at any of its ages."""
    before = len(acks.told)
    await asyncio.sleep(SETTLE_SECONDS + chance.random())
    assert len(acks.told) > before, "sends are answered"


async def crash(
    target: ProcessTarget, client: duolog.Client, chance: random.Random
) -> dict[str, float]:
    """Kill the master, and start it again afterwards; ms."""
    master, epoch = await whole(client)
    eye = RegistryEye(target.registry)
    eye.start()
    try:
        async with sending(client) as acks:
            await _settled(acks, chance)
            killed = time.monotonic()
            await asyncio.to_thread(target.kill, master)
            while acks.first_of(epoch) is None and time.monotonic() < killed + SEND_SECONDS:
                await asyncio.sleep(0.005)
            first = acks.first_of(epoch) or time.monotonic()
            while not eye.seen.elected and time.monotonic() < killed + SEND_SECONDS:
                await asyncio.sleep(0.005)
    finally:
        eye.end()
        await asyncio.to_thread(target.revive, master)
    seen = eye.seen
    if not seen.elected:
        raise RuntimeError(f"no election was seen within {SEND_SECONDS:g} s")
    return {
        "all": 1000 * (first - killed),
        "lock": 1000 * (seen.lock_gone - killed),
        "election": 1000 * (seen.elected - seen.lock_gone),
        "service": 1000 * (first - seen.elected),
        "failed": acks.failed,
    }


async def switch(client: duolog.Client, chance: random.Random) -> dict[str, float]:
    """Order a switch; ms."""
    await whole(client)
    async with sending(client) as acks:
        await _settled(acks, chance)
        ordered = time.monotonic()
        await client.admin.failover()
        answered = time.monotonic()
        await asyncio.sleep(AFTER_SWITCH_SECONDS)
    return {
        "all": 1000 * acks.longest_gap(ordered),
        "order": 1000 * (answered - ordered),
        "failed": acks.failed,
    }


Round = Callable[[duolog.Client, random.Random], Awaitable[dict[str, float]]]


async def rounds(target: ProcessTarget, count: int, one: Round) -> list[dict[str, float]]:
    """So many rounds, each with a client that is used to the group."""
    endpoints = [target.endpoint(node) for node in target.nodes]
    # Of the time at which a round begins: that is what they should differ by.
    chance, found = random.Random(1), []
    async with duolog.Client(endpoints, timeout=SEND_SECONDS) as client:
        await whole(client)
        await client.admin.create_topic(TOPIC, 4)
        for _ in range(count):
            found.append(await one(client, chance))
    return found


def transaction_ms(endpoints: tuple[str, ...]) -> float:
    """What one transaction of etcd takes when nothing else happens, median."""
    registry, taken = EtcdRegistry(endpoints, 2.0), []
    try:
        for _ in range(LIMIT_TRIES):
            began = time.monotonic()
            registry.commit(Transaction((), (Put("/bench", b"."),)))
            taken.append(1000 * (time.monotonic() - began))
    finally:
        registry.close()
    return statistics.median(taken)


def sync_ms(directory: Path) -> float:
    """What a bare fdatasync of a small write takes, median."""
    taken = []
    with (directory / "sync").open("wb", buffering=0) as file:
        for _ in range(LIMIT_TRIES):
            began = time.monotonic()
            file.write(b"." * 512)
            os.fdatasync(file.fileno())
            taken.append(1000 * (time.monotonic() - began))
    return statistics.median(taken)


def spread(found: Sequence[dict[str, float]], name: str) -> dict[str, float]:
    """p50, p99 and the largest of a part of all rounds, ms."""
    values = [row[name] for row in found]
    return {
        f"{name}_p50": percentile(values, 0.5),
        f"{name}_p99": percentile(values, 0.99),
        f"{name}_max": max(values),
    }


def crashes(target: ProcessTarget, count: int) -> Figure:
    """SIGKILL of the master, until the producer's first put in the next epoch is acknowledged."""
    limits = f"etcd's transaction {transaction_ms(target.registry):.1f} ms"
    found = asyncio.run(rounds(target, count, lambda *how: crash(target, *how)))
    numbers: dict[str, float] = {"rounds": count, "failed": sum(row["failed"] for row in found)}
    for name in ("all", "lock", "election", "service"):
        numbers |= spread(found, name)
    p50, p99 = numbers["all_p50"], numbers["all_p99"]
    return Figure(
        f"SIGKILL of the master, to the first put, lease {target.lease_seconds} s, {count} times",
        "p50 <= 1.4 s, p99 <= 2 s",
        f"p50 {p50 / 1000:.2f} s, p99 {p99 / 1000:.2f} s, "
        f"longest {numbers['all_max'] / 1000:.2f} s",
        f"etcd ends the lease after p50 {numbers['lock_p50'] / 1000:.2f} s, "
        f"p99 {numbers['lock_p99'] / 1000:.2f} s; {limits}",
        p50 <= 1400 and p99 <= 2000 and not numbers["failed"],
        numbers,
    )


def switches(target: ProcessTarget, count: int) -> Figure:
    """A planned switch: the producer's longest time without an acknowledged put."""
    limits = (
        f"etcd's transaction {transaction_ms(target.registry):.1f} ms, "
        f"fdatasync {sync_ms(target.directory):.1f} ms"
    )
    found = asyncio.run(rounds(target, count, switch))
    numbers: dict[str, float] = {"rounds": count, "failed": sum(row["failed"] for row in found)}
    for name in ("all", "order"):
        numbers |= spread(found, name)
    p50, p99 = numbers["all_p50"], numbers["all_p99"]
    return Figure(
        f"planned switch, time without an acknowledged put, {count} times",
        "p99 <= 100 ms",
        f"p50 {p50:.0f} ms, p99 {p99:.0f} ms, longest {numbers['all_max']:.0f} ms",
        limits,
        p99 <= 100 and not numbers["failed"],
        numbers,
    )
