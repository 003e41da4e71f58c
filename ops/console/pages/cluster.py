"""The cluster's page: masters, replicas, findings; nodes take over, are drained, come back."""

from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from duolog import BadRequest, GroupRoute, NodeStatus, NoPermission, SlaveStatus, Unavailable
from duolog._admin import Admin
from duolog._background import together
from duolog._client import runtime_of
from duolog._router import Router

from duolog_server.ops.console.pages.home import home
from duolog_server.ops.console.view.addresses import CLUSTER, DOCTOR, address
from duolog_server.ops.console.view.charts import Chart
from duolog_server.ops.console.view.formatting import (
    command,
    counted,
    duration,
    latency,
    listed,
    percent,
    si,
    size,
)
from duolog_server.ops.console.view.questions import Field, Question, confirmed, whole_number
from duolog_server.ops.console.view.rates import Flow
from duolog_server.ops.console.view.timeline import TimeLine, time_line
from duolog_server.ops.console.view.visits import Action, Done, Shown, Visit
from duolog_server.ops.inspection.doctor.diagnosis import diagnose
from duolog_server.ops.inspection.doctor.findings import (
    ERROR,
    NOTE,
    Finding,
    Seen,
    masters_of,
    replica_of,
)
from duolog_server.ops.inspection.masterships import Led, led
from duolog_server.ops.inspection.moves import moved_or_none
from duolog_server.ops.inspection.survey import examine, look_at_nodes

LOOK_SECONDS = 10.0
EPOCHS = 8  # that are shown
LINES = 4  # of a chart: slaves, nodes
# Lines of latencies: of what, and which share of it took no longer.
LATENCIES = {
    "p50": ("append", 0.5),
    "p99": ("append", 0.99),
    "wait p99": ("append_wait", 0.99),
    "fsync p99": ("fsync", 0.99),
}
ORDER_SECONDS = 10.0
EPOCH_MAX = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class NodeRow:
    """A node as the page shows it. lag_bytes: None where it is not known. why: what is wrong."""

    node: NodeStatus
    reached: bool
    in_sync: bool
    drained: bool
    lag_bytes: int | None
    lag_ms: int
    why: str

    @property
    def role(self) -> str:
        """Its role; of one that is away, what it was."""
        role = "master" if self.node.is_master else "slave"
        return role if self.reached else f"was {role}" if not self.node.is_down else "–"

    @property
    def state(self) -> str:
        """How it is, in a word or two."""
        if self.node.is_down:
            return "Down"
        if not self.reached:
            return "Unreachable"
        if self.drained:
            return "Drained"
        if self.why:
            return "Problem"
        return "In sync" if self.in_sync else "Catching up"


@dataclass(frozen=True, slots=True)
class GroupBlock:
    """A replica group. masterships: those of the line, the newest first."""

    route: GroupRoute
    master: NodeStatus | None
    nodes: Sequence[NodeRow]
    flows: dict[str, Flow]
    charts: Sequence[Chart]
    masterships: Sequence[Led]
    line: TimeLine


async def cluster(visit: Visit) -> Shown:
    """The cluster as it is now; for users who may not see it, a list of what they may see.

    Their page looks again and again, too: the menu asks what they may see, as a call that is denied
    each time would fill the audit log.
    """
    if not visit.rights.shows(address(DOCTOR)):
        return await home(visit)
    try:
        async with together() as tasks:
            nodes = tasks.create_task(look_at_nodes(visit.client, visit.endpoints))
            moved = tasks.create_task(moved_or_none(visit.client))
    except NoPermission:
        return await home(visit)
    seen = replace(nodes.result(), moved=moved.result())
    findings = diagnose(seen)
    blocks = [block_of(visit, seen, route) for route in seen.route.groups]
    facts = {
        "sentence": sentence(seen, findings),
        "alarm": any(one.severity == ERROR for one in findings),
        "findings": [one for one in findings if one.severity != NOTE],
        "groups": blocks,
        "moves": [one for one in seen.moved.moves if not one.is_over],
    }
    return Shown("cluster.html", "Cluster", facts, "duolog cluster status")


