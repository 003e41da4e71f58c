"""A producer and a consumer in one program.

Start a node first (`duolog node start --data /tmp/duolog`), then run this file.
"""

import asyncio
import sys

import duolog


async def main(endpoints: str) -> None:
    async with duolog.Client(endpoints) as client:
        try:
            await client.admin.create_topic("orders", 4)
        except duolog.TopicExists:
            pass
        async with client.producer() as producer:
            for number in range(10):
                receipt = await producer.send(
                    "orders", f"order {number}".encode(), key=f"customer-{number % 3}", tags="new"
                )
                print(f"sent to queue {receipt.queue_id} at {receipt.queue_offset}")
        async with client.consumer("billing", "orders", tags=["new"]) as consumer:
            while (message := await consumer.get(timeout=2.0)) is not None:
                print(f"{message.keys}: {message.body.decode()}")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:8081"))
