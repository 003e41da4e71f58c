"""The idempotence table: which sequences of a producer are stored already, and where.

A producer numbers its messages; the node drops a repeated number and answers with the first result.
The table keeps runs: consecutive sequences at consecutive offsets of one queue. It is bounded per
producer and in producers, and rebuilt from the log's UNIQ_KEYs on recovery.

A producer counts once for each topic that it sends to, as a repeat goes where the first attempt
went. So a client that knows the id of a producer, but may not send to its topics, can use it up
nowhere that matters: readers of its messages know it, and that of a sink can be computed.

It may have forgotten sequences. So it has a horizon: the log offset from which on nothing is
forgotten. A repeat names a log offset that was confirmed before its first attempt, so anything
which that attempt stored lies above. If the horizon is not above the named offset, an unknown
sequence was not stored; otherwise it is unknown.
"""

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from duolog_server.store.errors import ProducerForgotten, SequenceTooOld


@dataclass(slots=True)  # not frozen, as what a put makes: see `store.puts`
class Run:
    """Sequences [first, end) of a producer, stored from queue_offset on in one queue."""

    first: int
    end: int
    topic: str
    queue_id: int
    queue_offset: int


class _Window:
    """The newest runs of one producer in one topic, by sequence."""

    def __init__(self, runs_max: int) -> None:
        self.runs_max = runs_max
        self.firsts: list[int] = []
        self.runs: list[Run] = []
        self.forgotten = 0  # every sequence below may have been stored and forgotten
        self.end = 0  # above every sequence that was ever stored
        self.log_end = 0  # log offset after the newest of the runs

    def find(self, sequence: int) -> Run | None:
        at = bisect_right(self.firsts, sequence) - 1
        if at >= 0 and sequence < self.runs[at].end:
            return self.runs[at]
        return None

    def next_known(self, sequence: int) -> int | None:
        at = bisect_right(self.firsts, sequence)
        return self.firsts[at] if at < len(self.firsts) else None

    def add(self, run: Run) -> None:
        at = len(self.firsts)
        if run.first < self.end:
            known = self.find(run.first)
            while known is not None:  # a range of log that was read before
                if known.end >= run.end:
                    return
                run = replace(
                    run, first=known.end, queue_offset=run.queue_offset + known.end - run.first
                )
                known = self.find(run.first)
            at = bisect_right(self.firsts, run.first)
        self.end = max(self.end, run.end)
        if at and self._continues(self.runs[at - 1], run):
            before = self.runs[at - 1]
            self.runs[at - 1] = Run(
                before.first, run.end, run.topic, run.queue_id, before.queue_offset
            )
            return
        self.firsts.insert(at, run.first)
        self.runs.insert(at, run)
        if len(self.runs) > self.runs_max:
            self.forgotten = max(self.forgotten, self.runs[0].end)
            del self.firsts[0], self.runs[0]

    def cut(self, ends: Mapping[tuple[str, int], int]) -> None:
        kept = []
        for run in self.runs:
            room = ends.get((run.topic, run.queue_id), 0) - run.queue_offset
            if room > 0:
                kept.append(replace(run, end=min(run.end, run.first + room)))
        self.runs = kept
        self.firsts = [run.first for run in kept]

    @staticmethod
    def _continues(before: Run, run: Run) -> bool:
        return (
            before.end == run.first
            and before.queue_id == run.queue_id
            and before.topic == run.topic
            and before.queue_offset + (before.end - before.first) == run.queue_offset
        )


class IdempotenceTable:
    """The windows of the most recent producers and topics."""

    def __init__(self, runs_max: int, producers_max: int) -> None:
        self._runs_max = runs_max
        self._producers_max = producers_max
        self.horizon = 0  # log offset; what was stored below it may be forgotten
        self._windows: OrderedDict[tuple[bytes, str], _Window] = OrderedDict()

    def __len__(self) -> int:
        """Producers remembered, once for each topic."""
        return len(self._windows)

    def _of(self, producer: bytes, topics: Iterable[str], sequence: int) -> list[_Window]:
        """Windows that have, or had, this sequence or one above it; none for the next one."""
        found = []
        for topic in topics:
            window = self._windows.get((producer, topic))
            if window is not None and window.end > sequence:
                found.append(window)
        return found

    def stored_prefix(
        self, producer: bytes, topics: Iterable[str], sequence: int, count: int
    ) -> list[Run]:
        """Runs in some topics that already contain the first sequences of
        [sequence, sequence + count).

        They are clipped to the range and have no gaps, so their total is the number of leading
        messages to drop. Raises SequenceTooOld if the start lies before the remembered sequences.
        """
        windows = self._of(producer, topics, sequence)
        if not windows:
            return []
        found: list[Run] = []
        at = sequence
        while at < sequence + count:
            runs = [run for one in windows if (run := one.find(at)) is not None]
            if not runs:
                break
            run = runs[0]
            end = min(run.end, sequence + count)
            found.append(Run(at, end, run.topic, run.queue_id, run.queue_offset + at - run.first))
            at = end
        if not found:
            forgotten = max([window.forgotten for window in windows])
            if sequence < forgotten:
                raise SequenceTooOld(sequence, forgotten)
        return found

    def check_not_forgotten(self, sequence: int, known_end: int) -> None:
        """Raise ProducerForgotten for an unknown sequence that may have been stored.

        known_end: log offset that was confirmed before the sequence was first sent.
        """
        if known_end < self.horizon:
            raise ProducerForgotten(sequence, known_end, self.horizon)

    def begins_at(self, offset: int) -> None:
        """Set the horizon: records below a log offset are never added."""
        self.horizon = max(self.horizon, offset)

    def overlaps_later(
        self, producer: bytes, topics: Iterable[str], sequence: int, count: int
    ) -> bool:
        """Whether a later part of the range is stored although its start is not."""
        for window in self._of(producer, topics, sequence):
            following = window.next_known(sequence)
            if following is not None and following < sequence + count:
                return True
        return False

    def cut(self, ends: Mapping[tuple[str, int], int]) -> None:
        """Drop runs that a truncated log no longer holds: those at or past the end of their queue.

        ends: queue offset after the last entry, by topic and queue id; 0 for a queue not named.
        """
        for window in self._windows.values():
            window.cut(ends)

    def add(self, producer: bytes, run: Run, log_end: int) -> None:
        """Remember a stored run, all of which lies below a log offset."""
        key = producer, run.topic
        window = self._windows.get(key)
        if window is None:
            window = self._windows[key] = _Window(self._runs_max)
            if len(self._windows) > self._producers_max:
                _, oldest = self._windows.popitem(last=False)
                self.begins_at(oldest.log_end)
        else:
            self._windows.move_to_end(key)
        window.log_end = max(window.log_end, log_end)
        window.add(run)
