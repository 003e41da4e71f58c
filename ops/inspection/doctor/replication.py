"""How nodes take part in the replication of their group, and in its elections."""

from collections.abc import Iterator, Sequence

from duolog import NodeStatus, ReplicationStatus

from duolog_server.ops.inspection.doctor.findings import (
    ERROR,
    NOTE,
    WARNING,
    Finding,
    Seen,
    masters_of,
)

LAG_MS = 30_000  # a slave that is further behind is reported
RENEWAL_SHARE = 0.2  # of a lease: renewals that take longer are reported; there are three in it


def of_replication(seen: Seen, where: str, node: NodeStatus, drained: bool) -> Iterator[Finding]:
    """How a node takes part in its group."""
    part = node.replication
    masters = masters_of(seen, part.group)
    leads = node in masters[:1] and (not part.role or part.lease_left_ms > 0)
    if part.refusal and leads:
        yield Finding(
            ERROR,
            "puts-refused",
            where,
            f"it is the master and refuses puts: {part.refusal}",
            "do what the reason says: start the missing replicas, free disk space, or end a freeze",
            "too-few-in-sync",
        )
    yield from _following(where, node, masters, drained)
    yield from _lease(where, part)


def _following(
    where: str, node: NodeStatus, masters: Sequence[NodeStatus], drained: bool
) -> Iterator[Finding]:
    """How a node follows its master."""
    part = node.replication
    if part.role == "STANDING":
        yield Finding(
            WARNING,
            "no-master-known",
            where,
            f"it knows no master of its group: {part.reason or 'none was found yet'}",
            "check the other nodes and etcd",
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
            "check ha.advertise, the network and certificates",
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
        if node.name in ours.barred:
            yield Finding(
                ERROR,
                "not-in-sync",
                where,
                "its version does not know that queues of its group have moved: it is kept out of "
                "sync, and must not lead",
                "upgrade it: it would store messages in queues that have moved",
                "queue-moves",
            )
        elif node.name not in in_sync:
            yield Finding(
                WARNING,
                "not-in-sync",
                where,
                "it follows, but is not in sync: no put waits for it, and it is not elected",
                "wait until it has caught up; then see why it does not",
                "too-few-in-sync",
            )


def _lease(where: str, part: ReplicationStatus) -> Iterator[Finding]:
    """How etcd grants and renews a node's lease."""
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
            "check the disks of etcd's members and the network path to them, or set a longer lease",
            "etcd-slow",
        )


def leases(nodes: Sequence[NodeStatus]) -> Iterator[Finding]:
    """Nodes that elect their master need a lease of etcd."""
    _, without = _elected(nodes)
    if is_etcd_away(nodes):
        yield Finding(
            ERROR,
            "etcd-unreachable",
            "etcd",
            "no node that answers has a lease: etcd does not answer them, or has no quorum",
            "etcdctl endpoint health; the nodes need no restart",
            "no-master",
        )
        return
    yield from _silent_members(nodes)
    for node in without:
        yield Finding(
            WARNING,
            "no-lease",
            f"node {node.name} of {node.replication.group}",
            "it has no lease: etcd does not answer it, or it is not healthy",
            "check its log, its disk and its connection to etcd",
            "elections",
        )


def _silent_members(nodes: Sequence[NodeStatus]) -> Iterator[Finding]:
    """Members of etcd that are down while the others have a quorum: nothing else shows it."""
    elected, _ = _elected(nodes)
    why = {
        address: text
        for node in elected
        for address, text in node.replication.registry_silent.items()
    }
    for address in sorted(why):
        without = [node.name for node in elected if address in node.replication.registry_silent]
        all_of_them = len(without) == len(elected)
        whom = "any node" if all_of_them else f"node {', '.join(sorted(without))}"
        yield Finding(
            WARNING,
            "etcd-member-silent",
            "etcd",
            f"its member {address} does not answer {whom} ({why[address]}): without a majority "
            "of its members, no node keeps its lease and no put is taken",
            f"start it: etcdctl endpoint health --endpoints {address}"
            if all_of_them
            else "check the network between them",
            "etcd-slow",
        )


def is_etcd_away(nodes: Sequence[NodeStatus]) -> bool:
    """Whether no node has a lease, of several that need one."""
    elected, without = _elected(nodes)
    return len(without) == len(elected) > 1


def _elected(nodes: Sequence[NodeStatus]) -> tuple[list[NodeStatus], list[NodeStatus]]:
    """The nodes that need a lease, and those of them that have none."""
    found = [
        node for node in nodes if node.replication.role and not node.stale and not node.fence_reason
    ]
    return found, [node for node in found if not node.replication.lease_left_ms]
