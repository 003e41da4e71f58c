"""How the lag of a consumer group develops while somebody looks at it, and which queue is stuck."""

from collections.abc import Sequence
from dataclasses import dataclass

from duolog import GroupDescription, GroupQueue

from duolog_server.ops.console.view.formatting import duration
from duolog_server.ops.console.view.rates import Flow
from duolog_server.ops.console.view.visits import Visit

STILL_SECONDS = 10.0  # without a commit, until a queue with messages to consume is called stuck


@dataclass(frozen=True, slots=True)
class QueueRow:
    """A queue of a group. line: of its lag. still_ms: for how long nothing was committed although
    there was something to consume; 0: not stuck.
    """

    queue: GroupQueue
    line: str
    still_ms: int

    @property
    def place(self) -> str:
        """The queue's name."""
        return f"{self.queue.topic}/{self.queue.queue_id}"


def queue_rows(visit: Visit, group: str, queues: Sequence[GroupQueue]) -> list[QueueRow]:
    """Queues as the page shows them. Only these are remembered."""
    return [_row(visit, group, queue) for queue in queues]


def _row(visit: Visit, group: str, queue: GroupQueue) -> QueueRow:
    key = f"lag/{group}/{queue.topic}/{queue.replica_group}/{queue.queue_id}"
    line = visit.rates.line(key, queue.lag_messages, visit.now)
    behind = queue.lag_messages > 0
    still = visit.rates.still_seconds(key, (queue.committed, behind), visit.now)
    stuck = behind and still >= STILL_SECONDS
    return QueueRow(queue, line, int(still) * 1000 if stuck else 0)


def stuck(rows: Sequence[QueueRow]) -> str:
    """The queue that has been stuck the longest, as a sentence; empty: none is."""
    worst = max(rows, key=lambda row: row.still_ms, default=None)
    if worst is None or not worst.still_ms:
        return ""
    still, member = duration(worst.still_ms), worst.queue.member_id
    if worst.queue.not_polled:
        return f" Member {member} is connected, and has not polled {worst.place} yet."
    if member:
        return f" Member {member} has committed nothing in {worst.place} for {still}."
    return f" No offset was committed in {worst.place} for {still}."


def lag_flows(visit: Visit, group: GroupDescription) -> dict[str, Flow]:
    """Flows of the whole group: messages behind, age of the oldest (ms), and messages a second that
    are stored and consumed.
    """
    queues, key, now = group.queues, f"group/{group.group}", visit.now
    behind = sum(queue.lag_messages for queue in queues)
    oldest = max((queue.lag_ms for queue in queues), default=0)
    stored = visit.rates.note(f"{key}/stored", sum(queue.max_offset for queue in queues), now)
    read = visit.rates.note(f"{key}/read", sum(queue.committed or 0 for queue in queues), now)
    return {
        "behind": Flow(behind, visit.rates.line(f"{key}/behind", behind, now)),
        "oldest": Flow(oldest, visit.rates.line(f"{key}/oldest", oldest, now)),
        "stored": Flow.of(stored),
        "read": Flow.of(read),
    }
