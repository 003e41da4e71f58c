"""`duolog doctor`: what is wrong with the cluster, and what to do about it."""

import dataclasses
from typing import TYPE_CHECKING, Annotated

import typer

from duolog_server.ops.cli.access import DEFAULT_ENDPOINTS, Endpoints, client_of
from duolog_server.ops.cli.output import Json, Timeout, print_json, run, show_findings

if TYPE_CHECKING:
    from duolog_server.ops.inspection.doctor.findings import Finding

app = typer.Typer(add_completion=False)

WRONG = 2  # exit status


@app.command()
def doctor(
    endpoints: Annotated[str, Endpoints] = DEFAULT_ENDPOINTS,
    timeout: Annotated[float, Timeout] = 10.0,
    as_json: Annotated[bool, Json] = False,
) -> None:
    """Say what is wrong with a cluster, and what to do.

    Asks every node, and changes nothing. Name all nodes: one that is gone may be known to no other.
    Exit status 0: nothing is wrong; 1: no node answers; 2: there are errors or warnings.
    """
    from duolog_server.ops.inspection.doctor.findings import NOTE

    findings = run(_examine(endpoints, timeout))
    if as_json:
        print_json([dataclasses.asdict(finding) for finding in findings])
    else:
        show_findings(findings)
    if any(finding.severity != NOTE for finding in findings):
        raise typer.Exit(WRONG)


async def _examine(endpoints: str, timeout: float) -> "list[Finding]":
    from duolog._client import parse_endpoints

    from duolog_server.ops.inspection.survey import examine

    async with client_of(endpoints, timeout) as client:
        return await examine(client, parse_endpoints(endpoints), timeout)
