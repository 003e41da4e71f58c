"""What is wrong with a cluster, by what its nodes say: pure, for `duolog doctor`."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from duolog import GroupDescription, GroupRoute, NodeStatus, Route, TopicDescription
from duolog._message import DEAD_LETTER_PREFIX

ERROR, WARNING, NOTE = "error", "warning", "note"
SEVERITIES = (ERROR, WARNING, NOTE)
LAG_MS = 30_000  # a slave that is further behind is reported
OLD_MS = 600_000  # a message that nobody has consumed for longer
DISPATCH_BYTES = 16 << 20
DISK_FILLING, DISK_BUSY = 0.85, 0.75  # segments are deleted before their time; as soon as expired
RECENT_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong, or worth knowing.

    severity: error (messages are refused, unsafe or lost), warning, note. cause: a stable name.
    where: the node, replica group or consumer group. what, do: for people. runbook: a page of
    docs/runbooks; empty: none.
    """

    severity: str
    cause: str
    where: str
    what: str
    do: str
    runbook: str = ""


@dataclass(frozen=True, slots=True)
class Seen:
    """What was found out.

    nodes: in their own words; those that do not answer, as others know them (`stale`). groups,
    topics: None where no master could be asked. now_ms: wall clock.
    """

    route: Route
    nodes: tuple[NodeStatus, ...]
    groups: tuple[GroupDescription, ...] | None
    topics: tuple[TopicDescription, ...] | None
    now_ms: int


def diagnose(seen: Seen) -> list[Finding]:
    """All findings, the worst first."""
    found = [
        *itertools.chain.from_iterable(_replica_group(seen, one) for one in seen.route.groups),
        *itertools.chain.from_iterable(_node(seen, node) for node in seen.nodes),
        *_leases(seen.nodes),
        *_versions(seen.nodes),
        *diagnose_groups(seen.groups or (), seen.topics or ()),
    ]
    return sorted(found, key=lambda finding: SEVERITIES.index(finding.severity))


def diagnose_groups(
    groups: Sequence[GroupDescription], topics: Sequence[TopicDescription]
) -> list[Finding]:
    """What is wrong with consumer groups; topics: dead-letter topics are among them."""
    return [*_consumers(groups), *_dead_letters(topics)]


def _members(seen: Seen, group: str) -> list[NodeStatus]:
    return [node for node in seen.nodes if node.replication.group == group]


def _replica_group(seen: Seen, route: GroupRoute) -> Iterator[Finding]:
    where, nodes = f"replica group {route.group}", _members(seen, route.group)
    masters = [node for node in nodes if node.is_master and not node.stale]
    if not masters:
        down = [node.name for node in nodes if node.stale]
        yield Finding(
            ERROR,
            "no-master",
            where,
            "no node is the master: puts fail",
            f"start {', '.join(down)}" if down else "see what its nodes say below",
            "no-master",
        )
    if len(masters) > 1 and len({node.replication.epoch for node in masters}) == 1:
        names = " and ".join(node.name for node in masters)
        yield Finding(
            ERROR,
            "two-masters",
            where,
            f"{names} say that they are the master of epoch {masters[0].replication.epoch}",
            "keep producers away from one of them, and its directory as it is",
            "two-masters",
        )
    if len(nodes) == 1:
        yield Finding(
            NOTE,
            "single-node",
            where,
            "it has one node: messages are lost with its disk",
            "add a slave",
        )
    known = {replica.node for replica in route.replicas}.union(
        *(master.replication.sync_state_set for master in masters)
    )
    for name in sorted(known - {node.name for node in nodes}):
        yield _down(f"node {name} of {route.group}", "it is not there")
    for master in masters[:1]:
        copies = set(master.replication.sync_state_set) - {master.name}
        if len(nodes) > 1 and route.epoch and not copies:
            yield Finding(
                ERROR,
                "only-copy",
                where,
                f"no other node has all that {master.name} acknowledged",
                "start the other nodes, and do not stop this one",
                "too-few-in-sync",
            )
        for text in master.replication.discarded:
            yield Finding(
                NOTE,
                "given-up",
                where,
                f"an unclean election gave up records: {text}",
                "find out whose messages they were",
            )


def _node(seen: Seen, node: NodeStatus) -> Iterator[Finding]:
    where = f"node {node.name} of {node.replication.group}"
    if node.stale:
        yield _down(where, f"it does not answer{f' at {node.listen}' if node.listen else ''}")
        return
    yield from _disk(where, node)
    yield from _replication(seen, where, node)
    if node.recovered_abnormally and seen.now_ms - node.start_time_ms < RECENT_MS:
        yield Finding(
            NOTE,
            "unclean-stop",
            where,
            "within the last hour, it was started after a stop that was not clean",
            "find out who killed it, or why it crashed",
            "abnormal-recovery",
        )
    waiting = node.parts.get("half_messages_waiting", 0)
    if node.is_master and waiting:
        yield Finding(
            NOTE,
            "half-messages",
            where,
            f"{waiting} half messages wait for the decision of their producers",
            "start the producers of their group, if none runs",
            "half-messages",
        )


