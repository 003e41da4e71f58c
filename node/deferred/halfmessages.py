"""Half messages without a decision: their positions, and when to check them. Pure.

A half message keeps the offset at which it was first stored as its number, however often it is
stored again for another check.
"""

import heapq
from collections import Counter, deque
from collections.abc import Callable, Iterator
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


# Schedules the checks of half messages that are due, by producer group. Pure.
#
# Rules: a group is asked about so many at a time as it may answer; what is asked about keeps its
# place until it is decided, its producer answers that it is not yet, or its time is over; the more
# are before it, the longer that is. What nobody took is not asked about, and its group is left
# alone for a moment.
IN_FLIGHT_MAX = 32  # of a group
PATIENCE_MS = 30_000  # for an answer, at most, unless the interval of checks is longer
AGAIN_MS = 1000  # until a group is tried again of which no producer took a check


class Turns:
    """The due half messages of all groups, and those that are asked about."""

    def __init__(self, interval_ms: int) -> None:
        """interval_ms: in which a producer is expected to answer one check."""
        self._interval_ms = interval_ms
        self._patience_ms = max(interval_ms, PATIENCE_MS)
        self._due: dict[str, deque[Half]] = {}
        self._asked: dict[str, dict[int, MonoMs]] = {}  # until when, by first offset
        self._left_alone: dict[str, MonoMs] = {}

    def add(self, half: Half) -> None:
        """One is due."""
        self._due.setdefault(half.group, deque()).append(half)

    def groups(self, now_ms: MonoMs) -> list[str]:
        """Groups that may be asked about something."""
        for group, until in list(self._left_alone.items()):
            if until <= now_ms:
                del self._left_alone[group]
        return [group for group in self._due if self.may_ask(group)]

    def may_ask(self, group: str) -> bool:
        """Whether a group has due half messages, and took the last check."""
        return group in self._due and group not in self._left_alone

    def next(self, group: str, now_ms: MonoMs, waits: Callable[[int], bool]) -> Half | None:
        """The next one to ask about; None where none is due, or as many as may be are asked about.

        waits: whether a half message is undecided.
        """
        asked = self._asked.get(group, {})
        for origin, until in list(asked.items()):
            if until <= now_ms or not waits(origin):
                del asked[origin]
        if not asked:
            self._asked.pop(group, None)
        due = self._due[group]
        if len(asked) >= IN_FLIGHT_MAX:
            return None
        half = due.popleft() if due else None
        if not due:
            del self._due[group]
        if half is not None:  # an answer may come before `asked` is called
            self._asked.setdefault(group, {})[half.origin] = MonoMs(now_ms + self._patience_ms)
        return half

    def asked(self, half: Half, now_ms: MonoMs) -> int:
        """A producer took a check; the ms in which it may answer it."""
        asked = self._asked.get(half.group, {})
        if half.origin not in asked:
            return self._interval_ms  # it is answered already
        wait = min(self._interval_ms * len(asked), self._patience_ms)
        asked[half.origin] = MonoMs(now_ms + wait)
        return wait

    def answered(self, half: Half) -> bool:
        """It is not asked about any more, so that another one may be; whether it was."""
        return self._asked.get(half.group, {}).pop(half.origin, None) is not None

    def untaken(self, half: Half, now_ms: MonoMs) -> None:
        """No producer took its check: it is the next one of its group, in a moment."""
        self.answered(half)
        self._due.setdefault(half.group, deque()).appendleft(half)
        self._left_alone[half.group] = MonoMs(now_ms + min(self._interval_ms, AGAIN_MS))
