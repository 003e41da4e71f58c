"""Arguments of several commands: keys of the configuration, and places of messages."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

from duolog_server.ops.cli.output import fail

if TYPE_CHECKING:
    from duolog_server.ops.inspection.messages.places import Place

PLACE = "REPLICA-GROUP/QUEUE/OFFSET"
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


def read_place(text: str, hint: str) -> "Place":
    """Read a place; ends the command if the text is not one. hint: a command that shows places."""
    from duolog import BadRequest

    from duolog_server.ops.inspection.messages.places import place_of

    try:
        return place_of(text)
    except BadRequest as error:
        fail(str(error), hint)
