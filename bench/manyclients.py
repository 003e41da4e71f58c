"""What a topic, a consumer group and a client cost one node, and what it does with many of them.

python -m bench.manyclients [--topics 20000] [--groups 10000] [--clients 1000 | --full]

Adds topics of one queue, then consumer groups, then clients, to one node on 127.0.0.1. Every other
client is a producer that has sent a message; the others wait for messages, each in a group of its
own. After each step: the node's memory, and single sends, of which only the ratio to those
of the empty node counts. Then the node is killed and started. --full: 10,000 clients, if the limit
of open files allows that.
"""

import argparse
import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass

import duolog

from bench.harness import Figure, Node, fresh_directory, print_table, ready
from bench.shards import cpu_seconds
from duolog_server.demo.measure import Load, percentile, produce_singly
from duolog_server.node.runtime.openfiles import connections_that_fit, raise_limit

AT_ONCE = 64
SENDS = 2000
SETTLE_SECONDS = 6.0  # until a snapshot of the metadata has been written
IDLE_SECONDS = 5.0
PATIENCE_SECONDS = 300.0
BODY = b"." * 100
TOPIC, WAITING = "bench", "waiting"


@dataclass(frozen=True, slots=True)
class Size:
    """How many of each."""

    topics: int = 20_000
    groups: int = 10_000
    clients: int = 1000


async def each(count: int, make: Callable[[int], Awaitable[object]]) -> float:
    """Do something this many times, some at once; seconds."""
    numbers = iter(range(count))

    async def some() -> None:
        for number in numbers:
            await make(number)

    began = time.perf_counter()
    await asyncio.gather(*(some() for _ in range(AT_ONCE)))
    return time.perf_counter() - began


class Crowd:
    """The clients: producers and waiting consumers."""

    def __init__(self, endpoint: str, stack: AsyncExitStack) -> None:
        self._endpoint = endpoint
        self._stack = stack
        self._producers: list[duolog.Producer] = []

    async def join(self, number: int) -> None:
        """One more client."""
        client = duolog.Client(self._endpoint, timeout=PATIENCE_SECONDS)
        client = await self._stack.enter_async_context(client)
        if number % 2:
            consumer = client.consumer(f"member-{number}", WAITING, session=60)
            await self._stack.enter_async_context(consumer)
            return
        producer = client.producer(timeout=PATIENCE_SECONDS)
        self._producers.append(await self._stack.enter_async_context(producer))
        await self._producers[-1].send(TOPIC, BODY)

    async def send(self) -> float:
        """A message of every producer, all at once; seconds until all are stored."""
        began = time.perf_counter()
        await asyncio.gather(*(producer.send(TOPIC, BODY) for producer in self._producers))
        return time.perf_counter() - began


class Steps:
    """Measures one node as it fills."""

    def __init__(self, node: Node, client: duolog.Client) -> None:
        self.figures: list[Figure] = []
        self._node = node
        self._client = client
        self._rss = 0.0
        self._p50 = 0.0  # of the empty node

    async def measure(self, name: str, count: int, seconds: float) -> None:
        """Measure after so many of something were added."""
        await asyncio.sleep(SETTLE_SECONDS)
        cpu = cpu_seconds([self._node.pid])
        await asyncio.sleep(IDLE_SECONDS)
        idle = (cpu_seconds([self._node.pid]) - cpu) / IDLE_SECONDS
        p50 = percentile((await produce_singly(self._client, Load(SENDS, 100))).latencies, 0.5)
        rss = self._node.rss_mib()
        kib = 1024 * (rss - self._rss) / max(1, count)
        self._p50 = self._p50 or p50
        more = f"{kib:.1f} KiB each, {1000 * seconds / count:.2f} ms each, " if count else ""
        self.figures.append(
            Figure(
                name,
                "",
                f"{more}node {rss:,.0f} MiB, {idle:.1%} of a core when idle",
                f"a single send {p50 / self._p50:.2f} x the empty node's {self._p50 * 1e6:.0f} us",
                True,
                {"kib": kib, "rss_mib": rss, "idle": idle, "p50_s": p50, "seconds": seconds},
            )
        )
        self._rss = rss


async def measured(size: Size) -> list[Figure]:
    """The figures."""
    flags = (
        *("--set", f"limits.topics_max={size.topics + 100}"),
        *("--set", f"limits.groups_max={size.groups + size.clients + 100}"),
        *("--set", f"limits.connections_max={size.clients + 100}"),
        *("--set", f"limits.connections_per_address_max={size.clients + 100}"),
        # Here all clients have one address, which gets a quarter of this at most.
        *("--set", f"limits.answers_bytes_max={1 << 28}"),
    )
    with fresh_directory() as root:
        node = Node(root / "node", *flags)
        node.start()
        try:
            async with ready(node) as client, AsyncExitStack() as stack:
                admin, steps = client.admin, Steps(node, client)
                await admin.create_topic(TOPIC, 4)
                await admin.create_topic(WAITING, 1)
                await produce_singly(client, Load(SENDS, 100))  # warms up
                await steps.measure("empty node", 0, 0.0)
                took = await each(size.topics, lambda n: admin.create_topic(f"topic-{n:05d}", 1))
                await steps.measure(f"{size.topics:,} topics", size.topics, took)
                took = await each(size.groups, lambda n: admin.put_group(f"group-{n:05d}"))
                await steps.measure(f"{size.groups:,} groups", size.groups, took)
                crowd = Crowd(node.endpoint, stack)
                took = await each(size.clients, crowd.join)
                await steps.measure(f"{size.clients:,} clients", size.clients, took)
                steps.figures.append(await restart(node, crowd))
        finally:
            node.stop()
    return steps.figures


async def restart(node: Node, crowd: Crowd) -> Figure:
    """Kill the node and start it, with all its clients."""
    before = await crowd.send()
    node.kill()
    began = time.perf_counter()
    sending = asyncio.create_task(crowd.send())
    node.start()
    async with ready(node):
        answers = time.perf_counter() - began
    async with asyncio.timeout(PATIENCE_SECONDS):
        await sending
    stored = time.perf_counter() - began
    return Figure(
        "SIGKILL and start, with all clients",
        "",
        f"answers after {answers:.2f} s, a message of every producer stored after {stored:.2f} s",
        f"such a round before {before:.2f} s",
        True,
        {"answers_s": answers, "stored_s": stored, "before_s": before},
    )


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--topics", type=int, default=20_000)
    parser.add_argument("--groups", type=int, default=10_000)
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--full", action="store_true", help="10,000 clients")
    words = parser.parse_args()
    clients = 10_000 if words.full else words.clients
    raise_limit()
    if (fit := connections_that_fit(clients, 1)) < clients:
        parser.error(f"the limit of open files allows {fit} clients, not {clients}")
    print_table(asyncio.run(measured(Size(words.topics, words.groups, clients))))


if __name__ == "__main__":
    main()
