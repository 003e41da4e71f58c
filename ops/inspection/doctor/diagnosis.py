"""The diagnosis: all findings, the worst first, and what remains at a second look."""

import itertools
from collections.abc import Iterator, Sequence

from duolog import NodeStatus

from duolog_server.ops.inspection.doctor.consumers import diagnose_groups
from duolog_server.ops.inspection.doctor.findings import (
    NOTE,
    SEVERITIES,
    WARNING,
    Clock,
    Finding,
    Seen,
)
from duolog_server.ops.inspection.doctor.moves import (
    broken_chains,
    diagnose_moves,
    retirement_waits,
)
from duolog_server.ops.inspection.doctor.nodes import down, namesake, of_node, refuses, stranger
from duolog_server.ops.inspection.doctor.replicagroups import of_replica_group
from duolog_server.ops.inspection.doctor.replication import leases

CLOCKS_MS = 500  # clocks that differ by more are reported
# What is so for a moment when masters change, or when a queue moves between the answers of two.
PASSING = frozenset(
    (
        *("no-master", "no-master-known", "two-masters", "puts-refused"),
        *("not-connected", "not-in-sync", "only-copy", "no-lease", "name-servers"),
        *("replication-address", "move-holds", "move-lost", "seal-lost"),
    )
)


def diagnose(seen: Seen) -> list[Finding]:
    """All findings, the worst first."""
    retiring = {one.group for one in seen.route.groups if one.retiring}
    found = [
        *leases(seen.nodes),  # without etcd, groups have no masters
        *itertools.chain.from_iterable(of_replica_group(seen, one) for one in seen.route.groups),
        *itertools.chain.from_iterable(of_node(seen, node) for node in seen.nodes),
        *(down(f"node at {address}", "it does not answer", True) for address in seen.silent),
        *(refuses(address, reason) for address, reason in seen.refusing.items()),
        *(stranger(address, cluster) for address, cluster in seen.strangers.items()),
        *(namesake(*key, *addresses) for key, addresses in seen.namesakes.items()),
        *_versions(seen.nodes),
        *_clocks(seen.clocks),
        *diagnose_moves(seen.moved.moves, seen.now_ms),
        *broken_chains(seen.moved, seen.now_ms),
        *retirement_waits(seen.groups, seen.moved, retiring),
        *diagnose_groups(seen.groups, seen.topics, moved=seen.moved),
    ]
    if seen.unread:
        found.append(
            Finding(
                WARNING,
                "groups-unread",
                "consumer groups",
                f"they could not be read: {seen.unread}",
                "repair what is named above, if anything is, then run duolog doctor again",
            )
        )
    return sorted(found, key=lambda finding: SEVERITIES.index(finding.severity))


def second_look(first: Sequence[Finding], second: Sequence[Finding]) -> list[Finding]:
    """Findings of the second of two surveys, some seconds apart.

    Of what is so for a moment by a switch or a move, only what the first one found as well.
    """
    before = {(finding.cause, finding.where) for finding in first}
    return [
        finding
        for finding in second
        if finding.cause not in PASSING or (finding.cause, finding.where) in before
    ]


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
            "clocks",
        )
