"""What must be true of the services in the end: every message has exactly one fate, none early."""

import json
from collections import Counter
from collections.abc import Iterator

from duolog_server.linearizable import NEVER, Append, log
from duolog_server.node.deferred.transactionservice import DISCARD_TOPIC
from duolog_server.store.delay import SCHEDULE_TOPIC
from duolog_server.store.grouptopics import dead_letter_topic
from duolog_server.store.metadata import SYSTEM_TOPIC
from duolog_server.store.offsets import QueueOffset
from duolog_server.store.record import Record
from sim.clients import read_all
from sim.confirmedtables import ENDING, ended
from sim.node import Node
from sim.servicehistory import (
    COMMITTED,
    COPIES,
    DELAYED,
    GROUP,
    ORDERLY,
    QUEUES,
    RETRIES_MAX,
    TOPIC,
    Sent,
    ServiceHistory,
    hopeless,
    retry_of,
)
from sim.witness import Violation

RATE = 0.98  # a node's clocks run at most 1 % fast, against the world and against another's
SLACK_MS = 30.0


def unfinished(node: Node) -> str:
    """What a master's services still have to do, empty for nothing."""
    services = node.services
    if services is None or node.may_be_behind():
        return "no master that knows its log"
    broker, store = services.broker, node.store
    if store.dispatcher.reput_from < store.log.max_offset:  # readers will find more
        return f"readers see {store.dispatcher.reput_from} of {store.log.max_offset}"
    for group in (GROUP, ORDERLY):
        for topic, queue_id in (*((TOPIC, k) for k in range(QUEUES)), (retry_of(group), 0)):
            low, high = store.queue_range(topic, queue_id)
            recorded = broker.metadata.tables.committed(group, topic, queue_id)
            if high > low and recorded < high:
                return f"{group} has recorded {recorded} of {high} in {topic}/{queue_id}"
            for offset in range(low, high):
                if not broker.pop.has_done(group, topic, queue_id, offset):
                    return f"{group} has not done {topic}/{queue_id} {offset}"
    for level in range(1, len(store.delays_ms) + 1):
        queue = store.queues.get(SCHEDULE_TOPIC, level - 1)
        if queue is not None:
            reached = broker.metadata.tables.delay_offsets.get(level, 0)
            if reached < queue.max_offset:
                return f"delay level {level} is at {reached} of {queue.max_offset}"
    if not (broker.delays.known and broker.transactions.known):
        return "what waits is not known yet"
    if broker.delays.waiting or broker.transactions.waiting:
        return f"{broker.delays.waiting} timers, {broker.transactions.waiting} half messages wait"
    return ""


def final(master: Node, history: ServiceHistory, clocks_jumped: bool) -> None:
    """All checks, after the services have done what was to be done. Raises Violation."""
    _consumed(master, history)
    _given_up_in_time(master, history)
    for group in (GROUP, ORDERLY):
        _origins_kept(master, group)
    _delivered_once(master, history)
    _never_early(master, history, clocks_jumped)
    _ended_one_way(master, history)
    _copied(master, history.copies)
    progress_never_goes_back(master)


def _bodies(node: Node, topic: str, queue_id: int = 0) -> list[bytes]:
    """A queue from its beginning."""
    return [body for _, body in read_all(node, (topic, queue_id))]


def _records(node: Node, topic: str, queue_id: int = 0) -> Iterator[Record]:
    """As `_bodies`, with all that a record says."""
    yield from node.ghost.expired(node, topic, queue_id)
    low, high = node.store.queue_range(topic, queue_id)
    for offset in range(low, high):
        record = node.store.record_at(topic, queue_id, QueueOffset(offset))
        if record is not None:
            yield record


def _fates(sent: list[Sent], found: list[bytes]) -> Counter[bytes]:
    """How often each message is there. Raises Violation for one that nobody sent."""
    counts = Counter(found)
    foreign = set(counts) - {one.body for one in sent}
    if foreign:
        raise Violation(f"nobody sent {sorted(foreign)[:3]}")
    return counts


