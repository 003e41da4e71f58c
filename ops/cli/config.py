"""`duolog config`: what is configured, and where it comes from."""

from pathlib import Path
from typing import Annotated

import typer

from duolog_server.ops.cli.access import prints
from duolog_server.ops.cli.output import fail, print_json, print_rows, wants_json

app = typer.Typer(no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Show and check the configuration."""


@prints(app)
def show(
    config: Annotated[Path | None, typer.Option(help="TOML file (default ./duolog.toml).")] = None,
    origin: Annotated[
        bool, typer.Option("--origin", help="Show where each value comes from.")
    ] = False,
) -> None:
    """Show every key with its value."""
    from duolog_server.node.runtime.config import ConfigError, load, rows

    try:
        loaded, origins = load(config)
    except ConfigError as error:
        fail(str(error), "duolog config show --help   (or: docs/configuration.md)", 2)
    unset = None if wants_json() else ""  # a file that is not named, and not one that is unknown
    table = [
        {
            "key": f"{section}.{key}",
            "value": unset if value is None else value,
            **({"origin": where} if origin else {}),
        }
        for section, key, value, where in rows(loaded, origins)
    ]
    print_rows(table, ["key", "value", *(["origin"] if origin else [])])


@prints(app)
def check(
    config: Annotated[Path | None, typer.Option(help="TOML file (default ./duolog.toml).")] = None,
) -> None:
    """Say what a node would refuse, and what works but is not safe.

    Exit status 0: a node starts with it, warnings or not; 2: it does not.
    """
    from datetime import UTC, datetime

    from duolog_server.node.identity.access.secrets import BadKeyFile, read_key
    from duolog_server.node.runtime.cautions import cautions, unreached, untimely
    from duolog_server.node.runtime.config import ConfigError, load
    from duolog_server.ops.inspection.messages.protobodies import ProtoTypes

    try:
        loaded, _ = load(config)
        if loaded.access.key_file is not None:
            read_key(loaded.access.key_file)
    except (ConfigError, BadKeyFile) as error:
        fail(str(error), "duolog config show --origin   (or: docs/configuration.md)", 2)
    found = [*cautions(loaded), *unreached(loaded), *untimely(loaded, datetime.now(UTC))]
    types = ProtoTypes.of(loaded.console.protobuf)
    found += [f"console.protobuf: {wrong}: bodies are not shown so" for wrong in types.wrong]
    if wants_json():
        print_json(found)
        return
    for text in found:
        print(f"warning: {text}")
    if not found:
        print("no problems found")
