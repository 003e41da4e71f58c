"""Calls cancelled at any moment: nothing is left behind, and stderr stays empty."""

import asyncio
import gc
import random
from collections.abc import Awaitable, Callable
from typing import Any

import duolog

from duolog_server.serve.server import Node
from tests.until import until

Call = Callable[[], Awaitable[Any]]


def calls_of(client: duolog.Client, producer: Any) -> list[Call]:
    """One of each kind that waits for a node."""

    async def consume() -> None:
        async with client.consumer("G", "T") as consumer:
            await consumer.get(0.05)
            await consumer.commit()

    return [
        lambda: producer.send("T", b"x", queue_id=0),
        lambda: producer.send("T", b"x", key="k"),
        lambda: producer.send_batch("T", [b"x"] * 3),
        lambda: producer.send("nope", b"x"),
        lambda: client.pull("T", 0, 0, wait=0.05),
        lambda: client.admin.create_topic("T", 4),
        lambda: client.admin.topics(),
        lambda: client.admin.groups(),
        lambda: client.admin.cluster_status(),
        consume,
    ]


async def test_calls_cancelled_at_any_moment_leave_nothing_behind(node: Node) -> None:
    told: list[str] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: told.append(str(context)))
    chance = random.Random(7)
    for _ in range(12):
        async with (
            duolog.Client(f"127.0.0.1:{node.port}", timeout=5) as client,
            client.producer() as producer,
        ):
            if not chance.randrange(3):
                await client.admin.create_topic("T", 4)
            work = [asyncio.ensure_future(call()) for call in calls_of(client, producer)]
            for _ in range(chance.randrange(60)):
                await asyncio.sleep(chance.choice([0, 0, 0, 0.001]))
            for task in chance.sample(work, chance.randrange(len(work) + 1)):
                task.cancel()
            await asyncio.gather(*work, return_exceptions=True)
            sent = await producer.send("T", b"after", queue_id=0) if work else None
            assert sent is not None
            assert sent.status == "PUT_OK"
    gc.collect()
    await asyncio.sleep(0.1)
    gc.collect()
    assert told == []

    def names() -> list[str]:
        return [repr(task.get_coro()) for task in asyncio.all_tasks()]

    await until(lambda: not any("duolog" in name.lower() for name in names()))


async def test_a_client_closed_with_calls_under_way_logs_nothing(node: Node) -> None:
    told: list[str] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: told.append(str(context)))
    async with duolog.Client(f"127.0.0.1:{node.port}", timeout=5) as client:
        await client.admin.create_topic("T", 4)
    chance = random.Random(7)
    for _ in range(12):
        client = duolog.Client(f"127.0.0.1:{node.port}", timeout=1)
        work = [asyncio.ensure_future(call()) for call in calls_of(client, client.producer())]
        for _ in range(chance.randrange(40)):
            await asyncio.sleep(chance.choice([0, 0, 0.001]))
        await client.close()
        for task in work:
            task.cancel()
        await asyncio.gather(*work, return_exceptions=True)
        await client.close()
    del work, client
    gc.collect()
    await asyncio.sleep(0.1)
    gc.collect()
    assert told == []
