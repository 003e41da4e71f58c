"""Consumers that wait for messages of one kind, woken one after the other."""

import asyncio
from collections import deque


class Line:
    """A line of waiting consumers; to the arrival board it is a watcher."""

    def __init__(self) -> None:
        self.waiting: deque[asyncio.Event] = deque()
        self.turn = 0
        self.watched: set[tuple[str, int]] = set()
        self.polls = 0
        self.left = 0  # messages that the look under way may still examine

    def set(self) -> None:
        """There may be something: the first in the line looks."""
        if self.waiting:
            self.waiting.popleft().set()

    def validate(self) -> str:
        """What is wrong with this line, empty for nothing: each that waits is one of its polls."""
        if len(self.waiting) > self.polls:
            return f"{len(self.waiting)} wait of {self.polls} polls"
        if any(waiting.is_set() for waiting in self.waiting):
            return "one that was woken still stands in the line"
        if self.watched and not self.polls:
            return f"watches {sorted(self.watched)} for no poll"
        return ""

    def set_all(self) -> None:
        """All of them look."""
        while self.waiting:
            self.set()
