"""A batch on its way to one queue: sent again until it is stored, refused, or its time is over.

Rules: a repeated request has the same sequence, so it is stored once; a refusal says nothing about
earlier tries that had no answer; a batch without a queue of its own goes to another replica group
only where the first one surely has not stored it; what the master stored and could not confirm is
sent again until it can: a repeat waits on the node for what is stored already. A batch goes to the
place where its queue is now, and a repeat where the first try went, also if the queue moved
meanwhile: that place knows what became of it, and passes it on.
"""

import asyncio
import itertools
from dataclasses import dataclass, field

from duolog._backoff import BackOff, wait_of, would_be_cut_off
from duolog._columns import crc32, offset_bytes
from duolog._connection import ATTEMPT_SECONDS
from duolog._errors import (
    BadRequest,
    Busy,
    CorruptBatch,
    DuologError,
    Fatal,
    MessageTooLarge,
    NoPermission,
    NotMaster,
    OffsetMismatch,
    ResultUnknown,
    Retryable,
    SlaveNotAvailable,
    Throttled,
    Timeout,
    Unavailable,
    UnknownTopic,
)
from duolog._places import Slot
from duolog._receipts import Part, Sent, Unconfirmed, parts_of, status_name, unique_key
from duolog._router import Router
from duolog._runtime import MESSAGE_BYTES_MAX
from duolog._terms import PLAIN, Terms
from duolog._topics import LogEnd, TopicCache
from duolog._ways import Way, Ways, answered
from duolog.wire import duolog_pb2 as wire

IN_FLIGHT_MAX = 8
PATIENCE_SECONDS = 2.0  # of a node that is to tell who takes puts, and does not know it yet
PATIENCE_SHARE = 0.25  # of the time that is left: for other nodes, too
# Of a request's columns: gRPC refuses larger ones, and breaks the stream with all that is on it.
COLUMN_BYTES_MAX = MESSAGE_BYTES_MAX - (64 << 10)
Column = tuple[bytes, bytes]  # blob and offsets
# Stored, and perhaps lost with the master.
WEAK = (wire.FLUSH_DISK_TIMEOUT, wire.FLUSH_SLAVE_TIMEOUT, wire.SLAVE_NOT_AVAILABLE)
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
    wire.THROTTLED: Throttled,
}


@dataclass(slots=True)  # not frozen, which takes four times as long: one is made for each request
class Batch:
    """Messages of one request. slot: their queue; None: the one whose turn it is.

    first: place of the first of them among the messages of the caller. unconfirmed: what becomes
    of its tries, also for who waits no longer.
    """

    topic: str
    slot: Slot | None
    terms: Terms
    bodies: Column
    texts: Column
    count: int
    first: int = 0
    unconfirmed: Unconfirmed = field(default_factory=Unconfirmed)


@dataclass(frozen=True, slots=True)
class SendOptions:
    """How a producer sends.

    producer_id: 10 bytes, unique for all time; random where not given. accept_weak: what the master
    stored and could not confirm has a receipt with the status that says so, and raises nothing.
    """

    producer_id: bytes | None = None
    accept_weak: bool = False


class Window(asyncio.Semaphore):
    """The places of batches in flight, given in the order in which they were asked for."""

    def free(self) -> bool:
        """Take one, if one is free and has no waiter."""
        if self._value > 0 and not self._waiters:
            self._value -= 1
            return True
        return False


