"""A chaos run's history, as the checker by others reads it (sim/linearizable.py)."""

from cluster.chaos.checkers import Finding, finding
from cluster.chaos.history import FAIL, OK, History
from sim.linearizable import UNKNOWN, Operation, Verdict, check


def operations(history: History) -> list[Operation]:
    """Sends, polls, and what every replica served in the end, in whole microseconds."""
    found = [
        Operation(
            f"{send.topic}/{send.queue_id}",
            "append",
            _micros(send.begin),
            _micros(send.end) if send.outcome == OK else UNKNOWN,
            send.offset if send.outcome == OK else UNKNOWN,
            (send.body,),
        )
        for send in history.sends
        if send.outcome != FAIL
    ]
    found += [
        Operation(
            f"{poll.topic}/{poll.queue_id}",
            "read",
            _micros(poll.begin),
            _micros(poll.end),
            poll.first,
            tuple(poll.bodies),
        )
        for poll in history.polls
    ]
    last = max((operation.end for operation in found), default=0) + 1
    for queues in history.drains.values():
        for (topic, queue_id), rows in queues.items():
            if rows:
                bodies = tuple(body for _, body in rows)
                queue = f"{topic}/{queue_id}"
                found.append(Operation(queue, "read", last, last + 1, rows[0][0], bodies))
    return found


def judge(history: History) -> Verdict:
    """What porcupine says, or why it cannot be asked here."""
    return check(operations(history))


def findings(verdict: Verdict) -> list[Finding]:
    """One where the history is not linearizable."""
    wrong = verdict.result == "Illegal"
    return finding("not linearizable", [f"queue {verdict.queue}"] if wrong else [])


def _micros(seconds: float) -> int:
    return int(seconds * 1_000_000)
