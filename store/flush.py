"""Flush schedule: RocketMQ's intervals and page counts, as a table of due times.

Time is monotonic, so jumps of the wall clock do not delay flushes.

| work | every | when at least | in full every |
|------|-------|---------------|---------------|
| commit log (asynchronous) | 500 ms | 4 pages | 10 s |
| pool buffers into the log | 200 ms | anything | 200 ms |
| queues, then checkpoint | 1 s | 2 pages | 60 s |
| checkpoint with its confirm note | 1 s | something was confirmed since | - |

A node's event loop and the simulator both use this table and `QueuesFlush`, so that a crash finds
the same on disk in both.
"""

from collections.abc import Generator
from dataclasses import dataclass

from duolog_server.store.clocks import MonoMs
from duolog_server.store.mappedfile import FlushJob
from duolog_server.store.messagestore import MessageStore
from duolog_server.store.options import StoreOptions

NOTE_SYNC_MS = 1000


@dataclass(slots=True)
class Interval:
    """Work that is due at one interval, and thoroughly (0 pages) at a longer one."""

    interval_ms: int
    thorough_ms: int
    least_pages: int
    _next_ms: int = 0
    _next_thorough_ms: int = 0

    def due(self, mono_ms: MonoMs) -> int | None:
        """Dirty pages required for the work to be done now; None if it is not due."""
        if mono_ms < self._next_ms:
            return None
        self._next_ms = mono_ms + self.interval_ms
        if mono_ms >= self._next_thorough_ms:
            self._next_thorough_ms = mono_ms + self.thorough_ms
            return 0
        return self.least_pages


@dataclass(slots=True)
class FlushSchedule:
    """The rows of the table."""

    commit_log: Interval
    queues: Interval
    pool: Interval
    note: Interval

    @staticmethod
    def of(options: StoreOptions) -> "FlushSchedule":
        """The table with configured numbers."""
        return FlushSchedule(
            Interval(
                options.flush_interval_commit_log,
                options.flush_commit_log_thorough_interval,
                options.flush_commit_log_least_pages,
            ),
            Interval(
                options.flush_interval_consume_queue,
                options.flush_consume_queue_thorough_interval,
                options.flush_consume_queue_least_pages,
            ),
            Interval(
                options.commit_interval_commit_log,
                options.commit_interval_commit_log,
                options.commit_commit_log_least_pages,
            ),
            Interval(NOTE_SYNC_MS, NOTE_SYNC_MS, 0),
        )


class QueuesFlush:
    """One round of flushing queues and full index files; the checkpoint follows what is synced.

    `gather`, then `sync`, which may run in a thread, then `settle`. Puts may happen meanwhile, but
    no truncation or removal of files.
    """

    def __init__(self, store: MessageStore, pages: int) -> None:
        """pages: from `Interval.due`; 0: a thorough round, which is also needed if too many files
        are open.
        """
        pages = 0 if store.queues.is_crowded else pages
        self._store = store
        self._pages = pages
        self._queues: FlushJob | None = None
        self._index: FlushJob | None = None

    def gather(self) -> Generator[None, None, None]:
        """Find the files to sync, a few ms per step."""
        self._queues = yield from self._store.queues_flush(self._pages)
        self._index = self._store.index.flush_full_job()

    def sync(self) -> None:
        """Sync the files. Raises OSError, which is final."""
        for job in (self._queues, self._index):
            if job is not None:
                job.run()

    def settle(self) -> bool:
        """After the sync: True if the checkpoint has moved and must be flushed."""
        store = self._store
        if self._queues is not None:
            store.queues_flushed(self._queues, self._pages == 0)
        if self._index is not None:
            store.index_flushed()
        moved = (self._pages == 0 and self._queues is not None) or self._index is not None
        if moved:
            store.note_confirmed()
        return moved
