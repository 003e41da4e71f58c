"""`duolog doctor` names each planted cause, and nothing else."""

import ast
import itertools
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from duolog import (
    GroupDescription,
    GroupHold,
    GroupQueue,
    GroupRoute,
    GroupSubscription,
    NodeStatus,
    QueueMove,
    QueueMoves,
    QueuePlace,
    QueueSpan,
    QueueStats,
    ReplicaRoute,
    Route,
    TopicDescription,
)
from duolog._descriptions import ReplicationStatus, SlaveStatus

from duolog_server.ops.inspection import doctor
from duolog_server.ops.inspection.doctor.consumers import ON_DEMAND, diagnose_groups
from duolog_server.ops.inspection.doctor.diagnosis import PASSING, diagnose, second_look
from duolog_server.ops.inspection.doctor.findings import (
    ERROR,
    NOTE,
    SEVERITIES,
    WARNING,
    Clock,
    Finding,
    Seen,
)
from duolog_server.ops.inspection.doctor.nodes import EXPIRES_MS
from duolog_server.store.groupproblems import OLD_MS

RUNBOOKS = Path(__file__).parents[4] / "docs" / "runbooks"
NOW = 1_700_000_000_000
NAMES = ("a", "b", "c")


def node(name: str, **replication: Any) -> NodeStatus:
    """A node of group g, whose master is a."""
    part: dict[str, Any] = {"group": "g", "epoch": 4, "lease_seconds": 3, "lease_asked_seconds": 3}
    part["lease_left_ms"] = 2500
    if name == "a":
        part |= {"role": "LEADING", "sync_state_set": NAMES}
    else:
        part |= {"role": "FOLLOWING", "state": "TRANSFER"}
    return NodeStatus(
        name=name,
        role="SYNC_MASTER" if name == "a" else "SLAVE",
        version="1.0",
        listen=f"{name}:1",
        start_time_ms=NOW - 1000,
        replication=ReplicationStatus(**{**part, **replication}),
    )


def queue(queue_id: int = 0, **more: Any) -> GroupQueue:
    facts: dict[str, Any] = {"committed": 5, "min_offset": 0, "max_offset": 5}
    return GroupQueue("T", "g", queue_id, **facts | more)


HERE, THERE = QueuePlace("g", 0), QueuePlace("h", 4)
MOVE = QueueMove("T", "g-4-1", "DONE", HERE, HERE, "h", THERE, 9, NOW - 61_000, 3.0, "")
SPANS = (
    QueueSpan("T", HERE, HERE, 0, 9, None, THERE, 0, 9),
    QueueSpan("T", HERE, THERE, 9, None, HERE, None, 9, 12),
)


def moving(state: str, **more: Any) -> Seen:
    """A queue moves, or has."""
    return replace(HEALTHY, moved=QueueMoves((replace(MOVE, state=state, **more),)))


def knows_only(span: QueueSpan) -> Seen:
    """One of two groups has lost that a queue moved."""
    return replace(HEALTHY, moved=QueueMoves((MOVE,), (span,)))


def across(here: GroupQueue, *there: GroupQueue) -> Seen:
    """A group at a queue that moved."""
    group = GroupDescription("G", 1, (here, *there))
    return replace(HEALTHY, groups=(group,), moved=QueueMoves((MOVE,), SPANS))


def retiring(seen: Seen) -> Seen:
    """Its replica group is to leave."""
    groups = tuple(replace(group, retiring=True) for group in seen.route.groups)
    return replace(seen, route=replace(seen.route, groups=groups))


REPLICAS = tuple(ReplicaRoute(name, f"{name}:1", in_sync=True) for name in NAMES)
HEALTHY = Seen(
    route=Route("c", (GroupRoute("g", 4, "a", "a:1", REPLICAS),), "g", 0, b""),
    nodes=tuple(map(node, NAMES)),
    groups=(GroupDescription("G", 1, (queue(0, member_id="m"), queue(1, member_id="m"))),),
    topics=(TopicDescription("T", "g", 1, stats=(QueueStats(0, 0, 5),)),),
    now_ms=NOW,
)


def with_node(name: str, **changed: Any) -> Seen:
    """One node says something else."""
    nodes = [replace(one, **changed) if one.name == name else one for one in HEALTHY.nodes]
    return replace(HEALTHY, nodes=tuple(nodes))


