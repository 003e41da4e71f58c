"""The synchronous face: the same client for programs without an event loop.

Calls run on an event loop in a thread that all clients of a process share. Types are separate
classes, so that nothing is ever "maybe awaitable".
"""

import asyncio
import atexit
import concurrent.futures.thread
import contextlib
import functools
import os
import sys
import threading
import weakref
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import TYPE_CHECKING, Any, ClassVar, Concatenate, Generic, ParamSpec, TypeVar

from duolog import _client
from duolog._access import Access as AsyncAccess
from duolog._admin import Admin as AsyncAdmin
from duolog._background import report
from duolog._batcher import BUFFER_BYTES, Batcher, Buffering
from duolog._consumer import Consumer as AsyncConsumer
from duolog._errors import BadRequest, DuologError, Unavailable
from duolog._forks import Owned
from duolog._login import login_of
from duolog._message import Batch, Message
from duolog._posted import Posted as AsyncPosted
from duolog._producer import Producer as AsyncProducer
from duolog._receipts import Receipt
from duolog._sending import SendOptions
from duolog._stopsignals import stop_signals
from duolog._tls import Tls
from duolog._transactions import Transactions as AsyncTransactions
from duolog._transactions import UndecidedMessage
from duolog._worker import Handler, is_async

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

T = TypeVar("T")
A = TypeVar("A")
F = TypeVar("F")
P = ParamSpec("P")
END_SECONDS = 10.0  # that the end of the program waits for answers to posted messages
SOON_SECONDS = 1.0  # in which the thread of all clients should respond
INTERRUPTIONS_MAX = 10  # of what cleans up after one; a user who keeps interrupting wants to end


class _Thread:
    """The event loop of all clients of this process, in a thread; it ends with the process.

    One for all, never closed: gRPC tells one loop what happened to the calls of another, and would
    find it closed.
    """

    _running: ClassVar["_Thread | None"] = None
    _starting = threading.Lock()

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.batchers: weakref.WeakSet[Batcher] = weakref.WeakSet()  # only it adds to them
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


class _Loop(Owned):
    """A client's part of the event loop."""

    def __init__(self) -> None:
        super().__init__()
        running = _Thread.running()
        self.loop, self._thread = running.loop, running.thread
        self.batchers = running.batchers
        self.closed = False

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
        """Call after an interruption of this thread; further interruptions must not prevent it."""
        for _ in range(INTERRUPTIONS_MAX):
            try:
                self.call(make)
                return
            except DuologError:  # the client is closed, and no task runs
                return
            except BaseException:
                continue

    def stop(self) -> None:
        self.closed = True


if hasattr(os, "register_at_fork"):  # a child has no such thread, and any may have held a lock
    os.register_at_fork(after_in_child=_Thread.forget)


def _finish() -> None:
    """Wait, when the main thread has ended, for posted messages of producers that are not closed.

    What may not be stored is said on stderr: nobody is left to read an error. Other threads may
    post, and read errors, until they end: then after them.
    """
    answered = _at_the_end(_answered, END_SECONDS)
    main = threading.current_thread()
    if all(thread is main or thread.daemon for thread in threading.enumerate()):
        _say_lost()
        return
    atexit.register(_say_lost)
    if answered:
        atexit.register(_at_the_end, _answered, END_SECONDS)


def _at_the_end(
    work: Callable[[list[Batcher]], Coroutine[Any, Any, T]], seconds: float
) -> T | None:
    """Do something with the producers in their thread; None where that takes longer.

    It does where an `on_done` waits, against what `Producer.post` says. An error would keep other
    threads of the program from ending as they should, so would an interruption: it ends the wait.
    """
    running = _Thread._running
    if running is None:
        return None

    async def done() -> T:
        async with asyncio.timeout(seconds):
            return await work(list(running.batchers))

    try:
        return asyncio.run_coroutine_threadsafe(done(), running.loop).result(seconds + SOON_SECONDS)
    except BaseException as error:
        if not isinstance(error, TimeoutError | KeyboardInterrupt):
            report(error)
        return None


