"""A topic as the replica groups that hold it describe it."""

from collections.abc import Iterable, Sequence

from duolog import Client, TopicDescription, UnknownTopic


async def parts_of(client: Client, topic: str) -> Sequence[TopicDescription]:
    """The parts of a topic, one for each replica group. Raises UnknownTopic."""
    parts = await client.admin.topics([topic])
    if not parts:
        raise UnknownTopic(f"topic {topic!r} does not exist")
    return parts


def messages_kept(parts: Iterable[TopicDescription]) -> int:
    """Messages that retention has not removed yet."""
    return sum(queue.max_offset - queue.min_offset for part in parts for queue in part.stats)


__all__ = ["messages_kept", "parts_of"]
