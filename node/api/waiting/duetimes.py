"""When delayed messages are due: the next ones behind a place, whatever number waits.

Rules: the order is by time, then level (0: timed messages), then offset. Only the rows asked for
are copied and sorted, and of timed messages the newest, HEAP_MAX at most, and those that are due in
one millisecond. In a level's queue times grow with offsets until the clock is set back:
a page made while such messages wait may leave out some, or show them twice.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from duolog import _errors as sdk

from duolog_server.node.core.ports import Reads
from duolog_server.node.deferred.delayservice import QUEUE, TIMER_TOPIC, DelayService
from duolog_server.node.deferred.pendingtimers import PendingTimers
from duolog_server.node.runtime.numerals import number_of
from duolog_server.store.delay import SCHEDULE_TOPIC
from duolog_server.store.kernels.jit import EMPTY_I64, I64

TIMED = 0  # instead of a level
LAST = (1 << 63) - 1


class Due(NamedTuple):
    """A delayed message's place in the order."""

    time_ms: int
    level: int
    offset: int

    def to_text(self) -> str:
        """As clients send it back."""
        return f"{self.time_ms}/{self.level}/{self.offset}"

    @property
    def place(self) -> tuple[str, int, int]:
        """Where it waits: topic, queue id and queue offset."""
        if self.level == TIMED:
            return TIMER_TOPIC, QUEUE, self.offset
        return SCHEDULE_TOPIC, self.level - 1, self.offset


FIRST = Due(-1, TIMED, -1)


def due_of(text: str) -> Due:
    """Read a place; FIRST for an empty text. Raises BadRequest."""
    if not text:
        return FIRST
    words = text.split("/")
    numbers = [number for word in words if (number := number_of(word, LAST)) is not None]
    if len(words) == len(numbers) == 3:
        return Due(*numbers)
    raise sdk.BadRequest(f"{text[:80]!r} is not the end of a page of delayed messages")


class Part(NamedTuple):
    """Messages behind a place, in order. reached: they are all up to there; None: all there are."""

    rows: list[Due]
    reached: Due | None


def next_due(delays: DelayService, store: Reads, after: Due, limit: int) -> Part:
    """The first messages behind a place, at most `limit`. Raises Unavailable."""
    if delays.pending is None:
        raise sdk.Unavailable("the delayed messages are being read from the log: try again")
    parts = [_timed(delays.pending, after, limit), *_levels(delays, store, after, limit)]
    reached = min((part.reached for part in parts if part.reached is not None), default=None)
    rows = sorted(row for part in parts for row in part.rows if reached is None or row <= reached)
    if len(rows) > limit:
        rows = rows[:limit]
        reached = rows[-1]
    return Part(rows, reached)


def bounds(delays: DelayService, store: Reads) -> tuple[int, int, int]:
    """How many messages wait, and when the first and the last one is due; 0 for none.

    A recalled one counts for the times until its own.
    """
    times: list[int] = []
    waiting = delays.waiting
    for times_ms, _ in delays.pending.parts() if delays.pending is not None else ():
        times += [int(times_ms[0]), int(times_ms[-1])] if len(times_ms) and waiting else []
    for level in range(1, len(delays.levels_ms) + 1):
        first, end = delays.undelivered(level)
        if first < end:
            waiting += end - first
            times += [_time(store, level, first), _time(store, level, end - 1)]
    return waiting, min(times, default=0), max(times, default=0)


# -- timed messages --------------------------------------------------------------------------------


class _Found(NamedTuple):
    """Messages of a sorted run behind a place. reached: time and offset up to which they are all;
    None: all there are.
    """

    times: I64
    offsets: I64
    reached: tuple[int, int] | None


def _timed(pending: PendingTimers, after: Due, limit: int) -> Part:
    above = after.offset if after.level == TIMED else LAST
    found = [
        _of_run(pending, times, offsets, (after.time_ms, above), limit)
        for times, offsets in pending.parts()
    ]
    times, offsets = (np.concatenate([run[k] for run in found]) for k in (0, 1))
    order = np.lexsort((offsets, times))[: limit + 1]
    rows = [
        Due(time_ms, TIMED, offset)
        for time_ms, offset in zip(times[order].tolist(), offsets[order].tolist(), strict=True)
    ]
    ends = [Due(run.reached[0], TIMED, run.reached[1]) for run in found if run.reached is not None]
    if len(rows) > limit:
        rows.pop()
        ends.append(rows[-1])
    return Part(rows, min(ends, default=None))


def _of_run(
    pending: PendingTimers, times: I64, offsets: I64, after: tuple[int, int], limit: int
) -> _Found:
    """The next messages of one sorted run, in any order."""
    at_ms, above = after
    low, high = _span(times, at_ms)
    tied, cut = _smallest(pending, offsets[low:high], above, limit)
    first = np.full(len(tied), at_ms, np.int64)
    stop = min(high + limit, len(times))
    if cut or stop == high:
        return _Found(first, tied, (at_ms, int(tied[-1])) if cut else None)
    last_ms = int(times[stop - 1])
    begin, end = _span(times, last_ms)
    between = offsets[high:begin]
    kept = pending.wait(between) == 1
    last, cut = _smallest(pending, offsets[begin:end], -1, limit)
    reached = (last_ms, int(last[-1]) if cut else LAST)
    return _Found(
        np.concatenate((first, times[high:begin][kept], np.full(len(last), last_ms, np.int64))),
        np.concatenate((tied, between[kept], last)),
        reached if cut or end < len(times) else None,
    )


def _span(times: I64, time_ms: int) -> tuple[int, int]:
    low, high = (int(np.searchsorted(times, time_ms, side=side)) for side in ("left", "right"))
    return low, high


def _smallest(pending: PendingTimers, offsets: I64, above: int, limit: int) -> tuple[I64, bool]:
    """The first offsets above another one that wait, sorted; and whether there are more."""
    offsets = offsets[offsets > above]
    waiting = offsets[pending.wait(offsets) == 1]
    cut = len(waiting) > limit
    found: I64 = np.sort(np.partition(waiting, limit)[:limit] if cut else waiting)
    return found, cut


# -- levels ----------------------------------------------------------------------------------------


def _levels(delays: DelayService, store: Reads, after: Due, limit: int) -> Iterator[Part]:
    for level in range(1, len(delays.levels_ms) + 1):
        first, end = delays.undelivered(level)
        if first == end:
            continue
        begin = _begin(store, level, (first, end), after)
        times = _times(store, level, begin, min(limit, end - begin))
        rows = [Due(time_ms, level, begin + k) for k, time_ms in enumerate(times.tolist())]
        more = begin + len(rows) < end and rows
        yield Part(rows, rows[-1] if more else None)


def _begin(store: Reads, level: int, span: tuple[int, int], after: Due) -> int:
    """The first offset of a level's queue that is behind a place in the order."""
    low, high = span
    if level == after.level:
        low = min(high, max(low, after.offset + 1))
    while low < high:
        middle = (low + high) // 2
        if Due(_time(store, level, middle), level, middle) > after:
            high = middle
        else:
            low = middle + 1
    return low


def _times(store: Reads, level: int, offset: int, count: int) -> I64:
    """When the messages at these offsets of a level's queue are due."""
    return store.entries(SCHEDULE_TOPIC, level - 1, offset, count)[2] if count else EMPTY_I64


def _time(store: Reads, level: int, offset: int) -> int:
    times = _times(store, level, offset, 1)
    return int(times[0]) if len(times) else 0
