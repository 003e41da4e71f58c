"""Figures of sends to many queues of a node that runs: new ones, known ones, and one alone."""

import asyncio
import itertools
import random
import statistics
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass

import duolog

from bench.harness import Figure
from bench.neighbour import BODY, Neighbour, Sends, send_at_rate
from duolog_server.demo.measure import percentile

Queue = tuple[str, int]

QUEUES_EACH = 4  # of a topic
ALONE = "alone"  # a topic of one queue
NEIGHBOUR_RATE = 200.0  # sends a second
AT_ONCE = 64
TURN = 100  # sends at a stretch: what else the machine does meets both sides
CAUGHT_UP_SECONDS = 600.0


async def create_topics(
    client: duolog.Client, name: str, count: int, queues: int = QUEUES_EACH
) -> list[Queue]:
    """So many topics of so many queues, which have no files yet; their queues."""
    names = [f"{name}-{number:05d}" for number in range(count)]
    for at in range(0, count, AT_ONCE):
        some = names[at : at + AT_ONCE]
        await asyncio.gather(*(client.admin.create_topic(topic, queues) for topic in some))
    return [(topic, queue_id) for topic in names for queue_id in range(queues)]


async def send_each(producer: duolog.Producer, queues: Iterable[Queue]) -> list[float]:
    """One send to each queue, one at a time; seconds of each."""
    found = []
    for topic, queue_id in queues:
        began = time.perf_counter()
        await producer.send(topic, BODY, queue_id=queue_id)
        found.append(time.perf_counter() - began)
    return found


async def send_all(client: duolog.Client, queues: Sequence[Queue]) -> None:
    """One send to each queue, many at a time, until all are in their queues."""
    async with client.producer(timeout=120) as producer:
        for at in range(0, len(queues), AT_ONCE):
            some = queues[at : at + AT_ONCE]
            await asyncio.gather(*(producer.send(t, BODY, queue_id=q) for t, q in some))
    await caught_up(client)


async def caught_up(client: duolog.Client) -> None:
    """Return when every message is in its queue. Raises TimeoutError."""
    async with asyncio.timeout(CAUGHT_UP_SECONDS):
        while (await client.admin.node_status()).dispatch_behind_bytes:
            await asyncio.sleep(0.001)


async def check_one_message_each(client: duolog.Client, queues: Sequence[Queue]) -> None:
    """Raise ValueError unless each queue has one message: else something else was measured."""
    found = {
        (topic.topic, row.queue_id): row.max_offset - row.min_offset
        for topic in await client.admin.topics()
        for row in topic.stats
    }
    wrong = {queue: found.get(queue) for queue in queues if found.get(queue) != 1}
    if wrong:
        raise ValueError(f"{len(wrong)} of {len(queues)} queues lack their message: {wrong}"[:500])


@dataclass(frozen=True, slots=True)
class Turns:
    """Stretches of sends to new queues, each paired with as many sends to known ones."""

    client: duolog.Client
    known: Sequence[Queue]
    settle_seconds: float  # after a stretch: until the flush of what it left has begun

    async def take(
        self,
        rounds: Sequence[Sequence[Queue]],
        send: Callable[[Sequence[Queue]], Awaitable[float]],
    ) -> tuple[list[float], list[float]]:
        """What `send` returned of each round's new queues, and of known ones in their place."""
        known = itertools.cycle(self.known)
        found: tuple[list[float], list[float]] = [], []
        for number, new in enumerate(rounds):
            arms = [(found[0], new), (found[1], list(itertools.islice(known, len(new))))]
            for results, queues in arms if number % 2 else reversed(arms):
                results.append(await send(queues))
                await caught_up(self.client)
                await asyncio.sleep(self.settle_seconds)
        return found


async def new_queue_cost(turns: Turns, rounds: Sequence[Sequence[Queue]]) -> Figure:
    """Time until messages are in their queues, one send at a time: new queues, known queues."""
    async with turns.client.producer() as producer:

        async def send(queues: Sequence[Queue]) -> float:
            began = time.perf_counter()
            await send_each(producer, queues)
            await caught_up(turns.client)
            return (time.perf_counter() - began) / len(queues)

        new, known = await turns.take(rounds, send)
    extra = [a - b for a, b in zip(new, known, strict=True)]
    mean, limit = statistics.mean(extra), statistics.mean(known)
    return Figure(
        "a new queue, with its first message",
        "<= 0.5 ms more than a message of a known queue",
        f"{mean * 1000:.2f} ms more ({min(extra) * 1000:.2f} to {max(extra) * 1000:.2f})",
        f"known queues {limit * 1000:.2f} ms",
        mean <= 0.0005,
        {"extra_s": mean, "extra_max_s": max(extra), "known_s": limit},
    )


