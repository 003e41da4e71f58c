"""The synchronous face: the same client for programs without an event loop.

Calls run on an event loop in a thread that all clients of a process share. Types are separate
classes, so that nothing is ever "maybe awaitable".
"""

import asyncio
import concurrent.futures
import contextlib
import os
import sys
import threading
import weakref
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from duolog import _client
from duolog._access import Access as AsyncAccess
from duolog._access import Decision, User, UserDecision
from duolog._admin import Admin as AsyncAdmin
from duolog._background import report
from duolog._batcher import BUFFER_BYTES, Buffering
from duolog._consumer import Consumer as AsyncConsumer
from duolog._descriptions import (
    ClusterStatus,
    FoundMessage,
    GroupDescription,
    NodeStatus,
    QueueOffset,
    Quota,
    Route,
    TopicDescription,
    TrackedMessage,
    TrackState,
)
from duolog._errors import BadRequest, DuologError, Unavailable
from duolog._login import login_of
from duolog._message import Batch, Message
from duolog._pages import Page
from duolog._posted import Posted as AsyncPosted
from duolog._producer import Producer as AsyncProducer
from duolog._receipts import BatchReceipt, Receipt
from duolog._sending import SendOptions
from duolog._start import Start
from duolog._tls import Tls
from duolog._transactions import Half, UndecidedMessage
from duolog._transactions import Transactions as AsyncTransactions
from duolog._waiting import DelayedPage, HalfMessage, HalvesPage

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

T = TypeVar("T")
INTERRUPTIONS_MAX = 10  # of what cleans up after one; a user who goes on interrupting wants to end