def with_part(name: str, **changed: Any) -> Seen:
    """A node takes part in replication in another way."""
    (one,) = (one for one in HEALTHY.nodes if one.name == name)
    return with_node(name, replication=replace(one.replication, **changed))


def with_settings(option: str, *values: str) -> Seen:
    """The nodes tell their values of an option, as far as there are some."""
    told = itertools.zip_longest(HEALTHY.nodes, values)
    nodes = (replace(node, settings={option: value} if value else {}) for node, value in told)
    return replace(HEALTHY, nodes=tuple(nodes))


def weaker() -> Seen:
    """Node b asks for less than its group promises."""
    master, other, third = with_settings("ha.in_sync_replicas", "", "1").nodes
    part = replace(master.replication, guarantee={"in-sync-replicas": "2"})
    return replace(HEALTHY, nodes=(replace(master, replication=part), other, third))


def with_replica(name: str, **changed: Any) -> Seen:
    """The registry says something else of a node."""
    replicas = tuple(replace(one, **changed) if one.node == name else one for one in REPLICAS)
    (group,) = HEALTHY.route.groups
    route = replace(HEALTHY.route, groups=(replace(group, replicas=replicas),))
    return replace(HEALTHY, route=route)


def with_group(members: int, *queues: GroupQueue) -> Seen:
    return replace(HEALTHY, groups=(GroupDescription("G", members, queues),))


def with_subscriptions(*rows: GroupSubscription, sharing_clients: int = 0) -> Seen:
    group = GroupDescription(
        "G",
        0,
        (queue(0), queue(1)),
        clients=2,
        client_topics=("T",),
        subscriptions=rows,
        sharing_clients=sharing_clients,
    )
    return replace(HEALTHY, groups=(group,))


def with_perm(perm: int) -> Seen:
    return replace(HEALTHY, topics=(replace(HEALTHY.topics[0], perm=perm),))


def alone() -> Seen:
    """One node with a fixed role."""
    one = node("a", role="", sync_state_set=(), lease_seconds=0, lease_asked_seconds=0)
    group = GroupRoute("g", 0, "", "", (ReplicaRoute("a", "a:1"),))
    route = replace(HEALTHY.route, groups=(group,))
    return replace(HEALTHY, route=route, nodes=(replace(one, role="ASYNC_MASTER"),))


def fixed_pair(asked: str, **slave: Any) -> Seen:
    """A SYNC_MASTER a with its slave b, as one of them tells it; other facts of the slave."""
    fixed = {"role": "", "sync_state_set": (), "lease_seconds": 0, "lease_asked_seconds": 0}
    row: dict[str, Any] = {"sent_offset": 0, "received_offset": 0, "durable_offset": 0}
    row |= {"lag_bytes": 0, "lag_ms": 0, "in_sync": True} | slave
    master = node("a", **fixed, in_sync_replicas=1 + row["in_sync"])
    part = replace(master.replication, slaves=(SlaveStatus("b", "b:1", "TRANSFER", **row),))
    replicas = (ReplicaRoute("a", "a:1"), ReplicaRoute("b", "b:1"))
    route = GroupRoute("g", 4 if asked == "b" else 0, "", "", replicas)
    nodes = (replace(master, replication=part), node("b", **fixed))
    return replace(HEALTHY, route=replace(HEALTHY.route, groups=(route,)), nodes=nodes)


def without_master() -> Seen:
    seen = with_node("a", stale=True)
    return replace(seen, groups=(), topics=())


def without_leases() -> Seen:
    nodes = [
        replace(one, replication=replace(one.replication, lease_left_ms=0)) for one in HEALTHY.nodes
    ]
    return replace(HEALTHY, nodes=tuple(nodes))


def two_masters() -> Seen:
    b = node("b", role="LEADING", state="", sync_state_set=("a", "b"))
    return with_node("b", role="SYNC_MASTER", replication=b.replication)


