"""Where a group is to resume, as people write it: an end of its queues, a time or an offset."""

from dataclasses import dataclass

from duolog import Start

from node.inspection.times import MS_MAX, BadTime, time_of

OFFSET = "offset:"
OFFSET_MAX = MS_MAX  # both are 64 bits


class BadPlace(ValueError):
    """A text is no place; its own text says how one is written."""


@dataclass(frozen=True, slots=True)
class Place:
    """at: an end of the queues, or a time, ms since 1970. offset: instead of it, if not None."""

    at: Start | int = Start.EARLIEST
    offset: int | None = None


def place_of(text: str) -> Place:
    """earliest, latest, a time (see `time_of`), or offset:N. Raises BadPlace."""
    if text in list(Start):
        return Place(Start(text))
    if not text.startswith(OFFSET):
        try:
            return Place(time_of(text))
        except BadTime as error:
            raise BadPlace(str(error)) from None
    number = text.removeprefix(OFFSET)
    if not (number.isascii() and number.isdecimal() and int(number) <= OFFSET_MAX):
        raise BadPlace(f"{text!r} is not offset:N, where N is a queue offset of 0 or more")
    return Place(offset=int(number))


__all__ = ["BadPlace", "Place", "place_of"]
