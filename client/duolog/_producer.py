"""The producer: single sends that batch by themselves, and whole batches."""

import asyncio
import contextlib
import os
import time
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from duolog._backoff import BackOff
from duolog._columns import crc32, pack, property_text, repeat
from duolog._connection import ATTEMPT_SECONDS
from duolog._errors import (
    BadRequest,
    Busy,
    CorruptBatch,
    DuologError,
    MessageTooLarge,
    NoPermission,
    NotMaster,
    ResultUnknown,
    Retryable,
    Timeout,
    Unavailable,
    UnknownTopic,
)
from duolog._router import Router
from duolog._topics import LogEnd, Slot, TopicCache
from duolog.wire import duolog_pb2 as wire

BATCH_BYTES = 1 << 20
BATCH_MESSAGES = 16_384
IN_FLIGHT_MAX = 8
_STORED_LESS_SAFELY = {
    wire.FLUSH_DISK_TIMEOUT,
    wire.FLUSH_SLAVE_TIMEOUT,
    wire.SLAVE_NOT_AVAILABLE,
}
REFUSED: dict[int, type[DuologError]] = {  # by the status of a put
    wire.SERVICE_NOT_AVAILABLE: NotMaster,
    wire.CREATE_MAPEDFILE_FAILED: Busy,
    wire.OS_PAGECACHE_BUSY: Busy,
    wire.MESSAGE_ILLEGAL: BadRequest,
    wire.MESSAGE_TOO_LARGE: MessageTooLarge,
    wire.PROPERTIES_SIZE_EXCEEDED: MessageTooLarge,
    wire.TOPIC_NOT_EXIST: UnknownTopic,
    wire.NO_PERMISSION: NoPermission,
    wire.CORRUPT_BATCH: CorruptBatch,
    wire.UNKNOWN_ERROR: ResultUnknown,
    wire.SEQUENCE_TOO_OLD: ResultUnknown,
    wire.IN_SYNC_REPLICAS_NOT_ENOUGH: Busy,
    wire.NOT_MASTER: NotMaster,
}


@dataclass(frozen=True, slots=True)
class Receipt:
    """Where a message was stored.

    Attributes:
        status: PUT_OK, or the name of what it did not wait for (stored all the same).
        duplicate: the node had it already, from an earlier try.
        epoch: number of the mastership that answered.
        group: replica group that the queue lies in.
    """

    topic: str
    queue_id: int
    queue_offset: int
    unique_key: str
    store_time: int
    status: str = "PUT_OK"
    duplicate: bool = False
    epoch: int = 0
    group: str = ""


@dataclass(frozen=True, slots=True)
class BatchReceipt:
    """Where a batch was stored: one part per request, in the order of its messages."""

    count: int
    parts: tuple["Part", ...]

    @property
    def status(self) -> str:
        """PUT_OK where every part is."""
        return next((part.status for part in self.parts if part.status != "PUT_OK"), "PUT_OK")


@dataclass(frozen=True, slots=True)
class Part:
    """Messages [first, first + count) of a batch, stored at consecutive queue offsets."""

    topic: str
    queue_id: int
    first: int
    count: int
    queue_offset: int
    sequence: int
    store_time: int
    status: str
    duplicate: bool = False
    epoch: int = 0
    group: str = ""


@dataclass(frozen=True, slots=True)
class Terms:
    """What a node shall do with a batch: when consumers get it (a time in ms, or a level's delay),
    and whether it is half messages of a producer group."""

    deliver_time: int = 0
    delay_level: int = 0
    transaction_group: str = ""
    immunity_seconds: int = 0

    @staticmethod
    def of(delay: float | None, deliver_at: int | None, delay_level: int | None) -> "Terms":
        """What a caller asks for. Raises BadRequest for more than one of them."""
        given = [word for word in (delay, deliver_at, delay_level) if word is not None]
        if not given:
            return PLAIN
        if len(given) > 1 or min(given) < 0:
            raise BadRequest(
                "give only one of delay, deliver_at and delay_level, and not a negative one"
            )
        if delay is not None:
            return Terms(int((time.time() + delay) * 1000))
        return Terms(deliver_at or 0, delay_level or 0)


PLAIN = Terms()


