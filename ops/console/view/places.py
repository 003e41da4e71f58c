"""Places and times that viewers type in."""

from duolog import BadRequest

from duolog_server.ops.console.view.formatting import THIN
from duolog_server.ops.inspection.messages.places import OFFSET_MAX, QUEUE_ID_MAX, place_of
from duolog_server.ops.inspection.times import BadTime, time_of


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
