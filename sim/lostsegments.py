"""Lost segments: a file in the middle of a node's commit log is missing when the node restarts.

The node must name what is missing, serve what lies around it, and get it from a peer before it
counts again: as a slave from its master, which takes it for an older copy where it was a member of
the SyncStateSet. What the file held was acknowledged by this node, so it is lost only where the
others hold it (the atlas), and nobody else loses anything until this node has it back.
"""

import random

from sim.disk import SimDisk
from sim.faults import NODES, Fault
from sim.node import Node
from sim.stage import Stage

OFTEN = 0.3
LOG = "commitlog/"


def plan(chance: random.Random, duration: float, often: float = OFTEN) -> list[Fault]:
    """One or two losses: late, as a log needs three segments to have a middle."""
    if chance.random() > often:
        return []
    return [
        Fault(
            round(chance.uniform(duration * 0.3, duration), 3),
            "lose_segment",
            chance.choice(NODES),
            lasts=chance.choice((1.0, 100.0, 800.0)),
            level=round(chance.random(), 3),
        )
        for _ in range(chance.choice((1, 1, 2)))
    ]


def lose(cluster: Stage, node: Node, fault: Fault) -> None:
    """Kill the node and remove one of its segments, where it may be lost."""
    doubtful = node.lost_disk or node.lost_power or node.tainted or node.disk.syncs_to_fail
    if doubtful or cluster.copies.unresolved or not cluster.keeper.may_lose_disk(node):
        return
    middle = _held(node.disk)[1:-1]
    if not middle:
        return
    name = middle[int(fault.level * len(middle)) % len(middle)]
    node.lose_segment(name)
    cluster.ghost.mark("segment_lost")
    cluster.world.note(f"{node.name} loses segment {name}")
    cluster.down_until[node.name] = cluster.world.now + fault.lasts


def _held(disk: SimDisk) -> list[str]:
    """Names of the segments that hold anything, oldest first."""
    files = disk.inodes(False)
    return [name for name in disk.list(LOG[:-1]) if files[LOG + name].seen[:8].any()]
