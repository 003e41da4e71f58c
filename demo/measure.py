"""Measurements shared by `duolog bench` and bench/: plain functions that return numbers."""

import asyncio
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import duolog
from duolog._background import together

Progress = Callable[[int], None]


def percentile(values: list[float], share: float) -> float:
    """The least value that this share of them does not exceed; 0 for none."""
    if not values:
        return 0.0
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


@dataclass(slots=True)
class Measured:
    """Messages and bytes moved, and how long each request took (seconds)."""

    messages: int = 0
    bytes: int = 0
    seconds: float = 0.0
    latencies: list[float] = field(default_factory=list)

    def row(self) -> dict[str, int | float]:
        """One row of a table."""
        seconds = self.seconds or 1e-9
        return {
            "messages": self.messages,
            "bytes": self.bytes,
            "seconds": round(self.seconds, 4),
            "messages_per_second": round(self.messages / seconds),
            "megabytes_per_second": round(self.bytes / seconds / 1e6, 2),
            "p50_ms": round(1000 * percentile(self.latencies, 0.5), 3),
            "p99_ms": round(1000 * percentile(self.latencies, 0.99), 3),
            "p999_ms": round(1000 * percentile(self.latencies, 0.999), 3),
            "max_ms": round(1000 * max(self.latencies, default=0.0), 3),
        }


@dataclass(frozen=True, slots=True)
class Load:
    """Messages to send, with bodies of size bytes."""

    messages: int
    size: int
    topic: str = "bench"

    def __post_init__(self) -> None:
        """Raise without a message to measure."""
        assert self.messages > 0, "a load has messages"
        assert self.size > 0, "a message has a body"

    @property
    def bytes(self) -> int:
        """Total size of all bodies."""
        return self.messages * self.size


async def produce_batches(
    client: duolog.Client,
    load: Load,
    batch: int,
    progress: Progress = lambda done: None,
) -> Measured:
    """Send in batches, two calls in flight."""
    found = Measured()
    bodies = [b"x" * load.size] * batch
    async with client.producer(timeout=120) as producer:
        await producer.send_batch(load.topic, bodies[:1])

        async def send(count: int) -> None:
            began = time.perf_counter()
            await producer.send_batch(load.topic, bodies[:count])
            found.latencies.append(time.perf_counter() - began)
            found.messages += count
            progress(found.messages)

        began = time.perf_counter()
        async with together() as tasks:
            pending: set[asyncio.Task[None]] = set()
            left = load.messages
            while left:
                count = min(batch, left)
                left -= count
                pending.add(tasks.create_task(send(count)))
                if len(pending) >= 2:
                    _, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        found.seconds = time.perf_counter() - began
    found.bytes = load.bytes
    return found


async def produce_singly(
    client: duolog.Client,
    load: Load,
    senders: int = 1,
    progress: Progress = lambda done: None,
) -> Measured:
    """Send one message after the other, in so many tasks."""
    found = Measured(bytes=load.bytes)
    body = b"x" * load.size
    async with client.producer(timeout=120) as producer:
        await producer.send(load.topic, body)

        async def run(count: int) -> None:
            for _ in range(count):
                began = time.perf_counter()
                await producer.send(load.topic, body)
                found.latencies.append(time.perf_counter() - began)
                found.messages += 1
                if found.messages % 100 == 0:
                    progress(found.messages)

        began = time.perf_counter()
        share, rest = divmod(load.messages, senders)
        await asyncio.gather(*(run(share + (k < rest)) for k in range(senders)))
        found.seconds = time.perf_counter() - began
    return found


async def consume(
    consumer: duolog.Consumer,
    messages: int,
    as_messages: bool,
    wait: float = 5.0,
    progress: Progress = lambda done: None,
) -> Measured:
    """Read as columns, or as message objects whose bodies are accessed.

    wait: seconds for the next message; without one, the measurement ends.
    """
    found = Measured()
    began = time.perf_counter()
    last = began
    while found.messages < messages:
        if as_messages:
            message = await consumer.get(wait)
            if message is None:
                break
            found.bytes += len(message.body)
            found.messages += 1
            if found.messages % 10_000 == 0:
                progress(found.messages)
        else:
            batch = await consumer.get_batch(wait)
            if batch is None:
                break
            found.messages += batch.count
            found.bytes += len(batch.bodies)
            progress(found.messages)
            now = time.perf_counter()
            found.latencies.append(now - last)
            last = now
    found.seconds = time.perf_counter() - began
    return found


def fill_store(
    directory: Path, total_bytes: int, size: int, progress: Progress = lambda done: None
) -> int:
    """Write a store of bodies of a size, in process, then stop it as a kill would; messages."""
    from duolog_server.node.runtime.clocks import wall_ms
    from duolog_server.store.columns import Columns
    from duolog_server.store.messagestore import MessageStore, PutBatch
    from duolog_server.store.options import StoreOptions
    from duolog_server.store.osdisk import OsDisk

    store = MessageStore(OsDisk(directory), StoreOptions())
    store.start()
    columns = Columns.of([b"x" * size] * 1000)
    number = 0
    while store.log.max_offset < total_bytes:
        now = wall_ms()
        store.put(
            PutBatch("bench", number % 4, columns, now, producer=b"bench-----", sequence=number),
            now,
        )
        number += 1000
        while store.dispatch():
            pass
        progress(store.log.max_offset)
    store.abandon()
    return number


def recover(directory: Path) -> dict[str, int | float]:
    """Recover a crashed store from its log alone: queues and index are removed first."""
    import shutil

    from duolog_server.store.messagestore import MessageStore
    from duolog_server.store.options import StoreOptions
    from duolog_server.store.osdisk import OsDisk

    for name in ("consumequeue", "index"):
        shutil.rmtree(directory / name, ignore_errors=True)
    (directory / "checkpoint").unlink(missing_ok=True)
    (directory / "abort").write_bytes(b"")
    store = MessageStore(OsDisk(directory), StoreOptions())
    began = time.perf_counter()
    report = store.start()
    seconds = time.perf_counter() - began
    entries = sum(queue.max_offset - queue.min_offset for queue in store.queues)
    store.abandon()
    return {
        "seconds": round(seconds, 3),
        "bytes": report.end - report.scanned_from,
        "gigabytes_per_second": round((report.end - report.scanned_from) / seconds / 1e9, 3),
        "messages": entries,
    }
