"""Topics, and the queues of one."""

from collections.abc import Sequence

from duolog import TopicDescription, UnknownTopic

from node.console.pages.lists import listing, place
from node.console.visits import Shown, Visit
from node.console.words import command, counted, number


async def topics(visit: Visit) -> Shown:
    """Topics whose names have what is searched for."""
    at = place(visit)
    page = await visit.client.admin.topics_page(at.contains, after=at.after, limit=at.limit)
    facts = listing(at, page, "topic")
    return Shown("topics.html", "Topics", facts, command("topic", "list", *at.flags()))


async def topic(visit: Visit) -> Shown:
    """The queues of a topic. Raises UnknownTopic."""
    name = visit.path["topic"]
    parts = await visit.client.admin.topics([name])
    if not parts:
        raise UnknownTopic(f"topic {name!r} does not exist")
    facts = {
        "sentence": _sentence(parts),
        "topic": name,
        "held": parts,
        "kept": _kept(parts),
        "last_ms": max((_last_ms(part) for part in parts), default=0),
    }
    return Shown("topic.html", name, facts, command("topic", "stats", name))


def _kept(parts: Sequence[TopicDescription]) -> int:
    return sum(queue.max_offset - queue.min_offset for part in parts for queue in part.stats)


def _last_ms(part: TopicDescription) -> int:
    return max((queue.last_store_time_ms or 0 for queue in part.stats), default=0)


def _sentence(parts: Sequence[TopicDescription]) -> str:
    queues = sum(part.queues for part in parts)
    where = f" in {counted(len(parts), 'replica group')}" if len(parts) > 1 else ""
    kept = _kept(parts)
    told = f"{number(kept)} messages are kept" if kept != 1 else "1 message is kept"
    return f"{told} in {counted(queues, 'queue')}{where}."


__all__ = ["topic", "topics"]
