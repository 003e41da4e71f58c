"""duolog's SDK at work: `send_batch` with two in flight, `post`, `send`, `get`."""

import asyncio
import time

import duolog
from duolog._background import together

from bench.peers.clients.program import (
    PARTITIONS,
    RETRY_SECONDS,
    TOPICS,
    Arrivals,
    Turn,
    arguments,
    began,
    ended,
    of_latencies,
    until_listening,
)
from bench.peers.peer import Measured, Work
from bench.peers.rows import Kind

PUT_OK = "PUT_OK"
BATCH_BYTES = 5 << 20
IN_FLIGHT = 2
LOOP_TURN = 1024  # posts between two turns of the event loop
BUSY_POLL_US = 250  # a program that sends one at a time asks for it
WAIT_SECONDS = 10.0


async def ready(client: duolog.Client, work: Work) -> Measured:
    """Topics exist, the slave is in sync where there is one, and a message is acknowledged."""
    started = time.perf_counter()
    while True:
        try:
            status = await client.admin.node_status()
            if not work.replicated or status.replication.in_sync_replicas >= 2:
                break
        except duolog.DuologError:
            pass
        await asyncio.sleep(RETRY_SECONDS)
    async with client.producer() as producer:
        try:
            await producer.send(work.topic, b"x")
        except duolog.UnknownTopic:
            for topic in TOPICS:
                await client.admin.create_topic(topic, PARTITIONS)
            await producer.send(work.topic, b"x")
    return Measured(1, time.perf_counter() - started)


async def batches(producer: duolog.Producer, work: Work, turn: Turn) -> Measured:
    """Calls that take many messages."""
    size = max(1, BATCH_BYTES // work.size)
    bodies, acknowledged = [b"x" * work.size] * size, 0

    async def send(count: int) -> None:
        nonlocal acknowledged
        receipt = await producer.send_batch(work.topic, bodies[:count])
        acknowledged += receipt.count if receipt.status == PUT_OK else 0

    async with together() as tasks:
        pending: set[asyncio.Task[None]] = set()
        while turn.more():
            count = turn.portion(size)
            turn.sent += count
            pending.add(tasks.create_task(send(count)))
            if len(pending) >= IN_FLIGHT:
                _, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
    return turn.done(acknowledged)


async def posts(producer: duolog.Producer, work: Work, turn: Turn) -> Measured:
    """One call a message; `flush` raises the error of any that is not stored."""
    body, topic, some = b"x" * work.size, work.topic, []
    while turn.more():
        for _ in range(LOOP_TURN):
            while True:
                try:
                    posted = producer.post(topic, body)
                    break
                except duolog.BufferFull:
                    await asyncio.sleep(0.001)
        turn.sent += LOOP_TURN
        some.append(posted)
        await asyncio.sleep(0)
    await producer.flush()
    # Stored is what flush says; that a slave has it, too, is what receipts say.
    stored = all(posted.receipt().status == PUT_OK for posted in some)
    return turn.done(turn.sent if stored else 0)


async def singly(producer: duolog.Producer, work: Work, turn: Turn) -> Measured:
    """Each is acknowledged before the next one is sent."""
    body, latencies = b"x" * work.size, []
    while turn.more():
        sent = time.perf_counter()
        receipt = await producer.send(work.topic, body)
        if receipt.status != PUT_OK:
            raise RuntimeError(f"a message was stored with {receipt.status}")
        latencies.append(time.perf_counter() - sent)
    return of_latencies(latencies, time.perf_counter() - turn.started)


async def produce(client: duolog.Client, work: Work) -> Measured:
    """Warm up, then measure."""
    send = {Kind.POST: posts, Kind.SINGLE: singly}.get(work.kind, batches)
    async with client.producer(timeout=60) as producer:
        if work.warm_seconds:
            await send(producer, work, Turn(work.warm_seconds))
        began()
        return await send(producer, work, Turn(work.seconds, work.messages))


async def consume(client: duolog.Client, work: Work) -> Measured:
    """Objects; `get` gives one a call, and takes them from batches."""
    arrivals, size = Arrivals(work.messages), 0
    async with client.consumer("readers", work.topic) as consumer:
        began()
        # The clock starts before the first request: what arrives ahead of it would not be timed.
        started = time.perf_counter()
        while (message := await consumer.get(WAIT_SECONDS)) is not None:
            size += len(message.body)
            arrivals.count += 1
            if arrivals.count == work.messages:
                seconds = time.perf_counter() - started
                break
        if await consumer.get(0.2) is not None:
            arrivals.count += 1
    if size != work.messages * work.size:
        raise RuntimeError(f"consumed {arrivals.count:,} messages, {size:,} bytes")
    arrivals.measured()
    return Measured(arrivals.count, seconds)


async def main() -> None:
    """One piece of work."""
    address, work = arguments()
    if work.kind is Kind.READY:
        began()
        await asyncio.to_thread(until_listening, address)
    busy_poll_us = BUSY_POLL_US if work.kind is Kind.SINGLE else 0
    async with duolog.Client(address, timeout=60, busy_poll_us=busy_poll_us) as client:
        match work.kind:
            case Kind.READY:
                ended(await ready(client, work))
            case Kind.CONSUME | Kind.CONSUME_EACH:
                ended(await consume(client, work))
            case _:
                ended(await produce(client, work))


if __name__ == "__main__":
    asyncio.run(main())
