"""`duolog migrate`: from a broker of RocketMQ to a replica group, while both sides work."""

import asyncio
import dataclasses
from collections.abc import Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from duolog_server.ops.cli import output
from duolog_server.ops.cli.access import prints
from duolog_server.ops.cli.arguments import Setting, settings_of
from duolog_server.ops.cli.brokeraccess import CallsBrokers, broker_access, hint_for
from duolog_server.ops.inspection.times import iso

if TYPE_CHECKING:
    from duolog_server.compat.migration.preconditions import Remark
    from duolog_server.compat.migration.rocketmqbroker import BrokerFacts
    from duolog_server.node.runtime.config import Config

app = typer.Typer(no_args_is_help=True)
T = TypeVar("T")

Data = typer.Option(help="Store directory of the new node.")
ConfigFile = typer.Option("--config", help="TOML file of the new node (default ./duolog.toml).")
Broker = typer.Option("--broker", metavar="HOST:PORT", help="The broker's remoting port.")
CANNOT_FOLLOW = 2


def _config(data: Path | None, file: Path | None, set_: list[str] | None) -> "Config":
    from duolog_server.node.runtime.config import ConfigError, load

    flags = settings_of(set_ or [])
    if data is not None:
        flags.setdefault("node", {})["data"] = data
    try:
        return load(file, flags)[0]
    except ConfigError as error:
        output.fail(str(error), "duolog config show --origin", 2)


def _run(work: Coroutine[object, None, T], hint: str = "duolog migrate status --data DIR") -> T:
    """Run what follows; its errors become messages. hint: what to try then."""
    from duolog_server.compat.migration.copying import CannotFollow
    from duolog_server.compat.migration.cutover import CutoverFailed
    from duolog_server.compat.migration.program import WrongSource
    from duolog_server.compat.remoting.calling import CallRefused
    from duolog_server.store.errors import StoreError

    try:
        return asyncio.run(work)
    except CannotFollow as error:
        output.fail(str(error), "see docs/migrating.md", CANNOT_FOLLOW)
    except (CutoverFailed, WrongSource, StoreError, CallRefused, OSError, TimeoutError) as error:
        output.fail(str(error) or type(error).__name__, hint_for(error, hint))


# -- before ----------------------------------------------------------------------------------------


@prints(app, cls=CallsBrokers)
def plan(
    ctx: typer.Context,
    name_server: Annotated[str, typer.Argument(metavar="HOST:PORT", help="A name server.")],
    data: Annotated[Path | None, Data] = None,
    config: Annotated[Path | None, ConfigFile] = None,
    set_: Annotated[list[str] | None, Setting] = None,
) -> None:
    """Say what a cluster of RocketMQ has, and what to do before it is moved. Changes nothing.

    Exit status 2 if something must be changed first.
    """
    from duolog_server.compat.migration.preconditions import remarks
    from duolog_server.compat.migration.rocketmqbroker import brokers_of, facts_of

    chosen, access = _config(data, config, set_), broker_access(ctx)

    async def survey() -> "list[BrokerFacts]":
        found = sorted((await brokers_of(name_server, access)).items())
        return [await facts_of(name, address, access) for name, address in found]

    found = _run(survey(), "the HOST:PORT at which a name server listens, usually port 9876")
    told = [(facts, remarks(facts, chosen.store, facts.name)) for facts in found]
    if output.wants_json():
        output.print_json([_planned(facts, said) for facts, said in told])
    else:
        for facts, said in told:
            _show(facts, said)
    if not told:
        output.fail(
            f"{name_server} knows no broker", "another name server, at which brokers register"
        )
    if any(remark.blocks for _, said in told for remark in said):
        raise typer.Exit(CANNOT_FOLLOW)


