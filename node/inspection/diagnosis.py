"""What is wrong with a cluster, by what its nodes say. Pure."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from duolog import (
    GroupDescription,
    GroupQueue,
    GroupRoute,
    NodeStatus,
    ReplicaRoute,
    Route,
    TopicDescription,
)
from duolog._message import DEAD_LETTER_PREFIX

ERROR, WARNING, NOTE = "error", "warning", "note"
SEVERITIES = (ERROR, WARNING, NOTE)
LAG_MS = 30_000  # a slave that is further behind is reported
OLD_MS = 600_000  # a message that nobody has consumed for longer
DISPATCH_BYTES = 16 << 20
CLOCKS_MS = 500  # clocks that differ by more are reported
EXPIRES_MS = 14 * 86_400_000  # a certificate that expires earlier is reported
RENEWAL_SHARE = 0.2  # of a lease: renewals that take longer are reported; there are three in it
DISK_FILLING, DISK_BUSY = 0.85, 0.75  # segments are deleted before their time; as soon as expired
RECENT_MS = 3_600_000
# What is so for a moment when masters change.
PASSING = frozenset(
    (
        *("no-master", "no-master-known", "two-masters", "puts-refused"),
        *("not-connected", "not-in-sync", "only-copy", "no-lease", "name-servers"),
    )
)


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
class Clock:
    """How far a node's wall clock is ahead of ours, ms: between least and most."""

    node: str
    least_ms: int
    most_ms: int


@dataclass(frozen=True, slots=True)
class Seen:
    """What was found out.

    nodes: in their own words; of those that do not answer, what others know. unreachable: the
    latter, by replica group and name, where their master is connected to them. silent: addresses
    that were named and do not answer. groups, topics: empty where they could not be read; unread
    says why. now_ms: wall clock. clocks: of the nodes that say what time it is. refusing: addresses
    of nodes that answer and refuse to say how they are, and why.
    """

    route: Route
    nodes: tuple[NodeStatus, ...]
    groups: tuple[GroupDescription, ...]
    topics: tuple[TopicDescription, ...]
    now_ms: int
    unreachable: frozenset[tuple[str, str]] = frozenset()
    silent: tuple[str, ...] = ()
    unread: str = ""
    clocks: tuple[Clock, ...] = ()
    refusing: Mapping[str, str] = field(default_factory=dict)


def diagnose(seen: Seen) -> list[Finding]:
    """All findings, the worst first."""
    found = [
        *itertools.chain.from_iterable(_replica_group(seen, one) for one in seen.route.groups),
        *itertools.chain.from_iterable(_node(seen, node) for node in seen.nodes),
        *(_down(f"node at {address}", "it does not answer", True) for address in seen.silent),
        *(_refuses(address, reason) for address, reason in seen.refusing.items()),
        *_leases(seen.nodes),
        *_versions(seen.nodes),
        *_clocks(seen.clocks),
        *diagnose_groups(seen.groups, seen.topics),
    ]
    if seen.unread:
        found.append(
            Finding(
                WARNING,
                "groups-unread",
                "consumer groups",
                f"they could not be read: {seen.unread}",
                "repair what is named above, then run duolog doctor again",
            )
        )
    return sorted(found, key=lambda finding: SEVERITIES.index(finding.severity))


def second_look(first: Sequence[Finding], second: Sequence[Finding]) -> list[Finding]:
    """What the second of two looks found, some seconds later.

    Of what a switch of masters causes for a moment, only what the first one found as well.
    """
    before = {(finding.cause, finding.where) for finding in first}
    return [
        finding
        for finding in second
        if finding.cause not in PASSING or (finding.cause, finding.where) in before
    ]


def diagnose_groups(
    groups: Sequence[GroupDescription], topics: Sequence[TopicDescription]
) -> list[Finding]:
    """What is wrong with consumer groups; topics: dead-letter topics are among them."""
    return [*_consumers(groups), *_dead_letters(topics)]


def replica_of(route: Route, node: NodeStatus) -> ReplicaRoute | None:
    """A node as its group's route has it, None where it is not there."""
    for group in route.groups:
        for replica in group.replicas:
            if (group.group, replica.node) == (node.replication.group, node.name):
                return replica
    return None


def _elected(nodes: Sequence[NodeStatus]) -> bool:
    """Whether these nodes of one group elect their master."""
    return any(node.replication.role for node in nodes)


def _members(seen: Seen, group: str) -> list[NodeStatus]:
    return [node for node in seen.nodes if node.replication.group == group]


def _masters(seen: Seen, group: str) -> list[NodeStatus]:
    """Those that say so themselves; of the newest epoch first."""
    found = [
        node
        for node in _members(seen, group)
        if node.is_master and not node.stale and (group, node.name) not in seen.unreachable
    ]
    return sorted(found, key=lambda node: -node.replication.epoch)


