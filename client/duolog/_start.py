"""Start positions in a queue: its earliest or latest message, or a time."""

from enum import StrEnum

from duolog._checks import INT64_MAX
from duolog._errors import BadRequest
from duolog.wire import duolog_pb2 as wire


class Start(StrEnum):
    """An end of a queue."""

    EARLIEST = "earliest"  # the oldest message that is kept
    LATEST = "latest"  # after the newest one: what comes from now on


_ON_WIRE = {Start.EARLIEST: wire.EARLIEST, Start.LATEST: wire.LATEST}


def set_start(request: wire.OffsetAtTimeRequest | wire.ResetGroupRequest, at: Start | int) -> None:
    """Ask for an end of a queue, or for a time, ms since 1970. Raises BadRequest."""
    check_start(at)
    if isinstance(at, Start):
        request.start = _ON_WIRE[at]
    else:
        request.time = at


def check_start(at: Start | int) -> None:
    """Raise BadRequest for what is neither an end of a queue nor a time."""
    if not isinstance(at, Start) and not (type(at) is int and 0 <= at <= INT64_MAX):
        raise BadRequest(
            f"{at!r} is not a position in a queue: give Start.EARLIEST, Start.LATEST or a time in "
            "ms since 1970"
        )


def start_of(request: wire.OffsetAtTimeRequest | wire.ResetGroupRequest) -> Start | int:
    """Read back `set_start`'s field. Raises BadRequest if it is neither an end nor a time."""
    if request.HasField("time"):
        if request.time < 0:
            raise BadRequest(f"time is {request.time} ms; it must not be negative")
        return request.time
    return end_of(request.start, ", or set time to ms since 1970")


def on_wire(start: Start) -> wire.Start:
    """The number of an end of a queue."""
    return _ON_WIRE[start]


def end_of(number: wire.Start, otherwise: str = "") -> Start:
    """The end of a queue that has a number. Raises BadRequest, which says what else may be done."""
    for start, known in _ON_WIRE.items():
        if number == known:
            return start
    raise BadRequest(
        f"start is {number}: set it to EARLIEST ({wire.EARLIEST}) or LATEST "
        f"({wire.LATEST}){otherwise}"
    )