def _planned(facts: "BrokerFacts", said: "list[Remark]") -> dict[str, object]:
    from duolog_server.compat.migration.preconditions import user_topics

    return {
        "broker": facts.name,
        "address": facts.address,
        "version": facts.runtime.version,
        "role": facts.settings.get("brokerRole"),
        "log_bytes": facts.runtime.end - facts.runtime.first,
        "min_offset": facts.runtime.first,
        "max_offset": facts.runtime.end,
        "topics": len(user_topics(facts)),
        "groups": len(facts.tables.groups),
        "offsets": len(facts.tables.offsets),
        "set": {
            "node.group": facts.name,
            "store.mapped_file_size_commit_log": facts.settings.get("mappedFileSizeCommitLog"),
        },
        "remarks": [dataclasses.asdict(remark) for remark in said],
    }


def _show(facts: "BrokerFacts", said: "list[Remark]") -> None:
    planned = _planned(facts, said)
    settings = planned.pop("set")
    assert isinstance(settings, dict), "made so"
    planned["set"] = [f"{key}={value}" for key, value in settings.items()]
    del planned["remarks"]
    output.print_facts(planned, False)
    for remark in said:
        kind, what = "MUST" if remark.blocks else "note", output.plain(remark.what)
        print(f"{kind:<5} {what}\n      {remark.do}")
    print()


# -- following -------------------------------------------------------------------------------------


@app.command(cls=CallsBrokers)
def follow(
    ctx: typer.Context,
    data: Annotated[Path | None, Data] = None,
    broker: Annotated[str, Broker] = "",
    ha: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT", help="Its HA port; default: haListenPort on the same host."
        ),
    ] = "",
    cut_to_master: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="Truncate the copy to this broker's log, which lost records."
        ),
    ] = "",
    config: Annotated[Path | None, ConfigFile] = None,
    set_: Annotated[list[str] | None, Setting] = None,
) -> None:
    """Copy a broker's log and tables, in the foreground, until SIGTERM or SIGINT.

    --broker is needed the first time. Exit status 2 if the copy needs an operator.
    """
    import duolog_server.node.runtime.logs as logs
    from duolog_server.compat.migration.program import Source
    from duolog_server.compat.migration.program import follow as follow_broker

    chosen = _config(data, config, set_)
    logs.configure_logging(chosen.node.log_level, chosen.node.log_json)
    source = Source(broker, ha, cut_to_master, broker_access(ctx))
    _run(follow_broker(chosen, source), "--broker HOST:PORT, with the broker's listenPort")


@prints(app)
def status(
    data: Annotated[Path | None, Data] = None,
    config: Annotated[Path | None, ConfigFile] = None,
    checksums: Annotated[
        bool, typer.Option("--checksums", help="SHA-256 of every full segment, as sha256sum does.")
    ] = False,
) -> None:
    """Show the migration status of a data directory. Exit status 2 where no copy is running."""
    from duolog_server.compat.migration import state as states
    from duolog_server.compat.migration import status as live
    from duolog_server.compat.migration.status import checksums_of
    from duolog_server.store.errors import StoreError
    from duolog_server.store.osdisk import OsDisk

    directory = _config(data, config, None).node.data
    try:
        following = states.load(OsDisk(directory, read_only=True))
    except (StoreError, OSError) as error:
        output.fail(str(error), "duolog migrate follow --data DIR --broker HOST:PORT")
    if following is None:
        output.fail(
            f"{directory} is not a migration target",
            "duolog migrate follow --data DIR --broker HOST:PORT",
        )
    found = live.read(directory)
    running = found is not None and not found.is_stale
    facts: dict[str, object] = {
        "state": following.state.value,
        "broker": f"{following.name} at {following.broker}",
        "ha": following.ha,
        "process": "running" if running else "not running",
    }
    if following.cut >= 0:
        facts["cut"] = following.cut
    if found is not None:
        facts |= {
            "end": found.end,
            "flushed": found.flushed,
            "broker_end": found.broker_end,
            "behind_bytes": found.behind_bytes,
            "behind_seconds": found.behind_ms / 1000 if found.behind_ms >= 0 else None,
            "topics": found.topics,
            "groups": found.groups,
            "offsets": found.offsets,
            "tables_read": iso(found.tables_read_ms) if found.tables_read_ms else None,
        }
    reason = following.reason or (found.reason if found is not None else "")
    if following.state is states.State.CUTTING and not running:
        reason = following.reason or states.UNENDED
    facts["problems"] = [reason] if reason else []
    end = following.cut if following.cut >= 0 else found.end if found is not None else 0
    try:
        segments = list(checksums_of(directory, end)) if checksums else []
    except OSError as error:
        output.fail(f"the log's segments cannot be read: {error}")
    if output.wants_json() and checksums:
        facts["segments"] = [f"{digest}  {name}" for name, digest in segments]
    output.print_facts(facts)
    if not output.wants_json():
        for name, digest in segments:
            print(f"{digest}  {name}")
    healthy = following.state is states.State.PROMOTED or (running and not reason)
    if not healthy:
        raise typer.Exit(CANNOT_FOLLOW)


