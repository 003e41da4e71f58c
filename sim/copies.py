"""Older copies: a node's directory is copied while it runs, and put back later in its place.

An operator who restores a backup, or goes back to a snapshot of a machine, does that. It takes what
the node acknowledged since, so it is done only where others can tell (the atlas): both other nodes
have been told of something confirmed that the copy lacks; or the copy is of an earlier run, as the
registry knows, and another member of the set can lead. Until the copy has caught up nobody else
loses power.

In some runs only parts of the directory are put back: an older log beside newer queues and tables,
or the other way round. Then the node itself can tell by its newer files what its log lacks.
"""

import random
from dataclasses import dataclass, replace

from duolog_server.ha import membership
from duolog_server.ha.groupstate import Replica
from duolog_server.ha.starts import Start
from sim.disk import SimDisk
from sim.faults import NODES, Fault
from sim.node import Node
from sim.stage import Stage

OFTEN = 0.35
EARLIER_RUN, SAME_RUN = "earlier run", "same run"
NOTHING_LOST = "derived files"
ITSELF = "log alone"  # the node's own checkpoint knows what was confirmed since
LOG, CONFIG, CHECKPOINT = "commitlog/", "config/", "checkpoint"
PARTS = (LOG, CONFIG, CHECKPOINT, "consumequeue/", "lightqueue/", "queueends", "index/")
MIXED = 0.5  # of what is put back
CONFIG_FILES = ("config/epochs.json", "config/membership.jsonl", "config/replica.json")
SINGLE = 0.15  # of runs put back one of these, beside newer ones


@dataclass(frozen=True, slots=True)
class Copy:
    """A directory as it was.

    starts: as its membership file counts them. knows: its checkpoint, of something confirmed.
    """

    disk: SimDisk
    end: int
    replica: Replica
    starts: int
    knows: bool


def plan(
    chance: random.Random, duration: float, often: float = OFTEN, mixed: float = MIXED
) -> list[Fault]:
    """Copies of one or two nodes, and when they are put back. mixed: how often only in part."""
    if chance.random() > often:
        return []
    found = []
    for node in chance.sample(NODES, chance.choice((1, 1, 2))):
        taken = chance.uniform(200, duration * 0.7)
        put_back = chance.uniform(taken + 20, min(duration, taken + 1500))
        found.append(Fault(round(taken, 3), "take_copy", node))
        if chance.random() < 0.4:
            between = chance.uniform(taken, put_back)
            found.append(Fault(round(between, 3), "kill", node, lasts=100.0, level=chance.random()))
        lasts = chance.choice((1.0, 50.0, 500.0))
        found.append(
            Fault(round(put_back, 3), "put_back", node, lasts=lasts, level=chance.random())
        )
    if chance.random() < mixed:
        parts = " ".join([part for part in PARTS if chance.random() < 0.5])
        found = [replace(f, other=parts) if f.kind == "put_back" else f for f in found]
    return found


def single_file(chance: random.Random, duration: float, often: float = SINGLE) -> list[Fault]:
    """An older copy of one file of config/ that is put back beside newer ones."""
    if chance.random() > often:
        return []
    path = chance.choice(CONFIG_FILES)
    found = plan(chance, duration, often=1.0, mixed=0.0)
    return [replace(f, other=path) if f.kind == "put_back" else f for f in found]


class Copies:
    """The copies of a run."""

    def __init__(self, cluster: Stage) -> None:
        self.cluster = cluster
        self._copies: dict[str, Copy] = {}

    @property
    def unresolved(self) -> bool:
        """A node runs on an older copy, and has not caught up."""
        return any(node.older for node in self.cluster.nodes)

    def take(self, node: Node) -> None:
        """Copy the directory of a node that runs."""
        if not node.up or node.older or node.tainted or node.disk.syncs_to_fail:
            return
        self._copies[node.name] = Copy(
            node.disk.copied(),
            node.store.log.max_offset,
            Replica(node.name, node.incarnation),
            membership.load(node.disk).starts,
            node.store.checkpoint.note.confirmed > 0,
        )

    def put_back(self, node: Node, fault: Fault) -> None:
        """Kill the node, and replace its directory, or parts of it."""
        copy, parts = self._copies.pop(node.name, None), tuple(fault.other.split()) or PARTS
        cluster, ghost = self.cluster, self.cluster.ghost
        kind = self._kind(node, copy, parts) if copy is not None else ""
        if copy is None or not kind:
            return
        if node.up:
            node.die()
        mixed = "" if parts == PARTS else "mixed_"
        ghost.mark(f"{mixed}older_copy_of_{kind.replace(' ', '_')}")
        cluster.world.note(f"{node.name} is put back to {copy.end}, a copy of the {kind}: {parts}")
        node.older = kind if LOG in parts else ""
        node.lost_power = node.needs_reboot = False
        node.replace_disk(node.disk.copied(copy.disk, parts) if mixed else copy.disk)
        cluster.down_until[node.name] = cluster.world.now + fault.lasts
        if fault.level < 0.5:  # everybody restarts with it
            for other in cluster.nodes:
                if other.up:
                    other.die()
                    until = cluster.world.now + fault.lasts + 600 * fault.level
                    cluster.down_until[other.name] = until

    def _kind(self, node: Node, copy: Copy, parts: tuple[str, ...]) -> str:
        """Which kind of older copy this would be; empty where it may not be put back."""
        cluster = self.cluster
        config = any(part.startswith(CONFIG) for part in parts)
        others = [other for other in cluster.nodes if other is not node]
        if self.unresolved or cluster.keeper.busy or cluster.etcd.restored:
            return ""
        if node.incarnation != copy.replica.incarnation:
            return ""
        if not all(other.up and self._is_sound(other) for other in others):
            return ""
        if config and not (cluster.elected and (copy.knows or CHECKPOINT not in parts)):
            return ""  # a slave may not know any more that its master acknowledges confirmed bytes
        if LOG not in parts:
            older = config and self._of_an_earlier_run(copy)
            sound = node.up and self._is_sound(node) and (not older or self._may_lead(others))
            return NOTHING_LOST if sound else ""
        if config and self._of_an_earlier_run(copy) and self._may_lead(others):
            return EARLIER_RUN
        knows = node.up and CHECKPOINT not in parts
        if knows and copy.end < node.store.known_confirmed and self._may_lead(others):
            return ITSELF
        told = min(cluster.ghost.told.get(other.name, 0) for other in others)
        if told <= copy.end or (cluster.elected and not self._may_lead(others)):
            return ""
        return SAME_RUN

    @staticmethod
    def _is_sound(node: Node) -> bool:
        doubtful = node.lost_power or node.lost_disk or node.tainted or node.needs_reboot
        return not (doubtful or node.older or node.disk.syncs_to_fail)

    def _of_an_earlier_run(self, copy: Copy) -> bool:
        etcd = self.cluster.etcd
        row = etcd.table.rows.get(etcd.keys.start(copy.replica))
        return row is not None and Start.from_bytes(row.value).number > copy.starts

    def _may_lead(self, others: list[Node]) -> bool:
        truth = self.cluster.etcd.truth
        members = truth.sync_state_set if truth is not None and truth.opened else frozenset()
        return any(Replica(other.name, other.incarnation) in members for other in others)
