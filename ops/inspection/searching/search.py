"""A search that runs: what it has found so far, in order, and how far it is.

Rules: at most one read is in flight, of a slave where there is one, and rests as long as the
read took; so nobody else waits for it. It always reads on in the queue that is behind the
others in time: what it finds is complete up to that time. What it holds is bounded: no batch
outlives its turn, and of what is found only as much is kept as is asked for.
"""

import asyncio
from bisect import insort
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from math import inf
from operator import attrgetter
from typing import Generic, TypeVar

from duolog import Batch, Client, DuologError, Message, QueueStats, Throttled, UnknownTopic
from duolog._background import together
from duolog.wire import duolog_pb2 as wire

from duolog_server.ops.inspection.searching.terms import End, Needle, Progress, Terms

WINDOW, WINDOW_MAX = 64, 16_384  # messages of a queue that are read before another queue is
WINDOW_BYTES = 1 << 20  # that a window should have
ASKED_AT_ONCE = 16  # queues that are asked where a time lies in them
READ_BYTES = 1 << 20  # of bodies, in one read
BYTES_A_SECOND = 32 << 20
THROTTLED_SECONDS = 1.0  # until a read over a quota is tried again, where the node names no time
MESSAGE_BYTES = 36  # of a message's numbers in a batch
T = TypeVar("T")
Order = tuple[float, float, str, int]


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


_order = attrgetter("order")


@dataclass(frozen=True, slots=True)
class Hit(Generic[T]):
    """A message that was found. order: hits are sorted by it."""

    order: Order
    what: T


