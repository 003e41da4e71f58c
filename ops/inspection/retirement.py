"""What still needs a replica group that is to leave the cluster, and when it may be stopped.

Rules: a message is kept for as long as retention says, counted from when it was stored, also where
all groups have read it. Consumer groups count where a queue has moved: elsewhere they read on at
the next place like all others.
"""

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from duolog import (
    BadRequest,
    Client,
    GroupDescription,
    NodeStatus,
    QueueMoves,
    QueuePlace,
    QueueSpan,
    TopicDescription,
)

from duolog_server.ops.inspection.balance import movable
from duolog_server.store.grouptopics import DEAD, RETRY
from duolog_server.store.metadata import is_reserved_topic
from duolog_server.store.retention import HOUR_MS

PARTS = {  # of a node's status
    "outbox_waiting": "messages that were due here, on their way to another replica group",
    "sink_parts_waiting": "published parts of sinks that are not stored yet",
    "group_crossings_pending": "consumer groups that the next place has not heard of yet",
    "messages_leased": "messages that POP consumers have in hand",
}


@dataclass(frozen=True, slots=True)
class Need:
    """What keeps a replica group.

    Attributes:
        kind: one word for programs.
        what: a topic or a consumer group; empty: of the replica group as a whole.
        count: how many, as `note` says.
        note: for people.
        until_ms: when it ends by itself, ms since 1970; None: not by itself.
        waits_for: a consumer group that has to do something; empty: none.
    """

    kind: str
    what: str
    count: int
    note: str
    until_ms: int | None = None
    waits_for: str = ""


@dataclass(frozen=True, slots=True)
class Retirement:
    """How far a replica group is."""

    group: str
    retiring: bool
    needs: tuple[Need, ...]

    @property
    def may_be_stopped(self) -> bool:
        """Nothing needs it."""
        return self.retiring and not self.needs

    @property
    def until_ms(self) -> int | None:
        """When nothing needs it any more, if all that is left ends by itself; None: not known."""
        ends = [need.until_ms for need in self.needs]
        known = [end for end in ends if end is not None]
        return max(known) if known and len(known) == len(ends) else None

    @property
    def verdict(self) -> str:
        """In one sentence."""
        if not self.retiring:
            return f"{self.group} does not retire"
        if not self.needs:
            return f"{self.group} may be stopped"
        kinds = ", ".join(dict.fromkeys(need.kind for need in self.needs))
        return f"{self.group} may not be stopped yet: {kinds}"


async def retirement_of(client: Client, group: str, now_ms: int) -> Retirement:
    """What needs a replica group. now_ms: wall clock.

    Raises BadRequest for a group that there is not, and what calls of nodes raise: without a master
    it cannot be said.
    """
    routes = {one.group: one for one in (await client.admin.route()).groups}
    if group not in routes:
        raise BadRequest(f"there is no replica group {group!r}: {', '.join(routes)}")
    admin = client.admin
    parts, moves, groups, delayed, halves, status = await asyncio.gather(
        admin.topics(),
        admin.moves(),
        admin.groups(),
        admin.delayed_page(limit=1, group=group),
        admin.halves_page(limit=1, group=group),
        admin.cluster_status(),
    )
    here = [part for part in parts if part.group == group]
    needs = [
        *_queues(group, here, moves),
        *_readers(group, groups, moves),
        *_unread(here, groups, now_ms),
        *_counted("delayed messages", delayed.waiting, "wait for their time", delayed.last_due_ms),
        *_counted("half messages", halves.waiting, "wait for the decision of their producers"),
        *_held(group, status.nodes),
        *_kept(group, here, moves, now_ms),
        *_sent(group, moves),
    ]
    return Retirement(group, routes[group].retiring, tuple(needs))


def _queues(group: str, here: Sequence[TopicDescription], moves: QueueMoves) -> Iterator[Need]:
    """Queues that take messages here."""
    lite = [part for part in here if part.message_type == "LITE"]
    for part in lite:
        yield Need("lite topics", part.topic, part.queues, "queues stay here: delete the topic")
    counts: dict[str, int] = {}
    for queue in movable(here, moves):
        counts[queue.topic] = counts.get(queue.topic, 0) + 1
    for move in moves.moves:
        if not move.is_over and move.source.group == group:
            counts[move.topic] = counts.get(move.topic, 0) + 1
    for topic, count in sorted(counts.items()):
        yield Need("queues", topic, count, "queues have not moved")


