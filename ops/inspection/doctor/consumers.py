"""Consumer groups: what they have not consumed, and why."""

from collections.abc import Iterator, Sequence

from duolog import GroupDescription, GroupQueue, TopicDescription
from duolog._message import DEAD_LETTER_PREFIX, RETRY_PREFIX

from duolog_server.ops.inspection.doctor.findings import NOTE, WARNING, Finding
from duolog_server.store.grouptopics import group_of

OLD_MS = 600_000  # a message that nobody has consumed for longer


def diagnose_groups(
    groups: Sequence[GroupDescription], topics: Sequence[TopicDescription]
) -> list[Finding]:
    """What is wrong with consumer groups; topics: dead-letter topics are among them."""
    names = [group.group for group in groups]
    return [*_consumers(groups), *_dead_letters(topics, names)]


def _consumers(groups: Sequence[GroupDescription]) -> Iterator[Finding]:
    for group in groups:
        yield from _lost(group)
        old = [queue for queue in group.queues if queue.lag_ms > OLD_MS]
        if old:
            yield _late(group, max(old, key=lambda queue: queue.lag_ms))


def _lost(group: GroupDescription) -> Iterator[Finding]:
    """Messages that were deleted before the group had consumed them, by topic."""
    lost: dict[str, int] = {}
    for queue in group.queues:
        if queue.committed is not None and queue.committed < queue.min_offset:
            count = queue.min_offset - queue.committed
            lost[queue.topic] = lost.get(queue.topic, 0) + count
    for topic, count in lost.items():
        yield Finding(
            WARNING,
            "deleted-unconsumed",
            f"consumer group {group.group}",
            f"messages of {topic} that were deleted before the group consumed them: {count}",
            "keep messages longer (store.file_reserved_time), or consume faster",
            "consumer-lag",
        )


def _late(group: GroupDescription, worst: GroupQueue) -> Finding:
    """A group with old messages. worst: the queue with the oldest one."""
    mine = [queue for queue in group.queues if queue.topic == worst.topic]
    late = [queue for queue in mine if queue.lag_ms > OLD_MS]
    told = (
        f"its oldest message in {worst.topic} is {worst.lag_ms // 60_000} minutes old; not "
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
    idle = sorted({queue.member_id for queue in late if queue.not_polled})
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
    if len(late) < len(mine):
        queues = ", ".join(f"{queue.topic}/{queue.queue_id}" for queue in late[:3])
        return Finding(
            WARNING,
            "queue-stuck",
            where,
            f"{told}. Only {queues} {'is' if len(late) == 1 else 'are'} lagging",
            f"check {_reader(group, worst)}: a message may block it",
            "consumer-lag",
        )
    return Finding(
        WARNING,
        "consumers-slow",
        where,
        f"{told}. Consumers connected: {group.consumers}",
        "add consumers, up to the number of queues, or make them faster",
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
