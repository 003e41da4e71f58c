"""Allocates segments and faults in pages ahead of the writer, so that no put waits for them."""

import asyncio
from concurrent.futures import Executor, ThreadPoolExecutor

import structlog

from duolog_server.node.upkeep.threadwork import done_in_thread
from duolog_server.store.mappedfile import MappedFile
from duolog_server.store.messagestore import MessageStore

log = structlog.get_logger("duolog.node")

TICK_SECONDS = 0.1


class Allocator:
    """Allocates the next segment, and faults in the pages of the current one."""

    def __init__(self, store: MessageStore, threads: Executor) -> None:
        self._store = store
        self._threads = threads
        self._populate_thread = ThreadPoolExecutor(1, thread_name_prefix="duolog-populate")
        self._populating = False

    async def run(self) -> None:
        """Allocate segments ahead, even while syncs take long."""
        while True:
            await asyncio.sleep(TICK_SECONDS)
            wanted = self._store.log.allocation_wanted()
            if wanted is not None:
                await self._allocate(wanted)

    def stop(self) -> None:
        """After the store was shut down: wait for the thread."""
        self._populate_thread.shutdown(wait=True)

    def appended(self) -> None:
        """The log grew: if due, fault in more pages, in a thread of its own."""
        if self._populating:
            return
        wanted = self._store.log.populate_wanted()
        if wanted is None:
            return
        mapped, start, end = wanted
        self._populating = True
        work = asyncio.get_running_loop().run_in_executor(
            self._populate_thread, mapped.file.populate, start, end - start
        )
        work.add_done_callback(self._populated)

    def _populated(self, work: "asyncio.Future[None]") -> None:
        self._populating = False
        if not work.cancelled() and work.exception() is None:
            self.appended()

    async def _allocate(self, start: int) -> None:
        queue, made = self._store.log.queue, list[MappedFile]()
        try:
            await done_in_thread(self._threads, lambda: made.append(queue.create(start)), _failed)
        finally:
            # Also for a stop, however long the disk took: the store drops it when it closes.
            needed = [one for one in made if queue.take_ahead(one)]
        if needed and self._store.options.warm_maped_file_enable:
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(self._threads, self._warm, needed[0])

    @staticmethod
    def _warm(mapped: MappedFile) -> None:
        """Warm-up: fault in and lock a whole segment before it is needed."""
        mapped.file.populate(0, mapped.size)
        mapped.file.lock()


def _failed(error: OSError) -> None:
    if not isinstance(error, FileExistsError):  # the writer was faster
        log.warning("cannot allocate a segment ahead", reason=error.strerror)
