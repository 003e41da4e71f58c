"""Offsets that consumers committed to the old broker after its tables were taken. Pure.

Consumers read there until they have the new route; what they commit meanwhile is carried
over. Nothing goes back: a group that is further here stays where it is.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from duolog import GroupDescription

from duolog_server.store.metadata import Metadata, is_reserved_topic

Offsets = dict[tuple[str, str, int], int]  # by topic, replica group and queue id


@dataclass(slots=True)
class Late:
    """Offsets that are higher there than here, by group.

    beyond: offsets that are left out, as their queues end before them: they are of another log.
    """

    moved: dict[str, Offsets] = field(default_factory=dict)
    beyond: int = 0


def late_offsets(
    old: Metadata,
    ends: Mapping[tuple[str, int], int],
    groups: Iterable[GroupDescription],
    replica_group: str,
) -> Late:
    """The offsets to commit here.

    ends: of the queues that duolog has, by topic and queue id; others are left out. replica_group:
    the broker's.
    """
    here = {
        (row.group, queue.topic, queue.queue_id): queue.committed or 0
        for row in groups
        for queue in row.queues
        if queue.replica_group == replica_group
    }
    found = Late()
    for (topic, group), queues in old.offsets.items():
        if is_reserved_topic(topic):
            continue
        for queue, offset in queues.items():
            end = ends.get((topic, queue), -1)
            found.beyond += 0 <= end < offset
            if here.get((group, topic, queue), 0) < offset <= end:
                found.moved.setdefault(group, {})[topic, replica_group, queue] = offset
    return found
