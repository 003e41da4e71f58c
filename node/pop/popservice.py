"""POP consumption: the node delivers single messages, each acknowledged on its own.

Any consumer of a group may get any message of any queue. A delivered message is invisible to the
other consumers until its lease ends. If it is not acknowledged by then, it is stored again in the
group's retry topic with one more attempt, and after the last attempt in the group's dead-letter
topic. In groups that consume in order, it is delivered again from the same queue, which delivers
nothing else meanwhile. Progress is recorded in the log a few times a second. After a failover,
delivered messages that were not yet recorded as done are delivered again (at least once).
"""

import asyncio
import secrets
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

import structlog
from duolog import _errors as sdk
from duolog._background import together
from duolog._message import RETRY_PREFIX

from duolog_server.node.consuming.offsets import position_of
from duolog_server.node.core.births import own
from duolog_server.node.core.core import Core
from duolog_server.node.core.waitingcalls import WaitingCalls
from duolog_server.node.filters.consumerfilters import ConsumerFilters
from duolog_server.node.filters.tagfilter import MessageFilter
from duolog_server.node.pop.popqueue import Lease, PopQueue
from duolog_server.node.pop.retrytopics import RetryTopics, copies_from
from duolog_server.node.pop.subscriber import Line, Subscriber
from duolog_server.node.traces.recorder import Delivery
from duolog_server.store.clocks import MonoMs
from duolog_server.store.errors import StoreError
from duolog_server.store.grouptopics import retry_topic
from duolog_server.store.kernels import decode
from duolog_server.store.lightqueues import is_light, parent_of
from duolog_server.store.metadata import PRIORITY, Json
from duolog_server.store.offsets import PhyOffset, QueueOffset
from duolog_server.store.reader import GetResult, Wanted
from duolog_server.store.record import Record, decode_properties

log = structlog.get_logger("duolog.node")

READ_BYTES = 4 << 20  # of one read of a queue
SCAN_MAX = 2000  # messages examined before the event loop runs other work
HELD_MS = 3 * 3600 * 1000  # longest lease that lasts as long as its client
RETRY_FIRST_EVERY = 5  # popFromRetryProbability 20 %
TICK_SECONDS = 0.05
SAVE_SECONDS = 0.2
NO_QUEUE = -1  # that never gets a message
SAVED_AT_ONCE = 50  # groups, before the event loop runs other work
AGAIN_MS = 2000  # until the next attempt to store a message again
MOVE_MS = 60_000  # longer than storing it again may take
GONE_MS = 1000  # until messages of a client that left are visible

SETTLED_MAX = 50_000  # latest finished deliveries: a repeated acknowledgement is OK

QueueKey = tuple[str, int, str]  # topic that holds it, queue id, group


@dataclass(frozen=True, slots=True)
class PopRequest:
    """A request of a consumer.

    queue_id: scanned first. held: the lease lasts as long as the client is alive. via: the node
    that forwarded the request; empty for none. subscriber: gets only messages of its lite topics.
    serial: of all its deliveries; 0: each gets one of its own. bytes_max: of all its records, the
    last of which may be longer.
    """

    group: str
    topic: str
    queue_id: int
    count: int
    invisible_ms: int
    client: str
    filter: MessageFilter
    held: bool = False
    attempt_id: str = ""
    subscriber: Subscriber | None = None
    via: str = ""
    serial: int = 0
    bytes_max: int = 1 << 62


@dataclass(frozen=True, slots=True)
class Handle:
    """The position of a delivered message, and the serial number that proves the delivery."""

    topic: str
    queue_id: int
    offset: int
    serial: int


@dataclass(frozen=True, slots=True)
class Popped:
    """One delivery. Times are ms. physical, size: where its record is in the log."""

    handle: Handle
    body: bytes
    properties: dict[str, str]
    attempt: int
    born_time: int
    store_time: int
    sysflag: int
    born_host: str
    invisible_ms: int
    physical: int
    size: int


