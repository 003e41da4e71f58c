"""The pending timed messages and their times: 17 bytes each. Pure.

A message is named by its offset in the queue of rmq_sys_wheel_timer. Times are kept in sorted runs:
new ones are added to a heap, a full heap becomes a run, and the earliest times of all runs are due
first.
"""

import heapq
from collections.abc import Iterable, Sequence

import numpy as np

from duolog_server.store.kernels.jit import EMPTY_I64, I64, U8

HEAP_MAX = 20_000
RUNS_MAX = 64
ROOM_MIN = 1024


class _Run:
    """Sorted times and their offsets, consumed from the front."""

    __slots__ = ("at", "offsets", "times")

    def __init__(self, times: I64, offsets: I64) -> None:
        order = np.argsort(times, kind="stable")
        self.times, self.offsets = times[order], offsets[order]
        self.at = 0

    def take(self, wall_ms: int, limit: int) -> I64:
        end = int(np.searchsorted(self.times, wall_ms, side="right"))
        end = min(end, self.at + limit)
        taken = self.offsets[self.at : end]
        self.at = max(self.at, end)
        return taken

    def __len__(self) -> int:
        return len(self.times) - self.at


class PendingTimers:
    """The pending offsets in [low, end)."""

    def __init__(self, low: int) -> None:
        self.low = low  # nothing before this is pending
        self.end = low
        self._waits: U8 = np.zeros(ROOM_MIN, np.uint8)  # by offset, from _base on
        self._base = low
        self._heap: list[tuple[int, int]] = []
        self._runs: list[_Run] = []
        self.count = 0

    def validate(self, given: Iterable[int] = ()) -> str:
        """The first violated invariant; empty if all hold.

        Every pending message lies in [low, end), is counted, and is in the heap or a run, without
        which it would never be due. given: messages returned by `due` that are neither done nor put
        back.
        """
        if not self._base <= self.low <= self.end:
            return f"low {self.low} is not in [{self._base}, {self.end}]"
        waiting: list[int] = (np.flatnonzero(self._waits) + self._base).tolist()
        if len(waiting) != self.count:
            return f"{len(waiting)} wait, counted as {self.count}"
        if waiting and not self.low <= waiting[0] <= waiting[-1] < self.end:
            return f"{waiting[0]} and {waiting[-1]} wait, not in [{self.low}, {self.end})"
        planned = {offset for _, offset in self._heap}.union(given)
        for run in self._runs:
            planned.update(run.offsets[run.at :].tolist())
        missing = sorted(set(waiting) - planned)
        if missing:
            return f"{len(missing)} are in no run and never due, the first is {missing[0]}"
        return ""

    def add(self, times_ms: I64, first: int) -> None:
        """Add messages from an offset on with their times, in the order of offsets."""
        assert first >= self.end, "each message is added once"
        count = len(times_ms)
        self.end = first + count
        self._make_room()
        self._waits[first - self._base : self.end - self._base] = 1
        self.count += count
        if count >= HEAP_MAX:
            self._add_run(times_ms, np.arange(first, self.end, dtype=np.int64))
            return
        for k in range(count):
            heapq.heappush(self._heap, (int(times_ms[k]), first + k))
        if len(self._heap) >= HEAP_MAX:
            table: I64 = np.array(self._heap, np.int64).T
            self._heap = []
            self._add_run(np.ascontiguousarray(table[0]), np.ascontiguousarray(table[1]))

    def _add_run(self, times_ms: I64, offsets: I64) -> None:
        self._runs.append(_Run(times_ms, offsets))
        self._runs = [run for run in self._runs if len(run)]
        if len(self._runs) > RUNS_MAX:
            self._runs.sort(key=len)
            one, two = self._runs[:2]
            times = np.concatenate((one.times[one.at :], two.times[two.at :]))
            offsets = np.concatenate((one.offsets[one.at :], two.offsets[two.at :]))
            self._runs = [_Run(times, offsets), *self._runs[2:]]

    def _make_room(self) -> None:
        """Forget flags below `low`; grow by doubling."""
        needed = self.end - self._base
        if needed <= len(self._waits):
            return
        kept = self._waits[self.low - self._base :]
        self._base = self.low
        size = max(ROOM_MIN, 2 * (self.end - self._base))
        grown: U8 = np.zeros(size, np.uint8)
        grown[: min(len(kept), size)] = kept[:size]
        self._waits = grown

    def waits(self, offset: int) -> bool:
        """Whether a message is pending."""
        return self.low <= offset < self.end and bool(self._waits[offset - self._base])

    def due(self, wall_ms: int, limit: int) -> I64:
        """Up to `limit` due messages, in the order of offsets.

        They stay pending until they are `done`, but are not returned again.
        """
        if not self._runs and (not self._heap or self._heap[0][0] > wall_ms):
            return EMPTY_I64  # as on most nodes, fifty times a second
        taken = [run.take(wall_ms, limit) for run in self._runs]
        early: list[int] = []
        while self._heap and self._heap[0][0] <= wall_ms and len(early) < limit:
            early.append(heapq.heappop(self._heap)[1])
        taken.append(np.array(early, np.int64))
        offsets = np.concatenate(taken)
        offsets = offsets[offsets >= self.low]  # a recalled message has no flag any more
        return np.sort(offsets[self._waits[offsets - self._base] == 1])

    def put_back(self, offsets: I64, times_ms: I64) -> None:
        """Make messages that could not be delivered due again at their times."""
        for offset, at_ms in zip(offsets.tolist(), times_ms.tolist(), strict=True):
            heapq.heappush(self._heap, (at_ms, offset))

    def first_ms(self) -> int | None:
        """Due time of the first pending message, also of a recalled one. None: none."""
        if not self.count:
            return None
        firsts = [int(run.times[run.at]) for run in self._runs if len(run)]
        return min((*firsts, *(at_ms for at_ms, _ in self._heap[:1])), default=None)

    def due_by(self, times_ms: Sequence[int]) -> list[int]:
        """How many messages are due at each of these times or before; of recalled ones, too."""
        early = np.sort(np.fromiter((at_ms for at_ms, _ in self._heap), np.int64, len(self._heap)))
        found = np.searchsorted(early, times_ms, side="right")
        for run in self._runs:
            found += np.searchsorted(run.times[run.at :], times_ms, side="right")
        return [int(number) for number in found]

    def parts(self) -> list[tuple[I64, I64]]:
        """Times and offsets in sorted runs, with those of recalled ones: views, to be read before
        anything changes. Of one time, offsets are in no order.
        """
        heap = np.array(self._heap, np.int64).reshape(-1, 2)
        heap = heap[np.argsort(heap[:, 0], kind="stable")]
        runs = [(run.times[run.at :], run.offsets[run.at :]) for run in self._runs if len(run)]
        return [(heap[:, 0], heap[:, 1]), *runs]

    def wait(self, offsets: I64) -> U8:
        """For each of these offsets, 1 if its message is pending, else 0."""
        inside = (offsets >= self.low) & (offsets < self.end)
        found: U8 = np.where(inside, self._waits[np.where(inside, offsets - self._base, 0)], 0)
        return found

    def done(self, offsets: I64) -> None:
        """Remove messages."""
        inside = np.unique(offsets[(offsets >= self.low) & (offsets < self.end)]) - self._base
        self.count -= int(np.count_nonzero(self._waits[inside]))
        self._waits[inside] = 0
        waiting = self._waits[self.low - self._base : self.end - self._base]
        first = int(np.argmax(waiting)) if self.count else len(waiting)
        self.low += first
