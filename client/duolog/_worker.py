"""The worker behind `Consumer.run`: handlers of messages, several at a time.

It reads as its consumer does, and says of each message when its handling begins and that it is
finished; the consumer's readers (`GroupReader.hold`) know from that what is consumed. A message is
finished when its handler returned, or when it was sent back. One that is neither is delivered
again, with all behind it in its queue.

As many runners as messages may be handled at a time take turns to take a message and handle it. By
key, the message of a key that another runner has waits for that runner, which takes it next. On
demand, each message that is wanted has a runner of its own, which ends with it.
"""

import asyncio
import contextlib
import inspect
import logging
import traceback
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol, TypeVar

from duolog._background import Background
from duolog._backoff import BackOff
from duolog._checks import checked_flag, checked_number, checked_whole
from duolog._errors import BadRequest, NoSuchMessage, ResultUnknown, Retryable, Unavailable
from duolog._groupreader import GroupReader
from duolog._handlerthreads import HandlerThreads
from duolog._inhand import Held
from duolog._message import DEAD_LETTER_PREFIX, Message

Handler = Callable[[Message], Awaitable[object] | object]
Span = contextlib.AbstractContextManager[None]
T = TypeVar("T")

HELD_MAX = 4096  # messages from the oldest unfinished one on: a crash repeats so many
WAITING_BYTES = 8 << 20  # of messages that wait for another one with their key
UNKNOWN_SECONDS = 10.0  # between tries to send back what may be stored, and comes twice then
CANCEL_SECONDS = 5.0  # for handlers that are cancelled to end
GRACE_SECONDS_MAX = 86400.0
MESSAGE_GROUP = "__SHARDINGKEY"  # of RocketMQ's FIFO messages

# The worker that the running code is a handler of.
worker_of: ContextVar["Worker | None"] = ContextVar("duolog-worker", default=None)


class _Unheard(logging.Handler):
    """Shows on stderr what no handler of the program takes: failures are never silent."""

    def emit(self, record: logging.LogRecord) -> None:
        logger: logging.Logger | None = log
        while logger is not None:
            if any(not isinstance(one, _Unheard | logging.NullHandler) for one in logger.handlers):
                return
            logger = logger.parent if logger.propagate else None
        if logging.lastResort is not None and record.levelno >= logging.lastResort.level:
            logging.lastResort.handle(record)


log = logging.getLogger("duolog.worker")
log.addHandler(_Unheard())


class GivenBack(Exception):
    """Raised by a handler whose worker stops: the message is delivered again, as if not begun."""


class _End(Enum):
    STOPPED = "no more messages are taken"


class Hands(Protocol):
    """A consumer, as its worker uses it."""

    @property
    def readers(self) -> Mapping[str, GroupReader]:
        """Its readers, by replica group."""

    def take_now(self, taken: Callable[[GroupReader], T | None]) -> T | None:
        """The first thing that one of the readers has now."""

    async def take(self, taken: Callable[[GroupReader], T | None]) -> T | None:
        """The first thing that one of the readers has; None once the consumer is closed."""

    def look_again(self) -> None:
        """There may be something to take."""

    async def send_back(self, message: Message) -> str:
        """The group gets a message again later; the topic it is in now."""


@dataclass(frozen=True, slots=True)
class Work:
    """What a worker does: see `Consumer.run`. Raises BadRequest.

    on_demand: take a message for each `Worker.want` alone, in place of `concurrency` at a time.
    """

    handler: Handler
    concurrency: int
    by_key: bool
    grace: float
    on_demand: bool = False

    def __post_init__(self) -> None:
        if not callable(self.handler):
            raise BadRequest(f"handler must be a function, not {type(self.handler).__name__}")
        if inspect.isgeneratorfunction(self.handler) or inspect.isasyncgenfunction(self.handler):
            raise BadRequest("handler is a generator, which does nothing when it is called")
        checked_flag("by_key", self.by_key)
        checked_whole("concurrency", self.concurrency, 1, HELD_MAX)
        checked_number("grace", self.grace, 0, GRACE_SECONDS_MAX)

    @property
    def is_async(self) -> bool:
        """Whether the handler is a coroutine function; others are called in threads."""
        return is_async(self.handler)


def is_async(handler: Handler) -> bool:
    """Whether a handler is a coroutine function, or an object with one to be called."""
    of_object = getattr(type(handler), "__call__", None)  # noqa: B004
    return any(map(inspect.iscoroutinefunction, (handler, of_object)))


