"""`duolog audit`: who did what, and what was denied, as the topic of the audit log has it."""

import dataclasses
from typing import Annotated

import typer

from duolog_server.ops.cli import output
from duolog_server.ops.cli.access import asked, calls
from duolog_server.ops.inspection.times import BadTime, iso, time_of

app = typer.Typer(add_completion=False)

COLUMNS = ["time", "user", "source", "method", "resource", "decision", "reason", "times"]


@calls(app)
def audit(
    by: Annotated[str, typer.Option(help="Only calls of users with this in their names.")] = "",
    action: Annotated[
        str, typer.Option(help="Only methods with this in their names: CreateTopic, Access/.")
    ] = "",
    resource: Annotated[str, typer.Option(help="Only resources with this in their names.")] = "",
    decision: Annotated[str, typer.Option(help="allowed, denied, failed or lost.")] = "",
    before: Annotated[str, typer.Option(help="End time: 2h, 3d, 2026-01-31T12:00, or ms.")] = "",
    place: Annotated[
        str, typer.Option("--from", help="Start after this place, given by the page before.")
    ] = "",
    limit: Annotated[
        int, typer.Option(min=1, max=output.INT_MAX, help="Maximum number of rows.")
    ] = 100,
) -> None:
    """List what the audit log says, the newest first. The nodes need audit.topic for it."""
    from duolog_server.ops.inspection.auditlog import DECISIONS, AuditSearch, audit_page

    if decision and decision not in DECISIONS:
        output.fail(f"--decision {decision}: it is not one of {', '.join(DECISIONS)}")
    try:
        before_ms = time_of(before) if before else None
    except BadTime as error:
        output.fail(f"--before: {error}")
    search = AuditSearch(by, action, resource, decision, before_ms, place)
    page = asked(lambda client: audit_page(client, search, limit))
    if not page.kept:
        output.fail("the nodes keep no audit log in a topic", "set audit.topic = true on all nodes")
    rows = [dataclasses.asdict(row) for row in page.rows]
    if not output.wants_json():
        rows = [{**row, "time": iso(int(row["time_ms"]))} for row in rows]
    output.print_rows(rows, COLUMNS)
    if page.next:
        output.say(f"{page.scanned} entries were searched; for older ones: --from {page.next}")
