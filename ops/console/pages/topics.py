"""Topics, and the queues of one."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from duolog import QueueStats, TopicDescription

from duolog_server.ops.console.pages.lists import LIST_SECONDS, LIVE_ROWS_MAX, list_place, listing
from duolog_server.ops.console.view.addresses import TOPICS
from duolog_server.ops.console.view.formatting import command, counted
from duolog_server.ops.console.view.rates import Flow
from duolog_server.ops.console.view.visits import Shown, Visit
from duolog_server.ops.inspection.topics import log_bytes, messages_kept, parts_of, permissions


@dataclass(frozen=True, slots=True)
class QueueRow:
    """A queue, and the messages a second that are stored in it; None until it is known."""

    stats: QueueStats
    stored: float | None


@dataclass(frozen=True, slots=True)
class Part:
    """A replica group's part of a topic. rows: of queues that are shown. log_bytes: of all."""

    described: TopicDescription
    rows: Sequence[QueueRow]
    log_bytes: int | None


@dataclass(frozen=True, slots=True)
class TopicRow:
    """A part of a topic in the list. log_bytes: None until they are counted. stored: messages a
    second, and their last minute.
    """

    described: TopicDescription
    kept: int
    log_bytes: int | None
    stored: Flow


async def topics(visit: Visit) -> Shown:
    """Topics whose names have what is searched for."""
    at = list_place(visit)
    page = await visit.client.admin.topics_page(
        at.contains, after=at.after, limit=at.limit, sizes=True
    )
    facts = dict(listing(TOPICS, at, page, "topic"))
    facts["rows"] = [
        TopicRow(one, messages_kept([one]), log_bytes(one), _stored(visit, one))
        for one in page.rows
    ]
    same = command("topic", "list", *at.flags())
    return Shown("topics.html", "Topics", facts, same, pause_seconds=LIST_SECONDS)


async def topic(visit: Visit) -> Shown:
    """The queues of a topic. Raises UnknownTopic."""
    name = visit.path["topic"]
    parts = await parts_of(visit.client, name, sizes=True)
    facts = {
        "sentence": _sentence(parts),
        "topic": name,
        "may": permissions(parts[0].perm),
        "parts_shown": list(_shown(visit, parts)),
        "hidden": max(0, sum(len(part.stats) for part in parts) - LIVE_ROWS_MAX),
        "last_ms": max((_last_ms(part) for part in parts), default=0),
        "flows": [(part.group, _stored(visit, part)) for part in parts],
    }
    return Shown("topic.html", f"Topic {name}", facts, command("topic", "stats", names=[name]))


def _shown(visit: Visit, parts: Iterable[TopicDescription]) -> Iterator[Part]:
    left = LIVE_ROWS_MAX
    for part in parts:
        if left or not part.stats:
            rows = [QueueRow(one, _queue_rate(visit, part, one)) for one in part.stats[:left]]
            yield Part(part, rows, log_bytes(part))
        left -= min(left, len(part.stats))


def _queue_rate(visit: Visit, part: TopicDescription, queue: QueueStats) -> float | None:
    key = f"queue/{part.topic}/{part.group}/{queue.queue_id}"
    return Flow.of(visit.rates.note(key, queue.max_offset, visit.now)).now


def _stored(visit: Visit, part: TopicDescription) -> Flow:
    stored = sum(queue.max_offset for queue in part.stats)
    return Flow.of(visit.rates.note(f"topic/{part.topic}/{part.group}", stored, visit.now))


def _last_ms(part: TopicDescription) -> int:
    return max((queue.last_store_time_ms or 0 for queue in part.stats), default=0)


def _sentence(parts: Sequence[TopicDescription]) -> str:
    queues = sum(part.queues for part in parts)
    where = f" in {counted(len(parts), 'replica group')}" if len(parts) > 1 else ""
    kept = messages_kept(parts)
    told = f"{counted(kept, 'message')} {'is' if kept == 1 else 'are'} kept"
    return f"{told} in {counted(queues, 'queue')}{where}."