async def neighbour_latency(
    turns: Turns, endpoint: str, rounds: Sequence[Sequence[Queue]], rate: float
) -> Figure:
    """What another client's sends to its one queue take meanwhile. rate: queues a second."""
    spans: dict[float, float] = {}
    neighbour = Neighbour(endpoint, ALONE, NEIGHBOUR_RATE)
    try:
        async with turns.client.producer() as producer:

            async def send(queues: Sequence[Queue]) -> float:
                began = time.monotonic()
                await send_at_rate(producer, queues, rate)
                spans[began] = time.monotonic()
                return began

            new_begins, known_begins = await turns.take(rounds, send)
        sends = await asyncio.to_thread(neighbour.finish)
    finally:
        neighbour.kill()
    new = _within(sends, [(began, spans[began]) for began in new_begins])
    known = _within(sends, [(began, spans[began]) for began in known_begins])
    p99, limit = percentile(new, 0.99), percentile(known, 0.99)
    reached = sum(map(len, rounds)) / sum(spans[began] - began for began in new_begins)
    return Figure(
        f"another client's sends beside {rate:.0f} new queues a second, p99",
        "<= 2 x beside as many sends to known queues",
        f"{p99 * 1e6:,.0f} us, {p99 / limit:.2f} x (longest {max(new) * 1000:.1f} ms; "
        f"{reached:.0f} a second)",
        f"known queues {limit * 1e6:,.0f} us (longest {max(known) * 1000:.1f} ms)",
        p99 <= 2 * limit,
        {
            "p99_s": p99,
            "known_p99_s": limit,
            "ratio": p99 / limit,
            "p50_s": percentile(new, 0.5),
            "known_p50_s": percentile(known, 0.5),
            "sends": len(new),
            "new_queues_per_s": reached,
        },
    )


def _within(sends: Sends, spans: Sequence[tuple[float, float]]) -> list[float]:
    """Seconds of the sends that were due in one of the spans."""
    return [took for due, took in sends if any(low <= due < high for low, high in spans)]


async def one_at_a_time(
    client: duolog.Client, other: duolog.Client, queues: Sequence[Queue], rounds: int, sends: int
) -> Figure:
    """Sends over all queues of a node, against the one queue of another node, in turns."""
    order = random.Random(1).sample(queues, len(queues))
    spread, names = itertools.cycle(order), ("spread", "beside", "alone")
    turns: dict[str, list[float]] = {name: [] for name in (*names, "first")}
    async with client.producer() as here, other.producer() as there:
        turns["first"] = await send_each(here, order)  # since the node was started
        for number in range(rounds * sends // TURN):
            for name in names if number % 2 else reversed(names):
                some: Iterable[Queue] = itertools.repeat((ALONE, 0), TURN)
                if name == "spread":
                    some = itertools.islice(spread, TURN)
                turns[name] += await send_each(there if name == "alone" else here, some)
    p50 = {name: statistics.median(row) for name, row in turns.items()}
    p99 = {name: percentile(row, 0.99) for name, row in turns.items()}
    ratio = p50["spread"] / p50["alone"]
    return Figure(
        f"one send at a time over {len(queues):,} queues, p50",
        "<= 1.1 x the one queue of another node",
        f"{p50['spread'] * 1e6:.0f} us, {ratio:.2f} x (p99 {p99['spread'] * 1e6:,.0f} us; the "
        f"first send to each queue since the start {p50['first'] * 1e6:.0f} us)",
        f"one queue {p50['alone'] * 1e6:.0f} us (p99 {p99['alone'] * 1e6:,.0f} us)",
        ratio <= 1.1,
        {
            "ratio": ratio,
            **{f"{name}_p50_s": value for name, value in p50.items()},
            **{f"{name}_p99_s": value for name, value in p99.items()},
        },
    )
