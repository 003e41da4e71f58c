"""The wait queue of consumers for messages of one kind; they are woken one after the other."""

import asyncio
from collections import deque


class Line:
    """Waiting consumers, first come, first served; a watcher on the arrival board."""

    def __init__(self) -> None:
        self.waiting: deque[asyncio.Event] = deque()
        self.turn = 0
        self.watched: set[tuple[str, int]] = set()
        self.polls = 0
        self.forgotten = False  # its topic or group was deleted: it ends with its last poll
        self.left = 0  # messages that the current scan may still examine

    def set(self) -> None:
        """Wake the first consumer: messages may have arrived."""
        if self.waiting:
            self.waiting.popleft().set()

    def validate(self) -> str:
        """The first violated invariant, empty if all hold: every waiting consumer has a poll."""
        if len(self.waiting) > self.polls:
            return f"{len(self.waiting)} wait of {self.polls} polls"
        if any(waiting.is_set() for waiting in self.waiting):
            return "a woken consumer is still in the line"
        if self.watched and not self.polls:
            return f"watches {sorted(self.watched)} for no poll"
        return ""

    def set_all(self) -> None:
        """Wake all of them."""
        while self.waiting:
            self.set()
