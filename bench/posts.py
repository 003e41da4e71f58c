"""One call a message: posts, and sends from many tasks, beside the batch call of the same run."""

import asyncio
import time

import duolog
from duolog._columns import pack

from bench.harness import Figure, running
from duolog_server.demo import measure
from duolog_server.demo.measure import Load

POSTS = 1_000_000
SENDS = 300_000
TASKS = 1000
ROUNDS = 3
BODY = b"x" * 100
PACKED = 4096  # bodies of a batch that go together where nothing is sent
TURN = 1024  # posts between two turns of the event loop


async def posts() -> list[Figure]:
    """Messages of 100 bytes a second: through posts, and through the batch call.

    Beside them what no program can do without: lists of bodies, and their bytes put together.
    """
    ours, batches, bare = [], [], []
    async with running() as (_, client):
        await measure.produce_batches(client, Load(200_000, 100), 50_000)
        for _ in range(ROUNDS):  # in turns: the machine is shared
            found = await measure.produce_batches(client, Load(POSTS, 100), 50_000)
            batches.append(found.messages / found.seconds)
            ours.append(await _post_rate(client))
            bare.append(_bare_appends())
    rate, batch, limit = (sorted(rates)[ROUNDS // 2] for rates in (ours, batches, bare))
    return [
        Figure(
            "post 100 B, one call a message",
            ">= 600,000 msg/s",
            f"{rate:,.0f} msg/s, {rate / batch:.2f} of the batch call",
            f"batch call {batch:,.0f} msg/s, lists and their bytes alone {limit:,.0f}/s",
            rate >= 600_000,
            {
                "msg_per_s": rate,
                "batch_msg_per_s": batch,
                "appends_per_s": limit,
                "ratio": rate / batch,
            },
        )
    ]


def _bare_appends() -> float:
    """Bodies a second that a call each appends to a list, and whose bytes are put together."""
    bodies: list[bytes] = []

    def take(body: bytes) -> None:
        bodies.append(body)

    began = time.perf_counter()
    for k in range(POSTS):
        take(BODY)
        if not k % PACKED:
            pack(bodies)
            bodies.clear()
    pack(bodies)
    return POSTS / (time.perf_counter() - began)


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
    ours, bare = [], []
    async with running() as (_, client):
        for _ in range(ROUNDS):
            bare.append(await _bare_answers())
            found = await measure.produce_singly(client, Load(SENDS, 100), TASKS)
            ours.append(found.messages / found.seconds)
    rate, limit = sorted(ours)[ROUNDS // 2], sorted(bare)[ROUNDS // 2]
    return [
        Figure(
            "send from 1,000 tasks",
            ">= 150,000 msg/s",
            f"{rate:,.0f} msg/s, {rate / limit:.2f} of bare futures",
            f"futures that a loop answers {limit:,.0f}/s",
            rate >= 150_000,
            {"msg_per_s": rate, "futures_per_s": limit, "ratio": rate / limit},
        )
    ]


async def _bare_answers() -> float:
    """Futures a second that 1,000 tasks wait for, one after the other, where nothing is sent."""
    loop = asyncio.get_running_loop()
    waiting: list[asyncio.Future[None]] = []

    async def answer() -> None:
        while True:
            for future in waiting:
                future.set_result(None)
            waiting.clear()
            await asyncio.sleep(0)

    async def wait() -> None:
        for _ in range(SENDS // TASKS):
            future: asyncio.Future[None] = loop.create_future()
            waiting.append(future)
            await future

    answering = loop.create_task(answer())
    began = time.perf_counter()
    await asyncio.gather(*(wait() for _ in range(TASKS)))
    seconds = time.perf_counter() - began
    answering.cancel()
    return SENDS / seconds
