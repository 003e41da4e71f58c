"""Figures of what a broker does beside storing: transactions, delay, waiting polls."""

import asyncio
import time

import grpc.aio

from bench.harness import Figure, ready, running
from duolog_server.compat.grpc.protocol.stubs import definition, rpc, service

TRANSACTIONS = 100_000
DELAYED = 1_000_000
DUE = 100_000
DUE_PER_SECOND = 10_000
POLLS = 10_000
BODY = b"." * 100


async def transactions() -> list[Figure]:
    """Half messages and their commits, many at a time."""
    async with running() as (_, client), client.transactions("bench") as group:

        async def one() -> None:
            await group.commit(await group.prepare("bench", BODY))

        await asyncio.gather(*(one() for _ in range(5000)))
        began = time.perf_counter()
        for _ in range(TRANSACTIONS // 20_000):
            await asyncio.gather(*(one() for _ in range(20_000)))
        rate = TRANSACTIONS / (time.perf_counter() - began)
        began = time.perf_counter()
        for _ in range(TRANSACTIONS // 5000):
            await group.commit_all(await group.prepare_batch("bench", [BODY] * 5000))
        batched = TRANSACTIONS / (time.perf_counter() - began)
        began = time.perf_counter()
        async with client.producer() as producer:
            for _ in range(TRANSACTIONS // 20_000):
                await asyncio.gather(*(producer.send("bench", BODY) for _ in range(20_000)))
        plain = TRANSACTIONS / (time.perf_counter() - began)
    return [
        Figure(
            "half and commit through the SDK",
            ">= 20,000 a second",
            f"{batched:,.0f}/s in batches, {rate:,.0f}/s one by one, all at a time",
            f"sends one by one, all at a time: {plain:,.0f}/s",
            batched >= 20_000,
            {"per_s": rate, "batched_per_s": batched, "sends_per_s": plain},
        )
    ]


async def pending() -> list[Figure]:
    """A million delayed messages: memory, and how long a restart takes."""
    async with running() as (node, client):
        async with client.producer() as producer:
            await producer.send_batch("bench", [BODY] * 50_000)
            await asyncio.sleep(1)
            before = node.rss_mib()
            later = int(time.time() * 1000) + 3_600_000
            for k in range(DELAYED // 50_000):
                bodies = [BODY] * 50_000
                await producer.send_batch("bench", bodies, deliver_at=later + k * 1000)
        await asyncio.sleep(3)
        more = node.rss_mib() - before
        node.stop()
        began = time.perf_counter()
        node.start()
        async with ready(node):
            seconds = time.perf_counter() - began
            await asyncio.sleep(3)
            after = node.rss_mib()
    return [
        Figure(
            "1,000,000 delayed messages pending, memory",
            "<= 100 MiB more",
            f"{more:.0f} MiB more ({after:.0f} MiB after a restart)",
            f"before {before:.0f} MiB",
            more <= 100,
            {"mib": more},
        ),
        Figure(
            "restart with them",
            "<= 3 s",
            f"{seconds:.2f} s",
            "",
            seconds <= 3,
            {"seconds": seconds},
        ),
    ]


async def due() -> list[Figure]:
    """Ten thousand messages a second come due, each at a time of its own."""
    async with running() as (_, client):
        first = int(time.time() * 1000) + 15_000
        async with client.producer() as producer:
            per_ms = DUE_PER_SECOND // 1000
            for start in range(0, DUE, 2000):
                await asyncio.gather(
                    *(
                        producer.send_batch(
                            "bench", [BODY] * per_ms, deliver_at=first + k // per_ms
                        )
                        for k in range(start, start + 2000, per_ms)
                    )
                )
        late: list[int] = []
        done = 0
        offsets = [0] * 4
        end = time.monotonic() + 90
        while done < DUE and time.monotonic() < end:
            for queue in range(4):
                batch = await client.pull("bench", queue, offsets[queue], wait=0.05)
                offsets[queue] = batch.next_offset
                done += batch.count
                late += list(batch.store_times_ms)
            await asyncio.sleep(0.05)
        # In the order of their times, the k-th was due at its own ms.
        waits = sorted(stored - (first + k // per_ms) for k, stored in enumerate(sorted(late)))
    p99, worst = waits[len(waits) * 99 // 100], waits[-1]
    return [
        Figure(
            "delayed messages due, 10,000 a second",
            "late <= 200 ms, none early, none lost",
            f"p99 {p99} ms, longest {worst} ms; {done:,} of {DUE:,}, earliest {waits[0]} ms",
            "",
            worst <= 200 and waits[0] >= 0 and done == DUE,
            {"p99_ms": p99, "max_ms": worst, "min_ms": waits[0], "delivered": done},
        )
    ]


async def idle_polls() -> list[Figure]:
    """Long polls that find nothing, and what they cost those who produce."""
    async with running() as (node, client):
        await client.admin.create_topic("quiet", 1)

        async def produce() -> float:
            async with client.producer() as producer:
                began = time.perf_counter()
                for _ in range(20):
                    await producer.send_batch("bench", [BODY] * 50_000)
                return 1_000_000 / (time.perf_counter() - began)

        await produce()
        alone = max([await produce() for _ in range(2)])
        before = node.rss_mib()
        channels = [grpc.aio.insecure_channel(node.endpoint) for _ in range(4)]
        request = service.ReceiveMessageRequest(
            group=definition.Resource(name="g"),
            message_queue=definition.MessageQueue(topic=definition.Resource(name="quiet"), id=-1),
            batch_size=32,
            auto_renew=True,
        )
        request.long_polling_timeout.FromSeconds(20)
        calls = []
        for k in range(POLLS):
            stub = rpc.MessagingServiceStub(channels[k % 4])
            headers = [("x-mq-client-id", f"c{k}")]
            calls.append(stub.ReceiveMessage(request, timeout=60, metadata=headers))
            if k % 500 == 499:
                await asyncio.sleep(0.05)
        await asyncio.sleep(4)
        more = node.rss_mib() - before
        beside = max([await produce() for _ in range(2)])
        for call in calls:
            call.cancel()
        for channel in channels:
            await channel.close()
    ratio = beside / alone
    return [
        Figure(
            "10,000 idle long polls, memory",
            "<= 300 MiB more",
            f"{more:.0f} MiB more",
            f"before {before:.0f} MiB",
            more <= 300,
            {"mib": more},
        ),
        Figure(
            "produce beside them",
            ">= 0.9 of none",
            f"{beside:,.0f} msg/s, {ratio:.2f}",
            f"alone {alone:,.0f} msg/s",
            ratio >= 0.9,
            {"ratio": ratio},
        ),
    ]
