"""`duolog doctor`: what is wrong with the cluster, and what to do about it."""

import dataclasses

import typer

from duolog_server.ops.cli.access import asked, call_seconds, calls, connection_settings
from duolog_server.ops.cli.output import print_json, show_findings, wants_json

app = typer.Typer(add_completion=False)

WRONG = 2  # exit status


@calls(app)
def doctor() -> None:
    """Say what is wrong with a cluster, and what to do.

    Asks every node, and changes nothing. Name all nodes: one that is gone may be known to no other.
    Exit status 0: nothing is wrong; 1: no node answers; 2: there are errors or warnings.
    """
    from duolog._client import parse_endpoints

    from duolog_server.ops.inspection.doctor.findings import NOTE
    from duolog_server.ops.inspection.survey import examine

    nodes = parse_endpoints(connection_settings().endpoints)
    findings = asked(lambda client: examine(client, nodes, call_seconds()))
    if wants_json():
        print_json([dataclasses.asdict(finding) for finding in findings])
    else:
        show_findings(findings)
    if any(finding.severity != NOTE for finding in findings):
        raise typer.Exit(WRONG)
