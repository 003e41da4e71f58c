"""Passing on: what is put at a place that is held or sealed is answered by the one that follows.

Each group that queues moved to has one stream, on which batches follow each other without waiting
for answers. A batch that comes back as not stored holds up those behind it in its queue alone,
until all of them have come back; then they go again, in order. Where the stream breaks, all that
has no answer goes again, marked.

Rules: batches of one queue are stored in the order in which they came, also where some waited for
the queue to be released. Before a batch is sent, this node's log is asked for what it has of it.
A node that does not lead passes on nothing. A put waits no longer than its client; then its
outcome is unknown if it was ever sent. So many wait, and no more. What comes for the first
time goes to the newest place that this group has of its queue, not through all that it ever had,
once nothing is on its way elsewhere. A repeat goes through all of them, as each may have stored it.
A put skips the next place if the group of that has left; one that is no repeat also skips a group
without a master. It goes to a later place, which knows the queue's name.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import count
from math import ceil
from typing import Protocol

import grpc
import structlog
from duolog import _errors as sdk
from duolog._background import together
from duolog._backoff import BackOff
from duolog._nodechannel import BROKEN, uncancelled

from duolog_server.ha.mover import Span
from duolog_server.node.core.admission import Admission
from duolog_server.node.core.ports import Log
from duolog_server.node.engine.log import Outcome
from duolog_server.node.engine.part import Start
from duolog_server.node.moving.deliveries import (
    NOT_STORED,
    UNKNOWN,
    PassedOn,
    delivery_of,
    status_of,
    without_first,
    without_producer,
)
from duolog_server.node.moving.othergroups import Deliveries
from duolog_server.node.wire import moves_pb2 as wire
from duolog_server.store.errors import BadMessage, RepeatUnknown
from duolog_server.store.idempotence import Run
from duolog_server.store.messagestore import PutBatch, PutResult
from duolog_server.store.moves import Moves, Place
from duolog_server.store.queueends import QueueKey
from duolog_server.store.status import PutMessageStatus

log = structlog.get_logger("duolog.node")

PUTS_MAX, BYTES_MAX = 1024, 64 << 20  # that wait, over all queues
MINUTE = 60.0
PUT_SECONDS = 2.5  # RocketMQ's clients wait for an answer for 3 s, the SDK's for 4 s
UNAVAILABLE = PutMessageStatus.SERVICE_NOT_AVAILABLE


class Streams(Protocol):
    """Streams to the masters of other groups."""

    def deliver(self, group: str) -> Deliveries:
        """A stream of batches to a group's master. Raises Unavailable if it has none."""

    def has_master(self, group: str) -> bool:
        """Whether the registry shows a master of a group."""


@dataclass(frozen=True, slots=True)
class Here:
    """This node. source: its group, and the epoch of its mastership. moves: all that are stored."""

    source: Callable[[], tuple[str, int]]
    moves: Callable[[], Moves]


@dataclass(slots=True, eq=False)
class _Put:
    """A put without an answer. within: the table that it waits in."""

    number: int
    batch: PutBatch
    result: PassedOn
    outcome: Outcome
    size: int
    due: float  # loop time
    repeat: bool
    no_wait: bool
    within: "dict[int, _Put] | None" = None
    delivery: wire.Delivery | None = None
    is_sent: bool = False  # so it may be stored
    reason: str = ""  # why it was not stored
    ways: "list[_Queue]" = field(default_factory=list)  # of which it is `away`
    known: tuple[Run, ...] = ()  # what those have of it

    @property
    def key(self) -> QueueKey:
        """The queue that it was put to."""
        return self.batch.topic, self.batch.queue_id

    @property
    def sent(self) -> wire.Delivery:
        """What is sent."""
        assert self.delivery is not None, "on its way"
        return self.delivery

    def into(self, table: "dict[int, _Put] | None") -> None:
        """Wait there from now on."""
        if self.within is not None:
            del self.within[self.number]
        self.within = table
        if table is not None:
            table[self.number] = self


