"""Final checks of the SDK's programs: stored as answered, consumed, published once."""

import json
from collections import Counter

from duolog_server.linearizable import Append, log, progress
from duolog_server.store.metadata import SYSTEM_TOPIC
from sim.clients import read_all
from sim.node import Node
from sim.sdkhistory import GROUP, PUBLISHED, QUEUES, WRITTEN, Queue, SdkHistory
from sim.witness import Violation


def unfinished(node: Node, history: SdkHistory) -> str:
    """The work that is still pending, empty for none."""
    if history.under_way:
        return f"{history.under_way} programs still send or publish"
    if node.services is None or node.may_be_behind():
        return "no master that knows its log"
    tables = node.services.broker.metadata.tables
    for queue_id in range(QUEUES):
        end = node.store.queue_range(WRITTEN, queue_id)[1]
        committed = max(0, tables.committed(GROUP, WRITTEN, queue_id))
        if committed < end:
            return f"{GROUP} has committed {committed} of {end} in {WRITTEN}/{queue_id}"
    for name, row in tables.sinks.items():
        if row["staged"]:
            return f"batch {row['batch']} of {name} is not stored"
    return ""


def final(master: Node, history: SdkHistory) -> None:
    """All checks, after everything was done. Raises Violation."""
    _stored_as_told(master, history)
    _consumed(master, history)
    _published_once(master, history)
    _progress_as_told(master, history)


def _stored_as_told(master: Node, history: SdkHistory) -> None:
    """A send that was answered is there once, where the receipt says; a refused one is not."""
    places: dict[bytes, list[tuple[int, int]]] = {}
    for queue_id in range(QUEUES):
        found = [body for _, body in read_all(master, (WRITTEN, queue_id))]
        there = set(found)
        appends = [
            Append(one.body, one.begin, one.end) for one in history.written if one.body in there
        ]
        if why := log(appends, history.reads.get((WRITTEN, queue_id), []), found):
            raise Violation(f"{WRITTEN}/{queue_id}: {why}")
        for offset, body in enumerate(found):
            places.setdefault(body, []).append((queue_id, offset))
    for one in history.written:
        at = places.pop(one.body, [])
        least, most = int(one.outcome == "ok"), int(one.outcome != "refused")
        if not least <= len(at) <= most:
            raise Violation(f"{one.body!r} was answered {one.outcome}, and is at {at}")
        if one.outcome == "ok" and at != [one.place]:
            raise Violation(f"{one.body!r} is at {at}, and was said to be at {one.place}")
    if places:
        raise Violation(f"nobody sent {sorted(places)[:3]}")


def _consumed(master: Node, history: SdkHistory) -> None:
    """Every message of the group was given to a member, as it is stored."""
    for queue_id in range(QUEUES):
        key = (WRITTEN, queue_id)
        given = history.handed.get(key, {})
        for offset, body in read_all(master, key):
            if given.get(offset) != body:
                raise Violation(f"{key} {offset} is {body!r}; the group got {given.get(offset)!r}")


def _progress_as_told(master: Node, history: SdkHistory) -> None:
    """One order explains what was committed, and what masters told of it.

    Any record of the log may be of a commit whose answer was lost. This is all that was answered
    before an older copy led. That one may tell readers of an end below what they had read, and then
    they commit less: no order explains it. From there on each answer is held against the newest
    commit, of more or of less, when it is given (`SdkHistory.knows`).
    """
    recorded: dict[Queue, set[int]] = {}
    for _, body in read_all(master, (SYSTEM_TOPIC, 0)):
        change = json.loads(body)
        if change["op"] == "offsets" and change["group"] == GROUP:
            for queue_id, offset in change["offsets"].get(WRITTEN, {}).items():
                recorded.setdefault((WRITTEN, int(queue_id)), set()).add(offset)
    for queue, told in history.told.items():
        made = history.commits_made.get(queue, [])
        if why := progress(made, told, recorded.get(queue, set())):
            raise Violation(f"progress of {GROUP} in {queue}: {why}")


def _published_once(master: Node, history: SdkHistory) -> None:
    """Of each number of a sink one publication is there, whole, once and in order."""
    rows = [[body for _, body in read_all(master, (PUBLISHED, q))] for q in range(QUEUES)]
    counts = Counter(body for row in rows for body in row)
    by_number: dict[tuple[str, int], list[bool]] = {}
    for one in history.publications:
        bodies = [body for row in one.bodies.values() for body in row]
        found = {counts.pop(body, 0) for body in bodies}
        if len(found) > 1 or max(found, default=0) > 1:
            raise Violation(f"{one.sink} {one.batch} is there in part, or twice: {bodies[:2]}")
        there = found == {1}
        by_number.setdefault((one.sink, one.batch), []).append(there)
        for queue_id, row in one.bodies.items():
            if there and [body for body in rows[queue_id] if body in set(row)] != row:
                raise Violation(f"{one.sink} {one.batch} is out of order in queue {queue_id}")
    for (sink, batch), present in by_number.items():
        if sum(present) > 1:
            raise Violation(f"{sink} {batch} was published {sum(present)} times")
    for one in history.publications:
        if one.answered and not any(by_number[one.sink, one.batch]):
            raise Violation(f"{one.sink} {one.batch} was answered, and is not there")
    if counts:
        raise Violation(f"nobody published {sorted(counts)[:3]}")
