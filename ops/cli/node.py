"""`duolog node`: start or check a node."""

import asyncio
import contextlib
import gc
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from duolog_server.ops.cli.access import asked, call_seconds, calls
from duolog_server.ops.cli.arguments import Setting, settings_of
from duolog_server.ops.cli.brokeraccess import CallsBrokers, broker_access
from duolog_server.ops.cli.output import (
    fail,
    print_facts,
)
from duolog_server.ops.inspection.times import iso

if TYPE_CHECKING:
    from duolog import Client, NodeStatus

    from duolog_server.compat.remoting.calling import Access
    from duolog_server.node.runtime.config import Config, Tree

app = typer.Typer(no_args_is_help=True)

PROBE_TOPIC = "duolog-probe"


@app.command(cls=CallsBrokers)
def start(
    ctx: typer.Context,
    data: Annotated[Path | None, typer.Option(help="Store directory.")] = None,
    listen: Annotated[str | None, typer.Option(help="HOST:PORT of the client API.")] = None,
    name: Annotated[str | None, typer.Option(help="Name of the node in its group.")] = None,
    role: Annotated[
        str | None, typer.Option(help="ASYNC_MASTER (default), SYNC_MASTER, SLAVE or AUTO.")
    ] = None,
    ha_listen: Annotated[
        str | None, typer.Option(help="Master: HOST:PORT of the replication port.")
    ] = None,
    ha_master: Annotated[
        str | None, typer.Option(help="Slave: HOST:PORT of its master's replication port.")
    ] = None,
    registry: Annotated[
        str | None, typer.Option(help="AUTO: etcd's addresses, HOST:PORT[,HOST:PORT...].")
    ] = None,
    console: Annotated[
        str | None, typer.Option(help="HOST:PORT of the console, a cluster in a browser.")
    ] = None,
    shards: Annotated[
        int,
        typer.Option(
            min=1,
            max=64,
            help="AUTO: start so many nodes, of one replica group each (NAME-0, NAME-1...).",
        ),
    ] = 1,
    config: Annotated[Path | None, typer.Option(help="TOML file (default ./duolog.toml).")] = None,
    set_: Annotated[list[str] | None, Setting] = None,
    json_logs: Annotated[bool, typer.Option("--json", help="Write the log as JSON lines.")] = False,
    after_cutover: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            min=0,
            help="Wait up to SECONDS for the cut-over (`duolog migrate cutover`), then start.",
        ),
    ] = None,
) -> None:
    """Run a node in the foreground until SIGTERM, SIGINT or SIGHUP."""
    gc.disable()  # a start makes hundreds of thousands of objects that stay; serve() enables it
    if sys.stderr.isatty():  # the log's first line comes with the configuration, a second later
        print("starting", file=sys.stderr)
    import duolog_server.node.runtime.logs as logs  # before others import structlog
    from duolog_server.node.net.grpc.options import poll_channels_in_one_thread

    poll_channels_in_one_thread()
    from duolog_server.node.runtime.config import ConfigError, load

    flags = settings_of(set_ or [])
    if data is not None:
        flags.setdefault("node", {})["data"] = data
    given = {
        ("node", "listen"): listen,
        ("node", "name"): name,
        ("store", "broker_role"): role,
        ("ha", "listen"): ha_listen,
        ("ha", "master"): ha_master,
        ("registry", "endpoints"): registry,
        ("console", "listen"): console,
    }
    for (section, key), chosen in given.items():
        if chosen is not None:
            flags.setdefault(section, {})[key] = chosen
    if json_logs:
        flags.setdefault("node", {})["log_json"] = True
    try:
        loaded, _ = load(config, flags)
        if shards > 1:
            if after_cutover is not None:
                raise ConfigError("--after-cutover is for a single node, without --shards")
            _become_shards(loaded, config, flags, shards)
    except ConfigError as error:
        fail(str(error), "duolog config show --origin", 2)
    import structlog
    from duolog import __version__

    node = loaded.node
    logs.configure_logging(node.log_level, node.log_json, node.name_in_log)
    log = structlog.get_logger("duolog.node")
    # Before most modules are imported, which takes a second.
    log.info("starting", version=__version__, data=str(loaded.node.data))
    from duolog_server.serve.server import load_program, serve

    if after_cutover is not None:
        load_program(loaded)
        _await_cutover(loaded, broker_access(ctx), after_cutover)
    sys.exit(asyncio.run(serve(loaded)))


def _become_shards(config: "Config", file: Path | None, flags: "Tree", count: int) -> NoReturn:
    """Have the supervisor of the shards in the place of this program. Raises ConfigError."""
    from duolog_server.node.runtime.shardsettings import shards_of
    from duolog_server.serve.shards import Plan

    shards = shards_of(config, file, flags, count)
    program = [sys.executable, "-P", "-m", "duolog_server.ops.cli.main", "node", "start"]
    if file is not None:
        program += ["--config", str(file)]
    plan = Plan(
        [[*program, *_words_of(shard.flags)] for shard in shards],
        [shard.metrics_port for shard in shards],
        config.metrics.listen,
        config.node.log_level,
        config.node.log_json,
    )
    command = plan.command()
    os.execv(command[0], command)