class Worker:
    """Handles a consumer's messages until it is stopped."""

    def __init__(
        self, hands: Hands, work: Work, span: Callable[[Message], Span] | None = None
    ) -> None:
        """Not running yet: see `run`. span: in which a message is handled; None: no tracing."""
        self.loop = asyncio.get_running_loop()
        self._hands = hands
        self._work = work
        self._handler = work.handler if span is None else _traced(work, span)
        self._threads = None if work.is_async else HandlerThreads(work.concurrency)
        # By key of a message that is being handled: others that wait for its end.
        self._lanes: dict[str, deque[Held]] = {}
        # Keys of which none is being handled: the next one's queue goes to another member.
        self._stalled: list[str] = []
        self._taking = asyncio.Lock()
        self._runners = Background(lambda error: None)  # each has told it: see `_fail`
        self._calls = Background(lambda error: None)  # a runner waits for each
        self._left = 0  # runners that have not ended
        self._full = False  # a runner waits for fewer messages in hand
        self._stopping = self._cancelling = False
        self._changed = asyncio.Event()  # nothing is left to wait for
        self._grace: asyncio.TimerHandle | None = None
        self._error: BaseException | None = None
        self._ended = asyncio.Event()

    # -- life ----------------------------------------------------------------------------------

    async def run(self) -> None:
        """Handle messages until `stop`. Raises what ended the reading, or a sending back."""
        cancellation: asyncio.CancelledError | None = None
        if not self._work.on_demand:
            for _ in range(self._work.concurrency):
                self.want()
        try:
            while not self._over:
                try:
                    await self._changed.wait()
                except asyncio.CancelledError as cancelled:
                    cancellation = cancelled
                    self.interrupt()
            self._cancelling = True
            await self._runners.stop(CANCEL_SECONDS)
        finally:
            self._end()
        error = cancellation or self._error
        if error is not None:
            raise error

    def want(self) -> None:
        """Handle one more message, for work on demand: the next one that comes, unless it stops."""
        if not self._stopping:
            self._left += 1
            self._runners.start(self._run())

    @property
    def _over(self) -> bool:
        """Whether there is nothing to wait for: it cancels, or no runner is left or to come."""
        ends = self._stopping or not self._work.on_demand
        return self._cancelling or (not self._left and ends)

    def _end(self) -> None:
        if self._grace is not None:
            self._grace.cancel()
        if self._threads is not None:
            self._threads.close()
        for reader in self._hands.readers.values():
            reader.give_back()
        self._ended.set()

    def stop(self) -> None:
        """Take no more messages; handlers that still run after the time of grace are cancelled."""
        if not self._stopping:
            self._stopping = True
            self._grace = self.loop.call_later(self._work.grace, self._cancel)
            self._hands.look_again()
            self._look()

    def interrupt(self) -> None:
        """Stop; the second time, cancel running handlers now."""
        if self._stopping:
            self._cancel()
        self.stop()

    def _cancel(self) -> None:
        self._cancelling = True
        self._look()

    def _look(self) -> None:
        if self._over:
            self._changed.set()

    async def ended(self) -> None:
        """Wait until it has stopped."""
        await self._ended.wait()

    def _fail(self, error: BaseException) -> None:
        """An error ended a runner: the first one stops the others, and is raised."""
        if self._error is None:
            self._error = error
        self.stop()

    # -- messages ------------------------------------------------------------------------------

    async def _run(self) -> None:
        """One of the runners."""
        worker_of.set(self)
        try:
            while (held := await self._take()) is not None:
                following: Held | None = held
                while following is not None:
                    await self._handle(following)
                    following = self._following(held.key)
                if self._work.on_demand:
                    return
        except asyncio.CancelledError:
            if not self._cancelling:
                self._fail(Unavailable("a task of the worker was cancelled by the program"))
            raise
        except (Exception, SystemExit, KeyboardInterrupt) as error:
            self._fail(error)
            raise
        finally:
            self._left -= 1
            self._look()

    async def _take(self) -> Held | None:
        """A message whose handling begins; None: there are no more."""
        found = self._hands.take_now(self._taken)
        if found is None:
            async with self._taking:
                found = await self._hands.take(self._taken)
        return found if isinstance(found, Held) else None

    def _taken(self, reader: GroupReader) -> Held | _End | None:
        """What is handled next, None where that is not there yet."""
        if self._stopping:
            return _End.STOPPED
        if self._stalled and (resumed := self._resumed()) is not None:
            return resumed
        while self._room() and (message := reader.get()) is not None:
            held = reader.hold(message)
            if self._work.by_key and (key := _key_of(message)):
                held.key = key
                if (lane := self._lanes.get(key)) is not None:
                    while lane and lane[-1].dropped:  # its queue comes and goes
                        lane.pop()
                    lane.append(held)
                    continue
                self._lanes[key] = deque()
            begun = reader.begin(held)
            assert begun, "a queue that is read has just given it"
            return held
        return None

    def _room(self) -> bool:
        count = waiting_bytes = 0
        for reader in self._hands.readers.values():
            count += reader.held.count
            waiting_bytes += reader.held.waiting_bytes
        self._full = count >= HELD_MAX or waiting_bytes >= WAITING_BYTES
        return not self._full

    def _following(self, key: str) -> Held | None:
        """The next message of a key, whose handling begins; None where there is none for now."""
        if not key:
            return None
        lane = self._lanes[key]
        while lane and lane[0].dropped:
            lane.popleft()
        if not lane:
            del self._lanes[key]
        elif not self._stopping and self._hands.readers[lane[0].group].begin(lane[0]):
            return lane.popleft()
        else:
            self._stalled.append(key)
        return None

    def _resumed(self) -> Held | None:
        """The first message of a stalled key, if its queue is read again."""
        stalled, self._stalled = self._stalled, []
        while stalled:
            if (held := self._following(stalled.pop())) is not None:
                self._stalled += stalled
                return held
        return None

    # -- handling ------------------------------------------------------------------------------

    async def _handle(self, held: Held) -> None:
        """Have a message handled, or send it back: it is finished then."""
        message = held.message
        assert message is not None, "it is not finished"
        try:
            await self._call(message)
        except (SystemExit, KeyboardInterrupt, GeneratorExit):
            raise  # they end the event loop, or this task
        except GivenBack:
            return
        except BaseException as error:
            if self._cancelling or _is_cancelled():
                cancelled = isinstance(error, asyncio.CancelledError)
                more = "" if cancelled else f" and raised {_in_words(error)}"
                words = "%r: the handler did not end in time%s: it is delivered again"
                log.warning(words, message, more)
                raise asyncio.CancelledError from error
            await self._send_back(held, message, error)
        self._hands.readers[message.group].finish(held)
        if self._full:
            self._hands.look_again()

    async def _call(self, message: Message) -> None:
        """Call the handler, in a task and context of the message's own, or in a thread."""
        if self._threads is None:
            made: Any = self._handler(message)
        else:
            made = await self._threads.call(self._handler, message)
            if not inspect.isawaitable(made):
                return
            made = _awaited(made)
        await self._calls.start(made)

    async def _send_back(self, held: Held, message: Message, error: BaseException) -> None:
        """The handler failed: the group gets the message later. Raises what refuses that."""
        what = f"{message!r}: the handler raised {_in_words(error)}"
        pauses = BackOff()
        while not held.dropped:
            try:
                topic = await self._hands.send_back(message)
            except (Retryable, ResultUnknown) as failure:
                log.warning("%s; it cannot be sent back yet: %s", what, failure)
                reader = self._hands.readers[message.group]
                reader.check()
                if (silence := reader.silence) is not None:
                    raise silence from failure
                unknown = isinstance(failure, ResultUnknown)
                await asyncio.sleep(UNKNOWN_SECONDS if unknown else pauses.next())
            except NoSuchMessage as failure:  # trimmed, say: nobody has it any more
                log.error("%s; it is not retried, as it is gone: %s", what, failure)
                return
            except Exception as failure:
                log.error("%s, and it cannot be sent back: %s", what, failure)
                raise failure from error
            else:
                attempt = message.reconsume_times + 1
                if topic.startswith(DEAD_LETTER_PREFIX):
                    log.error("%s at attempt %d, the last: it is in %s", what, attempt, topic)
                else:
                    log.warning("%s at attempt %d: it is retried", what, attempt)
                return
        log.warning("%s; its queue was given up or is read from elsewhere: not sent back", what)


async def _awaited(made: Awaitable[object]) -> None:
    await made


def _key_of(message: Message) -> str:
    """What orders a message among others; empty: nothing does."""
    properties = message.properties
    return properties.get(MESSAGE_GROUP) or properties.get("KEYS", "")


def _is_cancelled() -> bool:
    """Whether the running task is cancelled, rather than something that it waits for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _in_words(error: BaseException) -> str:
    """An error in one line, with the place that raised it."""
    frames = traceback.extract_tb(error.__traceback__, limit=-1)
    place = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}{': ' if text else ''}{text}{place}"


def _traced(work: Work, span: Callable[[Message], Span]) -> Handler:
    """The handler, each call in a span of its message."""
    handler: Callable[[Message], Any] = work.handler

    async def handle(message: Message) -> None:
        with span(message):
            await handler(message)

    def call(message: Message) -> object:
        with span(message):
            return handler(message)

    return handle if work.is_async else call
