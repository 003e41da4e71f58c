"""`duolog doctor`: what is wrong with the cluster, and what to do about it."""

import asyncio
import dataclasses
import time
from typing import TYPE_CHECKING, Annotated

import typer

from node.cli.output import (
    DEFAULT_ENDPOINTS,
    Endpoints,
    Json,
    Timeout,
    print_json,
    run,
    show_findings,
)

if TYPE_CHECKING:
    from duolog import NodeStatus

    from node.cli.diagnosis import Seen

app = typer.Typer(add_completion=False)

NODE_SECONDS = 3.0  # that one node has to answer
WRONG = 2  # exit status


@app.command()
def doctor(
    endpoints: Annotated[str, Endpoints] = DEFAULT_ENDPOINTS,
    timeout: Annotated[float, Timeout] = 10.0,
    as_json: Annotated[bool, Json] = False,
) -> None:
    """Say what is wrong with a cluster, and what to do.

    Asks every node, and changes nothing. Exit status 0: nothing is wrong; 1: no node answers; 2:
    there are errors or warnings.
    """
    from node.cli.diagnosis import NOTE, diagnose

    findings = diagnose(run(look(endpoints, timeout)))
    if as_json:
        print_json([dataclasses.asdict(finding) for finding in findings])
    else:
        show_findings(findings)
    if any(finding.severity != NOTE for finding in findings):
        raise typer.Exit(WRONG)


async def look(endpoints: str, timeout: float) -> "Seen":
    """Ask all nodes of the cluster."""
    from duolog import Client, DuologError

    from node.cli.diagnosis import Seen

    async with Client(endpoints, timeout=timeout) as client:
        status, route = await client.admin.cluster_status(), await client.admin.route()
        nodes = await asyncio.gather(*(in_own_words(node) for node in status.nodes))
        try:
            groups, topics = await client.admin.groups(), await client.admin.topics(system=True)
        except DuologError:  # without a master, which is a finding of its own
            return Seen(route, tuple(nodes), None, None, time.time_ns() // 1_000_000)
        return Seen(route, tuple(nodes), tuple(groups), tuple(topics), time.time_ns() // 1_000_000)


async def in_own_words(node: "NodeStatus") -> "NodeStatus":
    """What a node says of itself, instead of what its master does."""
    from duolog import Client, DuologError

    if not node.listen:
        return dataclasses.replace(node, stale=True)
    try:
        async with Client(node.listen, timeout=NODE_SECONDS) as client:
            found = await client.admin.node_status()
    except DuologError:
        return dataclasses.replace(node, stale=True)
    same = (found.name, found.replication.group) == (node.name, node.replication.group)
    return found if same else dataclasses.replace(node, stale=True)
