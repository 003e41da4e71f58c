"""The producer: single sends that batch by themselves, and whole batches."""

import asyncio
import contextlib
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from duolog._background import together
from duolog._batcher import BATCH_BYTES, BATCH_MESSAGES, Batcher, Message, producer_closed
from duolog._columns import pack, property_text, repeat
from duolog._receipts import BatchReceipt, Part, Receipt
from duolog._router import Router
from duolog._sending import IN_FLIGHT_MAX, PLAIN, Batch, Sender, Terms
from duolog._topics import Slot, TopicCache


@dataclass(frozen=True, slots=True)
class Many:
    """Messages of a topic with the texts of their properties: one for all, or one for each."""

    topic: str
    bodies: Sequence[bytes]
    same: bytes = b""
    texts: list[bytes] | None = None
    slot: Slot | None = None
    terms: Terms = PLAIN

    def batch(self, first: int, step: int) -> Batch:
        """So many of them, from one on."""
        bodies = self.bodies[first : first + step]
        if self.texts is None:
            texts = repeat(self.same, len(bodies))
        else:
            texts = pack(self.texts[first : first + step])
        return Batch(self.topic, self.slot, self.terms, pack(bodies), texts, len(bodies), first)


class Producer:
    """Sends messages. Made by `Client.producer()`; safe to use from many tasks of one loop."""

    def __init__(
        self,
        router: Router,
        topics: TopicCache,
        timeout: float,
        linger: float = 0.0,
        producer_id: bytes | None = None,
    ) -> None:
        """Not called by users.

        producer_id: 10 bytes, unique for all time; random where not given.
        """
        self._runtime = router.runtime
        self._topics = topics
        self._timeout = timeout
        self._sender = Sender(router, topics, producer_id)
        self._batcher = Batcher(self._sender, linger)
        self._closed = False

    @property
    def producer_id(self) -> bytes:
        """What tells its messages from those of all others."""
        return self._sender.producer_id

    # -- single sends --------------------------------------------------------------------------

    async def send(
        self,
        topic: str,
        body: bytes,
        *,
        key: str | None = None,
        keys: Sequence[str] = (),
        tags: str | None = None,
        properties: dict[str, str] | None = None,
        queue_id: int | None = None,
        group: str | None = None,
        delay: float | None = None,
        deliver_at: int | None = None,
        delay_level: int | None = None,
        timeout: float | None = None,
    ) -> Receipt:
        """Send one message; while a batch is on its way, the next one fills.

        Args:
            topic: an existing topic.
            body: the message.
            key: messages of one key go to one queue, in order; it is indexed as well.
            keys: further keys to find the message by.
            tags: what consumers filter by.
            properties: names and values of the user's own.
            queue_id: the queue to use, whatever the key.
            group: the replica group of that queue, where the topic lies in several.
            delay: seconds until consumers get it (at most 3 days), or
            deliver_at: the time (ms) when they get it, or
            delay_level: one of RocketMQ's levels, 1 for 1 s to 18 for 2 h. The receipt of such a
                message has the queue offset at which it waits.
            timeout: seconds for everything: route, retries, answer.

        Raises:
            UnknownTopic, BadRequest, MessageTooLarge: nothing was stored.
            Timeout, Unavailable, Busy, NotMaster: nothing was stored, it may work later.
            ResultUnknown: it may or may not have been stored.
        """
        terms = Terms.of(delay, deliver_at, delay_level, self._runtime.wall_ms())
        seconds = self._timeout if timeout is None else timeout
        text = property_text(tags, [*([key] if key else []), *keys], properties)
        slot = None
        self._check_open()
        if queue_id is not None:
            slot = await self._topics.slot(topic, queue_id, group, seconds)
        elif key is not None:
            slot = await self.slot_of(topic, key, seconds)
        return await self._batcher.send(Message(topic, slot, terms, body, text), seconds)

    async def slot_of(self, topic: str, key: str, seconds: float) -> Slot:
        """Not called by users: the queue that messages of a key go to."""
        self._check_open()
        slots = await self._topics.slots(topic, seconds, create=True)
        return slots[zlib.crc32(key.encode()) % len(slots)]

    async def send_message(self, message: Message, seconds: float) -> Receipt:
        """Not called by users: `send`, with the properties' text and on any terms."""
        self._check_open()
        return await self._batcher.send(message, seconds)

    def unique_key(self, sequence: int) -> str:
        """UNIQ_KEY that the node gives the message of a sequence."""
        return self._sender.unique_key(sequence)

    # -- batches -------------------------------------------------------------------------------

    async def send_batch(
        self,
        topic: str,
        bodies: Sequence[bytes],
        *,
        tags: str | None = None,
        keys: Sequence[Sequence[str]] | None = None,
        tags_list: Sequence[str | None] | None = None,
        queue_id: int | None = None,
        group: str | None = None,
        delay: float | None = None,
        deliver_at: int | None = None,
        delay_level: int | None = None,
        timeout: float | None = None,
    ) -> BatchReceipt:
        """Send many messages as columns: the fast way. Parts go to the queues in turn.

        Args:
            topic: an existing topic.
            bodies: the messages.
            tags: one tag for all, or
            tags_list: one for each.
            keys: keys of each message.
            queue_id: send all of it to this queue,
            group: of this replica group, where the topic lies in several.
            delay, deliver_at, delay_level: when consumers get them, as for `send`.
            timeout: seconds for the whole batch.

        Raises:
            as `send`; where the batch takes several requests, earlier ones may have been stored.
        """
        self._check_open()
        seconds = self._timeout if timeout is None else timeout
        if not bodies:
            return BatchReceipt(0, ())
        same, texts = b"", None
        if keys is None and tags_list is None:
            same = property_text(tags, (), None)
        else:
            texts = [
                property_text(
                    tags_list[k] if tags_list is not None else tags,
                    keys[k] if keys is not None else (),
                    None,
                )
                for k in range(len(bodies))
            ]
        slot = None
        if queue_id is not None:
            slot = await self._topics.slot(topic, queue_id, group, seconds)
        terms = Terms.of(delay, deliver_at, delay_level, self._runtime.wall_ms())
        return await self.send_many(Many(topic, bodies, same, texts, slot, terms), seconds)

    async def send_many(self, many: Many, seconds: float) -> BatchReceipt:
        """Not called by users: `send_batch`, with the properties' texts and on any terms."""
        self._check_open()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        count, size = len(many.bodies), sum(map(len, many.bodies))
        step = max(1, min(BATCH_MESSAGES, BATCH_BYTES * count // (size + 1)))
        if count <= step:
            return BatchReceipt(count, tuple(await self._sender.send(many.batch(0, step), seconds)))
        sends: list[asyncio.Task[list[Part]]] = []
        async with together() as tasks:
            for first in range(0, count, step):
                work = self._sender.send(many.batch(first, step), deadline - loop.time())
                sends.append(tasks.create_task(work))
                if len(sends) >= IN_FLIGHT_MAX:
                    await asyncio.wait([sends[len(sends) - IN_FLIGHT_MAX]])
        return BatchReceipt(count, tuple(part for send in sends for part in send.result()))

    # -- end -----------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._closed:
            raise producer_closed()

    async def flush(self) -> None:
        """Wait until every send that was started has its answer."""
        await self._batcher.flush()

    async def close(self) -> None:
        """Wait (bounded) for sends under way, then refuse new ones. May be called again."""
        self._closed = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._timeout):
                await self.flush()
        await self._batcher.close()

    async def __aenter__(self) -> "Producer":
        """Use it in `async with`."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close."""
        await self.close()
