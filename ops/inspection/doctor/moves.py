"""Queues that move between replica groups: moves that stall, groups that do not cross."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from duolog import GroupDescription, GroupQueue, QueueMove, QueueMoves, QueuePlace, QueueSpan

from duolog_server.ops.inspection.doctor.findings import ERROR, WARNING, Finding, age
from duolog_server.store.groupproblems import Patience
from duolog_server.store.grouptopics import RETRY

HELD_MS = 10_000  # for which messages wait while a queue moves: far more than a move takes
SLOW_MS = 60_000  # since a move began
WAITING = "WAITING"  # the state of a move whose turn has not come: those before it are slow
_LOST = "it was restored from a backup of before, elected uncleanly, or its config/ was lost"
RUNBOOK = "queue-moves"
PATIENCE = Patience()
Place = tuple[str, QueuePlace]  # topic, and queue of a replica group


def diagnose_moves(moves: Iterable[QueueMove], now_ms: int) -> Iterator[Finding]:
    """Moves that stall, or take far too long. now_ms: wall clock."""
    for move in moves:
        if move.is_over:
            continue
        where = f"queue {move.topic} {move.source}"
        told = f"its move to {move.target} (state {move.state})"
        why = f": {move.reason}" if move.reason else ""
        if move.pause_ms > HELD_MS:
            yield Finding(
                ERROR,
                "move-holds",
                where,
                f"{told} has held messages that are sent to it for {age(move.pause_ms)}{why}",
                f"see that {move.target} has a master that {move.source.group} can reach",
                RUNBOOK,
            )
        elif move.state != WAITING and now_ms - move.begin_ms > SLOW_MS:
            yield Finding(
                WARNING,
                "move-slow",
                where,
                f"{told} began {age(now_ms - move.begin_ms)} ago{why}",
                f"see that the registry answers and {move.target} has a master, or abort it: "
                f"duolog topic move {move.topic} {move.source} --abort",
                RUNBOOK,
            )


def broken_chains(moved: QueueMoves, now_ms: int) -> Iterator[Finding]:
    """Where the log of a replica group knows of a move, and that of the other one does not.

    Groups are not asked at the same moment: queues that move, or just did, are left out.
    """
    spans = {(span.topic, span.place): span for span in moved.spans}
    moving = {
        (move.topic, move.source)
        for move in moved.moves
        if not move.is_over or now_ms - move.begin_ms < SLOW_MS
    }
    for (topic, place), span in spans.items():
        before, next_ = span.came_from, span.following
        if next_ is not None and (topic, next_) not in spans and (topic, place) not in moving:
            yield Finding(
                ERROR,
                "move-lost",
                f"queue {topic} {place}",
                f"it moved to {next_} at offset {span.end}, and {next_.group} does not know that: "
                "messages that are sent to it are not stored, and what it had there is not read",
                "see that both groups have masters, which mend that. "
                f"{next_.group} has lost it: {_LOST}",
                RUNBOOK,
            )
        if before is not None and (topic, before) not in spans and (topic, before) not in moving:
            yield Finding(
                ERROR,
                "seal-lost",
                f"queue {topic} {before}",
                f"it moved to {place} at offset {span.first}, and {before.group} does not know "
                "that: both take messages, and their order is lost",
                "see that all groups have masters, which mend that. "
                f"{before.group} has lost it: {_LOST}",
                RUNBOOK,
            )


@dataclass(frozen=True, slots=True)
class Seam:
    """A group at the end of a span, with messages behind it. following: its queue there, if known.

    waiting: messages behind the seam, in all later spans.
    """

    span: QueueSpan
    queue: GroupQueue
    following: GroupQueue | None
    waiting: int

    @property
    def left(self) -> int:
        """Messages of the span that the group has not consumed."""
        assert self.span.end is not None
        at = self.queue.committed if self.queue.committed is not None else self.queue.min_offset
        return max(0, self.span.end - max(at, self.queue.min_offset))

    def is_long(self, patience: Patience) -> bool:
        """Whether it lasts longer than a group is given."""
        if self.following is None and not self.left:
            return patience.old_ms < 0  # nobody tells for how long
        rows = (self.queue, self.following)
        return any(r and (patience.is_late(r) or patience.is_stalled(r)) for r in rows)


def seams_of(group: GroupDescription, moved: QueueMoves) -> list[Seam]:
    """Where a group has not come from a span to the next one, though messages are there."""
    if not moved.spans:
        return []
    rows = {(row.topic, QueuePlace(row.replica_group, row.queue_id)): row for row in group.queues}
    spans = {(span.topic, span.place): span for span in moved.spans}
    return [
        Seam(span, row, there, waiting)
        for here, span in spans.items()
        if span.following is not None
        and (row := rows.get(here)) is not None
        and _is_at(span, row)
        and ((there := rows.get((span.topic, span.following))) is None or there.committed is None)
        and (waiting := _behind(span, spans))
    ]


def _is_at(span: QueueSpan, row: GroupQueue) -> bool:
    """Whether a group reads a span, or has it before it; of later ones it may still be before."""
    if row.committed is not None:
        return True
    return span.came_from is None and row.min_offset < row.max_offset


def _behind(span: QueueSpan, spans: Mapping[Place, QueueSpan]) -> int:
    """Messages in the spans behind one."""
    count, next_ = 0, span.following
    for _ in spans:
        found = spans.get((span.topic, next_)) if next_ is not None else None
        if found is None:
            break
        count += max(0, found.max_offset - max(found.first, found.min_offset))
        next_ = found.following
    return count


def not_crossed(group: GroupDescription, seams: Sequence[Seam]) -> Iterator[Finding]:
    """Findings of seams at which a group waits for long."""
    for seam in seams:
        span, queue, place = seam.span, seam.queue, f"{seam.span.topic} {seam.span.place}"
        behind = f"none of the {seam.waiting} messages behind it ({span.following})"
        where = f"consumer group {group.group}"
        if not seam.left:
            yield Finding(
                WARNING,
                "crossing-late",
                where,
                f"it has consumed {place} to its end, and {span.following} does not know that: it "
                f"gets {behind}",
                f"see that {span.place.group} has a master that reaches that of "
                f"{span.following.group if span.following else 'the next group'}",
                RUNBOOK,
            )
            continue
        oldest = f", the oldest {age(queue.lag_ms)} old" if queue.lag_ms else ""
        stalled = f"; nothing was committed for {age(queue.stalled_ms)}" if queue.stalled_ms else ""
        yield Finding(
            WARNING,
            "not-crossed",
            where,
            f"{place} moved and ends at offset {span.end}; the group has {seam.left} messages left "
            f"there{oldest}{stalled}. Until it has consumed them, it gets {behind}",
            _what_to_do(group, queue, place),
            RUNBOOK,
        )


def retirement_waits(
    groups: Iterable[GroupDescription], moved: QueueMoves, retiring: Collection[str]
) -> Iterator[Finding]:
    """Replica groups that retire and wait for consumer groups for long. retiring: all that do."""
    sealed = {(one.topic, one.place) for one in moved.spans if one.following is not None}
    left: dict[str, dict[str, int]] = {}  # messages, by replica group and consumer group
    for group in groups if retiring else ():
        for row in group.queues:
            place = row.topic, QueuePlace(row.replica_group, row.queue_id)
            late = PATIENCE.is_late(row) or PATIENCE.is_stalled(row)
            again = row.topic.startswith(RETRY)
            if row.replica_group in retiring and (again or place in sealed) and late:
                counts = left.setdefault(row.replica_group, {})
                counts[group.group] = counts.get(group.group, 0) + row.lag_messages
    for name, counts in sorted(left.items()):
        told = ", ".join(f"{group} ({count} messages)" for group, count in sorted(counts.items()))
        yield Finding(
            WARNING,
            "retirement-waits",
            f"replica group {name}",
            f"it retires, and consumer groups have messages left there: {told}",
            "start their consumers, or delete groups that nobody uses: "
            f"duolog cluster retire {name} --status",
            RUNBOOK,
        )


def _what_to_do(group: GroupDescription, queue: GroupQueue, place: str) -> str:
    if not group.consumers:
        return "start its consumers; delete the group only if no client uses it"
    if queue.member_id:
        return f"check consumer {queue.member_id}, which reads {place}"
    return f"see that its consumers read {place}: clients must reach that replica group, too"
