"""`duolog cluster rebalance`: queues move until replica groups carry about the same load."""

from typing import TYPE_CHECKING, Annotated

import typer

from duolog_server.ops.cli import output
from duolog_server.ops.cli.access import asked, calls
from duolog_server.ops.cli.topicmoves import move

if TYPE_CHECKING:
    from duolog import Client

    from duolog_server.ops.inspection.balance import Step

USAGE = "duolog cluster rebalance --help"


def rebalance(
    plan: Annotated[
        bool, typer.Option("--plan", help="Show the moves; this is the default.")
    ] = False,
    apply: Annotated[bool, typer.Option("--apply", help="Make the moves, one by one.")] = False,
    by: Annotated[
        str, typer.Option(help="What a load is: bytes-in, bytes (kept) or queues.")
    ] = "bytes-in",
    seconds: Annotated[
        float, typer.Option(min=1.0, max=3600.0, help="How long bytes-in are measured.")
    ] = 10.0,
    steps: Annotated[int, typer.Option(min=1, max=1000, help="At most so many moves.")] = 4,
    empty: Annotated[
        list[str] | None,
        typer.Option(
            help="Replica group that is to take no messages any more (repeatable). Those that "
            "retire always are."
        ),
    ] = None,
) -> None:
    """Move queues from the replica groups with the highest load to those with the lowest.

    Queues move until no group is more than a quarter above the mean, or no move is worth it. The
    command may be interrupted and repeated: it plans from where the queues are then.
    """
    from duolog_server.ops.inspection.balance import UNITS

    if plan and apply:
        output.refuse("--plan and --apply exclude each other", USAGE)
    if by not in UNITS:
        output.refuse(f"--by must be one of {', '.join(UNITS)}, not {by!r}", USAGE)
    found = asked(lambda client: planned(client, by, seconds, steps, tuple(empty or ())))
    if not apply:
        _show(found, UNITS[by])
        return
    for step in found:
        move(step.queue.topic, f"{step.queue.group}/{step.queue.queue_id}", step.to)
    if not found:
        output.say("nothing to move: the load is even")


async def planned(
    client: "Client", by: str, seconds: float, steps: int, empty: tuple[str, ...]
) -> "list[Step]":
    """The moves that even out the load, and empty the groups named and those that retire."""
    from duolog import BadRequest

    from duolog_server.ops.inspection.balance import loads_of, plan

    route = (await client.admin.route()).groups
    groups = [group.group for group in route]
    empty += tuple(group.group for group in route if group.retiring and group.group not in empty)
    for name in empty:
        if name not in groups:
            raise BadRequest(f"there is no replica group {name!r}: {', '.join(groups)}")
    if len(groups) < 2:
        raise BadRequest("the cluster has one replica group: nothing can move")
    loads = await loads_of(client, by, seconds)
    try:
        return plan(loads, groups, empty, steps)
    except ValueError as error:
        raise BadRequest(str(error)) from None


def _show(found: "list[Step]", unit: str) -> None:
    rows = [_row(step) for step in found]
    if output.wants_json():
        output.print_json(rows)
    elif not rows:
        output.say("nothing to move: the load is even")
    else:
        output.print_rows(rows, list(rows[0]), False)
        output.say(f"load in {unit}; nothing was changed: with --apply, they move")


def _row(step: "Step") -> dict[str, object]:
    return {
        "topic": step.queue.topic,
        "queue": f"{step.queue.group}/{step.queue.queue_id}",
        "to": step.to,
        "load": round(step.load, 1),
    }


def add_to(app: typer.Typer) -> None:
    """Add the command to its noun."""
    calls(app)(rebalance)
