"""A job in a thread that ends before its owner does.

A cancelled task would leave its job running in the thread: the job would write to files that a stop
writes or closes, and a failed sync would go unnoticed.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from math import inf
from typing import Any, TypeVar

T = TypeVar("T")


class DaemonThreads(Executor):
    """A thread for each job, that does not keep the process alive: for a disk that may hang.

    The end of a process waits for the threads of a pool.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def submit(self, job: Callable[..., T], /, *args: Any, **kwargs: Any) -> "Future[T]":
        """Begin a job."""
        future: Future[T] = Future()

        def run() -> None:
            try:
                future.set_result(job(*args, **kwargs))
            except BaseException as error:
                future.set_exception(error)

        threading.Thread(target=run, name=self._name, daemon=True).start()
        return future


async def done_in_thread(
    threads: Executor,
    job: Callable[[], None],
    on_failure: Callable[[OSError], None],
    end_seconds: float = inf,
) -> bool:
    """Run a job in a thread; False if it failed, after calling on_failure.

    A cancellation takes effect when the job has ended, also one that is repeated, as by a stop.
    end_seconds: by which it must take effect; a job that takes longer is left behind.
    """
    loop = asyncio.get_running_loop()
    work = loop.run_in_executor(threads, job)
    try:
        await asyncio.shield(work)
    except OSError as error:
        on_failure(error)
        return False
    except asyncio.CancelledError:
        deadline = loop.time() + end_seconds
        while not work.done() and loop.time() < deadline:
            left = None if end_seconds == inf else deadline - loop.time()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([work], timeout=left)
        failure = work.exception() if work.done() else None
        if isinstance(failure, OSError):
            on_failure(failure)
        raise
    return True
