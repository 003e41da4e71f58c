"""The operations of clients and their results: the only evidence that the checkers use.

A send ends `ok`, `fail` (surely not stored) or `unknown` (may or may not have happened, now or
later). Taking unknown for fail is the commonest bug of such checks; taking it for ok hides losses.
Times are seconds since the run began.
"""

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path

OK, FAIL, UNKNOWN = "ok", "fail", "unknown"
Queue = tuple[str, int]


@dataclass(slots=True)
class Send:
    """One message. offset: where the receipt says it is, -1 without one."""

    process: int
    body: str
    topic: str
    queue_id: int
    begin: float
    end: float = -1.0
    outcome: str = UNKNOWN
    offset: int = -1
    epoch: int = 0


@dataclass(slots=True)
class Poll:
    """What one poll of one process got: bodies at offsets [first, first + len(bodies))."""

    process: int
    topic: str
    queue_id: int
    end: float
    first: int
    bodies: list[str]
    begin: float = 0.0


@dataclass(slots=True)
class History:
    """Sends and polls in the order in which they began and ended; and what was read at the end.

    drains: per replica and queue, everything it serves from offset 0.
    """

    sends: list[Send] = field(default_factory=list)
    polls: list[Poll] = field(default_factory=list)
    drains: dict[str, dict[Queue, list[tuple[int, str]]]] = field(default_factory=dict)

    def outcomes(self) -> Counter[str]:
        """How many sends ended how."""
        return Counter(send.outcome for send in self.sends)

    def acknowledged(self) -> list[Send]:
        """Sends that were answered PUT_OK, by the time of the answer."""
        return sorted((s for s in self.sends if s.outcome == OK), key=lambda send: send.end)

    def save(self, path: Path) -> None:
        """As JSON lines."""
        with path.open("w") as out:
            for row in _rows(self):
                out.write(json.dumps(row, separators=(",", ":")) + "\n")


def _rows(history: History) -> Iterable[dict[str, object]]:
    for send in history.sends:
        yield {"op": "send", **asdict(send)}
    for poll in history.polls:
        yield {"op": "poll", **asdict(poll)}
    for node, queues in history.drains.items():
        for (topic, queue_id), found in queues.items():
            yield {
                "op": "drain",
                "node": node,
                "topic": topic,
                "queue_id": queue_id,
                "messages": found,
            }
