"""`duolog cluster`: state of the nodes, planned switches, nodes taken out for maintenance; queues
that even out the load (rebalance.py); replica groups that leave (retirement.py)."""

import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from duolog_server.ops.cli import rebalance, retirement
from duolog_server.ops.cli.access import asked, calls
from duolog_server.ops.cli.output import (
    LONG_MAX,
    fail,
    print_rows,
    told,
    wants_json,
)
from duolog_server.ops.inspection.durability import durability
from duolog_server.ops.inspection.masterships import led
from duolog_server.ops.inspection.times import iso

if TYPE_CHECKING:
    from duolog import ClusterStatus, Mastership, NodeStatus, RocketmqSlaveStatus

    from duolog_server.ops.inspection.masterships import Led

app = typer.Typer(no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Show the nodes, switch the master, drain or forget a node."""


@calls(app)
def status(
    watch: Annotated[bool, typer.Option("--watch", help="Repeat until Ctrl-C.")] = False,
    interval: Annotated[float, typer.Option(help="Seconds between two polls.", min=0.1)] = 1.0,
    count: Annotated[
        int, typer.Option(help="Number of polls with --watch; 0: no limit.", min=0)
    ] = 0,
) -> None:
    """Show nodes, roles, offsets, lag and state. Exit status 2: a node is DOWN."""
    polls = 0
    while True:
        polls += 1
        try:
            found = _polled()
            show(found, clear=watch)
            if not watch and any(node.is_down for node in found.nodes):
                raise typer.Exit(2)
        except typer.Exit:
            if not watch:
                raise  # with --watch, the error was printed, and the next poll may succeed
        if not watch or polls == count:
            return
        try:
            time.sleep(interval)
        except KeyboardInterrupt:
            return


def _polled() -> "ClusterStatus":
    return asked(lambda client: client.admin.cluster_status())


@calls(app)
def epochs() -> None:
    """Show who led each replica group, since when, how long and why, and gaps without one."""
    rows = [
        _led_row(node.replication.group, one, told)
        for node in _polled().nodes
        if node.is_master and not node.stale
        for one, told in zip(
            node.replication.masterships, led(node.replication.masterships), strict=True
        )
    ]
    columns = ["group", "epoch", "master", "since", "lasted_ms", "cause", "unled_ms"]
    print_rows(rows, columns)


def _led_row(group: str, one: "Mastership", told: "Led") -> dict[str, object]:
    """A mastership; its cause as its name for programs, in words for people."""
    return {
        "group": group,
        "epoch": told.epoch,
        "master": told.master,
        "since": told.begin_ms if wants_json() else iso(told.begin_ms),
        "lasted_ms": told.lasted_ms,
        "cause": one.cause if wants_json() else told.cause,
        "unled_ms": told.unled_ms,
    }


def show(found: "ClusterStatus", clear: bool) -> None:
    """Print the nodes; on a terminal, --watch overwrites the previous output."""
    rows = [row for node in found.nodes for row in rows_of(found.cluster, node)]
    if clear and sys.stdout.isatty() and not wants_json():
        sys.stdout.write("\x1b[H\x1b[2J")
    print_rows(rows, list(rows[0]) if rows else ["node"])


def rows_of(cluster: str, node: "NodeStatus") -> list[dict[str, object]]:
    """One node, and the brokers of RocketMQ that copy its log."""
    row = row_of(cluster, node)
    return [row, *(_copy_row(row, one) for one in node.replication.rocketmq_slaves)]


def _copy_row(master: dict[str, object], copy: "RocketmqSlaveStatus") -> dict[str, object]:
    """A broker of RocketMQ as a row beside its master's."""
    return {
        **dict.fromkeys(master),
        "cluster": master["cluster"],
        "group": master["group"],
        "node": copy.address,
        "role": "ROCKETMQ_SLAVE",
        "endpoint": "",
        "max_offset": copy.received_offset,
        "lag_bytes": copy.lag_bytes,
        "lag_seconds": round(copy.lag_ms / 1000, 3),
        "in_sync": "",
        "durability": "",
        "state": copy.state,
        "reason": copy.reason or f"since {iso(copy.since_ms)}",
    }


def row_of(cluster: str, node: "NodeStatus") -> dict[str, object]:
    """One node as a row."""
    part = node.replication
    in_sync = " ".join(part.sync_state_set)
    if not in_sync and node.is_master:
        in_sync = str(part.in_sync_replicas or "")
    own = not node.stale  # otherwise the zeros are unknown values
    return {
        "cluster": cluster,
        "group": part.group,
        "node": node.name,
        "role": node.role,
        "endpoint": node.listen,
        "epoch": part.epoch if own else part.epoch or None,
        "max_offset": node.max_offset if own else node.max_offset or None,
        "confirm_offset": node.confirm_offset if own else None,
        "flushed_offset": node.flushed_offset if own else None,
        "lag_bytes": part.lag_bytes if own else None,
        "lag_seconds": round(part.lag_ms / 1000, 3) if own else None,
        "in_sync": in_sync,
        "durability": durability(node) if own else "",
        "state": " ".join([*node.flags, part.state or ("SERVING" if own else "UNKNOWN")]),
        "reason": part.reason or part.refusal or node.fence_reason or _since(node),
    }


def _since(node: "NodeStatus") -> str:
    return f"since {iso(node.down_since_ms)}" if node.down_since_ms else ""


@calls(app)
def failover(
    node: Annotated[str, typer.Argument(help="The next master; default: any in-sync slave.")] = "",
) -> None:
    """Make another node the master (planned switch): puts pause for some ms, no message is lost."""
    asked(lambda client: client.admin.failover(node))
    told({"taking_over": node or None}, f"{node or 'another node'} is taking over")


@calls(app)
def drain(
    node: Annotated[str, typer.Argument(help="Name of the node.")],
) -> None:
    """Exclude a node: a master hands over, the node is not elected, and no put waits for it."""
    asked(lambda client: client.admin.drain(node), {"Busy": "duolog cluster status"})
    told({"drained": node}, f"{node} is drained")


@calls(app)
def undrain(
    node: Annotated[str, typer.Argument(help="Name of the node.")],
) -> None:
    """Include a drained node again: it can be elected, and puts wait for it."""
    asked(lambda client: client.admin.drain(node, undo=True))
    told({"undrained": node}, f"{node} is no longer drained")


@calls(app)
def forget(
    node: Annotated[str, typer.Argument(help="Name of the node.")],
) -> None:
    """Remove a node that is down for good: it is no longer shown as DOWN. It must not be running.

    Its directory stays as it is; if it starts again, it is a node of the group again.
    """
    asked(lambda client: client.admin.forget(node))
    told({"forgotten": node}, f"{node} is forgotten")


@calls(app, "set")
def set_guarantee(
    setting: Annotated[
        str, typer.Argument(help="in-sync-replicas, flush-disk-type or ack.", show_default=False)
    ],
    value: Annotated[
        str,
        typer.Argument(
            help="A number; SYNC_FLUSH or ASYNC_FLUSH; durable or received.", show_default=False
        ),
    ],
) -> None:
    """Set what puts of an elected group are promised, whichever node leads.

    A node whose own settings ask for less goes by the group's; one whose settings ask for more
    keeps them while it leads.
    """

    guarantee = asked(lambda client: client.admin.set_guarantee(setting, value))
    rows = [{"setting": name, "value": now} for name, now in guarantee.items()]
    print_rows(rows, ["setting", "value"])


@calls(app, timeout=15.0)
def elect(
    epoch: Annotated[
        int,
        typer.Option(min=0, max=LONG_MAX, help="The last epoch, as shown by `cluster status`."),
    ],
    unclean: Annotated[
        bool, typer.Option("--unclean", help="Accept the loss of records that this node lacks.")
    ] = False,
) -> None:
    """Make the node at the endpoint the master of a group that lost its in-sync replicas.

    The last resort: acknowledged messages that this node lacks are lost. The group's state records
    what was given up.
    """
    if not unclean:
        fail(
            "this may lose acknowledged messages: pass --unclean to do it anyway",
            "duolog cluster status",
            2,
        )
    asked(lambda client: client.admin.elect_unclean(epoch))
    lost = f"records that only other nodes held after epoch {epoch} are lost"
    told({"elected_after": epoch}, f"elected; {lost}")


rebalance.add_to(app)
retirement.add_to(app)
