"""The producer: single sends that batch by themselves, and whole batches."""

import asyncio
import contextlib
import time
import zlib
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from operator import add
from threading import get_ident
from typing import TYPE_CHECKING, NamedTuple

from duolog._background import close_after, together
from duolog._batcher import (
    AT_ONCE,
    BATCH_BYTES,
    BATCH_MESSAGES,
    FULL,
    Batcher,
    Buffering,
    Filling,
    producer_closed,
)
from duolog._checks import (
    INT32_MAX,
    checked_bodies,
    checked_body,
    checked_number,
    checked_text,
    checked_texts,
    checked_whole,
)
from duolog._columns import pack, property_text, repeat
from duolog._errors import BadRequest, UnknownTopic
from duolog._forks import Owned
from duolog._places import Slot
from duolog._posted import MESSAGE_BYTES, SEND_BYTES, Posted, Told
from duolog._receipts import BatchReceipt, Part, Receipt
from duolog._router import Router
from duolog._sending import IN_FLIGHT_MAX, Batch, Sender, SendOptions
from duolog._terms import PLAIN, Terms
from duolog._topics import TopicCache
from duolog._unrouted import Goal, Place, Unrouted

if TYPE_CHECKING:
    from duolog._spans import Sending, Spans

NOWHERE = Filling("", None, PLAIN)  # takes no message
CONFIRMED = SendOptions()
DELAY_STEP_MS = 10  # half of the interval at which a node checks for due messages


@dataclass(frozen=True, slots=True)
class Many:
    """Messages of a topic with the texts of their properties: one for all, or one for each."""

    topic: str
    bodies: Sequence[bytes]
    same: bytes = b""
    texts: list[bytes] | None = None
    slot: Slot | None = None
    terms: Terms = PLAIN

    def carrying(self, sending: "Sending") -> "Many":
        """The messages with the context of the span in which they go out."""
        if self.texts is None:
            return replace(self, same=sending.text(self.same))
        return replace(self, texts=[sending.text(text) for text in self.texts])

    def requests(self) -> list[tuple[int, int]]:
        """Messages [first, end) that go together, by what they and their properties take."""
        count, same = len(self.bodies), len(self.same)
        sizes = map(len, self.bodies)
        if self.texts is not None:
            sizes = map(add, sizes, map(len, self.texts))
        ends = list(accumulate(sizes))
        if count <= BATCH_MESSAGES and ends[-1] + count * same < BATCH_BYTES:
            return [(0, count)]
        if same:
            ends = [end + same * k for k, end in enumerate(ends, 1)]
        found: list[tuple[int, int]] = []
        first = sent = 0
        while first < count:
            end = bisect_right(ends, sent + BATCH_BYTES, first, min(count, first + BATCH_MESSAGES))
            end = max(end, first + 1)
            found.append((first, end))
            first, sent = end, ends[end - 1]
        return found

    def batch(self, first: int, end: int) -> Batch:
        """The messages [first, end)."""
        bodies = self.bodies[first:end]
        if self.texts is None:
            texts = repeat(self.same, len(bodies))
        else:
            texts = pack(self.texts[first:end])
        return Batch(self.topic, self.slot, self.terms, pack(bodies), texts, len(bodies), first)


@dataclass(frozen=True, slots=True)
class Message:
    """One message, with the text of its properties. slot: its queue; None: any."""

    topic: str
    slot: Slot | None
    terms: Terms
    body: bytes
    text: bytes


class _Taken(NamedTuple):
    """A message that was posted, but for where it goes."""

    body: bytes
    text: bytes
    deadline: float
    on_done: Told | None


