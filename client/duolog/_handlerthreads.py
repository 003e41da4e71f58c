"""Threads in which a worker calls handlers that are no coroutine functions.

Not an executor's: those keep a process from ending for as long as a handler hangs. A handler that
runs too long is left behind, in a daemon thread.
"""

import asyncio
import contextlib
import contextvars
import queue
import threading
from collections.abc import Callable
from typing import Any

_Job = tuple[Callable[[], Any], "asyncio.Future[Any]"]


class HandlerThreads:
    """At most so many threads, each begun when it is needed first. For one event loop."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._begun = 0
        self._busy = 0
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()

    async def call(self, function: Callable[[Any], Any], argument: object) -> Any:
        """What the function returns, or raises, called in a copy of this task's context."""
        loop, context = asyncio.get_running_loop(), contextvars.copy_context()
        answer: asyncio.Future[Any] = loop.create_future()
        if self._begun <= self._busy and self._begun < self._most:
            self._begin(loop)
        self._busy += 1
        self._jobs.put((lambda: context.run(function, argument), answer))
        return await answer

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        name = f"duolog-handler-{self._begun + 1}"
        thread = threading.Thread(target=self._work, args=(loop,), name=name, daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the system has no more: the call waits for one that has begun
            if not self._begun:
                raise
            return
        self._begun += 1

    def close(self) -> None:
        """End the threads, each when what it runs has ended."""
        for _ in range(self._begun):
            self._jobs.put(None)

    def _work(self, loop: asyncio.AbstractEventLoop) -> None:
        while (job := self._jobs.get()) is not None:
            function, answer = job
            result, error = None, None
            try:
                result = function()
            except BaseException as raised:
                error = raised
            with contextlib.suppress(RuntimeError):  # the loop was closed: nobody waits
                loop.call_soon_threadsafe(self._ended, answer, result, error)
            del job, function, answer, result, error  # a batch must not wait for the next message

    def _ended(self, answer: "asyncio.Future[Any]", result: Any, error: Any) -> None:
        self._busy -= 1
        if answer.done():  # the worker has stopped waiting
            return
        if error is None:
            answer.set_result(result)
        elif isinstance(error, Exception) and not isinstance(error, StopIteration):
            answer.set_exception(error)
        else:  # of SystemExit the event loop would end
            answer.set_exception(RuntimeError(f"the handler raised {error!r}"))