@dataclass(slots=True)
class _LastMinute:
    """About how many came in the last minute, and none only if none did. By minutes that begin with
    what comes first. now: loop time.
    """

    began: float = 0.0
    count: int = 0
    before: int = 0  # in the minute before this one

    def add(self, now: float, count: int) -> None:
        """So many come."""
        self._begin(now)
        self.count += count

    def at(self, now: float) -> int:
        """How many came."""
        self._begin(now)
        return self.count + ceil(self.before * (1 - (now - self.began) / MINUTE))

    def _begin(self, now: float) -> None:
        if now - self.began >= MINUTE:
            is_next = now - self.began < 2 * MINUTE
            self.before = self.count if is_next else 0
            self.began = self.began + MINUTE if is_next else now
            self.count = 0


@dataclass(slots=True)
class _Queue:
    """A queue whose puts are not stored here. released: they are passed on; else they wait.

    held: by its move, before the log has a seal: it would store them. away: puts that continue to
    `target`, and have no outcome. behind: those that wait for these, as they go elsewhere. later:
    the first place behind the one that follows which became known.
    """

    held: bool = False
    released: bool = False
    waiting: dict[int, _Put] = field(default_factory=dict)
    target: Place | None = None
    later: Place | None = None
    away: int = 0
    behind: dict[int, _Put] = field(default_factory=dict)
    passed: _LastMinute = field(default_factory=_LastMinute)


