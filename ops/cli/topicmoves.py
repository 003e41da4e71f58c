"""`duolog topic move` and `duolog topic describe`: queues that move between replica groups."""

import asyncio
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from duolog_server.ops.cli import output
from duolog_server.ops.cli.access import asked, calls
from duolog_server.ops.inspection.times import iso

if TYPE_CHECKING:
    from duolog import Client, QueueMove, QueueMoves, QueuePlace, QueueSpan, TopicDescription

    from duolog_server.ops.inspection.moves import Plan

USAGE = "duolog topic move --help"
RUNBOOK = "docs/runbooks/queue-moves.md"
WAIT_SECONDS = 600.0


def move(
    topic: str,
    queue: Annotated[
        str,
        typer.Argument(
            metavar="QUEUE",
            help="Queue id, or REPLICA-GROUP/QUEUE where several groups have that queue.",
        ),
    ],
    to: Annotated[str, typer.Option("--to", help="Replica group that it moves to.")] = "",
    plan: Annotated[
        bool, typer.Option("--plan", help="Show the steps and what they touch; change nothing.")
    ] = False,
    abort: Annotated[
        bool, typer.Option("--abort", help="End the move, which is possible until it seals.")
    ] = False,
    wait: Annotated[
        float, typer.Option("--wait", min=0.0, help="Seconds to wait until the move is over.")
    ] = WAIT_SECONDS,
) -> None:
    """Move a queue to another replica group, and wait until it has moved.

    No message is copied: the queue ends where it is, and continues in the other group. Without a
    group, QUEUE is looked for in all of them; where it moved before, it moves on from there.
    """
    if plan and abort:
        output.refuse("--plan and --abort exclude each other", USAGE)
    if not to and not abort:
        output.refuse("name the replica group that the queue moves to: --to GROUP", USAGE)
    if plan:
        _show_plan(asked(lambda client: _planned(client, topic, queue, to), _hints(topic)))
        return
    if abort:
        ended = asked(lambda client: _aborted(client, topic, queue, to, wait), _hints(topic))
        _tell_aborted(ended)
        return
    _tell(asked(lambda client: _moved(client, topic, queue, to, wait), _hints(topic)))


def _hints(topic: str) -> dict[str, str]:
    see = f"duolog topic describe {topic}"
    return {"Busy": see, "Timeout": see, "BadRequest": see, "UnknownTopic": "duolog topic list"}


async def _planned(client: "Client", topic: str, queue: str, to: str) -> "Plan":
    from duolog_server.ops.inspection.moves import find, plan_of

    place, _ = await find(client, topic, queue)
    return await plan_of(client, topic, place, to)


async def _moved(client: "Client", topic: str, queue: str, to: str, wait: float) -> "QueueMove":
    from duolog_server.ops.inspection.moves import find

    place, _ = await find(client, topic, queue)
    try:
        begun = await client.admin.move_queue(topic, place.queue_id, to, group=place.group)
        return await _watched(client, begun, wait)
    except asyncio.CancelledError:
        _say_it_continues(topic, place, to)
        raise


def _say_it_continues(topic: str, place: "QueuePlace", to: str) -> None:
    output.say(
        f"the move of {topic} {place} to {to} continues. To see it: duolog topic describe {topic}; "
        f"to end it before it seals: duolog topic move {topic} {place} --abort"
    )


async def _aborted(client: "Client", topic: str, queue: str, to: str, wait: float) -> "QueueMove":
    from duolog import BadRequest

    from duolog_server.ops.inspection.moves import find, running_move

    place, known = await find(client, topic, queue)
    running = running_move(known, topic, place)
    if running is None:
        raise BadRequest(f"no move of {topic} {place} is running")
    if to not in ("", running.target):
        raise BadRequest(f"{topic} {place} moves to {running.target}, not to {to}")
    return await _watched(
        client, await client.admin.abort_move(topic, place.queue_id, group=place.group), wait
    )


async def _watched(client: "Client", begun: "QueueMove", wait: float) -> "QueueMove":
    """A move once it is over; its states on the way are shown."""
    from duolog_server.ops.inspection.moves import followed

    last = begun
    async for last in followed(client, begun, wait):
        if not output.wants_json():
            why = f" ({last.reason})" if last.reason else ""
            output.say(f"{last.state}: {last.topic} {last.source} to {last.to or last.target}{why}")
    return last


def _tell(moved: "QueueMove") -> None:
    """How a move went. Fails the command if it did not move."""
    if not moved.has_moved:
        _fail(moved, "has not moved")
    output.told(
        _move_row(moved),
        f"moved: {moved.topic} {moved.source} ends at {moved.end} and continues at {moved.to}; "
        f"messages waited for {moved.pause_ms:.0f} ms",
    )


