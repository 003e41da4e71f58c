"""When to flush what: RocketMQ's intervals and page counts, as a table of due times.

Time is monotonic: whatever the wall clock does, data gets to the disk.

| work | every | when at least | in full every |
|------|-------|---------------|---------------|
| commit log (asynchronous) | 500 ms | 4 pages | 10 s |
| pool buffers into the log | 200 ms | anything | 200 ms |
| queues, then checkpoint | 1 s | 2 pages | 60 s |
"""

from dataclasses import dataclass

from store.clocks import MonoMs
from store.options import StoreOptions


@dataclass(slots=True)
class Interval:
    """Work that is due every so often, and thoroughly (0 pages) once in a longer while."""

    interval_ms: int
    thorough_ms: int
    least_pages: int
    _next_ms: int = 0
    _next_thorough_ms: int = 0

    def due(self, mono_ms: MonoMs) -> int | None:
        """Pages that must be dirty for the work to be done now; None where it is not due."""
        if mono_ms < self._next_ms:
            return None
        self._next_ms = mono_ms + self.interval_ms
        if mono_ms >= self._next_thorough_ms:
            self._next_thorough_ms = mono_ms + self.thorough_ms
            return 0
        return self.least_pages


@dataclass(slots=True)
class FlushSchedule:
    """The three rows of the table."""

    commit_log: Interval
    queues: Interval
    pool: Interval

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
        )
