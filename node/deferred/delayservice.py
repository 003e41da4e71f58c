"""Delayed messages: RocketMQ's 18 levels, and arbitrary times up to three days.

The messages of a level wait in a queue of SCHEDULE_TOPIC_XXXX, in order; delayOffset.json has the
progress of each level. Timed messages wait in rmq_sys_wheel_timer, in any order of their times; a
note of what was delivered is stored on a system topic directly after the delivery. Only the master
delivers. A new master reads both from its log, so nothing is lost and nothing is early. If the log
was truncated between a delivery and its note, the new master finds the delivered message by its
UNIQ_KEY. A jump of the wall clock shortens no level's delay (`store.clocks`); a timed message goes
by that clock.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import structlog
from duolog import _errors as sdk

from duolog_server.node.core.births import is_too_old, origin_in, since
from duolog_server.node.core.core import Core
from duolog_server.node.deferred.outbox import Outbox
from duolog_server.node.deferred.pendingtimers import PendingTimers
from duolog_server.node.deferred.redirect import (
    Waiting,
    read_between,
    redirected,
    restored,
    stored_again,
)
from duolog_server.node.runtime import tokens
from duolog_server.store.clocks import ForwardSteps, MonoMs, WallMs
from duolog_server.store.columns import Columns
from duolog_server.store.delay import SCHEDULE_TOPIC
from duolog_server.store.errors import StoreError
from duolog_server.store.kernels import decode
from duolog_server.store.kernels.jit import I64
from duolog_server.store.messagestore import PutBatch
from duolog_server.store.metadata import SYSTEM_PREFIX
from duolog_server.store.offsets import QueueOffset
from duolog_server.store.reader import GetResult, Wanted
from duolog_server.store.record import Record, decode_properties
from duolog_server.store.status import WEAK, PutMessageStatus

log = structlog.get_logger("duolog.node")

TIMER_TOPIC = "rmq_sys_wheel_timer"
DONE_TOPIC = SYSTEM_PREFIX + "TIMER_DONE"
QUEUE = 0
DELAY_MS_MAX = 3 * 86_400_000  # timerMaxDelaySec
TICK_SECONDS = 0.02
BATCH = 1000  # delivered before the event loop runs other work
BYTES = 4 << 20
READ_AT_ONCE = 50_000  # entries per read of the pending messages after a change of roles
AGAIN_MS = 1000
RECALL_SECONDS = 1.0
NOTE_SECONDS = 5.0
ROLL_EVERY_SECONDS = 60.0
TOGETHER_MS = 5  # two clocks are compared if they were read within this time
READINGS_MAX = 10  # of both, until they are
_NEVER = (
    PutMessageStatus.MESSAGE_ILLEGAL,
    PutMessageStatus.MESSAGE_TOO_LARGE,
    PutMessageStatus.PROPERTIES_SIZE_EXCEEDED,
)
_LEVEL = Waiting(frozenset((b"DELAY", b"__CRC32#")))
# TIMER_DELIVER_MS stays: as in RocketMQ, consumers see the delivery time.
_TIMER = Waiting(frozenset((b"TIMER_OUT_MS", b"__CRC32#")))


@dataclass(frozen=True, slots=True)
class RecallHandle:
    """Names a timed message that can be recalled before its time."""

    replica_group: str
    topic: str
    offset: int  # in the queue of rmq_sys_wheel_timer
    message_id: str

    def to_text(self) -> str:
        """The text given to a client."""
        return tokens.pack(self.replica_group, self.topic, self.offset, self.message_id)

    @staticmethod
    def from_text(text: str) -> "RecallHandle":
        """Read a handle. Raises BadRequest."""
        try:
            replica_group, topic, offset, message_id = tokens.unpack(text, 4)
            return RecallHandle(replica_group, topic, int(offset), message_id)
        except ValueError as error:
            raise sdk.BadRequest(f"recall handle {text[:80]!r} is invalid: {error}") from None


class DelayService:
    """Stores delayed messages, and stores them again in their queues when they are due."""

    def __init__(self, core: Core, levels_ms: I64, outbox: Outbox) -> None:
        """levels_ms: the delay of each level."""
        self._core = core
        self._outbox = outbox
        self.levels_ms = levels_ms
        self._timers: PendingTimers | None = None
        self._opening = asyncio.Lock()
        self._done_records: deque[tuple[int, int]] = deque()  # offset of a note, highest in it
        self._noted: tuple[int, int] = (0, 0)
        # Messages delivered together; one after a failure, so that the stored part of a failed
        # batch is not stored again and again.
        self._stretch = BATCH
        # When this mastership began, ms, and where the log ended then: messages due by then may be
        # delivered without a note.
        self._began: tuple[int, int] | None = None
        # Progress of each level; the tables have it too, once its note is confirmed.
        self._delivered: dict[int, int] = {}
        self._forward_steps = ForwardSteps()
        self._again = MonoMs(0)  # when timed messages are retried after a failure

    # -- in ------------------------------------------------------------------------------------

    def at_level(self, batch: PutBatch, level: int) -> PutBatch:
        """A batch that waits for the delay of a level. Raises BadRequest, BadMessage."""
        levels = len(self.levels_ms)
        self._check(batch)
        if level < 1:
            raise sdk.BadRequest(f"delay level {level} is outside 1..{levels}")
        level = min(level, levels)
        self._store_ms()  # of a jump, only the part since the last look counts for later messages
        return redirected(batch, SCHEDULE_TOPIC, level - 1, {"DELAY": str(level)}, _LEVEL)

    def at_time(self, batch: PutBatch, deliver_ms: int, wall_ms: WallMs) -> PutBatch:
        """A batch that waits until a time; if that has passed, it does not wait, but an earlier
        attempt may have.

        Raises BadRequest, BadMessage.
        """
        if deliver_ms <= wall_ms:
            return replace(batch, waited_in=(TIMER_TOPIC,))
        if deliver_ms - wall_ms > DELAY_MS_MAX:
            raise sdk.BadRequest(
                f"a delay of {deliver_ms - wall_ms} ms exceeds the limit of {DELAY_MS_MAX} ms"
            )
        self._check(batch)
        when = str(deliver_ms)
        words = {"TIMER_DELIVER_MS": when, "TIMER_OUT_MS": when}
        return redirected(batch, TIMER_TOPIC, QUEUE, words, _TIMER)

    def _check(self, batch: PutBatch) -> None:
        """Raise BadMessage where a client sent more than it may."""
        if not batch.accepted:
            batch.columns.check(self._core.options.max_message_size)

    def count(self, topic: str, batch: PutBatch, messages: int) -> None:
        """Count messages of a topic that were stored, if they wait for a time."""
        if batch.topic == TIMER_TOPIC:
            self._core.traffic.timed.add(topic, messages)

    # -- life ----------------------------------------------------------------------------------

    def role_changed(self) -> None:
        """Discard all state that is not in the log."""
        self._forget()

    def status(self) -> dict[str, int]:
        """See Part."""
        waiting = self._timers.count if self._timers is not None else 0
        overdue_ms = self.overdue_ms(self._core.times.wall_ms())
        late = {"timers_overdue_ms": overdue_ms} if overdue_ms else {}
        return {"timers_waiting": waiting, **late}

    def validate(self) -> str:
        """The first violated invariant between two events; empty if all hold.

        Every pending timed message will become due. Notes of deliveries are known in log order, so
        that none is skipped where reading begins.
        """
        if self._timers is None:
            return "notes without timers" if self._done_records else ""
        wrong = self._timers.validate()
        if wrong:
            return f"timers: {wrong}"
        if self._noted[0] > self._timers.low:
            return f"timer {self._timers.low} may wait, noted is {self._noted[0]}"
        for (one, _), (two, _) in pairwise(self._done_records):
            if one > two:
                return f"the note at {two} is known behind the one at {one}"
        return ""

    def _forget(self) -> None:
        self._timers = None
        self._began = None
        self._delivered.clear()
        self._forward_steps = ForwardSteps()
        self._store_ms()
        self._done_records.clear()

    @property
    def known(self) -> bool:
        """Whether the pending messages were read from the log."""
        return self._timers is not None

    @property
    def waiting(self) -> int:
        """The number of pending timed messages, as far as known."""
        return self._timers.count if self._timers is not None else 0

    @property
    def pending(self) -> PendingTimers | None:
        """The pending timed messages, to be read before anything changes; None: not known."""
        return self._timers

    def undelivered(self, level: int) -> tuple[int, int]:
        """The offsets of a level's queue at which messages wait: first, end."""
        low, high = self._core.store.queue_range(SCHEDULE_TOPIC, level - 1)
        noted = self._core.metadata.tables.delay_offsets.get(level, 0)
        return min(high, max(noted, self._delivered.get(level, 0), low)), high

    @property
    def unread(self) -> int:
        """Timed messages in their queue that are not pending yet: only once read are they."""
        if self._timers is None:
            return 0
        low, high = self._core.store.queue_range(TIMER_TOPIC, QUEUE)
        return max(0, high - max(low, self._timers.end))

    def waiting_until(self, times_ms: Sequence[int]) -> list[int]:
        """How many pending timed messages are due at each of these times or before, as far as
        known. A recalled one counts until its time.
        """
        return self._timers.due_by(times_ms) if self._timers is not None else [0] * len(times_ms)

    def overdue_ms(self, wall_ms: WallMs) -> int:
        """For how long the first pending timed message has been due; 0 for none."""
        first = self._timers.first_ms() if self._timers is not None else None
        return max(0, wall_ms - first) if first is not None else 0

    async def run(self) -> None:
        """Deliver, until cancelled."""
        loop = asyncio.get_running_loop()
        self._store_ms()
        noted = rolled = loop.time()
        while True:
            await asyncio.sleep(TICK_SECONDS)
            store_ms = self._store_ms()  # also while nothing can be delivered: see `at_level`
            if not self._core.admission.may_store():
                continue
            store = self._core.store
            if self._began is None:
                self._began = store_ms, store.max_offset
            if store.dispatched_offset < self._began[1]:
                continue  # deliveries of the last master cannot be found yet
            for level in range(1, len(self.levels_ms) + 1):
                while self._deliver_level(level, store_ms):
                    await asyncio.sleep(0)
            timers = await self._opened()
            while timers is self._timers and self._deliver_timers(timers):
                await asyncio.sleep(0)
            if loop.time() - noted >= NOTE_SECONDS:
                noted = loop.time()
                self._note_progress(timers)
                self._note_levels()
            if loop.time() - rolled >= ROLL_EVERY_SECONDS:
                rolled = loop.time()
                await self._roll(timers, self._core.times.wall_ms())

    def _store_ms(self) -> WallMs:
        """The clock of the levels; notes a jump since the last call.

        A pause between two readings looks like a jump, so both clocks are read again. No reading is
        dropped: messages are stored and delivered by it. One that stays in doubt makes them late.
        """
        times = self._core.times
        for _ in range(READINGS_MAX):
            before, store_ms, after = times.mono_ms(), times.store_ms(), times.mono_ms()
            if after - before <= TOGETHER_MS:
                break
        self._forward_steps.look(store_ms, before)
        return store_ms

    def _store(self, batch: PutBatch) -> bool:
        """Store a batch without waiting for replicas: later records follow it in the log."""
        if batch.topic not in self._core.metadata.topics:
            log.warning("delayed message dropped: its topic does not exist", topic=batch.topic)
            return True
        result = self._outbox.stored(batch, self._core.log.write_now)
        if result.status in _NEVER:
            # Later messages must not wait for one that can never be stored.
            log.error("delayed message dropped", reason=result.reason, topic=batch.topic)
            return True
        if result.status is not PutMessageStatus.PUT_OK:
            log.warning(
                "cannot deliver a delayed message yet", reason=result.reason, topic=batch.topic
            )
            self._stretch = 1
            return False
        self._stretch = min(BATCH, 2 * self._stretch)
        self._core.log.count_in(result.count)
        return True

    def _left_out(self, times: I64, result: GetResult) -> Callable[[int, str, bytes], bool] | None:
        """A check which messages are not to be delivered: by the last master they were, or they are
        older than their topic. None if there are none.

        times: when they were due, ms.
        """
        again = self._began is not None and len(times) and int(times.min()) <= self._began[0]
        newest = self._core.metadata.births.newest
        if not result.count or int(result.table[decode.OUT_PHY].min()) >= newest:
            return self._was_delivered if again else None
        if not again:
            return self._is_too_old
        return lambda *row: self._is_too_old(*row) or self._was_delivered(*row)

    def _is_too_old(self, physical_offset: int, topic: str, block: bytes) -> bool:
        if physical_offset >= since(self._core.metadata.births, topic, origin_in(block)):
            return False
        log.warning("delayed message dropped: its topic does not exist", topic=topic)
        return True

    def _was_delivered(self, physical_offset: int, topic: str, block: bytes) -> bool:
        """Whether a copy follows the pending message; earlier copies are of earlier attempts."""
        key = decode_properties(block.decode(errors="replace")).get("UNIQ_KEY", "")
        return bool(key) and self._outbox.was_stored(topic, key, physical_offset)

    # -- levels --------------------------------------------------------------------------------

    def _deliver_level(self, level: int, store_ms: WallMs) -> bool:
        """Deliver the due messages of a level; whether there may be more."""
        store = self._core.store
        low, high = store.queue_range(SCHEDULE_TOPIC, level - 1)
        delivered = self._delivered.get(level, 0)
        if delivered >= high:  # most often, for each level fifty times a second
            return False
        noted = self._core.metadata.tables.delay_offsets.get(level, 0)
        offset = max(noted, delivered, low)
        if offset >= high:
            return False
        delay_ms = int(self.levels_ms[level - 1])
        entries = store.entries(SCHEDULE_TOPIC, level - 1, offset, self._stretch)
        times = self._forward_steps.corrected(entries[2], delay_ms)
        # An entry from before a change of the levels does not wait longer than the new delay.
        times = np.where(times > store_ms + delay_ms, store_ms, times)
        late = np.nonzero(times > store_ms)[0]
        due = int(late[0]) if len(late) else len(times)
        if due == 0:
            return False
        result, reached = read_between(store, (SCHEDULE_TOPIC, level - 1), offset, offset + due)
        left_out = self._left_out(times[:due], result)
        for batch in restored(result, _LEVEL, store.born_host, without=left_out):
            if not self._store(batch):
                return False
        following = max(reached, offset + 1)
        self._delivered[level] = following
        self._core.metadata.note({"op": "delays", "offsets": {str(level): following}})
        return True

    def _note_levels(self) -> None:
        """Record the progress of levels again if its note was not stored."""
        noted = self._core.metadata.tables.delay_offsets
        late = {
            str(level): reached
            for level, reached in self._delivered.items()
            if reached > noted.get(level, 0)
        }
        if late:
            self._core.metadata.note({"op": "delays", "offsets": late})

    # -- timers --------------------------------------------------------------------------------

    async def _opened(self) -> PendingTimers:
        """The pending messages, read from the log if necessary."""
        async with self._opening:
            timers = self._timers or await self._open()
            await self._read_entries(timers)
            return timers

    async def _open(self) -> PendingTimers:
        """Read the pending messages and the notes of deliveries: all of them, or none."""
        tables = self._core.metadata.tables
        low, done_from = self._noted = tables.timers
        timers = self._timers = PendingTimers(low)
        try:
            await self._read_entries(timers)
            await self._read_done(timers, done_from)
        except BaseException:
            if self._timers is timers:
                self._forget()
            raise
        if timers.count:
            log.info("timed messages pending", count=timers.count)
        return timers

    async def _read_entries(self, timers: PendingTimers) -> None:
        store = self._core.store
        while timers is self._timers:
            low, high = store.queue_range(TIMER_TOPIC, QUEUE)
            if timers.end >= high:
                return
            first = max(timers.end, low)
            if first > timers.end:
                timers.add(np.zeros(0, np.int64), first)  # retention deleted the earlier ones
            times = store.entries(TIMER_TOPIC, QUEUE, first, READ_AT_ONCE)[2]
            if not len(times):
                return
            timers.add(np.ascontiguousarray(times), first)
            await asyncio.sleep(0)

    async def _read_done(self, timers: PendingTimers, done_from: int) -> None:
        store = self._core.store
        offset = max(done_from, store.queue_range(DONE_TOPIC, QUEUE)[0])
        while timers is self._timers:
            result = store.get(DONE_TOPIC, QUEUE, QueueOffset(offset), Wanted(1000, BYTES))
            if not result.count:
                return
            for numbers, body, _ in result.rows():
                offsets = np.frombuffer(body, "<i8").astype(np.int64)
                if len(offsets):
                    timers.done(offsets)
                    number = numbers[decode.OUT_QUEUE_OFFSET]
                    self._done_records.append((number, int(offsets.max())))
            offset = result.next_offset
            await asyncio.sleep(0)

    def _deliver_timers(self, timers: PendingTimers) -> bool:
        """Deliver the due timed messages; whether there may be more."""
        if self._core.times.mono_ms() < self._again:
            return False
        wall_ms = self._core.times.wall_ms()
        due = timers.due(wall_ms, BATCH)
        if not len(due):
            return False
        delivered: list[I64] = []
        failed: list[I64] = []
        for offsets in _runs(due, self._stretch):
            done = self._deliver_run(offsets)
            (delivered if done else failed).append(offsets)
        if delivered:
            self._note_done(timers, np.concatenate(delivered))
        if failed:
            for offsets in failed:
                timers.put_back(offsets, self._times(offsets, wall_ms))
            self._again = MonoMs(self._core.times.mono_ms() + AGAIN_MS)  # others would fail too
            return False
        return True

    def _times(self, offsets: I64, wall_ms: WallMs) -> I64:
        """Due times of messages at consecutive offsets; now if unknown."""
        times = self._core.store.entries(TIMER_TOPIC, QUEUE, int(offsets[0]), len(offsets))[2]
        if len(times) != len(offsets):
            return np.full(len(offsets), wall_ms, np.int64)
        found: I64 = np.minimum(times, wall_ms)
        return found

    def _deliver_run(self, offsets: I64) -> bool:
        """Deliver messages at consecutive offsets."""
        store = self._core.store
        first, end = int(offsets[0]), int(offsets[-1]) + 1
        times = store.entries(TIMER_TOPIC, QUEUE, first, end - first)[2]
        while first < end:
            result, reached = read_between(store, (TIMER_TOPIC, QUEUE), first, end)
            left_out = self._left_out(times, result)
            for batch in restored(result, _TIMER, store.born_host, without=left_out):
                if not self._store(batch):
                    return False
                self._core.traffic.timed_out.add(batch.topic, batch.columns.count)
            if reached <= first:
                return True  # damaged or deleted
            first = reached
        return True

    def _note_done(self, timers: PendingTimers, offsets: I64) -> None:
        """Store a note of what was delivered, directly after it in the log."""
        columns = Columns.of([offsets.astype("<i8").tobytes()])
        born_ms = self._core.times.store_ms()
        result = self._core.log.write_now(
            PutBatch(DONE_TOPIC, QUEUE, columns, born_ms, accepted=True)
        )
        if result.status is PutMessageStatus.PUT_OK:
            self._done_records.append((result.queue_offset, int(offsets.max())))
        timers.done(offsets)

    def _note_progress(self, timers: PendingTimers) -> None:
        """Record where reading must begin after the next change of roles."""
        while self._done_records and self._done_records[0][1] < timers.low:
            self._done_records.popleft()
        high = self._core.store.queue_range(DONE_TOPIC, QUEUE)[1]
        done_from = self._done_records[0][0] if self._done_records else high
        if (timers.low, done_from) != self._noted:
            self._noted = (timers.low, done_from)
            self._core.metadata.note({"op": "timers", "low": timers.low, "done": done_from})

    async def _roll(self, timers: PendingTimers, wall_ms: WallMs) -> None:
        """Store messages that wait for long again, before retention deletes them."""
        store = self._core.store
        half = self._core.options.file_reserved_time * 3_600_000 // 2
        while timers.count and timers is self._timers:
            await asyncio.sleep(0)
            low = timers.low
            stored = self._core.positions.store_time(TIMER_TOPIC, QUEUE, low)
            if stored < 0 or wall_ms - stored < half:
                return
            try:
                record = store.record_at(TIMER_TOPIC, QUEUE, QueueOffset(low))
                if record is not None and not self._is_record_too_old(record):
                    batch = stored_again(record, TIMER_TOPIC, record.properties)
                    if self._core.log.write(batch).status is not PutMessageStatus.PUT_OK:
                        return
            except StoreError as error:
                log.error("delayed message is damaged", reason=str(error))
            self._note_done(timers, np.array([low], np.int64))

    def _is_record_too_old(self, record: Record) -> bool:
        topic = record.properties.get("REAL_TOPIC", "")
        return is_too_old(self._core.metadata.births, record, topic)

    # -- recall --------------------------------------------------------------------------------

    async def recall(self, topic: str, handle: RecallHandle) -> None:
        """Recall a message.

        Raises NotMaster, NoSuchMessage if it is no longer pending, Busy if it cannot be read yet,
        Unavailable if the recall was not stored, ResultUnknown if it was and may be lost with this
        node.
        """
        admission = self._core.admission
        admission.check_current()
        if not admission.may_store():
            raise sdk.Unavailable("this node does not accept puts now")
        timers = await self._opened()
        gone = sdk.NoSuchMessage(f"message {handle.message_id} was already delivered or recalled")
        stored = self._core.store.next_offset(TIMER_TOPIC, QUEUE)
        until = asyncio.get_running_loop().time() + RECALL_SECONDS
        while timers.end <= handle.offset < stored:  # stored, but not dispatched yet
            if asyncio.get_running_loop().time() > until:
                raise sdk.Busy("the message cannot be read yet: try again")
            self._core.log.pump_soon()
            await asyncio.sleep(TICK_SECONDS)
            timers = await self._opened()
        if not timers.waits(handle.offset):
            raise gone
        record = self._core.store.record_at(TIMER_TOPIC, QUEUE, QueueOffset(handle.offset))
        properties = record.properties if record is not None else {}
        named = (properties.get("REAL_TOPIC"), properties.get("UNIQ_KEY"))
        if named != (topic, handle.message_id):
            raise gone
        offsets = np.array([handle.offset], np.int64)
        columns = Columns.of([offsets.astype("<i8").tobytes()])
        batch = PutBatch(DONE_TOPIC, QUEUE, columns, self._core.times.wall_ms(), accepted=True)
        noted, waiting = self._core.log.put(batch)
        if noted.status is not PutMessageStatus.PUT_OK:  # the message will be delivered
            raise sdk.Unavailable(
                f"message {handle.message_id} is not recalled: {noted.status.value} {noted.reason}"
            )
        # The note is known before it is confirmed, so that progress recorded meanwhile does not
        # make the next reading begin after it.
        timers.done(offsets)
        self._done_records.append((noted.queue_offset, handle.offset))
        status = await waiting if waiting is not None else noted.status
        if status is not PutMessageStatus.PUT_OK:
            weak = status.value if status in WEAK else ""
            raise sdk.ResultUnknown(f"{status.value} {noted.reason}".rstrip(), weak)


def _runs(offsets: I64, longest: int) -> list[I64]:
    """Sorted offsets as runs of consecutive ones."""
    breaks = np.nonzero(np.diff(offsets) != 1)[0] + 1
    runs = np.split(offsets, breaks)
    return [run[at : at + longest] for run in runs for at in range(0, len(run), longest)]
