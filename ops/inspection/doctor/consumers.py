"""Consumer groups: what they have not consumed, and why."""

from collections import Counter
from collections.abc import Iterator, Sequence

from duolog import (
    GroupDescription,
    GroupQueue,
    GroupSubscription,
    QueueMoves,
    TopicDescription,
)
from duolog._message import DEAD_LETTER_PREFIX, RETRY_PREFIX

from duolog_server.ops.inspection.doctor.findings import NOTE, WARNING, Finding, age
from duolog_server.ops.inspection.doctor.moves import not_crossed, seams_of
from duolog_server.store.groupproblems import (
    OLD_MS,
    Patience,
    by_topic,
    is_partly_read,
    lost,
    without_queues,
)
from duolog_server.store.grouptopics import dead_letter_topic, group_of
from duolog_server.store.metadata import is_reserved_topic

READ, WRITE = 4, 2  # of a topic's perm
UNASKED = Patience()
NOTHING_MOVED = QueueMoves()
ON_DEMAND = Patience(-1, 10_000)  # somebody asks about this group now


def diagnose_groups(
    groups: Sequence[GroupDescription],
    topics: Sequence[TopicDescription],
    patience: Patience = UNASKED,
    moved: QueueMoves = NOTHING_MOVED,
) -> list[Finding]:
    """What is wrong with consumer groups, those with the oldest messages first.

    topics: theirs, dead-letter topics among them. moved: queues that moved.
    """
    names = [group.group for group in groups]
    ordered = sorted(groups, key=_oldest_ms, reverse=True)
    found = [finding for group in ordered for finding in _of_group(group, patience, moved)]
    return [*found, *_perms(topics), *_dead_letters(topics, names)]


def topics_of(group: GroupDescription) -> list[str]:
    """The topics that a group reads or has read, and that of its dead letters."""
    read = {queue.topic for queue in group.queues} | {row.topic for row in group.subscriptions}
    return sorted({*read, *group.client_topics, dead_letter_topic(group.group)})


def _oldest_ms(group: GroupDescription) -> int:
    return max((queue.lag_ms for queue in group.queues), default=0)


def _of_group(group: GroupDescription, patience: Patience, moved: QueueMoves) -> Iterator[Finding]:
    yield from _lost(group)
    yield from _subscriptions(group)
    yield from _without_queues(group)
    yield from _held(group)
    held = {hold.topic for hold in group.holds}
    seams = [seam for seam in seams_of(group, moved) if seam.is_long(patience)]
    yield from not_crossed(group, seams)
    told = [row for seam in seams for row in (seam.queue, seam.following)]
    queues = [q for q in group.queues if q.topic not in held and q not in told]
    late = list(filter(patience.is_late, queues))
    stalled = list(filter(patience.is_stalled, queues))
    if late or stalled:
        yield _late(group, late, stalled)


def _lost(group: GroupDescription) -> Iterator[Finding]:
    """Messages that were deleted before the group had consumed them, by topic."""
    counts: dict[str, int] = {}
    for queue in group.queues:
        if count := lost(queue):
            counts[queue.topic] = counts.get(queue.topic, 0) + count
    for topic, count in counts.items():
        yield Finding(
            WARNING,
            "deleted-unconsumed",
            f"consumer group {group.group}",
            f"messages of {topic} that were deleted before the group consumed them: {count}",
            "keep messages longer (store.file_reserved_time), or consume faster",
            "consumer-lag",
        )


def _subscriptions(group: GroupDescription) -> Iterator[Finding]:
    """Consumers that share a topic and select different messages, or do not all read it."""
    where = f"consumer group {group.group}"
    for topic, rows in by_topic(group.subscriptions).items():
        if len(rows) > 1:
            told = "; ".join(map(_way, rows[:4])) + ("; and more" if len(rows) > 4 else "")
            yield Finding(
                WARNING,
                "subscriptions-differ",
                where,
                f"its consumers select different messages of {topic}: {told}. A message goes to "
                "one consumer of the group, and is skipped for good where that one does not select "
                "it",
                "give all consumers of the group the same subscription, or each of them a group "
                "of its own",
                "consumer-lag",
            )
        if is_partly_read(group, rows):
            yield Finding(
                WARNING,
                "topics-differ",
                where,
                f"only {sum(row.sharing for row in rows)} of its {group.sharing_clients} consumers "
                f"read {topic}, and RocketMQ's clients share its queues out among all of them: the "
                "other consumers' queues are read by nobody",
                "let all consumers of the group read the same topics, or give each of them a "
                "group of its own",
                "consumer-lag",
            )


def _way(row: GroupSubscription) -> str:
    what = "all messages" if row.expression == "*" else repr(row.expression)
    return f"{what} by {row.members}, for example {row.member_id}"


def _without_queues(group: GroupDescription) -> Iterator[Finding]:
    """Consumers for which no queue is left."""
    queues = Counter(queue.topic for queue in group.queues)
    for topic, count in without_queues(group.subscriptions, queues).items():
        yield Finding(
            NOTE,
            "more-consumers-than-queues",
            f"consumer group {group.group}",
            f"{count} consumers share the {queues[topic]} queues of {topic}: "
            f"{count - queues[topic]} of them get no messages of it",
            f"duolog topic alter {topic} --queues {count}, or stop the consumers that are idle",
            "consumer-lag",
        )


def _held(group: GroupDescription) -> Iterator[Finding]:
    for hold in group.holds:
        behind = sum(q.lag_messages for q in group.queues if q.topic == hold.topic)
        if behind:
            yield Finding(
                WARNING,
                "reads-over-quota",
                f"consumer group {group.group}",
                f"a quota delays its reads of {hold.topic} ({hold.quota}); not consumed there: "
                f"{behind}",
                "raise that quota (duolog quota list, duolog quota set), or let the group lag",
                "consumer-lag",
            )


