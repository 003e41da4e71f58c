"""A client of a group that subscribes to lite topics, and those that may have messages."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from duolog_server.node.pop.popline import Line


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
