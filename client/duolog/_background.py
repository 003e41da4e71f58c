"""Owners of work in the background: what begins at any time, and ends with its owner.

A TaskGroup must be left by the task that entered it. The parts of a client or a node are started by
one task and stopped by another one; in between their calls start work. Tasks that outlive a
call are made here, or in a TaskGroup, and nowhere else.
"""

import asyncio
import contextlib
import contextvars
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, Iterable
from math import inf
from typing import Any, Generic, TypeVar

from duolog._errors import DuologError, Retryable, Unavailable

K = TypeVar("K")
T = TypeVar("T")
log = logging.getLogger("duolog")

CANCEL_AGAIN_SECONDS = 1.0  # a cancellation may be lost where it meets an error
LATER_SECONDS = 0.1  # by which a deadline counts as a later one
STOP_SECONDS = 60.0  # what has not ended by then takes no cancellation: a bug of its own


def without_frames(error: Exception) -> Exception:
    """An error that may be kept: the frames that it came through would keep all they know of, also
    those of the errors that it came within.
    """
    found: BaseException | None = error
    seen: set[int] = set()
    while found is not None and id(found) not in seen:
        seen.add(id(found))
        found.__traceback__ = None
        found = found.__cause__ or found.__context__
    return error


def report(error: BaseException) -> None:
    """Log an error that has no waiter."""
    log.error("a background task failed", exc_info=error)