def _replica_group(seen: Seen, route: GroupRoute) -> Iterator[Finding]:
    where, nodes = f"replica group {route.group}", _members(seen, route.group)
    masters = _masters(seen, route.group)
    if not masters:
        yield from _without_master(seen, route, where)
    yield from _two_masters(masters, where)
    known = {replica.node for replica in route.replicas}.union(
        *(master.replication.sync_state_set for master in masters)
    )
    for name in sorted(known - {node.name for node in nodes}):
        yield _down(f"node {name} of {route.group}", "it is not there", _elected(nodes))
    for master in masters[:1]:
        yield from _copies(master, len(nodes), where)
        for text in master.replication.discarded:
            yield Finding(
                NOTE,
                "given-up",
                where,
                f"an unclean election gave up records: {text}",
                "find out whose messages they were",
            )


def _without_master(seen: Seen, route: GroupRoute, where: str) -> Iterator[Finding]:
    if (route.group, route.master) in seen.unreachable:
        return  # other nodes are connected to it, and it is named as unreachable
    down = [node.name for node in _members(seen, route.group) if node.stale]
    yield Finding(
        ERROR,
        "no-master",
        where,
        "no node is the master: puts fail",
        f"start {', '.join(down)}" if down else "see what its nodes say below",
        "no-master",
    )


def _two_masters(masters: Sequence[NodeStatus], where: str) -> Iterator[Finding]:
    """Of an elected group, an older one has not noticed yet; fixed masters have own epochs."""
    elected = _elected(masters)
    rivals = [
        node
        for node in masters
        if not elected or node.replication.epoch == masters[0].replication.epoch
    ]
    if len(rivals) > 1:
        names = " and ".join(f"{node.name} at {node.listen}" for node in rivals)
        yield Finding(
            ERROR,
            "two-masters",
            where,
            f"{names} say that they are its master",
            "stop the one that no producer uses, and keep its directory",
            "two-masters",
        )


def _copies(master: NodeStatus, nodes: int, where: str) -> Iterator[Finding]:
    """How many nodes hold what the master acknowledges."""
    part = master.replication
    if part.role and nodes > 1 and not set(part.sync_state_set) - {master.name}:
        yield Finding(
            ERROR,
            "only-copy",
            where,
            f"no other node has all that {master.name} acknowledged",
            "start the other nodes, and do not stop this one",
            "too-few-in-sync",
        )
    elif master.role == "SYNC_MASTER" and not part.role and part.in_sync_replicas < 2:
        yield Finding(
            WARNING,
            "no-slave",
            where,
            f"{master.name} waits for slaves, and none is in sync",
            "start its slaves",
            "too-few-in-sync",
        )
    elif nodes == 1:
        yield Finding(
            NOTE,
            "single-node",
            where,
            "it has one node: messages are lost with its disk",
            "add a slave",
        )


def _node(seen: Seen, node: NodeStatus) -> Iterator[Finding]:
    group = node.replication.group
    where = f"node {node.name} of {group}"
    replica = replica_of(seen.route, node)
    drained = replica is not None and replica.drained
    at = f" at {node.listen}" if node.listen else ""
    if drained:
        yield Finding(
            NOTE,
            "drained",
            where,
            "it is drained: no put waits for it, and it is not elected"
            + (f"; it does not answer{at}" if node.stale else ""),
            f"duolog cluster undrain {node.name}, after the maintenance",
        )
    if node.stale:
        if not drained and node.listen not in seen.refusing:
            yield _down(where, f"it does not answer{at}", _elected(_members(seen, group)))
        return
    if (group, node.name) in seen.unreachable:
        yield Finding(
            WARNING,
            "unreachable",
            where,
            f"it does not answer{at} from here, although its group takes it for alive",
            "if it does not stand still, look at node.advertise and at the way to it",
        )
    yield from _disk(where, node)
    yield from _certificate(where, node, seen.now_ms)
    yield from _replication(seen, where, node, drained)
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
            f"half messages that wait for the decision of their producers: {waiting}",
            "start the producers of their group, if none runs",
            "half-messages",
        )
    lost = node.parts.get("name_servers_lost", 0)
    if lost:
        yield Finding(
            WARNING,
            "name-servers",
            where,
            f"name servers of RocketMQ that do not know this node: {lost} of "
            f"{node.parts.get('name_servers', lost)}",
            "start them, or repair the way to them: the node's log has `name server: not "
            "registered` with the reason. Clients that know only those may not find it",
        )
    unsafe = node.parts.get("unsafe_settings", 0)
    if unsafe:
        yield Finding(
            NOTE,
            "unsafe-settings",
            where,
            f"settings that work and are not safe, as ports without TLS: {unsafe}",
            "run `duolog config check` on its machine, or look at the beginning of its log",
        )


def _refuses(address: str, reason: str) -> Finding:
    return Finding(
        WARNING,
        "node-refuses",
        f"node at {address}",
        f"it answers, and refuses to say how it is: {reason}",
        "see its log: its key file or its users may differ from those of its group; or name a user "
        "that may Get the cluster",
    )


