"""Offsets that consumers committed to the old broker after its tables were taken. Pure.

Consumers go on reading there until they have the new route; what they commit meanwhile is carried
over. Nothing goes back: a group that is further here stays where it is.
"""

from collections.abc import Iterable, Mapping

from duolog import GroupDescription

from store.metadata import Metadata, is_reserved_topic

Offsets = dict[tuple[str, str, int], int]  # by topic, replica group and queue id


def late_offsets(
    old: Metadata,
    topics: Mapping[str, int],
    groups: Iterable[GroupDescription],
    replica_group: str,
) -> dict[str, Offsets]:
    """What groups are further with there than here, by group.

    topics: how many queues those of duolog have; others are left out. replica_group: the broker's.
    """
    here = {
        (row.group, queue.topic, queue.queue_id): queue.committed or 0
        for row in groups
        for queue in row.queues
        if queue.replica_group == replica_group
    }
    found: dict[str, Offsets] = {}
    for (topic, group), queues in old.offsets.items():
        if is_reserved_topic(topic):
            continue
        for queue, offset in queues.items():
            if 0 <= queue < topics.get(topic, 0) and offset > here.get((group, topic, queue), 0):
                found.setdefault(group, {})[topic, replica_group, queue] = offset
    return found


__all__ = ["Offsets", "late_offsets"]
