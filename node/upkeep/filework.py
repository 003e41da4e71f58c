"""Work on a store's files in threads, and the lock for truncating or removing files."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor

import structlog

from duolog_server.node.upkeep.threadwork import done_in_thread
from duolog_server.store.messagestore import MessageStore

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