def _copied(master: Node, copies: list[Sent]) -> None:
    """Each copy is stored as often as that was answered."""
    found = _fates(copies, _bodies(master, COPIES))
    for body in {one.body for one in copies}:
        outcomes = Counter(one.outcome for one in copies if one.body == body)
        if not outcomes["ok"] <= found[body] <= outcomes["ok"] + outcomes["info"]:
            raise Violation(f"{found[body]} copies of {body!r} are stored: {dict(outcomes)}")


def _consumed(master: Node, history: ServiceHistory) -> None:
    """Everything that is stored was consumed, or is a dead letter."""
    stored: set[bytes] = set()
    for queue_id in range(QUEUES):
        stored |= set(_bodies(master, TOPIC, queue_id))
    lost = {one.body for one in history.popped if one.outcome == "ok"} - stored
    if lost:
        raise Violation(f"acknowledged and not stored: {sorted(lost)[:3]}")
    refused = {one.body for one in history.popped if one.outcome == "refused"} & stored
    if refused:
        raise Violation(f"refused and stored: {sorted(refused)[:3]}")
    for group in (GROUP, ORDERLY):
        dead = set(_bodies(master, dead_letter_topic(group)))
        missing = stored - history.acknowledged.get(group, set()) - dead
        if missing:
            raise Violation(f"{group} has never consumed {sorted(missing)[:3]}")


def _given_up_in_time(master: Node, history: ServiceHistory) -> None:
    """A message that nobody can process is a dead letter after all its attempts, not before."""
    for record in _records(master, dead_letter_topic(GROUP)):
        if not hopeless(GROUP, record.body):
            continue
        given = history.attempts.get(record.body, set())
        if given != set(range(1, RETRIES_MAX + 2)) or record.reconsume_times != RETRIES_MAX + 1:
            raise Violation(
                f"{record.body!r} is a dead letter after {record.reconsume_times} attempts, given "
                f"were {sorted(given)}"
            )


def _origins_kept(master: Node, group: str) -> None:
    """A copy is its message, says which one, and how often that was tried."""
    originals = {r.body: r for queue_id in range(QUEUES) for r in _records(master, TOPIC, queue_id)}
    for copy in _records(master, retry_of(group)):
        _says_origin(copy, originals, {"RETRY_TOPIC": TOPIC}, RETRIES_MAX)
    for copy in _records(master, dead_letter_topic(group)):
        unique = copy.properties.get("UNIQ_KEY", "")
        origin = {"DLQ_ORIGIN_TOPIC": TOPIC, "DLQ_ORIGIN_MESSAGE_ID": unique}
        _says_origin(copy, originals, origin, RETRIES_MAX + 1)


def _says_origin(
    copy: Record, originals: dict[bytes, Record], origin: dict[str, str], attempts_max: int
) -> None:
    """origin: properties that it has beside those of its message."""
    first = originals[copy.body]
    wanted = {"ORIGIN_MESSAGE_ID": first.message_id, **origin, **first.properties}
    wrong = {name for name, value in wanted.items() if copy.properties.get(name) != value}
    if wrong - {"__CRC32#"}:
        raise Violation(f"{copy.topic} has {first.body!r} with {copy.properties}, not {wanted}")
    if (copy.born_time, copy.born_host) != (first.born_time, first.born_host):
        raise Violation(f"{copy.topic} has {first.body!r}, born {copy.born_time}")
    if not 1 <= copy.reconsume_times <= attempts_max:
        raise Violation(f"{copy.topic} has {first.body!r} after {copy.reconsume_times} attempts")


def _delivered_once(master: Node, history: ServiceHistory) -> None:
    """A delayed message comes once; one that was recalled never."""
    counts = _fates(history.delayed, _bodies(master, DELAYED))
    for sent in history.delayed:
        least = int(sent.outcome == "ok" and not sent.recalled)
        most = int(sent.recalled != "ok" and sent.outcome != "refused")
        if not least <= counts[sent.body] <= most:
            raise Violation(
                f"{sent.body!r}, sent {sent.outcome}, recalled {sent.recalled or 'not'}, "
                f"came {counts[sent.body]} times"
            )


