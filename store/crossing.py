"""Crossing: a consumer group reads a span to its end, then the next one from its beginning.

The node of a later span keeps it closed to a group until the node of the span before it reports
that the group has committed its end; the report is repeated until it is answered. A reset to an
earlier span is noted there, closes all later spans, then sets the offset; every later master there
continues it. A report that was sent before a reset may arrive after it, so resets have numbers.

Pure: what a group's log holds of a consumer group at a place, and what follows from it. Both hold
only if a place reports, calls and answers by what is confirmed there, and if a consumer group that
finds nothing to read at a place commits its end as well: an empty span is crossed, too.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Progress:
    """A consumer group at a place. committed: None: it has not come here, or a reset went back.

    resets: the number of the last reset that is known here. crossed: the one since which the next
    place has answered that the group came; -1: none. going_back: the offset of a reset that has
    not closed all later spans yet.
    """

    committed: int | None = None
    resets: int = 0
    crossed: int = -1
    going_back: int | None = None


@dataclass(frozen=True, slots=True)
class Crossed:
    """A consumer group has committed the end of the span before: it begins at this offset."""

    offset: int
    resets: int


@dataclass(frozen=True, slots=True)
class Close:
    """A reset goes back to before this span."""

    resets: int


# -- a group crosses -------------------------------------------------------------------------------


def may_read(here: Progress, is_guest: bool) -> bool:
    """Whether a consumer group is given messages of a place, and its commits there count."""
    return here.going_back is None and (not is_guest or here.committed is not None)


def to_tell(here: Progress, end: int) -> Crossed | None:
    """What to report to the next place until it answers; None: nothing."""
    if here.going_back is not None or here.committed is None or here.committed < end:
        return None
    return None if here.crossed == here.resets else Crossed(end, here.resets)


def on_crossed(here: Progress, told: Crossed) -> Progress:
    """The group comes here; a report from before the last reset changes nothing."""
    if told.resets < here.resets or here.going_back is not None:
        return here
    if told.resets > here.resets or here.committed is None:
        return Progress(told.offset, told.resets)
    return replace(here, committed=max(here.committed, told.offset))


def on_answer(here: Progress, told: Crossed) -> Progress:
    """The next place has answered a report."""
    return replace(here, crossed=told.resets) if told.resets == here.resets else here


# -- a reset goes back -----------------------------------------------------------------------------


def go_back(here: Progress, offset: int, is_guest: bool) -> Progress | None:
    """A reset begins; None: the group has not come here yet, and may skip nothing."""
    if is_guest and here.committed is None:
        return None
    return replace(here, resets=here.resets + 1, going_back=offset)


def to_close(firsts: Sequence[int], offset: int) -> list[int]:
    """The spans of a name that a reset to an offset closes, in order. firsts: where they begin."""
    return [span for span in reversed(range(1, len(firsts))) if firsts[span] > offset]


def on_close(here: Progress, told: Close) -> Progress:
    """A reset closes this span; one that is older than the last changes nothing."""
    return Progress(None, told.resets) if told.resets > here.resets else here


def on_closed(here: Progress, there: Progress) -> tuple[Progress, bool]:
    """A later span's answer to a `Close`, and whether it is closed.

    Where it is open, by another reset or under its number, this reset takes a later number and
    closes all spans again. Where a later reset has closed it, that one goes back further, and
    closes this place too.
    """
    if there.committed is None:
        return here, True
    return replace(here, resets=max(here.resets, there.resets) + 1), False


def gone_back(here: Progress) -> Progress:
    """All later spans are closed: the reset is done."""
    return Progress(here.going_back, here.resets)
