"""Whether a message costs more where there are ten times as many of something.

Each figure is a rate with ten times as many messages, topics, consumers or slaves, beside the rate
with a tenth of them in the same run. Node, client and slaves share the machine: what others of them
take of it is told beside the rate.
"""

import asyncio
import contextlib
import random
import time
from collections.abc import Iterator
from statistics import median

import duolog

from bench.harness import Figure, Node, fresh_directory, ready, running
from bench.queuesends import CAUGHT_UP_SECONDS, create_topics
from bench.usage import CpuOf
from duolog_server.demo import measure
from duolog_server.demo.measure import Load
from duolog_server.demo.ports import free_endpoint

BATCH = 50_000
ROUNDS = 3
FLAT = 0.9  # of the smaller one's rate
MANY = 10  # consumers, slaves
MANY_MESSAGES = 20_000_000
MANY_TOPICS = 20_000
TOPIC_BATCH = 1000
TOPIC_CALLS = 2000
QUEUES = 40  # that the consumers share
CONSUMED = 4_000_000
FETCHED = 1_200_000  # more than all consumers together fetch ahead
JOIN_SECONDS = 60.0
READ_SECONDS = 300.0


def _figure(what: str, few: float, many: float, more: str = "") -> Figure:
    """few, many: messages a second."""
    return Figure(
        f"{what}: messages a second with ten times as many",
        f">= {FLAT} x with a tenth",
        f"{many:,.0f}/s, {many / few:.2f} x{more}",
        f"a tenth {few:,.0f}/s",
        many >= FLAT * few,
        {"many_per_s": many, "few_per_s": few, "ratio": many / few},
    )


async def messages() -> list[Figure]:
    """Batches and single sends: the first tenth of the messages, and the last one."""
    share = MANY_MESSAGES // 10
    async with running() as (_, client):
        await measure.produce_batches(client, Load(200_000, 100), BATCH)
        rates, singles = [], []
        for number in range(10):
            if number in (0, 9):
                found = await measure.produce_singly(client, Load(3000, 100))
                singles.append(found.messages / found.seconds)
            found = await measure.produce_batches(client, Load(share, 100), BATCH)
            rates.append(found.messages / found.seconds)
    return [
        _figure(f"{MANY_MESSAGES:,} messages in batches", rates[0], rates[-1]),
        _figure("one send at a time behind them", singles[0], singles[-1]),
    ]


async def topics() -> list[Figure]:
    """Batches to topics in random order, each of which has had a message before."""
    chance = random.Random(1)
    async with running("--set", f"limits.topics_max={2 * MANY_TOPICS}") as (_, client):
        names = [topic for topic, _ in await create_topics(client, "T", MANY_TOPICS, 1)]
        async with client.producer(timeout=120) as producer:

            async def send(turns: Iterator[str], size: int) -> None:
                bodies = [b"x" * 100] * size
                for topic in turns:
                    await producer.send_batch(topic, bodies, queue_id=0)

            async def rate(topics: list[str]) -> float:
                turns = iter(chance.choices(topics, k=TOPIC_CALLS))
                began = time.perf_counter()
                await asyncio.gather(send(turns, TOPIC_BATCH), send(turns, TOPIC_BATCH))
                return TOPIC_CALLS * TOPIC_BATCH / (time.perf_counter() - began)

            await send(iter(names), 1)  # opens every queue
            few = names[: MANY_TOPICS // 10]
            pairs = [(await rate(few), await rate(names)) for _ in range(ROUNDS)]
    rates = [median(column) for column in zip(*pairs, strict=True)]
    return [_figure(f"{MANY_TOPICS:,} topics, batches of {TOPIC_BATCH:,}", *rates)]


async def consumers() -> list[Figure]:
    """All messages of a topic, read by one member of a group, and by ten that share its queues."""
    async with running() as (_, client):
        await client.admin.create_topic("shared", QUEUES)
        await measure.produce_batches(client, Load(CONSUMED, 100, "shared"), BATCH)
        pairs = [
            (await _read_by(client, 1, f"one-{k}"), await _read_by(client, MANY, f"ten-{k}"))
            for k in range(ROUNDS)
        ]
    rates = [median(column) for column in zip(*pairs, strict=True)]
    return [_figure(f"{MANY} consumers of a group, columns", *rates)]


async def _read_by(client: duolog.Client, members: int, group: str) -> float:
    """Messages a second, behind those that members may have fetched before all had joined."""
    async with contextlib.AsyncExitStack() as stack:
        made = [client.consumer(group, "shared") for _ in range(members)]
        joined = [await stack.enter_async_context(consumer) for consumer in made]
        async with asyncio.timeout(JOIN_SECONDS):
            while any(len(one.assignment) != QUEUES // members for one in joined):
                await asyncio.sleep(0.05)
        done = 0
        begun: list[tuple[int, float]] = []

        async def read(consumer: duolog.Consumer) -> None:
            nonlocal done
            while done < CONSUMED:
                batch = await consumer.get_batch(0.2)
                done += 0 if batch is None else batch.count
                if done >= FETCHED and not begun:
                    begun.append((done, time.perf_counter()))

        async with asyncio.timeout(READ_SECONDS):
            await asyncio.gather(*map(read, joined))
        first, began = begun[0]
        return (done - first) / (time.perf_counter() - began)


async def slaves() -> list[Figure]:
    """Batches to an ASYNC_MASTER with one slave, and with ten, which share its machine."""
    found = [await _with_slaves(count) for count in (1, MANY)]
    (few, few_cpu), (many, many_cpu) = found
    more = f"; CPU of the master a million messages {few_cpu:.2f} s, {many_cpu:.2f} s"
    return [_figure(f"{MANY} slaves of a master", few, many, more)]


async def _with_slaves(count: int) -> tuple[float, float]:
    """Messages a second until all slaves have them; CPU seconds of the master for a million."""
    load = Load(2_000_000, 100)
    with fresh_directory() as root, contextlib.ExitStack() as running:
        port = free_endpoint()
        master = Node(root / "master", "--role", "ASYNC_MASTER", "--ha-listen", port)
        nodes = [Node(root / f"slave-{k}", "--role", "SLAVE", "--ha-master", port)
                 for k in range(count)]  # fmt: skip
        for node in (master, *nodes):
            node.start()
            running.callback(node.stop)
        async with ready(master) as client:
            await client.admin.create_topic(load.topic, 4)
            await measure.produce_batches(client, Load(200_000, 100), BATCH)
            await _all_have_it(client, count)
            cpu, began = CpuOf(master.pid), time.perf_counter()
            await measure.produce_batches(client, load, BATCH)
            await _all_have_it(client, count)
            seconds = time.perf_counter() - began
            return load.messages / seconds, cpu.seconds() / (load.messages / 1e6)


async def _all_have_it(client: duolog.Client, count: int) -> None:
    """Return when so many slaves have the whole log. Raises TimeoutError."""
    async with asyncio.timeout(CAUGHT_UP_SECONDS):
        while True:
            status = await client.admin.node_status()
            behind = [slave for slave in status.replication.slaves if slave.lag_bytes]
            if len(status.replication.slaves) == count and not behind:
                return
            await asyncio.sleep(0.01)