class _Thread:
    """The event loop of all clients of this process, in a thread; it ends with the process.

    One for all, never closed: gRPC tells one loop what happened to the calls of another, and would
    find it closed.
    """

    _running: ClassVar["_Thread | None"] = None
    _starting = threading.Lock()

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self._run, name="duolog-clients", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.set_exception_handler(self._report)
        self.loop.run_forever()

    @staticmethod
    def _report(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """gRPC also tells this loop of calls of others, which their programs may have closed."""
        # Python gives this error no class of its own: its text is all that tells it.
        error = context.get("exception")
        if not (isinstance(error, RuntimeError) and str(error) == "Event loop is closed"):
            loop.default_exception_handler(context)

    @classmethod
    def running(cls) -> "_Thread":
        """The thread of this process, started at the first call."""
        with cls._starting:
            if cls._running is None:
                cls._running = cls()
            return cls._running

    @classmethod
    def forget(cls) -> None:
        """In a child process it does not run."""
        cls._running, cls._starting = None, threading.Lock()


class _Loop:
    """A client's part of the event loop."""

    living: ClassVar["weakref.WeakSet[_Loop]"] = weakref.WeakSet()

    def __init__(self) -> None:
        running = _Thread.running()
        self.loop, self._thread = running.loop, running.thread
        self.closed = False
        self.forked = False  # in a child, which has none of its parent's threads
        self.living.add(self)

    def check_process(self) -> None:
        if self.forked:
            raise BadRequest(
                "this client belongs to the process that this one was forked from: "
                "make another one here"
            )

    def start(self, work: Coroutine[Any, Any, T]) -> "concurrent.futures.Future[T]":
        if self.forked or self.closed:
            work.close()
            self.check_process()
            raise Unavailable("the client is closed")
        if threading.current_thread() is self._thread:
            work.close()
            raise RuntimeError("on_done runs in the thread of all clients, which cannot wait")
        if sys.is_finalizing():  # as in a `__del__`: the thread runs no more
            work.close()
            raise Unavailable("the interpreter is ending: close the client before")
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.start(work).result()

    def call(self, make: Callable[[], T]) -> T:
        async def made() -> T:
            return make()

        return self.run(made())

    def call_interrupted(self, make: Callable[[], object]) -> None:
        """Call after an interruption of this thread, which goes on: others must not prevent it."""
        for _ in range(INTERRUPTIONS_MAX):
            try:
                self.call(make)
                return
            except DuologError:  # the client is closed, and nothing goes on
                return
            except BaseException:
                continue

    def stop(self) -> None:
        self.closed = True


def _forked() -> None:
    """Of the parent's threads none is left, and any of them may have held a lock."""
    _Thread.forget()
    for loop in _Loop.living:
        loop.forked = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


class Posted:
    """A message on its way, made by `Producer.post`; see `duolog.Posted`."""

    __slots__ = ("_loop", "_posted")
    _loop: _Loop
    _posted: AsyncPosted

    @property
    def done(self) -> bool:
        """Tell whether it is known what became of the message."""
        return self._posted.done

    def error(self) -> Exception | None:
        """Why it may not be stored; None if it is, or not done."""
        return self._posted.error()

    def receipt(self, timeout: float | None = None) -> Receipt:
        """Wait until it is stored. Raises as `send`; TimeoutError after `timeout` seconds."""
        if not self._posted.done:
            self._loop.run(self._posted.settled(timeout))
        return self._posted.receipt()


def _handle(loop: _Loop, posted: AsyncPosted) -> Posted:
    handle = Posted()
    handle._loop, handle._posted = loop, posted
    return handle


class Producer:
    """Sends messages and waits for their receipts. Usable from several threads."""

    def __init__(self, loop: _Loop, producer: AsyncProducer) -> None:
        """Not called by users."""
        self._loop = loop
        self._producer = producer

    def send(
        self,
        topic: str,
        body: bytes,
        *,
        key: str | None = None,
        keys: Sequence[str] = (),
        tags: str | None = None,
        properties: dict[str, str] | None = None,
        queue_id: int | None = None,
        group: str | None = None,
        delay: float | None = None,
        deliver_at: int | None = None,
        delay_level: int | None = None,
        timeout: float | None = None,
    ) -> Receipt:
        """As `duolog.Producer.send`."""
        return self._loop.run(
            self._producer.send(
                topic,
                body,
                key=key,
                keys=keys,
                tags=tags,
                properties=properties,
                queue_id=queue_id,
                group=group,
                delay=delay,
                deliver_at=deliver_at,
                delay_level=delay_level,
                timeout=timeout,
            )
        )

    def post(
        self,
        topic: str,
        body: bytes,
        *,
        key: str | None = None,
        keys: Sequence[str] = (),
        tags: str | None = None,
        properties: dict[str, str] | None = None,
        queue_id: int | None = None,
        group: str | None = None,
        delay: float | None = None,
        deliver_at: int | None = None,
        delay_level: int | None = None,
        timeout: float | None = None,
        on_done: Callable[[Posted], object] | None = None,
    ) -> Posted:
        """As `duolog.Producer.post`. Any thread may post.

        on_done: is called in the thread of all clients of the process: it may post, and must not
        wait for anything.
        """
        loop = self._loop
        if loop.forked:
            loop.check_process()
        if (
            (key is None and queue_id is None and tags is None and on_done is None)
            and (delay is None and deliver_at is None and delay_level is None)
            and not (keys or properties)
        ):  # the same, with less to hand on
            return _handle(loop, self._producer.post(topic, body, timeout=timeout))
        told = None
        if on_done is not None:
            told = _told(loop, on_done)
        return _handle(
            loop,
            self._producer.post(
                topic,
                body,
                key=key,
                keys=keys,
                tags=tags,
                properties=properties,
                queue_id=queue_id,
                group=group,
                delay=delay,
                deliver_at=deliver_at,
                delay_level=delay_level,
                timeout=timeout,
                on_done=told,
            ),
        )

    def flush(self) -> None:
        """As `duolog.Producer.flush`."""
        self._loop.run(self._producer.flush())

    def send_batch(
        self,
        topic: str,
        bodies: Sequence[bytes],
        *,
        tags: str | None = None,
        keys: Sequence[Sequence[str]] | None = None,
        tags_list: Sequence[str | None] | None = None,
        queue_id: int | None = None,
        group: str | None = None,
        delay: float | None = None,
        deliver_at: int | None = None,
        delay_level: int | None = None,
        expect_offset: int | None = None,
        timeout: float | None = None,
    ) -> BatchReceipt:
        """As `duolog.Producer.send_batch`."""
        return self._loop.run(
            self._producer.send_batch(
                topic,
                bodies,
                tags=tags,
                keys=keys,
                tags_list=tags_list,
                queue_id=queue_id,
                group=group,
                delay=delay,
                deliver_at=deliver_at,
                delay_level=delay_level,
                expect_offset=expect_offset,
                timeout=timeout,
            )
        )

    def close(self) -> None:
        """Wait for sends under way, then refuse new ones; raises as `duolog.Producer.close`.

        In a forked process it does nothing: what was posted is the parent's.
        """
        if not self._loop.forked:
            self._loop.run(self._producer.close())

    def __enter__(self) -> "Producer":
        """Use it in `with`."""
        return self

    def __exit__(self, kind: object, value: object, trace: object) -> None:
        """Close."""
        if not self._loop.forked:
            self._loop.run(self._producer.__aexit__(kind, value, trace))


def _told(loop: _Loop, on_done: Callable[[Posted], object]) -> Callable[[AsyncPosted], object]:
    def tell(posted: AsyncPosted) -> None:
        try:
            on_done(_handle(loop, posted))
        except BaseException as error:  # sys.exit() would end the thread of all clients
            report(error)

    return tell


class Transactions:
    """Transactions of a producer group. Usable from several threads; it listens in `with`."""

    def __init__(self, loop: _Loop, transactions: AsyncTransactions) -> None:
        """Not called by users."""
        self._loop = loop
        self._transactions = transactions

    def prepare(self, topic: str, body: bytes, **how: Any) -> Half:
        """As `duolog.Transactions.prepare`."""
        return self._loop.run(self._transactions.prepare(topic, body, **how))

    def prepare_batch(self, topic: str, bodies: Sequence[bytes], **how: Any) -> list[Half]:
        """As `duolog.Transactions.prepare_batch`."""
        return self._loop.run(self._transactions.prepare_batch(topic, bodies, **how))

    def commit_all(self, halves: Iterable[Half]) -> None:
        """Commit many at a time."""
        self._loop.run(self._transactions.commit_all(halves))

    def rollback_all(self, halves: Iterable[Half]) -> None:
        """Roll many back at a time."""
        self._loop.run(self._transactions.rollback_all(halves))

    def commit(self, half: Half) -> None:
        """Let consumers see it."""
        self._loop.run(self._transactions.commit(half))

    def rollback(self, half: Half) -> None:
        """Drop it."""
        self._loop.run(self._transactions.rollback(half))

    @contextlib.contextmanager
    def begin(self, topic: str, body: bytes, **how: Any) -> Iterator[Half]:
        """Commit at the end of the block; roll back where it raises."""
        half = self.prepare(topic, body, **how)
        try:
            yield half
        except BaseException:
            self.rollback(half)
            raise
        self.commit(half)

    def close(self) -> None:
        """Finish decisions under way, stop listening."""
        self._loop.run(self._transactions.close())

    def __enter__(self) -> "Transactions":
        """Listen."""
        self._loop.run(self._transactions.start())
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()


class _Interruptible(Generic[T]):
    """A `get` of a thread in which a signal handler may raise, KeyboardInterrupt for example.

    The thread then has nothing: the call must take nothing later, and what it took already must not
    count as consumed. All but `result` runs in the thread of all clients.
    """

    def __init__(self, loop: _Loop, consumer: AsyncConsumer) -> None:
        self._loop = loop
        self._consumer = consumer
        self._task: asyncio.Task[Any] | None = None
        self._taken: T | None = None
        self._given_up = False

    def result(self, get: Callable[[], Coroutine[Any, Any, T | None]]) -> T | None:
        """Wait for it."""
        try:
            return self._loop.run(self._run(get))
        except BaseException:
            self._loop.call_interrupted(self._give_up)
            raise

    async def _run(self, get: Callable[[], Coroutine[Any, Any, T | None]]) -> T | None:
        self._task = asyncio.current_task()
        if not self._given_up:
            self._taken = await get()
        return self._taken

    def _give_up(self) -> None:
        self._given_up = True
        if self._task is not None:
            self._task.cancel()
        if self._taken is not None:
            self._consumer.take_back()


class Consumer:
    """A member of a consumer group. For one thread at a time."""

    def __init__(self, loop: _Loop, consumer: AsyncConsumer) -> None:
        """Not called by users."""
        self._loop = loop
        self._consumer = consumer

    def get(self, timeout: float | None = None) -> Message | None:
        """As `duolog.Consumer.get`."""
        if not (self._loop.forked or self._loop.closed):
            try:
                for message in self._consumer._at_hand:  # without a turn of the loop
                    return message
            # A signal handler's, after the message was taken; just before it, the last one repeats.
            except BaseException:
                self._loop.call_interrupted(self._consumer.take_back)
                raise
        asked = _Interruptible[Message](self._loop, self._consumer)
        processing = self._consumer.processing
        if processing is None:
            return asked.result(lambda: self._consumer.get(timeout))
        # Spans are current in the thread of the program, not in that of all clients.
        asked_ns = processing.end()
        found = asked.result(lambda: self._consumer.next_message(timeout))
        if found is not None:
            processing.begin_first(found, asked_ns)
        return found

    def get_batch(self, timeout: float | None = None) -> Batch | None:
        """As `duolog.Consumer.get_batch`."""
        asked = _Interruptible[Batch](self._loop, self._consumer)
        processing = self._consumer.processing
        if processing is None:
            return asked.result(lambda: self._consumer.get_batch(timeout))
        asked_ns = processing.end()
        batch = asked.result(lambda: self._consumer.next_batch(timeout))
        if batch is not None:
            processing.begin_batch(batch, asked_ns)
        return batch

    def commit(self) -> None:
        """As `duolog.Consumer.commit`."""
        self._loop.run(self._consumer.commit())

    def seek_to_time(self, at: Start | int) -> None:
        """As `duolog.Consumer.seek_to_time`."""
        self._loop.run(self._consumer.seek_to_time(at))

    def seek(self, topic: str, queue_id: int, offset: int) -> None:
        """As `duolog.Consumer.seek`."""
        self._loop.run(self._consumer.seek(topic, queue_id, offset))

    def send_back(self, message: Message, *, delay_level: int = 0, max_attempts: int = 0) -> str:
        """As `duolog.Consumer.send_back`."""
        return self._loop.run(
            self._consumer.send_back(message, delay_level=delay_level, max_attempts=max_attempts)
        )

    @property
    def assignment(self) -> list[tuple[str, int]]:
        """Queues this member reads now."""
        return self._consumer.assignment

    def __iter__(self) -> Iterator[Message]:
        """All messages, for ever."""
        while (message := self.get()) is not None:
            yield message

    def close(self) -> None:
        """Commit and leave the group. In a forked process it does nothing: it is the parent's."""
        if self._loop.forked:
            return
        if self._consumer.processing is not None:
            self._consumer.processing.end()
        self._loop.run(self._consumer.close())

    def __enter__(self) -> "Consumer":
        """Join the group."""
        self._loop.run(self._consumer.start())
        return self

    def __exit__(self, kind: object, value: BaseException | None, trace: object) -> None:
        """Leave; after an error the message in hand does not count as consumed."""
        if self._loop.forked:
            return
        if self._consumer.processing is not None:
            self._consumer.processing.end(value)
        self._loop.run(self._consumer.__aexit__(kind, value, trace))


class Access:
    """Users and their rights; every method as in `duolog.Access`."""

    def __init__(self, loop: _Loop, access: AsyncAccess) -> None:
        """Not called by users."""
        self._loop = loop
        self._access = access

    def who_am_i(self) -> User:
        """The user that this client is."""
        return self._loop.run(self._access.who_am_i())

    def create_user(
        self,
        name: str,
        password: str,
        *,
        is_super: bool = False,
        signs: bool = False,
        disabled: bool = False,
    ) -> User:
        """Create a user."""
        return self._loop.run(
            self._access.create_user(
                name, password, is_super=is_super, signs=signs, disabled=disabled
            )
        )

    def alter_user(
        self,
        name: str,
        *,
        password: str | None = None,
        signs: bool = False,
        is_super: bool | None = None,
        disabled: bool | None = None,
    ) -> User:
        """Alter a user."""
        return self._loop.run(
            self._access.alter_user(
                name, password=password, signs=signs, is_super=is_super, disabled=disabled
            )
        )

    def delete_user(self, name: str) -> None:
        """Delete a user and its rights."""
        self._loop.run(self._access.delete_user(name))

    def users(self) -> list[User]:
        """All users."""
        return self._loop.run(self._access.users())

    def users_page(self, contains: str = "", *, after: str = "", limit: int = 100) -> Page[User]:
        """Users by name, so many at a time."""
        return self._loop.run(self._access.users_page(contains, after=after, limit=limit))

    def who_may(self, action: str, resource: str, **how: Any) -> Page[UserDecision]:
        """The users who may do something, with the entries that decide."""
        return self._loop.run(self._access.who_may(action, resource, **how))

    def rights(self, name: str) -> str:
        """The rights of a user, as JSON."""
        return self._loop.run(self._access.rights(name))

    def set_rights(self, name: str, rights: str, *, expected: str | None = None) -> str:
        """Replace the rights of a user."""
        return self._loop.run(self._access.set_rights(name, rights, expected=expected))

    def issue_token(self, seconds: int, *, user: str = "") -> str:
        """A token in the place of a password."""
        return self._loop.run(self._access.issue_token(seconds, user=user))

    def test(self, action: str, resource: str, *, user: str = "", source: str = "") -> Decision:
        """Whether a user may do something, and which entry decides."""
        return self._loop.run(self._access.test(action, resource, user=user, source=source))


class Admin:
    """Administration; every method as in `duolog.Admin`."""

    def __init__(self, loop: _Loop, admin: AsyncAdmin) -> None:
        """Not called by users."""
        self._loop = loop
        self._admin = admin

    def create_topic(
        self, topic: str, queues: int = 4, perm: int = 6, **how: Any
    ) -> TopicDescription:
        """Create a topic."""
        return self._loop.run(self._admin.create_topic(topic, queues, perm, **how))

    def alter_topic(
        self, topic: str, queues: int = 0, perm: int = 0, **how: Any
    ) -> TopicDescription:
        """Add queues or change permissions."""
        return self._loop.run(self._admin.alter_topic(topic, queues, perm, **how))

    def delete_topic(self, topic: str) -> None:
        """Delete a topic."""
        self._loop.run(self._admin.delete_topic(topic))

    def topics(
        self, names: Sequence[str] = (), system: bool = False, *, sizes: bool = False
    ) -> list[TopicDescription]:
        """List topics."""
        return self._loop.run(self._admin.topics(names, system, sizes=sizes))

    def topics_page(
        self,
        contains: str = "",
        *,
        after: str = "",
        limit: int = 100,
        system: bool = False,
        sizes: bool = False,
    ) -> Page[TopicDescription]:
        """Topics by name, so many at a time."""
        return self._loop.run(
            self._admin.topics_page(contains, after=after, limit=limit, system=system, sizes=sizes)
        )

    def put_group(self, group: str, **how: Any) -> GroupDescription:
        """Create a consumer group, or alter it."""
        return self._loop.run(self._admin.put_group(group, **how))

    def delayed_page(
        self, topic: str = "", *, after: str = "", limit: int = 100, group: str | None = None
    ) -> DelayedPage:
        """Messages that wait for their time, the soonest first."""
        return self._loop.run(
            self._admin.delayed_page(topic, after=after, limit=limit, group=group)
        )

    def recall_delayed(
        self, topic: str, queue_offset: int, unique_key: str, *, group: str | None = None
    ) -> None:
        """Take back a message that waits for its time."""
        self._loop.run(self._admin.recall_delayed(topic, queue_offset, unique_key, group=group))

    def halves_page(
        self, topic: str = "", *, after: str = "", limit: int = 100, group: str | None = None
    ) -> HalvesPage:
        """Half messages that nobody decided on."""
        return self._loop.run(self._admin.halves_page(topic, after=after, limit=limit, group=group))

    def half(self, half: int, *, group: str) -> HalfMessage:
        """One half message that nobody decided on."""
        return self._loop.run(self._admin.half(half, group=group))

    def decide_half(self, producer_group: str, half: int, *, commit: bool, group: str) -> None:
        """Commit a half message, or roll it back."""
        self._loop.run(self._admin.decide_half(producer_group, half, commit=commit, group=group))

    def put_quota(self, subject: str, **limits: int) -> Quota:
        """Set limits of a user, a client address, a topic or a namespace."""
        return self._loop.run(self._admin.put_quota(subject, **limits))

    def delete_quota(self, subject: str) -> None:
        """Take all limits from a subject."""
        self._loop.run(self._admin.delete_quota(subject))

    def quotas(self) -> list[Quota]:
        """List quotas."""
        return self._loop.run(self._admin.quotas())

    def groups(self) -> list[GroupDescription]:
        """List groups."""
        return self._loop.run(self._admin.groups())

    def groups_page(
        self, contains: str = "", *, after: str = "", limit: int = 100
    ) -> Page[GroupDescription]:
        """Groups by name, so many at a time."""
        return self._loop.run(self._admin.groups_page(contains, after=after, limit=limit))

    def group(self, group: str) -> GroupDescription:
        """Describe a group."""
        return self._loop.run(self._admin.group(group))

    def reset_group(
        self,
        group: str,
        topic: str,
        to: Start | int = Start.EARLIEST,
        *,
        offset: int | None = None,
    ) -> list[QueueOffset]:
        """Set a group's offsets."""
        return self._loop.run(self._admin.reset_group(group, topic, to, offset=offset))

    def delete_group(self, group: str) -> None:
        """Forget a group."""
        self._loop.run(self._admin.delete_group(group))

    def find(self, topic: str = "", **how: Any) -> list[FoundMessage]:
        """Find messages."""
        return self._loop.run(self._admin.find(topic, **how))

    def track(
        self, topic: str, queue_id: int, queue_offset: int, **how: Any
    ) -> Mapping[str, TrackState]:
        """What became of a message in every consumer group."""
        return self._loop.run(self._admin.track(topic, queue_id, queue_offset, **how))

    def track_key(self, topic: str, key: str) -> list[TrackedMessage]:
        """The whole way of the messages with a key."""
        return self._loop.run(self._admin.track_key(topic, key))

    def offset_at_time(
        self, topic: str, queue_id: int, at: Start | int, *, group: str | None = None
    ) -> int:
        """Queue offset at a time, or of an end of the queue."""
        return self._loop.run(self._admin.offset_at_time(topic, queue_id, at, group=group))

    def offset_at_size(
        self, topic: str, queue_id: int, queue_offset: int, size: int, *, group: str
    ) -> int:
        """Queue offset up to which there are so many bytes."""
        return self._loop.run(
            self._admin.offset_at_size(topic, queue_id, queue_offset, size, group=group)
        )

    def commit(
        self, group: str, offsets: Mapping[tuple[str, str, int], int], *, forward: bool = False
    ) -> None:
        """Commit offsets of a group without members."""
        self._loop.run(self._admin.commit(group, offsets, forward=forward))

    def node_status(self) -> NodeStatus:
        """Status of the node."""
        return self._loop.run(self._admin.node_status())

    def cluster_status(self) -> ClusterStatus:
        """Status of the cluster."""
        return self._loop.run(self._admin.cluster_status())

    def route(self) -> Route:
        """Groups, masters and replicas, and where they are reached."""
        return self._loop.run(self._admin.route())

    def failover(self, node: str = "", *, epoch: int = 0) -> None:
        """Make another node the master (planned switch)."""
        self._loop.run(self._admin.failover(node, epoch=epoch))

    def set_guarantee(self, setting: str, value: str) -> Mapping[str, str]:
        """See `Admin.set_guarantee`."""
        return self._loop.run(self._admin.set_guarantee(setting, value))

    def drain(self, node: str, *, undo: bool = False) -> None:
        """Take a node out, or back in."""
        self._loop.run(self._admin.drain(node, undo=undo))

    def elect_unclean(self, epoch: int) -> None:
        """Make this node the master, whatever others may have held."""
        self._loop.run(self._admin.elect_unclean(epoch))


class Client:
    """The synchronous client.

    with Client("127.0.0.1:8765") as client, client.producer() as producer:
        producer.send("greetings", b"hello")
    """

    def __init__(
        self,
        endpoints: str | Sequence[str],
        *,
        user: str = "",
        password: str = "",
        tls: Tls | bool | None = None,
        timeout: float = 10.0,
        busy_poll_us: int = 0,
        tracer_provider: "TracerProvider | None" = None,
    ) -> None:
        """As `duolog.Client`."""
        _client.parse_endpoints(endpoints)
        login_of(user, password)
        self._loop = _Loop()
        self._client = self._loop.call(
            lambda: _client.Client(
                endpoints,
                user=user,
                password=password,
                tls=tls,
                timeout=timeout,
                busy_poll_us=busy_poll_us,
                tracer_provider=tracer_provider,
            )
        )
        self.admin = Admin(self._loop, self._client.admin)
        self.access = Access(self._loop, self._client.access)

    def producer(
        self,
        *,
        timeout: float | None = None,
        linger: float = 0.0,
        buffer_bytes: int = BUFFER_BYTES,
        accept_weak: bool = False,
    ) -> Producer:
        """A producer, as `duolog.Client.producer`."""
        buffering = Buffering(linger, buffer_bytes, self._loop.loop)
        options = SendOptions(accept_weak=accept_weak)
        made = self._loop.call(lambda: self._client.make_producer(timeout, buffering, options))
        return Producer(self._loop, made)

    def transactions(
        self,
        group: str,
        checker: Callable[[UndecidedMessage], bool | None] | None = None,
        *,
        immunity: float = 0.0,
        timeout: float | None = None,
        accept_weak: bool = False,
    ) -> Transactions:
        """As `duolog.Client.transactions`; the checker runs in a thread of its own."""

        async def ask(message: UndecidedMessage) -> bool | None:
            assert checker is not None, "only then it is asked"
            return await asyncio.to_thread(checker, message)

        made = self._loop.call(
            lambda: self._client.transactions(
                group,
                ask if checker is not None else None,
                immunity=immunity,
                timeout=timeout,
                accept_weak=accept_weak,
            )
        )
        return Transactions(self._loop, made)

    def consumer(self, group: str, topics: str | Sequence[str], **how: Any) -> Consumer:
        """A member of a consumer group, as `duolog.Client.consumer`; it joins in `with`."""
        made = self._loop.call(lambda: self._client.consumer(group, topics, **how))
        return Consumer(self._loop, made)

    def pull(self, topic: str, queue_id: int, queue_offset: int, **how: Any) -> Batch:
        """As `duolog.Client.pull`."""
        return self._loop.run(self._client.pull(topic, queue_id, queue_offset, **how))

    def start(
        self, make: Callable[[_client.Client], Coroutine[Any, Any, T]]
    ) -> "concurrent.futures.Future[T]":
        """Begin something with the asynchronous client behind this one."""
        return self._loop.start(make(self._client))

    def run(self, make: Callable[[_client.Client], Coroutine[Any, Any, T]]) -> T:
        """Do something with the asynchronous client behind this one."""
        return self.start(make).result()

    def close(self) -> None:
        """As `duolog.Client.close`. In a forked process it does nothing: all is the parent's."""
        self.__exit__(None)

    def __enter__(self) -> "Client":
        """Use it in `with`."""
        return self

    def __exit__(self, kind: object, *rest: object) -> None:
        """Close."""
        if self._loop.forked or self._loop.closed:
            return
        try:
            self._loop.run(self._client.__aexit__(kind, *rest))
        except DuologError:  # of a part that is closed nevertheless
            self._loop.stop()
            raise
        self._loop.stop()
