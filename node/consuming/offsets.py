"""Queue offsets by time, and where a group begins."""

from collections.abc import Callable, Iterable
from functools import partial

from duolog import Start, UnknownTopic
from duolog._message import RETRY_PREFIX

from duolog_server.node.core.core import Core
from duolog_server.store.offsets import PhyOffset, QueueOffset
from duolog_server.store.queueends import QueueKey


def offset_at(core: Core, topic: str, queue_id: int, at: Start | int) -> int:
    """Queue offset of an end of a queue, or of a wall-clock time in ms."""
    low, high = core.store.queue_range(topic, queue_id)
    match at:
        case Start.EARLIEST:
            return low
        case Start.LATEST:
            return high
        case time_ms:
            return core.positions.offset_at_time(topic, queue_id, time_ms)


def first_retry(core: Core, group: str, topic: str, queue_id: int) -> QueueOffset:
    """A group's first offset in a retry topic: behind the rest of a deleted group of its name."""
    birth = core.metadata.births.groups.get(group, 0)
    return core.positions.offset_in_log(topic, queue_id, PhyOffset(birth))


def position_of(core: Core, group: str, topic: str, queue_id: int, committed: int) -> int:
    """Where a group continues in a queue; retention may be ahead of `committed`, -1 for none."""
    low, _ = core.store.queue_range(topic, queue_id)
    if committed < 0 and topic.startswith(RETRY_PREFIX):
        return max(low, first_retry(core, group, topic, queue_id))
    return max(low, committed)


async def begin(
    core: Core, group: str, topics: Iterable[str], place: Callable[[str, int], Start]
) -> None:
    """Fix where a group begins, in every queue of these topics of which it has no offset.

    At `place` of a topic and queue; but at the earliest message where the group began in the topic
    before, so that the queue is newer than that, and where its members sent messages back. A queue
    that nobody reads yet is fixed as well: its first reader may come when it has messages.

    Raises UnknownTopic, and the errors of a change of metadata.
    """
    offsets: dict[str, dict[int, int]] = {}
    ends: list[QueueKey] = []  # at which it begins, and that are sealed
    seals = core.metadata.tables.moves.seals
    for topic in topics:
        known = core.metadata.tables.offsets.get((topic, group), {})
        config = core.metadata.topics.get(topic)
        if config is None:
            raise UnknownTopic(f"topic {topic!r} was deleted meanwhile")
        at: Callable[[str, int], int]
        if topic.startswith(RETRY_PREFIX):
            at = partial(first_retry, core, group)
        elif any(queue < config.queues for queue in known):  # a guest's is of another queue
            at = partial(offset_at, core, at=Start.EARLIEST)
        else:
            at = partial(_placed, core, place)
            some = (queue for queue in seals.get(topic, ()) if queue < config.queues)
            some = (queue for queue in some if queue not in known)
            ends += [(topic, queue) for queue in some if place(topic, queue) is Start.LATEST]
        row = {queue: at(topic, queue) for queue in range(config.queues) if queue not in known}
        if row:
            offsets[topic] = row
    if ends:
        await core.metadata.begin_at_ends(group, offsets, ends)
    elif offsets:
        await core.metadata.begin(group, offsets)


def _placed(core: Core, place: Callable[[str, int], Start], topic: str, queue_id: int) -> int:
    return offset_at(core, topic, queue_id, place(topic, queue_id))
