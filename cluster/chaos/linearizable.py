"""A chaos run's history, as the checker of the simulator reads it (sim/linearizable.py)."""

from cluster.chaos.checkers import Finding, finding
from cluster.chaos.history import FAIL, OK, History
from sim.linearizable import NEVER, NONE, Append, Read, log


def findings(history: History) -> list[Finding]:
    """Queues whose sends, polls and content on every replica in the end have no order in common."""
    found = []
    for topic, queue_id in sorted({key for queues in history.drains.values() for key in queues}):
        sends = [s for s in history.sends if (s.topic, s.queue_id) == (topic, queue_id)]
        appends = [
            Append(s.body, s.begin, s.end, s.offset)
            if s.outcome == OK
            else Append(s.body, s.begin, NEVER, NONE)
            for s in sends
            if s.outcome != FAIL
        ]
        reads = [
            Read(poll.first, poll.bodies, poll.end)
            for poll in history.polls
            if (poll.topic, poll.queue_id) == (topic, queue_id)
        ]
        for node, queues in sorted(history.drains.items()):
            why = log(appends, reads, [body for _, body in queues.get((topic, queue_id), [])])
            if why:
                found.append(f"{topic}/{queue_id} of {node}: {why}")
    return finding("not linearizable", found)
