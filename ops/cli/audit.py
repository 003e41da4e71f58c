"""`duolog audit`: who did what, and what was denied, as the topic of the audit log has it."""

import dataclasses
from typing import TYPE_CHECKING, Annotated

import typer

from duolog_server.ops.cli.access import DEFAULT_ENDPOINTS, Endpoints, client_of
from duolog_server.ops.cli.output import INT_MAX, Json, Timeout, fail, print_rows, run, say
from duolog_server.ops.inspection.times import BadTime, iso, time_of

if TYPE_CHECKING:
    from duolog_server.ops.inspection.auditlog import AuditPage, AuditSearch

app = typer.Typer(add_completion=False)

COLUMNS = ["time", "user", "source", "method", "resource", "decision", "reason", "times"]


@app.command()
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
    limit: Annotated[int, typer.Option(min=1, max=INT_MAX, help="At most so many.")] = 100,
    endpoints: Annotated[str, Endpoints] = DEFAULT_ENDPOINTS,
    timeout: Annotated[float, Timeout] = 10.0,
    as_json: Annotated[bool, Json] = False,
) -> None:
    """List what the audit log says, the newest first. The nodes need audit.topic for it."""
    from duolog_server.ops.inspection.auditlog import DECISIONS, AuditSearch

    if decision and decision not in DECISIONS:
        fail(f"--decision {decision}: it is not one of {', '.join(DECISIONS)}")
    try:
        before_ms = time_of(before) if before else None
    except BadTime as error:
        fail(f"--before: {error}")
    search = AuditSearch(by, action, resource, decision, before_ms, place)
    page = run(_ask(search, limit, endpoints, timeout))
    if not page.kept:
        fail("the nodes keep no audit log in a topic", "set audit.topic = true on all nodes")
    rows = [dataclasses.asdict(row) for row in page.rows]
    if not as_json:
        rows = [{**row, "time": iso(int(row["time_ms"]))} for row in rows]
    print_rows(rows, COLUMNS, as_json)
    if page.next:
        say(f"{page.scanned} entries were searched; for older ones: --from {page.next}")


async def _ask(search: "AuditSearch", limit: int, endpoints: str, timeout: float) -> "AuditPage":
    from duolog_server.ops.inspection.auditlog import audit_page

    async with client_of(endpoints, timeout) as client:
        return await audit_page(client, search, limit)