class Passing:
    """Puts that other groups store.

    queues: those whose puts are held, or passed on; empty where no queue of this mastership moved.
    """

    def __init__(
        self,
        log: Log,
        admission: Admission,
        streams: Streams,
        here: Here,
        start: Start,
    ) -> None:
        """start: begins background work."""
        self.queues: dict[QueueKey, _Queue] = {}
        # Called when the place behind a queue turns out to be lost.
        self.lost: list[Callable[[QueueKey], None]] = []
        self._log = log
        self._admission = admission
        self._streams = streams
        self._here = here
        self._open: dict[int, _Put] = {}
        self._bytes = 0
        self._numbers = count(1)
        self._lines: dict[str, _Line] = {}
        self._start = start
        self._expiry: asyncio.TimerHandle | None = None

    # -- a part of the node ------------------------------------------------------------------------

    async def run(self) -> None:
        """Streams are opened when there is something to pass on; they end with this."""
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            self._end_all("the node stops")

    def status(self) -> dict[str, int]:
        """Puts that wait, and the queues that hold them."""
        known = self.queues or self._open
        held = sum(1 for queue in self.queues.values() if not queue.released)
        return {"passing_on": len(self._open), "queues_held": held} if known else {}

    def validate(self) -> str:
        """See Part."""
        size = sum(put.size for put in self._open.values())
        if size != self._bytes:
            return f"{size} bytes wait to be passed on, counted as {self._bytes}"
        for put in self._open.values():
            if put.within is not None and put.within.get(put.number) is not put:
                return f"put {put.number} is not where it waits"
        return ""

    def role_changed(self) -> None:
        """Nothing is held or released in this mastership, and what waited is for its master."""
        self._end_all("the master changed during the call")
        self.queues.clear()

    # -- moves -------------------------------------------------------------------------------------

    def hold(self, topic: str, queue_id: int) -> None:
        """Let puts to a queue wait from now on."""
        queue = self.queues.setdefault((topic, queue_id), _Queue())
        queue.held, queue.released = True, False

    def release(self, topic: str, queue_id: int, place: Place | None) -> None:
        """Pass on what waits and what comes later, in order; without a place, store it here.

        place: the one that follows, or a later one.
        """
        key, moves = (topic, queue_id), self._here.moves()
        queue = self.queues.setdefault(key, _Queue())
        queue.held, queue.released = False, True
        seal = moves.seal_of(topic, queue_id)
        is_later = seal is not None and place != seal.following
        # It stays: a repeat may have been stored there, and it passes on what it does not take.
        if is_later and (queue.later is None or queue.later.group in moves.gone):
            queue.later = place
        if place is None:
            del self.queues[key]
        self._all_begin(queue.waiting)

    def is_held(self, topic: str, queue_id: int) -> bool:
        """Whether puts to a queue wait for its release."""
        queue = self.queues.get((topic, queue_id))
        return queue is not None and not queue.released

    def passed(self, topic: str, queue_id: int) -> int:
        """About how many messages to a queue were passed on in the last minute."""
        queue = self.queues.get((topic, queue_id))
        return queue.passed.at(asyncio.get_running_loop().time()) if queue is not None else 0

    # -- puts --------------------------------------------------------------------------------------

    def pass_on(
        self, batch: PutBatch, again: bool = False, no_wait: bool = False
    ) -> tuple[PutResult, Outcome | None]:
        """Have a batch stored where its queue continues, or here once that is decided.

        It must outlive this call: see `kept`. The result is filled in before its outcome is set;
        without an outcome it is so already.
        again: its client may have had it passed on before. no_wait: see `Send`.
        """
        put = self._opened(batch, again, no_wait)
        if put is None:
            return PutResult(UNAVAILABLE, self._full()), None
        self._begin(put)
        return put.result, put.outcome if put.number in self._open else None

    async def deliver(self, batch: PutBatch, to: Place) -> PutResult:
        """The result of a batch of the node itself, stored at another group's place.

        Calls that wait at the same time keep their order. A former master may have sent it.
        """
        put = self._opened(batch, True, False)
        if put is None:
            return PutResult(UNAVAILABLE, self._full())
        put.is_sent = True
        following, to = to, self._next(put, to)
        if to.group == self._here.source()[0]:  # it came back, and the group between has left
            put.batch = replace(batch, queue_id=to.queue_id)
            self._begin(put)
        else:
            put.delivery = self._delivery(batch, following, to)
            self._line(to.group).add(put)
        return replace(put.result, status=await put.outcome)

    def _full(self) -> str:
        return f"{len(self._open)} puts to queues that move wait already: try again"

    def _opened(self, batch: PutBatch, again: bool, no_wait: bool) -> _Put | None:
        """A put that waits from now on; None where too many do."""
        columns, loop = batch.columns, asyncio.get_running_loop()
        size = len(columns.bodies) + len(columns.properties) + 8 * columns.count
        if len(self._open) >= PUTS_MAX or (self._open and self._bytes + size > BYTES_MAX):
            return None
        put = _Put(
            next(self._numbers),
            batch,
            PassedOn(PutMessageStatus.PUT_OK),
            loop.create_future(),
            size,
            loop.time() + PUT_SECONDS,
            again or batch.repeat_of is not None,
            no_wait,
        )
        self._open[put.number] = put
        self._bytes += size
        if self._expiry is None:
            self._expiry = loop.call_at(put.due, self._expire)
        return put

    def _next(self, put: _Put, following: Place) -> Place:
        """Where a put continues: at the newest place of its queue here, if it comes first."""
        (topic, queue_id), group = put.key, self._here.source()[0]
        moves = self._here.moves()
        has_left = following.group in moves.gone
        here = moves.later_here(group, topic, queue_id)
        if here and not put.repeat:
            return Place(group, here[-1])
        if here and has_left:
            return Place(group, here[0])
        queue = self.queues.get(put.key)
        later = queue.later if queue is not None else None
        if later is None or moves.seal_of(topic, queue_id) is None:  # the topic may be gone
            return following
        is_past = has_left or not (put.repeat or self._streams.has_master(following.group))
        return later if is_past else following

    def _delivery(self, batch: PutBatch, following: Place, to: Place) -> wire.Delivery:
        """What is sent to the place that follows a sealed queue, or past that to a later one."""
        delivery = delivery_of(batch, to)
        if to != following:
            (group, _), moves = self._here.source(), self._here.moves()
            seal = moves.seal_of(batch.topic, batch.queue_id)
            assert seal is not None, "it has a later place"
            name = Span.of(moves, batch.topic, Place(group, batch.queue_id)).name
            delivery.past.name.group, delivery.past.name.queue_id = name
            delivery.past.first = seal.first
        return delivery

    def _hold(self, put: _Put, where: dict[int, _Put], reason: str) -> None:
        put.reason = reason
        put.into(where)

    def _begin(self, put: _Put) -> None:
        """Ask the log what it has of a put; the rest is stored here, or sent there."""
        queue, result = self.queues.get(put.key), self._admission.refused_put()
        if queue is not None and queue.held:
            topic, queue_id = put.key
            self._hold(put, queue.waiting, f"queue {topic}/{queue_id} is about to move")
            return
        try:
            result = result or self._log.write(put.batch)
        except RepeatUnknown as error:
            if put.repeat:
                result = PutResult(UNKNOWN, str(error))
            else:  # it waited while others of its producer went elsewhere: it surely is not stored
                result = self._log.write(without_producer(put.batch))
        if result.moved_to is None:
            self._stored(put, result)
            return
        put.result.duplicates = put.known + result.duplicates
        queue = self.queues.setdefault(put.key, _Queue())
        if not queue.released:
            self._hold(put, queue.waiting, result.reason)
            return
        to = self._next(put, result.moved_to)
        if queue.behind or (queue.away and queue.target != to):
            self._hold(put, queue.behind, result.reason)
            return
        put.known = put.result.duplicates
        known = sum(run.end - run.first for run in result.duplicates)
        put.batch = without_first(put.batch, known)
        queue.target, queue.away = to, queue.away + 1
        queue.passed.add(asyncio.get_running_loop().time(), put.batch.columns.count)
        put.ways.append(queue)
        if to.group == self._here.source()[0]:
            put.batch = replace(put.batch, queue_id=to.queue_id)
            self._begin(put)
            return
        put.delivery = self._delivery(put.batch, result.moved_to, to)
        put.delivery.repeat, put.delivery.no_wait = put.repeat, put.no_wait
        self._line(to.group).add(put)

    def _stored(self, put: _Put, result: PutResult) -> None:
        """It is stored here after all, or refused."""
        put.result.take(result)
        put.result.duplicates = put.known + result.duplicates
        if put.ways:  # the queue moved, and came back
            put.result.stored_at = Place(self._here.source()[0], put.batch.queue_id)
        if result.status is not PutMessageStatus.PUT_OK:
            self.end(put, result.status, result.reason)
            return
        put.is_sent = True
        waiting = self._log.settle(result.end_offset, put.no_wait)
        self._log.pump_soon()
        if waiting is None:
            self.end(put, result.status)
        else:
            waiting.add_done_callback(lambda done: self._settled(put, done))

    def _settled(self, put: _Put, done: Outcome) -> None:
        self.end(put, UNKNOWN if done.cancelled() else done.result())

    def _line(self, group: str) -> "_Line":
        line = self._lines.get(group)
        if line is None:
            line = self._lines[group] = _Line(self, group)
        return line

    # -- as lines use it ---------------------------------------------------------------------------

    def opened_stream(self, group: str) -> tuple[Deliveries, tuple[str, int]]:
        """A stream to a group's master, and from whom it is. Raises NotMaster, Unavailable."""
        self._admission.check_master()
        return self._streams.deliver(group), self._here.source()

    def check_master(self) -> None:
        """Raise NotMaster where this node does not lead."""
        self._admission.check_master()

    def start(self, line: "_Line") -> "asyncio.Task[None]":
        """Run a line."""
        return self._start(line.run())

    # -- ends --------------------------------------------------------------------------------------

    def answered(self, put: _Put, group: str, answer: wire.Delivered) -> None:
        """The group that it was sent to has stored or refused it. Raises Unavailable for what is
        no answer.
        """
        try:
            put.result.take_answer(answer, put.batch, Place(group, put.sent.queue_id))
        except BadMessage as error:
            raise sdk.Unavailable(f"an answer cannot be read: {error.reason}") from None
        self.end(put, put.result.status, answer.reason)

    def place_lost(self, put: _Put) -> None:
        """Where it was sent to, nothing is continued."""
        if put.sent.HasField("past"):  # what was known of a later place is wrong
            queue = self.queues.get((put.batch.topic, put.sent.from_queue))
            if queue is not None:
                queue.later = None
            return
        for lost in self.lost:
            lost((put.batch.topic, put.sent.from_queue))

    def end(self, put: _Put, status: PutMessageStatus, reason: str = "") -> None:
        """The outcome of a put is known, or never will be."""
        if self._open.pop(put.number, None) is None:
            return
        self._bytes -= put.size
        put.into(None)
        put.result.status, put.result.reason = status, reason
        if not put.outcome.done():
            put.outcome.set_result(status)
        for queue in put.ways:
            queue.away -= 1
            if not queue.away:
                self._all_begin(queue.behind)

    def _all_begin(self, puts: dict[int, _Put]) -> None:
        """What waited is passed on, in order."""
        found = list(puts.values())
        for put in found:
            put.into(None)
        for put in found:
            self._begin(put)

    def _give_up(self, put: _Put, why: str) -> None:
        status = UNKNOWN if put.is_sent else UNAVAILABLE
        self.end(put, status, f"{why}: {put.reason or 'it is on its way to where it continues'}")

    def _expire(self) -> None:
        """End the puts whose time is over; they have all been given the same time."""
        loop = asyncio.get_running_loop()
        self._expiry = None
        for put in list(self._open.values()):
            if put.due > loop.time():
                self._expiry = loop.call_at(put.due, self._expire)
                return
            self._give_up(put, f"not stored within {PUT_SECONDS} s")

    def _end_all(self, why: str) -> None:
        for line in self._lines.values():
            line.close()
        self._lines.clear()
        puts = list(self._open.values())
        for put in puts:
            put.into(None)  # none of them begins as another one ends
        for put in puts:
            self._give_up(put, why)


