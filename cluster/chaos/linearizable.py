"""A chaos run's history, as the checker of the simulator reads it (sim/linearizable.py).

Each of these questions is decided: there is no history that the checker gives up on.
"""

from duolog_server.chaos.checkers import Finding, finding
from duolog_server.chaos.history import FAIL, OK, Half, History, Queue
from duolog_server.linearizable import NEVER, NONE, Append, Commit, Read, Told, log, progress


def findings(history: History) -> list[Finding]:
    """Queues, groups and transactions whose history has no order that explains all of it."""
    found = [*finding("not linearizable", _queues(history)), *finding("progress", _groups(history))]
    return [*found, *_transactions(history)]


def _queues(history: History) -> list[str]:
    """Sends, polls and the content on every replica in the end have no order in common."""
    found = []
    known = {key for drained in history.drains.values() for key in drained}
    for topic, queue_id in sorted(known - {history.transacted}):
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
    return found


def _groups(history: History) -> list[str]:
    """Findings: reported offsets of groups that contradict committed ones."""
    commits: dict[Queue, list[Commit]] = {}
    told: dict[Queue, list[Told]] = {}
    for row in history.commits:
        if row.outcome != FAIL:
            end = row.end if row.outcome == OK else NEVER
            made = commits.setdefault((row.topic, row.queue_id), [])
            made.append(Commit(row.offset, row.begin, end))
    for answer in history.told:
        known = told.setdefault((answer.topic, answer.queue_id), [])
        known.append(Told(answer.offset, answer.begin, answer.end))
    found = []
    for key in sorted({*commits, *told}):
        if why := progress(commits.get(key, []), told.get(key, [])):
            found.append(f"{key[0]}/{key[1]}: {why}")
    return found


def _transactions(history: History) -> list[Finding]:
    """A transaction is delivered exactly once if it was committed, and never if rolled back."""
    wrong, delivered, undelivered = [], [], []
    appends = [_append(half) for half in history.halves if half.commit and half.outcome != FAIL]
    rolled_back = {half.body for half in history.halves if not half.commit}
    for node, queues in sorted(history.drains.items()):
        stored = [body for _, body in queues.get(history.transacted, [])]
        delivered += [f"{body} on {node}" for body in stored if body in rolled_back]
        kept = [body for body in stored if body not in rolled_back]
        if why := log(appends, (), kept):
            wrong.append(f"{node}: {why}")
        there = set(stored)
        undelivered += [
            f"{half.body} on {node}"
            for half in history.halves
            if half.commit and half.outcome == OK and half.body not in there
        ]
    given_up = [f"{half.body}: {half.why}" for half in history.halves if half.decided == FAIL]
    return [
        *finding("transactions", wrong),
        *finding("rolled back and delivered", delivered),
        *finding("committed and not delivered", undelivered),
        *finding("decision refused", given_up),
    ]


def _append(half: Half) -> Append:
    """A commit appends the message, when its producer decides or a node has asked for that."""
    if half.outcome != OK:
        return Append(half.body, half.begin)
    begins = [at for at in (half.deciding, half.asked) if at >= 0]
    end = half.settled if half.decided == OK else NEVER
    return Append(half.body, min(begins, default=half.begin), end)
