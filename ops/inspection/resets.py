"""Resume points of a group: parses what people write into offsets of its queues."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from duolog import Client, GroupQueue, Start
from duolog._background import all_of

from duolog_server.node.runtime.numerals import number_of
from duolog_server.ops.inspection.messages.places import OFFSET_MAX
from duolog_server.ops.inspection.times import BadTime, time_of

AT_ONCE = 16  # queues that the nodes are asked for
OFFSET = "offset:"


class BadResumePoint(ValueError):
    """A text does not say where to resume; its own text says how one writes it."""


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """at: an end of the queues, or a time, ms since 1970. offset: instead of it, if not None."""

    at: Start | int = Start.EARLIEST
    offset: int | None = None


def resume_point_of(text: str) -> ResumePoint:
    """earliest, latest, a time (see `time_of`), or offset:N. Raises BadResumePoint."""
    if text in list(Start):
        return ResumePoint(Start(text))
    if not text.startswith(OFFSET):
        try:
            return ResumePoint(time_of(text))
        except BadTime as error:
            raise BadResumePoint(str(error)) from None
    offset = number_of(text.removeprefix(OFFSET), OFFSET_MAX)
    if offset is None:
        raise BadResumePoint(f"{text!r} is not offset:N, where N is a queue offset of 0 or more")
    return ResumePoint(offset=offset)


async def resume_at(client: Client, queues: Sequence[GroupQueue], to: ResumePoint) -> list[int]:
    """The queue offsets at which a group resumes in some queues, in their order.

    The nodes are asked for a time only: the ends of a queue are known.
    """
    bound = asyncio.Semaphore(AT_ONCE)

    async def offset_of(queue: GroupQueue) -> int:
        if to.offset is not None:
            return min(max(to.offset, queue.min_offset), queue.max_offset)
        if to.at == Start.EARLIEST:
            return queue.min_offset
        if to.at == Start.LATEST:
            return queue.max_offset
        async with bound:
            return await client.admin.offset_at_time(
                queue.topic, queue.queue_id, to.at, group=queue.replica_group
            )

    return await all_of(*map(offset_of, queues))
