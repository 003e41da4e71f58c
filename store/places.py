"""Places: the queues that records are in, and the queue offset of each record there.

A record has one place of its own, in its topic's queue; a light queue that it names is another
(`store.lightqueues`). Code that processes a range of log gets all places from here, queue by queue,
and need not know the kinds.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np

from duolog_server.store.kernels import scan
from duolog_server.store.kernels.jit import I64, U8
from duolog_server.store.lightqueues import light_places
from duolog_server.store.queueends import QueueKey
from duolog_server.store.record import Record

TOPICS_KEPT = 100_000  # limit of cached decoded names


@dataclass(frozen=True, slots=True)
class Grouped:
    """Places grouped by queue, in a row table of `store.kernels.scan`: a row is a record at one
    place.

    order: row numbers, queue by queue, in log order. starts: where each queue begins in it, and the
    end. key_of: the queue of a row.
    """

    rows: I64
    order: I64
    starts: list[int]
    key_of: Callable[[int], QueueKey]

    def __iter__(self) -> Iterator[tuple[QueueKey, I64]]:
        """Each queue and the numbers of its rows that have entries: half messages have none."""
        kinds = self.rows[scan.SYSFLAG, : self.starts[-1]] & scan.TRANSACTION_MASK
        if not np.count_nonzero(kinds):
            yield from self.records()
            return
        shown = (kinds == 0) | (kinds == scan.TRANSACTION_COMMIT)
        for key, chosen in self.records():
            chosen = chosen[shown[chosen]]
            if len(chosen):
                yield key, chosen

    def records(self) -> Iterator[tuple[QueueKey, I64]]:
        """Each queue and the numbers of its rows, with those that have no entries."""
        for first, end in pairwise(self.starts):
            chosen = self.order[first:end]
            yield self.key_of(int(chosen[0])), chosen

    def firsts(self) -> Iterator[tuple[QueueKey, int]]:
        """Each queue and the number of its first row, in the order of the log."""
        return ((self.key_of(row), row) for row in self.order[self.starts[:-1]].tolist())

    def __len__(self) -> int:
        """Queues."""
        return len(self.starts) - 1


def places_of(record: Record) -> list[tuple[str, int, int]]:
    """A record's places: topic, queue id and queue offset; its own first."""
    own = record.topic, record.queue_id, record.queue_offset
    return [own, *light_places(record.properties)]


class PlaceFinder:
    """Finds places. It owns the memory of the result, which is valid until the next call."""

    def __init__(self, count: int) -> None:
        """count: maximum number of records per call."""
        self._order: I64 = np.empty(count, np.int64)
        self._starts: I64 = np.empty(count + 1, np.int64)
        self._topics: dict[bytes, str] = {}

    def own(self, memory: U8, rows: I64, n: int) -> Grouped:
        """The places of the first n rows, each in its topic's queue; sets their GROUP."""
        return self._grouped(memory, rows, n, self._order, self._starts)

    def all(self, memory: U8, rows: I64, n: int) -> list[Grouped]:
        """The own places of the first n rows, and all others that their records have.

        The others are copies, made before anybody writes into the rows.
        """
        found = [self.own(memory, rows, n)]
        if np.count_nonzero(rows[scan.MULTI, :n]):
            others: I64 = np.empty((scan.COLUMNS, 0), np.int64)
            m = int(scan.fan_out(memory, rows, n, others))
            others = np.empty((scan.COLUMNS, m), np.int64)
            scan.fan_out(memory, rows, n, others)
            order, starts = np.empty(m, np.int64), np.empty(m + 1, np.int64)
            found.append(self._grouped(memory, others, m, order, starts))
        return found

    def key(self, memory: U8, rows: I64, row: int) -> QueueKey:
        """The queue of a row."""
        at = int(rows[scan.TOPIC_AT, row])
        raw = memory[at : at + int(rows[scan.TOPIC_BYTES, row])].tobytes()
        topic = self._topics.get(raw)
        if topic is None:
            if len(self._topics) > TOPICS_KEPT:
                self._topics.clear()
            topic = self._topics[raw] = raw.decode(errors="replace")
        return topic, int(rows[scan.QUEUE_ID, row])

    def _grouped(self, memory: U8, rows: I64, n: int, order: I64, starts: I64) -> Grouped:
        groups = int(scan.group_rows(memory, rows, n, order, starts))
        return Grouped(rows, order, starts[: groups + 1].tolist(), partial(self.key, memory, rows))
