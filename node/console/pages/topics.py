"""Topics, and the queues of one."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from duolog import QueueStats, TopicDescription

from node.console.pages.lists import LIVE_ROWS_MAX, listing, place
from node.console.view.visits import Shown, Visit
from node.console.view.words import command, counted
from node.inspection.topics import messages_kept, parts_of


@dataclass(frozen=True, slots=True)
class Part:
    """What a replica group holds of a topic. queues: that are shown."""

    group: str
    queues: Sequence[QueueStats]


async def topics(visit: Visit) -> Shown:
    """Topics whose names have what is searched for."""
    at = place(visit)
    page = await visit.client.admin.topics_page(at.contains, after=at.after, limit=at.limit)
    facts = listing(at, page, "topic")
    return Shown("topics.html", "Topics", facts, command("topic", "list", *at.flags()))


async def topic(visit: Visit) -> Shown:
    """The queues of a topic. Raises UnknownTopic."""
    name = visit.path["topic"]
    parts = await parts_of(visit.client, name)
    facts = {
        "sentence": _sentence(parts),
        "topic": name,
        "parts_shown": list(_shown(parts)),
        "hidden": max(0, sum(len(part.stats) for part in parts) - LIVE_ROWS_MAX),
        "last_ms": max((_last_ms(part) for part in parts), default=0),
    }
    return Shown("topic.html", name, facts, command("topic", "stats", name))


def _shown(parts: Iterable[TopicDescription]) -> Iterator[Part]:
    left = LIVE_ROWS_MAX
    for part in parts:
        if left or not part.stats:
            yield Part(part.group, part.stats[:left])
        left -= min(left, len(part.stats))


def _last_ms(part: TopicDescription) -> int:
    return max((queue.last_store_time_ms or 0 for queue in part.stats), default=0)


def _sentence(parts: Sequence[TopicDescription]) -> str:
    queues = sum(part.queues for part in parts)
    where = f" in {counted(len(parts), 'replica group')}" if len(parts) > 1 else ""
    kept = messages_kept(parts)
    told = f"{counted(kept, 'message')} {'is' if kept == 1 else 'are'} kept"
    return f"{told} in {counted(queues, 'queue')}{where}."


__all__ = ["topic", "topics"]
