"""Single nodes: whether they answer, their disks and their certificates."""

from collections.abc import Iterator

from duolog import NodeStatus

from duolog_server.ops.inspection.doctor.findings import (
    ERROR,
    NOTE,
    WARNING,
    Finding,
    Seen,
    elects,
    members_of,
    replica_of,
)
from duolog_server.ops.inspection.doctor.replication import of_replication
from duolog_server.ops.inspection.times import iso
from duolog_server.store.directories import LOG

DISPATCH_BYTES = 16 << 20
_DRAIN_OR_FORGET = (
    ", drain it if it stays away, or run `duolog cluster forget NODE` if it is gone for good"
)
EXPIRES_MS = 14 * 86_400_000  # a certificate that expires earlier is reported
# Percent from where on segments are deleted before their time, and as soon as they expire: of nodes
# that do not tell their own, and where they delete none before its time.
DISK_FILLING, DISK_BUSY = 85, 75
RECENT_MS = 3_600_000
TIMERS_MS = 60_000  # timed messages that are due for longer are reported
OTHERS_FILL = "other files use more of it than the store does, so unexpired messages are kept"


def of_node(seen: Seen, node: NodeStatus) -> Iterator[Finding]:
    """Diagnose a node; one that does not answer has a single finding: down."""
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
            since = f", and is down since {iso(node.down_since_ms)}" if node.down_since_ms else ""
            yield down(where, f"it does not answer{at}{since}", elects(members_of(seen, group)))
        return
    if (group, node.name) in seen.unreachable:
        yield Finding(
            WARNING,
            "unreachable",
            where,
            f"it does not answer{at} from here, although its group considers it alive",
            "if the process is not hung, check node.advertise and the network path",
        )
    yield from _disk(where, node)
    yield from _certificate(where, node, seen.now_ms)
    yield from of_replication(seen, where, node, drained)
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
    overdue_ms = node.parts.get("timers_overdue_ms", 0)
    if node.is_master and overdue_ms > TIMERS_MS:
        yield Finding(
            WARNING,
            "timers-late",
            where,
            f"timed messages are late: the first one has been due for {overdue_ms // 1000} s",
            "see why it stores nothing: the findings of its group, or `cannot deliver a delayed "
            "message yet` in its log",
            "timers",
        )
    kept = node.parts.get("topics_not_expiring", 0)
    if node.is_master and kept:
        yield Finding(
            WARNING,
            "topics-not-expiring",
            where,
            f"topics that keep messages for longer than their retention: {kept}",
            "see `messages of topics do not expire yet` in its log, with the topics and the reason",
        )
    if node.write_holds:
        yield Finding(
            NOTE,
            "writes-over-quota",
            where,
            f"quotas refused sends within the last seconds: {'; '.join(node.write_holds)}",
            "raise them (duolog quota list, duolog quota set), or have producers send less",
        )
    lost = node.parts.get("name_servers_lost", 0)
    if lost:
        yield Finding(
            WARNING,
            "name-servers",
            where,
            f"name servers of RocketMQ that do not know this node: {lost} of "
            f"{node.parts.get('name_servers', lost)}",
            "start them, or repair the network path to them: see `name server: not "
            "registered` with the reason. Clients that know only those may not find it",
        )
    unwritten = audit_problem(node)
    if unwritten:
        yield Finding(
            WARNING,
            "audit-unwritten",
            where,
            unwritten,
            "make room on the disk of audit.file, or let the node write there; its log says why: "
            "`cannot write the audit log`",
            "audit-lost",
        )
    locked = node.parts.get("logins_locked_out", 0)
    if locked:
        yield Finding(
            WARNING,
            "logins-locked-out",
            where,
            "users locked out at an address, after too many wrong passwords or signatures: "
            f"{locked}",
            "find user and address under `too many logins failed` in its log (user `*`: all that "
            "it does not count by themselves), and stop the program that fails",
            "locked-out",
        )
    unsafe = node.parts.get("unsafe_settings", 0)
    if unsafe:
        yield Finding(
            NOTE,
            "unsafe-settings",
            where,
            f"insecure settings (e.g. ports without TLS): {unsafe}",
            "run `duolog config check` on its machine, or look at the beginning of its log",
        )


