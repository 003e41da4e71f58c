"""`duolog msg delayed`, `recall`, `half` and `decide`: messages that wait."""

import shlex
from typing import TYPE_CHECKING, Annotated

import typer

from duolog_server.ops.cli import output
from duolog_server.ops.cli.access import asked, calls
from duolog_server.ops.cli.arguments import PLACE, read_place
from duolog_server.ops.inspection.times import iso

if TYPE_CHECKING:
    from duolog import DelayedMessage, DelayedPage, HalfMessage, HalvesPage

    from duolog_server.ops.inspection.messages.places import Place

Of = typer.Argument(help="Only messages for this topic.")
After = typer.Option("--after", help="Start after this place, given by the page before.")
Limit = typer.Option("--limit", min=1, max=1000, help="Maximum number of rows.")
Where = typer.Argument(metavar=PLACE, help="Where it waits.")
QUEUE = 0  # of timed and of half messages, whatever their topics
_GONE = {"NoSuchMessage": "duolog msg delayed"}


def _delayed_row(row: "DelayedMessage") -> dict[str, object]:
    return {
        "due": iso(row.due_ms),
        "due_time": row.due_ms,
        "topic": row.topic,
        "place": f"{row.group}/{row.queue_id}/{row.queue_offset}",
        "waits_in": row.waits_in,
        "level": row.level,
        "unique_key": row.unique_key,
        "keys": row.keys,
        "tags": row.tags,
        "size": row.size,
        "store_time": row.stored_ms,
    }


def _show(
    page: "DelayedPage | HalvesPage",
    rows: list[dict[str, object]],
    columns: list[str],
    summary: str = "",
) -> None:
    """Print a page. summary: of all that wait, for people."""
    if output.wants_json():
        output.print_json({"waiting": page.waiting, "messages": rows, "next": page.next})
        return
    output.print_rows(rows, columns, False)
    if summary:
        output.say(summary)
    if page.next:
        output.say(f"there are more; the next ones: --after {shlex.quote(page.next)}")


def _read(text: str, what: str, hint: str) -> "Place":
    """A place in the queue that all of them lie in. It fails the command for any other one."""
    found = read_place(text, hint)
    if found.queue_id != QUEUE:
        output.fail(f"{text} is not the place of {what}: they all lie in queue {QUEUE}", hint)
    return found


def delayed(
    topic: Annotated[str, Of] = "",
    after: Annotated[str, After] = "",
    limit: Annotated[int, Limit] = 100,
) -> None:
    """List messages that wait for their time, the soonest first."""
    page = asked(lambda client: client.admin.delayed_page(topic, after=after, limit=limit))
    last = iso(page.last_due_ms or 0)
    summary = f"{page.waiting} wait, of all topics; the last is due at {last}"
    columns = ["due", "topic", "place", "level", "unique_key", "keys", "size"]
    rows = [_delayed_row(row) for row in page.rows]
    _show(page, rows, columns, summary if page.waiting else "")


def recall(
    topic: str,
    place: Annotated[str, Where],
    unique_key: str,
    yes: Annotated[bool, output.Yes] = False,
) -> None:
    """Take back a message that waits for a time: it is never delivered."""
    found = _read(place, "a message that waits for a time", "duolog msg delayed")
    output.confirm(f"Recall message {unique_key} of {topic}?", yes)

    group = found.replica_group
    asked(
        lambda client: client.admin.recall_delayed(topic, found.offset, unique_key, group=group),
        _GONE,
    )
    output.told({"recalled": unique_key}, f"recalled {unique_key}")


def half(
    topic: Annotated[str, Of] = "",
    after: Annotated[str, After] = "",
    limit: Annotated[int, Limit] = 100,
) -> None:
    """List half messages without a decision."""
    page = asked(lambda client: client.admin.halves_page(topic, after=after, limit=limit))
    columns = ["stored", "topic", "producer_group", "place", "checks", "next_check", "unique_key"]
    _show(page, [_half_row(row) for row in page.rows], columns)


def _half_row(row: "HalfMessage") -> dict[str, object]:
    return {
        "stored": iso(row.stored_ms),
        "store_time": row.stored_ms,
        "topic": row.topic,
        "producer_group": row.producer_group,
        "place": f"{row.group}/{QUEUE}/{row.half}",
        "queue_offset": row.queue_offset,
        "checks": row.checks,
        "next_check": iso(row.next_check_ms),
        "next_check_time": row.next_check_ms,
        "unique_key": row.unique_key,
        "keys": row.keys,
        "tags": row.tags,
        "size": row.size,
    }


def decide(
    producer_group: str,
    place: Annotated[str, Where],
    commit: Annotated[
        bool | None, typer.Option("--commit/--rollback", help="The decision, which is final.")
    ] = None,
    yes: Annotated[bool, output.Yes] = False,
) -> None:
    """Commit a half message or roll it back, in the place of its producer."""
    if commit is None:
        output.fail("pass --commit or --rollback", "duolog msg decide --help")
    found = _read(place, "a half message", "duolog msg half")
    decided = "committed" if commit else "rolled back"
    what = "Commit" if commit else "Roll back"
    output.confirm(f"{what} half message {place} of {producer_group}?", yes)

    decision, group = commit, found.replica_group
    asked(
        lambda client: client.admin.decide_half(
            producer_group, found.offset, commit=decision, group=group
        ),
        {"NoSuchMessage": "duolog msg half"},
    )
    output.told({"place": place, "committed": commit}, f"{decided}: {place}")


def add_to(app: typer.Typer) -> None:
    """Add the commands to a noun's."""
    for command in (delayed, recall, half, decide):
        calls(app)(command)
