"""`duolog cluster`: state of the nodes."""

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
) -> None:
    """Nodes, roles and offsets."""
    from duolog import Client

    async def ask() -> Any:
        async with Client(endpoints, timeout=timeout) as client:
            return await client.admin.cluster_status()

    reply = run(ask())
    rows = [
        {
            "cluster": reply.cluster,
            "node": node.name,
            "role": node.role,
            "max_offset": node.max_offset,
            "confirm_offset": node.confirm_offset,
            "flushed_offset": node.flushed_offset,
            "behind_bytes": node.max_offset - node.flushed_offset,
            "disk_percent": round(100 * node.disk_used_ratio, 1),
            "flags": " ".join(node.flags),
        }
        for node in reply.nodes
    ]
    print_rows(rows, list(rows[0]) if rows else ["node"], as_json)
