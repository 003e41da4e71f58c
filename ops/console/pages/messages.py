"""A message in a list, and on a page of its own: its body, its properties, and its whole way."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from duolog import FoundMessage, Message, NoSuchMessage, TrackState

from duolog_server.ops.console.masking.seen import LINE_CHARACTERS, Seeing
from duolog_server.ops.console.view.addresses import MESSAGE, MESSAGE_AGAIN, address
from duolog_server.ops.console.view.formatting import command, counted
from duolog_server.ops.console.view.inputs import queue_offset
from duolog_server.ops.console.view.visits import Shown, Visit
from duolog_server.ops.inspection.messages import trace as way
from duolog_server.ops.inspection.messages.finding import client_records
from duolog_server.ops.inspection.messages.sending import is_users, message_at

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
    """One message: its body, its properties, and its way. Raises NoSuchMessage."""
    topic = visit.path["topic"]
    queue_id, offset = queue_offset(f"{visit.path['queue']}/{visit.path['offset']}")
    group = visit.query.get("group") or None
    found = await message_at(visit.client, topic, queue_id, offset, group)
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
        "before": _page(MESSAGE, found, -1) if offset else "",
        "after": _page(MESSAGE, found, 1),
        "again": _page(MESSAGE_AGAIN, found) if is_users(topic) else "",
        "steps": await _way(visit, topic, unique_key),
    }
    flags = ["--unique-key", unique_key]
    track = command("msg", "track", names=[topic], flags=flags) if unique_key else ""
    return Shown("message.html", way.place_text(topic, queue_id, offset), facts, track)


def _page(pattern: str, message: Message, step: int = 0) -> str:
    """A page of a message, or of the one that is so many offsets away."""
    names = {"queue": message.queue_id, "offset": message.queue_offset + step}
    return address(pattern, {"group": message.group}, topic=message.stored_topic, **names)


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
