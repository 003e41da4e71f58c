"""Pages of the log for a slave that is far behind, loaded in a thread before they are sent.

So the event loop never waits for the disk. While one stretch is sent, the next one is loaded.
"""

import asyncio
from concurrent.futures import Executor

from duolog_server.store.commitlog import CommitLog
from duolog_server.store.mappedfile import MappedFile

COLD_BYTES = 32 << 20  # slaves further behind may need pages that are not in memory
LOAD_BYTES = 8 << 20


class ColdLoader:
    """Loads cold log pages for one slave."""

    def __init__(self, threads: Executor) -> None:
        self._threads = threads
        self._loaded = 0
        self._next: asyncio.Future[None] | None = None

    def load(self, log_: CommitLog, sent: int) -> "asyncio.Future[None] | None":
        """A future for the bytes from an offset on; None: they are in memory.

        The stretch after them is begun with.
        """
        if sent + COLD_BYTES > log_.max_offset:
            return None
        if sent < self._loaded:
            return None
        if self._next is None or sent > self._loaded:
            self._loaded = sent
            self._next = self._start(log_)
        under_way = self._next
        self._loaded += LOAD_BYTES
        self._next = self._start(log_)
        return under_way

    def _start(self, log_: CommitLog) -> "asyncio.Future[None]":
        mapped = log_.queue.find(self._loaded)
        loop = asyncio.get_running_loop()
        if mapped is None:
            done: asyncio.Future[None] = loop.create_future()
            done.set_result(None)
            return done
        return loop.run_in_executor(self._threads, _load, mapped, self._loaded - mapped.start)


def _load(mapped: MappedFile, start: int) -> None:
    mapped.file.load(start, LOAD_BYTES)