async def doctor(visit: Visit) -> Shown:
    """Persistent findings about nodes and consumer groups."""
    findings = await examine(visit.client, visit.endpoints, LOOK_SECONDS)
    worst = [one for one in findings if one.severity != NOTE]
    told = f"{counted(len(worst), 'thing')} to check." if worst else "No problems found."
    facts = {"sentence": told, "alarm": any(one.severity == ERROR for one in findings)}
    return Shown("doctor.html", "Doctor", {**facts, "findings": findings}, "duolog doctor")


def sentence(seen: Seen, findings: Sequence[Finding]) -> str:
    """How the cluster is, in words."""
    errors = [one for one in findings if one.severity == ERROR]
    if errors:
        first = f"{errors[0].where}: {errors[0].what}."
        more = f" And {len(errors) - 1} more." if len(errors) > 1 else ""
        return first[0].upper() + first[1:] + more
    return " ".join((_replicas(seen), *_leaders(seen.route.groups), *_away(seen)))


def _replicas(seen: Seen) -> str:
    groups = seen.route.groups
    members = [(group.group, replica) for group in groups for replica in group.replicas]
    # One that is away may be in the set until a put waits for it, or because it holds messages.
    present = {(node.replication.group, node.name) for node in seen.nodes if _reached(seen, node)}
    in_sync = sum(one.in_sync and (group, one.node) in present for group, one in members)
    if not members:
        return f"{counted(len(seen.nodes), 'node')} with fixed roles."
    of = f" of {counted(len(groups), 'replica group')}" if len(groups) > 1 else ""
    if in_sync == len(members) and not seen.silent:
        return f"All {counted(in_sync, 'replica')}{of} in sync." if in_sync > 1 else "One replica."
    if in_sync == len(members):  # those that are silent may be members, too
        return f"{counted(in_sync, 'replica')}{of} in sync."
    return f"{in_sync} of {counted(len(members), 'replica')}{of} in sync."


def _reached(seen: Seen, node: NodeStatus) -> bool:
    """Whether a node answers."""
    return (node.replication.group, node.name) not in seen.unreachable and not node.stale


def _away(seen: Seen) -> Iterator[str]:
    down = [node.name for node in seen.nodes if node.is_down]
    if down:
        yield f"{listed(down)} {'are' if len(down) > 1 else 'is'} down."
    names = [one.name for one in seen.nodes if not (one.is_down or _reached(seen, one))]
    silent = [*names, *seen.silent]
    if silent:
        yield f"{listed(silent)} {'do' if len(silent) > 1 else 'does'} not answer."


def _leaders(groups: Iterable[GroupRoute]) -> Iterator[str]:
    elected = [group for group in groups if group.epoch and group.master]
    if len(elected) == 1:
        yield f"{elected[0].master} leads epoch {elected[0].epoch}."
    elif elected:
        yield f"{listed([f'{one.master} leads {one.group}' for one in elected])}."


def block_of(visit: Visit, seen: Seen, route: GroupRoute) -> GroupBlock:
    """What the page shows of a replica group."""
    own = [node for node in seen.nodes if node.replication.group == route.group]
    master = next(iter(masters_of(seen, route.group)), None)
    told = {slave.name: slave for slave in master.replication.slaves} if master else {}
    rows = [_row(seen, route, node, told.get(node.name)) for node in own]
    masterships = led(master.replication.masterships)[-EPOCHS:] if master else []
    rows.sort(key=lambda row: row.node.name)
    flows = dict(_flows(visit, route.group, master))
    return GroupBlock(
        route,
        master,
        rows,
        flows,
        list(_charts(visit, flows, rows, masterships)) + list(_node_charts(visit, master, own)),
        masterships[::-1],
        time_line(masterships),
    )