# -- the cut-over ----------------------------------------------------------------------------------


@app.command(cls=CallsBrokers)
def cutover(
    ctx: typer.Context,
    data: Annotated[Path | None, Data] = None,
    config: Annotated[Path | None, ConfigFile] = None,
    set_: Annotated[list[str] | None, Setting] = None,
    producers: Annotated[
        float,
        typer.Option(min=0, help="Seconds for producers to switch to other brokers first."),
    ] = 0.0,
    catch_up: Annotated[float, typer.Option(min=0, help="Longest wait for the copy.")] = 600.0,
    settle: Annotated[
        float, typer.Option(min=0, help="Longest time without a master that stores messages.")
    ] = 30.0,
    join: Annotated[
        int | None,
        typer.Option(metavar="OFFSET", help="Another node's cut-over: leave the broker unchanged."),
    ] = None,
    yes: Annotated[bool, output.Yes] = False,
) -> None:
    """Stop the broker's writers, copy the rest, and make the directory duolog's own.

    Stop `duolog migrate follow` first. If a step fails, the broker stores messages again.
    """
    import duolog_server.node.runtime.logs as logs
    from duolog_server.compat.migration.cutover import Patience
    from duolog_server.compat.migration.program import PromotedAndStopped, Source, cut_over

    chosen, source = _config(data, config, set_), Source(access=broker_access(ctx))
    output.confirm(
        "Producers cannot send until the new node starts. Continue?", yes or join is not None
    )
    logs.configure_logging("warning", chosen.node.log_json)
    patience = Patience(catch_up, producers, settle)
    try:
        end = _run(cut_over(chosen, source, output.say, patience, join))
    except PromotedAndStopped as late:  # nothing is left to be stopped: say what comes next
        end = late.end
    print(f"promoted at offset {end}. Now")
    print("  1. stop the old broker: mqshutdown broker. It writes its last offsets to")
    print("     config/consumerOffset.json in its store directory")
    print(f"  2. start the node, unless it waits: duolog node start --data {chosen.node.data}")
    print("  3. carry over late offsets: duolog migrate offsets --file consumerOffset.json")


@app.command(cls=CallsBrokers)
def abort(
    ctx: typer.Context,
    data: Annotated[Path | None, Data] = None,
    config: Annotated[Path | None, ConfigFile] = None,
    set_: Annotated[list[str] | None, Setting] = None,
) -> None:
    """After a cut-over that was killed: the broker stores messages again. Repeatable.

    After --join, the broker stays as the other copy's cut-over left it.
    """
    import duolog_server.node.runtime.logs as logs
    from duolog_server.compat.migration.program import Source
    from duolog_server.compat.migration.program import abort as abort_cutover

    chosen, source = _config(data, config, set_), Source(access=broker_access(ctx))
    logs.configure_logging("warning", chosen.node.log_json)
    done = _run(abort_cutover(chosen, source))
    print(
        "the broker stores messages again"
        if done
        else "no cut-over of this copy had changed the broker"
    )