def refuses(address: str, reason: str) -> Finding:
    """A node that answers, and refuses to say how it is."""
    return Finding(
        WARNING,
        "node-refuses",
        f"node at {address}",
        f"it refuses to report its status: {reason}",
        "see its log: its key file or its users may differ from those of its group; or name a user "
        "that may Get the cluster",
    )


def stranger(address: str, cluster: str) -> Finding:
    """A node of another cluster."""
    return Finding(
        WARNING,
        "other-cluster",
        f"node at {address}",
        f"it is a node of another cluster, {cluster}, and was skipped",
        "name nodes of one cluster; if it is meant to be of this one, set its node.cluster",
    )


def namesake(group: str, name: str, address: str, other: str) -> Finding:
    """Two nodes that have one name."""
    return Finding(
        ERROR,
        "same-name",
        f"node {name} of {group}",
        f"two nodes have this name: those at {address} and at {other}",
        "stop the one that no producer uses, and keep its directory; a node of the group needs a "
        "node.name of its own",
        "two-masters",
    )


def down(where: str, what: str, elected: bool) -> Finding:
    """A node that does not answer. elected: its group elects its master."""
    return Finding(
        WARNING,
        "node-down",
        where,
        what,
        "start it with its old directory" + (_DRAIN_OR_FORGET if elected else ""),
        "node-down",
    )


def audit_problem(node: NodeStatus) -> str:
    """What is wrong with a node's audit log; empty: nothing."""
    waiting, lost = (node.parts.get(f"audit_{name}", 0) for name in ("waiting", "lost"))
    found = []
    if node.parts.get("audit_unwritable", 0):
        found.append(f"its audit log cannot be written to audit.file: {waiting} entries wait")
    if lost:
        found.append(f"entries of its audit log that were lost since it started: {lost}")
    return "; ".join(found)


def others_fill(node: NodeStatus) -> bool:
    """Whether other files than the store's use most of the disk, where that was looked at."""
    parts = node.parts
    return parts.get("disk_others_bytes", 0) > parts.get("disk_store_bytes", 0)


def _disk_of(node: NodeStatus) -> str:
    """The node's disk, by the directory on it if that is not the log's."""
    named = node.disk_directory not in ("", LOG)
    return f"the file system of {node.disk_directory}" if named else "its disk"


def _disk(where: str, node: NodeStatus) -> Iterator[Finding]:
    """The store of a node."""
    used = 100 * node.disk_used_ratio
    force = node.parts.get("disk_force_percent", DISK_FILLING)  # 0: never
    busy = node.parts.get("disk_clean_percent", DISK_BUSY)
    if node.fence_reason:
        yield Finding(
            ERROR,
            "fenced",
            where,
            f"it stores nothing any more: {node.fence_reason}",
            "check its disk, then restart it",
            "fenced",
        )
    if "DISK_FULL" in node.flags:
        yield Finding(
            ERROR,
            "disk-full",
            where,
            f"{_disk_of(node)} is too full to store messages"
            + (f": {OTHERS_FILL}" if others_fill(node) else ""),
            "free disk space; the node resumes by itself",
            "disk-full",
        )
    elif (filling := used >= (force or DISK_FILLING)) or used >= busy:
        effect = "messages are deleted as soon as they expire"
        if filling and (not force or node.disk_directory not in ("", LOG)):
            effect += "; soon puts are refused"
        elif filling and others_fill(node):
            effect = f"{OTHERS_FILL}; soon puts are refused"
        elif filling:
            effect = "messages are deleted before their time"
        yield Finding(
            WARNING if filling else NOTE,
            "disk-filling",
            where,
            f"{_disk_of(node)} is {node.disk_used_ratio:.0%} full: {effect}",
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
            "check its log, its disk and its CPU",
            "dispatch-behind",
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
            f"the certificate {node.certificate} that it uses or trusts "
            + ("has expired" if expired else f"expires in {left_ms // 3_600_000} hours"),
            "replace the files, or add the next authority beside it; the node takes new ones "
            "without a restart",
            "certificates",
        )
