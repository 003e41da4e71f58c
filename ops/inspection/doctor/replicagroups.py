"""Replica groups: their masters, and how many nodes hold what is acknowledged."""

from collections.abc import Iterator, Mapping, Sequence

from duolog import GroupRoute, NodeStatus

from duolog_server.ha.guarantee import OPTIONS, BadGuarantee, Guarantee
from duolog_server.ha.options import AckMode
from duolog_server.ops.inspection.doctor.findings import (
    ERROR,
    NOTE,
    WARNING,
    Finding,
    Seen,
    elects,
    masters_of,
    members_of,
)
from duolog_server.ops.inspection.doctor.nodes import down
from duolog_server.ops.inspection.doctor.replication import is_etcd_away


def of_replica_group(seen: Seen, route: GroupRoute) -> Iterator[Finding]:
    """Diagnose a replica group as a whole."""
    where, nodes = f"replica group {route.group}", members_of(seen, route.group)
    masters = masters_of(seen, route.group)
    if not masters:
        yield from _without_master(seen, route, where)
    yield from _two_masters(masters, where)
    known = {replica.node for replica in route.replicas}.union(
        *(master.replication.sync_state_set for master in masters)
    )
    for name in sorted(known - {node.name for node in nodes}):
        yield down(f"node {name} of {route.group}", "it is not there", elects(nodes))
    yield from _settings(nodes, where)
    yield from _out_of_reach(nodes)
    for master in masters[:1]:
        yield from _weaker(master, nodes)
        yield from _copies(master, len(nodes), where)
        for text in master.replication.discarded:
            yield Finding(
                NOTE,
                "given-up",
                where,
                f"an unclean election gave up records: {text}",
                "find out whose messages they were",
            )


def _out_of_reach(nodes: Sequence[NodeStatus]) -> Iterator[Finding]:
    """Nodes that others could not follow, by what those found; dead ones are found elsewhere."""
    for node in nodes:
        found = {
            other.name: other.replication.unreachable[node.name]
            for other in nodes
            if not other.stale and node.name in other.replication.unreachable
        }
        if found and not node.stale:
            yield Finding(
                ERROR,
                "replication-address",
                f"node {node.name} of {node.replication.group}",
                f"{' and '.join(sorted(found))} cannot reach its replication address "
                f"{next(iter(found.values()))}: they cannot follow it, if it leads",
                f"set ha.advertise of {node.name} to an address that the other nodes reach, or "
                "repair the network path to it",
                "too-few-in-sync",
            )


def _settings(nodes: Sequence[NodeStatus], where: str) -> Iterator[Finding]:
    """Settings that change with the master, as its nodes do not have them alike."""
    told = [node for node in nodes if node.settings]  # in their own words, and of this version
    differ = []
    for option in sorted({option for node in told for option in node.settings}):
        by_value: dict[str, list[str]] = {}
        for node in told:
            if option in node.settings:
                by_value.setdefault(node.settings[option], []).append(node.name)
        if len(by_value) > 1:
            values = ", ".join(f"{value} on {' '.join(names)}" for value, names in by_value.items())
            differ.append(f"{option} ({values})")
    if differ:
        yield Finding(
            WARNING,
            "settings-differ",
            where,
            f"its nodes have other settings, which change with the master: {'; '.join(differ)}",
            "give all nodes of the group the same settings, one node after the other",
        )


def _weaker(master: NodeStatus, nodes: Sequence[NodeStatus]) -> Iterator[Finding]:
    """Nodes whose settings ask for less than the group promises, or would if it were recorded."""
    promised = master.replication.guarantee
    for node in nodes:
        names = [
            f"{option} = {node.settings[option]} (the group: {promised[name]})"
            for name, option in OPTIONS.items()
            if name in promised and _is_weaker(name, node.settings.get(option), promised)
        ]
        if names:
            yield Finding(
                WARNING,
                "weaker-guarantee",
                f"node {node.name} of {node.replication.group}",
                f"its settings ask for less than its group promises: {', '.join(names)}; if it "
                "leads, it goes by the group's",
                "give it the group's settings, or lower the group's by `duolog cluster set`",
            )


def _is_weaker(name: str, value: str | None, promised: Mapping[str, str]) -> bool:
    if value is None or value == AckMode.AUTO.value:  # by the flush mode, which is looked at
        return False
    try:
        wanted, own = (Guarantee().altered(name, one) for one in (promised[name], value))
    except BadGuarantee:
        return False  # of a newer version
    return name in own.weaker_than(wanted)


def _without_master(seen: Seen, route: GroupRoute, where: str) -> Iterator[Finding]:
    if (route.group, route.master) in seen.unreachable:
        return  # other nodes are connected to it, and it is named as unreachable
    members = members_of(seen, route.group)
    start = ", ".join(node.name for node in members if node.stale)
    do = f"start {start}" if start else "see the findings of its nodes below"
    if is_etcd_away(members):
        do = "bring back etcd" + (
            f", and start {start}" if start else "; its nodes need no restart"
        )
    yield Finding(
        ERROR,
        "no-master",
        where,
        "no node is the master: puts fail",
        do,
        "no-master",
    )


def _two_masters(masters: Sequence[NodeStatus], where: str) -> Iterator[Finding]:
    """Two masters at once: an elected group's old one has not noticed yet, or fixed ones clash."""
    elected = elects(masters)
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
