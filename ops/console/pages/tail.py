"""The newest messages of a topic, and those that arrive, never faster than a person reads."""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from duolog import Message, TopicDescription

from duolog_server.ops.console.pages.messages import Row, message_row
from duolog_server.ops.console.view.formatting import command, counted, number, rate
from duolog_server.ops.console.view.visits import Shown, Visit
from duolog_server.ops.inspection.searching.terms import Needle
from duolog_server.ops.inspection.topics import parts_of

KEPT = 50
AT_ONCE = 20  # messages that one look adds
QUEUES_AT_ONCE = 32  # that one look reads
BYTES_AT_ONCE = 1 << 20  # of one queue
Queue = tuple[str, int]  # replica group, queue id


@dataclass(slots=True)
class Tail:
    """A viewer's position. ends: of each queue at its last read. came: how many arrived."""

    began: float
    ends: dict[Queue, int] = field(default_factory=dict)
    rows: deque[Row] = field(default_factory=lambda: deque(maxlen=KEPT))
    came: int = 0
    shown: int = 0


async def tail(visit: Visit) -> Shown:
    """The newest messages as the viewer opens the page, and those that arrive. Raises
    UnknownTopic.
    """
    name, wanted = visit.path["topic"], visit.query.get("q", "")
    parts = await parts_of(visit.client, name)
    found = visit.memory.get("tail")
    if found is None:
        found = visit.memory["tail"] = Tail(visit.now, _ends(parts))
        newest = dict(_newest_first(parts)[:QUEUES_AT_ONCE])
        found.rows.extendleft(await _read(visit, name, newest, found.ends, wanted))
    else:
        await _follow(visit, found, name, parts, wanted)
    facts = {
        "sentence": _sentence(found, visit.now),
        "topic": name,
        "q": wanted,
        "rows": found.rows,
    }
    return Shown("tail.html", f"Tail of {name}", facts, command("msg", "tail", names=[name]))


def _ends(parts: Sequence[TopicDescription]) -> dict[Queue, int]:
    return {
        (part.group, queue.queue_id): queue.max_offset for part in parts for queue in part.stats
    }


def _newest_first(parts: Sequence[TopicDescription]) -> list[tuple[Queue, int]]:
    """Queues with messages and how many each keeps; those that got one last before others."""
    queues = [(part.group, queue) for part in parts for queue in part.stats]
    queues.sort(key=lambda one: -(one[1].last_store_time_ms or 0))
    kept = [((group, one.queue_id), one.max_offset - one.min_offset) for group, one in queues]
    return [(queue, count) for queue, count in kept if count > 0]


async def _follow(
    visit: Visit, found: Tail, name: str, parts: Sequence[TopicDescription], wanted: str
) -> None:
    """Read what arrived; of much, the newest."""
    ends, kept = _ends(parts), dict(_newest_first(parts))
    news = {
        # Of a queue that is new here, all that it has: one that moved does not begin at 0.
        queue: _arrived(found.ends.get(queue, end - kept.get(queue, 0)), end)
        for queue, end in ends.items()
    }
    busy = sorted((queue for queue, count in news.items() if count > 0), key=lambda q: -news[q])
    found.ends.update(ends)  # a replica group that is away for a moment resumes where it was
    found.came += sum(news[queue] for queue in busy)
    counts = {queue: news[queue] for queue in busy[:QUEUES_AT_ONCE]}
    rows = await _read(visit, name, counts, ends, wanted)
    found.rows.extendleft(rows)
    found.shown += len(rows)


def _arrived(before: int, end: int) -> int:
    """Messages since the last read; all, of a topic that was deleted and created again."""
    return end - before if end >= before else end


async def _read(
    visit: Visit, name: str, counts: Mapping[Queue, int], ends: Mapping[Queue, int], wanted: str
) -> list[Row]:
    """The newest messages before the ends of some queues, the oldest first. counts: of each."""
    messages: list[Message] = []
    for (group, queue_id), count in counts.items():
        end = ends[group, queue_id]
        batch = await visit.client.pull(
            name,
            queue_id,
            end - min(count, AT_ONCE),
            max_messages=AT_ONCE,
            max_bytes=BYTES_AT_ONCE,
            group=group,
        )
        messages += [
            one for one in batch if one.queue_offset < end and _matches(visit, one, wanted)
        ]
    messages.sort(key=lambda one: (one.store_time_ms, one.physical_offset))
    return [message_row(visit.seeing, one, one.group) for one in messages[-AT_ONCE:]]


def _matches(visit: Visit, message: Message, wanted: str) -> bool:
    """Whether what is shown of a message has a text."""
    return not wanted or visit.seeing.see(message).has(Needle(wanted))


def _sentence(found: Tail, now: float) -> str:
    passed = now - found.began
    if not found.came:
        return "The newest messages; none has arrived since."
    each = f", {rate(found.came / passed)}" if passed > 0 else ""
    return f"{counted(found.came, 'message')} arrived{each}; {number(found.shown)} shown."
