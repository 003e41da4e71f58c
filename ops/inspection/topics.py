"""A topic as the replica groups that hold it describe it."""

from collections.abc import Iterable, Sequence

from duolog import Client, TopicDescription, UnknownTopic

PERMISSIONS = {6: "send and receive", 4: "receive only", 2: "send only"}  # READ 4, WRITE 2


async def parts_of(
    client: Client, topic: str, *, sizes: bool = False
) -> Sequence[TopicDescription]:
    """The parts of a topic, one for each replica group. sizes: with `log_bytes`. Raises
    UnknownTopic.
    """
    parts = await client.admin.topics([topic], sizes=sizes)
    if not parts:
        raise UnknownTopic(f"topic {topic!r} does not exist")
    return parts


def messages_kept(parts: Iterable[TopicDescription]) -> int:
    """Messages that retention has not removed yet."""
    return sum(queue.max_offset - queue.min_offset for part in parts for queue in part.stats)


def log_bytes(part: TopicDescription) -> int | None:
    """Log bytes of a part of a topic; None: the count is not complete yet."""
    known = [queue.log_bytes for queue in part.stats if queue.log_bytes is not None]
    return sum(known) if len(known) == len(part.stats) else None


def permissions(perm: int) -> str:
    """Permissions of a topic, as text."""
    return PERMISSIONS.get(perm, "do nothing with it")
