"""Messages are found by their key, their id, their place, their time, or what is in them."""

from duolog import BadRequest, NoSuchMessage

from duolog_server.ops.console.pages.messages.lookups import (
    KEY,
    MESSAGE_ID,
    OFFSET,
    TIME,
    UNIQUE_KEY,
    WAYS,
    Wanted,
)
from duolog_server.ops.console.pages.messages.rows import Row, message_row
from duolog_server.ops.console.pages.messages.searching import searched
from duolog_server.ops.console.view.formatting import counted
from duolog_server.ops.console.view.places import queue_place, time_ms
from duolog_server.ops.console.view.visits import Shown, Visit
from duolog_server.ops.inspection.messages.finding import by_time

ROWS = 50


async def messages(visit: Visit) -> Shown:
    """Messages of a topic by what is known of them. Raises BadRequest."""
    wanted = Wanted.of(visit.query)
    facts: dict[str, object] = {"search": wanted, "ways": WAYS, "rows": None, "running": None}
    facts["sentence"] = "Find a message by its key, its id, its place, its time, or what is in it."
    over = False
    if wanted.searches and wanted.value:
        found = await searched(visit, wanted)
        facts |= found.facts
        over = found.over
    elif wanted.value or (wanted.topic and wanted.by == TIME):
        rows = await _found(visit, wanted)
        facts["rows"] = rows
        facts["sentence"] = f"{counted(len(rows), 'message')} found."
        if len(rows) == ROWS:
            facts["sentence"] = f"The first {ROWS} messages that were found."
    return Shown("messages.html", "Messages", facts, wanted.command, over=over)


async def _found(visit: Visit, wanted: Wanted) -> list[Row]:
    client, topic, value = visit.client, wanted.topic, wanted.value
    if not topic and wanted.by != MESSAGE_ID:
        raise BadRequest("name the topic: only a search by message id needs none")
    if wanted.by == TIME:
        begin = time_ms(value)
        return [
            message_row(visit.seeing, one, one.group)
            for one in await by_time(client, topic, begin, 0, ROWS)
        ]
    if wanted.by == OFFSET:
        group, queue_id, offset = queue_place(value)
        batch = await client.pull(topic, queue_id, offset, max_messages=ROWS, group=group)
        return [message_row(visit.seeing, one, one.group) for one in batch]
    how = {KEY: "key", UNIQUE_KEY: "unique_key", MESSAGE_ID: "message_id"}[wanted.by]
    try:
        found = await client.admin.find(topic, count=ROWS, **{how: value})  # type: ignore[arg-type]
    except NoSuchMessage:
        return []
    return [message_row(visit.seeing, one, one.group) for one in found]