def _never_early(master: Node, history: ServiceHistory, clocks_jumped: bool) -> None:
    """A level's delay is waited for by any clock, a timer by the wall clock of who delivers."""
    sent_as = {sent.body: sent for sent in history.delayed}
    for offset, body in enumerate(_bodies(master, DELAYED)):
        known, sent = history.seen.get((DELAYED, offset)), sent_as[body]
        if known is None or sent.stored_by is None:
            continue
        world, wall, who = known
        if sent.deliver_ms:
            if wall < sent.deliver_ms:
                raise Violation(f"{body!r} came {sent.deliver_ms - wall} ms early")
            continue
        if clocks_jumped and who != sent.stored_by:
            continue  # the next master's clock may be hours ahead
        delay_ms = int(master.store.delays_ms[sent.level - 1])
        drift_ms = 0.0 if who == sent.stored_by else world * (1 - RATE)
        if world - sent.stored < delay_ms * RATE - drift_ms - SLACK_MS:
            raise Violation(f"{body!r} came {world - sent.stored:.0f} ms after it was sent")


def _ended_one_way(master: Node, history: ServiceHistory) -> None:
    """A half message is committed, rolled back or given up: one of these.

    A commit appends the message to its queue: one order explains all commits and what is there.
    """
    stored = _bodies(master, COMMITTED)
    commits = [
        Append(sent.body, sent.deciding, sent.settled)
        for sent in history.halves
        if sent.decision == "commit" and sent.outcome != "refused" and sent.deciding != NEVER
    ]
    if why := log(commits, (), stored):
        raise Violation(f"commits of half messages: {why}")
    discarded = [
        record
        for record in _records(master, DISCARD_TOPIC)
        if record.properties.get("REAL_TOPIC") == COMMITTED
    ]
    given_up_at = {
        record.body: history.seen[DISCARD_TOPIC, record.queue_offset][0]
        for record in discarded
        if (DISCARD_TOPIC, record.queue_offset) in history.seen
    }
    committed = set(stored)
    given_up = _fates(history.halves, [record.body for record in discarded])
    for sent in history.halves:
        came, dropped = sent.body in committed, given_up[sent.body]
        told = f"{sent.body!r} ({sent.decision or 'no decision'}, answered {sent.decided})"
        # What was given up before may be rolled back, which changes nothing.
        late = sent.decision == "rollback" and given_up_at.get(sent.body, NEVER) <= sent.settled
        if came + dropped > 1 or (sent.decided and dropped and not late):
            raise Violation(f"{told} was committed {came} times and given up {dropped} times")
        if sent.outcome == "ok" and not sent.decision and not dropped:
            raise Violation(f"{told} was not given up")
        if sent.outcome == "ok" and sent.decision == "commit" and not came + dropped:
            raise Violation(f"{told} is lost")
        if sent.outcome == "refused" and dropped:
            raise Violation(f"{told} was refused, and is there")


def progress_never_goes_back(master: Node) -> None:
    """What a group has done is done, by every record of the log.

    An older copy that led for a while told readers of an end below that.
    """
    may_go_back = master.ghost.marks["older_copy_led"] > 0
    reached: dict[tuple[str, str, str], int] = {}
    for body in _bodies(master, SYSTEM_TOPIC):
        change = json.loads(body)
        if change["op"] in ENDING:
            reached = {key: at for key, at in reached.items() if not ended(change, key[1], key[0])}
        if change["op"] != "offsets":
            continue
        for topic, row in change["offsets"].items():
            for queue_id, offset in row.items():
                key = (change["group"], topic, queue_id)
                if offset < reached.get(key, 0) and change.get("forward"):
                    continue  # it changes nothing
                if offset < reached.get(key, 0) and not may_go_back:
                    raise Violation(f"progress of {key} goes back to {offset}")
                reached[key] = offset
