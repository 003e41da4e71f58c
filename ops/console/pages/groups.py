"""Consumer groups, how their lag develops while somebody looks at it, and why one is behind.

They are reset, with a preview of what that skips and repeats, and deleted.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from heapq import nlargest, nsmallest

from duolog import BadRequest, Client, GroupDescription, GroupQueue

from duolog_server.ops.console.pages.lists import (
    LIST_SECONDS,
    LIVE_ROWS_MAX,
    Pages,
    list_place,
    listing,
)
from duolog_server.ops.console.view.addresses import GROUP, GROUPS, address
from duolog_server.ops.console.view.calls import commits
from duolog_server.ops.console.view.formatting import command, counted, duration, number, si
from duolog_server.ops.console.view.questions import Field, Question, confirmed
from duolog_server.ops.console.view.rates import Flow
from duolog_server.ops.console.view.visits import Action, Done, Shown, Undo, Visit
from duolog_server.ops.inspection.doctor.consumers import ON_DEMAND, diagnose_groups, topics_of
from duolog_server.ops.inspection.doctor.findings import ERROR
from duolog_server.ops.inspection.moves import moved_or_none
from duolog_server.ops.inspection.resets import (
    BadResumePoint,
    ResumePoint,
    resume_at,
    resume_point_of,
)
from duolog_server.ops.inspection.topics import messages_kept
from duolog_server.store.grouptopics import dead_letter_topic

LAG = "lag"
SORTED_MAX = 1000  # groups that are sorted by their lag
STATES = ("Stuck", "No consumers", "Behind", "Catching up", "Up to date", "Idle")  # worst first
BEHIND_MS = 60_000  # of the oldest message: a group that is later is behind
STILL_SECONDS = 10.0  # without a commit, until a queue with messages to consume is called stuck
EARLIEST, LATEST, TIME, OFFSET = "earliest", "latest", "time", "offset"
WAYS = (
    (EARLIEST, "the first message"),
    (LATEST, "the end"),
    (TIME, "a time"),
    (OFFSET, "an offset"),
)


@dataclass(frozen=True, slots=True)
class QueueRow:
    """A queue of a group. line: of its lag. still_ms: for how long nothing was committed although
    there was something to consume; 0: not stuck. consumed: its group has consumers. Only those of
    the SDK own queues.
    """

    queue: GroupQueue
    line: str
    still_ms: int
    consumed: bool = False

    @property
    def place(self) -> str:
        """The queue's name."""
        return f"{self.queue.topic}/{self.queue.queue_id}"

    @property
    def state(self) -> str:
        """How it is, in a word or two."""
        if not self.queue.lag_messages:
            return "Up to date"
        if not (self.queue.member_id or self.consumed):
            return "No consumers"
        if self.still_ms:
            return "Not polled" if self.queue.not_polled else "Stuck"
        return "Behind" if self.queue.lag_ms > BEHIND_MS else "Catching up"


def queue_rows(
    visit: Visit, group: GroupDescription, queues: Sequence[GroupQueue]
) -> list[QueueRow]:
    """Queues as the page shows them. Only these are remembered."""
    return [_queue_row(visit, group, queue) for queue in queues]


def _queue_row(visit: Visit, group: GroupDescription, queue: GroupQueue) -> QueueRow:
    key = f"lag/{group.group}/{queue.topic}/{queue.replica_group}/{queue.queue_id}"
    line = visit.rates.line(key, queue.lag_messages, visit.now)
    behind = queue.lag_messages > 0
    still = visit.rates.still_seconds(key, (queue.committed, behind), visit.now)
    stuck = behind and still >= STILL_SECONDS
    return QueueRow(queue, line, int(still) * 1000 if stuck else 0, group.consumers > 0)


def stuck(rows: Sequence[QueueRow]) -> str:
    """The queue that has been stuck the longest, as a sentence; empty: none is."""
    worst = max(rows, key=lambda row: row.still_ms, default=None)
    if worst is None or not worst.still_ms:
        return ""
    still, member = duration(worst.still_ms), worst.queue.member_id
    if worst.queue.not_polled:
        return f" Member {member} is connected, and has not polled {worst.place} yet."
    if member:
        return f" Member {member} has committed nothing in {worst.place} for {still}."
    return f" No offset was committed in {worst.place} for {still}."


def lag_flows(visit: Visit, group: GroupDescription) -> dict[str, Flow]:
    """Flows of the whole group: messages behind, age of the oldest (ms), and messages a second that
    are stored and consumed.
    """
    queues, key, now = group.queues, f"group/{group.group}", visit.now
    origin = str(len(queues))  # those of another topic hold no new messages
    behind = sum(queue.lag_messages for queue in queues)
    oldest = max((queue.lag_ms for queue in queues), default=0)
    stored, read = sum(one.max_offset for one in queues), sum(one.committed or 0 for one in queues)
    return {
        "behind": visit.rates.gauge(f"{key}/behind", behind, now),
        "oldest": visit.rates.gauge(f"{key}/oldest", oldest, now),
        "stored": visit.rates.note(f"{key}/stored", stored, now, origin),
        "read": visit.rates.note(f"{key}/read", read, now, origin),
    }