def _words_of(flags: "Tree") -> list[str]:
    """What sets these values on a command line."""
    return [
        word
        for section, keys in flags.items()
        for key, value in keys.items()
        for word in ("--set", f"{section}.{key}={value}")
    ]


def _await_cutover(config: "Config", access: "Access", seconds: float) -> None:
    """access: credentials for the broker, if a killed cut-over has to be ended."""
    from duolog_server.compat.migration.program import CutoverStopped, PromotedAndStopped
    from duolog_server.compat.migration.promotion import finish, wait_promoted
    from duolog_server.store.errors import StoreError

    directory = config.node.data
    try:
        wait_promoted(
            directory, config.node.group, seconds, lambda left: finish(config, access, left)
        )
    except PromotedAndStopped as stopped:
        fail(str(stopped), "duolog node start")
    except (CutoverStopped, StoreError, OSError) as error:
        fail(str(error), f"duolog migrate status --data {directory}")


def _replication(status: "NodeStatus") -> dict[str, object]:
    """How a node takes part in replication."""
    part = status.replication
    facts: dict[str, object] = {"group": part.group, "epoch": part.epoch}
    if part.state:
        facts |= {
            "replication_state": part.state,
            "replication_reason": part.reason,
            "master": part.master,
            "lag_bytes": part.lag_bytes,
            "lag_seconds": part.lag_ms / 1000,
            "truncated_bytes": part.truncated_bytes,
        }
    else:
        facts |= {
            "push2slave_max_offset": part.push2slave_max_offset,
            "in_sync_replicas": part.in_sync_replicas,
            "slaves": [slave.name for slave in part.slaves],
        }
    if part.role:
        facts["down"] = [
            f"{name} since {iso(at_ms)}" if at_ms else name for name, at_ms in part.down.items()
        ]
    if part.lease_seconds:
        facts["lease_seconds"] = part.lease_seconds
        if part.lease_asked_seconds != part.lease_seconds:  # etcd has a minimum
            facts["lease_seconds_configured"] = part.lease_asked_seconds
    return facts


async def probe(client: "Client", status: "NodeStatus", timeout: float) -> str:
    """Test whether this node can take part in a put; the problem found, or an empty string."""
    from duolog import DuologError, TopicExists

    if not status.is_master:
        part = status.replication
        return (
            ""
            if part.state == "TRANSFER"
            else f"not following a master: {part.reason or part.role}"
        )
    group = status.replication.group  # whether or not other nodes have it
    try:
        with contextlib.suppress(TopicExists):
            await client.admin.create_topic(PROBE_TOPIC, 1, groups=[group])
        async with client.producer(timeout=timeout, accept_weak=True) as producer:
            receipt = await producer.send(PROBE_TOPIC, b"probe", queue_id=0, group=group)
    except DuologError as error:
        return f"a put failed: {error}"
    return "" if receipt.status == "PUT_OK" else f"a put was answered {receipt.status}, not PUT_OK"


def problems_of(status: "NodeStatus") -> list[str]:
    """Problems that a node reports about itself."""
    from duolog_server.ops.inspection.doctor.nodes import OTHERS_FILL, audit_problem, others_fill

    problems = [*status.flags]
    if status.fence_reason:
        problems.append(status.fence_reason)
    if others_fill(status):
        problems.append(f"the disk is {status.disk_used_ratio:.0%} full: {OTHERS_FILL}")
    if unwritten := audit_problem(status):
        problems.append(unwritten)
    if status.corrupt_ranges:
        problems.append(f"{status.corrupt_ranges} corrupt ranges in the commit log")
    part = status.replication
    if part.refusal:
        problems.append(f"puts are refused: {part.refusal}")
    if part.role == "STANDING":  # of a node that can be elected
        problems.append(
            f"this node knows no master of its group: {part.reason or 'none found yet'}"
        )
    elif part.state == "SUSPEND":
        problems.append(f"not following its master: {part.reason}")
    return problems


@calls(app, timeout=5.0)
def check(
    write: Annotated[
        bool,
        typer.Option("--write", help="Require a master to store a message, a slave to follow."),
    ] = False,
) -> None:
    """Check a node. Exit status 0: serving; 1: not reachable; 2: serving, with a problem."""

    async def ask(client: "Client") -> "tuple[NodeStatus, str]":
        found = await client.admin.node_status()
        return found, await probe(client, found, call_seconds()) if write else ""

    status, failed = asked(ask)
    problems = [*problems_of(status), *([failed] if failed else [])]
    print_facts(
        {
            "name": status.name,
            "role": status.role,
            "version": status.version,
            "listen": status.listen,
            "data": status.data,
            "started": iso(status.start_time_ms),
            "min_offset": status.min_offset,
            "max_offset": status.max_offset,
            "flushed_offset": status.flushed_offset,
            "confirm_offset": status.confirm_offset,
            **_replication(status),
            "dispatch_behind_bytes": status.dispatch_behind_bytes,
            "disk_used_ratio": round(status.disk_used_ratio, 4),
            "disk_directory": status.disk_directory,
            "recovered_abnormally": status.recovered_abnormally,
            "messages_in": status.messages_in,
            "messages_out": status.messages_out,
            **status.parts,
            "problems": problems,
        }
    )
    if problems:
        raise typer.Exit(2)