def _row(seen: Seen, route: GroupRoute, node: NodeStatus, told: SlaveStatus | None) -> NodeRow:
    replica = replica_of(seen.route, node)
    replication = node.replication
    reached = _reached(seen, node)
    in_sync = replica.in_sync if replica is not None else bool(told and told.in_sync)
    lag: int | None = None
    lag_ms = 0
    if told is not None:
        lag, lag_ms = told.lag_bytes, told.lag_ms
    elif not node.is_master and reached:
        lag, lag_ms = replication.lag_bytes, replication.lag_ms
    why = node.fence_reason or replication.refusal or replication.reason
    if told is not None and told.reason:
        why = why or told.reason
    return NodeRow(
        node,
        reached,
        (in_sync and not node.is_down) or (node.is_master and not node.stale),
        replica is not None and replica.drained,
        lag,
        lag_ms,
        why or ", ".join(node.flags),
    )


def _flows(visit: Visit, group: str, master: NodeStatus | None) -> Iterator[tuple[str, Flow]]:
    """Rates of the master; their lines continue from one master to the next."""
    for name in ("messages_in", "messages_out", "bytes_in", "bytes_out"):
        key, now = f"{group}/{name}", visit.now
        if master is None:
            yield name, visit.rates.noted(key, now)
        else:
            process = f"{master.name}/{master.start_time_ms}"
            yield name, visit.rates.note(key, getattr(master, name), now, process)


def _charts(
    visit: Visit, flows: Mapping[str, Flow], rows: Sequence[NodeRow], masterships: Sequence[Led]
) -> Iterator[Chart]:
    """The last minutes of a replica group, with the times in which it had no master."""
    axes = visit.axes
    gaps = (
        axes.band(
            one.begin_ms - one.unled_ms,
            one.begin_ms,
            f"Without a master: {one.cause or 'cause not known'}",
        )
        for one in masterships
        if one.unled_ms
    )
    bands = [band for band in gaps if band is not None]
    for title, told, least, kind in (
        ("Messages, a second", si, 5, "messages"),
        ("Bytes, a second", size, 1000, "bytes"),
    ):
        lines = {"in": flows[f"{kind}_in"], "out": flows[f"{kind}_out"]}
        yield axes.chart(title, lines, told, least, bands)
    slaves = [row for row in rows if row.lag_bytes is not None][:LINES]
    lags = {}
    for row in slaves:
        key = f"{row.node.replication.group}/{row.node.name}/lag_ms"
        lags[row.node.name] = visit.rates.gauge(key, row.lag_ms, visit.now)
    if lags:
        yield axes.chart("Replication lag", lags, duration, 1000, bands)


def _node_charts(
    visit: Visit, master: NodeStatus | None, nodes: Sequence[NodeStatus]
) -> Iterator[Chart]:
    """How long the master's sends and syncs take, and how full the disks are."""
    axes, now, rates = visit.axes, visit.now, visit.rates
    if master is not None and master.durations:
        process = f"{master.name}/{master.start_time_ms}"
        spreads, lines = {one.name: one for one in master.durations}, {}
        for line, (name, share) in LATENCIES.items():
            key = f"{master.replication.group}/{line}"
            lines[line] = rates.quantile(key, share, spreads[name], now, process)
        yield axes.chart("Append latency", lines, latency, 0.001)
    told = sorted((node for node in nodes if node.disk_used_ratio), key=lambda node: node.name)
    disks = {}
    for node in told[:LINES]:
        key = f"{node.replication.group}/{node.name}/disk"
        disks[node.name] = rates.gauge(key, node.disk_used_ratio, now)
    if disks:
        yield axes.chart("Disk used", disks, percent, 1.0)


async def _group_of(visit: Visit) -> GroupRoute:
    """The replica group of the node. Raises BadRequest for an unknown node."""
    wanted, node = visit.path["group"], visit.path["node"]
    route = await visit.client.admin.route()
    for group in route.groups:
        if group.group == wanted and any(replica.node == node for replica in group.replicas):
            return group
    raise BadRequest(f"replica group {wanted} has no elected node {node}")


