"""The queues of a search: which part of each is left, and in which steps it is read."""

import asyncio
from dataclasses import dataclass, field

from duolog import Client, QueueStats, UnknownTopic
from duolog._background import together

from duolog_server.ops.inspection.searching.terms import Terms

WINDOW, WINDOW_MAX = 64, 16_384  # messages of a queue that are read before another queue is
WINDOW_BYTES = 1 << 20  # that a window should have
ASKED_AT_ONCE = 16  # queues that are asked where a time lies in them


@dataclass(slots=True)
class Queue:
    """The rest of a queue to search: the queue offsets [low, high).

    edge_ms: no message that is left was stored before, or behind with newest_first; 0: unknown.
    """

    group: str
    queue_id: int
    low: int
    high: int
    newest_first: bool
    edge_ms: int = 0
    window: int = field(default_factory=lambda: WINDOW)

    @property
    def left(self) -> int:
        """Messages that are left."""
        return self.high - self.low

    def step(self) -> tuple[int, int]:
        """The queue offsets [first, end) to read next."""
        count = min(self.window, self.left)
        if self.newest_first:
            return self.high - count, self.high
        return self.low, self.low + count

    def taken(self, first: int, end: int, size: int) -> None:
        """They were read, and took size bytes."""
        if self.newest_first:
            self.high = first
        else:
            self.low = end
        fits = self.window * WINDOW_BYTES // max(size, 1)
        self.window = min(max(fits, self.window // 4, 1), 4 * self.window, WINDOW_MAX)


async def queues_of(client: Client, terms: Terms) -> list[Queue]:
    """The queues of a search that have messages of its range. Raises UnknownTopic."""
    parts = await client.admin.topics([terms.topic], system=True)
    if not parts:
        raise UnknownTopic(f"topic {terms.topic!r} does not exist")
    room, found = asyncio.Semaphore(ASKED_AT_ONCE), list[Queue]()

    async def add(group: str, stats: QueueStats) -> None:
        async with room:
            queue = await _queue(client, terms, group, stats)
        if queue.left > 0:
            found.append(queue)

    async with together() as tasks:
        for part in parts:
            for stats in part.stats:
                if stats.max_offset > stats.min_offset and not _too_old(stats, terms):
                    tasks.create_task(add(part.group, stats))
    return sorted(found, key=lambda queue: (queue.group, queue.queue_id))


def _too_old(stats: QueueStats, terms: Terms) -> bool:
    return bool(stats.last_store_time_ms) and (stats.last_store_time_ms or 0) < terms.begin_ms


async def _queue(client: Client, terms: Terms, group: str, stats: QueueStats) -> Queue:
    low, high = stats.min_offset, stats.max_offset

    async def at(time_ms: int) -> int:
        admin, queue_id = client.admin, stats.queue_id
        return await admin.offset_at_time(terms.topic, queue_id, time_ms, group=group)

    if terms.begin_ms:
        low = max(low, await at(terms.begin_ms))
    if terms.end_ms:
        high = min(high, await at(terms.end_ms + 1))
    return Queue(group, stats.queue_id, low, high, terms.newest_first)
