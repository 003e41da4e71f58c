"""What viewers type in or select: places, times, and the checked rows of a list.

Rules: each check box has what it stands for in its name, not in its value: a form's words are read
into a mapping, which has one value of each name. A form that has boxes says so: with none of them
checked it would look like a page that was opened without a form.
"""

from collections.abc import Mapping

from duolog import BadRequest

from duolog_server.ops.console.view.formatting import THIN
from duolog_server.ops.inspection.messages.places import OFFSET_MAX, QUEUE_ID_MAX, Place, place_of
from duolog_server.ops.inspection.times import BadTime, time_of

CHOSEN = "letter:"  # before the place in the name of a check box
SELECTED = "selected"  # the form has check boxes


def queue_offset(value: str) -> tuple[int, int]:
    """QUEUE/OFFSET, as pages show it. Raises BadRequest."""
    queue, separator, offset = value.replace(THIN, "").replace("@", "/").partition("/")
    if not (separator and queue.isdecimal() and offset.isdecimal() and len(value) < 40):
        raise BadRequest(f"{value!r} is not of the form QUEUE/OFFSET, as 3/8812")
    if int(queue) > QUEUE_ID_MAX or int(offset) > OFFSET_MAX:
        raise BadRequest(f"{value!r} is beyond the last queue or offset that there can be")
    return int(queue), int(offset)


def queue_place(value: str) -> tuple[str | None, int, int]:
    """QUEUE/OFFSET, with its replica group before it where that is named. Raises BadRequest."""
    if value.count("/") < 2:
        return None, *queue_offset(value)
    found = place_of(value.replace(THIN, ""))
    return found.replica_group, found.queue_id, found.offset


def time_ms(value: str) -> int:
    """A time, 0 for an empty text. Raises BadRequest."""
    try:
        return time_of(value) if value else 0
    except BadTime as error:
        raise BadRequest(str(error)) from None


def box_of(place: Place) -> str:
    """The name of a check box."""
    return f"{CHOSEN}{place}"


def chosen(query: Mapping[str, str]) -> list[Place]:
    """The places that somebody selected; none where there was nothing to select from.

    Raises BadRequest.
    """
    names = [name.removeprefix(CHOSEN) for name in query if name.startswith(CHOSEN)]
    if SELECTED in query and not names:
        raise BadRequest("no dead letter is selected")
    return sorted({place_of(name) for name in names})
