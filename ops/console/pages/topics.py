"""Topics, and the queues of one; they are created, altered and deleted."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import nlargest
from math import inf

from duolog import BadRequest, DuologError, QueueStats, TopicDescription, Unauthenticated

from duolog_server.ops.console.pages.lists import (
    LIST_SECONDS,
    LIVE_ROWS_MAX,
    SYSTEM_END,
    list_place,
    listing,
)
from duolog_server.ops.console.pages.messages import STATES
from duolog_server.ops.console.view.addresses import TOPIC, TOPICS, address
from duolog_server.ops.console.view.formatting import command, counted, si
from duolog_server.ops.console.view.questions import Field, Question, confirmed, whole_number
from duolog_server.ops.console.view.rates import Flow
from duolog_server.ops.console.view.visits import Action, Done, Shown, Visit
from duolog_server.ops.inspection.messages.sending import is_users
from duolog_server.ops.inspection.moves import moved_or_none
from duolog_server.ops.inspection.topics import (
    PERMISSIONS,
    log_bytes,
    messages_kept,
    parts_of,
    permissions,
)
from duolog_server.store.metadata import is_nodes_topic

TYPES = ("", "NORMAL", "FIFO", "DELAY", "TRANSACTION", "PRIORITY")
LITE = "LITE"
QUEUES = 4
LINES = 4  # of a chart: replica groups


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
    """Topics whose names have what is searched for; without a search, those of users."""
    at = list_place(visit)
    system = visit.query.get("system", "")
    begin = "" if at.contains or system else SYSTEM_END
    page = await visit.client.admin.topics_page(
        at.contains, after=at.after or begin, limit=at.limit, sizes=True
    )
    hidden = 0
    if begin:
        rows = tuple(one for one in page.rows if not is_nodes_topic(one.topic))
        own = page.total if at.after or page.next else len({one.topic for one in rows})
        page, hidden = replace(page, rows=rows, total=own), page.total - own
    facts = dict(listing(TOPICS, at, page, "topic", system=system))
    facts["hidden"] = f"Show {counted(hidden, 'system topic')}" if hidden else ""
    if begin and (at.after or page.next):
        facts["sentence"] = f"{counted(page.total, 'topic')}, with system topics, which are hidden."
        facts["hidden"] = "Show system topics"
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
    flows = {part.group: _stored(visit, part) for part in parts}
    moved = await moved_or_none(visit.client, name)
    facts = {
        "sentence": _sentence(parts),
        "topic": name,
        "is_users": is_users(name),
        "kept": messages_kept(parts),
        "may": permissions(parts[0].perm),
        "parts_shown": list(_shown(visit, parts)),
        "hidden": max(0, sum(len(part.stats) for part in parts) - LIVE_ROWS_MAX),
        "last_ms": max((_last_ms(part) for part in parts), default=0),
        "flows": list(flows.items()),
        "readers": await _readers(visit, parts),
        "spans": moved.spans[:LIVE_ROWS_MAX],
        "moves": [one for one in moved.moves if not one.is_over],
        "chart": visit.axes.chart("Messages in, a second", _named(flows), si, 5),
    }
    return Shown("topic.html", f"Topic {name}", facts, command("topic", "stats", names=[name]))


async def _readers(visit: Visit, parts: Sequence[TopicDescription]) -> list[tuple[str, str]]:
    """The groups that read a topic, and what became of its newest message in each."""
    newest = max(
        ((one.last_store_time_ms or 0, part.group, one) for part in parts for one in part.stats),
        key=lambda one: one[0],
        default=(0, "", None),
    )
    asked, known = visit.memory.get("readers", (-inf, []))
    _, group, queue = newest
    if queue is None or queue.max_offset == queue.min_offset or visit.now < asked + LIST_SECONDS:
        return list(known)
    try:
        states = await visit.client.admin.track(
            parts[0].topic, queue.queue_id, queue.max_offset - 1, group=group
        )
        known = [(name, STATES[state]) for name, state in sorted(states.items())]
    except Unauthenticated:
        raise
    except DuologError:
        known = []  # the rest of the page is known
    visit.memory["readers"] = visit.now, known
    return list(known)


def _named(flows: Mapping[str, Flow]) -> Mapping[str, Flow]:
    """The lines of a chart: some have a place in it."""
    if len(flows) == 1:
        return dict(zip(("in",), flows.values(), strict=True))
    return dict(sorted(nlargest(LINES, flows.items(), key=lambda one: one[1].now or 0.0)))


def _shown(visit: Visit, parts: Iterable[TopicDescription]) -> Iterator[Part]:
    left = LIVE_ROWS_MAX
    for part in parts:
        if left or not part.stats:
            rows = [QueueRow(one, _queue_rate(visit, part, one)) for one in part.stats[:left]]
            yield Part(part, rows, log_bytes(part))
        left -= min(left, len(part.stats))


def _queue_rate(visit: Visit, part: TopicDescription, queue: QueueStats) -> float | None:
    key = f"queue/{part.topic}/{part.group}/{queue.queue_id}"
    return visit.rates.note(key, queue.max_offset, visit.now).now


def _stored(visit: Visit, part: TopicDescription) -> Flow:
    """Counted anew where there are other queues than before: their messages are not new."""
    key, counts = f"topic/{part.topic}/{part.group}", [queue.max_offset for queue in part.stats]
    if not counts:
        return visit.rates.noted(key, visit.now)
    return visit.rates.note(key, sum(counts), visit.now, str(len(counts)))


def _last_ms(part: TopicDescription) -> int:
    return max((queue.last_store_time_ms or 0 for queue in part.stats), default=0)


def _sentence(parts: Sequence[TopicDescription]) -> str:
    queues = sum(part.queues for part in parts)
    where = f" in {counted(len(parts), 'replica group')}" if len(parts) > 1 else ""
    kept = messages_kept(parts)
    told = f"{counted(kept, 'message')} {'is' if kept == 1 else 'are'} kept"
    return f"{told} in {counted(queues, 'queue')}{where}."


CHOICES = [(str(perm), may) for perm, may in PERMISSIONS.items()]


async def _ask_create(visit: Visit) -> Shown:
    return Question(
        "Create a topic",
        "A topic can get more queues later, never fewer.",
        "Create",
        (
            Field("topic", "Name"),
            Field("queues", "Queues", str(QUEUES), "each is read by one consumer of a group"),
            Field(
                "type",
                "Type",
                choices=[(kind, kind.lower() or "any") for kind in TYPES],
            ),
        ),
        command=command("topic", "create", "TOPIC", "--queues", str(QUEUES)),
    ).shown()


async def _create(visit: Visit, form: Mapping[str, str]) -> Done:
    topic, kind = form.get("topic", "").strip(), form.get("type", "")
    if kind not in TYPES:
        raise BadRequest(f"{kind!r} is not a type of topic")
    queues = whole_number(form, "queues", 1)
    made = await visit.client.admin.create_topic(topic, queues, message_type=kind)
    return Done(
        f"Topic {made.topic} was created with {counted(made.queues, 'queue')}.",
        address(TOPIC, topic=made.topic),
    )


async def _ask_alter(visit: Visit) -> Shown:
    topic = visit.path["topic"]
    known = (await parts_of(visit.client, topic))[0]
    fields = [
        Field("queues", "Queues", str(known.queues)),
        Field("perm", "Clients may", str(known.perm), choices=CHOICES),
    ]
    flags = ["--queues", str(known.queues), "--perm", str(known.perm)]
    if known.message_type == LITE:
        minutes = str(known.lite_ttl_minutes)
        fields.append(Field("lite_ttl", "Lite topics expire after (minutes, 0: never)", minutes))
        flags += ["--lite-ttl", minutes]
    else:
        hours, size = str(known.topic_retention_hours), str(known.retention_bytes)
        fields.append(Field("hours", "Keep messages for (hours, 0: as long as the log)", hours))
        fields.append(Field("bytes", "Keep the newest (bytes in each group, 0: all)", size))
        flags += ["--retention-hours", hours, "--retention-bytes", size]
    return Question(
        f"Alter topic {topic}",
        f"It has {counted(known.queues, 'queue')}, and can get more, never fewer. Messages of a "
        "key may then go to another queue than before.",
        "Alter",
        fields,
        command=command("topic", "alter", names=[topic], flags=flags),
    ).shown()


async def _alter(visit: Visit, form: Mapping[str, str]) -> Done:
    topic, perm = visit.path["topic"], form.get("perm", "")
    if perm not in dict(CHOICES):
        raise BadRequest(f"{perm!r} is not what clients may do with a topic")
    made = await visit.client.admin.alter_topic(
        topic,
        whole_number(form, "queues", 1),
        int(perm),
        lite_ttl_minutes=whole_number(form, "lite_ttl", 0) if "lite_ttl" in form else None,
        retention_hours=whole_number(form, "hours", 0) if "hours" in form else None,
        retention_bytes=whole_number(form, "bytes", 0) if "bytes" in form else None,
    )
    may = permissions(made.perm)
    return Done(
        f"Topic {topic} has {counted(made.queues, 'queue')} now. Clients may {may}.",
        address(TOPIC, topic=topic),
    )


async def _ask_delete(visit: Visit) -> Shown:
    topic = visit.path["topic"]
    kept = messages_kept(await parts_of(visit.client, topic))
    return Question(
        f"Delete topic {topic}",
        f"{counted(kept, 'message')} and the offsets of its consumer groups are deleted.",
        "Delete",
        type_to_confirm=topic,
        danger=True,
        command=command("topic", "delete", names=[topic]),
    ).shown()


async def _delete(visit: Visit, form: Mapping[str, str]) -> Done:
    topic = visit.path["topic"]
    confirmed(form, topic)
    await visit.client.admin.delete_topic(topic)
    return Done(f"Topic {topic} was deleted.", TOPICS)


CREATE, ALTER, DELETE = (
    Action(_ask_create, _create),
    Action(_ask_alter, _alter),
    Action(_ask_delete, _delete),
)
