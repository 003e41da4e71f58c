"""Checkers of a history; each reports its findings with an example.

| finding | means |
|---------|-------|
| lost | acknowledged, and on a replica not where the receipt says (total-queue, lost write) |
| unexpected | read, and never sent |
| duplicated | one message at two offsets |
| inconsistent | one offset, two messages: between receipts, polls and replicas |
| aborted | a send that surely failed was read (G1a) |
| gap | offsets of a queue that are not 0, 1, 2, ... |
| skipped | a process's poll passes over messages that others read |
| backwards | a process's poll returns to what it had |
| deposed | acknowledged by a master that another one had replaced before the send began |
| differs | two replicas serve other queues |

Those of linearizable.py are decided over all of the history at once.

| found there | means |
|-------------|-------|
| not linearizable | no order of the sends explains what was answered and read |
| progress | a committed offset goes back, or a reported one was never committed |
| transactions | the same of commits, which append a message; one that is delivered twice |
| rolled back and delivered | a transaction that its producer rolled back |
| committed and not delivered | one that its producer committed |
| decision refused | a producer may not decide what it has not decided otherwise |
"""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

from duolog_server.chaos.history import FAIL, OK, History, Queue

EXAMPLES = 3


@dataclass(frozen=True, slots=True)
class Finding:
    """A violation."""

    kind: str
    count: int
    examples: tuple[str, ...]

    def __str__(self) -> str:
        """For people."""
        return f"{self.kind}: {self.count}, as {'; '.join(self.examples)}"


def finding(kind: str, examples: list[str]) -> list[Finding]:
    """None where there are no examples."""
    return [Finding(kind, len(examples), tuple(examples[:EXAMPLES]))] if examples else []


def lost(history: History) -> list[Finding]:
    """Every acknowledged message is on every replica, where its receipt says."""
    found = []
    for node, queues in history.drains.items():
        places = {key: dict(rows) for key, rows in queues.items()}
        for send in history.sends:
            if send.offset < 0:
                continue
            there = places.get((send.topic, send.queue_id), {}).get(send.offset)
            if there != send.body:
                where = f"{send.topic}/{send.queue_id}@{send.offset}"
                found.append(f"{send.body} is not at {where} of {node}, but {there}")
    return finding("lost", found)


def unexpected(history: History) -> list[Finding]:
    """Check that every read message was sent."""
    sent = {send.body for send in history.sends} | {half.body for half in history.halves}
    read = {body for bodies in _everything_read(history).values() for _, body in bodies}
    return finding("unexpected", sorted(read - sent))


def duplicated(history: History) -> list[Finding]:
    """A message is stored once, however often its sender repeated it."""
    found = []
    for node, queues in history.drains.items():
        seen: dict[str, tuple[Queue, int]] = {}
        for key, rows in queues.items():
            for offset, body in rows:
                if body in seen:
                    found.append(f"{body} at {seen[body]} and {(key, offset)} of {node}")
                seen[body] = (key, offset)
    return finding("duplicated", found)


def inconsistent(history: History) -> list[Finding]:
    """An offset holds one message, according to every source at every time."""
    known: dict[tuple[Queue, int], str] = {}
    found = []
    claims = [
        ((send.topic, send.queue_id), send.offset, send.body)
        for send in history.sends
        if send.offset >= 0
    ]
    for key, rows in _everything_read(history).items():
        claims += [(key, offset, body) for offset, body in rows]
    for key, offset, body in claims:
        before = known.setdefault((key, offset), body)
        if before != body:
            found.append(f"{key}@{offset}: {before} and {body}")
    return finding("inconsistent", found)


def aborted(history: History) -> list[Finding]:
    """A send that was reported as failed is stored nowhere."""
    failed = {send.body for send in history.sends if send.outcome == FAIL}
    read = {body for rows in _everything_read(history).values() for _, body in rows}
    return finding("aborted", sorted(failed & read))


def gaps(history: History) -> list[Finding]:
    """Check that offsets are dense."""
    found = []
    for node, queues in history.drains.items():
        for key, rows in queues.items():
            offsets = [offset for offset, _ in rows]
            if offsets != list(range(len(offsets))):
                wrong = next(k for k, offset in enumerate(offsets) if offset != k)
                found.append(f"{key} of {node}: {offsets[wrong]} comes as number {wrong}")
    return finding("gap", found)


def order(history: History) -> list[Finding]:
    """Each poll of a process continues where the last one ended: no skip, no return."""
    places: dict[tuple[int, Queue], int] = {}
    skipped, backwards = [], []
    for poll in history.polls:
        place = (poll.process, (poll.topic, poll.queue_id))
        expected = places.get(place, 0)
        if poll.first > expected:
            skipped.append(f"process {place[0]} of {place[1]}: from {expected} to {poll.first}")
        elif poll.first < expected:
            backwards.append(f"process {place[0]} of {place[1]}: {expected} back to {poll.first}")
        places[place] = poll.first + len(poll.bodies)
    return [*finding("skipped", skipped), *finding("backwards", backwards)]


def deposed(history: History) -> list[Finding]:
    """No master acknowledges what is sent to it after a later one has acknowledged something."""
    first: dict[int, float] = {}  # by epoch: when its master first answered
    acknowledged = [send for send in history.sends if send.outcome == OK and send.epoch]
    for send in acknowledged:
        first[send.epoch] = min(send.end, first.get(send.epoch, send.end))
    found = []
    for send in acknowledged:
        later = [epoch for epoch, at in first.items() if epoch > send.epoch and at < send.begin]
        if later:
            found.append(f"{send.body} of epoch {send.epoch}, after epoch {min(later)} answered")
    return finding("deposed", found)


def differs(history: History) -> list[Finding]:
    """All replicas serve the same."""
    found: list[str] = []
    nodes = sorted(history.drains)
    for node in nodes[1:]:
        for key in sorted(history.drains[nodes[0]].keys() | history.drains[node].keys()):
            ours, theirs = history.drains[nodes[0]].get(key, []), history.drains[node].get(key, [])
            if ours != theirs:
                found.append(
                    f"{key} has {len(ours)} messages on {nodes[0]}, {len(theirs)} on {node}"
                )
    return finding("differs", found)


def _everything_read(history: History) -> dict[Queue, list[tuple[int, str]]]:
    rows: dict[Queue, list[tuple[int, str]]] = defaultdict(list)
    for poll in history.polls:
        rows[poll.topic, poll.queue_id] += [
            (poll.first + k, body) for k, body in enumerate(poll.bodies)
        ]
    for queues in history.drains.values():
        for key, found in queues.items():
            rows[key] += found
    return rows


CHECKERS: tuple[Callable[[History], list[Finding]], ...] = (
    lost,
    unexpected,
    duplicated,
    inconsistent,
    aborted,
    gaps,
    order,
    deposed,
    differs,
)


def check(history: History) -> list[Finding]:
    """All of them."""
    return [found for checker in CHECKERS for found in checker(history)]
