"""The outbox: what this node itself stores for queues that take no messages here, as they move.

Due messages, committed half messages and the published parts of sinks are stored synchronously in
DUOLOG_SYS_MOVED, directly before the note that they are delivered, and passed on from there in the
order of each queue: to the place where the queue continues, or to the queue itself if it did not
move after all. A message leaves once that place has it; how far the outbox is empty is noted as the
offset of a consumer group. What was passed on without a note is passed on again by the next master:
the place that has a message with its UNIQ_KEY does not store it twice.
"""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Protocol

import structlog
from duolog._background import together

from duolog_server.node.core.births import is_too_old, origin_in, since
from duolog_server.node.core.core import Core
from duolog_server.node.deferred.outboxruns import OutboxRuns
from duolog_server.node.deferred.redirect import (
    Waiting,
    read_between,
    redirected,
    restored,
    stored_again,
)
from duolog_server.store.clocks import MonoMs
from duolog_server.store.errors import BadMessage, StoreError
from duolog_server.store.kernels import decode
from duolog_server.store.messagestore import PutBatch, PutResult
from duolog_server.store.metadata import SYSTEM_PREFIX
from duolog_server.store.moves import Place
from duolog_server.store.offsets import QueueOffset
from duolog_server.store.queueends import QueueKey
from duolog_server.store.reader import Wanted
from duolog_server.store.record import Record, decode_properties
from duolog_server.store.status import PutMessageStatus

log = structlog.get_logger("duolog.node")

TOPIC = SYSTEM_PREFIX + "MOVED"
GROUP = "CID_RMQ_SYS_MOVED"  # its offset is the progress
QUEUE = 0
ORIGIN = "MOVED_ORIGIN"  # the first offset of a message that was stored in the outbox again
TICK_SECONDS = 0.05
READ = 1000
BYTES = 4 << 20
AT_ONCE = 32  # queues whose messages are passed on side by side
AGAIN_MS = 1000
NOTE_SECONDS = 1.0
ROLL_EVERY_SECONDS = 60.0
_NEVER = (
    PutMessageStatus.MESSAGE_ILLEGAL,
    PutMessageStatus.MESSAGE_TOO_LARGE,
    PutMessageStatus.PROPERTIES_SIZE_EXCEEDED,
)
_MOVED = Waiting(frozenset((ORIGIN.encode(), b"__CRC32#")), passed=True)

Write = Callable[[PutBatch], PutResult]


class Passing(Protocol):
    """Passes on to other places."""

    def is_held(self, topic: str, queue_id: int) -> bool:
        """Whether puts to a queue wait until it is known where it continues."""

    async def deliver(self, batch: PutBatch, to: Place) -> PutResult:
        """Store a batch at a place, unless it is there already, and wait until it is durable.

        UNKNOWN_ERROR where that is not known in time.
        """


