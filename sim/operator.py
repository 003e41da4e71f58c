"""An operator who assigns fixed roles, as the documentation says; there is no registry.

It restarts what died, and where the master is gone for long, or has lost what its page cache held,
makes the best slave the master. It plays by the rules of docs/guarantees.md, so whatever is lost
then is our bug: where acknowledgements come from page caches it never trusts a node that lost power
before that node has caught up.
"""

from duolog_server.ha.epochs import EpochEntry
from duolog_server.store.status import BrokerRole
from sim.node import Node
from sim.stage import Stage

OPERATOR_MS = 70.0
NOT_CUT = "not cut. Make this node the master"


class Operator:
    """Decides who is the master."""

    def __init__(self, cluster: Stage) -> None:
        self.cluster = cluster
        self.world = cluster.world
        self.master_name = "a"
        self._chance = cluster.world.chance("operator")
        self._zombies: set[str] = set()
        self._masterships: list[EpochEntry] = []
        self._asynchronous = False
        self._alone = False

    @property
    def master(self) -> Node:
        """The node that clients use as the master."""
        return self.cluster.by_name[self.master_name]

    @property
    def busy(self) -> bool:
        """A replaced master still runs, or the master alone has what it acknowledged."""
        return bool(self._zombies) or self._alone

    def target(self, chosen: str) -> Node:
        """The node a producer sends to: users are told."""
        return self.master

    def begin(self) -> None:
        """Look after the cluster, again and again."""
        self.world.after(OPERATOR_MS, self._operate)

    def boot(self, node: Node) -> None:
        """Start a node in its role."""
        node.reboot_if_needed()
        if node.name == self.master_name:
            sure = node.start(self._master_role)
        else:
            sure = node.start(BrokerRole.SLAVE, self.master_name)
        if node.up and node.master is not None:
            self._masterships.append(node.master.history.entries[-1])
        if not sure:
            self.cluster.down_until[node.name] = self.world.now + 200

    @property
    def _master_role(self) -> BrokerRole:
        return BrokerRole.ASYNC_MASTER if self._asynchronous else BrokerRole.SYNC_MASTER

    def go_async(self) -> bool:
        """Restart the master as an ASYNC_MASTER; False where it is no time for that.

        Until it is a SYNC_MASTER again, and enough slaves have all that it stored meanwhile, nobody
        takes its place and it loses nothing: what it acknowledges is on this one node only.
        """
        master = self.master
        if self.busy or not master.up or not all(self.trusted(node) for node in self.cluster.nodes):
            return False
        self._asynchronous = self._alone = True
        self._restart_as_told()
        return True

    def go_sync(self) -> None:
        """Restart it as a SYNC_MASTER."""
        self._asynchronous = False
        self._restart_as_told()

    def _restart_as_told(self) -> None:
        master = self.master
        if master.up:
            master.die()
            self.boot(master)

    def _look_for_replicas(self) -> None:
        machine = self.master.master if self.master.up else None
        if self._alone and machine is not None and machine.promises and machine.epoch_confirmed:
            self._alone = False

    def _operate(self) -> None:
        self._look_for_replicas()
        for node in self.cluster.nodes:
            if node.up:
                if node.slave is not None and node.slave.reason.startswith("NEWER_EPOCH"):
                    self._restart_master()
                elif node.slave is not None and NOT_CUT in node.slave.reason:
                    self._switch(self.master)
                elif (
                    node.slave is not None
                    and node.slave.reason.startswith("LINEAGE")
                    and node.begin_anew()
                ):
                    self.boot(node)
                continue
            if self.world.now < self.cluster.down_until.get(node.name, 0.0):
                continue
            if node.name == self.master_name and self._master_is_lost(node):
                self._switch(node)
            else:
                self.boot(node)
        self.world.after(OPERATOR_MS, self._operate)

    def _restart_master(self) -> None:
        """Follow the advice of a refusal: a failed mastership left a higher promise."""
        master = self.master
        if master.up:
            self.cluster.ghost.mark("restarted_for_epoch")
            master.die()
            self.boot(master)

    def _master_is_lost(self, node: Node) -> bool:
        """Tell whether the master's own disk may not be trusted with what was acknowledged."""
        gone = node.lost_disk or bool(node.older)
        return gone or (node.lost_power and not self.cluster.setup.durable)

    def trusted(self, node: Node) -> bool:
        """Whether it has recovered everything that it lost."""
        if node.older or node.lost_disk:
            return False
        return self.cluster.setup.durable or not (node.lost_power or node.disk.syncs_to_fail)

    def may_lose_power(self, node: Node) -> bool:
        """The atlas: what page caches acknowledged stays somewhere it can be had from."""
        if self._alone and node is self.master:
            return False
        if self.cluster.setup.durable:
            return True
        others = [other for other in self.cluster.nodes if other is not node]
        return node.up and not self._zombies and all(self.trusted(other) for other in others)

    def may_fail_sync(self, node: Node) -> bool:
        """A sync that was to fail: nobody else has lost anything since that was decided."""
        return True

    def may_lose_disk(self, node: Node) -> bool:
        """One after the other: a node that lost data must first recover it."""
        others = [other for other in self.cluster.nodes if other is not node]
        if self._alone and node is self.master:
            return False
        return not self._zombies and all(self.trusted(other) for other in others)

    def after_kill(self, node: Node, level: float) -> None:
        """A killed master is replaced at once now and then."""
        if node.name == self.master_name and level < 0.4:
            self._switch(node)

    def switch(self, level: float) -> None:
        """Replace the master, which may be alive."""
        old = self.master
        if self.busy:
            return
        if level < 0.6 and old.up:
            old.die()
        self._switch(old)

    def _switch(self, old: Node) -> None:
        """Make the slave that has the most the master; the old one will follow it."""
        if self._alone:
            if not old.up:
                self.boot(old)
            return
        slaves = [node for node in self.cluster.nodes if node is not old]
        if not all(self.trusted(node) for node in slaves):
            if not self._master_is_lost(old) and not old.up:
                self.boot(old)
            return
        for node in slaves:  # a down one may be the one that has it all
            self._retire(node)
            if not node.up:
                self.boot(node)
            if not node.up:
                return
        best = max(slaves, key=self._place)
        self.cluster.ghost.mark("switched")
        self.world.note(f"operator: {best.name} instead of {old.name}")
        self.master_name = best.name
        for node in slaves:
            node.die()
            self.boot(node)
        if old.up:
            self._zombies.add(old.name)
            self.world.after(self._chance.uniform(100, 1500), lambda: self._retire(old))

    def _place(self, node: Node) -> tuple[int, int]:
        """How much a slave has: the last mastership that it followed first, then how far it goes.

        Not the epoch's number: masters that were given their role by hand may give one twice.
        """
        assert node.slave is not None, "asked of slaves"
        known = node.slave.history.entries
        followed = [k for k, entry in enumerate(self._masterships) if entry in known]
        return max(followed, default=-1), node.store.log.max_offset

    def _retire(self, old: Node) -> None:
        """A master that was replaced while it lived is stopped, and follows from now on."""
        self._zombies.discard(old.name)
        if old.up and old.name != self.master_name and old.master is not None:
            old.die()