LATE = {"lag_ms": OLD_MS + 1, "lag_messages": 3}
OTHERS_QUEUE = replace(queue(0, member_id="m"), topic="U")
RETRIED = replace(queue(0, member_id="m"), topic="%RETRY%G")
LATE_QUEUE = queue(0, member_id="m", **LATE)
BEHIND = replace(queue(4, committed=None, min_offset=9, max_offset=12, **LATE), replica_group="h")
SELECTS_A = GroupSubscription("T", "a", False, 1, "n", 1)
DEAD = TopicDescription("%DLQ%G", "g", 1, stats=(QueueStats(0, 2, 5),))
PLANTED: dict[str, tuple[str, str, Callable[[], Seen]]] = {
    "etcd-unreachable": (ERROR, "etcd", without_leases),
    "no-lease": (WARNING, "node b of g", lambda: with_part("b", lease_left_ms=0)),
    "two-masters": (ERROR, "replica group g", two_masters),
    "unreachable": (
        WARNING, "node b of g", lambda: replace(HEALTHY, unreachable=frozenset({("g", "b")})),
    ),
    "groups-unread": (
        WARNING, "consumer groups", lambda: replace(HEALTHY, groups=(), unread="Timeout: late"),
    ),
    "topic-unread": (
        WARNING, "consumer group G", lambda: with_group(1, queue(0, **LATE), OTHERS_QUEUE),
    ),
    "single-node": (NOTE, "replica group g", alone),
    "given-up": (NOTE, "replica group g", lambda: with_part("a", discarded=("epoch 3",))),
    "node-down": (WARNING, "node b of g", lambda: with_node("b", stale=True)),
    "unclean-stop": (NOTE, "node b of g", lambda: with_node("b", recovered_abnormally=True)),
    "half-messages": (
        NOTE, "node a of g", lambda: with_node("a", parts={"half_messages_waiting": 2}),
    ),
    "name-servers": (
        WARNING,
        "node b of g",
        lambda: with_node("b", parts={"name_servers": 3, "name_servers_lost": 1}),
    ),
    "settings-differ": (
        WARNING, "replica group g", lambda: with_settings("limits.topics_max", "10", "10", "20"),
    ),
    "weaker-guarantee": (WARNING, "node b of g", weaker),
    "replication-address": (
        ERROR, "node b of g", lambda: with_part("a", unreachable={"b": "b:2 (refused)"}),
    ),
    "timers-late": (
        WARNING, "node a of g", lambda: with_node("a", parts={"timers_overdue_ms": 60_001}),
    ),
    "topics-not-expiring": (
        WARNING, "node a of g", lambda: with_node("a", parts={"topics_not_expiring": 2}),
    ),
    "writes-over-quota": (
        NOTE, "node b of g", lambda: with_node("b", write_holds=("over the quota of Topic:T",)),
    ),
    "audit-unwritten": (
        WARNING, "node b of g", lambda: with_node("b", parts={"audit_unwritable": 1}),
    ),
    "logins-locked-out": (
        WARNING, "node b of g", lambda: with_node("b", parts={"logins_locked_out": 2}),
    ),
    "unsafe-settings": (
        NOTE, "node b of g", lambda: with_node("b", parts={"unsafe_settings": 1}),
    ),
    "fenced": (ERROR, "node b of g", lambda: with_node("b", fence_reason="sync failed: EIO")),
    "disk-full": (
        ERROR, "node b of g", lambda: with_node("b", flags=("DISK_FULL",), disk_used_ratio=0.95),
    ),
    "disk-filling": (WARNING, "node b of g", lambda: with_node("b", disk_used_ratio=0.86)),
    "damaged-log": (WARNING, "node b of g", lambda: with_node("b", corrupt_ranges=1)),
    "refused-records": (WARNING, "node b of g", lambda: with_node("b", refused_records=1)),
    "dispatch-behind": (
        WARNING, "node b of g", lambda: with_node("b", dispatch_behind_bytes=1 << 30),
    ),
    "no-master-known": (
        WARNING, "node b of g", lambda: with_part("b", role="STANDING", state="", reason="etcd"),
    ),
    "puts-refused": (ERROR, "node a of g", lambda: with_part("a", refusal="1 of 2 replicas")),
    "suspended": (
        ERROR, "node b of g", lambda: with_part("b", state="SUSPEND", reason="LINEAGE"),
    ),
    "not-connected": (WARNING, "node b of g", lambda: with_part("b", state="READY")),
    "behind": (WARNING, "node b of g", lambda: with_part("b", lag_ms=60_000, lag_bytes=7)),
    "lease-length": (NOTE, "node b of g", lambda: with_part("b", lease_asked_seconds=1)),
    "etcd-slow": (WARNING, "node b of g", lambda: with_part("b", renewal_ms_max=601)),
    "etcd-member-silent": (
        WARNING, "etcd", lambda: with_part("b", registry_silent={"etcd2:2379": "UNAVAILABLE"}),
    ),
    "certificate-expires": (
        WARNING,
        "node b of g",
        lambda: with_node("b", certificate="b.pem", certificate_until_ms=NOW + 86_400_000),
    ),
    "clocks-differ": (
        WARNING,
        "the cluster",
        lambda: replace(HEALTHY, clocks=(Clock("a", 100, 700), Clock("b", -900, -401))),
    ),
    "node-refuses": (
        WARNING,
        "node at b:1",
        lambda: replace(with_node("b", stale=True), refusing={"b:1": "Unauthenticated: no"}),
    ),
    "other-cluster": (
        WARNING, "node at d:1", lambda: replace(HEALTHY, strangers={"d:1": "another"}),
    ),
    "same-name": (
        ERROR,
        "node b of g",
        lambda: replace(HEALTHY, namesakes={("g", "b"): ("b:1", "d:1")}),
    ),
    "drained": (NOTE, "node b of g", lambda: with_replica("b", drained=True)),
    "not-in-sync": (WARNING, "node b of g", lambda: with_part("a", sync_state_set=("a", "c"))),
    "versions-differ": (NOTE, "the cluster", lambda: with_node("b", version="1.1")),
    "deleted-unconsumed": (
        WARNING, "consumer group G", lambda: with_group(1, queue(committed=2, min_offset=4)),
    ),
    "not-polled": (
        WARNING,
        "consumer group G",
        lambda: with_group(2, replace(LATE_QUEUE, not_polled=True), queue(1)),
    ),
    "queue-stuck": (
        WARNING, "consumer group G", lambda: with_group(2, LATE_QUEUE, queue(1)),
    ),
    "consumers-slow": (
        WARNING, "consumer group G", lambda: with_group(1, LATE_QUEUE, RETRIED),
    ),
    "consumer-stalled": (
        WARNING,
        "consumer group G",
        lambda: with_group(2, queue(0, member_id="m", lag_messages=3, stalled_ms=60_001), queue(1)),
    ),
    "subscriptions-differ": (
        WARNING,
        "consumer group G",
        lambda: with_subscriptions(GroupSubscription("T", "*", False, 1, "m", 1), SELECTS_A),
    ),
    "topics-differ": (
        WARNING, "consumer group G", lambda: with_subscriptions(SELECTS_A, sharing_clients=2),
    ),
    "more-consumers-than-queues": (
        NOTE, "consumer group G", lambda: with_subscriptions(replace(SELECTS_A, sharing=3)),
    ),
    "reads-over-quota": (
        WARNING,
        "consumer group G",
        lambda: replace(
            HEALTHY,
            groups=(
                GroupDescription("G", 1, (LATE_QUEUE,), holds=(GroupHold("T", "of User:a"),)),
            ),
        ),
    ),
    "topic-read-only": (NOTE, "topic T", lambda: with_perm(4)),
    "topic-unreadable": (WARNING, "topic T", lambda: with_perm(2)),
    "no-consumers": (WARNING, "consumer group G", lambda: with_group(0, queue(0, **LATE))),
    "move-holds": (ERROR, "queue T g/0", lambda: moving("OPENING", pause_ms=10_001.0)),
    "move-lost": (ERROR, "queue T g/0", lambda: knows_only(SPANS[0])),
    "seal-lost": (ERROR, "queue T g/0", lambda: knows_only(SPANS[1])),
    "move-slow": (WARNING, "queue T g/0", lambda: moving("PREPARING")),
    "not-crossed": (
        WARNING,
        "consumer group G",
        lambda: across(queue(0, max_offset=9, member_id="m", **LATE), BEHIND),
    ),
    "crossing-late": (
        WARNING, "consumer group G", lambda: across(queue(0, committed=9, max_offset=9), BEHIND),
    ),
    "dead-letters": (NOTE, "consumer group G", lambda: replace(HEALTHY, topics=(DEAD,))),
}  # fmt: skip


