"""nats-py at work: `publish_async`, `publish`, a pull consumer's `fetch`."""

import asyncio
import time

import nats
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, StorageType, StreamConfig

from bench.peers.clients.program import (
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

IN_FLIGHT = 256  # faster than 1,000 or the client's own 4,000: the loop also reads the answers
LOOP_TURN = 256
FETCHED = 1000
CALL_SECONDS = 10.0


async def ready(context: JetStreamContext, work: Work) -> Measured:
    """Streams exist, with their replicas, and a message is acknowledged."""
    started, copies = time.perf_counter(), 3 if work.replicated else 1
    while True:
        try:
            names = {info.config.name for info in await context.streams_info()}
            for name in sorted(set(TOPICS) - names):
                await context.add_stream(
                    StreamConfig(
                        name=name, subjects=[name], storage=StorageType.FILE, num_replicas=copies
                    )
                )
            for name in TOPICS:
                found = (await context.stream_info(name)).cluster
                peers = found.replicas or [] if found is not None else []
                if len([peer for peer in peers if peer.current]) < copies - 1:
                    raise RuntimeError(f"stream {name} has not all its replicas")
            await context.publish(work.topic, b"x", timeout=1.0)
            return Measured(1, time.perf_counter() - started)
        except Exception as error:
            print(f"not yet: {type(error).__name__}: {error}", flush=True)
            await asyncio.sleep(RETRY_SECONDS)


async def posts(context: JetStreamContext, work: Work, turn: Turn) -> Measured:
    """`publish_async`; every future is asked for its acknowledgement."""
    body, futures, acknowledged = b"x" * work.size, [], 0
    while turn.more():
        for _ in range(turn.portion(LOOP_TURN)):
            futures.append(await context.publish_async(work.topic, body))
            turn.sent += 1
        if len(futures) > 2 * IN_FLIGHT:
            first, futures = futures[:IN_FLIGHT], futures[IN_FLIGHT:]
            acknowledged += len(await asyncio.gather(*first))
    acknowledged += len(await asyncio.wait_for(asyncio.gather(*futures), 60))
    return turn.done(acknowledged)


async def singly(context: JetStreamContext, work: Work, turn: Turn) -> Measured:
    """Each is acknowledged before the next one is published."""
    body, latencies = b"x" * work.size, []
    while turn.more():
        sent = time.perf_counter()
        await context.publish(work.topic, body)
        latencies.append(time.perf_counter() - sent)
    return of_latencies(latencies, time.perf_counter() - turn.started)


async def produce(context: JetStreamContext, work: Work) -> Measured:
    """Warm up, then measure."""
    send = singly if work.kind is Kind.SINGLE else posts
    if work.warm_seconds:
        await send(context, work, Turn(work.warm_seconds))
    began()
    return await send(context, work, Turn(work.seconds, work.messages))


async def consume(context: JetStreamContext, work: Work) -> Measured:
    """A pull consumer without acknowledgements, from the beginning."""
    rule = ConsumerConfig(ack_policy=AckPolicy.NONE)
    reader = await context.pull_subscribe(work.topic, durable="readers", config=rule)
    arrivals, size, done = Arrivals(work.messages), 0, False
    while not done:
        wanted = min(FETCHED, work.messages - arrivals.count)
        found = await reader.fetch(wanted, timeout=CALL_SECONDS)
        size += sum(len(message.data) for message in found)
        done = arrivals.add(len(found))
    left = (await reader.consumer_info()).num_pending
    arrivals.count += left or 0
    if size != work.messages * work.size:
        raise RuntimeError(f"consumed {size:,} bytes")
    return arrivals.measured()


async def main() -> None:
    """One piece of work."""
    address, work = arguments()
    if work.kind is Kind.READY:
        began()
        await asyncio.to_thread(until_listening, address.partition(",")[0])
    servers = [f"nats://{server}" for server in address.split(",")]
    connection = await nats.connect(servers, connect_timeout=5)
    context = connection.jetstream(timeout=CALL_SECONDS, publish_async_max_pending=IN_FLIGHT)
    match work.kind:
        case Kind.READY:
            ended(await ready(context, work))
        case Kind.CONSUME | Kind.CONSUME_EACH:
            ended(await consume(context, work))
        case _:
            ended(await produce(context, work))
    await connection.close()


if __name__ == "__main__":
    asyncio.run(main())
