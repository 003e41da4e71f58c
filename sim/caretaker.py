"""The supervisor of an elected group: restarts dead nodes, and nothing else.

An operator acts only if the group cannot continue by itself: if it lost its only node before it was
opened, if a replica belongs to such a lost group, or if the registry was restored from a bad
backup.
"""

from duolog_server.ha.failoverevents import ElectUnclean
from duolog_server.ha.groupstate import GroupState, Replica
from duolog_server.store.status import BrokerRole
from sim.node import Node
from sim.stage import Stage

ROUND_MS = 70.0
STUCK_MS = 2500.0


class Caretaker:
    """The supervisor of an elected group."""

    def __init__(self, cluster: Stage) -> None:
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
                and not cluster.etcd.restored
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
        told = truth is not None and truth.opened and len(self.cluster.ghost.safe) > 0
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

    def elect_by_hand(self) -> None:
        """The registry is lost: an operator names a member of the last set that there was."""
        etcd, truth = self.cluster.etcd, self.cluster.etcd.truth
        if not etcd.restored or truth is None:
            return
        if etcd.keys.lock in etcd.table.rows:
            etcd.restore_newest()  # somebody else was faster
            return
        fit = [
            node
            for node in self.cluster.nodes
            if node.up
            and node.agent is not None
            and node.slave is not None
            and self._is_intact(node, truth)
            and node.slave.identity.promised_epoch >= truth.epoch
        ]
        if fit:
            node = max(fit, key=lambda node: node.bytes.end())
            order = ElectUnclean(etcd.elect_by_hand(), "order")
            agent = node.agent
            assert agent is not None, "asked above"
            self.cluster.ghost.mark("elected_by_hand")
            node.guarded(lambda: agent.step(order))()
        self.world.after(300.0, self.elect_by_hand)

    def _is_intact(self, node: Node, state: GroupState) -> bool:
        """A member of the SyncStateSet, with the disk that made it one."""
        members = state.sync_state_set if state.opened else frozenset()
        return Replica(node.name, node.incarnation) in members and not (
            node.tainted or node.disk.syncs_to_fail
        )

    def _another_is_intact(self, node: Node) -> bool:
        """Also once a change is made that is on its way, and takes a member out of the set."""
        others = [other for other in self.cluster.nodes if other is not node]
        states = self.cluster.etcd.possible_states()
        return bool(states) and all(
            any(self._is_intact(other, state) for other in others) for state in states
        )

    def may_lose_power(self, node: Node) -> bool:
        """The atlas: what page caches acknowledged stays somewhere it can be had from."""
        return self.cluster.setup.durable or (node.up and self._another_is_intact(node))

    def may_fail_sync(self, node: Node) -> bool:
        """A sync that was to fail, when it comes to that: the set may have changed meanwhile."""
        return self.cluster.setup.durable or self._another_is_intact(node)

    def may_lose_disk(self, node: Node) -> bool:
        """Also of a member; a registry that forgets at the same time is too much."""
        return not self.cluster.etcd.restored and self._another_is_intact(node)

    def may_lose_registry(self) -> bool:
        """Where every node knows the group that it belongs to."""
        truth = self.cluster.etcd.truth
        return (
            truth is not None
            and truth.opened
            and all(
                node.up and node.agent is not None and node.agent.machine.membership.version
                for node in self.cluster.nodes
            )
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
