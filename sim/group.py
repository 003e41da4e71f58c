"""One replica group of a run: its nodes, who starts them, what strikes them, and their end.

The injected faults leave at least one copy of everything acknowledged (the atlas), so whatever is
lost is our bug.
"""

from collections.abc import Sequence
from dataclasses import replace

from duolog_server.ha.progress import ConnectionState
from sim import stepfaults
from sim.caretaker import Caretaker
from sim.config import Setup
from sim.confirmedtables import ConfirmedTables
from sim.copies import Copies
from sim.etcd import NAME as ETCD
from sim.etcd import SimEtcd
from sim.faults import Fault
from sim.ghost import Ghost
from sim.network import Weather
from sim.node import Node
from sim.operator import Operator
from sim.witness import Violation
from sim.world import World

CONVERGE_MS = 30_000.0
CLOCK_STEPS_MS = (-3_600_000, -5000, 5000, 3_600_000)


class Group:
    """The parts of a replica group."""

    def __init__(
        self, world: World, etcd: SimEtcd, setup: Setup, names: Sequence[str], elected: bool
    ) -> None:
        """names: of its nodes. elected: whether they elect their masters."""
        self.world = world
        self.network = etcd.network
        self.etcd = etcd
        self.setup = setup
        self.elected = elected
        self.ghost = Ghost(setup.in_sync, setup.durable, etcd if elected else None)
        self.nodes = [Node(world, self.network, name, setup, self.ghost) for name in names]
        self.traps = stepfaults.Traps()
        self.tables = ConfirmedTables()
        self.by_name = {node.name: node for node in self.nodes}
        for node in self.nodes:
            node.peers = self.by_name
            node.etcd = etcd
            node.traps = self.traps
            node.on_stopped = self._stopped
            node.on_settled.append(self.tables.settled)
        etcd.on_truth = lambda: self.ghost.members_changed(self.nodes)
        self.produce_until = 0.0
        self.down_until: dict[str, float] = {}
        self.keeper: Operator | Caretaker = Caretaker(self) if elected else Operator(self)
        self.copies = Copies(self)
        self._wall_peak = 0  # farthest that any node's wall clock was ahead
        self._healed = False

    def boot(self) -> None:
        """Start the nodes."""
        for node in self.nodes:
            self.keeper.boot(node)

    def stop(self) -> None:
        """No coroutine outlives the run."""
        for node in self.nodes:
            node.stop_loops()

    # -- faults --------------------------------------------------------------------------------

    def strike(self, fault: Fault) -> None:
        """A fault begins, unless all is healed."""
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
            self.down_until[node.name] = self.world.now + fault.lasts
            self.keeper.after_kill(node, fault.level)
            if fault.level > 0.5:  # its directory is moved by a sparse copy
                node.disk.hollow()

    def _at_step(self, fault: Fault, node: Node) -> None:
        self.traps.set(fault)

    def _stopped(self, node: Node, trap: stepfaults.Trap) -> None:
        self.ghost.mark("killed_at_step")
        node.die()
        self.down_until[node.name] = self.world.now + trap.fault.lasts
        self.keeper.after_kill(node, trap.fault.level)

    def _may_lose_power(self, node: Node) -> bool:
        return node.up and not self.copies.unresolved and self.keeper.may_lose_power(node)

    def _power_cut(self, fault: Fault, node: Node) -> None:
        if self._may_lose_power(node):
            node.power_cut()
            self.down_until[node.name] = self.world.now + fault.lasts

    def _fail_sync(self, fault: Fault, node: Node) -> None:
        if self._may_lose_power(node):
            node.disk.syncs_to_fail = 1
            node.disk.may_fail_now = lambda: self.keeper.may_fail_sync(node)

    def _pause(self, fault: Fault, node: Node) -> None:
        self.ghost.mark("paused")
        node.standstill.begin(fault.lasts)

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

    def _flip_bits(self, fault: Fault, node: Node) -> None:
        damage = "flip" if fault.kind == "flip_bits" else "mangle"
        weather = replace(self.network.weather, **{damage: 0.3 * fault.level})
        self.network.weather = weather

        def clear() -> None:
            if self.network.weather is weather:
                self.network.weather = replace(weather, **{damage: 0.0})

        self._later(fault, clear)

    _mangle_frames = _flip_bits

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
        self.keeper.switch(fault.level)

    def _cut_etcd(self, fault: Fault, node: Node) -> None:
        both = {(fault.node, ETCD), (ETCD, fault.node)}
        one_way = {((fault.node, ETCD), (ETCD, fault.node))[int(fault.level * 9) % 2]}
        self.ghost.mark("etcd_cut")
        self._cut(fault, both if fault.level < 0.5 else one_way)

    def _etcd_outage(self, fault: Fault, node: Node) -> None:
        self.ghost.mark("etcd_outage")
        self.etcd.outage(fault.lasts)

    def _etcd_slow(self, fault: Fault, node: Node) -> None:
        self.ghost.mark("etcd_slow")
        self.etcd.slow(fault.lasts)

    def _etcd_revoke(self, fault: Fault, node: Node) -> None:
        if self.etcd.revoke_lock():
            self.ghost.mark("lease_revoked")

    def _etcd_watch_lag(self, fault: Fault, node: Node) -> None:
        self.ghost.mark("watch_lag")
        self.etcd.watch_lag = 40 + 800 * fault.level

        def clear() -> None:
            self.etcd.watch_lag = 0.0

        self._later(fault, clear)

    def _lose_disk(self, fault: Fault, node: Node) -> None:
        if not self.copies.unresolved and self.keeper.may_lose_disk(node):
            self.ghost.mark("disk_lost")
            node.lose_disk()
            self.down_until[node.name] = self.world.now + fault.lasts

    def _clock_step(self, fault: Fault, node: Node) -> None:
        node.wall_offset += CLOCK_STEPS_MS[int(fault.level * 4) % 4]
        self._wall_peak = max(self._wall_peak, node.wall_offset)

    # -- the end -------------------------------------------------------------------------------

    def heal(self) -> None:
        """Nothing strikes any more."""
        self._healed = True
        self.traps.clear()
        self.network.cuts.clear()
        self.network.weather = Weather()
        self.etcd.heal()
        self.etcd.restore_newest()
        for node in self.nodes:
            node.disk.full = False
            node.disk.syncs_to_fail = 0
            node.sync_ms = 1.0
            node.standstill.end()
            node.misled = False
            if node.unreachable:  # its operator sets ha.advertise
                node.die()
            if self.setup.services:  # no timer waits for hours that were jumped over
                node.wall_offset = self._wall_peak
        self.down_until.clear()

    def converge(self) -> None:
        """Liveness: once faults are healed, all nodes must soon have everything."""
        until = self.world.now + CONVERGE_MS
        while not self.converged():
            if self.world.now >= until:
                raise Violation(f"no convergence after the faults: {self.standing()}")
            self.world.run_until(self.world.now + 50, lambda: None)

    def converged(self) -> bool:
        """All nodes have, and know to be confirmed, what the master has."""
        master = self.keeper.master
        if master is None or master.master is None or self.keeper.busy:
            return False
        if not all(node.up for node in self.nodes):
            return False
        if not all(node.agent is None or node.agent.registered for node in self.nodes):
            return False
        end = master.store.log.max_offset
        return (
            master.store.replicated_offset == end == master.store.dispatcher.reput_from
            and all(
                node.slave is not None
                and node.slave.state is ConnectionState.TRANSFER
                and node.store.log.max_offset == end == node.store.dispatcher.reput_from
                and node.store.confirm_offset == end
                for node in self.nodes
                if node is not master
            )
            and all(node.is_flushed or not self.setup.quick for node in self.nodes)
        )

    def standing(self) -> str:
        """The state of each node."""
        return "; ".join(
            f"{node.name} {'up' if node.up else 'down'} {node.store.role.value} "
            f"end {node.store.log.max_offset} confirm {node.store.confirm_offset} "
            f"reput {node.store.dispatcher.reput_from} flushed {node.store.flushed_offset} "
            f"{node.slave.state.value + ' ' + node.slave.reason if node.slave else ''}"
            for node in self.nodes
        )
