"""A client of a group that subscribes to lite topics, and which of them may have messages."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from node.consuming.popline import Line


@dataclass(slots=True, eq=False)
class Subscriber:
    """A client in a group, and the light queues that it subscribes to."""

    client: str
    group: str
    topic: str
    queues: set[str] = field(default_factory=set)
    everything: bool = False
    line: Line = field(default_factory=Line)
    ready: dict[str, None] = field(default_factory=dict)  # may have something, in order
    given: tuple[str, list[str]] = ("", [])  # attempt, and the queues it had messages of

    def notify(self, queue: str) -> None:
        """A queue may have something."""
        self.ready[queue] = None
        self.line.set()

    def sources(self, attempt_id: str) -> Iterator[tuple[str, int]]:
        """Queues to look into; each is taken for empty once the next one is asked for."""
        again = self.given[1] if attempt_id and attempt_id == self.given[0] else []
        for queue in again:
            yield queue, 0
        while self.ready:
            queue = next(iter(self.ready))
            if queue not in again:  # else its messages are out, and it is told when they are done
                yield queue, 0
            self.ready.pop(queue, None)
