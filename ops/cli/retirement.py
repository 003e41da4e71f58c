"""`duolog cluster retire` and `forget-group`: a replica group leaves the cluster."""

import time
from typing import TYPE_CHECKING, Annotated

import typer

from duolog_server.ops.cli import output
from duolog_server.ops.cli.access import asked, calls
from duolog_server.ops.cli.rebalance import planned
from duolog_server.ops.cli.topicmoves import move
from duolog_server.ops.inspection.times import iso

if TYPE_CHECKING:
    from duolog import Client

    from duolog_server.ops.inspection.balance import Step
    from duolog_server.ops.inspection.retirement import Need, Retirement

HINTS = {"BadRequest": "duolog cluster status", "Unavailable": "duolog doctor"}
STEPS_MAX = 1000  # moves of a plan; then the next one is made


def retire(
    group: Annotated[str, typer.Argument(help="Replica group that is to leave the cluster.")],
    status: Annotated[
        bool, typer.Option("--status", help="Show what still needs it; change nothing.")
    ] = False,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="Let it have new topics and queues again.")
    ] = False,
) -> None:
    """Have a replica group get no new topics and queues, move its queues away, show what needs it.

    Queues move one by one. The command may be interrupted and repeated: it moves those that are
    left. Exit status 0: the group may be stopped; 1: not yet. With --cancel, queues that moved stay
    where they are.
    """
    if status and cancel:
        output.refuse("--status and --cancel exclude each other", "duolog cluster retire --help")
    if cancel:
        asked(lambda client: client.admin.retire_group(group, undo=True), HINTS)
        output.told({"group": group, "retiring": False}, f"{group} no longer retires")
        return
    if not status:
        asked(lambda client: client.admin.retire_group(group), HINTS)
        while steps := asked(lambda client: _steps(client, group), HINTS):
            for step in steps:
                move(step.queue.topic, f"{step.queue.group}/{step.queue.queue_id}", step.to)
    found = asked(lambda client: _retirement(client, group), HINTS)
    _show(found)
    if not found.may_be_stopped:
        raise typer.Exit(1)


async def _steps(client: "Client", group: str) -> "list[Step]":
    from duolog_server.ops.inspection.balance import QUEUES

    found = await planned(client, QUEUES, 0.0, STEPS_MAX, (group,))
    return [step for step in found if step.queue.group == group]


async def _retirement(client: "Client", group: str) -> "Retirement":
    from duolog_server.ops.inspection.retirement import retirement_of

    return await retirement_of(client, group, int(time.time() * 1000))


def _show(found: "Retirement") -> None:
    if output.wants_json():
        output.print_json(
            {
                "group": found.group,
                "retiring": found.retiring,
                "may_be_stopped": found.may_be_stopped,
                "until": found.until_ms,
                "needs": [_row(need) | {"until": need.until_ms} for need in found.needs],
            }
        )
        return
    rows = [_row(need) for need in found.needs]
    if rows:
        output.print_rows(rows, list(rows[0]), False)
    by = f"; by retention from {iso(found.until_ms)} on" if found.until_ms else ""
    output.say(f"{found.verdict}{by}")


def _row(need: "Need") -> dict[str, object]:
    return {
        "kind": need.kind,
        "what": need.what,
        "count": need.count,
        "until": iso(need.until_ms) if need.until_ms else "",
        "note": need.note,
    }


def forget_group(
    group: Annotated[str, typer.Argument(help="Replica group that has retired.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Remove a replica group whose nodes were stopped for good: nothing names it any more.

    It must retire, and none of its nodes may live. Its name must not be used again: queues that
    were born there keep it.
    """
    output.confirm(f"remove replica group {group}, and all that only its nodes have?", yes)
    asked(lambda client: client.admin.forget_group(group), HINTS)
    output.told({"forgotten": group}, f"{group} is forgotten")


def add_to(app: typer.Typer) -> None:
    """Add the commands to their noun."""
    calls(app)(retire)
    calls(app)(forget_group)