def _down(where: str, what: str) -> Finding:
    return Finding(
        WARNING,
        "node-down",
        where,
        what,
        "start it with its old directory, or drain it if it stays away",
        "node-down",
    )


def _disk(where: str, node: NodeStatus) -> Iterator[Finding]:
    """The store of a node."""
    if node.fence_reason:
        yield Finding(
            ERROR,
            "fenced",
            where,
            f"it stores nothing any more: {node.fence_reason}",
            "look at its disk; it must be started again",
            "fenced",
        )
    if "DISK_FULL" in node.flags:
        yield Finding(
            ERROR,
            "disk-full",
            where,
            "its disk is too full to store messages",
            "free disk space; it goes on by itself",
            "disk-full",
        )
    elif node.disk_used_ratio >= DISK_BUSY:
        filling = node.disk_used_ratio >= DISK_FILLING
        effect = "before their time" if filling else "as soon as they expire"
        yield Finding(
            WARNING if filling else NOTE,
            "disk-filling",
            where,
            f"its disk is {node.disk_used_ratio:.0%} full: messages are deleted {effect}",
            "free disk space, or lower store.file_reserved_time",
            "disk-full",
        )
    if node.corrupt_ranges:
        yield Finding(
            ERROR if node.is_master else WARNING,
            "damaged-log",
            where,
            f"{node.corrupt_ranges} ranges of its commit log cannot be read",
            "a slave repairs itself; hand over, if it is the master",
            "damaged-ranges",
        )
    if node.refused_records:
        yield Finding(
            WARNING,
            "refused-records",
            where,
            f"{node.refused_records} records have no queue entry: consumers do not see them",
            "run `duolog store check` on its machine",
            "damaged-ranges",
        )
    if node.dispatch_behind_bytes > DISPATCH_BYTES:
        yield Finding(
            WARNING,
            "dispatch-behind",
            where,
            f"{node.dispatch_behind_bytes >> 20} MiB of its log have no queue entries yet: "
            "consumers get these messages late",
            "look at its log, its disk and its CPU",
            "dispatch-behind",
        )


def _replication(seen: Seen, where: str, node: NodeStatus) -> Iterator[Finding]:
    """How a node takes part in its group."""
    part = node.replication
    if part.refusal:
        yield Finding(
            ERROR,
            "puts-refused",
            where,
            f"it is the master and refuses puts: {part.refusal}",
            "do what the reason says: start the missing replicas, or free disk space",
            "too-few-in-sync",
        )
    if part.role == "STANDING":
        yield Finding(
            WARNING,
            "no-master-known",
            where,
            f"it knows no master of its group: {part.reason or 'none was found yet'}",
            "look at the other nodes and at etcd",
            "no-master",
        )
    elif part.state == "SUSPEND":
        yield Finding(
            ERROR,
            "suspended",
            where,
            f"it does not follow its master: {part.reason}",
            "do what the reason says, before anything in its directory is changed",
            "too-few-in-sync",
        )
    elif part.state in ("READY", "HANDSHAKE"):
        yield Finding(
            WARNING,
            "not-connected",
            where,
            f"it is not connected to its master: {part.reason or part.state}",
            "look at ha.advertise, the network and certificates",
            "replication-lag",
        )
    elif part.state and part.lag_ms > LAG_MS:
        yield Finding(
            WARNING,
            "behind",
            where,
            f"it has been behind its master for {part.lag_ms // 1000} s, and lacks "
            f"{part.lag_bytes} bytes",
            "see whether it catches up: duolog cluster status --watch",
            "replication-lag",
        )
    if part.lease_seconds and part.lease_seconds != part.lease_asked_seconds:
        yield Finding(
            NOTE,
            "lease-length",
            where,
            f"etcd grants leases of {part.lease_seconds} s, where registry.lease_seconds is "
            f"{part.lease_asked_seconds}: a failover takes accordingly longer",
            "set a shorter election timeout of etcd, or a longer lease here",
            "elections",
        )
    drained = {
        replica.node
        for group in seen.route.groups
        for replica in group.replicas
        if group.group == part.group and replica.drained
    }
    if node.name in drained:
        yield Finding(
            NOTE,
            "drained",
            where,
            "it is drained: no put waits for it, and it is not elected",
            f"duolog cluster undrain {node.name}, after the maintenance",
        )
    elif part.state == "TRANSFER" and node.name not in _in_sync(seen, part.group, node.name):
        yield Finding(
            WARNING,
            "not-in-sync",
            where,
            "it follows, but is not in sync: no put waits for it, and it is not elected",
            "wait until it has caught up; then see why it does not",
            "too-few-in-sync",
        )