@dataclass(frozen=True, slots=True)
class GroupRow:
    """A group in the list. lag_ms: of the oldest message that it has not consumed. stalled_ms: the
    longest that nothing was committed in a queue although it has consumers.
    """

    group: str
    consumers: int
    topics: int
    queues: int
    lag_messages: int
    lag_ms: int
    stalled_ms: int

    @property
    def state(self) -> str:
        """How it is, in a word or two."""
        if not self.consumers:
            return "No consumers" if self.lag_messages else "Idle"
        if self.stalled_ms >= 1000 * STILL_SECONDS:
            return "Stuck"
        if not self.lag_messages:
            return "Up to date"
        return "Behind" if self.lag_ms > BEHIND_MS else "Catching up"


async def groups(visit: Visit) -> Shown:
    """Groups whose names have what is searched for; the worst first where all are on the page."""
    at, by_lag = list_place(visit), visit.query.get("sort") == LAG
    limit = SORTED_MAX if by_lag else at.limit
    page = await visit.client.admin.groups_page(at.contains, after=at.after, limit=limit)
    facts = dict(listing(GROUPS, at, page, "group"))
    rows = [row_of(group) for group in page.rows]
    if by_lag:
        rows = nlargest(at.limit, rows, key=lambda row: row.lag_messages)
        of = f" of the first {number(SORTED_MAX)} by name" if page.next else ""
        most = f"{number(at.limit)} " if len(page.rows) > at.limit else ""
        shown = "are shown" if most else "come first"
        facts["sentence"] = f"{facts['sentence']} The {most}furthest behind{of} {shown}."
        facts["pages"] = Pages()
    elif not (at.after or page.next):
        rows.sort(key=lambda row: STATES.index(row.state))
    facts |= {"rows": rows, "by_lag": by_lag}
    same = command("group", "list", *at.flags())
    return Shown("groups.html", "Groups", facts, same, pause_seconds=LIST_SECONDS)


def row_of(group: GroupDescription) -> GroupRow:
    """A group, in one line."""
    return GroupRow(
        group.group,
        group.consumers,
        len({queue.topic for queue in group.queues}),
        len(group.queues),
        sum(queue.lag_messages for queue in group.queues),
        max((queue.lag_ms for queue in group.queues), default=0),
        max((queue.stalled_ms for queue in group.queues), default=0),
    )


async def group(visit: Visit) -> Shown:
    """How far a group is in its queues, and what is wrong. Raises UnknownGroup."""
    name = visit.path["group"]
    found = await visit.client.admin.group(name)
    names = await visit.rights.allowed(topics_of(found))
    topics = await visit.client.admin.topics(names, system=True) if names else []
    dead = [topic for topic in topics if topic.topic == dead_letter_topic(name)]
    findings = diagnose_groups([found], topics, ON_DEMAND, await moved_or_none(visit.client))
    furthest = nsmallest(LIVE_ROWS_MAX, found.queues, key=_furthest_behind)
    rows = queue_rows(visit, found, furthest)
    flows, axes = lag_flows(visit, found), visit.axes
    both = {"produced": flows["stored"], "committed": flows["read"]}
    facts = {
        "sentence": sentence(found) + stuck(rows),
        "alarm": any(one.severity == ERROR for one in findings),
        "group": found,
        "state": row_of(found).state,
        "dead": messages_kept(dead),
        "findings": findings,
        "flows": flows,
        "charts": [
            axes.chart("Lag, messages", {"behind": flows["behind"]}, si, 10),
            axes.chart("Messages, a second", both, si, 5),
        ],
        "rows": rows,
        "hidden": max(0, len(found.queues) - LIVE_ROWS_MAX),
    }
    return Shown("group.html", f"Group {name}", facts, command("group", "explain", names=[name]))


def _furthest_behind(queue: GroupQueue) -> tuple[int, str, str, int]:
    return -queue.lag_messages, queue.topic, queue.replica_group, queue.queue_id


def sentence(group: GroupDescription) -> str:
    """How far a group is, in words."""
    row = row_of(group)
    are = "is" if row.consumers == 1 else "are"
    readers = f" {counted(row.consumers, 'consumer')} {are} connected."
    if not row.consumers:
        readers = " No consumer is connected."
    if not row.queues:
        return f"It has read nothing yet.{readers}"
    behind = sum(queue.lag_messages > 0 for queue in group.queues)
    if not behind:
        return f"It has consumed all of {counted(row.queues, 'queue')}.{readers}"
    oldest = f", the oldest of {duration(row.lag_ms)} ago" if row.lag_ms else ""
    return (
        f"{counted(row.lag_messages, 'message')} behind on {number(behind)} of "
        f"{counted(row.queues, 'queue')}{oldest}.{readers}"
    )


@dataclass(frozen=True, slots=True)
class Move:
    """A queue of a group, and where the group resumes after a reset."""

    queue: GroupQueue
    to: int

    @property
    def before(self) -> int:
        """The resume offset without the reset."""
        return begin_of(self.queue)

    @property
    def skips(self) -> int:
        """Messages that it never gets."""
        return max(0, self.to - max(self.before, self.queue.min_offset))

    @property
    def repeats(self) -> int:
        """Messages that it gets again."""
        return max(0, min(self.before, self.queue.max_offset) - max(self.to, self.queue.min_offset))


