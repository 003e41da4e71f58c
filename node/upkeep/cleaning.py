"""Retention: deletes expired segments and monitors disk usage."""

import asyncio
import time
from collections.abc import Callable
from datetime import datetime

import structlog

from node.upkeep.filework import FileWork
from store.clocks import WallMs
from store.retention import Cleaned

log = structlog.get_logger("duolog.node")


class Cleaner:
    """Runs the rounds of a store's retention."""

    def __init__(self, work: FileWork, age_ms: Callable[[], WallMs]) -> None:
        """age_ms: the clock by which stored data ages."""
        self._work = work
        self._store = work.store
        self._age_ms = age_ms

    async def run(self) -> None:
        """Run every 10 s; checks the disk from the start, deletes files after 60 s."""
        interval = self._store.options.clean_resource_interval / 1000
        began = time.monotonic()
        while True:
            self._store.retention.check_space()
            await asyncio.sleep(interval)
            if time.monotonic() - began < min(60.0, 6 * interval):
                continue
            rounds = self._store.options.delete_file_batch_max
            while await self._clean_once() and rounds > 1:
                rounds -= 1

    async def _clean_once(self) -> bool:
        """One round of retention; whether the next one is due at once."""
        async with self._work.changes:
            now = self._age_ms()
            hour = datetime.fromtimestamp(now / 1000).astimezone().hour
            cleaned = self._store.retention.round(now, hour, self._store.dispatcher.reput_from)
        await self._work.reclaim()
        if cleaned.segments:
            self._store.retention.check_space()
            log.info(
                "cleaned",
                segments=cleaned.segments,
                queue_files=cleaned.queue_files,
                index_files=cleaned.index_files,
                disk_used=round(cleaned.used_ratio, 3),
            )
        if cleaned.unexpired:
            await self._warn_of_unexpired(cleaned)
        return cleaned.more

    async def _warn_of_unexpired(self, cleaned: Cleaned) -> None:
        """Warn that unexpired messages were deleted: why, and what fills the disk."""
        options, loop = self._store.options, asyncio.get_running_loop()
        used, own = await loop.run_in_executor(self._work.threads, self._store.disk.used_bytes)
        others = max(0, used - own)
        log.warning(
            "deleted unexpired segments because the disk is too full",
            segments=list(cleaned.unexpired),
            reserved_hours=options.file_reserved_time,
            disk_used=round(cleaned.used_ratio, 3),
            limit=self._store.retention.forced_limit,
            used_bytes=used,
            store_bytes=own,
            others_bytes=others,
            mostly="others' files" if others > own else "this store",
            hint="free disk space, or lower store.file_reserved_time; to refuse puts "
            "instead of deleting segments, set store.clean_file_forcibly_enable=false",
        )