def test_a_move_that_is_over_or_has_hardly_begun_is_no_cause() -> None:
    assert diagnose(moving("ENDED", reason="aborted")) == []
    assert diagnose(moving("WAITING")) == []
    assert diagnose(moving("WITNESSING", pause_ms=10_001.0)) == []
    assert diagnose(moving("SEALING", begin_ms=NOW - 59_000, pause_ms=9_000.0)) == []


def test_a_group_at_a_seam_is_told_what_it_lacks_and_where() -> None:
    (found,) = diagnose(across(queue(0, max_offset=9, member_id="m", **LATE), BEHIND))
    assert found.what == (
        "T g/0 moved and ends at offset 9; the group has 4 messages left there, the oldest "
        f"{OLD_MS // 60_000} minutes old. Until it has consumed them, it gets none of the 3 "
        "messages behind it (h/4)"
    )
    assert found.do == "check consumer m, which reads T g/0"
    crossed = replace(BEHIND, committed=9, lag_ms=1)
    assert diagnose(across(queue(0, committed=9, max_offset=9), crossed)) == []
    assert diagnose(across(queue(0, max_offset=9, lag_messages=4, lag_ms=1))) == [], "not for long"
    asked = across(queue(0, max_offset=9, lag_messages=4, lag_ms=1))
    (found,) = diagnose_groups(asked.groups, (), ON_DEMAND, asked.moved)
    assert found.cause == "not-crossed"
    asked = across(queue(0, committed=9, max_offset=9))
    (found,) = diagnose_groups(asked.groups, (), ON_DEMAND, asked.moved)
    assert found.cause == "crossing-late"
    unread = across(queue(0, committed=None, max_offset=0))
    assert diagnose_groups(unread.groups, (), ON_DEMAND, unread.moved) == []


