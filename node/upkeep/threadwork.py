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

import structlog

from duolog_server.store.messagestore import MessageStore

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


# Work on a store's files in threads, and the lock for truncating or removing files.
log = structlog.get_logger("duolog.node")


class FileWork:
    """Shared by flushes, retention and removals."""

    def __init__(
        self, store: MessageStore, threads: Executor, on_failure: Callable[[OSError], None]
    ) -> None:
        """on_failure: called if a sync fails, which is final."""
        self.store = store
        self.threads = threads
        self.changes = asyncio.Lock()  # held while queues are flushed, or files cut or removed
        self._on_failure = on_failure

    async def synced(self, job: Callable[[], None]) -> bool:
        """Sync files in a thread; False if that failed."""
        return await done_in_thread(self.threads, job, self._on_failure)

    async def reclaim(self) -> None:
        """Unlink removed files in a thread: for a segment, it takes as long as it has pages in
        memory.
        """
        try:
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(self.threads, self.store.disk.reclaim)
        except OSError as error:
            log.warning("cannot unlink removed files yet", reason=error.strerror or str(error))