def begin_of(queue: GroupQueue) -> int:
    """The offset at which a group resumes: at the first message where it has committed nothing."""
    return queue.min_offset if queue.committed is None else queue.committed


async def _ask_reset(visit: Visit) -> Shown:
    group, query = visit.path["group"], visit.query
    found = await visit.client.admin.group(group)
    topics = await visit.rights.allowed(sorted({queue.topic for queue in found.queues}))
    title = f"Reset group {group}"
    if not topics:
        return Question(title, "It has no offsets yet: nothing to reset.", "").shown()
    worst = max(found.queues, key=lambda queue: (queue.topic in topics, queue.lag_messages))
    topic = query.get("topic") or worst.topic
    way, value = query.get("to", EARLIEST), query.get("value", "").strip()
    members = (
        f" Its {counted(found.consumers, 'consumer')} must be stopped first."
        if found.consumers
        else ""
    )
    fields = (
        Field("topic", "Topic", topic, choices=[(one, one) for one in topics]),
        Field("to", "Resume at", way, choices=WAYS),
        Field("value", "Time or offset", value, "10m, 2h, 2026-01-31T12:00, or an offset"),
    )
    if "to" not in query:
        return Question(
            title, f"Where should it resume?{members}", "", fields, previewed=True
        ).shown()
    own = [queue for queue in found.queues if queue.topic == topic]
    moves = await _moves(visit.client, own, _resume_point(way, value))
    skipped, repeated = sum(move.skips for move in moves), sum(move.repeats for move in moves)
    return Question(
        title,
        f"Skips {_messages(skipped)}, repeats {_messages(repeated)}.{members}",
        "Reset",
        fields,
        previewed=True,
        type_to_confirm=group,
        danger=bool(skipped),
        heads=("Queue", "From", "To", "Skips", "Repeats"),
        preview=[
            (
                f"{move.queue.replica_group}/{move.queue.queue_id}",
                *map(number, (move.before, move.to, move.skips, move.repeats)),
            )
            for move in moves
        ],
        command=command("group", "reset", names=[group, topic], flags=["--to", _to(way, value)]),
    ).shown()


def _messages(count: int) -> str:
    return counted(count, "message")


def _to(way: str, value: str) -> str:
    """The place as `duolog group reset --to` has it."""
    return {TIME: value, OFFSET: f"offset:{value}"}.get(way, way)


def _resume_point(way: str, value: str) -> ResumePoint:
    """Parse the resume point. Raises BadRequest."""
    try:
        return resume_point_of(_to(way, value))
    except BadResumePoint as error:
        raise BadRequest(str(error)) from None


async def _moves(client: Client, queues: Sequence[GroupQueue], point: ResumePoint) -> list[Move]:
    """The resume offset of each queue, in order."""
    ordered = sorted(queues, key=lambda one: (one.replica_group, one.queue_id))
    return list(map(Move, ordered, await resume_at(client, ordered, point)))


async def _reset(visit: Visit, form: Mapping[str, str]) -> Done:
    group, topic = visit.path["group"], form.get("topic", "")
    confirmed(form, group)
    point = _resume_point(form.get("to", ""), form.get("value", "").strip())
    found = await visit.client.admin.group(group)
    before = {
        (queue.topic, queue.replica_group, queue.queue_id): begin_of(queue)
        for queue in found.queues
        if queue.topic == topic
    }
    await visit.client.admin.reset_group(group, topic, point.at, offset=point.offset)
    undo = None
    if before and not any(await visit.rights.denials([commits(group, [topic])])):
        undo = Undo("Undo", partial(_restore, group, before))
    return Done(f"Group {group} was reset in {topic}.", address(GROUP, group=group), undo)


async def _restore(group: str, before: Mapping[tuple[str, str, int], int], client: Client) -> str:
    """Commit what was committed before. Returns what was done."""
    await client.admin.commit(group, before)
    return f"Group {group} resumes where it was before the reset."


async def _ask_delete(visit: Visit) -> Shown:
    group = visit.path["group"]
    found = await visit.client.admin.group(group)
    members = (
        f" It has {counted(found.consumers, 'consumer')}, which create it again."
        if found.consumers
        else ""
    )
    return Question(
        f"Delete group {group}",
        f"Its offsets in {counted(len(found.queues), 'queue')} are deleted, and its dead "
        f"letters.{members}",
        "Delete",
        type_to_confirm=group,
        danger=True,
        command=command("group", "delete", names=[group]),
    ).shown()


async def _delete(visit: Visit, form: Mapping[str, str]) -> Done:
    group = visit.path["group"]
    confirmed(form, group)
    await visit.client.admin.delete_group(group)
    return Done(f"Group {group} was deleted.", GROUPS)


RESET, DELETE = (
    Action(_ask_reset, _reset),
    Action(_ask_delete, _delete),
)
