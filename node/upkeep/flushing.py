"""Asynchronous flush: log, queues, index and the confirm note, each when it is due."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

from duolog_server.node.upkeep.groupcommit import GroupCommitService
from duolog_server.node.upkeep.threadwork import FileWork
from duolog_server.store.clocks import MonoMs
from duolog_server.store.flush import FlushSchedule, QueuesFlush

TICK_SECONDS = 0.1


class Flusher:
    """Runs the flush schedule of a store."""

    def __init__(
        self, work: FileWork, group_commit: GroupCommitService, mono_ms: Callable[[], MonoMs]
    ) -> None:
        self._work = work
        self._store = work.store
        self._group_commit = group_commit
        self._mono_ms = mono_ms
        self._schedule = FlushSchedule.of(work.store.options)

    async def run(self) -> None:
        """The background task; it ends when a sync fails."""
        schedule, checkpoint = self._schedule, self._store.checkpoint
        while True:
            await asyncio.sleep(TICK_SECONDS)
            now = self._mono_ms()
            pages = schedule.commit_log.due(now)
            if pages is None or self._store.options.sync_flush:
                pass
            elif not await self._group_commit.flush(pages):
                return
            pages = schedule.queues.due(now)
            if pages is not None:
                await self._flush_queues(pages)
            if schedule.note.due(now) is not None and checkpoint.note.unsynced:
                await self._sync_note()

    def commit_when_due(self) -> bool:
        """Copy the transient store pool into the log's files if due; whether it was."""
        due = self._schedule.pool.due(self._mono_ms()) is not None
        if due:
            self._store.log.commit()
        return due

    @contextlib.asynccontextmanager
    async def stopped(self) -> AsyncIterator[None]:
        """A lock held while the log may be truncated: no sync or other work on its files runs
        meanwhile.
        """
        async with self._work.changes, self._group_commit.lock:
            yield

    async def _flush_queues(self, pages: int) -> None:
        async with self._work.changes:
            flush = QueuesFlush(self._store, pages)
            for _ in flush.gather():
                await asyncio.sleep(0)
            if await self._work.synced(flush.sync) and flush.settle():
                await self._work.synced(self._store.checkpoint.flush)

    async def _sync_note(self) -> None:
        """Sync the confirm note: after a power cut at most the last second of it is lost."""
        async with self._work.changes:
            self._store.note_confirmed()
            await self._work.synced(self._store.checkpoint.flush)
