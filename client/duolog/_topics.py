"""What the SDK remembers of topics: how many queues they have."""

import asyncio

from duolog._connection import Connection
from duolog._errors import UnknownTopic
from duolog.wire import duolog_pb2 as wire

FRESH_SECONDS = 30.0


class TopicCache:
    """Queue counts, asked of the node and kept for 30 seconds."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._known: dict[str, tuple[float, int]] = {}
        self._asking: dict[str, asyncio.Future[int]] = {}

    async def queues(self, topic: str, timeout: float) -> int:
        """Queues of a topic. Raises UnknownTopic."""
        now = asyncio.get_running_loop().time()
        known = self._known.get(topic)
        if known is not None and now - known[0] < FRESH_SECONDS:
            return known[1]
        # Whoever asks meanwhile waits for the same answer: sends go on in the order they came.
        asking = self._asking.get(topic)
        if asking is None:
            asking = asyncio.ensure_future(self._ask(topic, timeout))
            self._asking[topic] = asking
            asking.add_done_callback(lambda _: self._asking.pop(topic, None))
        return await asyncio.shield(asking)

    async def _ask(self, topic: str, timeout: float) -> int:
        request = wire.ListTopicsRequest(topics=[topic])
        reply = await self._connection.call(
            lambda left: self._connection.admin.ListTopics(request, timeout=left), timeout
        )
        if not reply.topics:
            self._known.pop(topic, None)
            raise UnknownTopic(f"topic {topic!r} does not exist; create it first")
        now = asyncio.get_running_loop().time()
        self._known[topic] = (now, reply.topics[0].queues)
        return int(reply.topics[0].queues)

    def forget(self, topic: str) -> None:
        """Ask again the next time."""
        self._known.pop(topic, None)
