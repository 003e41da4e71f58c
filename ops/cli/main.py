"""`duolog`: the tree of commands. Each noun is imported when it is used."""

import importlib
import os
import platform
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from duolog_server.ops.cli.access import CONNECTION, add_options, shared


@dataclass(frozen=True, slots=True)
class _Noun:
    """A command of the first level."""

    help: str
    module: str  # has its `app`
    more: tuple[str, ...] = ()  # modules that add commands to that app


NOUNS = {
    "node": _Noun("Start a node, or check one.", "duolog_server.ops.cli.node"),
    "topic": _Noun("List, show, create, alter, delete topics.", "duolog_server.ops.cli.topic"),
    "msg": _Noun(
        "Send, get, find, search and tail messages.",
        "duolog_server.ops.cli.msg",
        more=("duolog_server.ops.cli.msgsearch", "duolog_server.ops.cli.msgresend"),
    ),
    "group": _Noun(
        "List, show, explain, set, reset consumer groups.", "duolog_server.ops.cli.group"
    ),
    "user": _Noun("List, create, alter, delete users.", "duolog_server.ops.cli.user"),
    "acl": _Noun("Show, grant, revoke, test the rights of users.", "duolog_server.ops.cli.acl"),
    "audit": _Noun("Show the audit log: calls done and denied.", "duolog_server.ops.cli.audit"),
    "quota": _Noun(
        "Set, list, delete the quotas of users, clients, topics.", "duolog_server.ops.cli.quota"
    ),
    "cluster": _Noun(
        "Show the cluster, switch, drain and forget nodes.", "duolog_server.ops.cli.cluster"
    ),
    "doctor": _Noun(
        "Diagnose a cluster, with a fix for each finding.", "duolog_server.ops.cli.doctor"
    ),
    "console": _Noun(
        "Serve the console: the cluster in a browser.", "duolog_server.ops.cli.console"
    ),
    "migrate": _Noun(
        "Migrate a running RocketMQ broker to duolog.",
        "duolog_server.ops.cli.migrate",
        more=("duolog_server.ops.cli.migrateafter",),
    ),
    "store": _Noun(
        "Inspect a store directory offline, back it up, restore it.",
        "duolog_server.ops.cli.store",
        more=("duolog_server.ops.cli.backup",),
    ),
    "bench": _Noun("Measure produce, consume and recovery.", "duolog_server.demo.commands.bench"),
    "pipeline": _Noun(
        "Jobs on Spark: audit, rebuild, tier, replay, report.",
        "duolog_server.ops.cli.pipeline",
        more=("duolog_server.demo.commands.flights",),
    ),
    "context": _Noun("Manage named connection settings.", "duolog_server.ops.cli.context"),
    "config": _Noun(
        "Show the configuration and where it comes from.", "duolog_server.ops.cli.config"
    ),
    "demo": _Noun("Store, crash and recover a real data set.", "duolog_server.demo.commands.demo"),
}


def command_of(name: str) -> TyperCommand | TyperGroup:
    """A noun's commands, whose modules are imported."""
    noun = NOUNS[name]
    module = importlib.import_module(noun.module)
    for adds in noun.more:
        importlib.import_module(adds)
    command = typer.main.get_command(module.app)
    assert isinstance(command, TyperCommand | TyperGroup), "typer makes them"
    command.name = name
    if isinstance(command, TyperGroup):  # a command without verbs says more than its line here
        command.help = noun.help
    return command


class _Lazy(TyperGroup):
    """Imports a noun's commands only when that noun is named: `--help` stays fast."""

    def __init__(self, **how: Any) -> None:
        super().__init__(**how)
        self.commands.update({name: TyperCommand(name) for name in NOUNS})  # for "Did you mean"
        add_options(self, shared, CONNECTION)

    def list_commands(self, ctx: object) -> list[str]:
        return list(NOUNS)

    def get_command(self, ctx: object, cmd_name: str) -> TyperCommand | TyperGroup | None:
        if cmd_name not in NOUNS:
            return None
        if len(sys.argv) < 2 or cmd_name not in sys.argv:
            return TyperCommand(cmd_name, help=NOUNS[cmd_name].help)
        return command_of(cmd_name)


app = typer.Typer(
    cls=_Lazy,
    no_args_is_help=True,
    add_completion=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="duolog: a replicated message store.",
    pretty_exceptions_enable=False,
)


@app.callback(invoke_without_command=True)
def _root(
    version: bool = typer.Option(
        False, "--version", help="Print the versions of duolog, its formats and protocols."
    ),
) -> None:
    if version:
        _print_versions()
        raise typer.Exit


def _print_versions() -> None:
    """Print the release, and what two of them need in common to read or call each other."""
    from duolog import __version__
    from duolog._frames import VERSION as FRAMES
    from duolog.wire import duolog_pb2

    from duolog_server.compat.remoting.codec.command import VERSION_NAME
    from duolog_server.ha.frames import VERSION as REPLICATION

    print(f"duolog {__version__} (Python {platform.python_version()})")
    print(f"store: RocketMQ {VERSION_NAME}")
    print(f"replication: {REPLICATION}")
    print(f"native API: {duolog_pb2.DESCRIPTOR.package}, frames {FRAMES}")
    served = "" if find_spec("rocketmq") else " (not installed: the extra rocketmq)"
    print(f"RocketMQ's APIs: remoting {VERSION_NAME}, apache.rocketmq.v2{served}")


def main() -> None:
    """Entry point."""
    # gRPC's core has lines of its own for each attempt to connect; it reads this when it is
    # imported. What is wrong is in the command's error; a node has no other place for them.
    if sys.argv[1:3] != ["node", "start"]:
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    run(app)


def run(command: Callable[[], object]) -> None:
    """Run a command. If its output is closed early (`duolog ... | head`), it ends silently."""
    try:
        try:
            command()
        finally:
            sys.stdout.flush()  # otherwise Python flushes at exit and reports the error
    except BrokenPipeError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for stream in (sys.stdout, sys.stderr):
            os.dup2(nowhere, stream.fileno())
        sys.exit(0)


if __name__ == "__main__":
    main()
