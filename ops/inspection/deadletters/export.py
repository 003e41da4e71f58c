"""Dead letters as JSON Lines: one object a line, in the order of their places.

Rules: nothing but one read is held in memory. An export that is ended early says so in its last
line, which has `stopped` and `continue_at` and no other word; without such a line it is whole.
"""

import asyncio
import base64
import json
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace

from duolog import Client, DuologError, Message

from duolog_server.ops.inspection.deadletters.places import letters_at, letters_from
from duolog_server.ops.inspection.messages.places import Place

EXPORT_BYTES_MAX = 1 << 30
EXPORT_SECONDS_MAX = 600.0


def as_json(letter: Message) -> dict[str, object]:
    """All that is known of a dead letter. The body is text where it is UTF-8, else base64."""
    properties = letter.properties
    return {
        "place": str(Place.of(letter)),
        "topic": properties.get("DLQ_ORIGIN_TOPIC", ""),
        "message_id": properties.get("DLQ_ORIGIN_MESSAGE_ID", ""),
        "attempts": letter.reconsume_times,
        "replica_group": letter.group,
        "queue_id": letter.queue_id,
        "queue_offset": letter.queue_offset,
        "physical_offset": letter.physical_offset,
        "store_time": letter.store_time_ms,
        "born_time": letter.born_time_ms,
        "tags": letter.tags,
        "keys": letter.keys,
        "properties": properties,
        **_body(letter.body),
    }


def _body(body: bytes) -> dict[str, str]:
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"body_base64": base64.b64encode(body).decode()}


def selected(
    client: Client, group: str, places: Sequence[Place], at: Place | None = None
) -> AsyncGenerator[Message, None]:
    """The dead letters at some places; without any, all of them from `at` on."""
    return letters_at(client, group, places) if places else letters_from(client, group, at)


async def lines(
    letters: AsyncGenerator[Message, None],
    fields_of: Callable[[Message], Mapping[str, object]] = as_json,
    bytes_max: int = EXPORT_BYTES_MAX,
    seconds_max: float = EXPORT_SECONDS_MAX,
) -> AsyncGenerator[str, None]:
    """The lines of an export, with the fields of each dead letter.

    The first dead letter is read before anything is yielded: what prevents that is raised, a later
    error ends the export early.
    """
    clock = asyncio.get_running_loop().time
    end, size, next_place = clock() + seconds_max, 0, ""
    async with aclosing(letters) as found:
        try:
            async for letter in found:
                line = json.dumps(fields_of(letter)) + "\n"
                place, size = Place.of(letter), size + len(line)
                if size > bytes_max or clock() > end:
                    bound = f"{bytes_max} bytes" if size > bytes_max else f"{seconds_max:g} s"
                    yield stopped(f"an export has at most {bound}", str(place))
                    return
                yield line
                next_place = str(replace(place, offset=place.offset + 1))
        except DuologError as error:
            if not next_place:
                raise
            yield stopped(str(error), next_place)


def stopped(why: str, continue_at: str = "") -> str:
    """The last line of an export that is not whole. continue_at: a place; empty: not known."""
    return json.dumps({"stopped": why, "continue_at": continue_at}) + "\n"
