"""`duolog group`: list, show, explain, set, dead letters, reset, delete."""

import asyncio
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from duolog_server.ops.cli import deadletters, output
from duolog_server.ops.cli.access import asked, calls

if TYPE_CHECKING:
    from duolog import Client, GroupDescription, QueueMoves, TopicDescription

app = typer.Typer(no_args_is_help=True)


@calls(app, "list")
def list_(
    contains: Annotated[str, output.Contains] = "",
    limit: Annotated[int | None, output.Limit] = None,
    after: Annotated[str, output.After] = "",
) -> None:
    """List groups by name, all of them or a part, with their lag in messages and seconds."""
    page = asked(lambda client: client.admin.groups_page(contains, after=after, limit=limit or 0))

    rows = [
        {
            "group": group.group,
            "members": group.members,
            "clients": group.clients,
            "topics": " ".join(sorted({queue.topic for queue in group.queues})),
            "lag_messages": sum(queue.lag_messages for queue in group.queues),
            "lag_seconds": max((queue.lag_ms for queue in group.queues), default=0) / 1000,
        }
        for group in page.rows
    ]
    columns = ["group", "members", "clients", "topics", "lag_messages", "lag_seconds"]
    output.print_rows(rows, columns)
    output.say_next(page)


@calls(app)
def show(
    group: str,
) -> None:
    """Show the queues of a group: committed offsets, lag, readers."""

    rows = [
        {
            "topic": queue.topic,
            "queue_id": queue.queue_id,
            "committed": queue.committed,
            "max_offset": queue.max_offset,
            "replica_group": queue.replica_group,
            "lag_messages": queue.lag_messages,
            "lag_seconds": queue.lag_ms / 1000,
            "member": queue.member_id,
            "not_polled": queue.not_polled,
        }
        for queue in asked(lambda client: client.admin.group(group)).queues
    ]
    columns = ["topic", "queue_id", "committed", "max_offset", "lag_messages", "lag_seconds"]
    output.print_rows(rows, [*columns, "member", "not_polled"])


@calls(app)
def explain(
    group: str,
) -> None:
    """Say how a group is doing, what is wrong with it, and what to do."""
    from duolog_server.ops.inspection.doctor.consumers import ON_DEMAND, diagnose_groups, topics_of

    async def ask(
        client: "Client",
    ) -> "tuple[GroupDescription, list[TopicDescription], QueueMoves]":
        found, moved = await asyncio.gather(client.admin.group(group), client.admin.moves())
        return found, await client.admin.topics(topics_of(found), system=True), moved

    found, topics, moved = asked(ask)
    rows = [_progress(found, topic) for topic in sorted({q.topic for q in found.queues})]
    findings = diagnose_groups([found], topics, ON_DEMAND, moved)
    if output.wants_json():
        counts = {"members": found.members, "clients": found.clients}
        told_of = [asdict(finding) for finding in findings]
        output.print_json({"group": group, **counts, "topics": rows, "findings": told_of})
        return
    print(f"consumers connected: {found.members} of the SDK, {found.clients} of RocketMQ's clients")
    output.print_rows(rows, list(rows[0]) if rows else ["topic"], False)
    output.show_findings(findings)


def _progress(group: "GroupDescription", topic: str) -> dict[str, object]:
    """How far a group is in a topic."""
    queues = [queue for queue in group.queues if queue.topic == topic]
    return {
        "topic": topic,
        "queues": len(queues),
        "queues_read": sum(bool(queue.member_id) for queue in queues),
        "queues_not_polled": sum(queue.not_polled for queue in queues),
        "queues_behind": sum(queue.lag_messages > 0 for queue in queues),
        "lag_messages": sum(queue.lag_messages for queue in queues),
        "lag_seconds": max(queue.lag_ms for queue in queues) / 1000,
        "stalled_seconds": max(queue.stalled_ms for queue in queues) / 1000,
    }


@calls(app, "set")
def set_(
    group: str,
    orderly: Annotated[
        bool | None,
        typer.Option(
            "--orderly/--concurrent",
            help="Deliver the messages of a queue one at a time, in order.",
        ),
    ] = None,
    retry_times: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=output.INT_MAX,
            help="Retries after the first attempt, before a message becomes a dead letter.",
        ),
    ] = None,
    lite_topic: Annotated[
        str | None, typer.Option(help="Topic whose lite topics it subscribes to; empty: none.")
    ] = None,
    exclusive: Annotated[
        bool | None,
        typer.Option(
            "--exclusive/--shared", help="Whether a lite topic has one subscriber at a time."
        ),
    ] = None,
) -> None:
    """Create a group, or change how it consumes."""
    found = asked(
        lambda client: client.admin.put_group(
            group,
            orderly=orderly,
            retry_times=retry_times,
            lite_topic=lite_topic,
            lite_exclusive=exclusive,
        )
    )
    facts = {"group": found.group, "orderly": found.orderly, "retry_times": found.retry_times}
    if found.lite_topic:
        facts |= {"lite_topic": found.lite_topic, "exclusive": found.lite_exclusive}
    output.print_facts(facts)


deadletters.add_to(app)


@calls(app)
def reset(
    group: str,
    topic: str,
    to: Annotated[
        str, typer.Option(help="earliest, latest, a time (10m, 2h, ISO, ms), or offset:N.")
    ] = "earliest",
    yes: Annotated[bool, output.Yes] = False,
) -> None:
    """Set the offsets of a group that has no members now."""
    from duolog_server.ops.inspection.resets import BadResumePoint, resume_point_of

    try:
        point = resume_point_of(to)
    except BadResumePoint as error:
        output.fail(str(error), "duolog group reset --help")
    output.confirm(f"Reset the offsets of {group} in {topic} to {to}?", yes)

    rows = [
        {"topic": found.topic, "queue_id": found.queue_id, "offset": found.offset}
        for found in asked(
            lambda client: client.admin.reset_group(group, topic, point.at, offset=point.offset)
        )
    ]
    output.print_rows(rows, ["topic", "queue_id", "offset"])


@calls(app)
def delete(
    group: str,
    yes: Annotated[bool, output.Yes] = False,
) -> None:
    """Delete a group, its offsets and its dead letters."""
    output.confirm(f"Delete group {group}, its offsets and its dead letters?", yes)

    asked(lambda client: client.admin.delete_group(group))
    output.told({"deleted": group}, f"deleted {group}")
