"""Keys of the configuration on a command line: `--set SECTION.KEY=VALUE`."""

from collections.abc import Sequence

import typer

from duolog_server.ops.cli.output import fail

Setting = typer.Option("--set", help="SECTION.KEY=VALUE: set a config key (repeatable).")


def settings_of(texts: Sequence[str]) -> dict[str, dict[str, object]]:
    """Values by section and key; ends the command where a text is none."""
    flags: dict[str, dict[str, object]] = {}
    for text in texts:
        where, separator, value = text.partition("=")
        section, dot, key = where.partition(".")
        if not separator or not dot:
            fail(f"--set {text!r} is not SECTION.KEY=VALUE", "duolog config show")
        flags.setdefault(section, {})[key] = value
    return flags