def _readers(group: str, groups: Iterable[GroupDescription], moves: QueueMoves) -> Iterator[Need]:
    """Consumer groups that have messages left in what moved away, or to get again."""
    sealed = {(one.topic, one.place) for one in moves.spans if one.following is not None}
    for reader in groups:
        left: dict[str, int] = {}
        for row in reader.queues:
            place = row.topic, QueuePlace(row.replica_group, row.queue_id)
            if row.replica_group == group and (row.topic.startswith(RETRY) or place in sealed):
                left[row.topic] = left.get(row.topic, 0) + row.lag_messages
        idle = "" if reader.consumers else "; it has no consumers: start them, or delete the group"
        for topic, count in sorted(left.items()):
            again = topic.startswith(RETRY)
            if count:
                yield Need(
                    "retries" if again else "consumer groups",
                    reader.group,
                    count,
                    f"messages {'to get again' if again else f'of {topic} to consume here'}{idle}",
                    waits_for=reader.group,
                )


def _unread(
    here: Iterable[TopicDescription], groups: Iterable[GroupDescription], now_ms: int
) -> Iterator[Need]:
    """Dead letters, and retries that their consumer group has not begun to read."""
    read = {(row.topic, row.replica_group) for reader in groups for row in reader.queues}
    for part in here:
        again = part.topic.startswith(RETRY) and (part.topic, part.group) not in read
        if again or part.topic.startswith(DEAD):
            count = sum(row.max_offset - row.min_offset for row in part.stats)
            yield from _until_expired("retries" if again else "dead letters", part, count, now_ms)


def _kept(
    group: str, here: Iterable[TopicDescription], moves: QueueMoves, now_ms: int
) -> Iterator[Need]:
    """Messages that retention has not let go, of all that users sent."""
    spans: dict[str, dict[int, QueueSpan]] = {}
    for span in moves.spans:
        if span.place.group == group:
            spans.setdefault(span.topic, {})[span.place.queue_id] = span
    for part in here:
        if part.topic.startswith((RETRY, DEAD)) or is_reserved_topic(part.topic):
            continue
        count = 0
        for row in part.stats:
            first = spans.get(part.topic, {}).get(row.queue_id)
            count += max(0, row.max_offset - max(row.min_offset, first.first if first else 0))
        yield from _until_expired("kept messages", part, count, now_ms)


def _until_expired(kind: str, part: TopicDescription, count: int, now_ms: int) -> Iterator[Need]:
    last = max((row.last_store_time_ms or 0 for row in part.stats), default=0)
    until = last + part.retention_hours * HOUR_MS if last and part.retention_hours else None
    if count and (until is None or until > now_ms):
        yield Need(kind, part.topic, count, "messages are kept until retention lets them go", until)


def _counted(
    kind: str, count: int | None, note: str, until_ms: int | None = None
) -> Iterator[Need]:
    if count is None:
        raise BadRequest(f"this user may not see the {kind}: it takes the right to Get the cluster")
    if count:
        yield Need(kind, "", count, note, until_ms)


def _held(group: str, nodes: Iterable[NodeStatus]) -> Iterator[Need]:
    """What the master of a group holds; without its answer, nobody knows that it holds nothing."""
    masters = [one for one in nodes if one.is_master and one.replication.group == group]
    if not any(not one.stale for one in masters):
        yield Need("master", "", 1, "does not answer: what it holds is not known")
    for node in masters:
        for part, note in PARTS.items():
            if not node.stale and (count := node.parts.get(part, 0)):
                yield Need(part, "", count, note)


def _sent(group: str, moves: QueueMoves) -> Iterator[Need]:
    """What is still sent to places that moved away."""
    counts: dict[str, int] = {}
    for span in moves.spans:
        if span.place.group == group and span.passed_on:
            counts[span.topic] = counts.get(span.topic, 0) + span.passed_on
    for topic, count in sorted(counts.items()):
        note = "messages were sent here in the last minute: restart or upgrade their producers"
        yield Need("sends", topic, count, note)
