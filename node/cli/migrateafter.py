"""`duolog migrate`, after the cut-over: late offsets, and the way back."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from node.cli.access import DEFAULT_ENDPOINTS, Endpoints, client_of
from node.cli.migrate import CANNOT_FOLLOW, Broker, app
from node.cli.output import Json, Timeout, fail, print_facts, print_rows, run, say

if TYPE_CHECKING:
    from node.following.broker.calls import Runtime
    from store.metadata import Metadata


async def _offsets_of(broker: str, file: Path | None) -> "Metadata":
    """The old broker's offsets, from its file or from itself. Raises OSError, CallRefused."""
    from node.following.broker.calls import OldBroker
    from node.following.broker.tables import parsed, read_tables
    from store.metadatafiles import OFFSETS

    if file is not None:
        return parsed({OFFSETS: file.read_bytes()})
    old = OldBroker(broker)
    try:
        return parsed(await read_tables(old))
    finally:
        old.close()


@app.command()
def offsets(
    broker: Annotated[str, Broker] = "",
    file: Annotated[
        Path | None, typer.Option(help="consumerOffset.json of the old broker, once it stopped.")
    ] = None,
    endpoints: Annotated[str, Endpoints] = DEFAULT_ENDPOINTS,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Change nothing.")] = False,
    timeout: Annotated[float, Timeout] = 30.0,
    as_json: Annotated[bool, Json] = False,
) -> None:
    """Commit what consumers committed to the old broker after the cut-over. Nothing goes back.

    Repeatable: a group that is further already stays where it is.
    """
    from node.following.late import Offsets, late_offsets
    from node.remoting.calling import CallRefused

    if bool(broker) == (file is not None):
        fail("give one of --broker and --file", "duolog migrate offsets --help", CANNOT_FOLLOW)

    async def carry() -> dict[str, Offsets]:
        try:
            old = await _offsets_of(broker, file)
        except (CallRefused, OSError) as error:
            fail(str(error) or type(error).__name__)
        async with client_of(endpoints, timeout) as client:
            group = (await client.admin.node_status()).replication.group
            topics = [row for row in await client.admin.topics() if row.group == group]
            queues = {row.topic: row.queues for row in topics}
            found = late_offsets(old, queues, await client.admin.groups(), group)
            for name, places in found.items():
                if not dry_run:
                    await client.admin.commit(name, places, forward=True)
        return found

    rows = [
        {"group": group, "topic": topic, "queue": queue, "offset": offset}
        for group, places in sorted(run(carry()).items())
        for (topic, _, queue), offset in sorted(places.items())
    ]
    print_rows(rows, ["group", "topic", "queue", "offset"], as_json)
    if not as_json:
        say(f"{len(rows)} offsets {'would be' if dry_run else 'were'} moved forward")


@app.command()
def rollback(
    broker: Annotated[str, Broker],
    endpoints: Annotated[str, Endpoints] = DEFAULT_ENDPOINTS,
    timeout: Annotated[float, Timeout] = 30.0,
    as_json: Annotated[bool, Json] = False,
) -> None:
    """Say whether the old broker, as a slave of the node, has all of its log, and how to go back.

    Changes nothing. Exit status 2 where the old broker lacks something.
    """
    from node.following.broker.calls import OldBroker
    from node.remoting.calling import CallRefused

    async def ask() -> "tuple[Runtime, int, int]":
        old = OldBroker(broker)
        try:
            async with client_of(endpoints, timeout) as client:
                here = await client.admin.node_status()
            return await old.runtime(), here.max_offset, here.min_offset
        except (CallRefused, OSError) as error:
            fail(str(error) or type(error).__name__, "starting the old broker as a slave first")
        finally:
            old.close()

    there, end, first = run(ask())
    missing = end - there.end
    print_facts(
        {
            "old_broker": broker,
            "version": there.version,
            "old_min_offset": there.first,
            "old_max_offset": there.end,
            "node_min_offset": first,
            "node_max_offset": end,
            "missing_bytes": missing,
        },
        as_json,
    )
    if missing:
        say("the old broker does not have the node's whole log: it must follow it first")
        raise typer.Exit(CANNOT_FOLLOW)
    if not as_json:
        say("the old broker has everything. To go back: stop producers, ask again, stop the node,")
        say("and start the old broker with brokerId=0, brokerRole=ASYNC_MASTER, brokerPermission=6")
