"""`duolog pipeline flights`: the jobs on a real data set, while a master is killed."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from duolog_server.ops.cli.access import prints
from duolog_server.ops.cli.output import print_facts, wants_json
from duolog_server.ops.cli.pipeline import Master, app, run_job

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@prints(app)
def flights(
    out: Annotated[
        Path | None, typer.Option(help="Folder for the report; default: a new one.")
    ] = None,
    master: Annotated[str, Master] = "",
) -> None:
    """A year of flights through replay, stream, tier and report, while a master is killed."""
    from duolog.testing._process import ChildError
    from rich.console import Console

    from duolog_server.demo.flights import run_flights
    from duolog_server.demo.takeover import DemoError
    from duolog_server.pipeline.errors import BadJob

    def work(spark: "SparkSession") -> dict[str, str]:
        try:
            return run_flights(spark, Console(stderr=wants_json()), out)
        except (DemoError, ChildError) as error:
            raise BadJob(str(error)) from None

    facts = run_job("flights", master, work)
    if wants_json():
        print_facts(facts, True)