def test_a_replica_group_that_retires_names_whom_it_waits_for() -> None:
    seen = across(queue(0, max_offset=9, member_id="m", **LATE), BEHIND)
    found = {one.cause: one for one in diagnose(retiring(seen))}
    assert found.keys() == {"not-crossed", "retirement-waits"}
    assert found["retirement-waits"].where == "replica group g"
    assert "messages left there: G (3 messages)" in found["retirement-waits"].what
    (other,) = diagnose(seen)
    assert other.cause == "not-crossed"


def test_every_cause_is_planted_and_none_is_found_where_all_is_well() -> None:
    assert diagnose(HEALTHY) == []
    calls = [
        call
        for path in Path(*doctor.__path__).glob("*.py")
        for call in ast.walk(ast.parse(path.read_text()))
        if isinstance(call, ast.Call) and getattr(call.func, "id", "") == "Finding"
    ]
    causes = {ast.literal_eval(call.args[1]) for call in calls}
    assert causes == {*PLANTED, "no-master", "only-copy", "no-slave", "retirement-waits"}
    told = re.search(r"It knows (\d+)\s+causes", (RUNBOOKS / "README.md").read_text())
    assert told is not None
    assert int(told[1]) == len(causes)


@pytest.mark.parametrize("cause", PLANTED)
def test_a_planted_cause_is_named_and_no_other(cause: str) -> None:
    severity, where, planted = PLANTED[cause]
    (found,) = diagnose(planted())
    assert (found.severity, found.cause, found.where) == (severity, cause, where)
    assert "" not in (found.what, found.do)
    assert not found.runbook or (RUNBOOKS / f"{found.runbook}.md").exists()


@pytest.mark.parametrize(
    ("cause", "runbook"),
    [
        ("certificate-expires", "certificates"),
        ("clocks-differ", "clocks"),
        ("etcd-slow", "etcd-slow"),
        ("disk-filling", "disk-full"),
        ("no-consumers", "consumer-lag"),
    ],
)
def test_a_cause_names_the_page_of_its_alert(cause: str, runbook: str) -> None:
    _, _, planted = PLANTED[cause]
    assert [found.runbook for found in diagnose(planted())] == [runbook]


@pytest.mark.parametrize(
    ("topics", "queues", "cause", "told"),
    [
        (("T",), (queue(0, **LATE),), "consumers-slow", "Consumers connected: 2"),
        (("T",), (queue(0, **LATE), queue(1)), "queue-stuck", "its RocketMQ clients"),
        (("U",), (queue(0, **LATE),), "topic-unread", "None of its consumers reads that topic"),
        (
            ("T",),
            (replace(queue(0, **LATE), topic="%RETRY%G_T"),),
            "consumers-slow",
            "Consumers connected: 2",
        ),
    ],
)
def test_rocketmqs_clients_are_consumers_as_well(
    topics: tuple[str, ...], queues: tuple[GroupQueue, ...], cause: str, told: str
) -> None:
    group = GroupDescription("G", 0, queues, clients=2, client_topics=topics)
    (found,) = diagnose(replace(HEALTHY, groups=(group,)))
    assert found.cause == cause
    assert told in f"{found.what}; {found.do}"


