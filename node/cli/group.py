"""`duolog group`: list, show, set, reset, delete."""

from typing import Annotated, Any

import typer

from node.cli.output import (
    DEFAULT_ENDPOINTS,
    Endpoints,
    Json,
    Timeout,
    Yes,
    fail,
    print_facts,
    print_rows,
    run,
    say,
    when,
)

app = typer.Typer(no_args_is_help=True)


def _client(endpoints: str, timeout: float) -> Any:
    from duolog import Client

    return Client(endpoints, timeout=timeout)


@app.command("list")
def list_(
    endpoints: Annotated[str, Endpoints] = DEFAULT_ENDPOINTS,
    timeout: Annotated[float, Timeout] = 10.0,
    as_json: Annotated[bool, Json] = False,
) -> None:
    """All groups, with their lag in messages and seconds."""

    async def ask() -> Any:
        async with _client(endpoints, timeout) as client:
            return await client.admin.groups()

    rows = [
        {
            "group": group.group,
            "members": group.members,
            "topics": " ".join(sorted({queue.topic for queue in group.queues})),
            "lag_messages": sum(queue.lag_messages for queue in group.queues),
            "lag_seconds": max((queue.lag_ms for queue in group.queues), default=0) / 1000,
        }
        for group in run(ask())
    ]
    print_rows(rows, ["group", "members", "topics", "lag_messages", "lag_seconds"], as_json)


@app.command()
def show(
    group: str,
    endpoints: Annotated[str, Endpoints] = DEFAULT_ENDPOINTS,
    timeout: Annotated[float, Timeout] = 10.0,
    as_json: Annotated[bool, Json] = False,
) -> None:
    """The queues of a group: committed offsets, lag, readers."""

    async def ask() -> Any:
        async with _client(endpoints, timeout) as client:
            return await client.admin.group(group)

    rows = [
        {
            "topic": queue.topic,
            "queue_id": queue.queue_id,
            "committed": queue.committed if queue.committed >= 0 else None,
            "max_offset": queue.max_offset,
            "replica_group": queue.replica_group,
            "lag_messages": queue.lag_messages,
            "lag_seconds": queue.lag_ms / 1000,
            "member": queue.member_id,
        }
        for queue in run(ask()).queues
    ]
    columns = ["topic", "queue_id", "committed", "max_offset", "lag_messages", "lag_seconds"]
    print_rows(rows, [*columns, "member"], as_json)


@app.command("set")
def set_(
    group: str,
    orderly: Annotated[
        bool | None,
        typer.Option("--orderly/--concurrent", help="Messages of a queue one after the other."),
    ] = None,
    retry_times: Annotated[
        int | None, typer.Option(help="Attempts after the first; then it is a dead letter.")
    ] = None,
    endpoints: Annotated[str, Endpoints] = DEFAULT_ENDPOINTS,
    timeout: Annotated[float, Timeout] = 10.0,
    as_json: Annotated[bool, Json] = False,
) -> None:
    """Create a group, or change how it consumes."""

    async def ask() -> Any:
        async with _client(endpoints, timeout) as client:
            return await client.admin.put_group(group, orderly=orderly, retry_times=retry_times)

    found = run(ask())
    facts = {"group": found.group, "orderly": found.orderly, "retry_times": found.retry_times}
    print_facts(facts, as_json)


@app.command()
def reset(
    group: str,
    topic: str,
    to: Annotated[
        str, typer.Option(help="earliest, latest, a time (10m, 2h, ISO, ms), or offset:N.")
    ] = "earliest",
    yes: Annotated[bool, Yes] = False,
    endpoints: Annotated[str, Endpoints] = DEFAULT_ENDPOINTS,
    timeout: Annotated[float, Timeout] = 10.0,
    as_json: Annotated[bool, Json] = False,
) -> None:
    """Set the offsets of a group that nobody reads with now."""
    offset: int | None = None
    time = {"earliest": -1, "latest": -2}.get(to, 0)
    if to.startswith("offset:"):
        if not to[7:].isdecimal():
            fail(f"{to!r} is not offset:N", "duolog group reset --help")
        offset = int(to[7:])
    elif time == 0:
        time = when(to)
    if not yes:
        typer.confirm(f"Set the offsets of {group} in {topic} to {to}?", abort=True, err=True)

    async def ask() -> Any:
        async with _client(endpoints, timeout) as client:
            return await client.admin.reset_group(group, topic, time=time, offset=offset)

    rows = [
        {"topic": found.topic, "queue_id": found.queue_id, "offset": found.offset}
        for found in run(ask()).offsets
    ]
    print_rows(rows, ["topic", "queue_id", "offset"], as_json)


@app.command()
def delete(
    group: str,
    yes: Annotated[bool, Yes] = False,
    endpoints: Annotated[str, Endpoints] = DEFAULT_ENDPOINTS,
    timeout: Annotated[float, Timeout] = 10.0,
    as_json: Annotated[bool, Json] = False,
) -> None:
    """Forget a group and its offsets."""
    if not yes:
        typer.confirm(f"Forget group {group} and its offsets?", abort=True, err=True)

    async def ask() -> None:
        async with _client(endpoints, timeout) as client:
            await client.admin.delete_group(group)

    run(ask())
    if as_json:
        print_facts({"deleted": group}, True)
    else:
        say(f"deleted {group}")