class Background:
    """The tasks of one owner. Reports an error that ends one to the owner."""

    def __init__(self, failed: Callable[[Exception], None] = report) -> None:
        """failed: what is done with the error of a task; logging it, where not given."""
        self._failed = failed
        self._tasks: dict[asyncio.Task[Any], None] = {}  # ended in the order of their beginnings

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Begin in a later turn, whatever the program's task factory does (`eager_task_factory`
        of 3.12): owners note the task, and what it is for, first. It may be awaited, or cancelled.
        """
        loop = asyncio.get_running_loop()
        plain = loop.get_task_factory() is None
        task = loop.create_task(work) if plain else asyncio.Task(work, loop=loop)
        self._tasks[task] = None
        task.add_done_callback(self._ended)
        return task

    @property
    def busy(self) -> bool:
        """Whether any task runs."""
        return bool(self._tasks)

    async def stop(self, seconds: float | None = STOP_SECONDS) -> None:
        """Cancel running tasks, and what that starts, and wait for its end.

        seconds: for all of it; what has not ended by then is logged and left behind. None waits as
        long as it takes, for owners whose tasks wait for threads that write files.
        """
        loop, me = asyncio.get_running_loop(), asyncio.current_task()
        deadline = None if seconds is None else loop.time() + seconds
        while others := [task for task in self._tasks if task is not me]:
            if deadline is not None and loop.time() >= deadline:
                log.error(
                    "%d background tasks did not end within %g s of their cancellation: %s",
                    len(others),
                    seconds,
                    ", ".join(map(repr, others)),
                )
                return
            for task in others:
                task.cancel()
            await asyncio.wait(others, timeout=CANCEL_AGAIN_SECONDS)

    async def finish(self, seconds: float | None = None) -> bool:
        """Wait until no task runs, for at most so long; whether none runs.

        None: as long as it takes, where each task has a deadline of its own.
        """
        loop = asyncio.get_running_loop()
        deadline = None if seconds is None else loop.time() + seconds
        while self._tasks:
            left = None if deadline is None else deadline - loop.time()
            if left is not None and left <= 0:
                return False
            await asyncio.wait(self._tasks, timeout=left)
        return True

    def _ended(self, task: asyncio.Task[Any]) -> None:
        del self._tasks[task]
        if task.cancelled():
            return
        error = task.exception()
        if isinstance(error, Exception):
            self._failed(error)


class Joint(Generic[K, T]):
    """Calls that are made once for everyone who wants the same at the same time.

    A call continues where those who wait for it are cancelled: its answer may be wanted again.
    """

    def __init__(self) -> None:
        self._background = Background(self._not_awaited)
        self._under_way: dict[K, tuple[asyncio.Task[T], float]] = {}  # and its deadline

    async def call(
        self, key: K, make: Callable[[], Coroutine[Any, Any, T]], deadline: float = -inf
    ) -> T:
        """The answer of the running call with this key, or of a new one.

        Raises what the call does; Unavailable where it was stopped meanwhile. deadline: by the
        loop's clock, when a call that is made now gives up. Where another's gave up before, one
        more is made.
        """
        while True:
            begun = self._under_way.get(key)
            if begun is None:
                begun = self._under_way[key] = self._background.start(make()), deadline
                begun[0].add_done_callback(lambda _: self._under_way.pop(key, None))
            task, until = begun
            await asyncio.wait([task])
            if task.cancelled():
                raise Unavailable("the call was cancelled: the client that made it is closing")
            later = deadline > until + LATER_SECONDS
            if not (later and isinstance(task.exception(), Retryable)):
                return task.result()

    async def stop(self) -> None:
        """Cancel running calls."""
        await self._background.stop()

    @staticmethod
    def _not_awaited(error: Exception) -> None:
        """It is raised in those who wait; there may be none any more."""
        if isinstance(error, DuologError):
            log.debug("a shared call failed: %s", error)
        else:
            report(error)


class _Awaited(asyncio.TaskGroup):
    """A TaskGroup whose tasks are waited for in its body.

    A task that fails cancels the body. Once the body has ended that would cancel the task that left
    it, and asyncio takes this back only from a body.
    """

    def __init__(self) -> None:
        super().__init__()
        self._left: dict[asyncio.Task[Any], None] = {}

    def create_task(
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],
        *,
        name: str | None = None,
        context: contextvars.Context | None = None,
    ) -> asyncio.Task[T]:
        """Begin a task."""
        task = super().create_task(coro, name=name, context=context)
        self._left[task] = None
        task.add_done_callback(lambda done: self._left.pop(done, None))
        return task

    async def ended(self) -> None:
        """Wait until no task is left."""
        while self._left:
            await asyncio.wait(self._left)


@contextlib.asynccontextmanager
async def together() -> AsyncIterator[asyncio.TaskGroup]:
    """A TaskGroup whose first error is raised as it is: callers know its class.

    A cancellation that meets an error is raised instead of it; a TaskGroup would drop it.
    """
    me = asyncio.current_task()
    assert me is not None, "run in a task"
    before = me.cancelling()
    try:
        async with _Awaited() as tasks:
            yield tasks
            await tasks.ended()
    except BaseExceptionGroup as errors:
        if me.cancelling() > before:
            raise asyncio.CancelledError from None
        raise errors.exceptions[0] from None


async def all_of(*works: Coroutine[Any, Any, T]) -> list[T]:
    """Results of several calls; the first error cancels the others, and is raised as it is."""
    async with together() as tasks:
        made = [tasks.create_task(work) for work in works]
    return [task.result() for task in made]


async def close_all(*stages: Iterable[Callable[[], Awaitable[None]]]) -> None:
    """Close everything, stage after stage, despite errors; then raise the first error, log others.

    A cancellation ends the running stage; the later ones are closed nevertheless, and it is
    raised in place of an error.
    """
    first: BaseException | None = None
    cancelled: asyncio.CancelledError | None = None
    for stage in stages:
        try:
            found = await asyncio.gather(*(close() for close in stage), return_exceptions=True)
        except asyncio.CancelledError as cancellation:
            cancelled = cancelled or cancellation
            continue
        for error in found:
            if isinstance(error, BaseException) and first is not None:
                log.warning("this could not be closed either: %r", error)
            elif isinstance(error, BaseException):
                first = error
    error = cancelled or first
    if error is not None:
        raise error


async def close_after(kind: object, close: Callable[[], Awaitable[None]]) -> None:
    """Close at the end of an `async with`: an error that ends it is raised on.

    kind: its class.
    """
    try:
        await close()
    except DuologError as error:
        if kind is None:
            raise
        log.warning("closing after another error: %r", error)
