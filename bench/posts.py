"""One call a message: posts, and sends from many tasks, beside the batch call of the same run."""

import asyncio
import time
from statistics import median

import duolog

from bench.harness import Figure, running
from duolog_server.demo import measure
from duolog_server.demo.measure import Load

POSTS = 1_000_000
SENDS = 300_000
TASKS = 1000
ROUNDS = 3
BODY = b"x" * 100
TURN = 1024  # posts between two turns of the event loop


async def posts() -> list[Figure]:
    """Messages of 100 bytes a second: through posts, and through the batch call."""
    ours, batches = [], []
    async with running() as (_, client):
        await measure.produce_batches(client, Load(200_000, 100), 50_000)
        for _ in range(ROUNDS):  # in turns: the machine is shared
            found = await measure.produce_batches(client, Load(POSTS, 100), 50_000)
            batches.append(found.messages / found.seconds)
            ours.append(await _post_rate(client))
    rate, batch = median(ours), median(batches)
    return [
        Figure(
            "post 100 B, one call a message",
            ">= 600,000 msg/s",
            f"{rate:,.0f} msg/s, {rate / batch:.2f} of the batch call",
            f"batch call {batch:,.0f} msg/s",
            rate >= 600_000,
            {"msg_per_s": rate, "batch_msg_per_s": batch, "ratio": rate / batch},
        )
    ]


async def _post_rate(client: duolog.Client) -> float:
    async with client.producer(timeout=120) as producer:
        await producer.send("bench", BODY)
        began = time.perf_counter()
        for k in range(POSTS):
            while True:
                try:
                    producer.post("bench", BODY)
                    break
                except duolog.BufferFull:
                    await asyncio.sleep(0.001)
            if not k % TURN:
                await asyncio.sleep(0)
        await producer.flush()
        return POSTS / (time.perf_counter() - began)


async def many_sends() -> list[Figure]:
    """Messages a second that 1,000 tasks send, each waiting for its receipt."""
    rates = []
    async with running() as (_, client):
        for _ in range(ROUNDS):
            found = await measure.produce_singly(client, Load(SENDS, 100), TASKS)
            rates.append(found.messages / found.seconds)
    rate = median(rates)
    return [
        Figure(
            "send from 1,000 tasks",
            ">= 150,000 msg/s",
            f"{rate:,.0f} msg/s",
            "",
            rate >= 150_000,
            {"msg_per_s": rate},
        )
    ]