def test_a_member_of_etcd_is_down_where_it_answers_no_node() -> None:
    silent: dict[str, Any] = {"registry_silent": {"etcd2:2379": "UNAVAILABLE: refused"}}
    nodes = [
        replace(node, replication=replace(node.replication, **silent)) for node in HEALTHY.nodes
    ]
    (found,) = diagnose(replace(HEALTHY, nodes=tuple(nodes)))
    assert found.what.startswith("its member etcd2:2379 does not answer any node (UNAVAILABLE: ")
    (found,) = diagnose(with_part("b", **silent))
    assert "does not answer node b (" in found.what
    assert found.do == "check the network between them"


def test_a_certificate_that_has_expired_is_an_error_and_one_that_lasts_is_none() -> None:
    def seen(left_ms: int) -> list[Finding]:
        return diagnose(with_node("b", certificate="b.pem", certificate_until_ms=NOW + left_ms))

    (found,) = seen(0)
    assert (found.severity, found.what) == (
        ERROR,
        "the certificate b.pem that it uses or trusts has expired",
    )
    (found,) = seen(2 * 3_600_000)
    assert found.what == "the certificate b.pem that it uses or trusts expires in 2 hours"
    assert seen(EXPIRES_MS) == []


@pytest.mark.parametrize(
    ("used", "parts", "severity", "told"),
    [
        (0.86, {}, WARNING, "before their time"),
        (0.76, {}, NOTE, "as soon as they expire"),
        (0.60, {"disk_clean_percent": 40, "disk_force_percent": 50}, WARNING, "before their time"),
        (0.45, {"disk_clean_percent": 40, "disk_force_percent": 50}, NOTE, "as they expire"),
        (0.90, {"disk_clean_percent": 92, "disk_force_percent": 95}, "", ""),
        (0.86, {"disk_clean_percent": 75, "disk_force_percent": 0}, WARNING, "puts are refused"),
    ],
)
def test_a_disk_is_judged_by_the_limits_of_its_node(
    used: float, parts: dict[str, int], severity: str, told: str
) -> None:
    found = diagnose(with_node("b", disk_used_ratio=used, parts=parts))
    assert [one.severity for one in found] == ([severity] if severity else [])
    assert all(told in one.what for one in found)


def test_clocks_leases_and_switches_differ_only_where_that_is_certain() -> None:
    """What a node says was so at some moment between question and answer."""

    def told(*clocks: Clock) -> list[str]:
        return [found.what for found in diagnose(replace(HEALTHY, clocks=clocks))]

    assert told(Clock("a", 0, 3000), Clock("b", -3000, 0)) == []
    assert told(Clock("a", 100, 700), Clock("b", -900, -400)) == []
    assert told(Clock("c", 0, 1), Clock("a", 5000, 5100), Clock("b", 90, 100)) == [
        "the clock of node a is 5.0 s or more ahead of that of node c"
    ]
    long = {"lease_seconds": 10, "lease_asked_seconds": 10}
    assert diagnose(with_part("b", **long, renewal_ms_max=2000)) == []
    assert [one.cause for one in diagnose(with_part("b", **long, renewal_ms_max=2001))] == [
        "etcd-slow"
    ]
    passing = diagnose(with_part("b", state="READY"))
    lasting = diagnose(with_node("b", disk_used_ratio=0.86))
    assert second_look(passing, passing) == passing
    assert second_look(lasting, passing) == []
    assert second_look(passing, lasting) == lasting
    assert {*PLANTED, "no-master", "only-copy"} > PASSING