def _leases(nodes: Sequence[NodeStatus]) -> Iterator[Finding]:
    """Nodes that elect their master need a lease of etcd."""
    elected = [node for node in nodes if node.replication.role and not node.stale]
    without = [node for node in elected if not node.replication.lease_left_ms]
    if without and len(without) == len(elected):
        yield Finding(
            ERROR,
            "etcd-unreachable",
            "etcd",
            "no node has a lease: etcd does not answer, or has no quorum; nobody is elected",
            "etcdctl endpoint health; the nodes need no restart",
            "no-master",
        )
        return
    for node in without:
        yield Finding(
            WARNING,
            "no-lease",
            f"node {node.name} of {node.replication.group}",
            "it has no lease: etcd does not answer it, or it is not healthy",
            "look at its log, its disk and its way to etcd",
            "elections",
        )


def _in_sync(seen: Seen, group: str, unknown: str) -> set[str]:
    """Nodes in sync, as their master says; unknown: who is taken for one where none says it."""
    for node in _members(seen, group):
        if node.is_master and not node.stale:
            part = node.replication
            return {*part.sync_state_set, *(slave.name for slave in part.slaves if slave.in_sync)}
    return {unknown}


def _versions(nodes: Sequence[NodeStatus]) -> Iterator[Finding]:
    versions: dict[str, list[str]] = {}
    for node in nodes:
        if not node.stale:
            versions.setdefault(node.version, []).append(node.name)
    if len(versions) > 1:
        told = "; ".join(f"{version}: {', '.join(names)}" for version, names in versions.items())
        yield Finding(
            NOTE,
            "versions-differ",
            "the cluster",
            f"its nodes run different versions ({told})",
            "finish the upgrade",
        )


def _consumers(groups: Sequence[GroupDescription]) -> Iterator[Finding]:
    for group in groups:
        where = f"consumer group {group.group}"
        lost: Mapping[str, int] = {
            queue.topic: queue.min_offset - queue.committed
            for queue in group.queues
            if queue.committed is not None and queue.committed < queue.min_offset
        }
        for topic, count in lost.items():
            yield Finding(
                WARNING,
                "deleted-unconsumed",
                where,
                f"messages of {topic} were deleted before the group consumed them ({count} in one "
                "queue)",
                "keep messages longer (store.file_reserved_time), or consume faster",
                "consumer-lag",
            )
        old = [queue for queue in group.queues if queue.lag_ms > OLD_MS]
        if not old:
            continue
        worst = max(old, key=lambda queue: queue.lag_ms)
        count = sum(queue.lag_messages for queue in group.queues)
        told = (
            f"it has not consumed {count} messages; the oldest, in {worst.topic}, is "
            f"{worst.lag_ms // 60_000} minutes old"
        )
        read = [queue for queue in old if queue.member_id]
        if group.members and len(old) < len(group.queues) and read:
            queues = ", ".join(f"{queue.topic}/{queue.queue_id}" for queue in read[:3])
            yield Finding(
                WARNING,
                "queue-stuck",
                where,
                f"{told}: {queues} is read and does not advance",
                f"look at the consumer {read[0].member_id}: one message may block it",
                "consumer-lag",
            )
        elif group.members:
            yield Finding(
                WARNING,
                "consumers-slow",
                where,
                f"{told}, with {group.members} consumers",
                "add consumers, up to the number of queues, or make them faster",
                "consumer-lag",
            )
        else:
            yield Finding(
                WARNING,
                "no-consumers",
                where,
                f"{told}, and no consumer of the SDK is connected",
                f"start its consumers; or, if nobody needs it: duolog group delete {group.group}",
                "consumer-lag",
            )


def _dead_letters(topics: Sequence[TopicDescription]) -> Iterator[Finding]:
    dead: dict[str, int] = {}
    for topic in topics:
        if topic.topic.startswith(DEAD_LETTER_PREFIX):
            group = topic.topic.removeprefix(DEAD_LETTER_PREFIX)
            count = sum(queue.max_offset - queue.min_offset for queue in topic.stats)
            dead[group] = dead.get(group, 0) + count
    for group, count in dead.items():
        if count:
            yield Finding(
                NOTE,
                "dead-letters",
                f"consumer group {group}",
                f"it has given up {count} messages",
                f"duolog group dead {group}",
                "dead-letters",
            )
