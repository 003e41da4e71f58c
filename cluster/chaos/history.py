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
    """Result of one poll of one process: bodies at offsets [first, first + len(bodies))."""

    process: int
    topic: str
    queue_id: int
    end: float
    first: int
    bodies: list[str]
    begin: float = 0.0


@dataclass(slots=True)
class Commit:
    """A group's commit of an offset, which an older one does not take back."""

    topic: str
    queue_id: int
    offset: int
    begin: float
    end: float = -1.0
    outcome: str = UNKNOWN


@dataclass(slots=True)
class Told:
    """The group's committed offset in a queue, -1 for none, as a master answered."""

    topic: str
    queue_id: int
    offset: int
    begin: float
    end: float


@dataclass(slots=True)
class Half:
    """A transaction. commit: what its producer decides, at once or (late) when a node asks.

    outcome: of the half message. deciding, settled: when the decision began, and was answered
    (decided `ok`). asked: when a node first asked for it.
    """

    body: str
    commit: bool
    late: bool
    begin: float
    outcome: str = UNKNOWN
    deciding: float = -1.0
    settled: float = -1.0
    decided: str = UNKNOWN
    why: str = ""
    asked: float = -1.0


@dataclass(slots=True)
class History:
    """Sends and polls in the order in which they began and ended; and what was read at the end.

    drains: per replica and queue, everything it serves from offset 0; those of `transacted` have
    the transactions alone.
    """

    sends: list[Send] = field(default_factory=list)
    polls: list[Poll] = field(default_factory=list)
    drains: dict[str, dict[Queue, list[tuple[int, str]]]] = field(default_factory=dict)
    commits: list[Commit] = field(default_factory=list)
    told: list[Told] = field(default_factory=list)
    halves: list[Half] = field(default_factory=list)
    transacted: Queue = ("", 0)

    def outcomes(self) -> Counter[str]:
        """How many sends ended how."""
        return Counter(send.outcome for send in self.sends)

    def other_outcomes(self) -> dict[str, int]:
        """Outcomes of the group and the transactions."""
        decided = [half for half in self.halves if half.decided == OK]
        return {
            "commits": sum(commit.outcome == OK for commit in self.commits),
            "offsets_told": len(self.told),
            "transactions_committed": sum(half.commit for half in decided),
            "transactions_rolled_back": sum(not half.commit for half in decided),
            "transactions_asked_about": sum(half.asked >= 0 for half in self.halves),
        }

    def acknowledged(self) -> list[Send]:
        """Sends that were answered PUT_OK, by the time of the answer."""
        return sorted((s for s in self.sends if s.outcome == OK), key=lambda send: send.end)

    def save(self, path: Path) -> None:
        """Save as JSON lines."""
        with path.open("w") as out:
            for row in _rows(self):
                out.write(json.dumps(row, separators=(",", ":")) + "\n")


def _rows(history: History) -> Iterable[dict[str, object]]:
    for send in history.sends:
        yield {"op": "send", **asdict(send)}
    for poll in history.polls:
        yield {"op": "poll", **asdict(poll)}
    for kind, rows in (
        ("commit", history.commits),
        ("told", history.told),
        ("half", history.halves),
    ):
        for row in rows:
            yield {"op": kind, **asdict(row)}
    for node, queues in history.drains.items():
        for (topic, queue_id), found in queues.items():
            yield {
                "op": "drain",
                "node": node,
                "topic": topic,
                "queue_id": queue_id,
                "messages": found,
            }
