"""`duolog config`: what is configured, and where it comes from."""

from pathlib import Path
from typing import Annotated

import typer

from node.cli.output import Json, fail, print_rows

app = typer.Typer(no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Show the configuration."""


@app.command()
def show(
    config: Annotated[Path | None, typer.Option(help="TOML file (default ./duolog.toml).")] = None,
    origin: Annotated[
        bool, typer.Option("--origin", help="Show where each value comes from.")
    ] = False,
    as_json: Annotated[bool, Json] = False,
) -> None:
    """Show every key with its value."""
    from node.config import ConfigError, load, rows

    try:
        loaded, origins = load(config)
    except ConfigError as error:
        fail(str(error), "duolog config show --help   (or: docs/configuration.md)", 2)
    table = [
        {"key": f"{section}.{key}", "value": value, **({"origin": where} if origin else {})}
        for section, key, value, where in rows(loaded, origins)
    ]
    print_rows(table, ["key", "value", *(["origin"] if origin else [])], as_json)