class Outbox:
    """What this node stores for queues that move, while it is the master."""

    def __init__(self, core: Core, passing: Passing) -> None:
        self._core = core
        self._passing = passing
        self._waiting: OutboxRuns | None = None
        # The last offset in the outbox of what was stored for a queue, until it is read.
        self._unread: dict[QueueKey, int] = {}
        self._delivering: dict[QueueKey, asyncio.Task[None]] = {}
        self._again: dict[QueueKey, MonoMs] = {}  # when a queue is tried again after a failure
        # Nothing is delivered before the outbox is read up to here: a copy there may replace one.
        self._copied_end = 0
        # Nothing is delivered before the log is dispatched up to here: copies of it may lie there.
        self._known_end = 0
        self._noted = -1

    # -- in ------------------------------------------------------------------------------------

    def stored(self, batch: PutBatch, write: Write) -> PutResult:
        """Store a batch of the node's own: in its queue, or here if that takes none.

        write: of the log. Raises as it does.
        """
        key = batch.topic, batch.queue_id
        if not self._takes(key):
            result = write(batch)
            if result.status is not PutMessageStatus.QUEUE_MOVED:
                return result
        try:
            moved = redirected(batch, TOPIC, QUEUE, {}, _MOVED)
        except BadMessage as error:  # where it waited before it had as much room
            return PutResult(error.status, error.reason)
        moved.waited_in = batch.topic, *batch.waited_in
        result = write(moved)
        if result.count:
            self._unread[key] = result.queue_offset + result.count - 1
        return result

    def _takes(self, key: QueueKey) -> bool:
        """Whether a message for a queue is stored here at once: puts to it are held, or others
        wait, which come first.
        """
        if self._passing.is_held(*key):
            return True
        end = self._core.store.next_offset(TOPIC, QUEUE)
        if not end:  # as on most nodes
            return False
        waiting = self._waiting
        if waiting is None:
            return self._noted_low() < end
        return key in waiting or key in self._unread

    def was_stored(self, topic: str, unique_key: str, after: int = -1) -> bool:
        """Whether a message lies behind a log offset: in its topic, or here, from where it may be
        delivered by now.
        """
        if self._copies(topic, unique_key, after):
            return True
        here = self._copies(TOPIC, unique_key, after)
        return any(copy.properties.get("REAL_TOPIC") == topic for copy in here)

    def _copies(self, topic: str, unique_key: str, after: int) -> list[Record]:
        found = self._core.store.lookups.all_by_unique_key(topic, unique_key)
        return [copy for copy in found if copy.physical_offset > after]

    # -- life ----------------------------------------------------------------------------------

    def role_changed(self) -> None:
        """Discard all state that is not in the log."""
        self._waiting = None
        self._unread.clear()
        self._again.clear()
        for delivering in self._delivering.values():
            delivering.cancel()
        self._delivering.clear()

    def status(self) -> dict[str, int]:
        """See Part."""
        return {"outbox_waiting": self._waiting.count if self._waiting is not None else 0}

    def validate(self) -> str:
        """The first violated invariant between two events; empty if all hold."""
        if self._waiting is None:
            return "deliveries from an outbox that was not read" if self._delivering else ""
        return self._waiting.validate()

    async def run(self) -> None:
        """Deliver, until cancelled."""
        loop = asyncio.get_running_loop()
        noted = rolled = loop.time()
        async with together() as tasks:
            while True:
                await asyncio.sleep(TICK_SECONDS)
                store = self._core.store
                if not self._core.admission.may_store() or not store.next_offset(TOPIC, QUEUE):
                    continue
                waiting = await self._read()
                self._deliver_all(waiting, tasks)
                if loop.time() - noted >= NOTE_SECONDS:
                    noted = loop.time()
                    self._note(waiting)
                if loop.time() - rolled >= ROLL_EVERY_SECONDS:
                    rolled = loop.time()
                    self._roll(waiting)

    async def _read(self) -> OutboxRuns:
        """What waits, as far as dispatched."""
        store, waiting = self._core.store, self._waiting
        if waiting is None:
            waiting = self._waiting = OutboxRuns(self._noted_low())
            self._noted = waiting.end
            self._known_end = store.max_offset
            self._copied_end = store.next_offset(TOPIC, QUEUE)
        while waiting is self._waiting:
            low, high = store.queue_range(TOPIC, QUEUE)
            waiting.reach(low)
            if waiting.end >= high:
                break
            result = store.get(TOPIC, QUEUE, QueueOffset(waiting.end), Wanted(READ, BYTES))
            for numbers, _, text in result.rows():
                self._take(waiting, numbers[decode.OUT_QUEUE_OFFSET], text)
            waiting.reach(result.next_offset)
            await asyncio.sleep(0)
        self._unread = {key: last for key, last in self._unread.items() if last >= waiting.end}
        return waiting

    @staticmethod
    def _take(waiting: OutboxRuns, offset: int, text: bytes) -> None:
        properties = decode_properties(text.decode(errors="replace"))
        topic, queue_id = properties.get("REAL_TOPIC", ""), properties.get("REAL_QID", "")
        if topic and queue_id.isdecimal():
            origin = properties.get(ORIGIN, "")
            number = int(origin) if origin.isdecimal() else offset
            waiting.read((topic, int(queue_id)), number, offset)

    def _noted_low(self) -> int:
        return max(0, self._core.metadata.tables.committed(GROUP, TOPIC, QUEUE))

    def _note(self, waiting: OutboxRuns) -> None:
        """Record from where on the outbox must be read."""
        low = waiting.low
        if waiting is self._waiting and low != self._noted:
            self._noted = low
            offsets = {TOPIC: {str(QUEUE): low}}
            self._core.metadata.note({"op": "offsets", "group": GROUP, "offsets": offsets})

    # -- out -----------------------------------------------------------------------------------

    def _deliver_all(self, waiting: OutboxRuns, tasks: asyncio.TaskGroup) -> None:
        """Begin to deliver what waits for queues of which it is known where they continue."""
        store, now = self._core.store, self._core.times.mono_ms()
        if waiting is not self._waiting or waiting.end < self._copied_end:
            return
        if store.dispatched_offset < self._known_end:
            return
        for key in waiting:
            if len(self._delivering) >= AT_ONCE:
                return
            late = self._again.get(key, now) > now
            if late or key in self._delivering or self._passing.is_held(*key):
                continue
            delivering = tasks.create_task(self._deliver_queue(waiting, key))
            self._delivering[key] = delivering
            delivering.add_done_callback(partial(self._delivered, key))

    def _delivered(self, key: QueueKey, task: asyncio.Task[None]) -> None:
        if self._delivering.get(key) is task:
            del self._delivering[key]

    async def _deliver_queue(self, waiting: OutboxRuns, key: QueueKey) -> None:
        """Deliver what waits for a queue, in order, as long as it can be delivered."""
        store, metadata = self._core.store, self._core.metadata
        self._again.pop(key, None)
        while waiting is self._waiting and key in waiting:
            run = waiting.head(key, READ)
            seal = metadata.tables.moves.seal_of(*key)
            following = seal.following if seal is not None else None
            end = run.offset + run.count
            result, reached = read_between(store, (TOPIC, QUEUE), run.offset, end)
            for batch in restored(result, _MOVED, store.born_host, without=self._left_out):
                if not await self._deliver(batch, following):
                    self._failed(waiting, key)
                    return
            if waiting is self._waiting:
                waiting.done(key, max(reached - run.offset, 1))
            await asyncio.sleep(0)

    def _failed(self, waiting: OutboxRuns, key: QueueKey) -> None:
        """Try again later; by then it is known which copies are stored."""
        if waiting is self._waiting:
            self._again[key] = MonoMs(self._core.times.mono_ms() + AGAIN_MS)
            self._known_end = self._core.store.max_offset

    def _left_out(self, physical_offset: int, topic: str, block: bytes) -> bool:
        """Whether a message is older than its topic, or stored here already: before its queue was
        sealed, or where that has come back to.
        """
        if physical_offset < since(self._core.metadata.births, topic, origin_in(block)):
            self._dropped(topic)
            return True
        key = decode_properties(block.decode(errors="replace")).get("UNIQ_KEY", "")
        return bool(key) and bool(self._copies(topic, key, physical_offset))

    @staticmethod
    def _dropped(topic: str) -> None:
        log.warning("message for a moved queue dropped: its topic does not exist", topic=topic)

    async def _deliver(self, batch: PutBatch, following: Place | None) -> bool:
        """Deliver a batch to the place that follows, or here; whether no other attempt is needed.

        In its topic or not, a batch is not delivered by two masters at once: see `Passing`.
        """
        topic = batch.topic
        if topic not in self._core.metadata.topics:
            self._dropped(topic)
            return True
        try:
            if following is None:
                result = self._core.log.write_now(batch)
            else:
                result = await self._passing.deliver(batch, following)
        except StoreError as error:
            result = PutResult(PutMessageStatus.SERVICE_NOT_AVAILABLE, str(error))
        if result.status in _NEVER:
            # Later messages must not wait for one that can never be stored.
            log.error("message for a moved queue dropped", reason=result.reason, topic=topic)
            return True
        if result.status is not PutMessageStatus.PUT_OK:
            log.warning(
                "cannot pass on a message for a moved queue yet",
                reason=f"{result.status.value} {result.reason}".rstrip(),
                topic=topic,
                queue_id=batch.queue_id,
            )
            return False
        return True

    # -- retention -----------------------------------------------------------------------------

    def _roll(self, waiting: OutboxRuns) -> None:
        """Store messages that wait for long again, before retention deletes them.

        Later messages of their queues are delivered behind them all the same.
        """
        core, first = self._core, waiting.first()
        if first is None or waiting is not self._waiting or waiting.end < self._copied_end:
            return
        key, run = first[0], replace(first[1])  # what is forgotten changes it
        half = core.options.file_reserved_time * 3_600_000 // 2
        latest = core.times.wall_ms() - half
        for k in range(min(run.count, READ) if key not in self._delivering else 0):
            offset, origin = QueueOffset(run.offset + k), run.origin + k
            if core.positions.store_time(TOPIC, QUEUE, offset) > latest:
                return
            record = self._record(offset)
            if record is None or is_too_old(core.metadata.births, record, key[0]):
                waiting.forget(key, origin)
                continue
            properties = {**record.properties, ORIGIN: str(origin)}
            if not core.log.write_now(stored_again(record, TOPIC, properties)).count:
                return
            self._copied_end = core.store.next_offset(TOPIC, QUEUE)

    def _record(self, offset: QueueOffset) -> Record | None:
        try:
            return self._core.store.record_at(TOPIC, QUEUE, offset)
        except StoreError as error:
            log.error("message for a moved queue is damaged", reason=str(error))
            return None
