"""GroupCommitService: one fdatasync for all waiting puts; none is acknowledged before it.

Waiters are kept in offset order. A disk error is final: all waiters get UNKNOWN_ERROR, and the node
is fenced. A waiter whose deadline passes gets FLUSH_DISK_TIMEOUT: its message is stored, and may
still reach the disk.
"""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Executor

from duolog_server.ha.waiters import OffsetWaiters
from duolog_server.node.runtime.histogram import Histogram
from duolog_server.node.upkeep.threadwork import done_in_thread
from duolog_server.store.mappedfile import FlushJob
from duolog_server.store.messagestore import MessageStore
from duolog_server.store.offsets import PhyOffset
from duolog_server.store.status import PutMessageStatus

SYNC_BOUNDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)


class GroupCommitService:
    """Syncs the commit log in a thread as long as puts wait."""

    def __init__(
        self,
        store: MessageStore,
        threads: Executor,
        on_flushed: Callable[[], None],
        on_failure: Callable[[OSError], None],
    ) -> None:
        self._store = store
        self._threads = threads
        self._on_flushed = on_flushed
        self._on_failure = on_failure
        self._waiters: OffsetWaiters[asyncio.Future[PutMessageStatus]] = OffsetWaiters()
        self._wake = asyncio.Event()
        self._timeout = store.options.sync_flush_timeout / 1000
        self.lock = asyncio.Lock()  # held while a sync runs
        self.syncing_since = 0.0  # monotonic clock; 0 while no sync runs
        self.sync_seconds = Histogram(SYNC_BOUNDS)
        self.flushes = 0
        self.released = 0

    def validate(self) -> str:
        """The violated invariant, empty for none: what a waiter waits for is not on disk yet."""
        first, flushed = self._waiters.first, self._store.flushed_offset
        if first is not None and first <= flushed:
            return f"a put up to {first} waits, {flushed} is on disk"
        return ""

    def wait(self, end_offset: PhyOffset) -> "asyncio.Future[PutMessageStatus]":
        """A future that is done when everything below an offset is on disk, or the sync failed."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[PutMessageStatus] = loop.create_future()
        if end_offset <= self._store.flushed_offset:
            future.set_result(PutMessageStatus.PUT_OK)
            return future
        self._waiters.add(end_offset, loop.time() + self._timeout, future)
        self._wake.set()
        return future

    def nudge(self) -> None:
        """Flush soon although no put waits (WAIT=false)."""
        self._wake.set()

    async def run(self) -> None:
        """The service's task."""
        try:
            async with asyncio.TaskGroup() as tasks:
                watcher = tasks.create_task(self.watch_deadlines())
                await self._flush_for_waiters()
                watcher.cancel()
        finally:
            self.fail_all()

    async def _flush_for_waiters(self) -> None:
        """Sync whenever a put waits, until the disk fails."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            if not await self.flush(0):
                return
            if self._waiters:
                self._wake.set()

    async def flush(self, least_pages: int) -> bool:
        """Sync once if there is enough to sync; False if the disk failed."""
        async with self.lock:
            self._store.log.commit()
            job = self._store.log.queue.flush_job(least_pages)
            if job is not None and not await self._run_job(job):
                return False
            self.release()
            return True

    async def _run_job(self, job: FlushJob) -> bool:
        self.syncing_since = began = time.monotonic()
        try:
            if not await done_in_thread(self._threads, job.run, self._on_failure):
                self.fail_all()
                return False
        finally:
            self.syncing_since = 0.0
        self.sync_seconds.observe(time.monotonic() - began)
        self.flushes += 1
        self._store.commit_log_flushed(job)
        self._on_flushed()
        return True

    def release(self) -> None:
        """Answer the puts whose records are on disk."""
        for future in self._waiters.release(self._store.flushed_offset):
            self.released += 1
            if not future.done():
                future.set_result(PutMessageStatus.PUT_OK)

    def fail_all(self) -> None:
        """Answer all waiting puts with an unknown result."""
        for future in self._waiters.drain():
            if not future.done():
                future.set_result(PutMessageStatus.UNKNOWN_ERROR)

    async def watch_deadlines(self) -> None:
        """Time out puts that waited too long (RocketMQ: FlushDiskWatcher)."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(min(0.25, self._timeout / 4))
            for future in self._waiters.expire(loop.time()):
                if not future.done():
                    future.set_result(PutMessageStatus.FLUSH_DISK_TIMEOUT)
