"""A message in a list, and on a page of its own: its body, its properties, and its whole way."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from duolog import FoundMessage, Message, NoSuchMessage, TrackState

from duolog_server.ops.console.masking.seen import LINE_CHARACTERS, Seeing
from duolog_server.ops.console.view.addresses import (
    MESSAGE,
    MESSAGE_AGAIN,
    TOPIC,
    Address,
    address,
)
from duolog_server.ops.console.view.formatting import command, counted, number
from duolog_server.ops.console.view.inputs import queue_offset
from duolog_server.ops.console.view.visits import Shown, Visit
from duolog_server.ops.inspection.messages import trace as way
from duolog_server.ops.inspection.messages.finding import client_records
from duolog_server.ops.inspection.messages.sending import is_users

MORE = "…"
STATES = {
    TrackState.WAITING: "Not reached yet",
    TrackState.IN_FLIGHT: "In flight",
    TrackState.RETRY: "Retrying",
    TrackState.CONSUMED: "Consumed",
    TrackState.DEAD_LETTER: "Dead letter",
}


@dataclass(frozen=True, slots=True)
class Row:
    """A message in a list. line: the beginning of its body. group: the replica group it lies in."""

    topic: str
    queue_id: int
    queue_offset: int
    store_time_ms: int
    tags: str
    keys: str
    size: int
    line: str
    group: str = ""

    @property
    def link(self) -> str:
        """The address of the message's page."""
        names = {"topic": self.topic, "queue": self.queue_id, "offset": self.queue_offset}
        return address(MESSAGE, {"group": self.group}, **names)


def message_row(seeing: Seeing, message: Message | FoundMessage, group: str = "") -> Row:
    """A message, in one line, as a viewer sees it. group: the replica group where it lies."""
    seen = seeing.see(message)
    properties = seen.properties
    return Row(
        message.topic,
        message.queue_id,
        message.queue_offset,
        message.store_time_ms,
        _cut(properties.get("TAGS", "")),
        _cut(properties.get("KEYS", "")),
        len(message.body),
        seen.line,
        group,
    )


def _cut(text: str) -> str:
    """A text that may be long, for a cell of a table."""
    return text if len(text) <= LINE_CHARACTERS else text[: LINE_CHARACTERS - 1] + MORE


async def message(visit: Visit) -> Shown:
    """One message: its body, its properties, and its way; or why there is none at its place."""
    topic = visit.path["topic"]
    queue_id, offset = queue_offset(f"{visit.path['queue']}/{visit.path['offset']}")
    group = visit.query.get("group") or None
    batch = await visit.client.pull(topic, queue_id, offset, max_messages=1, group=group)
    found = next(iter(batch), None)
    title, queue = way.place_text(topic, queue_id, offset), batch.wire

    def page(place: int, pattern: str = MESSAGE) -> Address:
        names = {"topic": topic, "queue": queue_id, "offset": place}
        return address(pattern, {"group": batch.group}, **names)

    if found is None or found.queue_offset != offset:
        near = queue.max_offset - 1 if found is None else found.queue_offset
        links = [("Nearest message", page(near))] if queue.min_offset <= near != offset else []
        links.append((topic, address(TOPIC, topic=topic)))
        # At the end of its queue, the page waits for the message.
        facts = {"endpoints": (), "links": links, "follows": offset >= queue.max_offset}
        told = _without(offset, queue.min_offset, queue.max_offset)
        return Shown("error.html", title, {"sentence": told, **facts})
    seen = visit.seeing.see(found)
    unique_key = found.properties.get("UNIQ_KEY", "")
    states = await visit.client.admin.track(topic, queue_id, offset, group=group)
    facts = {
        "sentence": _states(states),
        "born_ms": found.born_time_ms,
        "row": message_row(visit.seeing, found, found.group),
        "properties": sorted(seen.properties.items()),
        "body": seen.body,
        "states": [(name, STATES[state]) for name, state in sorted(states.items())],
        "before": page(offset - 1) if offset > queue.min_offset else "",
        "after": page(offset + 1),
        "is_newest": offset + 1 >= queue.max_offset,
        "again": page(offset, MESSAGE_AGAIN) if is_users(topic) else "",
        "steps": await _way(visit, topic, unique_key),
    }
    flags = ["--unique-key", unique_key]
    track = command("msg", "track", names=[topic], flags=flags) if unique_key else ""
    return Shown("message.html", title, facts, track, over=True)


def _without(offset: int, begin: int, end: int) -> str:
    """Why there is no message at a place of a queue [begin, end)."""
    if offset >= end:
        return f"The queue ends at offset {number(end)}: no message is stored here yet."
    if offset < begin:
        return f"Deleted by retention: the queue begins at offset {number(begin)} now."
    return "The record at this place is damaged or gone."


def _states(states: Mapping[str, TrackState]) -> str:
    if not states:
        return "No consumer group that you may see has begun to read its topic."
    done = sum(state is TrackState.CONSUMED for state in states.values())
    if done == len(states):
        return f"Consumed by {'its group' if done == 1 else f'all {done} groups'}."
    if not done:
        return f"{'Its group has' if len(states) == 1 else 'Its groups have'} not consumed it yet."
    return f"{done} of {counted(len(states), 'group')} consumed it."


async def _way(visit: Visit, topic: str, unique_key: str) -> Sequence[way.Row]:
    if not unique_key:
        return ()
    try:
        tracked = await visit.client.admin.track_key(topic, unique_key)
    except NoSuchMessage:
        return ()
    records = await client_records(visit.client, unique_key)
    return [row for one in tracked for row in way.rows(one, records)]
