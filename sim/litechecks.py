"""Final checks of lite topics against the log: positions, fates, forgotten queues."""

import json
from dataclasses import dataclass, field

from duolog_server.store.lightqueues import light_places
from duolog_server.store.metadata import SYSTEM_TOPIC
from duolog_server.store.offsets import QueueOffset
from duolog_server.store.reader import Wanted
from duolog_server.store.record import decode_properties
from sim.clients import read_all
from sim.litehistory import (
    EXCLUSIVE,
    LEFT_ALONE,
    NAMES,
    PARENT,
    QUEUES,
    SHARED,
    TTL_MS,
    LiteHistory,
    queue_of,
)
from sim.node import Node
from sim.witness import Violation

GROUPS = (SHARED, EXCLUSIVE)
QUEUES_OF_ALL = tuple(queue_of(name) for name in NAMES)


@dataclass(slots=True)
class Row:
    """A record of the log."""

    physical: int
    store_time: int
    body: bytes
    places: list[tuple[str, int]]  # light queues and offsets


@dataclass(slots=True)
class Light:
    """A light queue, as the log tells of it. ends: where it was forgotten."""

    rows: list[tuple[int, Row]] = field(default_factory=list)  # by offset, since it began last
    end: int = 0
    time: int = 0  # store time of its newest message
    ends: set[int] = field(default_factory=set)


def unfinished(node: Node, history: LiteHistory) -> str:
    """The work that is still pending, empty for none."""
    services = node.services
    if services is None or node.may_be_behind():
        return "no master that knows its log"
    store = node.store
    for name in NAMES:
        queue = queue_of(name)
        low, high = store.queue_range(queue, 0)
        begin = max(low, history.ends.get(queue, 0))
        for group in GROUPS if name != LEFT_ALONE and begin < high else ():
            recorded = services.broker.metadata.tables.committed(group, queue, 0)
            if recorded < high:
                return f"{group} has recorded {recorded} of {high} in {queue}"
            for offset in range(begin, high):
                if not services.broker.pop.has_done(group, queue, 0, offset):
                    return f"{group} has not done {queue} {offset}"
        told = ((node.name, node.boot), queue) in history.forgotten
        if told and (queue, 0) not in store.topic_queue_table and store.queues.get(queue, 0):
            return f"{queue} was forgotten, and is still there"
    return ""


def final(nodes: list[Node], master: Node, history: LiteHistory) -> None:
    """All checks, after everything has been done. Raises Violation."""
    rows = _rows(master)
    _stored_once(rows, history)
    queues = _places(rows, _forgotten(master))
    for node in nodes:
        for queue, light in queues.items():
            _holds(node, queue, light)
    for group in GROUPS:
        _fates(master, group, queues, history)


def _rows(node: Node) -> list[Row]:
    """All messages of the parent topic, as the log has them."""
    found = []
    for queue_id in range(QUEUES):
        at, (_, end) = 0, node.store.queue_range(PARENT, queue_id)
        while at < end:
            result = node.read(PARENT, queue_id, at)
            for numbers, body, text in result.rows():
                places = light_places(decode_properties(text.decode()))
                named = [(queue, offset) for queue, _, offset in places]
                found.append(Row(numbers[1], numbers[2], body, named))
            if result.next_offset <= at:
                break
            at = result.next_offset
    return sorted(found, key=lambda row: row.physical)


def _forgotten(node: Node) -> list[tuple[int, int, dict[str, int]]]:
    """Records that light queues are forgotten: place, store time, and where each queue ended."""
    found = []
    at, (_, end) = 0, node.store.queue_range(SYSTEM_TOPIC, 0)
    while at < end:
        result = node.store.get(SYSTEM_TOPIC, 0, QueueOffset(at), Wanted(64, 64 << 10))
        for numbers, body, _ in result.rows():
            change = json.loads(body)
            if change["op"] == "forget_light_queues":
                found.append((numbers[1], numbers[2], change["ends"]))
        if result.next_offset <= at:
            break
        at = result.next_offset
    return found


