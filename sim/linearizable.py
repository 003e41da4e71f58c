"""Decides whether one order of all operations explains the answers that clients got.

Such an order has each operation at one moment between its beginning and its answer: the history is
linearizable. For objects in general that takes a search, which may not come to an end. The two
objects here tell more: an append is answered with its offset, and offsets of a group only grow. So
the order is known but for the moments, and one pass decides.

Times are of any one clock. An operation without an answer has the end NEVER: it takes place at any
time after its beginning, or not at all. Operations that meet in one moment may go either way.
"""

import math
from collections.abc import Hashable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import TypeVar

NEVER = math.inf
NONE = -1  # told of a group that has committed nothing


@dataclass(frozen=True, slots=True)
class Append:
    """Appends one message. offset: NONE where the answer did not tell, or there was no answer.

    With an offset and without an end: stored there, and perhaps lost.
    """

    body: Hashable
    begin: float
    end: float = NEVER
    offset: int = NONE


@dataclass(frozen=True, slots=True)
class Read:
    """Found these bodies from an offset on. What it found stays, so its beginning says nothing."""

    first: int
    bodies: Sequence[Hashable]
    end: float


@dataclass(frozen=True, slots=True)
class Commit:
    """Moves a group on to an offset; an offset below the committed one changes nothing."""

    offset: int
    begin: float
    end: float = NEVER


@dataclass(frozen=True, slots=True)
class Told:
    """A group's committed offset, as a master answered."""

    offset: int
    begin: float
    end: float


T = TypeVar("T", Commit, Told)


def log(appends: Iterable[Append], reads: Iterable[Read], stored: Sequence[Hashable]) -> str:
    """What is wrong with the history of one queue, empty where it is linearizable.

    No two appends have the same body. stored: the whole queue, read after everything else. An
    append that surely failed is left out.

    The history is linearizable exactly if
    1. `stored` has no body twice, only bodies of appends, and each body whose append was answered,
       and each stored one of which an offset was told at that offset;
    2. each read found what is stored at its offsets;
    3. for each offset k, earliest(k), the last beginning of the appends at 0 to k, is neither after
       the end of the append at k nor after the end of a read that found k.

    If it is linearizable, then the last read found the whole queue, with each append once: 1.
    A queue only grows: 2. The append at k took place after those before it, so not before any of
    them began; it did so before its end, and before any read that found k ended: 3.
    If all three hold, let the append at k take place at earliest(k), at equal times in the order of
    offsets, each read at its end, behind the appends of that time, and appends that are not stored
    never. Earliest(k) never decreases with k: the queue becomes `stored`, and each answer is true.
    """
    places = {body: offset for offset, body in enumerate(stored)}
    if len(places) < len(stored):
        twice = next(body for offset, body in enumerate(stored) if places[body] != offset)
        return f"{twice!r} is stored twice"
    latest = [-NEVER] * len(stored)  # of those that were appended
    begins = [NEVER] * len(stored)
    for append in appends:
        place = places.get(append.body, NONE)
        if append.end != NEVER and place == NONE:
            return f"acknowledged {append.body!r} is not stored"
        if place != NONE and append.offset not in (NONE, place):
            return f"{append.body!r} is not at offset {append.offset}, but at {place}"
        if place != NONE:
            begins[place], latest[place] = append.begin, append.end
    for read in reads:
        last = read.first + len(read.bodies) - 1
        if read.bodies:
            if last >= len(stored) or [*stored[read.first : last + 1]] != [*read.bodies]:
                return f"{read.bodies!r} was read at offset {read.first}, and is not stored there"
            latest[last] = min(latest[last], read.end)  # earlier offsets are earlier anyway
    earliest = -NEVER
    for offset, body in enumerate(stored):
        if begins[offset] == NEVER:
            return f"{body!r} is stored, and no send that may have stored it"
        earliest = max(earliest, begins[offset])
        if earliest > latest[offset]:
            return (
                f"{body!r} at offset {offset} was stored by {latest[offset]:g}, and a message at "
                f"or below it not before {earliest:g}"
            )
    return ""


def progress(
    commits: Iterable[Commit], told: Iterable[Told], unanswered: AbstractSet[int] = frozenset()
) -> str:
    """What is wrong with the history of a group in one queue, empty where it is linearizable.

    unanswered: offsets of commits that may have taken place at any time.

    Offsets are looked at from the lowest one up. `reached` is the earliest moment at which the
    group can be there: what was told was committed before, and no more was committed when the
    question was asked. The history is linearizable exactly if somebody committed what was told,
    and no answer, to a commit or to a question, came before its offset was reached.

    If it is linearizable, a told offset was reached after each lower one that was told, and after
    the last question that was answered with a lower one began; no commit of it, or of more, took
    place before that. If no answer comes too early, let the first commit of an offset that was told
    take place when it is reached, every other operation as soon as it began and lower offsets are
    behind, at equal times in the order of offsets: each is within its time, and each answer is the
    most that was committed.
    """
    made, asked = _by_offset(commits), _by_offset(told)
    reached, lower = -NEVER, NONE
    for offset in sorted({*made, *asked}):
        rows, answers = made.get(offset, []), asked.get(offset, [])
        if any(row.end < reached for row in rows):
            return f"{offset} was committed, and {lower} was told afterwards"
        if not answers:
            continue
        if offset not in unanswered and offset != NONE:
            if not rows:
                return f"{offset} was told, and nobody committed it"
            reached = max(reached, min(row.begin for row in rows))
        first = min(answer.end for answer in answers)
        if first < reached:
            return f"{offset} was told by {first:g}, and not reached before {reached:g}"
        reached, lower = max(reached, *(answer.begin for answer in answers)), offset
    return ""


def _by_offset(rows: Iterable[T]) -> dict[int, list[T]]:
    found: dict[int, list[T]] = {}
    for row in rows:
        found.setdefault(row.offset, []).append(row)
    return found
