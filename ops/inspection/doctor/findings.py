"""Findings of the diagnosis, and its input."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from duolog import (
    GroupDescription,
    NodeStatus,
    QueueMoves,
    ReplicaRoute,
    Route,
    TopicDescription,
)

ERROR, WARNING, NOTE = "error", "warning", "note"
SEVERITIES = (ERROR, WARNING, NOTE)


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


def by_cause(findings: Sequence[Finding]) -> list[list[Finding]]:
    """Findings of one severity and cause together, in the order of the first of each."""
    kinds: dict[tuple[str, str], list[Finding]] = {}
    for one in findings:
        kinds.setdefault((one.severity, one.cause), []).append(one)
    return list(kinds.values())


@dataclass(frozen=True, slots=True)
class Clock:
    """How far a node's wall clock is ahead of ours, ms: between least and most."""

    node: str
    least_ms: int
    most_ms: int


@dataclass(frozen=True, slots=True)
class Seen:
    """Input of the diagnosis.

    nodes: in their own words; of those that do not answer, what others know. unreachable: the
    latter, by replica group and name, where their master is connected to them. silent: addresses
    that were named and do not answer. groups, topics: empty where they could not be read; unread
    says why. now_ms: wall clock. clocks: of the nodes that say what time it is. refusing: addresses
    of nodes that answer and refuse to say how they are, and why. strangers: addresses of nodes of
    other clusters, which are not among the nodes, and these clusters. namesakes: addresses of two
    nodes of one replica group and name, by these; one of them is among the nodes. moved: queues
    that move between replica groups, or have.
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
    strangers: Mapping[str, str] = field(default_factory=dict)
    namesakes: Mapping[tuple[str, str], tuple[str, str]] = field(default_factory=dict)
    moved: QueueMoves = field(default_factory=QueueMoves)


def age(ms: float) -> str:
    """For how long something lasts, for people."""
    return f"{ms // 60_000:.0f} minutes" if ms >= 120_000 else f"{ms // 1000:.0f} s"


def replica_of(route: Route, node: NodeStatus) -> ReplicaRoute | None:
    """A node as its group's route has it, None where it is not there."""
    for group in route.groups:
        for replica in group.replicas:
            if (group.group, replica.node) == (node.replication.group, node.name):
                return replica
    return None


def elects(nodes: Sequence[NodeStatus]) -> bool:
    """Whether these nodes of one group elect their master."""
    return any(node.replication.role for node in nodes)


def members_of(seen: Seen, group: str) -> list[NodeStatus]:
    """The nodes of a replica group."""
    return [node for node in seen.nodes if node.replication.group == group]


def masters_of(seen: Seen, group: str) -> list[NodeStatus]:
    """The nodes of a replica group that say they are its master, of the newest epoch first."""
    found = [
        node
        for node in members_of(seen, group)
        if node.is_master and not node.stale and (group, node.name) not in seen.unreachable
    ]
    return sorted(found, key=lambda node: -node.replication.epoch)
