"""`duolog group dead`, `export` and `redeliver`: the dead letters of a group."""

from collections.abc import Awaitable
from contextlib import aclosing
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from duolog_server.ops.cli import output
from duolog_server.ops.cli.access import asked, calls
from duolog_server.ops.cli.arguments import PLACE, read_place

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from duolog import Client, Message

    from duolog_server.ops.inspection.deadletters.redelivery import Redelivery
    from duolog_server.ops.inspection.messages.places import Place

T = TypeVar("T")
REDELIVERY_SECONDS = 600.0
NONE = "group {group} has no dead letters"
_HINTS = {"UnknownTopic": "duolog group list"}
Max = typer.Option("--max", min=1, help="Maximum number of messages.")
At = typer.Option("--at", metavar=PLACE, help="Start at this one; default: the first.")
Letter = typer.Option(
    "--letter", metavar=PLACE, help="Only this dead letter (repeatable); default: all."
)


def _read(text: str) -> "Place":
    return read_place(text, "duolog group dead GROUP")


async def _or_none(client: "Client", group: str, work: Awaitable[T], none: T) -> T:
    """The result of some work on dead letters: `none` where the group exists, and never had one."""
    from duolog import UnknownTopic

    try:
        return await work
    except UnknownTopic:
        await client.admin.group(group)
        return none


def _row(letter: "Message") -> dict[str, object]:
    from duolog_server.ops.inspection.messages.places import Place

    properties = letter.properties
    return {
        "place": str(Place.of(letter)),
        "queue_offset": letter.queue_offset,
        "topic": properties.get("DLQ_ORIGIN_TOPIC", ""),
        "message_id": properties.get("DLQ_ORIGIN_MESSAGE_ID", ""),
        "store_time": letter.store_time_ms,
        "tags": letter.tags or "",
        "keys": " ".join(letter.keys),
        "attempts": letter.reconsume_times,
        "body": letter.body[:320].decode(errors="replace")[:80],
    }


def dead(
    group: str,
    limit: Annotated[int, Max] = 100,
    at: Annotated[str, At] = "",
) -> None:
    """Show the dead letters of a group: messages whose last attempt failed."""
    from duolog_server.ops.inspection.deadletters.letters import LettersPage, letters_page

    begin = _read(at) if at else None
    none = LettersPage((), 0, 0, None, None)
    page = asked(
        lambda client: _or_none(client, group, letters_page(client, group, begin, limit), none)
    )
    columns = ["place", "topic", "message_id", "tags", "attempts", "body"]
    output.print_rows(map(_row, page.letters), columns)
    if not page.total:
        output.say(NONE.format(group=group))
    if page.next is not None:
        output.say(f"there are more, {page.total} in all; the next ones: --at {page.next}")


def export(
    group: str,
    letter: Annotated[list[str] | None, Letter] = None,
    at: Annotated[str, At] = "",
) -> None:
    """Print dead letters whole, as JSON lines, the oldest of each queue first."""
    from duolog_server.ops.inspection.deadletters.letters import lines, selected

    places, begin = list(map(_read, letter or [])), _read(at) if at else None

    async def work(client: "Client") -> tuple[int, str]:
        count, last = 0, ""
        async with aclosing(lines(selected(client, group, places, begin))) as found:
            async for last in found:
                print(last, end="")
                count += 1
        return count, last

    count, last = asked(lambda client: _or_none(client, group, work(client), (0, "")), _HINTS)
    if last.startswith('{"stopped"'):
        output.say("the export is incomplete: its last line says why")
        raise typer.Exit(output.EXIT_ERROR)
    named = len(set(places))
    if count < named:
        output.say(f"not exported, as no longer kept: {named - count} of {named} dead letters")
        raise typer.Exit(output.EXIT_ERROR)
    if not last:
        output.say(NONE.format(group=group) + (" there" if begin else ""))


def redeliver(
    group: str,
    limit: Annotated[int, Max] = 100,
    letter: Annotated[list[str] | None, Letter] = None,
    yes: Annotated[bool, output.Yes] = False,
) -> None:
    """Send a group's dead letters to their original topics again: each once, or those named."""
    from duolog_server.ops.inspection.deadletters.redelivery import Bounds, Redelivery, redeliver_at
    from duolog_server.ops.inspection.deadletters.redelivery import redeliver as send_again

    places = list(map(_read, letter or []))
    what = f"{len(places)}" if places else f"up to {limit}"
    output.confirm(f"Redeliver {what} dead letters of {group}?", yes)

    def work(client: "Client") -> "Coroutine[object, None, Redelivery | None]":
        if places:
            return redeliver_at(client, group, places, REDELIVERY_SECONDS)
        again = send_again(client, group, Bounds(limit, REDELIVERY_SECONDS))
        return _or_none(client, group, again, None)

    found = asked(work, _HINTS)
    _show(group, found or Redelivery())
    if found is None:
        output.say(NONE.format(group=group))


def _show(group: str, done: "Redelivery") -> None:
    refused = [
        {"place": str(one.place), "topic": one.topic, "why": one.why} for one in done.refused
    ]
    if output.wants_json():
        more = {"refused": refused} if refused else {}
        stopped = {"stopped": done.stopped} if done.stopped else {}
        output.print_json({"group": group, "sent_again": done.sent, **more, **stopped})
    else:
        print(f"group       {output.plain(group)}\nsent again  {done.sent}")
        for one in refused:
            output.say(f"not sent: {one['place']} to {one['topic'] or '?'}: {one['why']}")
        if done.stopped:
            output.say(f"the rest was not tried: {done.stopped}")
    if refused or done.stopped:
        raise typer.Exit(output.EXIT_ERROR)


def add_to(app: typer.Typer) -> None:
    """Add the commands to a noun's."""
    calls(app)(dead)
    calls(app, json=False)(export)
    calls(app)(redeliver)
