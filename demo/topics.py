"""A first topic, as soon as a cluster takes it."""

import asyncio
import time

import duolog

RETRY_SECONDS = 0.05


async def create_topic(
    client: duolog.Client, topic: str, queues: int, seconds: float = 30.0
) -> None:
    """Create a topic, or leave one as it is; wait while nodes take no changes.

    A group that has just been formed takes none until its master has noted, on its disk, that
    others are in sync; the registry says so earlier. Raises what the last attempt raised.
    """
    until = time.monotonic() + seconds
    while True:
        try:
            await client.admin.create_topic(topic, queues)
            return
        except duolog.TopicExists:
            return
        except duolog.Busy:
            if time.monotonic() > until:
                raise
        await asyncio.sleep(RETRY_SECONDS)