class Producer(Owned):
    """Sends messages. Made by `Client.producer()`; safe to use from many tasks of one loop."""

    def __init__(
        self,
        router: Router,
        topics: TopicCache,
        timeout: float,
        buffering: Buffering = AT_ONCE,
        options: SendOptions = CONFIRMED,
    ) -> None:
        """Not called by users."""
        super().__init__()
        self._runtime = router.runtime
        self._topics = topics
        self._timeout = timeout
        self._sender = Sender(router, topics, options)
        self._batcher = Batcher(self._sender, buffering)
        self._unrouted = Unrouted(self._batcher, topics)
        self._closed = False
        self.ended = False  # closed, with nothing left
        self._loop = buffering.loop
        self._thread = 0  # of the loop that runs,
        self._running: asyncio.AbstractEventLoop | None = None  # which is this one
        self._clock: Callable[[], float] = time.monotonic
        if self._loop is not None:
            self._note_clock(self._loop)
        # Where the last message went that could go anywhere: nowhere, while spans are made.
        self._last = NOWHERE
        self._spans = router.runtime.spans

    @property
    def producer_id(self) -> bytes:
        """The producer's unique id."""
        return self._sender.producer_id

    # -- single sends --------------------------------------------------------------------------

    async def send(
        self,
        topic: str,
        body: bytes,
        *,
        key: str | None = None,
        keys: str | Sequence[str] = (),
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
            delay: seconds until consumers get it (at most 3 days; rounded up to 10 ms), or
            deliver_at: the time (ms) when they get it, or
            delay_level: one of the node's levels, by default 1 for 1 s to 18 for 2 h; a higher one
                is the last. The receipt of such a message has the queue offset at which it waits.
            timeout: seconds for everything: route, retries, answer.

        Raises:
            UnknownTopic, BadRequest, MessageTooLarge: nothing was stored.
            Timeout, Unavailable, Busy, NotMaster: nothing was stored, it may work later.
            ResultUnknown: it may or may not have been stored, or the master stored it and could
                not confirm it in time: then `status` says why, and it may be lost with the master.
            SlaveNotAvailable: a ResultUnknown, raised at once: the master stored it, and has too
                few slaves. `accept_weak` of `Client.producer` gives receipts for these two.
        """
        if get_ident() != self._thread:
            self._check_thread()
        deadline = self._clock() + (self._timeout if timeout is None else checked_seconds(timeout))
        if (
            (key is None and queue_id is None and tags is None)
            and (delay is None and deliver_at is None and delay_level is None)
            and not (keys or properties)
            and self._loop is None
            and type(body) is bytes
        ):
            filling = self._last
            posting = filling.open
            room = posting.room - len(body) - SEND_BYTES
            if (
                room >= 0
                and posting.earliest <= deadline <= posting.latest
                and topic == filling.topic
            ):
                posting.room = room
                answer: asyncio.Future[Receipt] = asyncio.Future(loop=self._running)
                bodies = posting.bodies
                posting.sends[len(bodies)] = answer
                bodies.append(body)
                return await answer
            if posting is FULL and topic == filling.topic and filling is not NOWHERE:
                return await self._batcher.send(filling, body, b"", deadline)
        if type(body) is not bytes:
            body = checked_body("a body", body)
        check_place(topic, queue_id, group)
        if self._closed:
            raise producer_closed()
        terms, text = PLAIN, b""
        if delay is not None or deliver_at is not None or delay_level is not None:
            terms = Terms.of(delay, deliver_at, delay_level, self._delayed_from())
        if tags is not None or key is not None or keys or properties:
            text = encoded_text(tags, key, keys, properties)
        place = Place(topic, key, queue_id, group)
        if self._spans is None:
            return await self._send(place, terms, body, text, deadline)
        with self._spans.send(topic, text, terms) as sending:
            text = sending.text(text)
            return sending.stored(await self._send(place, terms, body, text, deadline))

    async def _send(
        self, place: Place, terms: Terms, body: bytes, text: bytes, deadline: float
    ) -> Receipt:
        """Send an encoded message: the part of `send` that tracing wraps in a span."""
        slot = None
        if place.key is not None or place.queue_id is not None:
            if self._unrouted.holds(place.topic):
                goal = Goal(place, terms)
                return await self._unrouted.post(goal, body, text, deadline, None).awaited()
            left = deadline - self._clock()
            if place.queue_id is not None:
                slot = await self._topics.slot(place.topic, place.queue_id, place.group, left)
            elif place.key is not None:
                slot = await self.slot_of(place.topic, place.key, left)
        filling = self._batcher.filling_of(place.topic, slot, terms)
        if slot is None and terms is PLAIN and self._spans is None:
            self._last = filling
        return await self._batcher.send(filling, body, text, deadline)

    def post(
        self,
        topic: str,
        body: bytes,
        *,
        key: str | None = None,
        keys: str | Sequence[str] = (),
        tags: str | None = None,
        properties: dict[str, str] | None = None,
        queue_id: int | None = None,
        group: str | None = None,
        delay: float | None = None,
        deliver_at: int | None = None,
        delay_level: int | None = None,
        timeout: float | None = None,
        on_done: Callable[[Posted], object] | None = None,
    ) -> Posted:
        """Take one message and return at once: the fastest way to send one message a call.

        Messages of a key, or of a queue, are stored in the order in which they were posted, where
        their delay is the same. The handle reports what becomes of a message; it may be
        awaited, and to `on_done`; an error that neither reports is raised by `flush` and `close`.
        A task that posts without a pause keeps everything else waiting, also what sends the
        messages: let it await something now and then.

        Args:
            topic, body, key, keys, tags, properties, queue_id, group: as for `send`, and
            delay, deliver_at, delay_level: as for `send`.
            timeout: seconds for everything, from now on.
            on_done: called with the handle once it is done, in the client's loop; it may post.

        Raises:
            BufferFull: messages that are not answered fill `buffer_bytes`: this one was not taken;
                `flush`, or wait for some of them.
            BadRequest: it was not taken. The handle reports what a node refuses.
        """
        # For each message of programs that post hundreds of thousands a second.
        if get_ident() != self._thread and self._loop is None:
            self._check_thread()
        deadline = self._clock() + (self._timeout if timeout is None else checked_seconds(timeout))
        if (
            (key is None and queue_id is None and tags is None and on_done is None)
            and (delay is None and deliver_at is None and delay_level is None)
            and not (keys or properties)
            and self._loop is None
            and type(body) is bytes
        ):
            filling = self._last
            posting = filling.open
            room = posting.room - len(body) - MESSAGE_BYTES
            if (
                room >= 0
                and posting.earliest <= deadline <= posting.latest
                and topic == filling.topic
            ):
                posting.room = room
                handle = Posted()
                handle._posting = posting
                bodies = posting.bodies
                handle._place = len(bodies)
                bodies.append(body)
                return handle
        if self._closed:
            raise producer_closed()
        if on_done is not None and not callable(on_done):
            raise BadRequest(f"on_done must be a function, not {type(on_done).__name__}")
        batcher = self._batcher
        if batcher.used >= batcher.buffer_bytes:
            batcher.refuse_more()
        if type(body) is not bytes:
            body = checked_body("a body", body)
        check_place(topic, queue_id, group)
        terms, text = PLAIN, b""
        if delay is not None or deliver_at is not None or delay_level is not None:
            terms = Terms.of(delay, deliver_at, delay_level, self._delayed_from())
        if tags is not None or key is not None or keys or properties:
            text = encoded_text(tags, key, keys, properties)
        if self._spans is not None:
            goal = Goal(Place(topic, key, queue_id, group), terms)
            return self._post_in_span(self._spans, goal, _Taken(body, text, deadline, on_done))
        slot = None
        if key is not None or queue_id is not None:
            place = Place(topic, key, queue_id, group)
            slot = self._unrouted.slot_at_hand(place, self._clock())
            if slot is None:
                return self._unrouted.post(Goal(place, terms), body, text, deadline, on_done)
        if terms.deliver_time and self._loop is not None:
            with batcher.lock:  # the loop's thread lets go of such a filling once it is empty
                filling = batcher.filling_of(topic, slot, terms)
                return batcher.add(filling, body, text, deadline, on_done)
        filling = batcher.filling_of(topic, slot, terms)
        if slot is None and terms is PLAIN:
            self._last = filling
        return batcher.add(filling, body, text, deadline, on_done)

    def _post_in_span(self, spans: "Spans", goal: Goal, taken: "_Taken") -> Posted:
        """The rest of `post`, where spans are made."""
        place, terms = goal.place, goal.terms
        sending = spans.send(place.topic, taken.text, terms)
        body, text, deadline, on_done = taken
        text = sending.text(text)
        batcher, slot, known = self._batcher, None, True
        try:
            with batcher.lock:  # the message is not answered before its span is there
                if place.key is not None or place.queue_id is not None:
                    slot = self._unrouted.slot_at_hand(place, self._clock())
                    known = slot is not None
                if known:
                    filling = batcher.filling_of(place.topic, slot, terms)
                    posted = batcher.add(filling, body, text, deadline, on_done)
                else:
                    posted = self._unrouted.post(goal, body, text, deadline, on_done)
                posting, at = posted.at
                posting.put_sending(at, sending)
        except BaseException as error:
            sending.failed(error)
            raise
        return posted

    def _delayed_from(self) -> int:
        """The wall clock in ms, rounded up so that messages of the same delay go out together."""
        return -(-self._runtime.wall_ms() // DELAY_STEP_MS) * DELAY_STEP_MS

    def _check_thread(self) -> None:
        """Note whose thread it is. Raises RuntimeError where the producer's loop does not run."""
        self.check_process()
        loop = self._batcher.running_loop()  # a system call: not for each message
        self._thread = get_ident()
        self._running = loop
        self._note_clock(loop)

    def _note_clock(self, loop: asyncio.AbstractEventLoop) -> None:
        """The loop's clock: without the loop, where its time is the system's."""
        plain = type(loop).time is asyncio.BaseEventLoop.time
        self._clock = time.monotonic if plain else loop.time

    async def slot_of(self, topic: str, key: str, seconds: float) -> Slot:
        """Not called by users: the queue that messages of a key go to."""
        self._check_open()
        slots = await self._topics.slots(topic, seconds, create=True)
        return slots[zlib.crc32(key.encode()) % len(slots)]

    async def send_message(self, message: Message, seconds: float) -> Receipt:
        """Not called by users: `send`, with the properties' text and on any terms."""
        self._check_open()
        filling = self._batcher.filling_of(message.topic, message.slot, message.terms)
        deadline = asyncio.get_running_loop().time() + seconds
        return await self._batcher.send(filling, message.body, message.text, deadline)

    async def send_copy(self, place: Place, message: Message) -> Receipt:
        """Not called by users: `send`, with the properties' text and on any terms, to the replica
        group that a copy is made in, and alone: nothing goes with it that is no copy.
        """
        self._check_open()
        topic, group, seconds = place.topic, place.group, self._timeout
        if place.queue_id is not None:
            slot = await self._topics.slot(topic, place.queue_id, group, seconds)
        else:
            slots = await self._topics.slots(topic, seconds, create=True)
            inside = [slot for slot in slots if slot[0] == group]
            if not inside:
                raise UnknownTopic(f"topic {topic!r} has no queue in replica group {group}")
            slot = self._runtime.chance.choice(inside)
        many = Many(topic, [message.body], texts=[message.text], slot=slot, terms=message.terms)
        receipt = await self.send_many(many, seconds)
        return receipt.parts[0].receipt(0, self.producer_id)

    def unique_key(self, sequence: int) -> str:
        """UNIQ_KEY that the node gives the message of a sequence."""
        checked_whole("sequence", sequence, 0, (1 << 48) - 1)
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
        expect_offset: int | None = None,
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
            expect_offset: store nothing unless the first message gets this offset of the queue
                `queue_id`; for up to 16,384 messages and 1 MiB. Of several writers that expect
                the same offset one succeeds.
            timeout: seconds for the whole batch.

        Raises:
            OffsetMismatch: the queue's next offset is not the expected one; nothing was stored.
            as `send`; where the batch takes several requests, earlier ones may have been stored.
        """
        self._check_open()
        seconds = self._timeout if timeout is None else checked_seconds(timeout)
        check_place(topic, queue_id, group)
        bodies = checked_bodies(bodies)
        if not bodies:
            return BatchReceipt(0, ())
        for name, columns in (("keys", keys), ("tags_list", tags_list)):
            if columns is None:
                continue
            found = len(columns) if _is_column(columns) else type(columns).__name__
            if found != len(bodies):
                raise BadRequest(
                    f"{name} must have an entry for each of the {len(bodies)} messages, not {found}"
                )
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
        if expect_offset is not None:
            terms = terms.expecting(expect_offset, queue_id)
        many = Many(topic, bodies, same, texts, slot, terms)
        if expect_offset is not None and len(many.requests()) > 1:
            raise BadRequest(
                f"{topic}: {len(bodies)} messages take several requests; a batch with an "
                "expected queue offset is one"
            )
        if self._spans is None:
            return await self.send_many(many, seconds)
        with self._spans.send(topic, b"", terms, len(bodies)) as sending:
            return await self.send_many(many.carrying(sending), seconds)

    async def send_many(self, many: Many, seconds: float) -> BatchReceipt:
        """Not called by users: `send_batch`, with the properties' texts and on any terms."""
        self._check_open()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        count, requests = len(many.bodies), many.requests()
        if len(requests) == 1:
            parts = await self._sender.send(many.batch(0, count), seconds)
            return BatchReceipt(count, tuple(parts))
        sends: list[asyncio.Task[list[Part]]] = []
        async with together() as tasks:
            for first, end in requests:
                work = self._sender.send(many.batch(first, end), deadline - loop.time())
                sends.append(tasks.create_task(work))
                if len(sends) >= IN_FLIGHT_MAX:
                    await asyncio.wait([sends[len(sends) - IN_FLIGHT_MAX]])
        return BatchReceipt(count, tuple(part for send in sends for part in send.result()))

    # -- end -----------------------------------------------------------------------------------

    def note_fork(self) -> None:
        """See Owned: what is posted is the parent's."""
        super().note_fork()
        self._thread, self._last = 0, NOWHERE  # the quick ways of `send` and `post` are closed
        self._batcher.abandon()

    def _check_open(self) -> None:
        self.check_process()
        if self._closed:
            raise producer_closed()

    async def flush(self) -> None:
        """Wait until every message that was sent or posted before has its answer.

        Raises an unreported error of a posted message; a note says how many there are.
        """
        self.check_process()
        await self._batcher.answered()
        self._batcher.raise_unasked()

    async def close(self) -> None:
        """Wait (bounded) for sends in flight, then refuse new ones. May be called again.

        Raises an unreported error of a posted message.
        """
        if self.forked:
            return
        self._closed = True
        self._last = NOWHERE  # also of an open batch
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._timeout):
                    await self._batcher.answered()
        finally:
            await self._batcher.close()
        self.ended = True
        self._batcher.raise_unasked()

    async def __aenter__(self) -> "Producer":
        """Use it in `async with`."""
        return self

    async def __aexit__(self, kind: object, *_: object) -> None:
        """Close."""
        await close_after(kind, self.close)


def encoded_text(
    tags: str | None,
    key: str | None,
    keys: str | Sequence[str],
    properties: dict[str, str] | None,
) -> bytes:
    """A message's properties. Raises BadRequest."""
    if key is not None and type(key) is not str:
        checked_text("key", key)
    if key:
        keys = (key, *checked_texts("keys", keys)) if keys else (key,)
    return property_text(tags, keys, properties)


def _is_column(columns: object) -> bool:
    """Whether these are several values, also numpy's."""
    several = hasattr(columns, "__len__") and hasattr(columns, "__getitem__")
    return several and not isinstance(columns, str | bytes)


def check_place(topic: str, queue_id: int | None, group: str | None = None) -> None:
    """Raise BadRequest for what names no queue."""
    if type(topic) is not str or not topic or not topic.isascii():
        checked_text("topic", topic)
    if queue_id is not None:
        checked_whole("queue_id", queue_id, 0, INT32_MAX)
    if group is not None:
        checked_text("group", group, empty=True)


def checked_seconds(timeout: float) -> float:
    """A timeout; one that is over already ends what it is for."""
    return checked_number("timeout", timeout)
