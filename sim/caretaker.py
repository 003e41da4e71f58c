"""Who looks after an elected group: restarts what died, and does no more than a supervisor does.

Only where nothing can go on by itself, an operator steps in: a group that lost its only beginning,
a replica of a beginning that came to nothing, a registry that was restored from a bad backup.
"""

from typing import TYPE_CHECKING

from ha.failover import ElectUnclean
from ha.groupstate import Replica
from sim.node import Node
from store.status import BrokerRole

if TYPE_CHECKING:
    from sim.cluster import Cluster

ROUND_MS = 70.0
STUCK_MS = 2500.0


class Caretaker:
    """The supervisor of an elected group."""

    def __init__(self, cluster: "Cluster") -> None:
        self.cluster = cluster
        self.world = cluster.world
        self.busy = False
        self._no_master_since: float | None = None

    @property
    def master(self) -> Node | None:
        """The node that leads the newest epoch."""
        truth = self.cluster.etcd.truth
        epoch = truth.epoch if truth is not None else 0
        leading = [node for node in self.cluster.nodes if node.up and node.master is not None]
        return next((n for n in leading if n.master and n.master.epoch == epoch), None)

    def target(self, chosen: str) -> Node | None:
        """The node a producer sends to: the one that took its last send, or any."""
        return self.cluster.by_name[chosen or self.cluster.nodes[0].name]

    def boot(self, node: Node) -> None:
        """Start a node."""
        node.reboot_if_needed()
        if not node.start(BrokerRole.AUTO):
            self.cluster.down_until[node.name] = self.world.now + 200

    def begin(self) -> None:
        """Look after the cluster, again and again."""
        self.world.after(ROUND_MS, self._operate)

    def _operate(self) -> None:
        cluster = self.cluster
        for node in cluster.nodes:
            if (not node.up and self.world.now >= cluster.down_until.get(node.name, 0.0)) or (
                node.up
                and node.slave is not None
                and node.slave.reason.startswith("LINEAGE")
                and node.begin_anew()
            ):
                self.boot(node)
        self._begin_anew()
        self.world.after(ROUND_MS, self._operate)

    def _begin_anew(self) -> None:
        """A group whose first node lost its only log before anybody was told anything."""
        etcd = self.cluster.etcd
        truth = etcd.truth
        told = truth is not None and truth.opened and self.cluster.ghost.sure[1]
        if self.master is not None or truth is None or told or etcd.restored:
            self._no_master_since = None
            return
        if self._no_master_since is None:
            self._no_master_since = self.world.now
        if self.world.now - self._no_master_since > STUCK_MS:
            node = self.cluster.by_name[truth.master.node]
            if node.up and node.agent is not None:
                self.cluster.ghost.mark("elected_unclean")
                self._no_master_since = self.world.now
                node.agent.step(ElectUnclean(truth.epoch, "order"))

    def may_lose_power(self, node: Node) -> bool:
        """The atlas: what page caches acknowledged stays somewhere it can be had from."""
        if self.cluster.setup.durable:
            return True
        truth = self.cluster.etcd.truth
        members = truth.sync_state_set if truth is not None and truth.opened else frozenset()
        others = [other for other in self.cluster.nodes if other is not node]
        return node.up and any(
            Replica(other.name, other.incarnation) in members
            and not (other.tainted or other.disk.syncs_to_fail)
            for other in others
        )

    def switch(self, level: float) -> None:
        """An operator's planned switch."""
        master = self.master
        if master is not None and master.agent is not None:
            self.cluster.ghost.mark("switched")
            others = [node.name for node in self.cluster.nodes if node is not master]
            master.agent.hand_over(others[int(level * 2) % 2] if level < 0.8 else "")

    def after_kill(self, node: Node, level: float) -> None:
        """Nothing: the group looks after itself."""