class Search(Generic[T]):
    """A search of a client. hits: the first ones in order, of what was found so far."""

    def __init__(self, client: Client, terms: Terms, keep: Callable[[Message], T | None]) -> None:
        """keep: what is kept of a message that matches, without its batch; None: it is passed over.

        Raises BadRequest.
        """
        terms.check()
        self.terms = terms
        self.hits: list[Hit[T]] = []
        self.progress = Progress()
        self._client = client
        self._keep = keep
        self._needle = Needle(terms.text, terms.any_case) if terms.text else None
        self._way = -1 if terms.newest_first else 1
        self._edge: float = -inf  # what is still to be found comes behind it in order
        self._more = False  # was found than is kept

    @property
    def settled(self) -> int:
        """How many of the hits no other one can come before any more."""
        return sum(hit.order[0] <= self._edge for hit in self.hits)

    async def run(self, told: Callable[[], None] = lambda: None) -> None:
        """Search until it is over. told: is called after each step.

        Raises UnknownTopic, BadRequest for an expression that nodes do not take, and errors of
        nodes; what was found before stays.
        """
        deadline = asyncio.get_running_loop().time() + self.terms.seconds
        try:
            async with asyncio.timeout_at(deadline):
                queues = await queues_of(self._client, self.terms)
                total = sum(queue.left for queue in queues)
                self.progress = replace(self.progress, total=total)
                while queues and self.settled < self.terms.results_max:
                    told()
                    await self._step(min(queues, key=self._edge_of), told)
                    queues = [one for one in queues if one.left > 0]
                    self._note(queues)
            whole = self.progress.scanned >= self.progress.total and not self._more
            end = End.WHOLE if whole else End.ENOUGH
        except DuologError:  # its Timeout is a TimeoutError
            raise
        except TimeoutError:
            end = End.LATE
        except asyncio.CancelledError:
            self.progress = replace(self.progress, end=End.STOPPED)
            raise
        self.progress = replace(self.progress, end=end)
        told()

    def _edge_of(self, queue: Queue) -> float:
        return self._way * queue.edge_ms if queue.edge_ms else -inf

    def _note(self, queues: list[Queue]) -> None:
        """How far it is, with what is left."""
        self._edge = min(map(self._edge_of, queues), default=inf)
        if abs(self._edge) != inf:
            self.progress = replace(self.progress, at_ms=int(abs(self._edge)))

    async def _step(self, queue: Queue, told: Callable[[], None]) -> None:
        """Read a window of a queue."""
        first, end = queue.step()
        before, size, edge_ms = self.progress.scanned, 0, 0
        async for batch in self._batches(queue, first, end):
            size += _size(batch)
            self._take(batch, end)
            if batch.count:
                edge_ms = self._edge_in(batch, first, end) or edge_ms
            self._scanned(before + min(batch.next_offset, end) - first)
            told()
        self._scanned(before + end - first)
        queue.taken(first, end, size)
        if queue.left:
            at = first - 1 if queue.newest_first else end
            queue.edge_ms = edge_ms or await self._time_at(queue, at) or queue.edge_ms

    def _scanned(self, count: int) -> None:
        self.progress = replace(self.progress, scanned=max(count, self.progress.scanned))

    def _edge_in(self, batch: Batch, first: int, end: int) -> int:
        """The time at the edge of a window, where a batch has the message there; else 0."""
        index, offset = (0, first) if self.terms.newest_first else (batch.count - 1, end - 1)
        return batch.store_times_ms[index] if batch.queue_offsets[index] == offset else 0

    def _take(self, batch: Batch, end: int) -> None:
        """Keep what matches in a batch, up to a queue offset."""
        rows = self._needle.rows(batch) if self._needle is not None else list(range(batch.count))
        times, most = batch.store_times_ms if rows else (), self.terms.results_max
        for k in reversed(rows) if self.terms.newest_first else rows:
            offset = batch.queue_offsets[k]
            order = self._way * times[k], self._way * offset, batch.group, batch.queue_id
            full = len(self.hits) >= most
            if offset >= end:
                continue
            if full and order >= self.hits[-1].order:
                self._more = self._more or self._keep(batch[k]) is not None
                continue
            what = self._keep(batch[k])
            if what is not None:
                insort(self.hits, Hit(order, what), key=_order)
                self._more = self._more or full
                del self.hits[most:]

    async def _batches(self, queue: Queue, first: int, end: int) -> AsyncIterator[Batch]:
        """The messages [first, end) of a queue, or those of them that the expression matches."""
        at, slaves = first, True
        while at < end:
            request = wire.PullRequest(
                topic=self.terms.topic,
                queue_id=queue.queue_id,
                queue_offset=at,
                max_messages=end - at,
                max_bytes=READ_BYTES,
                sql=self.terms.sql,
            )
            batch = Batch(await self._fetch(request, queue.group, slaves), queue.group)
            yield batch
            if batch.next_offset <= at and not slaves:
                return  # the master has no more: its queue was cut
            slaves = batch.next_offset > at  # a slave may not have it yet
            at = max(at, batch.next_offset)

    async def _time_at(self, queue: Queue, offset: int) -> int:
        """Store time of a message; 0: it does not exist."""
        request = wire.PullRequest(
            topic=self.terms.topic,
            queue_id=queue.queue_id,
            queue_offset=offset,
            max_messages=1,
            columns=[wire.STORE_TIMES],
        )
        found = await self._fetch(request, queue.group, True)
        return int.from_bytes(found.store_times[:8], "little")

    async def _fetch(
        self, request: wire.PullRequest, group: str, slaves: bool
    ) -> wire.MessageBatch:
        """A read, and the rest after it."""
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            try:
                found = await self._client.fetch(request, group, from_slaves=slaves)
            except Throttled as error:
                await asyncio.sleep(error.retry_after_ms / 1000 or THROTTLED_SECONDS)
                continue
            took = loop.time() - began
            size = len(found.bodies) + len(found.properties) + MESSAGE_BYTES * found.count
            await asyncio.sleep(max(took, size / BYTES_A_SECOND - took))
            return found


def _size(batch: Batch) -> int:
    return len(batch.bodies) + len(batch.properties) + MESSAGE_BYTES * batch.count