class _Line:
    """The puts on their way to one group.

    waiting: not sent on the stream that is open. sent: the queues that those go to which have no
    answer on it, also where nobody waits for it any more; flying: the others. back: by the queue
    that they go to, those that were not stored, and those behind them. blocked: the queues of
    which the target takes nothing until the first of these comes again.
    """

    def __init__(self, passing: Passing, group: str) -> None:
        self._passing = passing
        self._group = group
        self._waiting: dict[int, _Put] = {}
        self._sent: dict[int, QueueKey] = {}
        self._flying: dict[int, _Put] = {}
        self._back: dict[QueueKey, dict[int, _Put]] = {}
        self._blocked: set[QueueKey] = set()
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._pauses = BackOff()

    def add(self, put: _Put) -> None:
        """Pass on one more, behind the others of its queue."""
        put.into(self._back.get(_target(put), self._waiting))
        self._wake.set()
        if self._task is None:
            self._task = self._passing.start(self)

    def close(self) -> None:
        """Pass on nothing more, and try nothing again."""
        self._back.clear()
        if self._task is not None:
            self._task.cancel()

    async def run(self) -> None:
        """Open streams as long as there is something to pass on."""
        while self._waiting:
            try:
                await self._pass_on()
            except (*BROKEN, sdk.DuologError) as problem:
                self._broken(problem)
            if self._waiting:
                await asyncio.sleep(self._pauses.next())
        self._task = None

    def _broken(self, problem: Exception) -> None:
        """Nothing of what is on its way will be answered: all of it goes again, in order."""
        if isinstance(problem, grpc.RpcError):
            problem = sdk.error_of(problem)
        reason = f"group {self._group}: {problem}"[:500]
        log.info("a stream to another group ended", to_group=self._group, reason=reason)
        tables = (self._waiting, self._flying, *self._back.values())
        puts = [put for table in tables for put in table.values()]
        self._sent.clear()
        self._back.clear()
        self._blocked.clear()
        for put in puts:
            put.into(None)
        for put in sorted(puts, key=lambda put: put.number):
            put.reason = reason
            put.into(self._waiting)

    async def _pass_on(self) -> None:
        """Send and take answers, until the stream breaks. Raises what it breaks with."""
        call, source = self._passing.opened_stream(self._group)
        try:
            async with together() as tasks:
                tasks.create_task(self._write(call, source))
                await self._read(call)
        finally:
            call.cancel()

    async def _write(self, call: Deliveries, source: tuple[str, int]) -> None:
        while True:
            while self._waiting:
                self._passing.check_master()
                put = next(iter(self._waiting.values()))
                delivery, target = put.sent, _target(put)
                delivery.id, delivery.again = put.number, put.is_sent
                delivery.source, delivery.epoch = source
                delivery.resume = target in self._blocked
                self._blocked.discard(target)
                self._sent[put.number] = target
                put.is_sent = True
                put.into(self._flying)
                await uncancelled(call.write(delivery))
            self._wake.clear()
            await self._wake.wait()

    async def _read(self, call: Deliveries) -> None:
        pauses = self._pauses
        while True:
            answer = await uncancelled(call.read())
            if not isinstance(answer, wire.Delivered):
                raise sdk.Unavailable(f"it ended the stream: {await uncancelled(call.details())}")
            if self._pauses is pauses:
                self._pauses = BackOff()
            target, put = self._sent.pop(answer.id, None), self._flying.get(answer.id)
            if target is None:
                raise sdk.Unavailable(f"it answered {answer.id}, which it was not sent")
            if status_of(answer) in NOT_STORED:
                self._comes_back(target, put, answer.reason)
                if answer.no_place and put is not None:
                    self._passing.place_lost(put)
                continue
            if target in self._back and target not in self._blocked:
                self._comes_through(target)
            if put is not None:
                self._passing.answered(put, self._group, answer)

    # -- what was not stored -----------------------------------------------------------------------

    def _comes_back(self, target: QueueKey, put: _Put | None, reason: str) -> None:
        """The target stores nothing of a queue now: nothing goes there before all has come back."""
        self._blocked.add(target)
        back = self._back.get(target)
        if back is None:
            back = self._back[target] = {}
            for other in [one for one in self._waiting.values() if _target(one) == target]:
                other.into(back)
            self._later(target, back, BackOff())
        if put is not None:
            put.is_sent, put.reason = put.sent.again, reason  # as it was before
            put.into(back)

    def _later(self, target: QueueKey, back: dict[int, _Put], pauses: BackOff) -> None:
        asyncio.get_running_loop().call_later(pauses.next(), self._try, target, back, pauses)

    def _try(self, target: QueueKey, back: dict[int, _Put], pauses: BackOff) -> None:
        """The first of what was not stored goes again, once all has come back: see whether it is
        stored now.
        """
        if self._back.get(target) is not back:
            return  # all of it is on its way again
        if not self._is_on_its_way(target):
            if not back:  # nobody waits for it any more
                del self._back[target]
                return
            self._again([back[min(back)]])
        self._later(target, back, pauses)

    def _is_on_its_way(self, target: QueueKey) -> bool:
        waiting = (_target(put) for put in self._waiting.values())
        return target in self._sent.values() or target in waiting

    def _comes_through(self, target: QueueKey) -> None:
        """The target takes a queue again: all that was not stored may follow."""
        self._again(sorted(self._back.pop(target).values(), key=lambda put: put.number))

    def _again(self, puts: list[_Put]) -> None:
        for put in puts:
            put.into(self._waiting)
        self._wake.set()


def _target(put: _Put) -> QueueKey:
    return put.batch.topic, put.sent.queue_id
