"""`duolog`: the tree of commands. Each noun is imported when it is used."""

import importlib
import os
import sys
from collections.abc import Callable

import typer
from typer.core import TyperCommand, TyperGroup

_NOUNS = {
    "node": "Start a node, or check one.",
    "topic": "List, create, alter, delete topics.",
    "msg": "Send, get, find and tail messages.",
    "group": "List, show, set, reset consumer groups.",
    "cluster": "Show the cluster, switch and drain nodes.",
    "store": "Inspect a store directory, offline.",
    "bench": "Measure produce, consume and recovery.",
    "pipeline": "Jobs on Spark: audit, rebuild, tier, replay, report.",
    "config": "Show the configuration and where it comes from.",
    "demo": "Store, crash and recover a real data set.",
}


class _Lazy(TyperGroup):
    """Imports a noun's commands only when that noun is named: `--help` stays fast."""

    def list_commands(self, ctx: object) -> list[str]:
        return list(_NOUNS)

    def get_command(self, ctx: object, cmd_name: str) -> TyperCommand | TyperGroup | None:
        if cmd_name not in _NOUNS:
            return None
        if len(sys.argv) < 2 or cmd_name not in sys.argv:
            return TyperCommand(cmd_name, help=_NOUNS[cmd_name])
        module = importlib.import_module(f"node.cli.{cmd_name}")
        command = typer.main.get_command(module.app)
        assert isinstance(command, TyperCommand | TyperGroup), "typer makes them"
        command.name = cmd_name
        command.help = _NOUNS[cmd_name]
        return command


app = typer.Typer(
    cls=_Lazy,
    no_args_is_help=True,
    add_completion=True,
    help="duolog: a replicated message store.",
    pretty_exceptions_enable=False,
)


@app.callback(invoke_without_command=True)
def _root(version: bool = typer.Option(False, "--version", help="Print the version.")) -> None:
    if version:
        from duolog import __version__

        print(__version__)
        raise typer.Exit


def main() -> None:
    """Entry point."""
    run(app)


def run(command: Callable[[], object]) -> None:
    """Run a command. If its output is closed early (`duolog ... | head`), it ends silently."""
    try:
        try:
            command()
        finally:
            sys.stdout.flush()  # else Python does so at its end, and complains
    except BrokenPipeError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for stream in (sys.stdout, sys.stderr):
            os.dup2(nowhere, stream.fileno())
        sys.exit(0)


if __name__ == "__main__":
    main()