@dataclass(slots=True)
class _Filling:
    """Single sends waiting to go out together."""

    bodies: list[bytes] = field(default_factory=list)
    texts: list[bytes] = field(default_factory=list)
    futures: list["asyncio.Future[Receipt]"] = field(default_factory=list)
    deadline: float = 0.0
    running: bool = False


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
        self._router = router
        self._topics = topics
        self._timeout = timeout
        self._linger = linger
        self.producer_id = os.urandom(10) if producer_id is None else producer_id
        self._sequence = 0
        self._round = 0
        self._filling: dict[tuple[str, Slot | None, Terms], _Filling] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._alone = 0  # sends that go out without a task of their own
        self._quiet = asyncio.Event()
        self._window = asyncio.Semaphore(IN_FLIGHT_MAX)
        self._closed = False

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
        terms = Terms.of(delay, deliver_at, delay_level)
        seconds = self._timeout if timeout is None else timeout
        text = property_text(tags, [*([key] if key else []), *keys], properties)
        return await self.send_text(topic, body, text, key, queue_id, group, terms, seconds)

    async def send_text(
        self,
        topic: str,
        body: bytes,
        text: bytes,
        key: str | None,
        queue_id: int | None,
        group: str | None,
        terms: Terms,
        seconds: float,
    ) -> Receipt:
        """Not called by users: `send`, with the properties' text and on any terms."""
        self._check_open()
        queue: Slot | None = None
        if queue_id is not None:
            queue = await self._topics.slot(topic, queue_id, group, seconds)
        elif key is not None:
            slots = await self._topics.slots(topic, seconds, create=True)
            queue = slots[zlib.crc32(key.encode()) % len(slots)]
        filling = self._filling.get((topic, queue, terms))
        if filling is None:
            filling = _Filling()
            if not terms.deliver_time:  # a time is hardly asked for twice
                self._filling[topic, queue, terms] = filling
        if not filling.running and self._linger <= 0:
            return await self._send_alone(topic, queue, terms, filling, body, text, seconds)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Receipt] = loop.create_future()
        filling.bodies.append(body)
        filling.texts.append(text)
        filling.futures.append(future)
        filling.deadline = max(filling.deadline, loop.time() + seconds)
        if not filling.running:
            filling.running = True
            self._start_draining(topic, queue, terms, filling)
        try:
            async with asyncio.timeout(seconds):
                return await future
        except TimeoutError:
            raise self._give_up(topic, filling, future, seconds) from None

    async def _send_alone(
        self,
        topic: str,
        queue: Slot | None,
        terms: Terms,
        filling: _Filling,
        body: bytes,
        text: bytes,
        seconds: float,
    ) -> Receipt:
        """Send a message while nothing else is on its way: no task, no future in between."""
        filling.running = True
        self._alone += 1
        try:
            (part,) = await self._send_part(
                topic, queue, terms, pack([body]), pack([text]), 1, 0, seconds
            )
        finally:
            self._alone -= 1
            self._quiet.set()
            if filling.bodies:  # what came meanwhile goes out together
                self._start_draining(topic, queue, terms, filling)
            else:
                filling.running = False
        return self._receipt(part, 0)

    def _start_draining(
        self, topic: str, queue: Slot | None, terms: Terms, filling: _Filling
    ) -> None:
        work = self._drain(topic, queue, terms, filling)
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    @staticmethod
    def _give_up(
        topic: str, filling: _Filling, future: "asyncio.Future[Receipt]", seconds: float
    ) -> DuologError:
        """The error of a send whose time is over; a message not yet on its way is taken back."""
        if future in filling.futures:
            at = filling.futures.index(future)
            del filling.futures[at], filling.bodies[at], filling.texts[at]
            return Timeout(f"{topic}: not sent within {seconds:g} s")
        return ResultUnknown(
            f"{topic}: no answer within {seconds:g} s; the message may or may not be stored"
        )

    async def _drain(self, topic: str, queue: Slot | None, terms: Terms, filling: _Filling) -> None:
        """Send what has filled up, batch after batch, until nothing is left."""
        if self._linger > 0:
            await asyncio.sleep(self._linger)
        try:
            while filling.bodies:
                take = self._fit(filling.bodies)
                bodies, filling.bodies = filling.bodies[:take], filling.bodies[take:]
                texts, filling.texts = filling.texts[:take], filling.texts[take:]
                futures, filling.futures = filling.futures[:take], filling.futures[take:]
                left = filling.deadline - asyncio.get_running_loop().time()
                try:
                    parts = await self._send_part(
                        topic, queue, terms, pack(bodies), pack(texts), take, 0, left
                    )
                except Exception as error:
                    self._reject(futures, error)
                    continue
                except BaseException:  # cancelled in mid-way: nobody is left waiting
                    self._reject(futures, ResultUnknown("the producer was closed"))
                    raise
                self._resolve(parts, futures)
        finally:
            filling.running = False
            self._reject(filling.futures, Timeout("the producer was closed"))

    @staticmethod
    def _reject(futures: "list[asyncio.Future[Receipt]]", error: Exception) -> None:
        for future in futures:
            if not future.done():
                future.set_exception(error)

    @staticmethod
    def _fit(bodies: list[bytes]) -> int:
        size = 0
        for count, body in enumerate(bodies[:BATCH_MESSAGES]):
            size += len(body)
            if size > BATCH_BYTES and count:
                return count
        return min(len(bodies), BATCH_MESSAGES)

    def _resolve(self, parts: list[Part], futures: "list[asyncio.Future[Receipt]]") -> None:
        for part in parts:
            for k in range(part.count):
                future = futures[part.first + k]
                if not future.done():
                    future.set_result(self._receipt(part, k))

    def _receipt(self, part: Part, k: int) -> Receipt:
        return Receipt(
            part.topic,
            part.queue_id,
            part.queue_offset + k,
            self.unique_key(part.sequence + k),
            part.store_time,
            part.status,
            part.duplicate,
            part.epoch,
            part.group,
        )

    def unique_key(self, sequence: int) -> str:
        """UNIQ_KEY that the node gives the message of a sequence."""
        return (self.producer_id + sequence.to_bytes(6, "big")).hex().upper()

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
        if keys is None and tags_list is None:
            same = property_text(tags, (), None)
            texts = None
        else:
            same = b""
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
        terms = Terms.of(delay, deliver_at, delay_level)
        return await self.send_texts(topic, bodies, same, texts, slot, terms, seconds)

    async def send_texts(
        self,
        topic: str,
        bodies: Sequence[bytes],
        same: bytes,
        texts: list[bytes] | None,
        slot: Slot | None,
        terms: Terms,
        seconds: float,
    ) -> BatchReceipt:
        """Not called by users: `send_batch`, with the properties' texts and on any terms."""
        self._check_open()
        deadline = asyncio.get_running_loop().time() + seconds
        step = max(1, min(BATCH_MESSAGES, BATCH_BYTES * len(bodies) // (sum(map(len, bodies)) + 1)))
        tasks = []
        try:
            for first in range(0, len(bodies), step):
                chunk = bodies[first : first + step]
                columns = (
                    repeat(same, len(chunk)) if texts is None else pack(texts[first : first + step])
                )
                left = deadline - asyncio.get_running_loop().time()
                work = self._send_part(
                    topic,
                    slot,
                    terms,
                    pack(chunk),
                    columns,
                    len(chunk),
                    first,
                    left,
                )
                tasks.append(asyncio.ensure_future(work))
                if len(tasks) >= IN_FLIGHT_MAX:
                    await tasks[len(tasks) - IN_FLIGHT_MAX]
            parts = [part for found in await asyncio.gather(*tasks) for part in found]
        finally:
            for task in tasks:
                if not task.done():
                    task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return BatchReceipt(len(bodies), tuple(parts))

    # -- one request ---------------------------------------------------------------------------

    async def _send_part(
        self,
        topic: str,
        slot: Slot | None,
        terms: Terms,
        bodies: tuple[bytes, bytes],
        texts: tuple[bytes, bytes],
        count: int,
        first: int,
        seconds: float,
    ) -> list[Part]:
        """Send one batch to one queue, again after a broken connection, until the deadline.

        A repeated request has the same sequence, so it is stored once. A batch without a queue of
        its own goes to another replica group where the first one surely has not stored it.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        anywhere = slot is None
        group, queue_id = slot if slot is not None else await self._next_slot(topic, seconds)
        await self._topics.learn_end(group, topic, max(0.001, deadline - loop.time()))
        connection = self._router.connection(group)
        sequence, self._sequence = self._sequence, self._sequence + count
        request = wire.AppendRequest(
            id=next(connection.ids),
            topic=topic,
            queue_id=queue_id,
            bodies=bodies[0],
            body_offsets=bodies[1],
            properties=texts[0],
            property_offsets=texts[1],
            crc32=crc32(*bodies, *texts),
            born_time=int(time.time() * 1000),
            producer_id=self.producer_id,
            sequence=sequence,
            delay_level=terms.delay_level,
            deliver_time=terms.deliver_time,
            transaction_group=terms.transaction_group,
            immunity_seconds=terms.immunity_seconds,
        )
        back_off = BackOff()
        maybe_stored = False  # by any of the tries: a later refusal says nothing about them
        while True:
            hint, epoch, move = "", 0, connection.moves
            sent = unknown = False
            error: DuologError
            took = 0.0
            request.again = maybe_stored
            if not maybe_stored:
                known = self._topics.known_end(group)
                request.known_end, request.known_nonce = known.offset, known.nonce
            try:
                left = deadline - loop.time()
                async with asyncio.timeout(min(left, ATTEMPT_SECONDS)), self._window:
                    sent, began = True, loop.time()
                    reply = await connection.stream().append(request)
                took = loop.time() - began
                refused = self._refusal(topic, reply)
                if refused is None:
                    if reply.status == wire.PUT_OK and reply.count:
                        end = LogEnd(reply.physical_offset, reply.epoch_nonce)
                        self._topics.note_end(group, end)
                    return self._parts(group, request, reply, count, first)
                error = refused
                self._topics.forget(topic)  # it may not be what it was
                unknown = reply.status == wire.UNKNOWN_ERROR
                maybe_stored = maybe_stored or unknown
                if reply.master != connection.endpoint:  # else it only pauses
                    hint, epoch = reply.master, reply.master_epoch
            except (TimeoutError, Unavailable) as problem:
                maybe_stored = maybe_stored or sent
                error = Timeout(f"{topic}: not sent within {seconds:g} s ({problem})")
            again = unknown or isinstance(error, Retryable)
            pause = back_off.next(bool(hint))
            # A try that the deadline cuts off tells less than the refusal that is known already.
            latest_start = deadline if maybe_stored else deadline - took
            if not again or loop.time() + pause >= latest_start:
                if not maybe_stored:
                    raise error
                raise ResultUnknown(
                    f"{topic}: no definite answer within {seconds:g} s ({error}); the "
                    "messages may or may not be stored"
                ) from None
            await asyncio.sleep(pause)
            if not isinstance(error, Busy):
                await connection.rotate(move, hint, epoch)
            if anywhere and not maybe_stored and not hint:
                other = await self._elsewhere(topic, group, deadline - loop.time())
                if other is not None:
                    group, request.queue_id = other
                    connection = self._router.connection(group)
                    request.id = next(connection.ids)

    async def _next_slot(self, topic: str, seconds: float) -> Slot:
        """The queue whose turn it is."""
        slots = await self._topics.slots(topic, seconds, create=True)
        self._round += 1
        return slots[(self._round - 1) % len(slots)]

    async def _elsewhere(self, topic: str, group: str, seconds: float) -> Slot | None:
        """A queue in another group than one that could not take a batch; None for no such."""
        try:
            if len(await self._router.groups(seconds)) < 2 or seconds <= 0:
                return None
            slots = await self._topics.slots(topic, seconds)
        except DuologError:
            return None
        others = [slot for slot in slots if slot[0] != group]
        self._round += 1
        return others[self._round % len(others)] if others else None

    @staticmethod
    def _refusal(topic: str, reply: wire.AppendReply) -> DuologError | None:
        if reply.status == wire.PUT_OK or reply.status in _STORED_LESS_SAFELY:
            return None
        kind = REFUSED.get(reply.status, ResultUnknown)
        return kind(f"{topic}: {reply.reason}")

    @staticmethod
    def _parts(
        group: str, request: wire.AppendRequest, reply: wire.AppendReply, count: int, first: int
    ) -> list[Part]:
        parts = []
        done = 0
        status = wire.PutStatus.Name(reply.status)
        for run in reply.duplicates:
            parts.append(
                Part(
                    run.topic,
                    run.queue_id,
                    first + done,
                    run.count,
                    run.queue_offset,
                    request.sequence + done,
                    reply.store_time,
                    status,
                    True,
                    reply.master_epoch,
                    group,
                )
            )
            done += run.count
        if done < count:
            parts.append(
                Part(
                    request.topic,
                    request.queue_id,
                    first + done,
                    count - done,
                    reply.queue_offset,
                    request.sequence + done,
                    reply.store_time,
                    status,
                    False,
                    reply.master_epoch,
                    group,
                )
            )
        return parts

    # -- end -----------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._closed:
            raise BadRequest("the producer is closed")

    async def flush(self) -> None:
        """Wait until every send that was started has its answer."""
        while self._tasks or self._alone:
            if self._tasks:
                await asyncio.wait(self._tasks)
            else:
                self._quiet.clear()
                await self._quiet.wait()

    async def close(self) -> None:
        """Wait (bounded) for sends under way, then refuse new ones. May be called again."""
        self._closed = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._timeout):
                await self.flush()
        for task in self._tasks:
            task.cancel()

    async def __aenter__(self) -> "Producer":
        """Use it in `async with`."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close."""
        await self.close()