def _down(where: str, what: str, elected: bool) -> Finding:
    return Finding(
        WARNING,
        "node-down",
        where,
        what,
        "start it with its old directory" + (", or drain it if it stays away" if elected else ""),
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
            f"ranges of its commit log that cannot be read: {node.corrupt_ranges}",
            "a slave repairs itself; hand over, if it is the master",
            "damaged-ranges",
        )
    if node.refused_records:
        yield Finding(
            WARNING,
            "refused-records",
            where,
            "records that have no queue entry, so that consumers do not see them: "
            f"{node.refused_records}",
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


def _replication(seen: Seen, where: str, node: NodeStatus, drained: bool) -> Iterator[Finding]:
    """How a node takes part in its group."""
    part = node.replication
    masters = _masters(seen, part.group)
    leads = node in masters[:1] and (not part.role or part.lease_left_ms > 0)
    if part.refusal and leads:
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
    elif part.state == "TRANSFER" and not drained and masters:
        ours = masters[0].replication
        in_sync = {*ours.sync_state_set, *(slave.name for slave in ours.slaves if slave.in_sync)}
        if node.name not in in_sync:
            yield Finding(
                WARNING,
                "not-in-sync",
                where,
                "it follows, but is not in sync: no put waits for it, and it is not elected",
                "wait until it has caught up; then see why it does not",
                "too-few-in-sync",
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
    if part.renewal_ms_max > RENEWAL_SHARE * 1000 * part.lease_seconds > 0:
        yield Finding(
            WARNING,
            "etcd-slow",
            where,
            f"etcd took up to {part.renewal_ms_max} ms to renew this node's lease of "
            f"{part.lease_seconds} s: a master that cannot renew it in time steps down",
            "look at the disks of etcd's members and at the way to them, or set a longer lease",
            "elections",
        )


def _leases(nodes: Sequence[NodeStatus]) -> Iterator[Finding]:
    """Nodes that elect their master need a lease of etcd."""
    elected = [
        node for node in nodes if node.replication.role and not node.stale and not node.fence_reason
    ]
    without = [node for node in elected if not node.replication.lease_left_ms]
    if len(without) == len(elected) > 1:
        yield Finding(
            ERROR,
            "etcd-unreachable",
            "etcd",
            "no node that answers has a lease: etcd does not answer them, or has no quorum",
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
            "look at its log, its disk and its connection to etcd",
            "elections",
        )


def _versions(nodes: Sequence[NodeStatus]) -> Iterator[Finding]:
    versions: dict[str, list[str]] = {}
    for node in nodes:
        if node.version:  # in its own words
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


def _clocks(clocks: Sequence[Clock]) -> Iterator[Finding]:
    """The two clocks that surely differ most."""
    if not clocks:
        return
    ahead = max(clocks, key=lambda clock: clock.least_ms)
    behind = min(clocks, key=lambda clock: clock.most_ms)
    differ_ms = ahead.least_ms - behind.most_ms
    if differ_ms > CLOCKS_MS:
        yield Finding(
            WARNING,
            "clocks-differ",
            "the cluster",
            f"the clock of node {ahead.node} is {differ_ms / 1000:.1f} s or more ahead of that of "
            f"node {behind.node}",
            "see that a time service such as chrony runs on both machines: store times, delays, "
            "retention and signatures go by these clocks",
        )


def _certificate(where: str, node: NodeStatus, now_ms: int) -> Iterator[Finding]:
    if not node.certificate_until_ms:
        return
    left_ms = node.certificate_until_ms - now_ms
    expired = left_ms <= 0
    if left_ms < EXPIRES_MS:
        yield Finding(
            ERROR if expired else WARNING,
            "certificate-expires",
            where,
            f"its certificate {node.certificate} "
            + ("has expired" if expired else f"expires in {left_ms // 3_600_000} hours"),
            "replace the files; the node takes new ones without a restart",
        )


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
    if not group.members:
        return Finding(
            WARNING,
            "no-consumers",
            where,
            f"{told}. No consumer of the SDK is connected (those of RocketMQ's clients are not "
            "counted)",
            "start its consumers; delete the group only if nobody uses it",
            "consumer-lag",
        )
    if not any(queue.member_id for queue in mine):
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
            "look at their programs: they hang, or never ask their consumer for messages",
            "consumer-lag",
        )
    if len(late) < len(mine):
        queues = ", ".join(f"{queue.topic}/{queue.queue_id}" for queue in late[:3])
        return Finding(
            WARNING,
            "queue-stuck",
            where,
            f"{told}. Other queues are not that late as {queues}",
            f"look at consumer {worst.member_id or '(none)'}: a message may block it",
            "consumer-lag",
        )
    return Finding(
        WARNING,
        "consumers-slow",
        where,
        f"{told}, with {group.members} consumers of the SDK",
        "add consumers, up to the number of queues, or make them faster",
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
                f"dead letters that are kept (redelivered ones included): {count}",
                f"duolog group dead {group}",
                "dead-letters",
            )
