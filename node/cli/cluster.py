"""`duolog cluster`: state of the nodes."""

import sys
import time
from typing import Annotated, Any

import typer

from node.cli.output import DEFAULT_ENDPOINTS, Endpoints, Json, Timeout, print_rows, run

app = typer.Typer(no_args_is_help=True)


@app.callback()
def _group() -> None:
    """State of the cluster."""


@app.command()
def status(
    endpoints: Annotated[str, Endpoints] = DEFAULT_ENDPOINTS,
    timeout: Annotated[float, Timeout] = 10.0,
    as_json: Annotated[bool, Json] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Again and again, until Ctrl-C.")] = False,
    interval: Annotated[float, typer.Option(help="Seconds between two looks.", min=0.1)] = 1.0,
    count: Annotated[int, typer.Option(help="Looks of --watch, 0 for no end.", min=0)] = 0,
) -> None:
    """Nodes, roles, offsets, lag and state."""
    looks = 0
    while True:
        looks += 1
        try:
            show(run(ask(endpoints, timeout)), as_json, clear=watch)
        except typer.Exit:
            if not watch:
                raise  # else it is told already, and the next look may find somebody
        if not watch or looks == count:
            return
        try:
            time.sleep(interval)
        except KeyboardInterrupt:
            return


async def ask(endpoints: str, timeout: float) -> Any:
    """One look."""
    from duolog import Client

    async with Client(endpoints, timeout=timeout) as client:
        return await client.admin.cluster_status()


def show(reply: Any, as_json: bool, clear: bool) -> None:
    """Print the nodes; on a terminal, --watch prints over its last look."""
    rows = [row_of(reply.cluster, node) for node in reply.nodes]
    if clear and sys.stdout.isatty() and not as_json:
        sys.stdout.write("\x1b[H\x1b[2J")
    print_rows(rows, list(rows[0]) if rows else ["node"], as_json)


def row_of(cluster: str, node: Any) -> dict[str, Any]:
    """One node as a row."""
    part = node.replication
    in_sync = ""
    if node.role.endswith("MASTER"):
        in_sync = str(part.in_sync_replicas or "")
    return {
        "cluster": cluster,
        "group": part.group,
        "node": node.name,
        "role": node.role,
        "endpoint": node.listen,
        "epoch": part.epoch,
        "max_offset": node.max_offset,
        "confirm_offset": node.confirm_offset,
        "flushed_offset": node.flushed_offset,
        "lag_bytes": part.lag_bytes,
        "lag_seconds": round(part.lag_ms / 1000, 3),
        "in_sync": in_sync,
        "state": " ".join([*node.flags, part.state or "SERVING"]),
        "reason": part.reason or node.fence_reason,
    }
