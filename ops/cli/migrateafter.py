"""`duolog migrate`, after the cut-over: late offsets, and moving back."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from duolog_server.ops.cli import output
from duolog_server.ops.cli.access import asked, calls
from duolog_server.ops.cli.brokeraccess import CallsBrokers, broker_access, hint_for
from duolog_server.ops.cli.migrate import CANNOT_FOLLOW, Broker, app

if TYPE_CHECKING:
    from duolog import Client, NodeStatus

    from duolog_server.compat.migration.rocketmqbroker import Runtime
    from duolog_server.compat.remoting.calling import Access
    from duolog_server.store.metadata import Metadata


async def _offsets_of(broker: str, file: Path | None, access: "Access") -> "Metadata":
    """The old broker's offsets, from its file or from itself. Raises OSError, CallRefused."""
    from duolog_server.compat.migration.rocketmqbroker import OldBroker, parsed, read_tables
    from duolog_server.store.metadatafiles import OFFSETS

    if file is not None:
        return parsed({OFFSETS: file.read_bytes()})
    old = OldBroker(broker, access)
    try:
        return parsed(await read_tables(old))
    finally:
        old.close()


@calls(app, cls=CallsBrokers, timeout=30.0)
def offsets(
    ctx: typer.Context,
    broker: Annotated[str, Broker] = "",
    file: Annotated[
        Path | None, typer.Option(help="consumerOffset.json of the old broker, once it stopped.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Change nothing.")] = False,
) -> None:
    """Commit what consumers committed to the old broker after the cut-over. Nothing goes back.

    Repeatable: a group that is further already stays where it is.
    """
    from duolog import Fatal

    from duolog_server.compat.migration.late_offsets import Late, late_offsets
    from duolog_server.compat.remoting.calling import CallRefused

    if bool(broker) == (file is not None):
        output.fail(
            "give one of --broker and --file", "duolog migrate offsets --help", CANNOT_FOLLOW
        )

    access = broker_access(ctx)

    async def carry(client: "Client") -> Late:
        try:
            old = await _offsets_of(broker, file, access)
        except (CallRefused, OSError) as error:
            output.fail(str(error) or type(error).__name__, hint_for(error))
        group = (await client.admin.node_status()).replication.group
        topics = [row for row in await client.admin.topics() if row.group == group]
        ends = {(row.topic, one.queue_id): one.max_offset for row in topics for one in row.stats}
        found = late_offsets(old, ends, await client.admin.groups(), group)
        for name, places in () if dry_run else tuple(found.moved.items()):
            try:
                await client.admin.commit(name, places, forward=True)
            except Fatal as error:  # of this group alone
                refused.append(f"{name}: {error}")
                del found.moved[name]
        return found

    refused: list[str] = []
    found = asked(carry)
    rows = [
        {"group": group, "topic": topic, "queue": queue, "offset": offset}
        for group, places in sorted(found.moved.items())
        for (topic, _, queue), offset in sorted(places.items())
    ]
    output.print_rows(rows, ["group", "topic", "queue", "offset"])
    if not output.wants_json():
        output.say(f"{len(rows)} offsets {'would be' if dry_run else 'were'} moved forward")
    if found.beyond:
        output.say(
            f"{found.beyond} offsets are left out: they lie beyond the end of their queues, and "
            "are not those of the log that was moved"
        )
    if refused:
        output.fail(f"groups whose offsets were refused: {'; '.join(refused)}")


@calls(app, cls=CallsBrokers, timeout=30.0)
def rollback(
    ctx: typer.Context,
    broker: Annotated[str, Broker],
) -> None:
    """Say whether the old broker, as a slave of the node, has all of its log, and how to go back.

    Changes nothing. Exit status 2 where the old broker lacks something.
    """
    from duolog_server.compat.migration.rocketmqbroker import OldBroker
    from duolog_server.compat.remoting.calling import CallRefused

    access = broker_access(ctx)

    async def ask(client: "Client") -> "tuple[Runtime, NodeStatus, str]":
        old = OldBroker(broker, access)
        try:
            name = (await old.settings()).get("brokerName", "")
            there = await old.runtime()  # first: it may grow while the node is asked
            return there, await client.admin.node_status(), name
        except (CallRefused, OSError) as error:
            usual = "starting the old broker as a slave first"
            output.fail(str(error) or type(error).__name__, hint_for(error, usual))
        finally:
            old.close()

    there, here, name = asked(ask)
    if name != here.replication.group:
        output.fail(f"{broker} is broker {name!r}, the node is of group {here.replication.group!r}")
    missing = here.max_offset - there.end
    output.print_facts(
        {
            "old_broker": broker,
            "version": there.version,
            "old_min_offset": there.first,
            "old_max_offset": there.end,
            "node_min_offset": here.min_offset,
            "node_max_offset": here.max_offset,
            "missing_bytes": missing,
        }
    )
    if missing < 0:
        output.say("the old broker's log is longer than the node's: the node is not a copy of it")
    elif missing:
        output.say("the old broker does not have the node's whole log: it must follow it first")
    if missing:
        raise typer.Exit(CANNOT_FOLLOW)
    if not output.wants_json():
        output.say(
            "the old broker has everything. To go back: stop producers, ask again, stop the node,"
        )
        output.say(
            "and start the old broker with brokerId=0, brokerRole=ASYNC_MASTER, brokerPermission=6"
        )