def _stored_once(rows: list[Row], history: LiteHistory) -> None:
    stored = [row.body for row in rows]
    if len(set(stored)) < len(stored):
        raise Violation("a message of a lite topic is stored twice")
    for one in history.sent:
        if (one.outcome == "ok" and one.body not in stored) or (
            one.outcome == "refused" and one.body in stored
        ):
            raise Violation(f"{one.body!r} was {one.outcome}: stored is {one.body in stored}")
    for row in rows:
        name = row.body.decode().partition("-")[0]
        if [queue for queue, _ in row.places] != [queue_of(name)]:
            raise Violation(f"{row.body!r} is in {row.places}")


def _places(rows: list[Row], forgotten: list[tuple[int, int, dict[str, int]]]) -> dict[str, Light]:
    """Every light queue continues at its end, or starts again beyond the offset at which it was
    forgotten.
    """
    found = {queue: Light() for queue in QUEUES_OF_ALL}
    left = sorted(forgotten, key=lambda one: one[0])
    for row in rows:
        while left and left[0][0] < row.physical:
            _forget(found, *left.pop(0)[1:])
        for queue, offset in row.places:
            light = found[queue]
            if offset < light.end:
                raise Violation(f"{queue} {offset} is given twice, to {row.body!r} as well")
            if offset > light.end and light.end not in (0, *light.ends):
                raise Violation(f"{queue} goes on at {offset}, not at {light.end}")
            if offset > light.end:
                light.rows = []
            light.rows.append((offset, row))
            light.end, light.time = offset + 1, row.store_time
    for _, time, ends in left:
        _forget(found, time, ends)
    return found


def _forget(found: dict[str, Light], time: int, ends: dict[str, int]) -> None:
    """A light queue may be forgotten once its newest message has expired."""
    for queue, end in ends.items():
        light = found.get(queue)
        if light is None:
            continue
        if end != light.end:
            raise Violation(f"{queue} is forgotten up to {end}, and ends at {light.end}")
        if time - light.time <= TTL_MS:
            raise Violation(f"{queue} is forgotten {time - light.time} ms after its last message")
        light.ends.add(end)
        light.rows = []


def _holds(node: Node, queue: str, light: Light) -> None:
    """A node has what was stored since a light queue was forgotten, and nothing after it."""
    known = node.store.queues.get(queue, 0)
    if light.rows and (known is None or known.max_offset != light.end):
        at = known.max_offset if known is not None else None
        raise Violation(f"{queue} of {node.name} ends at {at}, not at {light.end}")
    if known is not None and known.max_offset > light.end:
        raise Violation(f"{queue} of {node.name} has more than the log")
    for offset, row in light.rows:
        entry = known.entries(offset, 1) if known is not None else None
        if entry is None or not entry.shape[1] or int(entry[0, 0]) != row.physical:
            raise Violation(f"{queue} {offset} of {node.name} is not {row.body!r}")


def _fates(master: Node, group: str, queues: dict[str, Light], history: LiteHistory) -> None:
    """What was not forgotten is consumed, a dead letter, or waits for somebody to subscribe."""
    assert master.services is not None, "its work is done"
    pop = master.services.broker.pop
    dead = {body for _, body in read_all(master, (f"%DLQ%{group}", 0))}
    foreign = dead - {one.body for one in history.sent}
    if foreign:
        raise Violation(f"nobody sent {sorted(foreign)[:3]}")
    ended = dead | history.acknowledged.get(group, set())
    for queue, light in queues.items():
        for offset, row in light.rows:
            done = pop.has_done(group, queue, 0, offset)
            if done and row.body not in ended:
                raise Violation(f"{group} has never consumed {row.body!r}")
            if not done and queue != queue_of(LEFT_ALONE):
                raise Violation(f"{row.body!r} still waits for {group}")
