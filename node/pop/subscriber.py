"""A client of a group that subscribes to lite topics, and those that may have messages."""

import asyncio
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field


# The wait queue of consumers for messages of one kind; they are woken one after the other.
class Line:
    """Waiting consumers, first come, first served; a watcher on the arrival board."""

    def __init__(self) -> None:
        self.waiting: deque[asyncio.Event] = deque()
        self.turn = 0
        self.watched: set[tuple[str, int]] = set()
        self.polls = 0
        self.forgotten = False  # its topic or group was deleted: it ends with its last poll
        self.left = 0  # messages that the current scan may still examine
        self.room = 0  # bytes that it may still deliver

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


@dataclass(slots=True, eq=False)
class Subscriber:
    """A client in a group, and the light queues that it subscribes to."""

    client: str
    group: str
    topic: str
    queues: dict[str, None] = field(default_factory=dict)  # in the order of its requests
    everything: bool = False
    line: Line = field(default_factory=Line)
    ready: dict[str, None] = field(default_factory=dict)  # may have messages, in order
    given: tuple[str, list[str]] = ("", [])  # attempt, and the queues it had messages of

    def notify(self, queue: str) -> None:
        """A queue may have messages."""
        self.ready[queue] = None
        self.line.set()

    def drop(self, queue: str) -> None:
        """Unsubscribe from a queue, also for repeated requests whose answers were lost."""
        self.ready.pop(queue, None)
        attempt, queues = self.given
        self.given = attempt, [other for other in queues if other != queue]

    def sources(self, attempt_id: str) -> Iterator[tuple[str, int]]:
        """The queues to scan; each counts as empty once the next one is requested."""
        again = self.given[1] if attempt_id and attempt_id == self.given[0] else []
        for queue in again:
            yield queue, 0
        while self.ready:
            queue = next(iter(self.ready))
            if queue not in again:  # otherwise notified when its message is done
                yield queue, 0
            self.ready.pop(queue, None)
