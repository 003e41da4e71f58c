"""Delayed jobs: reminders that the store keeps until their time, and that can be cancelled.

    pip install duolog duolog-server
    duolog node start --data /tmp/duolog &
    python examples/reminders.py

A reminder survives restarts of this program and of the node. Tests need not wait: see `skip` in
docs/testing.md.
"""

import asyncio
import contextlib
import os

import duolog

TOPIC = "reminders"


async def remind(producer: duolog.Producer, customer: str, seconds: float) -> duolog.Receipt:
    """Send a reminder, due in at most 3 days; `deliver_at=` takes a time instead."""
    return await producer.send(TOPIC, customer.encode(), delay=seconds)


async def cancel(client: duolog.Client, reminder: duolog.Receipt) -> bool:
    """Cancel a reminder; False if it is too late."""
    try:
        await client.admin.recall_delayed(TOPIC, reminder.queue_offset, reminder.unique_key)
    except duolog.NoSuchMessage:
        return False
    return True


async def waiting(client: duolog.Client) -> list[int]:
    """Due times of the waiting reminders, in ms since 1970, the soonest first."""
    return [message.due_ms for message in (await client.admin.delayed_page(TOPIC)).rows]


async def main(endpoints: str) -> None:
    async with duolog.Client(endpoints) as client, client.producer() as producer:
        with contextlib.suppress(duolog.TopicExists):
            await client.admin.create_topic(TOPIC, 4)
        await remind(producer, "ann", 3)
        paid = await remind(producer, "bob", 3)
        print("cancelled, as bob has paid:", await cancel(client, paid))
        async with client.consumer("mail", TOPIC) as consumer:
            while (message := await consumer.get(timeout=5.0)) is not None:
                print("reminded", message.body.decode())


if __name__ == "__main__":
    asyncio.run(main(os.environ.get("DUOLOG_ENDPOINTS", "127.0.0.1:8081")))
