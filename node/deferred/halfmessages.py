"""Half messages without a decision: their positions, and when to check them. Pure.

A half message keeps the offset at which it was first stored as its number, however often it is
stored again for another check.
"""

import heapq
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from duolog_server.store.clocks import MonoMs

DECISIONS_MAX = 20_000


@dataclass(slots=True)
class Half:
    """One half message. origin: its first offset in the half queue; offset: its current one.

    topic: the one that it is sent to. stored_ms: when it was stored first, as far as known.
    """

    origin: int
    offset: int
    group: str  # its producer group
    checks: int
    check_ms: MonoMs  # time of the next check
    topic: str = ""
    stored_ms: int = 0


class HalfMessages:
    """All half messages without a decision, by first offset."""

    def __init__(self, low: int) -> None:
        """low: first offset of the half queue that may not be decided."""
        self.end = low  # half messages from here on were not read yet
        self.by_topic: dict[str, int] = {}  # how many there are of each
        self._halves: dict[int, Half] = {}
        self._origins: dict[int, int] = {}  # by current offset
        self._due: list[tuple[int, int]] = []
        self._decided_ahead: set[int] = set()  # offsets from `end` on

    def __len__(self) -> int:
        """The number of half messages."""
        return len(self._halves)

    def __iter__(self) -> Iterator[int]:
        """The half messages' first offsets."""
        return iter(self._halves)

    def validate(self, mono_ms: MonoMs) -> str:
        """The first violated invariant; empty if all hold.

        Each is found at its current offset, and each has a check scheduled.
        """
        if len(self._origins) != len(self._halves):
            return f"{len(self._halves)} wait, {len(self._origins)} places are known"
        planned = set(self._due)
        for origin, half in self._halves.items():
            if half.origin != origin or self._origins.get(half.offset) != origin:
                return f"half message {origin} is missing at its place {half.offset}"
            if half.check_ms > mono_ms and (half.check_ms, origin) not in planned:
                return f"no check is due for half message {origin} at {half.check_ms}"
        counted = Counter(half.topic for half in self._halves.values())
        if counted != self.by_topic:
            return f"{self.by_topic} are counted by topic, {dict(counted)} wait"
        behind = [offset for offset in self._decided_ahead if offset < self.end]
        if behind:
            return f"{behind} are read, and decided ahead of {self.end}"
        return ""

    def reach(self, end: int) -> None:
        """Everything below an offset was read, or is deleted or damaged."""
        self.end = max(self.end, end)
        self._decided_ahead = {offset for offset in self._decided_ahead if offset >= self.end}

    @property
    def low(self) -> int:
        """No half message before this offset is undecided."""
        return min(self.end, min(self._origins, default=self.end))

    def read(self, half: Half) -> None:
        """Take the half message at `end`, or after it, that was read from the queue."""
        self.end = half.offset + 1
        if half.offset in self._decided_ahead:
            self._decided_ahead.remove(half.offset)
        elif half.offset not in self._origins:
            self.add(half)

    def add(self, half: Half) -> None:
        """Add a half message, or the new offset of a known one.

        It need not be readable there yet: the queue's messages before it are still to be read.
        """
        known = self._halves.get(half.origin)
        if known is not None:
            self._origins.pop(known.offset, None)
        else:
            self.by_topic[half.topic] = self.by_topic.get(half.topic, 0) + 1
        self._halves[half.origin] = half
        self._origins[half.offset] = half.origin
        heapq.heappush(self._due, (half.check_ms, half.origin))

    def get(self, origin: int) -> Half | None:
        """One of them."""
        return self._halves.get(origin)

    def waits(self, origin: int) -> bool:
        """Whether one is undecided."""
        return origin in self._halves

    def all(self) -> list[Half]:
        """All of them."""
        return list(self._halves.values())

    def origin_at(self, offset: int) -> int:
        """The first offset of the undecided half message at a current offset."""
        return self._origins[offset]

    def lies_at(self, offset: int) -> bool:
        """Whether an undecided half message is at a current offset."""
        return offset in self._origins

    def resolved(self, offset: int) -> None:
        """Remove the half message at a current offset; one that moved on is not affected."""
        if offset >= self.end:
            self._decided_ahead.add(offset)
        origin = self._origins.pop(offset, None)
        if origin is not None:
            topic = self._halves.pop(origin).topic
            self.by_topic[topic] -= 1
            if not self.by_topic[topic]:
                del self.by_topic[topic]

    def due(self, mono_ms: MonoMs, limit: int) -> list[Half]:
        """Up to `limit` half messages to check; each is due again once it is added again."""
        found: dict[int, Half] = {}  # one that was read twice has two entries for the same time
        while self._due and self._due[0][0] <= mono_ms and len(found) < limit:
            check_ms, origin = heapq.heappop(self._due)
            half = self._halves.get(origin)
            if half is not None and half.check_ms == check_ms:
                found[origin] = half
        return list(found.values())

    def ask_later(self, half: Half, check_ms: MonoMs) -> None:
        """Check at another time."""
        half.check_ms = check_ms
        heapq.heappush(self._due, (check_ms, half.origin))


class Decision(NamedTuple):
    """The decision on a half message, and the log offset up to which it must be durable.

    group: its producer group.
    """

    commit: bool
    end_offset: int
    group: str


class Decisions:
    """The latest decisions of a mastership, by first offset; older ones are only in the log."""

    def __init__(self) -> None:
        self._known: dict[int, Decision] = {}
        self.forgotten_end = 0  # every decision dropped here is below this log offset

    def get(self, origin: int) -> Decision | None:
        """One of them."""
        return self._known.get(origin)

    def add(self, origin: int, decision: Decision) -> None:
        """Add a decision; drop the oldest if there are too many."""
        self._known[origin] = decision
        if len(self._known) > DECISIONS_MAX:
            oldest = self._known.pop(next(iter(self._known)))
            self.forgotten_end = max(self.forgotten_end, oldest.end_offset)

    def clear(self) -> None:
        """The mastership has changed."""
        self._known.clear()
        self.forgotten_end = 0
