"""A consumer's part in one replica group: a member of the group there, that reads its share.

A message counts as consumed when the next one is asked for, or when the `async with` block ends
without an error. Committed offsets say what the group has consumed; a crash repeats what was not
committed (at least once). A queue that goes to another member waits for the message in hand.

A worker has several messages in hand, each until it is finished: see `hold`.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator
from functools import partial

from duolog._background import Background
from duolog._errors import (
    BadRequest,
    DuologError,
    ResultUnknown,
    Retryable,
    StaleMember,
    Unavailable,
    UnknownTopic,
)
from duolog._inhand import Held, InHand
from duolog._membership import Consumption, Membership, Queue
from duolog._message import RETRY_PREFIX, Batch, Message
from duolog._prefetch import Prefetch
from duolog._router import Router
from duolog._start import Start, set_start
from duolog._subscription import Subscription
from duolog.wire import duolog_pb2 as wire

log = logging.getLogger("duolog")
log.addHandler(logging.NullHandler())  # silent unless the program asks

CREDIT_BYTES = 8 << 20
BATCH_BYTES = 512 << 10
HEARTBEAT_SECONDS = 3.0
PENDING_SECONDS = 0.3
REPEATED = (Retryable, ResultUnknown)  # a heartbeat or commit that was carried out may come again


class GroupReader:
    """Reads the topics that one replica group holds, as a member of the consumer group there."""

    def __init__(
        self,
        router: Router,
        replica_group: str,
        consumption: Consumption,
        membership: Membership,
        arrived: asyncio.Event,
    ) -> None:
        """Not called by users: see `Client.consumer`.

        membership: our place in the group. arrived: set whenever there may be something to get.
        """
        self.replica_group = replica_group
        self._connection = router.connection(replica_group)
        # Its own: what it reads may come from a slave, what it commits may not.
        self._reading = router.reading(replica_group)
        self.group = group = consumption.group
        self._membership = membership
        self._start = consumption.start
        self._begun = consumption.begun
        self._commit_interval = consumption.commit_interval
        self._session = consumption.session
        self._timeout = consumption.timeout
        self._positions: dict[Queue, int] = {}  # of the queues we hold: consumed up to here
        self._dirty: set[Queue] = set()
        self._rewound: set[Queue] = set()  # may be committed below where the group is
        self._committing = asyncio.Lock()
        self._prefetch = Prefetch(CREDIT_BYTES)
        first = wire.SubscribeRequest(
            tags=consumption.tags,
            batch_bytes=BATCH_BYTES,
            sql=consumption.sql,
            group=group,
            broadcasting=consumption.broadcasting,
        )
        patience = max(consumption.timeout, consumption.session)
        self._subscription = Subscription(
            self._reading, self._prefetch, first, self._take, patience
        )
        self._arrived = arrived
        self._background = Background()
        self._error: DuologError | None = None
        self._silences: dict[str, DuologError] = {}  # what has had no answer for long, and why
        # The rest of the batch in hand, to be taken from: each message counts as `get` does.
        self.at_hand: Iterator[Message] = iter(())
        self._handed: tuple[Queue, int] | None = None  # see `_settle`
        self.held = InHand()  # beside it, or in its place: see `hold`
        self._leaving: dict[Queue, float] = {}  # since when (loop time) messages in hand keep them
        self._left = False
        self._started = False

    # -- life ----------------------------------------------------------------------------------

    async def start(self) -> None:
        """Join the group and begin to read. Raises UnknownTopic, Unavailable, Timeout."""
        if self._started:
            return
        self._started = True
        await self._heartbeat()
        if not self._positions:  # all are read by others, or a new master hears them first
            await self._known([(topic, 0) for topic in self._membership.topics])
        for work in (self._heartbeats, self._commits, self._subscribe):
            self._background.start(self._keep(work)).add_done_callback(self._ended)

    def also_read(self, topics: Collection[str]) -> None:
        """Read topics that came to this replica group since, from their first messages there."""
        more = sorted(set(topics).difference(self._membership.topics))
        self._begun = self._begun.union(more)
        self._membership.topics += more  # as of the next heartbeat

    def _ended(self, task: "asyncio.Task[None]") -> None:
        """A task that something else cancelled reads no more: `get` must not wait for it."""
        if task.cancelled() and not self._left:
            self._error = Unavailable(
                "a task of the consumer was cancelled by the program: make another consumer"
            )
            self._arrived.set()

    async def _keep(self, loop: Callable[[], Awaitable[None]]) -> None:
        try:
            await loop()
        except DuologError as error:
            self._error = error
            self._arrived.set()
        except Exception as error:
            log.exception("a background task of the consumer failed")
            self._error = DuologError(f"{type(error).__name__}: {error}")
            self._arrived.set()

    async def _subscribe(self) -> None:
        # After a break: where the group's master answers, rather than anywhere.
        await self._subscription.run(
            lambda: self._connection.endpoint, partial(self._silent, "read")
        )

    async def close(self, commit: bool = True) -> None:
        """Commit what was consumed, leave the group. Bounded; may be called again."""
        if self._left:
            return
        self._left = True
        try:
            await self._background.stop()
            if commit:
                self.consume_handed()
                with contextlib.suppress(DuologError):
                    await self.commit()
            await self._membership.leave()
        finally:
            await self._reading.close()

    def forget_handed(self) -> None:
        """Do not count the last handed-out messages as consumed."""
        self._settle()
        self._handed = None

    def take_back(self) -> None:
        """Hand out the last messages again: they did not reach the user."""
        self._settle()
        if self._handed is None:
            return
        queue, self._handed = self._handed[0], None
        if self._prefetch.reads(queue):  # else the next member gets it
            self._read_from({queue: self._positions[queue]})

    # -- group ---------------------------------------------------------------------------------

    async def _heartbeats(self) -> None:
        pending = False
        failing_since: float | None = None
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(
                PENDING_SECONDS if pending else min(HEARTBEAT_SECONDS, self._session / 3)
            )
            try:
                pending = await self._heartbeat()
                failing_since = None
                self._silent("join", None)
            except REPEATED as error:
                failing_since = failing_since or loop.time()
                if loop.time() - failing_since > max(self._timeout, self._session):
                    self._silent("join", error)
                else:
                    log.warning("heartbeat of group %s failed: %s", self.group, error)

    def _silent(self, call: str, error: DuologError | None) -> None:
        """A call has had no answer for long, and is still tried; None: it has one."""
        if error is None:
            self._silences.pop(call, None)
        elif call not in self._silences:
            self._silences[call] = error
            log.warning(
                "replica group %s does not answer; still trying: %s", self.replica_group, error
            )
            self._arrived.set()

    @property
    def silence(self) -> DuologError | None:
        """Why nothing has come from the replica group for long; None where something may come."""
        return next(iter(self._silences.values()), None)

    async def _heartbeat(self) -> bool:
        """Tell the node we live; take on and let go of queues. True while some are awaited."""
        share = await self._membership.share(list(self._positions))
        if share.forfeited:
            self._stop_reading(share.forfeited)
            self._drop(share.forfeited)  # before the next commit, which it would have refused
        lost = [queue for queue in self._positions if queue not in share.queues]
        if lost:
            await self._let_go(lost)
        else:
            self._leaving = {}
        gained = sorted(share.queues - self._prefetch.queues)
        if gained:
            await self._take_on(gained)
        return share.pending or bool(lost)

    @property
    def _in_hand(self) -> set[Queue]:
        return self.held.running.union([self._handed[0]] if self._handed is not None else ())

    async def _let_go(self, queues: list[Queue]) -> None:
        """Stop reading queues that go to another member; they are ours until that is committed.

        One with a message in hand remains ours until that is consumed: the next member would get
        it as well.
        """
        self._stop_reading(queues)
        kept = self._kept(queues)  # before the commit, which may miss what is consumed meanwhile
        try:
            await self.commit()
        except StaleMember:
            kept = set()  # another member may have them by now
        self._drop(set(queues) - kept)

    def _stop_reading(self, queues: Iterable[Queue]) -> None:
        self._prefetch.end(queues)
        self._settle()
        self._subscription.nudge()

    def _drop(self, queues: set[Queue]) -> None:
        """They are not ours any more."""
        for queue in queues:
            del self._positions[queue]
        self._dirty -= queues
        self._rewound -= queues
        if self._handed is not None and self._handed[0] in queues:
            self._handed = None
        self.held.drop(queues)
        self._arrived.set()  # there may be room in hand

    def _kept(self, queues: list[Queue]) -> set[Queue]:
        """Queues with messages in hand, for as long as a silent member keeps what it reads."""
        now = asyncio.get_running_loop().time()
        kept = self._in_hand.intersection(queues)
        self._leaving = {queue: self._leaving.get(queue, now) for queue in kept}
        return {queue for queue, since in self._leaving.items() if now - since <= self._session}

    async def _take_on(self, queues: list[Queue]) -> None:
        """Begin reading queues where the group is, or at the start that was asked for."""
        found = await self._known(queues)
        starts = {queue: offset for queue, offset in found.items() if offset >= 0}
        starts.update(self._positions)  # a queue that comes back: we held it all the time
        new = [queue for queue in queues if queue not in starts]
        if new:
            begun = self._begun.union(queue[0] for queue in starts)
            try:
                starts.update(await self._begin(new, begun))
            except StaleMember:
                return  # the next heartbeat tells which are ours
        starts.update(self._positions)  # they may have moved since
        self._read_from({queue: starts[queue] for queue in queues})

    async def _known(self, queues: list[Queue]) -> dict[Queue, int]:
        """The group's offsets, committed or its start, in all queues of their topics."""
        found: dict[Queue, int] = {}
        early = [queue for queue in queues if queue[0] in self._begun]
        others = [queue for queue in queues if queue[0] not in self._begun]
        for some, start in (early, Start.EARLIEST), (others, self._start):
            if some:
                found |= await self._membership.offsets(some, start)
        return found

    async def _begin(self, queues: list[Queue], begun: Collection[str]) -> dict[Queue, int]:
        """Commit where to begin before anything is read: what comes later is not passed over when
        its queue has another reader before anything of it was consumed.

        begun: topics that were read before; a queue that is new there begins at its first message.
        So does what members sent back: it was read before, and none of it is too old.
        """
        starts = {}
        for queue in queues:
            early = queue[0] in begun or queue[0].startswith(RETRY_PREFIX)
            starts[queue] = await self._offset_at(queue, Start.EARLIEST if early else self._start)
        await self._membership.commit(starts, forward=True)
        return starts

    def _read_from(self, starts: dict[Queue, int]) -> None:
        self._positions.update(starts)
        if self._handed is not None and self._handed[0] in starts:
            starts = {**starts, self._handed[0]: self._handed[1]}  # it is not handed out again
        ends = {queue: end for queue in starts if (end := self.held.end(queue)) is not None}
        self._prefetch.begin({**starts, **ends})
        self._subscription.nudge()
        self._arrived.set()  # what is in hand may begin

    def _take(self, reply: wire.MessageBatch) -> None:
        """A batch arrived."""
        batch = Batch(reply, self.replica_group)
        if not self._prefetch.arrived(batch, reply.subscription):
            return
        if batch.lost:
            log.error(
                "%s/%d: %d messages below offset %d are lost (corrupt or removed)",
                batch.topic,
                batch.queue_id,
                batch.lost,
                batch.next_offset,
            )
        if reply.status == wire.OFFSET_TOO_LARGE:
            log.error(
                "%s/%d now ends at offset %d, below what was read: an unclean election "
                "gave up messages; reading continues there",
                batch.topic,
                batch.queue_id,
                batch.next_offset,
            )
        self._arrived.set()

    # -- reading -------------------------------------------------------------------------------

    def consume_handed(self) -> None:
        """Count the message (or batch) handed out last as consumed."""
        self._settle()
        if self._handed is not None:
            self._consumed(*self._handed)
            self._handed = None

    def _settle(self) -> None:
        """Count what the user took from `at_hand`: all but the last message is consumed."""
        given = self._prefetch.given()
        if given is None:
            return
        if self._handed is not None:
            self._consumed(*self._handed)
        if given.count > 1:
            self._consumed(given.queue, given.before)
        self._handed = (given.queue, given.behind)

    def _consumed(self, queue: Queue, offset: int) -> None:
        if not self.held.passed(queue, offset):
            self._advance(queue, offset)

    def _advance(self, queue: Queue, offset: int) -> None:
        if queue in self._positions:
            if offset < self._positions[queue]:  # the queue lost its end: see `_take`
                self._rewound.add(queue)
            self._positions[queue] = offset
            self._dirty.add(queue)

    def _finish(self) -> Batch:
        """The first batch is used up, or given to the user as a whole."""
        batch = self._prefetch.finish()
        self._subscription.nudge()
        return batch

    def _next_batch(self) -> tuple[Batch, int] | None:
        """The first batch that is not used up, and how many of its messages are.

        None if there is none. Raises what ended the reading.
        """
        while (head := self._prefetch.head()) is not None:
            batch, used = head
            if used < batch.count or (batch.lost and not batch.count):
                return head
            self._finish()
            self._consumed((batch.topic, batch.queue_id), batch.next_offset)
        self.check()
        return None

    def check(self) -> None:
        """Raise what ended the reading."""
        if self._error is not None:
            raise self._error

    def get_batch(self) -> Batch | None:
        """The next batch as columns, None if none is there."""
        head = self._next_batch()
        if head is None:
            return None
        batch, used = head
        if used:
            raise BadRequest(
                f"{batch.count - used} messages of the current batch are not read yet: "
                "read them with get before calling get_batch"
            )
        self._finish()
        self._handed = ((batch.topic, batch.queue_id), batch.next_offset)
        return batch

    def get(self) -> Message | None:
        """The next message, None if none is there. More may be taken from `at_hand`."""
        while (head := self._next_batch()) is not None:
            batch, used = head
            if used < batch.count:
                self.at_hand = self._prefetch.messages()
                for message in self.at_hand:
                    return message
                continue  # another thread took the last of them meanwhile
            self._finish()  # nothing but lost messages
            self._consumed((batch.topic, batch.queue_id), batch.next_offset)
        return None

    # -- several messages in hand --------------------------------------------------------------

    def hold(self, message: Message) -> Held:
        """Keep the message that `get` returned last in hand until `finish`, beside others."""
        self._settle()
        assert self._handed is not None, "a message was taken"
        (queue, behind), self._handed = self._handed, None
        return self.held.add(queue, behind, message)

    def begin(self, held: Held) -> bool:
        """The handling of a message begins; False: not now, its queue goes to another member."""
        if held.dropped or not self._prefetch.reads(held.queue):
            return False
        self.held.begin(held)
        return True

    def finish(self, held: Held) -> None:
        """The message is consumed, once everything before it in its queue is."""
        behind = self.held.finish(held)
        if behind is not None:
            self._advance(held.queue, behind)

    def give_back(self) -> None:
        """Hand out again what is in hand and not finished, and all behind it."""
        queues = self.held.queues
        self.held.drop(queues)
        self._read_from({q: self._positions[q] for q in queues if self._prefetch.reads(q)})

    # -- offsets -------------------------------------------------------------------------------

    @property
    def assignment(self) -> list[Queue]:
        """Queues this member reads now."""
        return sorted(self._prefetch.queues)

    async def _commits(self) -> None:
        while True:
            await asyncio.sleep(self._commit_interval)
            try:
                await self.commit()
            except (*REPEATED, StaleMember) as error:
                log.warning("commit of group %s failed: %s", self.group, error)

    async def commit(self) -> None:
        """Commit everything consumed so far. Raises StaleMember where a queue was taken away."""
        async with self._committing:  # an older commit that is retried must not land on a newer one
            self._settle()
            offsets = {queue: self._positions[queue] for queue in sorted(self._dirty)}
            if not offsets:
                return
            rewound = self._rewound & offsets.keys()
            for forward in (True, False):
                some = {q: offset for q, offset in offsets.items() if (q in rewound) != forward}
                if not some:
                    continue
                await self._membership.commit(some, forward)
                for queue, offset in some.items():
                    if self._positions.get(queue) == offset:
                        self._dirty.discard(queue)
                        self._rewound.discard(queue)

    async def send_back(self, message: Message, delay_level: int, max_attempts: int) -> str:
        """The group gets a message again later, or it is a dead letter; the topic it is in now."""
        request = wire.SendBackRequest(
            group=self.group,
            topic=message.stored_topic,
            queue_id=message.queue_id,
            queue_offset=message.queue_offset,
            delay_level=delay_level,
            max_attempts=max_attempts,
        )
        reply = await self._connection.call(
            lambda left: self._connection.groups.SendBack(request, timeout=left), self._timeout
        )
        return str(reply.topic)

    async def _offset_at(self, queue: Queue, at: Start | int) -> int:
        request = wire.OffsetAtTimeRequest(topic=queue[0], queue_id=queue[1])
        set_start(request, at)
        reply = await self._connection.call(
            lambda left: self._connection.groups.OffsetAtTime(request, timeout=left), self._timeout
        )
        return int(reply.queue_offset)

    async def seek_to_time(self, at: Start | int) -> None:
        """Read on from the first message stored at or after a time, in every queue of ours."""
        starts = {queue: await self._offset_at(queue, at) for queue in self.assignment}
        self._seek({queue: to for queue, to in starts.items() if self._prefetch.reads(queue)})

    async def seek(self, topic: str, queue_id: int, offset: int) -> None:
        """Read on from a queue offset. Raises UnknownTopic where the queue is not ours."""
        queue = (topic, queue_id)
        if not self._prefetch.reads(queue):
            raise UnknownTopic(f"queue {topic}/{queue_id} is not assigned to this consumer")
        if offset < 0:
            raise BadRequest(f"offset {offset} is negative")
        self._seek({queue: offset})

    def _seek(self, starts: dict[Queue, int]) -> None:
        """Do not count the last messages of these queues as consumed."""
        self._settle()
        if self._handed is not None and self._handed[0] in starts:
            self._handed = None
        self.held.drop(starts)
        self._read_from(starts)
        self._dirty.update(starts)
        self._rewound.update(starts)
