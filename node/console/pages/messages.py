"""A message is found by its key, its id, its place or its time, and its whole way is shown."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from duolog import BadRequest, FoundMessage, Message, NoSuchMessage, TrackState

from node.console.view.addresses import MESSAGE, address
from node.console.view.visits import Shown, Visit
from node.console.view.words import THIN, command, counted
from node.inspection import way
from node.inspection.finding import by_time, client_records
from node.inspection.times import BadTime, time_of

ROWS = 50
BODY_BYTES = 64 << 10  # of a body that a page shows
LINE_CHARACTERS = 160
JSON_CHARACTERS = 4 * BODY_BYTES  # of a body that is set out over lines
HEX_BYTES = 4096
QUEUE_MAX, OFFSET_MAX = (1 << 31) - 1, (1 << 63) - 1
KEY, UNIQUE_KEY, MESSAGE_ID, OFFSET, TIME = "key", "unique_key", "id", "offset", "time"


@dataclass(frozen=True, slots=True)
class Way:
    """A way to find messages. example, hint: of the value that it takes."""

    name: str
    example: str
    hint: str


WAYS = {
    KEY: Way("key", "order-1007", "A key that the producer gave the message."),
    UNIQUE_KEY: Way(
        "unique key",
        "7F0000010007D4B5…",
        "The id that the producer's SDK gave the message: 32 characters, as a receipt shows it.",
    ),
    MESSAGE_ID: Way(
        "message id",
        "7F00000100001F910000…",
        "The id that the node gave the message: 32 characters. It needs no topic.",
    ),
    OFFSET: Way(
        "queue and offset", "3/8812", "QUEUE/OFFSET: messages of that queue from there on."
    ),
    TIME: Way(
        "time",
        "2h",
        "Messages stored since then: 10m, 2h or 3d ago, or 2026-01-31T12:00 in the console's time "
        "zone. Empty: the first messages.",
    ),
}


@dataclass(frozen=True, slots=True)
class Row:
    """A message in a list. line: the beginning of its body."""

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
        """Its page."""
        names = {"topic": self.topic, "queue": self.queue_id, "offset": self.queue_offset}
        return address(MESSAGE, {"group": self.group}, **names)


@dataclass(frozen=True, slots=True)
class Body:
    """A body as text, JSON and bytes. cut: bytes that are not shown."""

    text: str = ""
    json: str = ""
    hexadecimal: str = ""
    cut: int = 0


@dataclass(frozen=True, slots=True)
class Search:
    """What somebody looks for."""

    topic: str = ""
    by: str = KEY
    value: str = ""


async def messages(visit: Visit) -> Shown:
    """Messages of a topic by what is known of them. Raises BadRequest."""
    query = visit.query
    wanted = Search(
        query.get("topic", "").strip(), query.get("by", KEY), query.get("value", "").strip()
    )
    if wanted.by not in WAYS:
        raise BadRequest(f"messages are not found by {wanted.by!r}")
    facts: dict[str, object] = {"search": wanted, "ways": WAYS, "rows": None}
    facts["sentence"] = "Find a message by its key, its id, its place or its time."
    if wanted.value or (wanted.topic and wanted.by == TIME):
        rows = await _found(visit, wanted)
        facts["rows"] = rows
        facts["sentence"] = f"{counted(len(rows), 'message')} found."
        if len(rows) == ROWS:
            facts["sentence"] = f"The first {ROWS} messages that were found."
    return Shown("messages.html", "Messages", facts, _command(wanted))


def _command(wanted: Search) -> str:
    option = {KEY: "--key", UNIQUE_KEY: "--unique-key", MESSAGE_ID: "--id", TIME: "--since"}
    if not wanted.value or wanted.by not in option:
        return ""
    topic = [wanted.topic] if wanted.topic else []
    return command("msg", "find", *topic, option[wanted.by], wanted.value)


async def _found(visit: Visit, wanted: Search) -> list[Row]:
    client, topic, value = visit.client, wanted.topic, wanted.value
    if not topic and wanted.by != MESSAGE_ID:
        raise BadRequest("name the topic: only a message id does without it")
    if wanted.by == TIME:
        begin = _time_ms(value)
        return [message_row(one, one.group) for one in await by_time(client, topic, begin, 0, ROWS)]
    if wanted.by == OFFSET:
        queue_id, offset = _queue_offset(value)
        batch = await client.pull(topic, queue_id, offset, max_messages=ROWS)
        return [message_row(one, one.group) for one in batch]
    how = {KEY: "key", UNIQUE_KEY: "unique_key", MESSAGE_ID: "message_id"}[wanted.by]
    try:
        found = await client.admin.find(topic, count=ROWS, **{how: value})  # type: ignore[arg-type]
    except NoSuchMessage:
        return []
    return [message_row(one) for one in found]


def _queue_offset(value: str) -> tuple[int, int]:
    """QUEUE/OFFSET, as pages show it. Raises BadRequest."""
    queue, separator, offset = value.replace(THIN, "").replace("@", "/").partition("/")
    if not (separator and queue.isdecimal() and offset.isdecimal() and len(value) < 40):
        raise BadRequest(f"{value!r} is not of the form QUEUE/OFFSET, as 3/8812")
    if int(queue) > QUEUE_MAX or int(offset) > OFFSET_MAX:
        raise BadRequest(f"{value!r} is beyond the last queue or offset that there can be")
    return int(queue), int(offset)


def _time_ms(value: str) -> int:
    """A time, 0 for the first messages. Raises BadRequest."""
    try:
        return time_of(value) if value else 0
    except BadTime as error:
        raise BadRequest(str(error)) from None


def message_row(message: Message | FoundMessage, group: str = "") -> Row:
    """A message, in one line. group: the replica group where it lies."""
    properties = message.properties
    line = message.body[: LINE_CHARACTERS * 4].decode(errors="replace")[:LINE_CHARACTERS]
    return Row(
        message.topic,
        message.queue_id,
        message.queue_offset,
        message.store_time_ms,
        properties.get("TAGS", ""),
        properties.get("KEYS", ""),
        len(message.body),
        line,
        group,
    )


async def message(visit: Visit) -> Shown:
    """One message: its body, its properties, and its way. Raises NoSuchMessage."""
    topic = visit.path["topic"]
    queue_id, offset = _queue_offset(f"{visit.path['queue']}/{visit.path['offset']}")
    group = visit.query.get("group") or None
    batch = await visit.client.pull(topic, queue_id, offset, max_messages=1, group=group)
    found = next((one for one in batch if one.queue_offset == offset), None)
    if found is None:
        raise NoSuchMessage(f"there is no message at {way.place_of(topic, queue_id, offset)}")
    properties = dict(found.properties)
    unique_key = properties.get("UNIQ_KEY", "")
    states = await visit.client.admin.track(topic, queue_id, offset, group=group)
    facts = {
        "sentence": _states(states),
        "message": found,
        "row": message_row(found, found.group),
        "properties": sorted(properties.items()),
        "body": body_of(found.body),
        "states": sorted(states.items()),
        "steps": await _way(visit, topic, unique_key),
    }
    track = command("msg", "track", topic, "--unique-key", unique_key) if unique_key else ""
    return Shown("message.html", way.place_of(topic, queue_id, offset), facts, track)


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


def body_of(body: bytes) -> Body:
    """A body in every form that it has."""
    shown = body[:BODY_BYTES]
    cut = len(body) - len(shown)
    try:
        text = shown.decode()
    except UnicodeDecodeError as error:
        text = shown[: error.start].decode() if cut and error.start > BODY_BYTES - 4 else ""
    pretty = ""
    if text[:1] in ("{", "[") and not cut:
        pretty = _set_out(text)
    return Body(text, pretty, _hex(shown[:HEX_BYTES]), cut)


def _set_out(text: str) -> str:
    """JSON with a value a line; empty where it is none, or grows out of bounds by its depth."""
    lines, characters = [], 0
    try:
        for part in json.JSONEncoder(indent=2, ensure_ascii=False).iterencode(json.loads(text)):
            lines.append(part)
            characters += len(part)
            if characters > JSON_CHARACTERS:
                return ""
        pretty = "".join(lines)
        pretty.encode()  # an escape may name half a character
    except (ValueError, RecursionError):
        return ""
    return pretty


def _hex(body: bytes) -> str:
    """Sixteen bytes a line, as `hexdump -C` has them."""
    lines = []
    for at in range(0, len(body), 16):
        part = body[at : at + 16]
        plain = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
        lines.append(f"{at:08x}  {part.hex(' '):<47}  {plain}")
    return "\n".join(lines)


__all__ = ["Row", "body_of", "message", "message_row", "messages"]
