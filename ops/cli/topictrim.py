"""`duolog topic trim`: the oldest messages of a topic are hidden for good."""

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from duolog_server.ops.cli import output
from duolog_server.ops.cli.access import asked, calls

if TYPE_CHECKING:
    from duolog import Client, QueuePlace, TrimmedQueue

USAGE = "duolog topic trim --help"


def trim(
    topic: str,
    queue: Annotated[
        str,
        typer.Argument(
            metavar="[QUEUE]",
            help="Queue id, or REPLICA-GROUP/QUEUE where several groups have it; default: all.",
        ),
    ] = "",
    before: Annotated[
        str,
        typer.Option(
            "--before",
            metavar="WHEN",
            help="What is hidden: all before a time (10m, 2h, ISO, ms), or before offset:N of the "
            "queue; latest: all that there is.",
        ),
    ] = "",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what it would hide; hide nothing.")
    ] = False,
    yes: Annotated[bool, output.Yes] = False,
) -> None:
    """Hide the oldest messages of a topic for good.

    Nobody can read them from then on. Their disk space is freed as before: when the log deletes
    its oldest segments. What is sent while the command runs stays.
    """
    time_ms, offset = _read_before(before)
    if offset is not None and not queue:
        output.refuse(f"{before} is of one queue: name it", f"duolog topic trim {topic} QUEUE ...")

    async def planned(client: "Client") -> "list[TrimmedQueue]":
        place = await _place(client, topic, queue) if queue else None
        return await client.admin.trim_topic(
            topic, time_ms, queue=place, offset=offset, dry_run=True
        )

    async def trimmed(client: "Client") -> "list[TrimmedQueue]":
        """Hide what was shown, whatever has come since; queues that lose nothing are not asked."""
        from duolog import QueuePlace

        rows: list[TrimmedQueue] = []
        for one in found:
            place = QueuePlace(one.group, one.queue_id)
            rows += (
                await client.admin.trim_topic(topic, queue=place, offset=one.min_offset)
                if one.min_offset > one.first
                else [one]
            )
        return rows

    found = asked(planned)
    if not dry_run:
        count = sum(one.min_offset - one.first for one in found)
        output.confirm(f"Hide {count:,} messages of {topic} for good?", yes)
        found = asked(trimmed)
    rows = [
        {
            "queue": f"{one.group}/{one.queue_id}",
            "first": one.first,
            "min_offset": one.min_offset,
            "messages": one.min_offset - one.first,
        }
        for one in found
    ]
    output.print_rows(rows, ["queue", "first", "min_offset", "messages"])
    if not output.wants_json():
        _say_trimmed(topic, sum(one.min_offset - one.first for one in found), dry_run)


def _say_trimmed(topic: str, count: int, dry_run: bool) -> None:
    told = "would no longer be readable" if dry_run else "are no longer readable"
    freed = "would be freed" if dry_run else "is freed"
    output.say(
        f"{count:,} messages of {topic} {told}; their disk space {freed} when the log deletes the "
        "segments that hold them (store.file_reserved_time, or where the disk fills)"
    )


async def _place(client: "Client", topic: str, queue: str) -> "QueuePlace":
    from duolog import QueuePlace

    from duolog_server.ops.inspection.moves import named_place, read_place
    from duolog_server.ops.inspection.topics import parts_of

    group, queue_id = read_place(queue)
    if group:  # whose master knows whether it has that queue: no other group has to answer
        return QueuePlace(group, queue_id)
    parts, known = await asyncio.gather(parts_of(client, topic), client.admin.moves(topic))
    return named_place(topic, queue, parts, known)


def _read_before(text: str) -> tuple[int | None, int | None]:
    """The time, ms, or the offset before which messages are hidden; ends the command for none."""
    from duolog import Start

    from duolog_server.ops.inspection.resets import BadResumePoint, resume_point_of

    try:
        point = resume_point_of(text or Start.EARLIEST)
    except BadResumePoint as error:
        output.refuse(str(error), USAGE)
    if point.offset is not None:
        return None, point.offset
    if point.at == Start.EARLIEST:
        output.refuse("say which messages: --before TIME, offset:N or latest", USAGE)
    return output.LONG_MAX if point.at == Start.LATEST else int(point.at), None


def add_to(app: typer.Typer) -> None:
    """Add the command to a noun's."""
    calls(app)(trim)
