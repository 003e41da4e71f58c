"""Consumer groups are reset, with a preview of what that skips and repeats, and deleted."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from duolog import BadRequest, Client, GroupQueue

from duolog_server.ops.console.actions.asking import Field, Question, confirmed
from duolog_server.ops.console.view.addresses import GROUP, GROUPS, address
from duolog_server.ops.console.view.formatting import command, counted, number
from duolog_server.ops.console.view.visits import Action, Done, Shown, Undo, Visit
from duolog_server.ops.inspection.resets import (
    BadResumePoint,
    ResumePoint,
    resume_at,
    resume_point_of,
)

EARLIEST, LATEST, TIME, OFFSET = "earliest", "latest", "time", "offset"
WAYS = (
    (EARLIEST, "the first message"),
    (LATEST, "the end"),
    (TIME, "a time"),
    (OFFSET, "an offset"),
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
    topics = sorted({queue.topic for queue in found.queues})
    if not topics:
        raise BadRequest(f"group {group} has no offsets yet: nothing to reset")
    topic = query.get("topic") or topics[0]
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
    title = f"Reset group {group}"
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
    undo = Undo("Undo", partial(_restore, group, before)) if before else None
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