async def _answered(batchers: list[Batcher]) -> bool:
    await asyncio.gather(*(each.answered() for each in batchers if each.unanswered))
    return True


def _say_lost() -> None:
    running = _Thread._running
    if running is None:
        return
    lost = _at_the_end(_told_lost, SOON_SECONDS)
    if lost is None:  # it waits: nothing changes meanwhile
        with contextlib.suppress(RuntimeError):
            lost = _lost(list(running.batchers))
    for text in lost or ():
        if sys.stderr is not None:
            print(f"duolog: {text}", file=sys.stderr)


async def _told_lost(batchers: list[Batcher]) -> list[str]:
    return _lost(batchers)


def _lost(batchers: list[Batcher]) -> list[str]:
    """What may not be stored, in words."""
    lost = []
    for each in batchers:
        if count := each.unanswered:
            lost.append(
                f"{count} posted messages have no answer, and may not be stored: close the producer"
            )
        try:
            each.raise_unasked()
        except Exception as error:
            notes = "".join(f" ({note})" for note in getattr(error, "__notes__", ()))
            lost.append(f"a posted message is not known to be stored: {error}{notes}")
    return lost


# As the first of these, before executors end: one of them resolves names of hosts.
_at_exit: Callable[[Callable[[], None]], object] = getattr(
    threading, "_register_atexit", atexit.register
)
_at_exit(_finish)


class _Face(Generic[T]):
    """The synchronous face of an object of the SDK, whose calls run on the loop of all clients."""

    def __init__(self, loop: _Loop, face_of: T) -> None:
        """Not called by users."""
        self._loop = loop
        self._of = face_of


def _waits(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Any, P], T]:
    """A method of a face that makes the same call and waits for its result."""

    @functools.wraps(method)
    def call(face: Any, /, *args: P.args, **how: P.kwargs) -> T:
        result: T = face._loop.run(method(face._of, *args, **how))
        return result

    return call


def _makes(
    method: Callable[Concatenate[Any, P], A], face_of: Callable[[_Loop, A], F]
) -> Callable[Concatenate[Any, P], F]:
    """A method of a face that returns the face of what the same call makes."""

    @functools.wraps(method)
    def call(face: Any, /, *args: P.args, **how: P.kwargs) -> F:
        made: A = face._loop.call(lambda: method(face._of, *args, **how))
        return face_of(face._loop, made)

    return call


def _within(
    method: Callable[Concatenate[Any, P], AbstractAsyncContextManager[T]],
) -> Callable[Concatenate[Any, P], AbstractContextManager[T]]:
    """A method of a face for `with`, of one for `async with`."""

    @functools.wraps(method)
    @contextlib.contextmanager
    def call(face: Any, /, *args: P.args, **how: P.kwargs) -> Iterator[T]:
        manager = method(face._of, *args, **how)
        entered: T = face._loop.run(manager.__aenter__())
        try:
            yield entered
        except BaseException as error:
            face._loop.run(manager.__aexit__(type(error), error, error.__traceback__))
            raise
        face._loop.run(manager.__aexit__(None, None, None))

    return call


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
        """Wait until it is stored. Raises as `send`; TimeoutError after `timeout` seconds.

        A send's Timeout is a TimeoutError, too: after it `done` is true, and waiting again is
        of no use.
        """
        if not self._posted.done:
            self._loop.run(self._posted.settled(timeout))
        return self._posted.receipt()


def _handle(loop: _Loop, posted: AsyncPosted) -> Posted:
    handle = Posted()
    handle._loop, handle._posted = loop, posted
    return handle


