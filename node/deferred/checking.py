"""Schedules the checks of half messages that are due, by producer group. Pure.

Rules: a group is asked about so many at a time as it may answer; what is asked about keeps its
place until it is decided, its producer answers that it is not yet, or its time is over; the more
are before it, the longer that is. What nobody took is not asked about, and its group is left alone
for a moment.
"""

from collections import deque
from collections.abc import Callable

from duolog_server.node.deferred.halfmessages import Half
from duolog_server.store.clocks import MonoMs

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
