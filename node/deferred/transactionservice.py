"""Transactions: half messages that are invisible until their producer commits them.

A half message is kept in RMQ_SYS_TRANS_HALF_TOPIC. A commit stores it in its real queue. Every
decision is noted in RMQ_SYS_TRANS_OP_HALF_TOPIC, directly after it in the log. Without a decision,
producers of its group are asked; for each check that one of them took it is stored again with a
higher check count, and after the last check in TRANS_CHECK_MAX_TIME_TOPIC, or when nobody could be
asked for half of the time that its segment is kept. A new master rebuilds all state from the log.
Topics, properties and limits: RocketMQ's TransactionalMessageService.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

import numpy as np
import structlog
from duolog import _errors as sdk
from duolog._background import together

from duolog_server.node.core.core import Core
from duolog_server.node.deferred.halfmessages import Decision, Decisions, Half, HalfMessages, Turns
from duolog_server.node.deferred.outbox import Outbox
from duolog_server.node.deferred.redirect import Waiting, redirected, restored, stored_again
from duolog_server.node.runtime.config import TransactionsSection
from duolog_server.store.clocks import MonoMs
from duolog_server.store.columns import Columns
from duolog_server.store.errors import StoreError
from duolog_server.store.kernels import decode, encode
from duolog_server.store.messagestore import PutBatch, PutResult
from duolog_server.store.offsets import PhyOffset, QueueOffset
from duolog_server.store.reader import GetResult, Wanted
from duolog_server.store.record import PROPERTIES_BYTES_MAX, Record, decode_properties, room_for
from duolog_server.store.status import PutMessageStatus

log = structlog.get_logger("duolog.node")

HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
DISCARD_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"
GROUP = "CID_RMQ_SYS_TRANS"  # its offsets are the progress in the two topics
QUEUE = 0
OP_TAG = b"TAGS\x01d"  # REMOVETAG
ORIGIN = "TRAN_PREPARED_QUEUE_OFFSET"
CHECKS = "TRANSACTION_CHECK_TIMES"
IMMUNITY = "CHECK_IMMUNITY_TIME_IN_SECONDS"
READ = 1000
BYTES = 8 << 20
TICK_SECONDS = 0.2
READABLE_SECONDS = 2.0  # within which stored messages are readable, unless replicas are behind
READABLE_PAUSE_SECONDS = 0.005
SAVE_SECONDS = 5.0
CHECKS_AT_ONCE = 500
GROUPS_AT_ONCE = 256  # whose producers are asked side by side
IMMUNITY_SECONDS_MAX = 3600
PREPARED = "TRAN_MSG"  # stays on commit: a consumer of RocketMQ's makes getTransactionId() from it
# Properties of half messages.
HALF_WORDS = frozenset(("REAL_TOPIC", "REAL_QID", PREPARED, "PGROUP", ORIGIN, CHECKS, IMMUNITY))
_HALF = Waiting(
    frozenset(name.encode() for name in (*(HALF_WORDS - {PREPARED}), "__CRC32#")), half=True
)

# Bytes of what a half message may get when it is stored, and stored again.
_ADDED_LATER = room_for({"UNIQ_KEY": 32, "__CRC32#": 10, CHECKS: 10, ORIGIN: 19})


@dataclass(frozen=True, slots=True)
class Check:
    """A check: asks a producer of a group for the decision on a half message."""

    group: str
    origin: int
    record: Record


Asker = Callable[[Check], Awaitable[bool]]


class TransactionService:
    """Half messages of this node, while it is the master."""

    def __init__(self, core: Core, options: TransactionsSection, outbox: Outbox) -> None:
        self._core = core
        self._outbox = outbox
        self._options = options
        self._halves: HalfMessages | None = None
        self._turns = Turns(options.check_interval_ms)
        self._asking: dict[str, asyncio.Task[None]] = {}  # of groups whose producers are asked now
        self._decisions = Decisions()
        self._older = (0, 0)  # half queue and log, at the start of this mastership
        self._opened: asyncio.Lock = asyncio.Lock()
        self._ops: deque[tuple[int, int]] = deque()  # op message, highest half message it names
        # Half messages that were stored in their destination, but whose note was refused (the disk
        # was full in between): True if committed, False if given up.
        self._unnoted: dict[int, bool] = {}
        self._saved = (-1, -1)
        self.askers: list[Asker] = []

    # -- life ----------------------------------------------------------------------------------

    def role_changed(self) -> None:
        """Discard all state that is not in the log."""
        self._forget()

    def status(self) -> dict[str, int]:
        """See Part."""
        return {"half_messages_waiting": len(self._halves) if self._halves is not None else 0}

    def validate(self) -> str:
        """The first violated invariant between two events; empty if all hold.

        Pending half messages are undecided, except those whose note is still to be stored. Notes
        are known in log order.
        """
        if self._halves is None:
            return "decisions without half messages" if self._unnoted or self._ops else ""
        wrong = self._halves.validate(self._core.times.mono_ms())
        if wrong:
            return wrong
        for offset in self._unnoted:
            if not self._halves.lies_at(offset):
                return f"the half message at {offset} is to be noted, and does not wait"
        decided = [origin for origin in self._halves if self._decisions.get(origin) is not None]
        if decided:
            return f"half messages {decided} wait, and are decided"
        for (one, _), (two, _) in pairwise(self._ops):
            if one > two:
                return f"the note at {two} is known behind the one at {one}"
        return ""

    def _forget(self) -> None:
        self._halves = None
        self._turns = Turns(self._options.check_interval_ms)
        self._decisions.clear()
        self._unnoted.clear()
        self._ops.clear()

    @property
    def known(self) -> bool:
        """Whether the pending half messages were read from the log."""
        return self._halves is not None

    @property
    def waiting_by_topic(self) -> dict[str, int]:
        """The number of them by the topic that they are sent to, as far as known."""
        return dict(self._halves.by_topic) if self._halves is not None else {}

    @property
    def waiting(self) -> int:
        """The number of half messages without a decision, as far as known."""
        return len(self._halves) if self._halves is not None else 0

    @property
    def checks_max(self) -> int:
        """After so many checks a half message is given up."""
        return self._options.check_max

    @property
    def halves(self) -> HalfMessages | None:
        """Half messages without a decision, to be read before anything changes; None: unknown."""
        return self._halves

    def pending(self) -> list[Half]:
        """The half messages without a decision, as far as known."""
        return self._halves.all() if self._halves is not None else []

    async def run(self) -> None:
        """Check half messages that wait for long, until cancelled."""
        async with together() as tasks:
            loop = asyncio.get_running_loop()
            saved = loop.time()
            while True:
                await asyncio.sleep(TICK_SECONDS)
                if not self._core.admission.may_store():
                    continue
                try:
                    halves = await self._known()
                except sdk.Unavailable:
                    continue  # the mastership has ended
                await self._check_due(halves, tasks)
                if loop.time() - saved >= SAVE_SECONDS:
                    saved = loop.time()
                    self._save(halves)

    async def _known(self) -> HalfMessages:
        """The pending half messages, as far as dispatched.

        Raises Unavailable if the role changed.
        """
        async with self._opened:
            halves = self._halves if self._halves is not None else await self._open()
            await self._read_halves(halves)
            if halves is not self._halves:
                raise sdk.Unavailable("the master changed during the call")
            return halves

    async def _open(self) -> HalfMessages:
        """Read the pending half messages and the decisions: all of them, or none."""
        tables = self._core.metadata.tables
        store = self._core.store
        stored = store.next_offset(HALF_TOPIC, QUEUE)
        self._older = stored, store.max_offset
        halves = HalfMessages(max(0, tables.committed(GROUP, HALF_TOPIC, QUEUE)))
        self._halves = halves
        try:
            await self._read_halves(halves)
            await self._read_ops(halves, max(0, tables.committed(GROUP, OP_TOPIC, QUEUE)))
        except BaseException:
            if self._halves is halves:
                self._forget()
            raise
        if len(halves):
            log.info("half messages pending", count=len(halves))
        return halves

    async def _read_halves(self, halves: HalfMessages) -> None:
        store = self._core.store
        while halves is self._halves:
            low, high = store.queue_range(HALF_TOPIC, QUEUE)
            halves.reach(low)
            if halves.end >= high:
                return
            result = store.get(HALF_TOPIC, QUEUE, QueueOffset(halves.end), Wanted(READ, BYTES))
            for offset, store_time, properties in _texts(result):
                halves.read(self._half(offset, store_time, properties))
            halves.reach(result.next_offset)
            await asyncio.sleep(0)

    def _half(self, offset: int, store_time: int, properties: dict[str, str]) -> Half:
        checks = _number(properties.get(CHECKS), 0)
        immunity = _number(properties.get(IMMUNITY), 0) * 1000 or self._options.timeout_ms
        wait = self._options.check_interval_ms if checks else immunity
        origin = _number(properties.get(ORIGIN), offset)
        # Its age is measured by the clock that gave it its store time.
        waited = max(0, self._core.times.store_ms() - store_time)
        check_ms = self._in(max(0, wait - waited))
        topic, group = properties.get("REAL_TOPIC", ""), properties.get("PGROUP", "")
        if origin != offset:  # stored again for a check, after its first record
            first = self._core.positions.store_time(HALF_TOPIC, QUEUE, origin)
            store_time = first if first > 0 else store_time
        return Half(origin, offset, group, checks, check_ms, topic, store_time)

    def _in(self, delay_ms: int) -> MonoMs:
        return MonoMs(self._core.times.mono_ms() + delay_ms)

    async def _read_ops(self, halves: HalfMessages, offset: int) -> None:
        store = self._core.store
        offset = max(offset, store.queue_range(OP_TOPIC, QUEUE)[0])
        while halves is self._halves:
            result = store.get(OP_TOPIC, QUEUE, QueueOffset(offset), Wanted(READ, BYTES))
            if not result.count:
                return
            for numbers, body, _ in result.rows():
                # RocketMQ 5 writes several offsets into one body, 4.9 one.
                named = [int(word) for word in body.split(b",") if word.isdigit()]
                for half in named:
                    halves.resolved(half)
                if named:
                    self._ops.append((numbers[decode.OUT_QUEUE_OFFSET], max(named)))
            offset = result.next_offset
            await asyncio.sleep(0)

    def _save(self, halves: HalfMessages) -> None:
        """Record from where on the two topics must be read."""
        low = halves.low
        while self._ops and self._ops[0][1] < low:
            self._ops.popleft()
        high = self._core.store.queue_range(OP_TOPIC, QUEUE)[1]
        reached = low, self._ops[0][0] if self._ops else high
        if reached != self._saved:
            self._saved = reached
            offsets = {HALF_TOPIC: {"0": reached[0]}, OP_TOPIC: {"0": reached[1]}}
            self._core.metadata.note({"op": "offsets", "group": GROUP, "offsets": offsets})

    # -- half messages -------------------------------------------------------------------------

    def half(self, batch: PutBatch, group: str, immunity_seconds: int = 0) -> PutBatch:
        """A batch as half messages of a producer group. Raises BadRequest, BadMessage."""
        if not group or len(group) > 255 or not group.isprintable():
            raise sdk.BadRequest(
                "a transaction needs a producer group of 1 to 255 printable characters"
            )
        if not 0 <= immunity_seconds <= IMMUNITY_SECONDS_MAX:
            raise sdk.BadRequest(
                f"a first check after {immunity_seconds} s exceeds the limit of "
                f"{IMMUNITY_SECONDS_MAX} s"
            )
        if not batch.accepted:
            batch.columns.check(self._core.options.max_message_size)
        words = {PREPARED: "true", "PGROUP": group}
        if immunity_seconds:
            words[IMMUNITY] = str(immunity_seconds)
        half = redirected(batch, HALF_TOPIC, QUEUE, words, _HALF)
        if not batch.accepted:  # a long name of a group leaves less room than others
            half.columns.check_accepted(PROPERTIES_BYTES_MAX - _ADDED_LATER)
        return half

    async def find(self, origin: int) -> Record | None:
        """A half message by its first offset; None if it is decided and deleted from the log.

        Raises NoSuchMessage for an offset that no half message ever had.
        """
        half = (await self._reaching([origin])).get(origin)
        if half is not None:
            return self._record(half.offset)
        return self._core.store.record_at(HALF_TOPIC, QUEUE, QueueOffset(origin))

    async def _reaching(self, origins: Sequence[int]) -> HalfMessages:
        """The pending half messages, once they include those at the given offsets.

        A half message that was stored a moment ago may not be readable yet, which does not mean
        that it is decided. Raises NoSuchMessage for an offset that no half message ever had,
        Unavailable if they are not readable in time.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + READABLE_SECONDS
        stored = self._core.store.next_offset(HALF_TOPIC, QUEUE)
        for origin in origins:
            if not 0 <= origin < stored:
                raise sdk.NoSuchMessage(f"half message {origin} does not exist")
        while True:
            halves = await self._known()
            lie_at = (half.offset if (half := halves.get(o)) is not None else o for o in origins)
            if max(lie_at, default=-1) < halves.end:
                return halves
            if loop.time() >= deadline:
                raise sdk.Unavailable("a half message cannot be read yet")
            self._core.log.pump_soon()  # nobody else may wait for it
            await asyncio.sleep(READABLE_PAUSE_SECONDS)

    def _record(self, offset: int) -> Record:
        """The record.

        Raises NoSuchMessage if it is damaged or deleted, Unavailable if not readable yet.
        """
        record = self._core.store.record_at(HALF_TOPIC, QUEUE, QueueOffset(offset))
        if record is not None:
            return record
        if offset >= self._core.store.queue_range(HALF_TOPIC, QUEUE)[1]:
            raise sdk.Unavailable(f"half message {offset} cannot be read yet")
        raise sdk.NoSuchMessage(f"half message {offset} no longer exists")

    async def end(self, origins: Iterable[int], commit: bool, group: str | None) -> None:
        """Commit or roll back half messages; repeating a decision is no error.

        group: of the half messages; None where the caller proved otherwise that they are its own.
        Raises BadRequest, NoSuchMessage (also for one that was decided the other way, after the
        others are decided), ResultUnknown, Unavailable, NotMaster.
        """
        self._core.admission.check_current()
        if group is not None and not group:
            raise sdk.BadRequest("name the producer group of the half messages")
        wanted = sorted(set(origins))
        halves = await self._reaching(wanted)
        found: list[Half] = []
        too_old: list[Half] = []
        for origin in wanted:
            half = halves.get(origin)
            if half is not None:
                _check_group(origin, half.group, group)
                (too_old if commit and self.is_too_old(half) else found).append(half)
        decided = [origin for origin in wanted if halves.get(origin) is None]
        if found:
            await self._end(halves, found, commit)
        for origin in decided:
            await self._repeat(origin, commit, group)
        for half in too_old:  # after the others
            raise sdk.UnknownTopic(
                f"half message {half.origin} was sent to a topic {half.topic!r} that was deleted "
                "since: roll it back"
            )

    def undecided(self, origins: Iterable[int], group: str | None) -> None:
        """Note an answer to a check: the producer has not decided yet.

        Others of its group may be asked about, and it about these after the interval of checks.
        group: as for `end`; half messages of others, and unknown ones, are passed over.
        """
        halves, again_ms = self._halves, self._in(self._options.check_interval_ms)
        if halves is None:
            return
        for origin in origins:
            half = halves.get(origin)
            if half is None or (group is not None and half.group != group):
                continue
            if self._turns.answered(half) and half.check_ms > again_ms:
                halves.ask_later(half, again_ms)

    def _born(self, topic: str) -> int:
        """The log offset of a topic's birth: see `store.births`."""
        return self._core.metadata.births.topics.get(topic, 0)

    def is_too_old(self, half: Half) -> bool:
        """Whether a half message is one to a deleted topic of the same name."""
        birth = self._born(half.topic)
        if not birth:
            return False
        entries = self._core.store.entries(HALF_TOPIC, QUEUE, half.offset, 1)
        return entries.shape[1] == 1 and int(entries[0, 0]) < birth

    async def _end(self, halves: HalfMessages, found: list[Half], commit: bool) -> None:
        """Decide on pending half messages, and wait until the decision is durable."""
        if not self._core.admission.may_store():
            raise sdk.Unavailable("this node does not accept puts now")
        self._note_stored(halves)
        origins = {half.offset: half.origin for half in found}
        offsets = sorted(origins)
        end_offset = 0
        missed: list[int] = []
        for first in range(0, len(offsets), READ):
            if first:
                await asyncio.sleep(0)  # others have a turn
                if halves is not self._halves:
                    raise sdk.Unavailable("the master changed during the call")
            some = offsets[first : first + READ]
            self._note_ended(halves, [offset for offset in some if halves.lies_at(offset)])
            # Another call may have decided on some of them in between.
            undecided = [offset for offset in some if halves.lies_at(offset)]
            missed += sorted({*some} - {*undecided})
            if undecided:
                end_offset = self._decide(halves, undecided, commit)
        await self._safe(PhyOffset(end_offset))
        for offset in missed:
            await self._repeat(origins[offset], commit, None)

    async def _safe(self, end_offset: PhyOffset) -> None:
        """Wait until the log is durable up to an offset.

        Raises ResultUnknown, with the status, if it does not become so.
        """
        waiting = self._core.log.settle(end_offset)
        self._core.log.pump_soon()
        if waiting is not None:
            status = await waiting
            if status is not PutMessageStatus.PUT_OK:
                raise sdk.ResultUnknown(status.value, status.value)

    async def _repeat(self, origin: int, commit: bool, group: str | None) -> None:
        """Check a repeated decision. Raises NoSuchMessage if the first one was different, and
        BadRequest where it is another group's: that is not told how it ended.
        """
        known = self._decisions.get(origin)
        if known is not None:
            _check_group(origin, known.group, group)
            was_commit: bool | None = known.commit
        else:
            was_commit = self._decided_before(origin, group)
        if was_commit is not None and was_commit != commit:
            became = "committed" if was_commit else "rolled back, or given up after the last check"
            wanted = "committed" if commit else "rolled back"
            raise sdk.NoSuchMessage(f"half message {origin} was {became}: it cannot be {wanted}")
        # One that was forgotten lies below that end, and need not be durable either.
        end = known.end_offset if known is not None else self._decisions.forgotten_end
        await self._safe(PhyOffset(end))

    def _decided_before(self, origin: int, group: str | None) -> bool | None:
        """Whether a decision that is only in the log was a commit; None if unknown.

        Raises Unavailable if the index does not reach that far yet, BadRequest as `_repeat`.
        """
        store = self._core.store
        record = store.record_at(HALF_TOPIC, QUEUE, QueueOffset(origin))
        if record is not None:
            _check_group(origin, record.properties.get("PGROUP", ""), group)
        if record is None or not self._core.options.message_index_enable:
            return None
        if store.dispatched_offset < max(self._older[1], self._decisions.forgotten_end):
            raise sdk.Unavailable("earlier decisions are not indexed yet: try again")
        topic, key = (record.properties.get(name, "") for name in ("REAL_TOPIC", "UNIQ_KEY"))
        return self._outbox.was_stored(topic, key) if key else None

    def _decide(self, halves: HalfMessages, offsets: list[int], commit: bool) -> int:
        """Store the committed messages, then the note; the log offset after it."""
        origins = [halves.origin_at(offset) for offset in offsets]
        found = [half for origin in origins if (half := halves.get(origin)) is not None]
        stored: list[int] = []
        try:
            if commit:
                for first, count in _stretches(offsets):
                    self._commit(first, count, stored)
            end_offset = self._note_decided(halves, offsets).end_offset
        except sdk.DuologError:
            committed = {*stored}
            for at in offsets if committed else ():
                if self._record(at).physical_offset in committed:
                    self._unnoted[at] = True
            raise
        for half in found:
            self._decisions.add(half.origin, Decision(commit, end_offset, half.group))
        now = self._core.times.store_ms()
        for half in found:
            age_ms = max(0, now - half.stored_ms)
            self._core.traffic.finish(half.topic, commit, age_ms / 1000)
        return end_offset

    def _note_ended(self, halves: HalfMessages, offsets: list[int]) -> None:
        """Note the decisions of the last master whose notes are lost. Raises Unavailable."""
        for offset in offsets:
            ended = self._ended_before(halves.origin_at(offset), offset)
            if ended is not None:
                self._note_as(halves, offset, ended)

    def _note_as(self, halves: HalfMessages, offset: int, commit: bool) -> None:
        half = halves.get(halves.origin_at(offset))
        assert half is not None, "it lies there"
        noted = self._note_decided(halves, [offset])
        self._decisions.add(half.origin, Decision(commit, noted.end_offset, half.group))
        self._settle(noted)

    def _ended_before(self, origin: int, offset: int) -> bool | None:
        """True if the last master committed it, False if it gave it up, None for neither.

        It stored the message first, and the log may have been truncated before the note. Raises
        Unavailable.
        """
        older_halves, older_log = self._older
        if origin >= older_halves:
            return None
        store = self._core.store
        if store.dispatched_offset < older_log:
            raise sdk.Unavailable(
                "messages stored by the last master are not indexed yet: try again"
            )
        record = store.record_at(HALF_TOPIC, QUEUE, QueueOffset(offset))
        properties = record.properties if record is not None else {}
        topic, key = properties.get("REAL_TOPIC", ""), properties.get("UNIQ_KEY", "")
        if not key:
            return None
        if self._outbox.was_stored(topic, key):
            return True
        # Senders may choose a key; one of another topic's message does not give this one up.
        given_up = store.lookups.all_by_unique_key(DISCARD_TOPIC, key)
        return False if any(one.properties.get("REAL_TOPIC") == topic for one in given_up) else None

    def _commit(self, first: int, count: int, stored: list[int]) -> None:
        """Store half messages at consecutive offsets in their real queues.

        stored: filled with the log offset for each half message that was stored.
        """
        end = first + count
        while first < end:
            result = self._consecutive(first, end - first)
            for batch in restored(result, _HALF, self._core.store.born_host):
                if batch.topic not in self._core.metadata.topics:
                    raise sdk.UnknownTopic(f"topic {batch.topic!r} was deleted")
                self._counted(self._outbox.stored(batch, self._core.log.write))
                assert batch.fields is not None, "made of records"
                stored += batch.fields[encode.FIELD_PREPARED_OFFSET].tolist()
            first += result.count

    def _consecutive(self, first: int, count: int) -> GetResult:
        """Read up to `count` half messages at consecutive offsets, at least the first one.

        A read skips damaged messages and may return later ones instead, on which nobody decided.
        Raises as `_record`.
        """
        while True:
            place = QueueOffset(first)
            result = self._core.store.get(HALF_TOPIC, QUEUE, place, Wanted(count, BYTES))
            offsets = result.table[decode.OUT_QUEUE_OFFSET]
            count = int(np.count_nonzero(offsets == first + np.arange(result.count)))
            if not count:
                self._record(first)
                raise sdk.NoSuchMessage(f"half message {first} no longer exists")
            if count == result.count:
                return result

    def _put(self, batch: PutBatch) -> PutResult:
        return self._counted(self._core.log.write(batch))

    def _counted(self, result: PutResult) -> PutResult:
        """A stored batch. Raises Unavailable if it is not."""
        if result.status is not PutMessageStatus.PUT_OK:
            raise sdk.Unavailable(f"{result.status.value} {result.reason}")
        self._core.log.count_in(result.count)
        return result

    def _note_decided(self, halves: HalfMessages, offsets: list[int]) -> PutResult:
        """Note these decisions in the log: one op message each, as in RocketMQ 4.9."""
        columns = Columns.of([b"%d" % offset for offset in offsets], [OP_TAG] * len(offsets))
        result = self._put(
            PutBatch(OP_TOPIC, QUEUE, columns, self._core.times.wall_ms(), accepted=True)
        )
        for k, offset in enumerate(offsets):
            self._unnoted.pop(offset, None)
            halves.resolved(offset)
            self._ops.append((result.queue_offset + k, offset))
        return result

    def _note_stored(self, halves: HalfMessages) -> None:
        """Note messages that were stored in their destination without a note.

        Raises Unavailable.
        """
        for offset, commit in list(self._unnoted.items()):
            self._note_as(halves, offset, commit)

    # -- checks --------------------------------------------------------------------------------

    async def _check_due(self, halves: HalfMessages, tasks: asyncio.TaskGroup) -> None:
        """Give up what was checked often enough; ask each group about the others, in turn.

        A group whose producers take checks slowly holds up no other one.
        """
        times, turns = self._core.times, self._turns
        for half in halves.due(times.mono_ms(), CHECKS_AT_ONCE):
            if half.checks < self._options.check_max:
                turns.add(half)
            else:
                await self._check(halves, half)
        for group in turns.groups(times.mono_ms()):
            if len(self._asking) >= GROUPS_AT_ONCE:
                return  # those that took none are left alone for a moment, in which others come
            if group not in self._asking:
                asking = tasks.create_task(self._ask_group(halves, group))
                self._asking[group] = asking
                asking.add_done_callback(partial(self._asked, group))

    def _asked(self, group: str, _: asyncio.Task[None]) -> None:
        self._asking.pop(group, None)

    async def _ask_group(self, halves: HalfMessages, group: str) -> None:
        """Ask a group's producers, as long as they take checks and may be asked."""
        times, turns = self._core.times, self._turns
        while halves is self._halves and turns.may_ask(group):
            due = turns.next(group, times.mono_ms(), halves.waits)
            if due is None or not await self._check(halves, due):
                return

    async def _check(self, halves: HalfMessages, half: Half) -> bool:
        """Ask about a half message, or give it up; whether another one of its group may be next."""
        try:
            self._note_stored(halves)
            if halves.get(half.origin) is not half:
                return True  # decided while others were checked
            record = self._record(half.offset)
            if self._dropped(halves, half, record):
                return True
            if half.checks >= self._options.check_max:
                self._give_up(halves, half, record)
                return True
            taken = await self._ask(Check(half.group, half.origin, record))
            if halves is not self._halves or halves.get(half.origin) is not half:
                return True  # decided meanwhile
            if self._dropped(halves, half, record):  # stored again, it would be young
                return True
            if taken:
                wait = self._turns.asked(half, self._core.times.mono_ms())
                self._put_back(halves, half, record, wait)
                return True
            if self._core.times.store_ms() - half.stored_ms >= self._unasked_ms:
                self._give_up(halves, half, record)
                return True
            self._turns.untaken(half, self._core.times.mono_ms())
            return False
        except (sdk.NoSuchMessage, StoreError) as error:
            log.error("half message lost", reason=str(error), group=half.group)
            halves.resolved(half.offset)  # damaged, or deleted by retention
            return True
        except sdk.DuologError as error:
            log.warning("transaction check postponed", reason=str(error))
            self._turns.answered(half)
            halves.ask_later(half, self._in(self._options.check_interval_ms))
            return False

    def _dropped(self, halves: HalfMessages, half: Half, record: Record) -> bool:
        """Whether it was sent to a topic that was deleted and made again: it is rolled back."""
        if record.physical_offset >= self._born(half.topic):
            return False
        log.warning(
            "half message dropped: its topic was deleted", topic=half.topic, group=half.group
        )
        self._note_as(halves, half.offset, False)
        return True

    async def _ask(self, check: Check) -> bool:
        """Whether a producer took a check."""
        for ask in self.askers:
            if await ask(check):
                return True
        log.debug("no producer of the group is connected", group=check.group, origin=check.origin)
        return False

    @property
    def _unasked_ms(self) -> int:
        """The age at which an unchecked half message is given up, before retention deletes it."""
        return self._core.options.file_reserved_time * 3_600_000 // 2

    def _put_back(self, halves: HalfMessages, half: Half, record: Record, wait_ms: int) -> None:
        """Store it again with a higher check count, and note that the older one is replaced."""
        checks = half.checks + 1
        properties = {**record.properties, CHECKS: str(checks), ORIGIN: str(half.origin)}
        batch = stored_again(record, HALF_TOPIC, properties)
        check_ms = self._in(wait_ms)
        if batch.columns.longest_properties > PROPERTIES_BYTES_MAX:
            # The record has no room for the count: kept in memory, the next master begins anew.
            half.checks = checks
            halves.ask_later(half, check_ms)
            return
        result = self._put(batch)
        old = half.offset
        halves.add(replace(half, offset=result.queue_offset, checks=checks, check_ms=check_ms))
        self._settle(self._note_decided(halves, [old]))

    def _give_up(self, halves: HalfMessages, half: Half, record: Record) -> None:
        """Unless the last master ended it. Raises Unavailable."""
        self._note_ended(halves, [half.offset])
        if halves.lies_at(half.offset):
            self._discard(halves, half, record)

    def _discard(self, halves: HalfMessages, half: Half, record: Record) -> None:
        log.warning(
            "transaction given up: no decision after the last check, or nobody to ask",
            group=half.group,
            checks=half.checks,
        )
        self._core.metadata.make_internal(DISCARD_TOPIC)
        self._put(stored_again(record, DISCARD_TOPIC, record.properties))
        self._unnoted[half.offset] = False
        self._note_as(halves, half.offset, False)

    def _settle(self, result: PutResult) -> None:
        self._core.log.settle(result.end_offset, no_wait=True)
        self._core.log.pump_soon()


def _check_group(origin: int, owner: str, group: str | None) -> None:
    """Raise BadRequest where a half message is another group's than the caller's (None: any)."""
    if group is not None and owner != group:
        raise sdk.BadRequest(f"half message {origin} belongs to another producer group")


def _number(text: str | None, default: int) -> int:
    return int(text) if text is not None and text.isdecimal() else default


def _texts(result: GetResult) -> list[tuple[int, int, dict[str, str]]]:
    """Queue offset, store time and properties of the messages of a read."""
    return [
        (
            numbers[decode.OUT_QUEUE_OFFSET],
            numbers[decode.OUT_STORE_TIME],
            decode_properties(text.decode(errors="replace")),
        )
        for numbers, _, text in result.rows()
    ]


def _stretches(offsets: list[int]) -> list[tuple[int, int]]:
    """Sorted offsets as runs (first, count) of consecutive ones."""
    found: list[tuple[int, int]] = []
    for offset in offsets:
        if found and found[-1][0] + found[-1][1] == offset:
            found[-1] = (found[-1][0], found[-1][1] + 1)
        else:
            found.append((offset, 1))
    return found
