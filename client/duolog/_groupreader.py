"""A consumer's part in one replica group: a member of the group there, that reads its share.

A message counts as consumed when the next one is asked for, or when the `async with` block ends
without an error. Committed offsets say what the group has consumed; a crash repeats what was not
committed (at least once).
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Sequence
from typing import Any

import grpc
import grpc.aio

from duolog._backoff import BackOff
from duolog._connection import Connection, uncancelled
from duolog._errors import (
    BadRequest,
    DuologError,
    Retryable,
    StaleMember,
    Unavailable,
    UnknownTopic,
    error_of,
)
from duolog._membership import Membership, Queue
from duolog._message import RETRY_PREFIX, Batch, Message
from duolog.wire import duolog_pb2 as wire

log = logging.getLogger("duolog")
log.addHandler(logging.NullHandler())  # silent unless the program asks

CREDIT_BYTES = 8 << 20
BATCH_BYTES = 512 << 10
HEARTBEAT_SECONDS = 3.0
PENDING_SECONDS = 0.3
EARLIEST = -1
LATEST = -2


class GroupReader:
    """Reads the topics that one replica group holds, as a member of the consumer group there."""

    def __init__(
        self,
        connection: Connection,
        reading: Connection,
        replica_group: str,
        arrived: asyncio.Event,
        group: str,
        membership: Membership,
        *,
        tags: Sequence[str] = (),
        sql: str = "",
        start: str = "earliest",
        commit_interval: float = 5.0,
        session: float = 10.0,
        timeout: float = 10.0,
    ) -> None:
        """Not called by users: see `Client.consumer`.

        reading: the reader's own; what it reads may come from a slave, what it commits may not.
        arrived: set whenever there may be something to get. membership: our place in the group.
        """
        self.replica_group = replica_group
        self._connection = connection
        self._reading = reading
        self.group = group
        self._membership = membership
        self._tags = list(tags)
        self._sql = sql
        self._start = EARLIEST if start == "earliest" else LATEST
        self._commit_interval = commit_interval
        self._session = session
        self._timeout = timeout
        self._owned: dict[Queue, int] = {}  # subscription id of each queue read now
        self._positions: dict[Queue, int] = {}  # consumed up to here
        self._dirty: set[Queue] = set()
        self._ready: deque[tuple[int, Batch, int]] = deque()
        self._arrived = arrived
        self._call: Any = None
        self._subscriptions = 0
        self._tasks: list[asyncio.Task[None]] = []
        self._error: DuologError | None = None
        self._returned = 0  # credit not yet given back
        self._handed: tuple[Queue, int] | None = None
        self._left = False
        self._started = False

    # -- life ----------------------------------------------------------------------------------

    async def start(self) -> None:
        """Join the group and begin to read. Raises UnknownTopic, Unavailable, Timeout."""
        if self._started:
            return
        self._started = True
        await self._heartbeat()
        self._tasks += [
            asyncio.ensure_future(self._keep(self._heartbeats)),
            asyncio.ensure_future(self._keep(self._commits)),
        ]

    async def _keep(self, loop: Any) -> None:
        try:
            await loop()
        except DuologError as error:
            self._error = error
            self._arrived.set()
        except Exception as error:
            log.exception("a background task of the consumer failed")
            self._error = DuologError(f"{type(error).__name__}: {error}")
            self._arrived.set()

    async def close(self, commit: bool = True) -> None:
        """Commit what was consumed, leave the group. Bounded; may be called again."""
        if self._left:
            return
        self._left = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        if commit:
            self.consume_handed()
            with contextlib.suppress(DuologError):
                await self.commit()
        if self._call is not None:
            self._call.cancel()
        await self._membership.leave()
        await self._reading.close()

    def forget_handed(self) -> None:
        """What was handed out last does not count as consumed."""
        self._handed = None

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
            except Retryable as error:
                failing_since = failing_since or loop.time()
                log.warning("heartbeat of group %s failed: %s", self.group, error)
                if loop.time() - failing_since > max(self._timeout, self._session):
                    raise

    async def _heartbeat(self) -> bool:
        """Tell the node we live; take on and let go of queues. True while some are awaited."""
        share = await self._membership.share(list(self._owned))
        lost = [queue for queue in self._owned if queue not in share.queues]
        if lost:
            await self._let_go(lost)
        gained = sorted(share.queues - set(self._owned))
        if gained:
            await self._take_on(gained)
        return share.pending or bool(lost)

    async def _let_go(self, queues: list[Queue]) -> None:
        """Stop reading queues that go to another member, committing first."""
        with contextlib.suppress(StaleMember):
            await self.commit()
        for queue in queues:
            del self._owned[queue]
            self._positions.pop(queue, None)
            self._dirty.discard(queue)
        gone = set(queues)
        kept = [item for item in self._ready if (item[1].topic, item[1].queue_id) not in gone]
        self._ready = deque(kept)
        if self._handed is not None and self._handed[0] in gone:
            self._handed = None
        await self._write(
            wire.SubscribeRequest(remove=[wire.QueueRef(topic=t, queue_id=q) for t, q in queues])
        )

    async def _take_on(self, queues: list[Queue]) -> None:
        """Begin reading queues where the group is, or at the start that was asked for."""
        known = await self._membership.offsets(queues)
        starts = {}
        for queue in queues:
            offset = known.get(queue, -1)
            if offset < 0:
                # What members sent back was read before: none of it is too old.
                retried = queue[0].startswith(RETRY_PREFIX)
                offset = await self._offset_at(queue, EARLIEST if retried else self._start)
            starts[queue] = offset
        await self._subscribe(starts)

    async def _subscribe(self, starts: dict[Queue, int]) -> None:
        self._subscriptions += 1
        for queue, offset in starts.items():
            self._owned[queue] = self._subscriptions
            self._positions[queue] = offset
        await self._write(
            wire.SubscribeRequest(
                add=[
                    wire.QueueOffset(topic=t, queue_id=q, offset=o) for (t, q), o in starts.items()
                ],
                subscription=self._subscriptions,
            )
        )

    async def _write(self, request: wire.SubscribeRequest) -> None:
        """Write to the subscription, opening it where it is not open."""
        if self._call is None:
            await self._open()
        try:
            await uncancelled(self._call.write(request))
        except (grpc.RpcError, asyncio.InvalidStateError, Retryable):
            # The reader notices the broken stream as well, and subscribes everything anew.
            log.debug("the subscription broke while writing")

    async def _open(self) -> None:
        self._call = self._reading.messages.Subscribe()
        first = wire.SubscribeRequest(
            credit_bytes=CREDIT_BYTES,
            tags=self._tags,
            batch_bytes=BATCH_BYTES,
            sql=self._sql,
            group=self.group if self._sql else "",
        )
        try:
            await uncancelled(self._call.write(first))
        except grpc.RpcError as failure:
            self._call = None
            raise error_of(failure) from None
        except asyncio.InvalidStateError:
            self._call = None
            raise Unavailable("the subscription ended at once") from None
        self._tasks.append(asyncio.ensure_future(self._keep(self._read)))

    async def _read(self) -> None:
        """Take batches off the stream; open it again where it breaks."""
        call = self._call
        try:
            while True:
                reply = await uncancelled(call.read())
                if reply is grpc.aio.EOF:
                    break
                self._take(reply)
        except (grpc.RpcError, Retryable) as failure:
            error = failure if isinstance(failure, Retryable) else error_of(failure)
            if not isinstance(error, Retryable):
                raise error from None
            log.warning("subscription of group %s broke: %s", self.group, error)
        await self._reopen()

    async def _reopen(self) -> None:
        """After a broken stream: subscribe again where reading stood, until it works or time is up.

        Raises what the last try raised.
        """
        self._ready.clear()
        self._returned = 0
        starts = {queue: self._reading_from(queue) for queue in self._owned}
        loop = asyncio.get_running_loop()
        deadline = loop.time() + max(self._timeout, self._session)
        back_off = BackOff()
        while True:
            self._call = None
            # Where the group's master answers, rather than anywhere.
            await self._reading.rotate(self._reading.moves, self._connection.endpoint)
            pause = back_off.next()
            await asyncio.sleep(pause)
            try:
                await self._open()
                if starts:
                    await self._subscribe(starts)
                return
            except Retryable:
                if loop.time() + pause >= deadline:
                    raise

    def _reading_from(self, queue: Queue) -> int:
        if self._handed is not None and self._handed[0] == queue:
            return self._handed[1]
        return self._positions[queue]

    def _take(self, reply: wire.MessageBatch) -> None:
        queue = (reply.topic, reply.queue_id)
        if self._owned.get(queue) != reply.subscription:
            self._returned += len(reply.bodies)  # of a queue let go of, or before a seek
            return
        batch = Batch(reply, self.replica_group)
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
                "%s/%d ends at offset %d, before what was read: an unclean election gave "
                "messages up; reading goes on there",
                batch.topic,
                batch.queue_id,
                batch.next_offset,
            )
        self._ready.append((reply.subscription, batch, 0))
        self._arrived.set()

    # -- reading -------------------------------------------------------------------------------

    def consume_handed(self) -> None:
        """Count the message (or batch) handed out last as consumed."""
        if self._handed is not None:
            queue, offset = self._handed
            if queue in self._owned:
                self._positions[queue] = offset
                self._dirty.add(queue)
            self._handed = None

    def _next_batch(self) -> tuple[int, Batch, int] | None:
        """What came first and is not used up; None where nothing is there. Raises its error."""
        while self._ready:
            if self._ready[0][1].count or self._ready[0][1].lost:
                return self._ready[0]
            self._finish(self._ready.popleft())
        if self._error is not None:
            raise self._error
        return None

    def _finish(self, item: tuple[int, Batch, int]) -> None:
        """A batch was used up: note the position after it, give its credit back."""
        _, batch, _ = item
        queue = (batch.topic, batch.queue_id)
        if self._handed is None and queue in self._owned:
            self._positions[queue] = batch.next_offset
            self._dirty.add(queue)
        self._returned += len(batch.bodies)

    async def _give_credit(self) -> None:
        if self._returned >= CREDIT_BYTES // 8 and self._call is not None:
            granted, self._returned = self._returned, 0
            await self._write(wire.SubscribeRequest(credit_bytes=granted))

    async def get_batch(self) -> Batch | None:
        """The next batch as columns, None where none is there."""
        await self._give_credit()
        item = self._next_batch()
        if item is None:
            return None
        self._ready.popleft()
        _, batch, used = item
        assert used == 0, "get and get_batch are not mixed in mid-batch"
        self._returned += len(batch.bodies)
        self._handed = ((batch.topic, batch.queue_id), batch.next_offset)
        return batch

    async def get(self) -> Message | None:
        """The next message, None where none is there."""
        while True:
            if not self._ready:
                await self._give_credit()
            if self._next_batch() is None:
                return None
            message = self.get_at_hand()
            if message is not None:
                return message
            self._finish(self._ready.popleft())
            await self._give_credit()

    def get_at_hand(self) -> Message | None:
        """The next message of the batch in hand, None where it is used up."""
        self.consume_handed()
        if not self._ready:
            return None
        subscription, batch, used = self._ready[0]
        following = used + 1
        if following > batch.count:
            return None
        self._ready[0] = (subscription, batch, following)
        offset = batch.queue_offsets[following] if following < batch.count else batch.next_offset
        self._handed = ((batch.topic, batch.queue_id), offset)
        return Message(batch, used)

    # -- offsets -------------------------------------------------------------------------------

    @property
    def assignment(self) -> list[Queue]:
        """Queues this member reads now."""
        return sorted(self._owned)

    async def _commits(self) -> None:
        while True:
            await asyncio.sleep(self._commit_interval)
            try:
                await self.commit()
            except (Retryable, StaleMember) as error:
                log.warning("commit of group %s failed: %s", self.group, error)

    async def commit(self) -> None:
        """Commit everything consumed so far. Raises StaleMember where a queue was taken away."""
        queues = [queue for queue in self._dirty if queue in self._owned]
        if not queues:
            return
        offsets = {queue: self._positions[queue] for queue in queues}
        await self._membership.commit(offsets)
        for queue, offset in offsets.items():
            if self._positions.get(queue) == offset:
                self._dirty.discard(queue)

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

    async def _offset_at(self, queue: Queue, time_ms: int) -> int:
        request = wire.OffsetAtTimeRequest(topic=queue[0], queue_id=queue[1], time=time_ms)
        reply = await self._connection.call(
            lambda left: self._connection.groups.OffsetAtTime(request, timeout=left), self._timeout
        )
        return int(reply.queue_offset)

    async def seek_to_time(self, time_ms: int) -> None:
        """Read on from the first message stored at or after a time, in every queue of ours."""
        self._handed = None
        starts = {queue: await self._offset_at(queue, time_ms) for queue in self.assignment}
        self._ready.clear()
        await self._subscribe(starts)
        self._dirty.update(starts)

    async def seek(self, topic: str, queue_id: int, offset: int) -> None:
        """Read on from a queue offset. Raises UnknownTopic where the queue is not ours."""
        queue = (topic, queue_id)
        if queue not in self._owned:
            raise UnknownTopic(f"queue {topic}/{queue_id} is not assigned to this consumer")
        if offset < 0:
            raise BadRequest(f"offset {offset} is negative")
        self._handed = None
        kept = [item for item in self._ready if (item[1].topic, item[1].queue_id) != queue]
        self._ready = deque(kept)
        await self._subscribe({queue: offset})
        self._dirty.add(queue)


__all__ = ["GroupReader"]
