"""Arrivals: what another group passes on is stored here, at the place that follows its own.

Rules: a batch is stored once. Of one that comes again, the table of its producer is asked, and
where that cannot tell, its unique keys are looked for in the index, which must have all that can be
meant. Once a batch of a queue is not stored, none behind it is, until the sender begins with it
again. A later stream of a group ends the one before, and a later master's those of earlier ones.
What was accepted there is not held to the limits of clients here.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple, Protocol

import numpy as np
from duolog import _errors as sdk
from duolog._background import together

from duolog_server.node.core.core import Core
from duolog_server.node.core.traffic import NORMAL
from duolog_server.node.engine.log import Outcome
from duolog_server.node.moving.deliveries import (
    NOT_STORED,
    UNKNOWN,
    NoPlace,
    PassedOn,
    answer_of,
    batch_of,
    unique_key,
    without_first,
    without_producer,
)
from duolog_server.node.moving.passing import PUTS_MAX, Passing
from duolog_server.node.wire import moves_pb2 as wire
from duolog_server.store.errors import BadMessage, RepeatUnknown
from duolog_server.store.idempotence import Run
from duolog_server.store.kernels.encode import FIELD_BORN_TIME
from duolog_server.store.messagestore import PutBatch, PutResult
from duolog_server.store.moves import Guest
from duolog_server.store.offsets import PhyOffset
from duolog_server.store.queueends import QueueKey
from duolog_server.store.record import Host, Record
from duolog_server.store.status import PutMessageStatus

INDEX_SECONDS = 1.0  # longest time that a repeat waits for the index
PAUSE_SECONDS = 0.002
UNAVAILABLE = PutMessageStatus.SERVICE_NOT_AVAILABLE

Answer = tuple[int, PutResult, Outcome | None]
Ready = asyncio.Queue[Answer | None]


@dataclass(slots=True, eq=False)
class _Stream:
    """A group's stream. end: of the log when it began: what earlier streams stored lies below.

    blocked: queues of which a batch was not stored.
    """

    source: str
    epoch: int
    end: PhyOffset
    is_over: bool = False
    blocked: set[QueueKey] = field(default_factory=set)

    def check(self) -> None:
        """Raise Unavailable if another one has taken its place."""
        if self.is_over:
            raise sdk.Unavailable("a later stream of the group has begun")


class _Found(NamedTuple):
    """Messages of a batch that are stored: so many, and the first and the last of them."""

    messages: int
    first: Record
    last: Record


class Answers(Protocol):
    """Where answers are written."""

    async def write(self, message: wire.Delivered, /) -> None:
        """Send one; wait while the sender takes none."""


async def _end(over: asyncio.Event) -> None:
    await over.wait()
    raise sdk.Unavailable("this node takes no more of it")


def _is_later(guest: Guest, delivery: wire.Delivery) -> bool:
    """Whether a guest is the later place that its sender means."""
    past = delivery.past
    is_same = delivery.HasField("past") and guest.name == (past.name.group, past.name.queue_id)
    return is_same and guest.first is not None and guest.first >= past.first


def _ready(ready: Ready, answer: Answer, _: Outcome) -> None:
    ready.put_nowait(answer)


class Arrivals:
    """Stores what other groups pass on."""

    def __init__(
        self,
        core: Core,
        passing: Passing,
        store_host: Host,
        remoting_host: Callable[[], Host | None],
    ) -> None:
        """store_host, remoting_host: the addresses that message ids carry."""
        self._core = core
        self._passing = passing
        self._store_host = store_host
        self._remoting_host = remoting_host
        self._streams: dict[str, _Stream] = {}  # the last one of each group
        self._over = asyncio.Event()

    def end(self) -> None:
        """End all streams: this node leads no more, or stops, and would wait for them."""
        self._over.set()
        self._over = asyncio.Event()

    async def serve(self, deliveries: AsyncIterator[wire.Delivery], answers: Answers) -> None:
        """Store a stream of batches in their order, and answer each as soon as its outcome is
        known: it may have to come back through this stream. Raises NotMaster, Unavailable.
        """
        ready: Ready = asyncio.Queue()
        room = asyncio.Semaphore(PUTS_MAX)
        stream: _Stream | None = None
        async with together() as tasks:
            ending = tasks.create_task(_end(self._over))
            tasks.create_task(self._answer(ready, room, answers))
            async for delivery in deliveries:
                await room.acquire()
                stream = stream or self._begun(delivery)
                result, waiting = await self._take(stream, delivery)
                answer = delivery.id, result, waiting
                if waiting is None:
                    ready.put_nowait(answer)
                else:
                    waiting.add_done_callback(partial(_ready, ready, answer))
            for _ in range(PUTS_MAX):
                await room.acquire()  # all are answered
            ready.put_nowait(None)
            ending.cancel()

    def _begun(self, first: wire.Delivery) -> _Stream:
        older = self._streams.get(first.source)
        if older is not None:
            if older.epoch > first.epoch:
                raise sdk.Unavailable(f"a later master of group {first.source} passes on")
            older.is_over = True
        stream = _Stream(first.source, first.epoch, self._core.store.max_offset)
        self._streams[first.source] = stream
        return stream

    async def _answer(self, ready: Ready, room: asyncio.Semaphore, answers: Answers) -> None:
        while (item := await ready.get()) is not None:
            number, result, waiting = item
            if waiting is not None:
                status = await waiting
                if status is UNKNOWN and not isinstance(result, PassedOn):
                    # The next master knows whether it has it, and is asked.
                    raise sdk.Unavailable("it is not known whether this node's put will be kept")
                result = replace(result, status=status)
            hosts = self._store_host, self._remoting_host()
            await answers.write(answer_of(number, result, *hosts))
            room.release()

    async def _take(
        self, stream: _Stream, delivery: wire.Delivery
    ) -> tuple[PutResult, Outcome | None]:
        self._core.admission.check_master()
        key = delivery.topic, delivery.queue_id
        if delivery.resume:
            stream.blocked.discard(key)
        if key in stream.blocked:
            return PutResult(UNAVAILABLE, "one before it in its queue was not stored"), None
        try:
            result, waiting = await self._put(stream, delivery)
        except BadMessage as error:
            result, waiting = PutResult(error.status, error.reason), None
        if result.status in NOT_STORED:
            stream.blocked.add(key)
        return result, waiting

    async def _put(
        self, stream: _Stream, delivery: wire.Delivery
    ) -> tuple[PutResult, Outcome | None]:
        refused = self._refused(stream, delivery)
        if refused is not None:
            return refused, None
        batch, doubtful = batch_of(delivery), delivery.again or delivery.repeat
        unknown = self._core.admission.unknown_repeat(0) if doubtful else None
        if unknown is not None:
            return unknown, None
        if not doubtful:
            return self._store_new(stream, batch, delivery)
        if batch.producer:
            try:
                return self._store(stream, batch, delivery)
            except RepeatUnknown:
                pass  # its table has forgotten what this may be a repeat of
        unknown = await self._not_indexed(stream, delivery)
        if unknown is not None:
            return unknown, None
        found = self._found(batch, born=not delivery.repeat)
        if found is not None:
            return self._rest(stream, delivery, batch, found)
        return self._store_new(stream, batch, delivery)

    def _refused(self, stream: _Stream, delivery: wire.Delivery) -> PutResult | None:
        """Why nothing is stored at that place now.

        A queue id may have been given to another move, if this group or the topic began anew.
        """
        core = self._core
        where = f"{delivery.topic[:200]}/{delivery.queue_id}"
        refused = core.admission.refused_put()
        if refused is not None:
            return refused
        guest = core.metadata.tables.moves.guest_of(delivery.topic, delivery.queue_id)
        if guest is None or guest.first is None:
            return NoPlace(UNAVAILABLE, f"queue {where} continues none that moved here")
        comes_from = stream.source, delivery.from_queue
        if guest.came_from != comes_from and not _is_later(guest, delivery):
            asked = f"{stream.source[:200]}/{delivery.from_queue}"
            reason = f"queue {where} continues {guest.came_from}, not {asked}"
            return NoPlace(UNAVAILABLE, reason)
        return None

    def _store_new(
        self, stream: _Stream, batch: PutBatch, delivery: wire.Delivery
    ) -> tuple[PutResult, Outcome | None]:
        """`_store` for what surely is not stored, also where it is too old for the table of its
        producer: it waited for its move, and others of its producer went elsewhere.
        """
        try:
            return self._store(stream, replace(batch, repeat_of=None), delivery)
        except RepeatUnknown:
            return self._store(stream, without_producer(batch), delivery)

    def _store(
        self, stream: _Stream, batch: PutBatch, delivery: wire.Delivery
    ) -> tuple[PutResult, Outcome | None]:
        """Store it here, or where this place continues."""
        stream.check()
        core, passing, no_wait = self._core, self._passing, delivery.no_wait
        key = batch.topic, batch.queue_id
        if key not in passing.queues:
            result = core.log.write(batch)
            if result.moved_to is None:
                if result.status is not PutMessageStatus.PUT_OK:
                    return result, None
                self._count(batch, result)
                waiting = core.log.settle(result.end_offset, no_wait)
                core.log.pump_soon()
                return result, waiting
        return passing.pass_on(batch, delivery.again or delivery.repeat, no_wait)

    def _count(self, batch: PutBatch, result: PutResult) -> None:
        if result.count:
            self._core.log.count_in(result.count, len(batch.columns.bodies))
            self._core.traffic.receive(batch.topic, NORMAL, result.count, batch.columns)

    # -- repeats that only the index knows ---------------------------------------------------------

    async def _not_indexed(self, stream: _Stream, delivery: wire.Delivery) -> PutResult | None:
        """Wait until the index has all that may be meant; why it has not, if that takes long."""
        store, loop = self._core.store, asyncio.get_running_loop()
        end = store.max_offset if delivery.repeat else stream.end
        until = loop.time() + INDEX_SECONDS
        while (unknown := self._core.admission.unknown_repeat(end)) is not None:
            if loop.time() >= until:
                break
            self._core.log.pump_soon()
            await asyncio.sleep(PAUSE_SECONDS)
        return unknown

    def _found(self, batch: PutBatch, born: bool) -> _Found | None:
        """The first messages of a batch that are stored.

        born: only with the same born time. RocketMQ's programs send one message again, on purpose,
        under its unique key; a request that is repeated has its born time as well.
        """
        first = last = self._record(batch, 0, born)
        if first is None or last is None:
            return None
        low, high = 0, batch.columns.count  # message `low` is stored, and `high` is not
        middle = high - 1  # as a rule, all are
        while high - low > 1:
            record = self._record(batch, middle, born)
            if record is None:
                high = middle
            else:
                low, last = middle, record
            middle = (low + high) // 2
        return _Found(high, first, last)

    def _record(self, batch: PutBatch, k: int, born: bool) -> Record | None:
        key = unique_key(batch, k)
        if not key:
            return None
        at = batch.born_time if batch.fields is None else int(batch.fields[FIELD_BORN_TIME, k])
        records = self._core.store.lookups.all_by_unique_key(batch.topic, key)
        return next((one for one in records if not born or one.born_time == at), None)

    def _rest(
        self, stream: _Stream, delivery: wire.Delivery, batch: PutBatch, found: _Found
    ) -> tuple[PutResult, Outcome | None]:
        """The result of a batch of which the first messages are stored: the others are now."""
        count, first, last = found
        offset, core = first.queue_offset, self._core
        result = PutResult(
            PutMessageStatus.PUT_OK,
            end_offset=PhyOffset(last.physical_offset + last.size),
            store_time=first.store_time,
        )
        waiting = core.log.settle(result.end_offset, delivery.no_wait)
        if count < batch.columns.count:  # a crash kept the first ones of a batch
            result, waiting = self._store_new(stream, without_first(batch, count), delivery)
        if batch.producer:
            end = batch.sequence + count
            known = Run(batch.sequence, end, batch.topic, batch.queue_id, offset)
            result.duplicates = (known, *result.duplicates)
        else:
            places = core.store.entries(batch.topic, first.queue_id, offset, count)[0]
            result.queue_offset, result.physical_offset = offset, first.physical_offset
            result.places = np.concatenate((places, result.places))
        return result, waiting
