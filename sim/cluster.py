"""Three nodes, their operator, their clients and their bad luck: one run from one seed.

The operator does by hand what failover will do by itself: it restarts what died, and where the
master is gone for long, or has lost what its page cache held, makes the best slave the master.
It plays by the rules of docs/guarantees.md, so whatever is lost then is our bug: where
acknowledgements come from page caches it never trusts a node that lost power before that node has
caught up, and the injected faults leave at least one copy of everything acknowledged (the atlas).
"""

import traceback
from collections import Counter
from dataclasses import dataclass, field

from ha.epochs import EpochEntry
from ha.progress import ConnectionState
from sim import checks, config, faults
from sim.clients import Consumer, History, Producer
from sim.faults import NODES, Fault
from sim.ghost import Ghost, Violation
from sim.network import Network, Weather
from sim.node import Node
from sim.world import World
from store.status import BrokerRole

FAULTY_MS = 4000.0
CONVERGE_MS = 30_000.0
OPERATOR_MS = 70.0
CLOCK_STEPS_MS = (-3_600_000, -5000, 5000, 3_600_000)


@dataclass(slots=True)
class Outcome:
    """What a run was and found."""

    seed: int
    digest: str
    events: int
    violation: str = ""
    counts: Counter[str] = field(default_factory=Counter)
    faults: list[Fault] = field(default_factory=list)
    trace: list[str] | None = None