class Sender:
    """Sends batches of one producer, so many at a time."""

    def __init__(self, router: Router, topics: TopicCache, options: SendOptions) -> None:
        self.router = router
        self.topics = topics
        self.producer_id = options.producer_id or router.runtime.chance.randbytes(10)
        self._accept_weak = options.accept_weak
        self.window = Window(IN_FLIGHT_MAX)
        self.ways = Ways(self._place_of)
        self._sequence = 0
        self._round = itertools.count()

    async def send(self, batch: Batch, seconds: float) -> list[Part]:
        """Store a batch within `seconds`. Raises as `Producer.send`."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        deadline = now + seconds
        topic, slot = batch.topic, batch.slot
        (bodies, ends), (texts, text_ends) = batch.bodies, batch.texts
        size = len(bodies) + len(ends) + len(texts) + len(text_ends)
        if size > COLUMN_BYTES_MAX:
            raise MessageTooLarge(f"{topic}: {size} bytes in one request; {COLUMN_BYTES_MAX} fit")
        if slot is None:
            slots = self.topics.at_hand(topic, now)
            if not slots:
                slots = await self.topics.slots(topic, seconds, create=True)
            slot, way = self._turn(topic, slots, loop.time())
        elif batch.terms.copied_from is not None:  # of a message in that group
            way = self.ways.apart(topic, slot)
        else:
            way = self.ways.begin(topic, slot, now)
        way = way or await self.ways.begin_later(topic, slot, deadline)
        return await _Delivery(self, batch, way, seconds, deadline).run()

    def _turn(self, topic: str, slots: list[Slot], now: float) -> tuple[Slot, Way | None]:
        """The queue whose turn it is, one that needs no wait where there is one; and its way."""
        for _ in slots:
            slot = slots[next(self._round) % len(slots)]
            way = self.ways.begin(topic, slot, now)
            if way is not None:
                break
        return slot, way

    def _place_of(self, topic: str, name: Slot) -> Slot:
        """Where a queue is now; its name, where no connection reaches that replica group."""
        place = self.topics.places.of(topic, name)
        return place if place == name or self.router.reaches(place[0]) else name

    def accepts(self, status: int) -> bool:
        """Whether a batch with this status has a receipt."""
        return status == wire.PUT_OK or (self._accept_weak and status in WEAK)

    def take_sequences(self, count: int) -> int:
        """The first of so many sequences, which no other batch gets."""
        first, self._sequence = self._sequence, self._sequence + count
        return first

    def unique_key(self, sequence: int) -> str:
        """UNIQ_KEY that the node gives the message of a sequence."""
        return unique_key(self.producer_id, sequence)

    async def elsewhere(self, topic: str, group: str, seconds: float) -> Way | None:
        """The way to a queue in another group than one that could not take a batch; None for no
        such, or where it would have to wait.
        """
        try:
            if len(await self.router.groups(seconds)) < 2 or seconds <= 0:
                return None
            slots = await self.topics.slots(topic, seconds)
        except DuologError:
            return None
        others = [slot for slot in slots if self._place_of(topic, slot)[0] != group]
        if not others:
            return None
        return self._turn(topic, others, asyncio.get_running_loop().time())[1]


@dataclass(frozen=True, slots=True)
class _Failure:
    """A try that did not store the batch. took: seconds it took a node to refuse it.

    hint, epoch: the master that the node named. soon: it is the node itself, and takes puts in a
    moment. unknown: the node cannot tell whether it stored it.
    """

    error: DuologError
    took: float = 0.0
    hint: str = ""
    epoch: int = 0
    soon: bool = False
    unknown: bool = False


class _Delivery:
    """One batch and its tries."""

    def __init__(
        self, sender: Sender, batch: Batch, way: Way, seconds: float, deadline: float
    ) -> None:
        self._sender = sender
        self._batch = batch
        self._seconds = seconds
        self._deadline = deadline
        self._way = way
        self._began = deadline - seconds
        self._maybe_stored = False  # by any of the tries: a later refusal says nothing about them
        self._error: DuologError | None = None  # why the try before was none

    def _go_to(self, way: Way) -> None:
        self._way = way
        self._group = way.place[0]
        self._connection = self._sender.router.connection(self._group)

    def _turn_to(self, way: Way) -> None:
        """Send the next try to another place."""
        self._go_to(way)
        self._request.queue_id = way.place[1]
        self._request.id = next(self._connection.ids)

    def _first_request(self) -> wire.AppendRequest:
        batch, terms = self._batch, self._batch.terms
        request = wire.AppendRequest(
            id=next(self._connection.ids),
            topic=batch.topic,
            queue_id=self._way.place[1],
            body_offsets=batch.bodies[1],
            properties=batch.texts[0],
            property_offsets=batch.texts[1],
            crc32=crc32(*batch.bodies, *batch.texts),
            born_time=self._connection.runtime.wall_ms(),
            producer_id=self._sender.producer_id,
            sequence=self._sender.take_sequences(batch.count),
        )
        if terms is not PLAIN:
            request.delay_level = terms.delay_level
            request.deliver_time = terms.deliver_time
            request.transaction_group = terms.transaction_group
            request.immunity_seconds = terms.immunity_seconds
            if terms.expect_offset is not None:
                request.expect_offset = terms.expect_offset
                request.crc32 = crc32(
                    *batch.bodies, *batch.texts, offset_bytes(terms.expect_offset)
                )
            if terms.copied_from is not None:
                topic, place, offset = terms.copied_from
                request.copied_from.topic, request.copied_from.queue_id = topic, place
                request.copied_from.offset = offset
        return request

    @property
    def _left(self) -> float:
        return self._deadline - asyncio.get_running_loop().time()

    async def run(self) -> list[Part]:
        """Try until it is stored, or no further try is of use."""
        topics, in_doubt = self._sender.topics, False
        try:
            if not topics.knows_end(self._way.place[0]):
                await topics.learn_end(
                    self._way.place[0], self._batch.topic, max(0.001, self._left)
                )
            self._go_to(self._way)
            self._request = self._first_request()
            parts = await self._until_stored()
            answered(self._way, self._began)
            return parts
        except BaseException as error:
            in_doubt = self._maybe_stored or isinstance(error, asyncio.CancelledError)
            raise
        finally:
            self._sender.ways.end(self._way, in_doubt)

    async def _until_stored(self) -> list[Part]:
        back_off: BackOff | None = None
        while True:
            move = self._connection.moves
            tried = await self._try()
            if isinstance(tried, list):
                return tried
            if back_off is None:
                back_off = BackOff(self._connection.runtime.chance)
            error, hint = tried.error, tried.hint
            self._error = error
            if self._is_gone(error):
                await self._go_back()
                continue
            pause = back_off.next(bool(hint) or tried.soon) + wait_of(error)
            # Where it is unknown already, a try that is cut off tells no less.
            took = 0.0 if self._maybe_stored else tried.took
            again = tried.unknown or isinstance(error, Retryable)
            if not again or would_be_cut_off(pause, took, self._left):
                raise self._told(error) from None
            await asyncio.sleep(pause)
            if not (isinstance(error, Busy) or tried.soon):
                await self._connection.rotate(move, hint, tried.epoch)
            if self._batch.slot is None and not self._maybe_stored and not hint:
                await self._go_elsewhere()

    async def _try(self) -> list[Part] | _Failure:
        loop = asyncio.get_running_loop()
        batch, request, topics = self._batch, self._request, self._sender.topics
        began = loop.time()
        left = self._deadline - began
        if left <= 0:  # asyncio.timeout would let it out first
            late = Timeout(f"{batch.topic}: not sent within {self._seconds:.3g} s")
            return _Failure(self._error or late)
        if self._maybe_stored:
            request.again = True
        else:
            known = topics.known_end(self._group)
            request.known_end, request.known_nonce = known
        request.patience_ms = self._patience_ms(left)
        sent, window = False, self._sender.window
        until = min(self._deadline, began + ATTEMPT_SECONDS)
        try:
            if not window.free():
                async with asyncio.timeout_at(until):
                    await window.acquire()
                began = loop.time()
            try:
                sent = True
                reply = await self._connection.append(request, batch.bodies[0], until)
            finally:
                window.release()
        except (Fatal, Throttled) as problem:  # an earlier try may have stored it
            return _Failure(problem)
        except (TimeoutError, Unavailable) as problem:
            self._maybe_stored = self._maybe_stored or sent
            mine = f"{self._connection.endpoint} did not answer"
            why = str(problem) or (mine if sent else "earlier batches wait for their answers")
            return _Failure(
                Timeout(f"{batch.topic}: not sent within {self._seconds:.3g} s ({why})")
            )
        if self._sender.accepts(reply.status):
            if reply.count and reply.status == wire.PUT_OK:
                topics.note_end(self._group, LogEnd(reply.physical_offset, reply.epoch_nonce))
            if reply.HasField("stored_at"):
                at = reply.stored_at.group, reply.stored_at.queue_id
                topics.places.note_stored(batch.topic, self._way.name, at, reply.queue_offset)
            messages = Sent(self._way.name, self._way.place, batch.first, batch.count)
            return parts_of(request, reply, messages)
        if reply.status in WEAK:
            return self._unconfirmed(reply)
        refused = self._connection.named(_refusal(batch.topic, reply))
        return self._refused(refused, reply, loop.time() - began)

    def _patience_ms(self, left: float) -> int:
        """How long a refusal may wait for a master: not where another group can take the batch."""
        if self._batch.slot is None and not self._maybe_stored and self._sender.router.has_choice:
            return 0
        return int(1000 * min(PATIENCE_SECONDS, left * PATIENCE_SHARE))

    def _refused(self, error: DuologError, reply: wire.AppendReply, took: float) -> _Failure:
        if not isinstance(error, Throttled):
            self._sender.topics.forget(self._batch.topic)  # it may not be what it was
        unknown = reply.status == wire.UNKNOWN_ERROR
        self._maybe_stored = self._maybe_stored or unknown
        if reply.master == self._connection.endpoint:  # it only pauses
            return _Failure(error, took, soon=True, unknown=unknown)
        return _Failure(error, took, reply.master, reply.master_epoch, unknown=unknown)

    def _unconfirmed(self, reply: wire.AppendReply) -> _Failure:
        """The master stored it, and may lose it. A repeat waits for slaves that are there."""
        self._maybe_stored = True
        status = self._batch.unconfirmed.status = status_name(reply.status)
        if reply.status != wire.SLAVE_NOT_AVAILABLE:
            return _Failure(ResultUnknown(status, status), soon=True, unknown=True)
        return _Failure(
            SlaveNotAvailable(
                f"{self._batch.topic}: the master stored the messages, and has too few slaves in "
                f"sync to confirm them ({status}): they may be lost with it",
                status,
            )
        )

    def _told(self, error: DuologError) -> DuologError:
        """The error raised after the last try."""
        if not self._maybe_stored or isinstance(error, SlaveNotAvailable):
            return error
        return self._batch.unconfirmed.error(
            f"{self._batch.topic}: no definite answer within {self._seconds:.3g} s ({error})"
        )

    def _is_gone(self, error: DuologError) -> bool:
        """Whether the queue does not lie any more where it moved to: that group lost it, as one
        restored from a backup does.
        """
        name = self._way.name
        moved = self._way.place != name and self._sender.router.reaches(name[0])
        return moved and not self._maybe_stored and isinstance(error, UnknownTopic | BadRequest)

    async def _go_back(self) -> None:
        """Send to the place where the queue was made, which finds out where it lies."""
        topic, name = self._batch.topic, self._way.name
        self._sender.topics.places.forget(topic, name)
        ways, gone = self._sender.ways, self._way
        self._way = ways.apart(topic, name)  # while it waits for the others
        ways.end(gone, in_doubt=False)
        sequence = self._request.sequence
        self._turn_to(await ways.begin_later(topic, name, self._deadline, sequence))

    async def _go_elsewhere(self) -> None:
        """Move to another replica group with queues of the topic, if there is one."""
        other = await self._sender.elsewhere(self._batch.topic, self._group, self._left)
        if other is not None:
            self._sender.ways.end(self._way, in_doubt=False)
            self._turn_to(other)


def _refusal(topic: str, reply: wire.AppendReply) -> DuologError:
    if reply.status == wire.THROTTLED:
        return Throttled(f"{topic}: {reply.reason}", reply.retry_after_ms)
    if reply.status == wire.QUEUE_OFFSET_MISMATCH:
        return OffsetMismatch(reply.reason, reply.queue_offset)
    kind = REFUSED.get(reply.status, ResultUnknown)
    return kind(f"{topic}: {reply.reason}")
