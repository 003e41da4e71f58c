"""Removal of queues: of deleted topics and of light queues that were forgotten."""

import asyncio
from collections.abc import Callable

import structlog

from duolog_server.node.engine.part import Start
from duolog_server.node.upkeep.threadwork import FileWork

log = structlog.get_logger("duolog.node")


class QueueRemoval:
    """Removes queues one at a time while no flush works on them; other work runs in between."""

    def __init__(self, work: FileWork, start: Start, exists: Callable[[str], bool]) -> None:
        """start: starts background work. exists: whether a topic exists or is being created."""
        self._work = work
        self._queues = work.store.queues
        self._start = start
        self._exists = exists

    async def remove(self, topic: str, ends: dict[int, int]) -> None:
        """Remove a deleted topic's queues in the background.

        ends: queue offsets at which they ended when it was deleted, by queue id. What is not
        removed when the node stops is removed at the next start.
        """
        await asyncio.shield(self._start(self._remove(topic, ends)))

    async def remove_light(self, ends: dict[str, int]) -> None:
        """Remove forgotten light queues, except those that have begun again past their end."""
        async with self._work.changes:
            for name, end in ends.items():
                queue = self._queues.get(name, 0)
                if queue is not None and queue.max_offset <= end:
                    self._queues.remove(name, 0)
                    self._queues.remove_directory(name)
                    await asyncio.sleep(0)

    async def _remove(self, topic: str, ends: dict[int, int]) -> None:
        """Remove queues.

        If a topic of the same name is created meanwhile, its queues that continue past their ends
        stay; readers never go below those. What cannot be removed is removed at the next start.
        """
        try:
            async with self._work.changes:
                for name, queue_id in [key for key in self._queues.table if key[0] == topic]:
                    queue = self._queues.get(name, queue_id)
                    again = self._exists(topic)
                    if queue is None or (again and queue.max_offset > ends.get(queue_id, 0)):
                        continue
                    self._queues.remove(name, queue_id)
                    await asyncio.sleep(0)
                if not any(name == topic for name, _ in self._queues.table):
                    self._queues.remove_topic(topic)  # its directory
        except OSError as error:
            log.warning(
                "cannot remove the files of a deleted topic yet",
                topic=topic,
                reason=error.strerror or str(error),
            )
        await self._work.reclaim()
