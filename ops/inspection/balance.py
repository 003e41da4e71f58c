"""Which queues should move so that replica groups carry the same load: their loads, and a plan.

Rules: a move takes a queue from the group with the highest load to the one with the lowest, and is
worth it only if the higher one of these two falls by a tenth or more; within a quarter above the
mean a group stays as it is. A group that is to be empty gives all its queues away, the largest
first. Equal inputs give the same plan, in which each queue moves once.
"""

import asyncio
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from duolog import Busy, Client, QueueMoves, TopicDescription

from duolog_server.store.metadata import is_nodes_topic

SPREAD = 0.25  # of the mean load: a group above it by so much gives queues away
BYTES_IN, BYTES, QUEUES = "bytes-in", "bytes", "queues"  # what a load is
UNITS = {BYTES_IN: "bytes/s", BYTES: "bytes", QUEUES: "queues"}
GAIN = 0.10  # of the higher load of two groups: a move that lowers it by less is not worth it


@dataclass(frozen=True, slots=True, order=True)
class Queue:
    """A queue of a topic, at the place that takes its puts."""

    topic: str
    group: str
    queue_id: int


@dataclass(frozen=True, slots=True)
class Step:
    """A queue should move to a group. load: what it takes with it."""

    queue: Queue
    to: str
    load: float


def plan(
    loads: dict[Queue, float], groups: Collection[str], leaving: Collection[str], steps_max: int
) -> list[Step]:
    """The next moves, at most so many, in their order.

    loads: of each queue that may move, in any unit; groups: all that may have queues; leaving:
    those of them that are to have none. Raises ValueError if all of them leave.
    """
    staying = sorted(set(groups) - set(leaving))
    if not staying:
        raise ValueError("no replica group stays to take the queues")
    sums = {group: 0.0 for group in [*staying, *leaving]}
    for queue, load in loads.items():
        sums[queue.group] += load
    found: list[Step] = []

    def move(queue: Queue, to: str) -> None:
        load = loads[queue]
        sums[queue.group] -= load
        sums[to] += load
        found.append(Step(queue, to, load))

    homeless = [queue for queue in loads if queue.group in leaving]
    for queue in sorted(homeless, key=lambda one: (-loads[one], one))[:steps_max]:
        move(queue, min(staying, key=sums.__getitem__))
    still = sorted(queue for queue in loads if queue.group not in leaving)
    mean = sum(loads.values()) / len(staying)
    while len(found) < steps_max:
        high, low = max(staying, key=sums.__getitem__), min(staying, key=sums.__getitem__)
        if sums[high] <= mean * (1 + SPREAD):
            break
        # The higher load of both groups after a move; of equal moves the smallest.
        ways = [
            (max(sums[high] - loads[one], sums[low] + loads[one]), loads[one], one)
            for one in still
            if one.group == high
        ]
        if not ways or min(ways)[0] > sums[high] * (1 - GAIN):
            break
        best = min(ways)[2]
        still.remove(best)
        move(best, low)
    return found


# -- loads -----------------------------------------------------------------------------------------


async def loads_of(client: Client, by: str, seconds: float) -> dict[Queue, float]:
    """The load of each queue that can move now.

    by: one of `UNITS`. seconds: for how long `BYTES_IN` is measured. Raises Busy while nodes still
    count how large the queues are, and what calls of nodes raise.
    """
    moves = await client.admin.moves()
    parts = await client.admin.topics(sizes=by != QUEUES)
    queues = movable(parts, moves)
    if by == QUEUES:
        return dict.fromkeys(queues, 1.0)
    sizes = _sizes(parts)
    if missing := [queue for queue in queues if queue not in sizes]:
        raise Busy(f"nodes still count the bytes of {len(missing)} queues: try again in a moment")
    if by == BYTES:
        kept = _kept(sizes, moves)
        return {queue: kept[queue] for queue in queues}
    await asyncio.sleep(seconds)
    ends = {
        Queue(part.topic, part.group, stats.queue_id): stats.max_offset
        for part in await client.admin.topics()
        for stats in part.stats
    }
    found = {}
    for queue in queues:
        size, low, high = sizes[queue]
        mean = size / (high - low) if high > low else _mean(sizes, queue.topic)
        found[queue] = max(0, ends.get(queue, high) - high) * mean / seconds
    return found


def movable(parts: Iterable[TopicDescription], moves: QueueMoves) -> list[Queue]:
    """The queues that take messages, and do not move now."""
    spans = {Queue(one.topic, *one.place): one for one in moves.spans}
    moving = {Queue(one.topic, *one.source) for one in moves.moves if not one.is_over}
    found = []
    for part in parts:
        stay = part.message_type == "LITE" or is_nodes_topic(part.topic)
        for stats in part.stats if not stay else ():
            queue = Queue(part.topic, part.group, stats.queue_id)
            span = spans.get(queue)
            takes = span.end is None if span is not None else stats.queue_id < part.queues
            if takes and queue not in moving:
                found.append(queue)
    return found


def _sizes(parts: Iterable[TopicDescription]) -> dict[Queue, tuple[int, int, int]]:
    """Bytes in the log, and both ends, of the queues whose bytes are counted."""
    return {
        Queue(part.topic, part.group, stats.queue_id): (
            stats.log_bytes,
            stats.min_offset,
            stats.max_offset,
        )
        for part in parts
        for stats in part.stats
        if stats.log_bytes is not None
    }


def _kept(sizes: dict[Queue, tuple[int, int, int]], moves: QueueMoves) -> dict[Queue, float]:
    """Bytes of each queue, those that it left at earlier places included: it will have as many
    where it is now. Without them, a queue that moved would have no load, and others would follow.
    """
    names = {Queue(one.topic, *one.place): Queue(one.topic, *one.name) for one in moves.spans}
    sums: dict[Queue, float] = {}
    for queue, (size, _, _) in sizes.items():
        name = names.get(queue, queue)
        sums[name] = sums.get(name, 0.0) + size
    return {queue: sums[names.get(queue, queue)] for queue in sizes}


def _mean(sizes: dict[Queue, tuple[int, int, int]], topic: str) -> float:
    """Bytes of a message of a topic; 0 where it has none."""
    rows = [row for queue, row in sizes.items() if queue.topic == topic]
    count = sum(high - low for _, low, high in rows)
    return sum(size for size, _, _ in rows) / count if count else 0.0