@asynccontextmanager
async def _master(visit: Visit, group: GroupRoute) -> AsyncIterator[Admin]:
    """Calls of a group's master. Raises Unavailable where it has none."""
    if not group.master_endpoint:
        raise Unavailable(f"replica group {group.group} has no master now")
    router = Router((group.master_endpoint,), runtime_of(visit.client))
    try:
        yield Admin(router, ORDER_SECONDS)
    finally:
        await router.close()


async def _ask_switch(visit: Visit) -> Shown:
    group, node = await _group_of(visit), visit.path["node"]
    if node == group.master:
        raise BadRequest(f"{node} is the master of {group.group} already")
    leads = f"{group.master} leads epoch {group.epoch}. " if group.master else ""
    return Question(
        f"Make {node} the master",
        f"{leads}{node} takes over; sends pause for some milliseconds, and no message is lost.",
        "Switch",
        (Field("epoch", "", str(group.epoch), hidden=True),),
        type_to_confirm=node,
        command=command("cluster", "failover", node),
    ).shown()


async def _switch(visit: Visit, form: Mapping[str, str]) -> Done:
    group, node = await _group_of(visit), visit.path["node"]
    confirmed(form, node)
    epoch = whole_number(form, "epoch", 1, EPOCH_MAX)  # that the form was shown of
    async with _master(visit, group) as admin:
        await admin.failover(node, epoch=epoch)
    return Done(f"{node} is taking over.", CLUSTER)


async def _ask_drain(visit: Visit) -> Shown:
    group, node = await _group_of(visit), visit.path["node"]
    left = [one.node for one in group.replicas if one.in_sync and one.node != node]
    hands = " It leads, and hands over first." if node == group.master else ""
    alone = " No other node is in sync: messages would have a single copy." if len(left) < 2 else ""
    return Question(
        f"Drain {node}",
        f"{node} can no longer be elected, and no send waits for it.{hands}{alone}",
        "Drain",
        type_to_confirm=node,
        danger=bool(alone),
        command=command("cluster", "drain", node),
    ).shown()


async def _drain(visit: Visit, form: Mapping[str, str]) -> Done:
    group, node = await _group_of(visit), visit.path["node"]
    confirmed(form, node)
    async with _master(visit, group) as admin:
        await admin.drain(node)
    return Done(f"{node} is drained.", CLUSTER)


async def _ask_forget(visit: Visit) -> Shown:
    node = visit.path["node"]
    await _group_of(visit)
    return Question(
        f"Forget {node}",
        f"{node} is no longer shown as down. Its directory stays as it is; if it starts again, it "
        "is a node of the group again.",
        "Forget",
        type_to_confirm=node,
        command=command("cluster", "forget", node),
    ).shown()


async def _forget(visit: Visit, form: Mapping[str, str]) -> Done:
    group, node = await _group_of(visit), visit.path["node"]
    confirmed(form, node)
    async with _master(visit, group) as admin:
        await admin.forget(node)
    return Done(f"{node} is forgotten.", CLUSTER)


async def _ask_undrain(visit: Visit) -> Shown:
    node = visit.path["node"]
    await _group_of(visit)
    return Question(
        f"Undrain {node}",
        f"{node} can be elected again, and sends wait for it once it is in sync.",
        "Undrain",
        command=command("cluster", "undrain", node),
    ).shown()


async def _undrain(visit: Visit, form: Mapping[str, str]) -> Done:
    group, node = await _group_of(visit), visit.path["node"]
    async with _master(visit, group) as admin:
        await admin.drain(node, undo=True)
    return Done(f"{node} is no longer drained.", CLUSTER)


SWITCH, DRAIN, FORGET, UNDRAIN = (
    Action(_ask_switch, _switch),
    Action(_ask_drain, _drain),
    Action(_ask_forget, _forget),
    Action(_ask_undrain, _undrain),
)
