"""Retention: deletes expired segments and monitors disk usage."""

import asyncio
import time
from collections.abc import Callable
from datetime import datetime

import structlog

from duolog_server.node.upkeep.threadwork import FileWork
from duolog_server.store.clocks import WallMs
from duolog_server.store.retention import Cleaned, DiskUse

log = structlog.get_logger("duolog.node")


class Cleaner:
    """Runs the rounds of a store's retention."""

    def __init__(self, work: FileWork, age_ms: Callable[[], WallMs]) -> None:
        """age_ms: the clock by which stored data ages."""
        self._work = work
        self._store = work.store
        self._age_ms = age_ms
        self._not_deleted = ""  # as it was logged last

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
        await self._look_at_use()
        async with self._work.changes:
            now = self._age_ms()
            hour = datetime.fromtimestamp(now / 1000).astimezone().hour
            cleaned = self._store.retention.round(now, hour, self._store.dispatcher.reput_from)
        await self._work.reclaim()
        before, self._not_deleted = self._not_deleted, self._store.queues.not_deleted
        if self._not_deleted and self._not_deleted != before:
            log.warning("cannot remove queue files of hidden messages", reason=self._not_deleted)
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

    async def _measured(self) -> DiskUse:
        loop = asyncio.get_running_loop()
        found = await loop.run_in_executor(self._work.threads, self._store.disk.used_bytes)
        return DiskUse(*found)

    async def _look_at_use(self) -> None:
        """Find out whose files fill the disk, where that decides; warn when it becomes others'."""
        retention = self._store.retention
        before = retention.use is not None and retention.use.mostly_others
        retention.use = use = await self._measured() if retention.wants_use else None
        if use is None or before or not use.mostly_others:
            return
        log.warning(
            "other files fill the disk: unexpired segments are kept",
            disk_used=round(self._store.disk.used_ratio(), 3),
            limit=retention.forced_limit,
            used_bytes=use.used,
            store_bytes=use.own,
            others_bytes=use.others,
            hint=f"free disk space: above {self._store.options.disk_space_warning_level_ratio} % "
            "puts are refused. To delete messages for other files, as RocketMQ does, set "
            "store.clean_file_forcibly_for_others=true",
        )

    async def _warn_of_unexpired(self, cleaned: Cleaned) -> None:
        """Warn that unexpired messages were deleted: why, and what fills the disk."""
        options = self._store.options
        use = self._store.retention.use or await self._measured()
        log.warning(
            "deleted unexpired segments because the disk is too full",
            segments=list(cleaned.unexpired),
            reserved_hours=options.file_reserved_time,
            disk_used=round(cleaned.used_ratio, 3),
            limit=self._store.retention.forced_limit,
            used_bytes=use.used,
            store_bytes=use.own,
            others_bytes=use.others,
            mostly="others' files" if use.mostly_others else "this store",
            hint="free disk space, or lower store.file_reserved_time; to refuse puts "
            "instead of deleting segments, set store.clean_file_forcibly_enable=false",
        )
