"""`duolog migrate`, after the cut-over: late offsets, and moving back."""

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from duolog_server.ops.cli import output
from duolog_server.ops.cli.access import asked, calls
from duolog_server.ops.cli.brokeraccess import CallsBrokers, broker_access, hint_for
from duolog_server.ops.cli.migrate import CANNOT_FOLLOW, Broker, app

if TYPE_CHECKING:
    from duolog import Client, FreezeStatus, NodeStatus

    from duolog_server.compat.migration.rocketmqbroker import OldBroker, Runtime
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


LOOK_SECONDS = 1.0
COMPLETE_LOOKS = 2  # so that the last answer to the broker has arrived
PERM_WRITE = 2
GIVEN_SECONDS = 150.0  # brokers ask for tables every 10 s, those of RocketMQ 5 every minute


@dataclass(frozen=True, slots=True)
class _WayBack:
    """What the node and the old broker have."""

    broker: "Runtime"
    node: "NodeStatus"
    freeze: "FreezeStatus"
    closed: list[str]  # topics that do not allow writes

    @property
    def missing(self) -> int:
        """Bytes that the old broker lacks, but for the node's own notes where it is not frozen."""
        end = self.freeze.max_offset if self.freeze.frozen else self.freeze.messages_end
        return max(0, end - self.broker.end)

    @property
    def is_other(self) -> bool:
        """Whether the old broker's log is longer, so that it is another one."""
        return self.broker.end > self.freeze.max_offset

    @property
    def is_complete(self) -> bool:
        """Whether the old broker has all that matters."""
        has_tables = self.freeze.tables_given or not self.freeze.frozen
        return not self.missing and not self.is_other and has_tables


async def _way_back(client: "Client", old: "OldBroker", seconds: int | None) -> _WayBack:
    """seconds: freeze the node for so long. Raises CallRefused, OSError."""
    name = (await old.settings()).get("brokerName", "")
    node = await client.admin.node_status()
    group = node.replication.group
    if name != group:
        output.fail(f"{old.address} is broker {name!r}, the node is of group {group!r}")
    there = await old.runtime()  # first: it may grow while the node is asked
    freeze = await client.admin.freeze(seconds)
    topics = [row for row in await client.admin.topics() if row.group == group]
    closed = sorted(row.topic for row in topics if not row.perm & PERM_WRITE)
    return _WayBack(there, node, freeze, closed)


async def _frozen(client: "Client", old: "OldBroker", seconds: int) -> _WayBack:
    """Freeze the node until the old broker has everything; store again where that does not come.

    A freeze that an earlier command began continues where this one fails: the old broker may be
    stopped by now, to take over.
    """
    found = await _way_back(client, old, None)
    if found.is_other:
        return found
    was_frozen = found.freeze.frozen
    loop = asyncio.get_running_loop()
    until, complete = loop.time() + GIVEN_SECONDS, 0
    try:
        while True:
            found = await _way_back(client, old, seconds)
            complete = complete + 1 if found.is_complete else 0
            if complete == COMPLETE_LOOKS:
                return found
            if found.is_other or (not complete and loop.time() >= until):
                break
            await asyncio.sleep(LOOK_SECONDS)
    except BaseException:
        if not was_frozen:
            await client.admin.freeze(0)
        raise
    await client.admin.freeze(0)
    return found


@calls(app, cls=CallsBrokers, timeout=30.0)
def rollback(
    ctx: typer.Context,
    broker: Annotated[str, Broker],
    freeze: Annotated[
        int,
        typer.Option(
            min=0,
            max=86_400,
            help="Seconds for which the node stores nothing, once the broker has everything.",
        ),
    ] = 0,
    thaw: Annotated[
        bool, typer.Option("--thaw", help="Have the node store messages again.")
    ] = False,
) -> None:
    """Say whether the old broker, as a slave of the node, has everything, and how to go back.

    Without --freeze and --thaw, changes nothing. Exit status 2 where the old broker lacks
    something.
    """
    from duolog import DuologError

    from duolog_server.compat.migration.rocketmqbroker import OldBroker
    from duolog_server.compat.remoting.calling import CallRefused

    if thaw and freeze:
        output.fail(
            "give one of --freeze and --thaw", "duolog migrate rollback --help", CANNOT_FOLLOW
        )
    access = broker_access(ctx)

    async def ask(client: "Client") -> _WayBack:
        old = OldBroker(broker, access)
        try:
            if freeze:
                output.say("the node stores nothing: waiting until the old broker has everything")
                return await _frozen(client, old, freeze)
            return await _way_back(client, old, 0 if thaw else None)
        except DuologError:  # its Timeout is an OSError
            raise
        except (CallRefused, OSError) as error:
            usual = "starting the old broker as a slave first"
            output.fail(str(error) or type(error).__name__, hint_for(error, usual))
        finally:
            old.close()

    found = asked(ask)
    output.print_facts(
        {
            "old_broker": broker,
            "version": found.broker.version,
            "old_min_offset": found.broker.first,
            "old_max_offset": found.broker.end,
            "node_min_offset": found.node.min_offset,
            "node_max_offset": found.freeze.max_offset,
            "missing_bytes": found.missing,
            "read_only_topics": found.closed,
            "frozen": found.freeze.frozen and found.is_complete,
        }
    )
    if found.closed:
        output.say(
            "these topics do not allow writes, and will not there: "
            f"{', '.join(found.closed[:10])}. To change that: duolog topic alter NAME --perm 6, "
            "before --freeze"
        )
    for line in _told(found, freeze):
        if not output.wants_json() or not found.is_complete:
            output.say(line)
    if not found.is_complete:
        raise typer.Exit(CANNOT_FOLLOW)


def _told(found: _WayBack, freeze: int) -> tuple[str, ...]:
    """What it comes to, and what to do next."""
    if found.is_other:
        return ("the old broker's log is longer than the node's: the node is not a copy of it",)
    if found.missing:
        return ("the old broker does not have all messages of the node: it must follow it first",)
    if not found.is_complete:
        return (
            "the old broker has the log, but did not ask for topics, groups, offsets and delays",
            f"for {GIVEN_SECONDS:g} s: look at its log. The node stores messages again",
        )
    if not found.freeze.frozen:
        return (
            "the old broker has every message. To go back: stop producers, then have the node",
            "store nothing more, until the broker has the last offsets as well: --freeze 600",
        )
    return (
        f"the old broker has everything, and the node stores nothing for {freeze} s. Until then:",
        "stop all nodes of the group, its slaves first, then the old broker, and start that with",
        "brokerId=0, brokerRole=ASYNC_MASTER, brokerPermission=6. To stay: rollback --thaw",
    )
