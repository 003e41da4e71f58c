"""The consumer: a member of a group that reads its share of the queues, in all replica groups.

Members of a group share the queues (clustering), and a queue has one reader at a time: messages of
one queue come in order, one member after the other. A consumer that broadcasts reads them all.

A message counts as consumed when the next one is asked for, or when the `async with` block ends
without an error. Committed offsets say what the group has consumed; a crash repeats what was not
committed (at least once).
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import TypeVar

from duolog._background import Background, close_all
from duolog._checks import INT32_MAX, checked_number, checked_text, checked_whole
from duolog._errors import BadRequest, DuologError, UnknownTopic
from duolog._forks import Owned
from duolog._groupreader import GroupReader
from duolog._membership import (
    BroadcastMember,
    Clustering,
    Consumption,
    Membership,
    OffsetFile,
    Queue,
    SharingMember,
)
from duolog._message import Batch, Message
from duolog._router import FRESH_SECONDS, Router
from duolog._start import Start, check_start
from duolog._stopsignals import stop_signals
from duolog._topics import TopicCache
from duolog._tracecontext import context_in
from duolog._worker import Handler, Work, Worker, worker_of

T = TypeVar("T")
log = logging.getLogger("duolog")


class Consumer(Owned):
    """Reads topics as a member of a group. Made by `Client.consumer()`; for one task at a time."""

    def __init__(
        self,
        router: Router,
        topics_known: TopicCache,
        topics: Sequence[str],
        consumption: Consumption,
        place: Clustering | OffsetFile,
    ) -> None:
        """Not called by users: see `Client.consumer`.

        place: how it shares the queues, or where it keeps its offsets if it broadcasts.
        """
        super().__init__()
        if not topics:
            raise BadRequest("a consumer needs at least one topic")
        self.group = consumption.group
        self.topics = list(topics)
        self._router = router
        self._topics = topics_known
        self._timeout = consumption.timeout
        self._consumption = consumption
        self._place = place
        self._arrived = asyncio.Event()
        self._readers: dict[str, GroupReader] = {}
        self._turn = 0
        self._silence: DuologError | None = None  # of all groups, raised already
        # What is left of the batch in hand; what is taken from it, on any thread, is as by `get`.
        self._at_hand: Iterator[Message] = iter(())
        self._left = False
        self._started = False
        self._entered = False
        self._polled = False  # the program has asked for messages
        self._worker: Worker | None = None
        self._stop_asked = False  # before there was a worker
        self._background = Background()
        self._spans = router.runtime.spans
        # Not called by users: the spans of what they do with messages; None: nobody takes any.
        self.processing = None if self._spans is None else self._spans.processing(self.group)

    # -- life ----------------------------------------------------------------------------------

    async def start(self) -> None:
        """Join the group and begin to read. Raises UnknownTopic, Unavailable, Timeout."""
        self._check_open()
        if self._started:
            return
        try:
            await self._join()
        except BaseException:
            joined, self._readers = self._readers, {}
            await close_all([partial(reader.close, commit=False) for reader in joined.values()])
            raise
        self._started = True
        self._background.start(self._find_groups())

    async def _join(self) -> None:
        """Begin to read in every replica group that holds one of the topics."""
        held: dict[str, list[Queue]] = {}
        topics: dict[str, set[str]] = {}  # of each replica group
        there = set(await self._router.all_groups(self._timeout))  # some names outlive their group
        for topic in self.topics:
            for replica_group, queue in await self._topics.slots(topic, self._timeout):
                if replica_group not in there:
                    continue
                held.setdefault(replica_group, []).append((topic, queue))
                topics.setdefault(replica_group, set()).add(topic)
            for replica_group in self._topics.guest_groups(topic):
                topics.setdefault(replica_group, set()).add(topic)
        members = {
            replica_group: self._member(replica_group, sorted(names))
            for replica_group, names in topics.items()
            if replica_group not in self._readers
        }
        for replica_group in self._readers.keys() & topics.keys():
            self._readers[replica_group].also_read(topics[replica_group])
        # What came to another replica group since is read from its first message there.
        begun = set(self.topics) if self._started else await self._begun(members, held)
        consumption = replace(self._consumption, begun=frozenset(begun))
        for replica_group in sorted(members):
            member = members[replica_group]
            reader = GroupReader(self._router, replica_group, consumption, member, self._arrived)
            try:
                await reader.start()
            except BaseException as error:
                await reader.close(commit=False)
                if not (self._started and isinstance(error, DuologError)):
                    raise
                log.warning("cannot read in replica group %s yet: %s", replica_group, error)
                continue
            self._readers[replica_group] = reader

    async def _begun(
        self, members: dict[str, Membership], held: dict[str, list[Queue]]
    ) -> set[str]:
        """Topics of which the group has an offset in one of several replica groups."""
        begun: set[str] = set()
        if len(members) > 1 and self._consumption.start is not Start.EARLIEST:
            for replica_group, member in members.items():
                known = await member.offsets(held.get(replica_group, []), None)
                begun |= {topic for (topic, _), offset in known.items() if offset >= 0}
        return begun

    def _member(self, replica_group: str, topics: list[str]) -> Membership:
        connection, place = self._router.connection(replica_group), self._place
        if isinstance(place, OffsetFile):
            return BroadcastMember(connection, replica_group, topics, place, self._timeout)
        return SharingMember(connection, topics, self._consumption, place, lambda: self._polled)

    async def _find_groups(self) -> None:
        """Topics may come to replica groups that did not hold them."""
        while True:
            await asyncio.sleep(FRESH_SECONDS)
            try:
                await self._join()
            except DuologError as error:
                log.warning("cannot find the topics' replica groups: %s", error)

    async def close(self, commit: bool = True) -> None:
        """Commit what was consumed, leave the group. Bounded; may be called again.

        A running `run` is stopped before, and ends in its time of grace.
        """
        if self._left or self.forked:
            return
        if (worker := self._worker) is not None:
            if worker_of.get() is worker:
                raise BadRequest("close() waits for the handlers, and was called by one: use stop")
            worker.stop()
            await worker.ended()
        self._left, self._at_hand = True, iter(())
        self._arrived.set()
        if self.processing is not None:
            self.processing.end()
        readers = self._readers.values()
        await close_all([self._background.stop], [partial(one.close, commit) for one in readers])

    async def __aenter__(self) -> "Consumer":
        """Join."""
        if self._entered:
            raise BadRequest("the consumer is in use already: make another one")
        await self.start()
        self._entered = True
        return self

    def note_fork(self) -> None:
        """See Owned: what is left of the batch in hand is the parent's."""
        super().note_fork()
        self._at_hand = iter(())

    def _check_open(self) -> None:
        self.check_process()
        if self._left:
            raise BadRequest("the consumer is closed: make another one")

    async def __aexit__(self, kind: object, error: BaseException | None, *_: object) -> None:
        """Leave; after an error the message in hand does not count as consumed."""
        if self.forked:
            return
        if self.processing is not None:
            self.processing.end(error)
        if kind is not None:
            for reader in self._readers.values():
                reader.forget_handed()
        await self.close()

    @property
    def closed(self) -> bool:
        """Whether it has left the group."""
        return self._left

    # -- a worker ------------------------------------------------------------------------------

    async def run(
        self,
        handler: Handler,
        *,
        concurrency: int = 1,
        by_key: bool = False,
        grace: float = 30.0,
    ) -> None:
        """Handle messages until `stop`, `close`, SIGTERM, SIGINT or a cancellation.

        A message is consumed when its handler has returned and all before it in its queue are
        consumed; what was not is delivered again. A handler that raises sends it back, as
        `send_back` does: the group gets it later, and after the last attempt it is a dead letter.

        In the end it takes no more messages, waits for running handlers, cancels those that take
        longer than `grace`, and gives their messages back. A second signal or cancellation cancels
        them at once; a third signal acts as if no worker ran. When it returns, what was consumed is
        committed. Signals stop it only in the main thread, and where the program has no handler of
        its own for them.

        Args:
            handler: called with each message. A coroutine function runs in a task for each message,
                any other function in a thread; a thread cannot be cancelled, and is left behind.
            concurrency: messages that are handled at a time; with 1, in the order of their queues.
            by_key: messages with the same keys (or message group, of RocketMQ's FIFO messages) are
                handled one after the other, in the order of their queue; those without in any.
                One that was sent back comes after others of its key.
            grace: seconds that handlers may take to end.

        Raises what ended the reading, or the sending back of a message.
        """
        worker = self.make_worker(Work(handler, concurrency, by_key, grace))
        await self.run_worker(worker, stop_signals(self.interrupt))

    def make_worker(self, work: Work) -> Worker:
        """Not called by users: a worker that reads from this consumer, for `run_worker`."""
        self._check_open()
        self._check_idle()
        if not self._started:
            raise BadRequest("the consumer was not started: use it in `with`, or call `start`")
        span = None if self._spans is None else partial(self._spans.process, group=self.group)
        worker = Worker(_Hands(self), work, span)
        if self.processing is not None:
            self.processing.end()
        self._at_hand, self._worker, self._polled = iter(()), worker, True
        for reader in self._readers.values():
            reader.consume_handed()
        asked, self._stop_asked = self._stop_asked, False
        if asked:
            worker.stop()
        return worker

    async def run_worker(
        self, worker: Worker, signals: AbstractContextManager[None] | None = None
    ) -> None:
        """Not called by users: `run`, by the worker of `make_worker`; signals: that stop it."""
        try:
            with signals or nullcontext():
                await worker.run()
        finally:
            self._worker = None
        try:
            await self.commit()
        except DuologError as error:
            log.warning("some handled messages are delivered again: %s", error)

    def stop(self) -> None:
        """Ask `run` to take no more messages and to return when its handlers have ended.

        Any thread may call it, a handler too. Where `run` does not run, it returns at once when it
        is called.
        """
        self.check_process()
        if (worker := self._worker) is not None:
            worker.loop.call_soon_threadsafe(worker.stop)
        else:
            self._stop_asked = True

    def interrupt(self) -> None:
        """Not called by users: what a signal does to `run`; on any thread."""
        if (worker := self._worker) is not None:
            worker.loop.call_soon_threadsafe(worker.interrupt)
        else:
            self._stop_asked = True

    async def interrupted(self) -> None:
        """Not called by users: `interrupt`, and wait for the end of `run`."""
        if (worker := self._worker) is not None:
            worker.interrupt()
            await worker.ended()

    def _check_idle(self) -> None:
        if self._worker is not None:
            raise BadRequest("`run` reads from this consumer: make another one")

    # -- reading -------------------------------------------------------------------------------

    async def get_batch(self, timeout: float | None = None) -> Batch | None:
        """The next batch as columns, or None after `timeout` seconds; earlier ones are consumed."""
        processing = self.processing
        if processing is None:
            return await self.next_batch(timeout)
        self.check_process()  # the spans are the parent's
        asked_ns = processing.end()
        batch = await self.next_batch(timeout)
        if batch is not None:
            processing.begin_batch(batch, asked_ns)
        return batch

    async def next_batch(self, timeout: float | None) -> Batch | None:
        """Not called by users: `get_batch`, without spans."""
        self._check_idle()
        return await self._next(lambda reader: reader.get_batch(), timeout)

    async def get(self, timeout: float | None = None) -> Message | None:
        """The next message, or None after `timeout` seconds; earlier ones count as consumed."""
        for message in self._at_hand:  # most often: nothing to wait for
            return message
        processing = self.processing
        if processing is None:
            return await self.next_message(timeout)
        self.check_process()
        asked_ns = processing.end()
        found = await self.next_message(timeout)
        if found is not None:
            processing.begin_first(found, asked_ns)
        return found

    async def next_message(self, timeout: float | None) -> Message | None:
        """Not called by users: `get` when the buffer is empty, without a span for the message."""
        self._check_idle()
        found = await self._next(lambda reader: reader.get(), timeout)
        if found is not None:
            at_hand = self._readers[found.group].at_hand
            self._at_hand = at_hand if self.processing is None else self.processing.over(at_hand)
        return found

    async def _next(
        self, take: Callable[[GroupReader], T | None], timeout: float | None
    ) -> T | None:
        """The next message of the readers, in turn; waits if none has one."""
        if timeout is not None:
            checked_number("timeout", timeout)
        self._check_open()
        if not self._started:
            raise BadRequest("the consumer was not started: use it in `with`, or call `start`")
        self._polled = True
        for reader in self._readers.values():
            reader.consume_handed()
        loop = asyncio.get_running_loop()
        deadline = None if timeout is None else loop.time() + timeout
        while not self._left:
            self._arrived.clear()
            found = self._now(take)
            if found is not None:
                return found
            self._check_silence()
            left = None if deadline is None else deadline - loop.time()
            if left is not None and left <= 0:
                return None
            try:
                async with asyncio.timeout(left):
                    await self._arrived.wait()
            except TimeoutError:
                return None
            self._turn += 1
        return None

    def _now(self, take: Callable[[GroupReader], T | None]) -> T | None:
        readers = list(self._readers.values())
        for k in range(len(readers)):
            found = take(readers[(self._turn + k) % len(readers)])
            if found is not None:
                self._turn += k
                return found
        return None

    def _check_silence(self) -> None:
        """Raise what no replica group answers with, once; after that, messages are waited for."""
        silences = [reader.silence for reader in self._readers.values()]
        silence = silences[0] if silences and all(silences) else None
        before, self._silence = self._silence, silence
        if silence is not None and silence is not before:
            raise silence

    def take_back(self) -> None:
        """The message (or batch) given last did not reach the user, and is given again."""
        for reader in self._readers.values():
            reader.take_back()

    async def batches(self) -> AsyncIterator[Batch]:
        """All batches, until the consumer is closed."""
        while not self._left and (batch := await self.get_batch()) is not None:
            yield batch

    def __aiter__(self) -> "Consumer":
        """All messages, until the consumer is closed."""
        return self

    async def __anext__(self) -> Message:
        """The next message."""
        for message in self._at_hand:  # as `get`, without another coroutine for each message
            return message
        found = None if self._left else await self.get()
        if found is None:
            raise StopAsyncIteration
        return found

    async def send_back(
        self, message: Message, *, delay_level: int = 0, max_attempts: int = 0
    ) -> str:
        """Reject this message: the group gets it again later.

        It comes from the group's retry topic, to any member, with one more of `reconsume_times`;
        after the last attempt it is a dead letter. The original counts as consumed as usual:
        continue to the next message. Sent back twice, it comes twice.

        Args:
            message: one that this consumer was given.
            delay_level: one of the node's, 1 to 18 by default; 0 for the ladder: 10 s, 30 s, 1 min
                ... 2 h; negative gives it up.
            max_attempts: before it is a dead letter; 0 for the group's `retry_times`.

        Returns where it is now: %RETRY%<group> (when its delay is over) or %DLQ%<group>. Raises
        BadRequest if the consumer broadcasts, NoSuchMessage if it is no longer there, CorruptBatch
        if the master has it damaged.
        """
        self.check_process()
        if not isinstance(message, Message):
            raise BadRequest(f"message must be a Message, not {type(message).__name__}")
        checked_whole("delay_level", delay_level, -INT32_MAX, INT32_MAX)
        checked_whole("max_attempts", max_attempts, 0, INT32_MAX)
        if isinstance(self._place, OffsetFile):
            raise BadRequest("a broadcasting consumer cannot send messages back")
        reader = self._readers.get(message.group)
        if reader is None:
            raise BadRequest(f"{message!r} was not delivered by this consumer")
        if self._spans is None:
            return await reader.send_back(message, delay_level, max_attempts)
        origin = context_in(message.property_text)
        with self._spans.send_back(message.topic, origin, self.group):
            return await reader.send_back(message, delay_level, max_attempts)

    # -- offsets -------------------------------------------------------------------------------

    @property
    def assignment(self) -> list[Queue]:
        """Queues this member reads now: topic and queue id, one entry per replica group."""
        return sorted(queue for reader in self._readers.values() for queue in reader.assignment)

    async def commit(self) -> None:
        """Commit everything consumed so far. Raises StaleMember where a queue was taken away."""
        self.check_process()
        for reader in list(self._readers.values()):  # another replica group may come
            await reader.commit()

    async def seek_to_time(self, at: Start | int) -> None:
        """Read on from the first message stored at or after a time, in every queue of ours.

        at: ms since 1970, or an end of the queues. Raises BadRequest.
        """
        check_start(at)
        self.check_process()
        for reader in list(self._readers.values()):
            await reader.seek_to_time(at)

    async def seek(
        self, topic: str, queue_id: int, offset: int, *, group: str | None = None
    ) -> None:
        """Read on from a queue offset. Raises UnknownTopic where the queue is not ours.

        group: the replica group of the queue, where the topic lies in several.
        """
        checked_text("topic", topic)
        checked_whole("queue_id", queue_id, 0, INT32_MAX)
        checked_whole("offset", offset)
        if group is not None:
            checked_text("group", group)
        slot = await self._topics.slot(topic, queue_id, group, self._timeout)
        reader = self._readers.get(slot[0])
        if reader is None:
            raise UnknownTopic(f"queue {topic}/{queue_id} is not assigned to this consumer")
        await reader.seek(topic, queue_id, offset)


class _Hands:
    """The consumer, as its worker uses it."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self.send_back = consumer.send_back

    @property
    def readers(self) -> Mapping[str, GroupReader]:
        return self._consumer._readers

    def take_now(self, taken: Callable[[GroupReader], T | None]) -> T | None:
        return self._consumer._now(taken)

    async def take(self, taken: Callable[[GroupReader], T | None]) -> T | None:
        return await self._consumer._next(taken, None)

    def look_again(self) -> None:
        self._consumer._arrived.set()