def _tell_aborted(ended: "QueueMove") -> None:
    """How an abort went. Fails the command if the queue moved all the same."""
    if ended.state != "ENDED":
        _fail(ended, "was sealed before, and moves")
    output.told(_move_row(ended), f"aborted: {ended.topic} {ended.source} takes messages as before")


def _fail(ended: "QueueMove", what: str) -> NoReturn:
    if output.wants_json():
        output.print_json(_move_row(ended))
    why = f": {ended.reason}" if ended.reason else ""
    output.fail(
        f"{ended.topic} {ended.source} {what} ({ended.state}{why})",
        f"duolog topic describe {ended.topic}   (and {RUNBOOK})",
    )


def _show_plan(plan: "Plan") -> None:
    move, queue = plan.move, plan.queue
    readers = [
        {
            "group": one.group,
            "committed": one.committed,
            "lag_messages": one.lag_messages,
            "lag_seconds": one.lag_ms / 1000,
            "consumers": one.consumers,
            "reader": one.reader,
        }
        for one in plan.readers
    ]
    facts: dict[str, object] = {
        "topic": move.topic,
        "queue": str(move.name),
        "from": str(move.source),
        "to": move.target,
        "state": move.state,
        "end_now": queue.max_offset,
        "messages_that_stay": plan.stays,
        "bytes_that_stay": queue.log_bytes,
    }
    if output.wants_json():
        output.print_json({**facts, "steps": plan.steps(), "groups": readers})
        return
    output.print_facts(facts)
    for number, step in enumerate(plan.steps(), 1):
        print(f"{number}. {output.plain(step)}")
    print("consumer groups that have to read it to its end:" if readers else "no group reads it")
    if readers:
        output.print_rows(readers, list(readers[0]), False)
    output.say("nothing was changed: without --plan, it moves")


def describe(topic: str) -> None:
    """Show where the queues of a topic are that moved to other replica groups, and running moves.

    Each row is a stretch of a queue, at one place: from its first offset to its end.
    """

    async def ask(client: "Client") -> "tuple[list[TopicDescription], QueueMoves]":
        from duolog_server.ops.inspection.topics import parts_of

        parts, known = await asyncio.gather(parts_of(client, topic), client.admin.moves(topic))
        return list(parts), known

    parts, known = asked(ask)
    spans, moves = list(map(_span_row, known.spans)), list(map(_move_row, known.moves))
    if output.wants_json():
        queues = {part.group: part.queues for part in parts}
        facts = {"topic": topic, "queues": queues, **_retention(parts[0])}
        output.print_json({**facts, "spans": spans, "moves": moves})
        return
    held = [f"{part.group}: {part.queues}" for part in parts]
    output.print_facts({"topic": topic, "queues": held, **_retention(parts[0])})
    if spans:
        shown = [{**row, "end": "" if row["end"] is None else row["end"]} for row in spans]
        output.print_rows(shown, list(shown[0]), False)
    else:
        print("no queue of it has moved")
    if moves:
        rows = [
            {**row, "since": iso(one.begin_ms)} for row, one in zip(moves, known.moves, strict=True)
        ]
        columns = ["queue", "from", "to", "state", "end", "since", "pause_ms", "reason"]
        output.print_rows(rows, columns, False)


def _retention(part: "TopicDescription") -> dict[str, object]:
    """What the topic itself keeps, where that is less than the log does."""
    hours, size = part.topic_retention_hours, part.retention_bytes
    return {
        **({"retention_hours": hours} if hours else {}),
        **({"retention_bytes": size} if size else {}),
    }


def _span_row(span: "QueueSpan") -> dict[str, object]:
    return {
        "queue": str(span.name),
        "place": str(span.place),
        "first": span.first,
        "end": span.end,
        "messages": max(0, span.max_offset - max(span.first, span.min_offset)),
        "takes_messages": span.following is None,
    }


def _move_row(move: "QueueMove") -> dict[str, object]:
    return {
        "topic": move.topic,
        "queue": str(move.name),
        "from": str(move.source),
        "to": str(move.to) if move.to is not None else move.target,
        "move": move.move,
        "state": move.state,
        "end": move.end,
        "begin_time": move.begin_ms,
        "pause_ms": round(move.pause_ms, 1),
        "reason": move.reason,
    }


def add_to(app: typer.Typer) -> None:
    """Add the commands to a noun's."""
    for command in (move, describe):
        calls(app)(command)