def test_a_group_without_a_master_names_etcd_or_the_node_to_start_first() -> None:
    first, second = diagnose(without_master())
    assert (first.severity, first.cause, first.do) == (ERROR, "no-master", "start a")
    assert (second.cause, second.where) == ("node-down", "node a of g")
    standing: dict[str, Any] = {"role": "STANDING", "state": "", "sync_state_set": ()}
    standing["lease_left_ms"] = 0
    nodes = tuple(
        replace(
            one,
            role="SLAVE",
            stale=one.name == "c",
            replication=replace(one.replication, **standing),
        )
        for one in HEALTHY.nodes
    )
    found = diagnose(replace(HEALTHY, nodes=nodes, groups=(), topics=()))
    assert [(one.cause, one.where) for one in found] == [
        ("etcd-unreachable", "etcd"),
        ("no-master", "replica group g"),
        ("no-master-known", "node a of g"),
        ("no-master-known", "node b of g"),
        ("node-down", "node c of g"),
    ]
    assert found[1].do == "bring back etcd, and start c"
    alone = [replace(one, stale=False) for one in nodes]
    found = diagnose(replace(HEALTHY, nodes=tuple(alone), groups=(), topics=()))
    assert found[1].do == "bring back etcd; its nodes need no restart"
    a, b, _ = HEALTHY.nodes
    (down,) = diagnose(replace(HEALTHY, nodes=(a, b)))
    assert (down.cause, down.where) == ("node-down", "node c of g")


def test_what_is_wrong_with_a_master_is_told_and_the_worst_comes_first() -> None:
    found = diagnose(with_part("a", sync_state_set=("a",)))
    assert [(one.severity, one.cause) for one in found] == [
        (ERROR, "only-copy"),
        (WARNING, "not-in-sync"),
        (WARNING, "not-in-sync"),
    ]
    (older,) = diagnose(with_part("a", sync_state_set=("a", "c"), barred=("b",)))
    assert (older.severity, older.cause, older.where) == (ERROR, "not-in-sync", "node b of g")
    (damaged,) = diagnose(with_node("a", corrupt_ranges=2))
    assert (damaged.severity, damaged.cause) == (ERROR, "damaged-log")
    late = node("b", role="LEADING", state="", epoch=3, sync_state_set=NAMES)
    assert diagnose(with_node("b", role="SYNC_MASTER", replication=late.replication)) == []
    seen = replace(with_node("b", fence_reason="EIO", recovered_abnormally=True), topics=(DEAD,))
    severities = [SEVERITIES.index(found.severity) for found in diagnose(seen)]
    assert severities == sorted(severities)
    assert len(severities) == 3
    found = diagnose(with_part("a", refusal="its lease expired", lease_left_ms=0))
    assert [one.cause for one in found] == ["no-lease"]


@pytest.mark.parametrize("asked", ["a", "b"])
def test_a_pair_with_fixed_roles_is_well_whoever_is_asked(asked: str) -> None:
    assert diagnose(fixed_pair(asked)) == []


def test_fixed_masters_and_drained_nodes_are_told_as_such() -> None:
    found = [one.cause for one in diagnose(fixed_pair("a", in_sync=False))]
    assert found == ["no-slave", "not-in-sync"]
    seen = fixed_pair("a")
    master, other = seen.nodes
    other = replace(
        other, role="SYNC_MASTER", replication=replace(master.replication, epoch=9, slaves=())
    )
    assert "two-masters" in [one.cause for one in diagnose(replace(seen, nodes=(master, other)))]
    unreached = diagnose(replace(HEALTHY, unreachable=frozenset({("g", "a")})))
    assert [one.cause for one in unreached] == ["unreachable"]
    seen = with_replica("b", drained=True)
    nodes = [replace(one, stale=one.name == "b") for one in seen.nodes]
    (alone,) = diagnose(replace(seen, nodes=tuple(nodes)))
    assert (alone.severity, alone.cause) == (NOTE, "drained")
    assert "does not answer at b:1" in alone.what
    (alone,) = diagnose(replace(HEALTHY, silent=("d:1",)))
    assert (alone.cause, alone.where) == ("node-down", "node at d:1")


def test_groups_with_the_oldest_messages_come_first() -> None:
    """The console shows the first hundred findings."""
    ages = {"a": OLD_MS + 5, "b": OLD_MS + 9, "c": OLD_MS + 7}
    groups = tuple(
        GroupDescription(name, 0, (queue(0, lag_ms=age, lag_messages=1),))
        for name, age in ages.items()
    )
    found = diagnose(replace(HEALTHY, groups=groups))
    assert [one.where for one in found] == [f"consumer group {name}" for name in "bca"]