class Cluster:
    """The run's parts."""

    def __init__(self, seed: int, planned: list[Fault] | None = None, trace: bool = False) -> None:
        self.world = World(seed)
        if trace:
            self.world.trace = []
        self.setup = config.draw(self.world.chance("setup"))
        self.network = Network(self.world)
        self.ghost = Ghost(self.setup.in_sync, self.setup.durable)
        self.nodes = [
            Node(self.world, self.network, name, self.setup, self.ghost) for name in NODES
        ]
        self.by_name = {node.name: node for node in self.nodes}
        for node in self.nodes:
            node.peers = self.by_name
        self.history = History()
        self.produce_until = FAULTY_MS
        self.master_name = "a"
        self.planned = (
            faults.plan(self.world.chance("faults"), FAULTY_MS * 0.9)
            if planned is None
            else planned
        )
        self._chance = self.world.chance("operator")
        self._down_until: dict[str, float] = {}
        self._zombies: set[str] = set()
        self._masterships: list[EpochEntry] = []
        self._healed = False

    @property
    def master(self) -> Node | None:
        """The node that clients take for the master."""
        return self.by_name[self.master_name]

    # -- running -------------------------------------------------------------------------------

    def run(self) -> Outcome:
        """Everything, to the end or to the first violation."""
        outcome = Outcome(self.world.seed, "", 0, faults=self.planned)
        try:
            self._start()
            self.world.run_until(FAULTY_MS, lambda: None)
            self._heal()
            self._converge()
            checks.final(self.nodes, self.by_name[self.master_name], self.history)
        except Violation as violation:
            outcome.violation = str(violation)
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            outcome.violation = (
                f"{type(error).__name__}: {error} ({where.name}, {where.filename.split('/')[-1]} "
                f"line {where.lineno})"
            )
        outcome.digest = self.world.digest
        outcome.events = self.world.events
        outcome.trace = self.world.trace
        outcome.counts = Counter(self.ghost.marks)
        outcome.counts.update({f"sends_{k}": n for k, n in self.history.outcomes().items()})
        outcome.counts["polls"] = self.history.polls
        outcome.counts["frames_lost"] = self.network.lost
        return outcome

    def _start(self) -> None:
        for node in self.nodes:
            self._boot(node)
        for fault in self.planned:
            self.world.at(fault.at, lambda fault=fault: self._strike(fault))  # type: ignore[misc]
        for k in range(2):
            producer = Producer(self, f"p{k}", self.history)
            self.world.at(5.0 + k, producer.go_on)
        consumer = Consumer(self, "c0", self.history)
        self.world.at(20.0, consumer.poll)
        self.world.after(OPERATOR_MS, self._operate)

    def _boot(self, node: Node) -> None:
        if node.needs_reboot:
            node.needs_reboot = False
            node.disk.power_cut()
            node.cuts += 1
        if node.name == self.master_name:
            sure = node.start(BrokerRole.SYNC_MASTER)
        else:
            sure = node.start(BrokerRole.SLAVE, self.master_name)
        if node.up and node.master is not None:
            self._masterships.append(node.master.history.entries[-1])
        if not sure:
            self._down_until[node.name] = self.world.now + 200

    # -- the operator --------------------------------------------------------------------------

    def _operate(self) -> None:
        """Look after the cluster, again and again."""
        for node in self.nodes:
            if node.up:
                if node.slave is not None and node.slave.reason.startswith("NEWER_EPOCH"):
                    self._restart_master()
                elif node.slave is not None and node.slave.reason.startswith("LINEAGE"):
                    self._empty(node)
                continue
            if self.world.now < self._down_until.get(node.name, 0.0):
                continue
            if node.name == self.master_name and self._master_is_lost(node):
                self._switch(node)
            else:
                self._boot(node)
        self.world.after(OPERATOR_MS, self._operate)

    def _empty(self, node: Node) -> None:
        """What the refusal advises, where nothing that the slave holds was ever confirmed."""
        store = node.store
        if not store.checkpoint.confirm_phy_offset and not store.replicated_offset:
            self.ghost.mark("emptied")
            node.die()
            node.empty_disk()
            self._boot(node)

    def _restart_master(self) -> None:
        """What the refusal advises: a mastership that began and failed left a higher promise."""
        master = self.by_name[self.master_name]
        if master.up:
            self.ghost.mark("restarted_for_epoch")
            master.die()
            self._boot(master)

    def _master_is_lost(self, node: Node) -> bool:
        """Tell whether the master's own disk may not be trusted with what was acknowledged."""
        return node.lost_power and not self.setup.durable

    def _trusted(self, node: Node) -> bool:
        return self.setup.durable or not (node.lost_power or node.disk.syncs_to_fail)

    def _switch(self, old: Node) -> None:
        """Make the slave that has the most the master; the old one will follow it."""
        slaves = [node for node in self.nodes if node is not old]
        if not all(self._trusted(node) for node in slaves):
            if not self._master_is_lost(old) and not old.up:
                self._boot(old)
            return
        for node in slaves:  # a down one may be the one that has it all
            self._retire(node)
            if not node.up:
                self._boot(node)
            if not node.up:
                return
        best = max(slaves, key=self._place)
        self.ghost.mark("switched")
        self.world.note(f"operator: {best.name} instead of {old.name}")
        self.master_name = best.name
        for node in slaves:
            node.die()
            self._boot(node)
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

    # -- faults --------------------------------------------------------------------------------

    def _strike(self, fault: Fault) -> None:
        if self._healed:
            return
        self.world.note(f"fault {fault.kind} {fault.node} {fault.other} {fault.lasts}")
        node = self.by_name[fault.node]
        getattr(self, "_" + fault.kind)(fault, node)

    def _later(self, fault: Fault, undo: object) -> None:
        assert callable(undo), "something that ends it"
        self.world.after(fault.lasts, undo)

    def _kill(self, fault: Fault, node: Node) -> None:
        if node.up:
            self.ghost.mark("killed")
            node.die()
            self._down_until[node.name] = self.world.now + fault.lasts
            if node.name == self.master_name and fault.level < 0.4:
                self._switch(node)

    def _may_lose_power(self, node: Node) -> bool:
        """The atlas: what page caches acknowledged stays somewhere it can be had from."""
        if self.setup.durable:
            return True
        others = [other for other in self.nodes if other is not node]
        return node.up and not self._zombies and all(self._trusted(other) for other in others)

    def _power_cut(self, fault: Fault, node: Node) -> None:
        if node.up and self._may_lose_power(node):
            node.power_cut()
            self._down_until[node.name] = self.world.now + fault.lasts

    def _fail_sync(self, fault: Fault, node: Node) -> None:
        if node.up and self._may_lose_power(node):
            node.disk.syncs_to_fail = 1

    def _pause(self, fault: Fault, node: Node) -> None:
        self.ghost.mark("paused")
        node.paused_until = self.world.now + fault.lasts

    def _cut_link(self, fault: Fault, node: Node) -> None:
        both = {(fault.node, fault.other), (fault.other, fault.node)}
        self._cut(fault, both)

    def _cut_one_way(self, fault: Fault, node: Node) -> None:
        self._cut(fault, {(fault.node, fault.other)})

    def _cut(self, fault: Fault, links: set[tuple[str, str]]) -> None:
        self.ghost.mark("link_cut")
        self.network.cuts |= links
        self._later(fault, lambda: self.network.cuts.difference_update(links))

    def _weather(self, fault: Fault, node: Node) -> None:
        level = fault.level
        self.network.weather = Weather(
            0.2 * level, 0.2 * level, 0.3 * level, 0.2, 2.0 + 60 * level * level
        )

        def clear() -> None:
            self.network.weather = Weather()

        self._later(fault, clear)

    def _slow_disk(self, fault: Fault, node: Node) -> None:
        node.sync_ms = 1.0 + 150 * fault.level

        def clear() -> None:
            node.sync_ms = 1.0

        self._later(fault, clear)

    def _full_disk(self, fault: Fault, node: Node) -> None:
        node.disk.full = True

        def clear() -> None:
            node.disk.full = False

        self._later(fault, clear)

    def _reset_streams(self, fault: Fault, node: Node) -> None:
        if node.up:
            node.reset_streams()

    def _double_connect(self, fault: Fault, node: Node) -> None:
        if node.up and node.slave is not None:
            self.ghost.mark("double_connected")
            node.double_connect()

    def _switch_master(self, fault: Fault, node: Node) -> None:
        old = self.by_name[self.master_name]
        if self._zombies:
            return
        if fault.level < 0.6 and old.up:
            old.die()
        self._switch(old)

    def _clock_step(self, fault: Fault, node: Node) -> None:
        node.wall_offset += CLOCK_STEPS_MS[int(fault.level * 4) % 4]

    # -- the end -------------------------------------------------------------------------------

    def _heal(self) -> None:
        self._healed = True
        self.network.cuts.clear()
        self.network.weather = Weather()
        for node in self.nodes:
            node.disk.full = False
            node.disk.syncs_to_fail = 0
            node.sync_ms = 1.0
            node.paused_until = 0.0
        self._down_until.clear()

    def _converge(self) -> None:
        """Liveness: healed, everybody must have everything before long."""
        until = self.world.now + CONVERGE_MS
        while not self._converged():
            if self.world.now >= until:
                raise Violation(f"no convergence after the faults: {self._standing()}")
            self.world.run_until(self.world.now + 50, lambda: None)

    def _converged(self) -> bool:
        master = self.by_name[self.master_name]
        if not all(node.up for node in self.nodes) or master.master is None or self._zombies:
            return False
        end = master.store.log.max_offset
        return master.store.replicated_offset == end == master.store.dispatcher.reput_from and all(
            node.slave is not None
            and node.slave.state is ConnectionState.TRANSFER
            and node.store.log.max_offset == end == node.store.dispatcher.reput_from
            and node.store.confirm_offset == end
            for node in self.nodes
            if node is not master
        )

    def _standing(self) -> str:
        return "; ".join(
            f"{node.name} {'up' if node.up else 'down'} {node.role.value} "
            f"end {node.store.log.max_offset} confirm {node.store.confirm_offset} "
            f"reput {node.store.dispatcher.reput_from} "
            f"{node.slave.state.value + ' ' + node.slave.reason if node.slave else ''}"
            for node in self.nodes
        )


def run(seed: int, planned: list[Fault] | None = None, trace: bool = False) -> Outcome:
    """One run."""
    return Cluster(seed, planned, trace).run()
