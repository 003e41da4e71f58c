"""An event loop on the scheduler's time, for the coroutines of a simulated process.

A turn runs what is ready, as asyncio's does; between two turns the rest of the world goes on. When
a process dies, its loop ends: its tasks are cancelled, and their errors are dropped.
"""

import asyncio
import concurrent.futures
import contextvars
import heapq
import random
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Executor
from typing import Any, TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

TURN_MS = 0.2  # longest pause between two turns
THREAD_MS = 3.0  # longest until a thread begins a job, and until its end is noticed
LAST_HANDLES = 100_000  # of a process that dies
NEAR = 1e-6


class SimLoop(asyncio.BaseEventLoop):
    """The loop of one process."""

    def __init__(
        self,
        later: Callable[[float, Callable[[], None]], None],
        seconds: Callable[[], float],
        chance: random.Random,
    ) -> None:
        """later: does something after some ms, while the process lives. seconds: its clock."""
        super().__init__()
        self._later = later
        self._seconds = seconds
        self._chance = chance
        self._soon: deque[asyncio.Handle] = deque()
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._numbers = 0
        self._planned = False
        self._wakes: list[float] = []  # times of turns that are planned for timers
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._closed = False
        self.handled = 0  # callbacks that ran
        self.frozen = False  # the process is stopped, and not gone yet
        self.failure: BaseException | None = None  # of a callback that nobody waits for

    # -- what asyncio asks for -----------------------------------------------------------------

    def time(self) -> float:
        """The process's monotonic clock in seconds."""
        return self._seconds()

    def call_soon(
        self,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.Handle:
        """In the next turn."""
        handle = asyncio.Handle(callback, args, self, context)
        self._soon.append(handle)
        self._plan()
        return handle

    def call_later(
        self,
        delay: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        """After some seconds."""
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        """At a time of `time`."""
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        self._numbers += 1
        heapq.heappush(self._timers, (when, self._numbers, handle))
        self._plan_timer()
        return handle

    def create_future(self) -> "asyncio.Future[Any]":
        """A future of this loop."""
        return asyncio.Future(loop=self)

    def create_task(
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],
        *,
        name: object = None,
        context: contextvars.Context | None = None,
    ) -> "asyncio.Task[T]":
        """A task of this loop."""
        task = asyncio.Task(
            coro, loop=self, name=None if name is None else str(name), context=context
        )
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._tasks.pop(done, None))
        return task

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[*Ts], T], *args: *Ts
    ) -> "asyncio.Future[T]":
        """In a thread: it begins and ends some time later, maybe too late for anybody."""
        future: asyncio.Future[T] = self.create_future()

        def work() -> None:
            done: concurrent.futures.Future[T] = concurrent.futures.Future()
            try:
                done.set_result(func(*args))
            except Exception as error:
                done.set_exception(error)
            self._later(self._chance.uniform(0, THREAD_MS), lambda: tell(done))

        def tell(done: "concurrent.futures.Future[T]") -> None:
            error = done.exception()
            if future.done():
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(done.result())

        self._later(self._chance.uniform(0, THREAD_MS), work)
        return future

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """A callback failed, or a task whose result nobody took."""
        if not (self._closed or self.frozen) and self.failure is None:
            self.failure = context.get("exception") or RuntimeError(context["message"])

    # -- turns ---------------------------------------------------------------------------------

    def _plan(self) -> None:
        if not self._planned and not self._closed:
            self._planned = True
            self._later(self._chance.uniform(0, TURN_MS), self._turn_planned)

    def _plan_timer(self) -> None:
        if not self._timers or self._closed:
            return
        when = self._timers[0][0]
        if self._wakes and self._wakes[0] <= when + NEAR:
            return
        heapq.heappush(self._wakes, when)
        self._later(max(0.0, (when - self.time()) * 1000 + NEAR), self._timer_planned)

    def _turn_planned(self) -> None:
        self._planned = False
        self._turn()

    def _timer_planned(self) -> None:
        if self._wakes:
            heapq.heappop(self._wakes)
        self._turn()

    def _turn(self) -> None:
        if self.frozen:
            return
        now = self.time() + NEAR
        while self._timers and self._timers[0][0] <= now:
            _, _, handle = heapq.heappop(self._timers)
            if not handle.cancelled():
                self._soon.append(handle)
        self._run(len(self._soon))
        if self._soon:
            self._plan()
        self._plan_timer()
        if self.failure is not None:
            failure, self.failure = self.failure, None
            raise failure

    def _run(self, most: int) -> None:
        before = asyncio._get_running_loop()
        asyncio._set_running_loop(self)
        try:
            while self._soon and most > 0 and self.failure is None and not self.frozen:
                most -= 1
                handle = self._soon.popleft()
                if not handle.cancelled():
                    self.handled += 1
                    handle._run()
        finally:
            asyncio._set_running_loop(before)

    def run_now(self, do: Callable[[], T]) -> T:
        """Do something as a callback of this loop would: futures and tasks are this loop's."""
        before = asyncio._get_running_loop()
        asyncio._set_running_loop(self)
        try:
            return do()
        finally:
            asyncio._set_running_loop(before)

    def close(self) -> None:
        """The process dies: what its tasks do on their way out, nobody sees."""
        if self._closed:
            return
        self._closed, self.frozen = True, False
        for task in list(self._tasks):
            task.cancel()
        self.failure = None
        self._run(LAST_HANDLES)
        for task in list(self._tasks):
            task._log_destroy_pending = False  # type: ignore[attr-defined]
        self._soon.clear()
        self._timers.clear()