class PopService:
    """The POP state of all groups on this node, while it is the master."""

    def __init__(
        self, core: Core, filters: ConsumerFilters, retry: RetryTopics, calls: WaitingCalls
    ) -> None:
        self._core = core
        self._filters = filters
        self._retry = retry
        self._calls = calls
        # Called with a light queue that has messages to deliver again, and the group.
        self.returned: Callable[[str, str], None] = lambda queue, group: None
        self._queues: dict[QueueKey, PopQueue] = {}
        self._saved: dict[QueueKey, tuple[int, list[list[int]]]] = {}
        self._dirty: dict[QueueKey, None] = {}  # in the order of their progress
        self._saving: dict[QueueKey, None] = {}
        self._lines: dict[tuple[str, str], Line] = {}
        self._resetting: set[QueueKey] = set()
        self._forgotten: dict[str, int] = {}  # ends of light queues; their files may still exist
        self._settled: dict[tuple[str, Handle], None] = {}  # groups and handles

    # -- life ----------------------------------------------------------------------------------

    async def run(self) -> None:
        """End leases and record progress, until cancelled."""
        async with together() as tasks:
            tasks.create_task(self._end_leases_in_time(tasks))
            tasks.create_task(self._save_now_and_then())

    async def _end_leases_in_time(self, tasks: asyncio.TaskGroup) -> None:
        """End leases, however long recording progress takes. tasks: stores messages again."""
        while True:
            await asyncio.sleep(TICK_SECONDS)
            if self._queues:
                self._end_leases(self._core.times.mono_ms(), tasks)

    async def _save_now_and_then(self) -> None:
        while True:
            await asyncio.sleep(SAVE_SECONDS)
            if self._dirty:
                await self._save()

    def role_changed(self) -> None:
        """The mastership has changed: discard all state that is not in the log."""
        self._queues.clear()
        self._saved.clear()
        self._dirty.clear()
        self._settled.clear()  # it may not be in the log yet
        for line in self._lines.values():
            line.set_all()

    def status(self) -> dict[str, int]:
        """See Part."""
        return {
            "messages_leased": sum(len(state.leases) for state in self._queues.values()),
            "calls_waiting": self._calls.count,
        }

    @property
    def popped(self) -> list[QueueKey]:
        """The queues that were popped: topic, queue id, group."""
        return list(self._queues)

    def reached(self, group: str, topic: str, queue_id: int) -> tuple[int, int, int] | None:
        """How far a group is in a queue: up to where all is done, what it gets next, and how many
        messages are leased. None where nobody has popped it.
        """
        state = self._queues.get((topic, queue_id, group))
        if state is None:
            return None
        return state.committed, state.next, len(state.leases)

    def validate(self) -> str:
        """The first violated invariant between two events; empty if all hold.

        Every queue is valid, progress that is not recorded is about to be, and every poll is
        counted.
        """
        if self._saved.keys() != self._queues.keys():
            return (
                f"queues with a record or a state only: {self._saved.keys() ^ self._queues.keys()}"
            )
        if not self._dirty.keys() <= self._queues.keys():
            return f"to be recorded without a state: {self._dirty.keys() - self._queues.keys()}"
        for key, state in self._queues.items():
            wrong = state.validate() or self._unrecorded(key, state)
            if wrong:
                return f"{key[2]} in {key[0]}/{key[1]}: {wrong}"
        for (group, topic), line in self._lines.items():
            wrong = line.validate()
            if wrong:
                return f"polls of {group} for {topic}: {wrong}"
        polls = sum(line.polls for line in self._lines.values())
        if polls > self._calls.count:
            return f"{polls} polls wait, counted as {self._calls.count}"
        return self._calls.validate()

    def _unrecorded(self, key: QueueKey, state: PopQueue) -> str:
        """Progress in a queue that is not recorded and not about to be; empty for none."""
        saved = self._saved[key]
        if saved == (state.committed, state.done.pairs()) or key in {**self._dirty, **self._saving}:
            return ""
        recorded = PopQueue.resumed(self._begin(key, saved[0]), saved[1], state.orderly)
        if state.committed < recorded.committed:  # retention deleted the messages in between
            return ""
        if (state.committed, state.done.pairs()) == (recorded.committed, recorded.done.pairs()):
            return ""
        return (
            f"done up to {state.committed} and {state.done.pairs()}, recorded are {saved}, and "
            "no other record is to be made"
        )

    def forget_queues(self, ends: dict[str, int]) -> None:
        """Light queues are forgotten: messages below their ends are not delivered any more."""
        self._forgotten.update(ends)
        self._drop([key for key in self._queues if key[0] in ends])

    def removed(self, names: Iterable[str]) -> None:
        """Forgotten queues are removed, unless they got new messages past their ends."""
        gone: set[str] = set()
        for name in names:
            low, high = self._core.store.queue_range(name, 0)
            if low == high:
                gone.add(name)
            if low == high or low >= self._forgotten.get(name, 0):
                self._forgotten.pop(name, None)
        self._drop([key for key in self._queues if key[0] in gone])

    def topic_deleted(self, topic: str) -> None:
        """Forget a topic: nothing of it is looked at, or recorded, any more."""
        self._forget(lambda name, _: name == topic)

    def group_deleted(self, group: str) -> None:
        """Forget a deleted group."""
        self._forget(lambda _, name: name == group)

    def _forget(self, gone: Callable[[str, str], bool]) -> None:
        """gone: of a topic and a group."""
        self._drop([key for key in self._queues if gone(key[0], key[2])])
        for key in [key for key in self._lines if gone(key[1], key[0])]:
            self._lines[key].forgotten = True
            if not self._lines[key].polls:
                del self._lines[key]

    def _drop(self, keys: Iterable[QueueKey]) -> None:
        for key in keys:
            self._queues.pop(key, None)
            self._saved.pop(key, None)
            self._dirty.pop(key, None)

    async def reset(self, group: str, offsets: dict[str, dict[int, int]]) -> None:
        """Set the offsets of a group, by topic and queue id; its leases are dropped.

        Raises the errors of a change of metadata.
        """
        keys = {(topic, queue, group) for topic, row in offsets.items() for queue in row}
        self._drop(keys)
        self._resetting |= keys  # older progress must not be recorded after it
        try:
            await self._core.metadata.commit(group, offsets)
        finally:
            self._resetting -= keys
            self._drop(keys)
        for key in keys:
            self._wake(key)

    def _state(self, key: QueueKey) -> PopQueue:
        """A queue's state; read from the tables if there is none yet, or after a reset."""
        topic, queue_id, group = key
        tables = self._core.metadata.tables
        committed = tables.committed(group, topic, queue_id)
        orderly = is_light(topic) or bool(tables.groups.get(group, {}).get("consumeMessageOrderly"))
        found = self._queues.get(key)
        if found is not None and self._follows(key, found):
            found.deliver_in_order(orderly)
            return found
        ranges = tables.acknowledged(group, topic, queue_id)
        made = PopQueue.resumed(self._begin(key, committed), ranges, orderly)
        self._queues[key] = made
        self._saved[key] = (committed, ranges)
        if committed < 0 and not is_light(topic) and not topic.startswith(RETRY_PREFIX):
            self._dirty[key] = None  # the group begins here, for readers of other protocols as well
        return made

    def _follows(self, key: QueueKey, state: PopQueue) -> bool:
        """Have a state know what another reader of the group has committed, as one that reads
        whole queues: what is below is done. False where that lies before what was recorded: the
        group continues there, and the state is obsolete.
        """
        topic, queue_id, group = key
        tables, saved = self._core.metadata.tables, self._saved[key][0]
        committed = tables.committed(group, topic, queue_id)
        if committed > saved:
            state.done_below(committed)
            self._saved[key] = committed, tables.acknowledged(group, topic, queue_id)
            self._dirty[key] = None
        return committed >= saved

    def _begin(self, key: QueueKey, committed: int) -> int:
        """The offset at which a group continues; retention may be ahead of `committed`."""
        topic, queue_id, group = key
        at = position_of(self._core, group, topic, queue_id, committed)
        return max(at, self._forgotten.get(topic, 0))

    # -- taking --------------------------------------------------------------------------------

    def pop(self, request: PopRequest, mono_ms: MonoMs) -> list[Popped]:
        """Deliver up to `count` messages that no consumer of the group has, with leases from now
        on.
        """
        line = self._line(request)
        line.turn += 1
        line.left, line.room = SCAN_MAX, request.bytes_max
        found: list[Popped] = []
        for topic, queue_id in self._sources(request, line.turn):
            if len(found) >= request.count:
                break
            wanted = request.count - len(found)
            key = (topic, queue_id, request.group)
            some = self._pop_queue(request, line, key, wanted, mono_ms)
            if some:
                self._count(request, topic, some)
                found += some
            if line.left <= 0 or line.room <= 0:
                break
        self._core.traffic.read(len(found))
        if found:
            if request.subscriber is not None:
                given = dict.fromkeys(popped.handle.topic for popped in found)
                request.subscriber.given = (request.attempt_id, list(given))
            line.set()  # the next consumer may find more
        return found

    def _count(self, request: PopRequest, topic: str, found: list[Popped]) -> None:
        """Count deliveries, those from the retry topic apart."""
        size, again = sum(len(popped.body) for popped in found), topic.startswith(RETRY_PREFIX)
        self._core.traffic.deliver(request.topic, request.group, len(found), size, again=again)
        if self._core.traces is not None:
            deliveries = (
                Delivery(popped.handle.queue_id, popped.handle.offset, popped.properties)
                for popped in found
            )
            self._core.traces.popped(topic, request.group, deliveries)

    def _line(self, request: PopRequest) -> Line:
        if request.subscriber is not None:
            return request.subscriber.line
        return self._lines.setdefault((request.group, request.topic), Line())

    def _sources(self, request: PopRequest, turn: int) -> Iterator[tuple[str, int]]:
        """The queues to scan, in a different order each time."""
        if request.subscriber is not None:
            yield from request.subscriber.sources(request.attempt_id)
            return
        topics = self._core.metadata.topics
        queues = self._core.metadata.tables.readable(request.group, request.topic)
        retry = retry_topic(request.group, request.topic)
        retry_queues = topics[retry].queues if retry in topics else 0
        if self._by_priority(request):
            yield from (
                (request.topic, queue) for queue in reversed(self._by_name(request, queues))
            )
            yield from ((retry, queue) for queue in reversed(range(retry_queues)))
            return
        asked, count = request.queue_id, len(queues)
        first = turn if asked < 0 else queues.index(asked) if asked in queues else asked
        rotated = [(request.topic, queues[(first + k) % count]) for k in range(count)]
        again = [(retry, queue) for queue in range(retry_queues)]
        yield from again + rotated if turn % RETRY_FIRST_EVERY == 0 else rotated + again

    def _by_name(self, request: PopRequest, queues: Sequence[int]) -> Sequence[int]:
        """Queues in the order of their names, which are the priorities of their messages."""
        guests = self._core.metadata.tables.moves.guests.get(request.topic)
        if not guests:
            return queues
        return sorted(queues, key=lambda one: guests[one].name.queue_id if one in guests else one)

    def _by_priority(self, request: PopRequest) -> bool:
        """Whether a request gets the highest priority first, and retries after all others.

        A message's queue is its priority. A group in order reads its queues in turn.
        """
        if self._core.metadata.topics[request.topic].message_type != PRIORITY:
            return False
        row = self._core.metadata.tables.groups.get(request.group, {})
        return not row.get("consumeMessageOrderly")

    def _pop_queue(
        self, request: PopRequest, line: Line, key: QueueKey, wanted: int, mono_ms: MonoMs
    ) -> list[Popped]:
        state = self._state(key)
        if state.orderly and request.attempt_id and state.attempt_id == request.attempt_id:
            return self._again(key, state, request, mono_ms)
        if state.blocked:
            return []
        found: list[Popped] = []
        store = self._core.store
        while len(found) < wanted and line.left > 0 and line.room > 0:
            count = min(wanted - len(found), state.skip_done())
            bits = self._filters.bits(request.group, key[0], request.filter)
            result = store.get(
                *key[:2],
                QueueOffset(state.next),
                Wanted(count, min(READ_BYTES, line.room), request.filter.codes, bits),
            )
            line.left -= max(1, result.count)
            if result.min_offset > state.next:
                state.start_at(result.min_offset)
                self._dirty[key] = None
                continue
            if result.next_offset <= state.next and not result.count:
                break
            result = request.filter.chosen(result)
            retried = key[0].startswith(RETRY_PREFIX)
            if retried and key[0] != request.topic:
                result = copies_from(request.topic, key[0], result)  # others may be another group's
            if retried or key[0] != request.topic:
                result = own(self._core.metadata.births, key[0], result, request.group)
            leased = self._lease_rows(key, state, request, result, mono_ms)
            line.room -= sum(popped.size for popped in leased)
            found += leased
            self._dirty[key] = None
            if state.orderly and found:
                break
        if state.orderly and found:
            state.attempt_id = request.attempt_id
        return found

    def _lease_rows(
        self,
        key: QueueKey,
        state: PopQueue,
        request: PopRequest,
        result: GetResult,
        mono_ms: MonoMs,
    ) -> list[Popped]:
        """Lease the messages of a read; what it skipped is not for this group."""
        invisible = HELD_MS if request.held else request.invisible_ms
        found = []
        end = int(result.next_offset)
        for popped in self._rows(key, result, state.attempts, request):
            offset = popped.handle.offset
            state.pass_over(offset)
            state.skip_done()
            if state.next > offset:
                end = offset  # done already, and the filter rejects what is before it: scan again
                break
            serial, deadline_ms = popped.handle.serial, MonoMs(mono_ms + invisible)
            lease = Lease(serial, deadline_ms, request.client, request.held, request.via)
            state.take(offset, lease)
            found.append(popped)
        state.pass_over(end)
        return found

    def _again(
        self, key: QueueKey, state: PopQueue, request: PopRequest, mono_ms: MonoMs
    ) -> list[Popped]:
        """A repeated request, whose answer was lost: the same messages again."""
        found = []
        for offset in sorted(state.leases):
            result = self._core.store.get(key[0], key[1], QueueOffset(offset), Wanted(1, 4 << 20))
            for popped in self._rows(key, result, state.attempts, request):
                lease = state.leases[offset]
                invisible = HELD_MS if request.held else request.invisible_ms
                state.change(offset, lease, popped.handle.serial, MonoMs(mono_ms + invisible))
                lease.held, lease.via = request.held, request.via
                found.append(popped)
        return found

    def _rows(
        self, key: QueueKey, result: GetResult, attempts: dict[int, int], request: PopRequest
    ) -> Iterator[Popped]:
        """Convert the messages of a read to deliveries."""
        for numbers, body, text in result.rows():
            offset, physical, store_time, born_time, _, sysflag, reconsumed = numbers[:7]
            host = self._core.store.born_host(PhyOffset(physical))
            yield Popped(
                Handle(key[0], key[1], offset, request.serial or secrets.randbits(63)),
                body,
                decode_properties(text.decode(errors="replace")),
                reconsumed + attempts.get(offset, 0) + 1,
                born_time,
                store_time,
                sysflag,
                f"{host.address}:{host.port}",
                request.invisible_ms,
                physical,
                numbers[decode.OUT_SIZE],
            )

    # -- waiting -------------------------------------------------------------------------------

    async def wait(
        self, request: PopRequest, deadline: float, may: Callable[[], bool] = lambda: True
    ) -> list[Popped]:
        """Pop, but wait for messages; empty at the deadline (loop time).

        may: whether it still may get some, once there are; where not, it ends with none.

        Raises Busy if too many wait, NotMaster if this node stops being the master.
        """
        found = await self._scan(request)
        loop = asyncio.get_running_loop()
        if found or loop.time() >= deadline:
            return found
        with self._calls.one():
            line = self._line(request)
            self._watch(request, line)
            return await self._wait_in(line, request, deadline, may)

    async def _wait_in(
        self, line: Line, request: PopRequest, deadline: float, may: Callable[[], bool]
    ) -> list[Popped]:
        found: list[Popped] = []
        woken = asyncio.Event()
        try:
            while True:
                woken.clear()
                line.waiting.append(woken)
                try:
                    async with asyncio.timeout_at(deadline):
                        await woken.wait()
                except TimeoutError:
                    return []
                if not may():
                    return []
                found = await self._scan(request)
                if found:
                    return found
        finally:
            self._unwatch(request, line)
            if woken in line.waiting:
                line.waiting.remove(woken)
            elif not found:
                line.set()  # woken, but ends before its scan: wake the next one

    async def _scan(self, request: PopRequest) -> list[Popped]:
        """Pop past all messages that do not match; other work runs in between."""
        while True:
            self._core.admission.check_current()
            self._core.admission.readable_topic(request.topic)
            found = self.pop(request, self._core.times.mono_ms())
            if found or self._line(request).left > 0:
                return found
            await asyncio.sleep(0)

    def _watched(self, request: PopRequest) -> list[tuple[str, int]]:
        if request.subscriber is not None:
            return [(request.topic, NO_QUEUE)]  # it is woken, and counts as a waiting reader
        topics = self._core.metadata.topics
        config, retry = topics[request.topic], retry_topic(request.group, request.topic)
        copies = config.queues if config.message_type == PRIORITY else 1
        if retry in topics:  # it may be of a time when the topic had priorities
            copies = max(copies, topics[retry].queues)
        queues = (request.topic, config.read_queues), (retry, copies)
        return [(topic, queue) for topic, count in queues for queue in range(count)]

    def _watch(self, request: PopRequest, line: Line) -> None:
        line.polls += 1
        for key in self._watched(request):  # the topic may have more queues now
            line.watched.add(key)
            self._core.board.watch(key, line)

    def gates_changed(self, readers: Collection[tuple[str, str, int]]) -> None:
        """Groups may read queues, or no longer: topics, groups, queue ids. Their polls look."""
        for topic, group, queue_id in readers:
            line = self._lines.get((group, topic))
            if line is not None and line.polls:
                line.watched.add((topic, queue_id))
                self._core.board.watch((topic, queue_id), line)
                line.set_all()

    def _unwatch(self, request: PopRequest, line: Line) -> None:
        line.polls -= 1
        if line.polls == 0:
            for key in line.watched:
                self._core.board.unwatch(key, line)
            line.watched.clear()
            if line.forgotten:
                self._lines.pop((request.group, request.topic), None)

    # -- the end of deliveries ------------------------------------------------------------

    def _in(self, delay_ms: int) -> MonoMs:
        return MonoMs(self._core.times.mono_ms() + delay_ms)

    def _lease(self, group: str, handle: Handle) -> tuple[QueueKey, PopQueue, Lease] | None:
        key = (handle.topic, handle.queue_id, group)
        state = self._queues.get(key)
        lease = state.lease_of(handle.offset, handle.serial) if state is not None else None
        if state is None or lease is None or lease.deadline_ms <= self._core.times.mono_ms():
            return None
        return key, state, lease

    def ack(self, group: str, handle: Handle) -> bool:
        """Acknowledge a delivery; False if the handle is not valid, or no longer."""
        found = self._lease(group, handle)
        if found is None:
            return (group, handle) in self._settled
        key, state, _ = found
        self._finish(key, state, handle.offset)
        self._settle(group, handle)
        return True

    def _settle(self, group: str, handle: Handle) -> None:
        """Remember a finished delivery: its consumer may repeat the call if the answer was lost."""
        self._settled[group, handle] = None
        if len(self._settled) > SETTLED_MAX:
            del self._settled[next(iter(self._settled))]

    def _finish(self, key: QueueKey, state: PopQueue, offset: int) -> None:
        state.finish(offset)
        self._dirty[key] = None
        if state.orderly and not state.leases:
            self._wake(key)

    def _wake(self, key: QueueKey) -> None:
        if is_light(key[0]):
            self.returned(key[0], key[2])
            return
        for (group, _), line in self._lines.items():
            if group == key[2]:
                line.set()

    @staticmethod
    def belongs(group: str, topic: str, handle: Handle) -> bool:
        """Whether a delivery can be one to a group that reads a topic."""
        if is_light(handle.topic):
            return parent_of(handle.topic) == topic
        return handle.topic in (topic, retry_topic(group, topic))

    def give_back(self, group: str, handle: Handle) -> None:
        """Make a delivery that did not reach its consumer visible again soon."""
        found = self._lease(group, handle)
        if found is not None:
            _, state, _ = found
            state.put_off(handle.offset, self._in(GONE_MS))

    def change_invisible(
        self,
        group: str,
        handle: Handle,
        invisible_ms: int,
        *,
        serial: int = 0,
        suspend: bool = False,
    ) -> Handle | None:
        """Replace the lease; the new handle, or None if the old one is not valid.

        serial: of the new handle; 0 for a random one. suspend: the delivery counts as no attempt;
        in an orderly queue, none that is out does.
        """
        found = self._lease(group, handle)
        if found is None:
            return None
        _, state, lease = found
        serial = serial or secrets.randbits(63)
        state.change(handle.offset, lease, serial, self._in(invisible_ms))
        if suspend:
            state.suspend(handle.offset, self._in(invisible_ms))
        return Handle(handle.topic, handle.queue_id, handle.offset, serial)

    async def to_dead_letters(self, group: str, handle: Handle) -> bool:
        """Store a message in the group's dead-letter topic and finish it.

        One that no longer exists is finished, too: its consumer would repeat the call for ever.
        Raises the errors of `send_back`; after ResultUnknown, a repeat stores it no second time.
        """
        found = self._lease(group, handle)
        if found is None:
            return (group, handle) in self._settled
        key, state, _ = found
        state.put_off(handle.offset, self._in(MOVE_MS))  # so that it is not moved twice
        stored = False
        try:
            await self._retry.to_dead_letters(group, self._record(key, handle.offset))
            stored = True
        except sdk.NoSuchMessage as error:
            _tell_gone(key, [handle.offset], str(error))
            stored = True
        except sdk.ResultUnknown:
            stored = True
            raise
        finally:
            if stored:
                if self._queues.get(key) is state:
                    self._finish(key, state, handle.offset)
                self._settle(group, handle)
            elif handle.offset in state.leases:
                state.put_off(handle.offset, self._in(AGAIN_MS))
        return True

    def _record(self, key: QueueKey, offset: int) -> Record:
        record = self._core.store.record_at(key[0], key[1], QueueOffset(offset))
        if record is None:
            raise sdk.NoSuchMessage(f"the message at {key[0]}/{key[1]} {offset} no longer exists")
        return record

    def has_done(self, group: str, topic: str, queue_id: int, offset: int) -> bool | None:
        """Whether a group is done with a message; None while it is leased."""
        found = self._queues.get((topic, queue_id, group))
        if found is not None:
            if offset in found.leases:
                return None
            return offset < found.committed or offset in found.done
        tables = self._core.metadata.tables
        ranges = tables.acknowledged(group, topic, queue_id)
        done = any(first <= offset < end for first, end in ranges)
        return done or offset < tables.committed(group, topic, queue_id)

    def client_gone(self, client: str) -> None:
        """End the leases that last as long as a client that is gone."""
        self.way_gone(client, None)

    def way_gone(self, client: str, via: str | None) -> None:
        """Release the deliveries through one node. None: all deliveries."""
        deadline = self._in(GONE_MS)
        for state in self._queues.values():
            state.release(client, deadline, via)

    # -- ended leases --------------------------------------------------------------------------

    def _end_leases(self, mono_ms: MonoMs, tasks: asyncio.TaskGroup) -> None:
        obsolete: list[QueueKey] = []
        for key, state in self._queues.items():
            due = state.next_deadline_ms()
            if due is None or due > mono_ms:
                continue
            if not self._follows(key, state):
                obsolete.append(key)
                continue
            ended = state.expired(mono_ms)
            if state.orderly:
                self._wake(key)
            for offset in ended:
                # It stays leased, under a serial that no consumer knows, until it is stored again.
                state.leases[offset].serial = secrets.randbits(63)
                state.put_off(offset, MonoMs(mono_ms + MOVE_MS))
            if ended:
                tasks.create_task(self._move(key, state, ended))
        self._drop(obsolete)

    async def _move(self, key: QueueKey, state: PopQueue, offsets: list[int]) -> None:
        """Store a message that was not acknowledged again, for another attempt.

        A copy that is stored and not confirmed is as good: what records that the group is done with
        the message comes behind it in the log, so both are lost, or none.
        """
        topic, _, group = key
        gone, why = list[int](), ""
        for offset in offsets:
            if self._queues.get(key) is not state:
                break  # deleted, or reset
            if offset not in state.leases:
                continue  # another reader has committed it meanwhile
            counts = not state.leases[offset].suspended
            try:
                record = self._record(key, offset)
                await self._retry.store_again(group, topic, record, counts=counts)
            except sdk.NoSuchMessage as error:
                gone.append(offset)
                why = str(error)
            except sdk.ResultUnknown:
                pass  # its copy is stored
            except (sdk.DuologError, StoreError) as error:
                log.warning(
                    "cannot store a message for its next attempt yet",
                    reason=str(error),
                    group=group,
                )
                if offset in state.leases:
                    state.put_off(offset, self._in(AGAIN_MS))
                continue
            if self._queues.get(key) is state:
                self._finish(key, state, offset)
        if gone:
            _tell_gone(key, gone, why)

    # -- progress ------------------------------------------------------------------------------

    async def _save(self) -> None:
        """Record the progress of every group that has any; concurrently, as each record may take
        long.
        """
        groups: dict[str, list[QueueKey]] = {}
        self._saving, self._dirty = self._dirty, {}
        for key in self._saving:
            groups.setdefault(key[2], []).append(key)
        try:
            async with asyncio.TaskGroup() as tasks:
                for number, (group, keys) in enumerate(groups.items(), 1):
                    tasks.create_task(self._save_group(group, keys))
                    if number % SAVED_AT_ONCE == 0:
                        await asyncio.sleep(0)
        finally:
            self._saving = {}

    async def _save_group(self, group: str, keys: list[QueueKey]) -> None:
        offsets: dict[str, Json] = {}
        done: dict[str, Json] = {}
        states: dict[QueueKey, PopQueue] = {}
        for key in keys:
            state = self._queues.get(key)
            if state is None or key in self._resetting:
                continue
            if not self._follows(key, state):
                self._drop([key])
                continue
            if self._saved[key] == (state.committed, state.done.pairs()):
                continue
            states[key] = state
            offsets.setdefault(key[0], {})[str(key[1])] = state.committed
            done.setdefault(key[0], {})[str(key[1])] = state.done.pairs()
        if not offsets:
            return
        try:
            await self._core.metadata.commit_popped(group, offsets, done)
        except sdk.DuologError as error:
            log.debug("progress is not recorded yet", group=group, reason=str(error))
            self._dirty.update(dict.fromkeys(key for key in keys if key in self._queues))
            return
        for key, state in states.items():
            if self._queues.get(key) is state:  # the group may have gone back meanwhile
                topic, queue = key[0], str(key[1])
                self._saved[key] = (offsets[topic][queue], done[topic][queue])


def _tell_gone(key: QueueKey, offsets: list[int], reason: str) -> None:
    """Log that messages get no further attempt. reason: of the last one."""
    log.warning(
        "delivered messages no longer exist: given up",
        group=key[2],
        topic=key[0],
        queue_id=key[1],
        offset=offsets[0],
        count=len(offsets),
        reason=reason,
    )
