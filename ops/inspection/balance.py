"""Which queues should move so that replica groups carry the same load: a plan, and no more.

Rules: a move takes a queue from the group with the highest load to the one with the lowest, and is
worth it only if the higher one of these two falls by a tenth or more; within a quarter above the
mean a group stays as it is. A group that is to be empty gives all its queues away, the largest
first. Equal inputs give the same plan, and a plan that was carried out gives an empty one.
"""

from collections.abc import Collection
from dataclasses import dataclass

SPREAD = 0.25  # of the mean load: a group above it by so much gives queues away
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