class Producer(_Face[AsyncProducer]):
    """Sends messages and waits for their receipts. Usable from several threads."""

    send = _waits(AsyncProducer.send)
    send_batch = _waits(AsyncProducer.send_batch)
    flush = _waits(AsyncProducer.flush)

    def post(
        self,
        topic: str,
        body: bytes,
        *,
        key: str | None = None,
        keys: str | Sequence[str] = (),
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
        """`duolog.Producer.post`; any thread may post.

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
            return _handle(loop, self._of.post(topic, body, timeout=timeout))
        told = None
        if on_done is not None:
            told = _told(loop, on_done)
        return _handle(
            loop,
            self._of.post(
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

    def close(self) -> None:
        """Wait for sends in flight, then refuse new ones; raises as `duolog.Producer.close`.

        In a forked process it does nothing: what was posted is the parent's.
        """
        if not self._loop.forked:
            self._loop.run(self._of.close())

    def __enter__(self) -> "Producer":
        """Use it in `with`."""
        return self

    def __exit__(self, kind: object, value: object, trace: object) -> None:
        """Close."""
        if not self._loop.forked:
            self._loop.run(self._of.__aexit__(kind, value, trace))


def _told(loop: _Loop, on_done: Callable[[Posted], object]) -> Callable[[AsyncPosted], object]:
    def tell(posted: AsyncPosted) -> None:
        try:
            on_done(_handle(loop, posted))
        except BaseException as error:  # sys.exit() would end the thread of all clients
            report(error)

    return tell


class Transactions(_Face[AsyncTransactions]):
    """Transactions of a producer group. Usable from several threads; it listens in `with`."""

    prepare = _waits(AsyncTransactions.prepare)
    prepare_batch = _waits(AsyncTransactions.prepare_batch)
    commit_all = _waits(AsyncTransactions.commit_all)
    rollback_all = _waits(AsyncTransactions.rollback_all)
    commit = _waits(AsyncTransactions.commit)
    rollback = _waits(AsyncTransactions.rollback)
    close = _waits(AsyncTransactions.close)
    begin = _within(AsyncTransactions.begin)

    def __enter__(self) -> "Transactions":
        """Listen."""
        self._loop.run(self._of.start())
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


class Consumer(_Face[AsyncConsumer]):
    """A member of a consumer group. For one thread at a time."""

    commit = _waits(AsyncConsumer.commit)
    seek_to_time = _waits(AsyncConsumer.seek_to_time)
    seek = _waits(AsyncConsumer.seek)
    send_back = _waits(AsyncConsumer.send_back)

    def get(self, timeout: float | None = None) -> Message | None:
        """`duolog.Consumer.get`."""
        if not (self._loop.forked or self._loop.closed):
            try:
                for message in self._of._at_hand:  # without a turn of the loop
                    return message
            # A signal handler's, after the message was taken; just before it, the last one repeats.
            except BaseException:
                self._loop.call_interrupted(self._of.take_back)
                raise
        asked = _Interruptible[Message](self._loop, self._of)
        processing = self._of.processing
        if processing is None:
            return asked.result(lambda: self._of.get(timeout))
        # Spans are current in the thread of the program, not in that of all clients.
        asked_ns = processing.end()
        found = asked.result(lambda: self._of.next_message(timeout))
        if found is not None:
            processing.begin_first(found, asked_ns)
        return found

    def get_batch(self, timeout: float | None = None) -> Batch | None:
        """`duolog.Consumer.get_batch`."""
        asked = _Interruptible[Batch](self._loop, self._of)
        processing = self._of.processing
        if processing is None:
            return asked.result(lambda: self._of.get_batch(timeout))
        asked_ns = processing.end()
        batch = asked.result(lambda: self._of.next_batch(timeout))
        if batch is not None:
            processing.begin_batch(batch, asked_ns)
        return batch

    def run(
        self,
        handler: Handler,
        *,
        concurrency: int = 1,
        by_key: bool = False,
        grace: float = 30.0,
    ) -> None:
        """`duolog.Consumer.run`; handlers run in as many threads. Any thread may call `stop`."""
        if is_async(handler):
            raise BadRequest("handler is a coroutine function: use the consumer of duolog.Client")
        ended = threading.Event()

        async def run() -> None:
            try:
                await self._of.run(handler, concurrency=concurrency, by_key=by_key, grace=grace)
            finally:
                ended.set()

        with stop_signals(self._of.interrupt):
            try:
                self._loop.run(run())
            except BaseException:  # also a signal handler's of the program, at any step
                if not ended.is_set():
                    self._end_run()
                raise

    def _end_run(self) -> None:
        """Stop the worker and wait for its end; each further interruption hurries it."""
        for _ in range(INTERRUPTIONS_MAX):
            try:
                self._loop.run(self._of.interrupted())
                return
            except DuologError:  # the client is closed, and no worker runs
                return
            except BaseException:
                continue

    def stop(self) -> None:
        """`duolog.Consumer.stop`."""
        self._of.stop()

    @property
    def assignment(self) -> list[tuple[str, int]]:
        """Queues this member reads now."""
        return self._of.assignment

    def __iter__(self) -> Iterator[Message]:
        """All messages, until the consumer is closed."""
        while not self._of.closed:
            try:
                message = self.get()
            except BadRequest:
                if self._of.closed:  # by another thread, since
                    return
                raise
            if message is not None:
                yield message

    def close(self) -> None:
        """Commit and leave the group. In a forked process it does nothing: it is the parent's."""
        if self._loop.forked:
            return
        if self._of.processing is not None:
            self._of.processing.end()
        self._loop.run(self._of.close())

    def __enter__(self) -> "Consumer":
        """Join the group."""
        self._loop.run(self._of.__aenter__())
        return self

    def __exit__(self, kind: object, value: BaseException | None, trace: object) -> None:
        """Leave; after an error the message in hand does not count as consumed."""
        if self._loop.forked:
            return
        if self._of.processing is not None:
            self._of.processing.end(value)
        self._loop.run(self._of.__aexit__(kind, value, trace))


class Access(_Face[AsyncAccess]):
    """Users and their rights; every method as in `duolog.Access`."""

    who_am_i = _waits(AsyncAccess.who_am_i)
    create_user = _waits(AsyncAccess.create_user)
    alter_user = _waits(AsyncAccess.alter_user)
    delete_user = _waits(AsyncAccess.delete_user)
    users = _waits(AsyncAccess.users)
    users_page = _waits(AsyncAccess.users_page)
    who_may = _waits(AsyncAccess.who_may)
    rights = _waits(AsyncAccess.rights)
    set_rights = _waits(AsyncAccess.set_rights)
    issue_token = _waits(AsyncAccess.issue_token)
    test = _waits(AsyncAccess.test)


class Admin(_Face[AsyncAdmin]):
    """Administration; every method as in `duolog.Admin`."""

    create_topic = _waits(AsyncAdmin.create_topic)
    alter_topic = _waits(AsyncAdmin.alter_topic)
    delete_topic = _waits(AsyncAdmin.delete_topic)
    trim_topic = _waits(AsyncAdmin.trim_topic)
    topics = _waits(AsyncAdmin.topics)
    topics_page = _waits(AsyncAdmin.topics_page)
    put_group = _waits(AsyncAdmin.put_group)
    delayed_page = _waits(AsyncAdmin.delayed_page)
    recall_delayed = _waits(AsyncAdmin.recall_delayed)
    halves_page = _waits(AsyncAdmin.halves_page)
    half = _waits(AsyncAdmin.half)
    decide_half = _waits(AsyncAdmin.decide_half)
    move_queue = _waits(AsyncAdmin.move_queue)
    abort_move = _waits(AsyncAdmin.abort_move)
    moves = _waits(AsyncAdmin.moves)
    put_quota = _waits(AsyncAdmin.put_quota)
    delete_quota = _waits(AsyncAdmin.delete_quota)
    quotas = _waits(AsyncAdmin.quotas)
    groups = _waits(AsyncAdmin.groups)
    groups_page = _waits(AsyncAdmin.groups_page)
    group = _waits(AsyncAdmin.group)
    reset_group = _waits(AsyncAdmin.reset_group)
    delete_group = _waits(AsyncAdmin.delete_group)
    find = _waits(AsyncAdmin.find)
    track = _waits(AsyncAdmin.track)
    track_key = _waits(AsyncAdmin.track_key)
    offset_at_time = _waits(AsyncAdmin.offset_at_time)
    offset_at_size = _waits(AsyncAdmin.offset_at_size)
    commit = _waits(AsyncAdmin.commit)
    node_status = _waits(AsyncAdmin.node_status)
    cluster_status = _waits(AsyncAdmin.cluster_status)
    route = _waits(AsyncAdmin.route)
    failover = _waits(AsyncAdmin.failover)
    set_guarantee = _waits(AsyncAdmin.set_guarantee)
    drain = _waits(AsyncAdmin.drain)
    forget = _waits(AsyncAdmin.forget)
    retire_group = _waits(AsyncAdmin.retire_group)
    forget_group = _waits(AsyncAdmin.forget_group)
    freeze = _waits(AsyncAdmin.freeze)
    elect_unclean = _waits(AsyncAdmin.elect_unclean)


class Client(_Face[_client.Client]):
    """The synchronous client.

    with Client("127.0.0.1:8765") as client, client.producer() as producer:
        producer.send("greetings", b"hello")
    """

    consumer = _makes(_client.Client.consumer, Consumer)
    pull = _waits(_client.Client.pull)

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
        """`duolog.Client`'s parameters."""
        _client.parse_endpoints(endpoints)
        login_of(user, password)
        loop = _Loop()
        client = loop.call(
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
        super().__init__(loop, client)
        self.admin = Admin(loop, client.admin)
        self.access = Access(loop, client.access)

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

        def make() -> AsyncProducer:
            made = self._of.make_producer(timeout, buffering, options)
            self._loop.batchers.add(made._batcher)
            return made

        return Producer(self._loop, self._loop.call(make))

    def transactions(
        self,
        group: str,
        checker: Callable[[UndecidedMessage], bool | None] | None = None,
        *,
        immunity: float = 0.0,
        timeout: float | None = None,
        accept_weak: bool = False,
    ) -> Transactions:
        """`duolog.Client.transactions`; the checker runs in a thread of its own."""

        async def ask(message: UndecidedMessage) -> bool | None:
            assert checker is not None, "only then it is asked"
            return await asyncio.to_thread(checker, message)

        made = self._loop.call(
            lambda: self._of.transactions(
                group,
                ask if checker is not None else None,
                immunity=immunity,
                timeout=timeout,
                accept_weak=accept_weak,
            )
        )
        return Transactions(self._loop, made)

    def start(
        self, make: Callable[[_client.Client], Coroutine[Any, Any, T]]
    ) -> "concurrent.futures.Future[T]":
        """Begin something with the asynchronous client behind this one."""
        return self._loop.start(make(self._of))

    def run(self, make: Callable[[_client.Client], Coroutine[Any, Any, T]]) -> T:
        """Do something with the asynchronous client behind this one."""
        return self.start(make).result()

    def close(self) -> None:
        """`duolog.Client.close`. Does nothing in a forked process: all is the parent's."""
        self.__exit__(None)

    def __enter__(self) -> "Client":
        """Use it in `with`."""
        return self

    def __exit__(self, kind: object, *rest: object) -> None:
        """Close."""
        if self._loop.forked or self._loop.closed:
            return
        try:
            self._loop.run(self._of.__aexit__(kind, *rest))
        except DuologError:  # of a part that is closed nevertheless
            self._loop.stop()
            raise
        self._loop.stop()
