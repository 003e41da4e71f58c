"""`duolog msg delayed`, `recall`, `half` and `decide`: messages that wait."""

import shlex
from typing import TYPE_CHECKING, Annotated

import typer

from duolog_server.ops.cli.access import DEFAULT_ENDPOINTS, Endpoints, asked, client_of
from duolog_server.ops.cli.output import (
    Json,
    Timeout,
    Yes,
    confirm,
    fail,
    print_facts,
    print_json,
    print_rows,
    run,
    say,
)
from duolog_server.ops.cli.places import PLACE, read_place
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
    as_json: bool,
    told: str = "",
) -> None:
    """Print a page. told: of all that wait, for people."""
    if as_json:
        print_json({"waiting": page.waiting, "messages": rows, "next": page.next})
        return
    print_rows(rows, columns, False)
    if told:
        say(told)
    if page.next:
        say(f"there are more; the next ones: --after {shlex.quote(page.next)}")


def _read(text: str, what: str, hint: str) -> "Place":
    """A place in the queue that all of them lie in. It fails the command for any other one."""
    found = read_place(text, hint)
    if found.queue_id != QUEUE:
        fail(f"{text} is not the place of {what}: they all lie in queue {QUEUE}", hint)
    return found


def delayed(
    topic: Annotated[str, Of] = "",
    after: Annotated[str, After] = "",
    limit: Annotated[int, Limit] = 100,
    endpoints: Annotated[str, Endpoints] = DEFAULT_ENDPOINTS,
    timeout: Annotated[float, Timeout] = 10.0,
    as_json: Annotated[bool, Json] = False,
) -> None:
    """List messages that wait for their time, the soonest first."""
    page = asked(
        endpoints,
        timeout,
        lambda client: client.admin.delayed_page(topic, after=after, limit=limit),
    )
    last = iso(page.last_due_ms or 0)
    told = f"{page.waiting} wait, of all topics; the last is due at {last}" if page.waiting else ""
    columns = ["due", "topic", "place", "level", "unique_key", "keys", "size"]
    _show(page, [_delayed_row(row) for row in page.rows], columns, as_json, told)


def recall(
    topic: str,
    place: Annotated[str, Where],
    unique_key: str,
    yes: Annotated[bool, Yes] = False,
    endpoints: Annotated[str, Endpoints] = DEFAULT_ENDPOINTS,
    timeout: Annotated[float, Timeout] = 10.0,
    as_json: Annotated[bool, Json] = False,
) -> None:
    """Take back a message that waits for a time: it is never delivered."""
    found = _read(place, "a message that waits for a time", "duolog msg delayed")
    confirm(f"Recall message {unique_key} of {topic}?", yes)

    async def ask() -> None:
        async with client_of(endpoints, timeout) as client:
            await client.admin.recall_delayed(
                topic, found.offset, unique_key, group=found.replica_group
            )

    run(ask(), _GONE)
    if as_json:
        print_facts({"recalled": unique_key}, True)
    else:
        say(f"recalled {unique_key}")


def half(
    topic: Annotated[str, Of] = "",
    after: Annotated[str, After] = "",
    limit: Annotated[int, Limit] = 100,
    endpoints: Annotated[str, Endpoints] = DEFAULT_ENDPOINTS,
    timeout: Annotated[float, Timeout] = 10.0,
    as_json: Annotated[bool, Json] = False,
) -> None:
    """List half messages without a decision."""
    page = asked(
        endpoints, timeout, lambda client: client.admin.halves_page(topic, after=after, limit=limit)
    )
    columns = ["stored", "topic", "producer_group", "place", "checks", "next_check", "unique_key"]
    _show(page, [_half_row(row) for row in page.rows], columns, as_json)


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
    yes: Annotated[bool, Yes] = False,
    endpoints: Annotated[str, Endpoints] = DEFAULT_ENDPOINTS,
    timeout: Annotated[float, Timeout] = 10.0,
    as_json: Annotated[bool, Json] = False,
) -> None:
    """Commit a half message or roll it back, in the place of its producer."""
    if commit is None:
        fail("pass --commit or --rollback", "duolog msg decide --help")
    found = _read(place, "a half message", "duolog msg half")
    decided = "committed" if commit else "rolled back"
    what = "Commit" if commit else "Roll back"
    confirm(f"{what} half message {place} of {producer_group}?", yes)

    async def ask() -> None:
        async with client_of(endpoints, timeout) as client:
            await client.admin.decide_half(
                producer_group, found.offset, commit=commit, group=found.replica_group
            )

    run(ask(), {"NoSuchMessage": "duolog msg half"})
    if as_json:
        print_facts({"place": place, "committed": commit}, True)
    else:
        say(f"{decided}: {place}")


COMMANDS = (delayed, recall, half, decide)
