"""Where a group is to resume: as people write it, and which offsets of its queues that means."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from duolog import Client, GroupQueue, Start
from duolog._background import all_of

from node.inspection.times import MS_MAX, BadTime, time_of

AT_ONCE = 16  # queues that the nodes are asked for
OFFSET = "offset:"
OFFSET_MAX = MS_MAX  # both are 64 bits


class BadPlace(ValueError):
    """A text is no place; its own text says how one is written."""


@dataclass(frozen=True, slots=True)
class Place:
    """at: an end of the queues, or a time, ms since 1970. offset: instead of it, if not None."""

    at: Start | int = Start.EARLIEST
    offset: int | None = None


def place_of(text: str) -> Place:
    """earliest, latest, a time (see `time_of`), or offset:N. Raises BadPlace."""
    if text in list(Start):
        return Place(Start(text))
    if not text.startswith(OFFSET):
        try:
            return Place(time_of(text))
        except BadTime as error:
            raise BadPlace(str(error)) from None
    number = text.removeprefix(OFFSET)
    if not (number.isascii() and number.isdecimal() and int(number) <= OFFSET_MAX):
        raise BadPlace(f"{text!r} is not offset:N, where N is a queue offset of 0 or more")
    return Place(offset=int(number))


async def resume_at(client: Client, queues: Sequence[GroupQueue], place: Place) -> list[int]:
    """The queue offsets at which a group resumes in some queues, in their order.

    The nodes are asked for a time only: the ends of a queue are known.
    """
    bound = asyncio.Semaphore(AT_ONCE)

    async def offset_of(queue: GroupQueue) -> int:
        if place.offset is not None:
            return min(max(place.offset, queue.min_offset), queue.max_offset)
        if place.at == Start.EARLIEST:
            return queue.min_offset
        if place.at == Start.LATEST:
            return queue.max_offset
        async with bound:
            return await client.admin.offset_at_time(
                queue.topic, queue.queue_id, place.at, group=queue.replica_group
            )

    return await all_of(*map(offset_of, queues))


__all__ = ["BadPlace", "Place", "place_of", "resume_at"]
