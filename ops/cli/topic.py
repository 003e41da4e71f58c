"""`duolog topic`: list, show, create, alter, delete, stats.

Its other commands: queues that move (topicmoves.py), messages that are hidden (topictrim.py).
"""

from typing import TYPE_CHECKING, Annotated

import typer

from duolog_server.ops.cli import output, topicmoves, topictrim
from duolog_server.ops.cli.access import asked, calls
from duolog_server.ops.inspection.times import iso

if TYPE_CHECKING:
    from duolog import TopicDescription

app = typer.Typer(no_args_is_help=True)

RetentionHours = typer.Option(
    "--retention-hours",
    min=0,
    max=output.INT_MAX,
    help="Hours for which messages are kept, not longer than the log; 0: as long as the log.",
)
RetentionBytes = typer.Option(
    "--retention-bytes",
    min=0,
    max=output.LONG_MAX,
    help="Bytes of the newest messages that are kept in each replica group; 0: all.",
)


def _messages(topic: "TopicDescription") -> int:
    return sum(queue.max_offset - queue.min_offset for queue in topic.stats)


def _row(topic: "TopicDescription") -> dict[str, object]:
    return {
        "topic": topic.topic,
        "group": topic.group,
        "queues": topic.queues,
        "perm": topic.perm,
        "type": topic.message_type or "any",
        **({"lite_ttl": topic.lite_ttl_minutes} if topic.lite_ttl_minutes else {}),
        **({"owner": topic.owner} if topic.owner else {}),
        **({"retention_hours": topic.retention_hours} if topic.retention_hours else {}),
        **({"retention_bytes": topic.retention_bytes} if topic.retention_bytes else {}),
        "messages": _messages(topic),
    }


@calls(app, "list")
def list_(
    system: Annotated[bool, typer.Option(help="Include system topics.")] = False,
    contains: Annotated[str, output.Contains] = "",
    limit: Annotated[int | None, output.Limit] = None,
    after: Annotated[str, output.After] = "",
) -> None:
    """List topics by name: all of them, or a part."""
    page = asked(
        lambda client: client.admin.topics_page(
            contains, after=after, limit=limit or 0, system=system, times=False
        )
    )
    output.print_rows(map(_row, page.rows), ["topic", "group", "queues", "perm", "messages"])
    output.say_next(page)


def _parts(topic: str, *, sizes: bool = False) -> "list[TopicDescription]":
    """A topic, of each replica group that has it. Fails the command where none has."""
    found = asked(lambda client: client.admin.topics([topic], system=True, sizes=sizes))
    if not found:
        output.fail(f"topic {topic!r} does not exist", "duolog topic list")
    return found


@calls(app)
def show(topic: str) -> None:
    """Show a topic: its settings, how many messages it has, when the last one was stored."""
    parts = _parts(topic)
    last_ms = max(queue.last_store_time_ms or 0 for part in parts for queue in part.stats) or None
    whole = {
        **_row(parts[0]),
        "group": [part.group for part in parts],
        "queues": sum(part.queues for part in parts),
        "messages": sum(map(_messages, parts)),
        "last_store_time": last_ms if output.wants_json() else iso(last_ms),
    }
    output.print_facts(whole)


@calls(app)
def create(
    topic: str,
    queues: Annotated[int, typer.Option(max=output.INT_MAX, help="Number of queues.")] = 4,
    perm: Annotated[int, typer.Option(max=6, help="Permissions: 4 read + 2 write.")] = 6,
    message_type: Annotated[
        str,
        typer.Option(
            "--type", help="NORMAL, FIFO, DELAY, TRANSACTION, PRIORITY or LITE; default: any."
        ),
    ] = "",
    lite_ttl: Annotated[
        int,
        typer.Option(
            max=output.INT_MAX,
            help="Minutes without a message before a lite topic expires; 0: never.",
        ),
    ] = 0,
    retention_hours: Annotated[int, RetentionHours] = 0,
    retention_bytes: Annotated[int, RetentionBytes] = 0,
) -> None:
    """Create a topic."""
    if queues < 1 or perm < 1:
        output.fail(
            f"queues {queues}, perm {perm}: both must be at least 1", "duolog topic create --help"
        )
    if lite_ttl < 0:
        output.fail(
            f"--lite-ttl is {lite_ttl}; it must not be negative", "duolog topic create --help"
        )

    made = asked(
        lambda client: client.admin.create_topic(
            topic,
            queues,
            perm,
            message_type=message_type,
            lite_ttl_minutes=lite_ttl,
            retention_hours=retention_hours,
            retention_bytes=retention_bytes,
        )
    )
    output.print_facts(_row(made))


@calls(app)
def alter(
    topic: str,
    queues: Annotated[
        int | None,
        typer.Option(min=1, max=output.INT_MAX, help="New number of queues; it can only grow."),
    ] = None,
    perm: Annotated[
        int | None, typer.Option(min=2, max=6, help="Permissions: 4 read + 2 write.")
    ] = None,
    lite_ttl: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=output.INT_MAX,
            help="Minutes without a message before a lite topic expires; 0: never.",
        ),
    ] = None,
    retention_hours: Annotated[int | None, RetentionHours] = None,
    retention_bytes: Annotated[int | None, RetentionBytes] = None,
) -> None:
    """Add queues, change permissions, or for how long messages are kept."""
    if all(one is None for one in (queues, perm, lite_ttl, retention_hours, retention_bytes)):
        output.fail(
            "nothing to change: give --queues, --perm, --lite-ttl, --retention-hours or "
            "--retention-bytes",
            "duolog topic alter --help",
        )

    made = asked(
        lambda client: client.admin.alter_topic(
            topic,
            queues or 0,
            perm or 0,
            lite_ttl_minutes=lite_ttl,
            retention_hours=retention_hours,
            retention_bytes=retention_bytes,
        )
    )
    output.print_facts(_row(made))


@calls(app)
def delete(
    topic: str,
    yes: Annotated[bool, output.Yes] = False,
) -> None:
    """Delete a topic and its messages."""
    output.confirm(f"Delete topic {topic} and all its messages?", yes)

    asked(lambda client: client.admin.delete_topic(topic))
    output.told({"deleted": topic}, f"deleted {topic}")


@calls(app)
def stats(
    topic: str,
) -> None:
    """Show the queues of a topic: offsets, time of the last message, bytes in the log.

    A node that does not know the bytes yet counts some millions of messages in each call.
    """
    rows = [
        {
            "queue_id": s.queue_id,
            "min_offset": s.min_offset,
            "max_offset": s.max_offset,
            "last_store_time": s.last_store_time_ms
            if output.wants_json()
            else iso(s.last_store_time_ms),
            "log_bytes": s.log_bytes,
        }
        for topic_row in _parts(topic, sizes=True)
        for s in topic_row.stats
    ]
    columns = ["queue_id", "min_offset", "max_offset", "last_store_time", "log_bytes"]
    output.print_rows(rows, columns)


topictrim.add_to(app)
topicmoves.add_to(app)
