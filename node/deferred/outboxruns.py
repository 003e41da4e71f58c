"""What waits in the outbox, by the queue that it is for. Pure.

A message keeps the offset at which it was first stored as its number, however often it is stored
again. Each queue's messages wait in the order of these numbers, as runs of consecutive ones.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from duolog_server.store.queueends import QueueKey


@dataclass(slots=True)
class Run:
    """Messages of one queue: the number of the first one, where it lies now, and how many."""

    origin: int
    offset: int
    count: int

    def follows(self, before: "Run") -> bool:
        """Whether it carries on another run."""
        reached = before.origin + before.count, before.offset + before.count
        return reached == (self.origin, self.offset)


class OutboxRuns:
    """All messages of the outbox that are not delivered."""

    def __init__(self, low: int) -> None:
        """low: first offset of the outbox that may not be delivered."""
        self.end = low  # messages from here on were not read yet
        self.count = 0
        self._runs: dict[QueueKey, list[Run]] = {}

    def __contains__(self, key: QueueKey) -> bool:
        """Whether anything waits for a queue."""
        return key in self._runs

    def __iter__(self) -> Iterator[QueueKey]:
        """The queues for which something waits; which may change meanwhile."""
        return iter(list(self._runs))

    def validate(self) -> str:
        """The first violated invariant; empty if all hold.

        Every queue has runs, each of which lies before the end, and is in the order of numbers.
        """
        for key, runs in self._runs.items():
            reached = 0
            for run in runs:
                if run.count < 1 or run.origin < reached or run.origin > run.offset:
                    return f"{run} of {key} comes after number {reached}"
                if run.offset + run.count > self.end:
                    return f"{run} of {key} is read up to {self.end}"
                reached = run.origin + run.count
            if not runs:
                return f"no runs of {key}"
        counted = sum(run.count for runs in self._runs.values() for run in runs)
        return "" if counted == self.count else f"{counted} wait, counted as {self.count}"

    @property
    def low(self) -> int:
        """No message before this offset waits."""
        first = self.first()
        return self.end if first is None else first[1].offset

    def first(self) -> tuple[QueueKey, Run] | None:
        """The run that lies first, and its queue."""
        runs = ((key, run) for key, runs in self._runs.items() for run in runs)
        return min(runs, key=lambda one: one[1].offset, default=None)

    def reach(self, end: int) -> None:
        """Everything below an offset was read, or is deleted or damaged."""
        self.end = max(self.end, end)

    def read(self, key: QueueKey, origin: int, offset: int) -> None:
        """Take the next message: a new one, or another copy of one that waits."""
        assert origin <= offset >= self.end, "each record is read once"
        self.end = offset + 1
        runs = self._runs.setdefault(key, [])
        new, at = Run(origin, offset, 1), len(runs)
        if runs and origin < runs[-1].origin + runs[-1].count:
            at = self._before(runs, origin)
        self.count += 1
        if at and new.follows(runs[at - 1]):
            runs[at - 1].count += 1
        else:
            runs.insert(at, new)

    def forget(self, key: QueueKey, origin: int) -> None:
        """A message that waits is lost, or is not wanted any more."""
        runs = self._runs[key]
        self._before(runs, origin)
        if not runs:
            del self._runs[key]

    def _before(self, runs: list[Run], origin: int) -> int:
        """Where a number belongs; its message is removed if it waits."""
        at = next(k for k, run in enumerate(runs) if origin < run.origin + run.count)
        run = runs[at]
        if origin < run.origin:
            return at
        before = origin - run.origin
        behind = run.count - before - 1
        parts = (
            Run(run.origin, run.offset, before),
            Run(origin + 1, run.offset + before + 1, behind),
        )
        runs[at : at + 1] = [part for part in parts if part.count]
        self.count -= 1
        return at + (before > 0)

    def head(self, key: QueueKey, limit: int) -> Run:
        """The first messages that wait for a queue, up to a limit."""
        run = self._runs[key][0]
        return Run(run.origin, run.offset, min(run.count, limit))

    def done(self, key: QueueKey, count: int) -> None:
        """The first messages of a queue are delivered: so many of its first run."""
        runs = self._runs[key]
        run = runs[0]
        assert 0 < count <= run.count, "they are of one run"
        self.count -= count
        run.origin, run.offset, run.count = (
            run.origin + count,
            run.offset + count,
            run.count - count,
        )
        if not run.count:
            del runs[0]
        if not runs:
            del self._runs[key]
