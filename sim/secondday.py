"""The second day of a run: what the first one stored expires, and files derived from it are lost.

It begins when all nodes have everything and the services have done their work. Each node deletes
its expired segments by its own clocks, in rounds of its own. Queues that get nothing more are empty
then, and one node after the other is killed and loses files, before they get messages again. The
records of the first day are archived: with them every queue must be as if none had expired.
"""

import random
from collections.abc import Sequence
from typing import Protocol

from duolog_server.store.metadatafiles import BACKUP, SNAPSHOT
from duolog_server.store.queueends import QueueKey
from sim.clients import QUEUES
from sim.config import RESERVED_MS
from sim.copies import LOG, Copies
from sim.decay import DERIVED
from sim.disk import SimDisk
from sim.faults import Fault
from sim.node import ROUND_MS, Node
from sim.serviceclients import ServiceClients
from sim.stage import Stage

EVENING_MS = 500  # for which what is stored is still too young in the first rounds
NIGHT_MS = 400
DAY_MS = 700
DOWN_MS = (1.0, 60.0, 1100.0)  # the last one is longer than a lease
JUMP_MS = 3_600_000
# Also, where asked for, "older log": it has records again whose queues have lost their first files.
WAYS = ("kill", "older", "lost", "lost", "unknown", "new disk")
EMPTY = SimDisk(random.Random(0), lambda: 0.0)


class Days(Stage, Protocol):
    """A cluster that lives for more than one."""

    programs: ServiceClients | None
    copies: Copies

    def produce(self, ms: float, queues: Sequence[QueueKey]) -> None:
        """Send to some queues and read them, for a while."""

    def settle(self) -> Node:
        """Wait until everything is done, and everywhere; the master then."""


def live(cluster: Days, way: str) -> Node:
    """The second day, from when everything is everywhere until it is so again; the master then.

    way: what every node suffers; empty: any of WAYS.
    """
    chance = cluster.world.chance("second day")
    cluster.produce(EVENING_MS, QUEUES[:1])
    master = cluster.settle()
    cluster.ghost.archive(master.store)
    copies = {node.name: node.disk.copied() for node in cluster.nodes}
    for node in cluster.nodes:
        cluster.copies.take(node)
        node.expires_below = master.store.log.max_offset
        node.wall_offset += JUMP_MS * (chance.random() < 0.3)
    cluster.produce(RESERVED_MS + 2 * ROUND_MS, QUEUES[:1])
    for node in chance.sample(cluster.nodes, len(cluster.nodes)):
        _strike(cluster, node, way or chance.choice(WAYS), copies[node.name])
        cluster.down_until[node.name] = cluster.world.now + chance.choice(DOWN_MS)
        cluster.produce(NIGHT_MS * chance.uniform(0.3, 2.0), QUEUES[:1])
    ahead = max(node.wall_offset for node in cluster.nodes)
    for node in cluster.nodes:
        node.wall_offset = ahead  # no timer waits for hours that were jumped over
    if cluster.programs is not None:
        cluster.programs.resume()
    cluster.produce(DAY_MS, QUEUES)
    return cluster.settle()


def _strike(cluster: Days, node: Node, way: str, copy: SimDisk) -> None:
    """End a node's process; it loses files that were derived, and perhaps what knows more."""
    may_lose = not cluster.copies.unresolved and cluster.keeper.may_lose_disk(node)
    way = "lost" if way in ("unknown", "new disk") and not may_lose else way
    cluster.world.note(f"second day: {node.name} {way}")
    cluster.ghost.mark(f"second_day_{way.replace(' ', '_')}")
    if way == "older log":
        node.expires_below = 0  # its queues must have all that its log has again
        cluster.copies.put_back(node, Fault(0.0, "put_back", node.name, LOG, level=0.9))
        return
    if way == "new disk":
        node.lose_disk()
        return
    node.die()
    node.unknowing = node.tainted = way == "unknown"
    if way == "older":
        node.replace_disk(node.disk.copied(copy, DERIVED))
    elif way != "kill":
        gone = (*DERIVED, SNAPSHOT, BACKUP) if node.unknowing else DERIVED
        node.replace_disk(node.disk.copied(EMPTY, gone))