def _late(
    group: GroupDescription, late: Sequence[GroupQueue], stalled: Sequence[GroupQueue]
) -> Finding:
    """A group that is behind. late: queues with old messages. stalled: those without progress."""
    worst = max(late or stalled, key=lambda queue: queue.lag_ms)
    mine = [queue for queue in group.queues if queue.topic == worst.topic]
    old = [queue for queue in late if queue in mine and queue.lag_ms > OLD_MS]
    told = (
        f"its oldest message in {worst.topic} is {age(worst.lag_ms)} old; not "
        f"consumed there: {sum(queue.lag_messages for queue in mine)}"
    )
    where = f"consumer group {group.group}"
    if not group.consumers:
        return Finding(
            WARNING,
            "no-consumers",
            where,
            f"{told}. No consumer is connected",
            "start its consumers; delete the group only if no client uses it",
            "consumer-lag",
        )
    if not _is_read(group, mine):
        return Finding(
            WARNING,
            "topic-unread",
            where,
            f"{told}. None of its consumers reads that topic",
            f"start consumers of {worst.topic}, if the group still needs it",
            "consumer-lag",
        )
    idle = sorted({queue.member_id for queue in (*late, *stalled) if queue.not_polled})
    if idle:
        return Finding(
            WARNING,
            "not-polled",
            where,
            f"{told}. Connected consumers that have not polled yet: {', '.join(idle[:3])}"
            f"{f' and {len(idle) - 3} more' if len(idle) > 3 else ''}",
            "check their programs: they hang, or never call get",
            "consumer-lag",
        )
    if stalled:
        return _stalled(group, stalled, told)
    if 0 < len(old) < len(mine):
        return Finding(
            WARNING,
            "queue-stuck",
            where,
            f"{told}. Only {_places(old)} {'is' if len(old) == 1 else 'are'} lagging",
            f"check {_reader(group, worst)}: a message may block it",
            "consumer-lag",
        )
    return Finding(
        WARNING if old else NOTE,
        "consumers-slow",
        where,
        f"{told}. Consumers connected: {group.consumers}",
        "add consumers, up to the number of queues, or make them faster",
        "consumer-lag",
    )


def _stalled(group: GroupDescription, stalled: Sequence[GroupQueue], told: str) -> Finding:
    """Connected consumers that have messages and commit nothing."""
    longest = max(stalled, key=lambda queue: queue.stalled_ms)
    more = f" and {len(stalled) - 3} more queues" if len(stalled) > 3 else ""
    return Finding(
        WARNING,
        "consumer-stalled",
        f"consumer group {group.group}",
        f"{told}. For {age(longest.stalled_ms)} nothing was committed in {_places(stalled)}{more}",
        f"check {_reader(group, longest)}: it hangs, or works on one message. Restart it if it "
        "hangs: others get its messages then",
        "consumer-lag",
    )


def _places(queues: Sequence[GroupQueue]) -> str:
    return ", ".join(f"{queue.topic}/{queue.queue_id}" for queue in queues[:3])


def _perms(topics: Sequence[TopicDescription]) -> Iterator[Finding]:
    """Topics that are closed to consumers or producers; those that nobody writes to or reads by
    their nature are not among them.
    """
    closed: dict[tuple[str, int], list[str]] = {}
    for topic in topics:
        name = topic.topic
        if name.startswith(DEAD_LETTER_PREFIX) or is_reserved_topic(name):
            continue
        if topic.perm & (READ | WRITE) != READ | WRITE:
            closed.setdefault((name, topic.perm & (READ | WRITE)), []).append(topic.group)
    for (name, perm), groups in closed.items():
        where, told = f"topic {name}", f"(perm={perm} in {', '.join(sorted(groups))})"
        do = f"duolog topic alter {name} --perm 6, unless that is meant"
        if perm & READ:
            yield Finding(
                NOTE,
                "topic-read-only",
                where,
                f"it does not allow writes {told}: producers are refused, and consumers get only "
                "what is stored",
                do,
                "consumer-lag",
            )
        else:
            yield Finding(
                WARNING,
                "topic-unreadable",
                where,
                f"it does not allow reads {told}: consumers are refused",
                do,
                "consumer-lag",
            )


def _is_read(group: GroupDescription, queues: Sequence[GroupQueue]) -> bool:
    """Whether a consumer reads a topic, of which these are the queues. Retries come to RocketMQ's
    clients with the topics that they name.
    """
    topic = queues[0].topic
    by_clients = topic in group.client_topics or (group.clients and topic.startswith(RETRY_PREFIX))
    return bool(by_clients) or any(queue.member_id for queue in queues)


def _reader(group: GroupDescription, queue: GroupQueue) -> str:
    """The member that reads a queue. Which queues RocketMQ's clients have, only they know."""
    if queue.member_id:
        return f"consumer {queue.member_id}"
    return "its RocketMQ clients" if group.clients else "why no consumer reads that queue"


def _dead_letters(topics: Sequence[TopicDescription], groups: Sequence[str]) -> Iterator[Finding]:
    dead: dict[str, int] = {}
    for topic in topics:
        if topic.topic.startswith(DEAD_LETTER_PREFIX):
            group = group_of(topic.topic, groups)
            count = sum(queue.max_offset - queue.min_offset for queue in topic.stats)
            dead[group] = dead.get(group, 0) + count
    for group, count in dead.items():
        if count:
            yield Finding(
                NOTE,
                "dead-letters",
                f"consumer group {group}",
                f"dead letters that are kept (redelivered ones included): {count}",
                f"duolog group dead {group}",
                "dead-letters",
            )
