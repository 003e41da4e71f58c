"""Write docs/cli.md from the tree of commands; with --check, compare."""

import inspect
from collections.abc import Iterable
from typing import Any

from typer.core import TyperCommand, TyperGroup

from duolog_server.ops.cli import access, brokeraccess
from duolog_server.ops.cli.main import NOUNS, command_of
from tools.generated import DOCS, write_or_compare

TARGET = DOCS / "cli.md"
HEAD = """# Command line

Generated from the commands by `make docs`; do not edit.

`duolog NOUN VERB --help` prints what is here, `duolog --version` the versions of duolog, its
formats and protocols; `duolog --install-completion` completes commands in your shell. Commands
print what was asked for on stdout, as a table on a terminal, as TSV in a pipe, as JSON with
`--json`, and everything else on stderr: an error in one line, and below it what to try.

| exit status | meaning |
|---|---|
| 0 | done, also if there was nothing to show or to do |
| 1 | failed: no node answers, what was named does not exist, a value or the call was refused |
| 2 | wrong usage (an unknown option, a number out of its range), or unusable configuration or \
connection settings; where a command says so below: something is wrong |
| 3 | `acl test`: the user may not do it |
| 74 | `node start`: the node fenced itself |
| 130 | interrupted by Ctrl-C |
"""
NODES = """
Options of commands that call nodes. Those from `--context` on may stand before the noun, too.
"""
BROKERS = """
Options of commands that call brokers or name servers of RocketMQ.
"""
TABLE = "\n| | |\n|---|---|\n"


def _written(param: Any) -> str:
    """An argument or option as it is written on a command line."""
    if param.param_type_name == "argument":
        word = param.metavar or param.name.upper()
        more = "..." if param.nargs != 1 else ""
        return f"{word}{more}" if param.required else f"[{word}{more}]"
    flags = ", ".join([*param.opts, *param.secondary_opts])
    return flags if param.is_flag else f"{flags} {param.metavar or 'VALUE'}"


def _default(param: Any) -> str:
    if param.required and param.param_type_name == "option":
        return " Required."
    value = param.default
    if isinstance(value, bool):
        value = (param.opts if value else param.secondary_opts)[0] if param.secondary_opts else ""
    if isinstance(value, float):
        value = f"{value:g}"
    return "" if value in (None, "", [], ()) else f" Default: `{value}`."


def _row(param: Any) -> str:
    text = (param.help or "").replace("|", "\\|")
    more = f" (`{param.envvar}`)" if param.envvar else ""
    return f"| `{_written(param)}` | {text}{_default(param)}{more} |\n"


def table(params: Iterable[Any]) -> str:
    """Arguments and options; empty where there are none to describe."""
    rows = [_row(one) for one in params if one.help]
    return "".join([TABLE, *rows]) if rows else ""


def section(words: str, command: TyperCommand) -> str:
    """What a command does, and its arguments and options but for those that many have."""
    own = [one for one in command.params if one.expose_value]
    arguments = [_written(one) for one in own if one.param_type_name == "argument"]
    kept = {one.name: one for one in command.params if not one.expose_value}
    panels = dict.fromkeys(one.rich_help_panel for one in kept.values() if one.rich_help_panel)
    also = [f"[{panel}](#{panel.lower().replace(' ', '-')})" for panel in panels]
    also += [f"`--timeout` ({kept['timeout'].default:g} s)"] if "timeout" in kept else []
    also += ["`--json`"] if "as_json" in kept else []
    told = f"\nAlso: {', '.join(also)}.\n" if also else ""
    usage = f"`{' '.join(['duolog', words, *arguments])}`\n\n" if arguments else ""
    return f"\n### {words}\n\n{usage}{inspect.cleandoc(command.help or '')}\n{table(own)}{told}"


def render() -> str:
    """The page."""
    calling, brokers = TyperCommand("nodes"), brokeraccess.CallsBrokers(name="brokers")
    access.add_options(calling, access.shared)
    parts = [HEAD, f"\n## {access.PANEL}\n{NODES}", table(calling.params)]
    parts += [f"\n## {brokeraccess.PANEL}\n{BROKERS}", table(brokers.params)]
    for noun, described in NOUNS.items():
        command = command_of(noun)
        if isinstance(command, TyperGroup):
            parts.append(f"\n## {noun}\n\n{described.help}\n")
            parts += [section(f"{noun} {verb}", one) for verb, one in command.commands.items()]
        else:
            parts.append(section(noun, command).replace("###", "##", 1))
    return "".join(parts)


if __name__ == "__main__":
    write_or_compare(TARGET, render())
