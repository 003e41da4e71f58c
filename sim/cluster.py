"""One run from one seed: three nodes, their supervisor, clients and faults.

The group elects its masters through a simulated etcd, or an operator gives the roles by hand. The
injected faults leave at least one copy of everything acknowledged (the atlas), so whatever is lost
is our bug.
"""

import traceback
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from structlog.testing import capture_logs

from duolog_server.ha.groupstate import Keys
from duolog_server.ha.progress import ConnectionState
from duolog_server.store.queueends import QueueKey
from sim import (
    accesschecks,
    checks,
    config,
    copies,
    decay,
    faults,
    litechecks,
    lostsegments,
    sdkchecks,
    secondday,
    servicechecks,
    stepfaults,
)
from sim.accessclients import AccessClients
from sim.caretaker import Caretaker
from sim.clients import ClassicProducer, Consumer, History, Producer
from sim.confirmedtables import ConfirmedTables
from sim.copies import Copies
from sim.etcd import NAME as ETCD
from sim.etcd import SimEtcd
from sim.faults import NODES, Fault
from sim.ghost import Ghost
from sim.liteclients import LiteClients
from sim.network import Network, Weather
from sim.node import Node
from sim.operator import Operator
from sim.remadeclients import RemadeClients
from sim.sdkclients import SdkPrograms
from sim.serviceclients import ServiceClients
from sim.witness import Violation
from sim.world import World

FAULTY_MS = 4000.0
CONVERGE_MS = 30_000.0
CLOCK_STEPS_MS = (-3_600_000, -5000, 5000, 3_600_000)


@dataclass(slots=True)
class Outcome:
    """The result of a run."""

    seed: int
    digest: str
    events: int
    violation: str = ""
    failed_in: str = ""  # the file that raised it, where it is an error and no broken promise
    counts: Counter[str] = field(default_factory=Counter)
    faults: list[Fault] = field(default_factory=list)
    elected: bool = False
    trace: list[str] | None = None


class Cluster:
    """The run's parts."""

    def __init__(
        self,
        seed: int,
        planned: list[Fault] | None = None,
        trace: bool = False,
        elected: bool | None = None,
    ) -> None:
        """elected: whether the group elects its masters; by chance where not given."""
        self.world = World(seed)
        if trace:
            self.world.trace = []
        self.elected = self.world.chance("mode").random() < 0.6 if elected is None else elected
        self.planned = self._plan() if planned is None else planned
        self.setup = replace(
            config.draw(self.world.chance("setup"), self.elected),
            index=self._has(faults.INDEX_ON),
            classic=self._has(faults.CLASSIC_ON),
        )
        if self._has(faults.DECAY_OFTEN):
            self.setup = replace(self.setup, decay_share=decay.OFTEN)
        if self._has(faults.SERVICES_ON):
            self.setup = replace(self.setup, services=True, index=True)
            self.setup = replace(
                self.setup, lite=self._has(faults.LITE_ON), users=self._has(faults.ACCESS_ON)
            )
            self.setup = replace(self.setup, expires=self._has(faults.EXPIRES))
        if self.setup.expires:
            self.setup = replace(self.setup, segment_bytes=8 << 10, quick=True)
        self.network = Network(self.world)
        self.etcd = SimEtcd(self.world, self.network, Keys("sim", "group"))
        self.ghost = Ghost(
            self.setup.in_sync, self.setup.durable, self.etcd if self.elected else None
        )
        self.nodes = [
            Node(self.world, self.network, name, self.setup, self.ghost) for name in NODES
        ]
        self.traps = stepfaults.Traps()
        tables = ConfirmedTables()
        self.by_name = {node.name: node for node in self.nodes}
        for node in self.nodes:
            node.peers = self.by_name
            node.etcd = self.etcd
            node.traps = self.traps
            node.on_stopped = self._stopped
            node.on_settled.append(tables.settled)
        self.etcd.on_truth = lambda: self.ghost.members_changed(self.nodes)
        weak = self.world.chance("weak")
        if self.elected and weak.random() < 0.5:
            weak.choice(self.nodes).weak = True
        for fault in self.planned:
            if fault.kind == faults.UNREACHABLE:
                self.by_name[fault.node].misled = True
        self.history = History()
        kinds = (ClassicProducer if self.setup.classic else Producer, Producer)
        self._producers = [kind(self, f"p{k}", self.history) for k, kind in enumerate(kinds)]
        self._consumer = Consumer(self, "c0", self.history)
        sdk_on = [fault for fault in self.planned if fault.kind == faults.SDK_ON]
        self.sdk = SdkPrograms(self) if self.setup.services and sdk_on else None
        self.lite = LiteClients(self) if self.setup.lite else None
        self.access = AccessClients(self, tables) if self.setup.users else None
        remade = [fault for fault in self.planned if fault.kind == faults.REMADE_ON]
        lite_too = any(fault.other == faults.LITE_ON for fault in remade)
        remade_on = self.setup.services and remade
        self.remade = RemadeClients(self, lite_too) if remade_on else None
        alone = any(
            fault.kind in (faults.SDK_ON, faults.LITE_ON, faults.ACCESS_ON)
            and fault.level < faults.ALONE
            for fault in self.planned
        )
        self.programs = ServiceClients(self) if self.setup.services and not alone else None
        self.produce_until = FAULTY_MS
        self.down_until: dict[str, float] = {}
        self.keeper: Operator | Caretaker = Caretaker(self) if self.elected else Operator(self)
        self.copies = Copies(self)
        self._wall_peak = 0  # farthest that any node's wall clock was ahead
        self._healed = False

    def _plan(self) -> list[Fault]:
        found = faults.plan(self.world.chance("faults"), FAULTY_MS * 0.9, self.elected)
        found += copies.plan(self.world.chance("copies"), FAULTY_MS * 0.9)
        found += lostsegments.plan(self.world.chance("lost segments"), FAULTY_MS * 0.9)
        for stream, kind in (("flips", "flip_bits"), ("mangled", "mangle_frames")):
            found += faults.damaged_links(self.world.chance(stream), FAULTY_MS * 0.9, kind)
        found += faults.classic(self.world.chance("classic"), FAULTY_MS * 0.9)
        if self.elected:
            services = faults.services(self.world.chance("services"))
            found += services
            found += faults.unreachable(self.world.chance("unreachable"), FAULTY_MS * 0.9)
            if services:
                found += faults.sdk(self.world.chance("sdk"), FAULTY_MS * 0.9)
                found += faults.lite(self.world.chance("lite"))
                found += faults.access(self.world.chance("access"))
                found += faults.poison(self.world.chance("poison"))
                found += faults.remade(self.world.chance("remade topics"))
                found += self._steps([fault.kind for fault in found])
            kinds = [fault.kind for fault in found]
            found += faults.limits(self.world.chance("limits"), kinds)
            found += faults.expires([fault.kind for fault in found])
        else:
            found += faults.async_spells(self.world.chance("async"), FAULTY_MS * 0.9)
        return sorted(found, key=lambda fault: fault.at)

    def _steps(self, kinds: list[str]) -> list[Fault]:
        """Faults between two steps, in every other run with services."""
        chance = self.world.chance("steps")
        if chance.random() < 0.5:
            return []
        alone = faults.SDK_ON in kinds
        some: tuple[str, ...] = stepfaults.SDK_KINDS if alone else stepfaults.KINDS
        if faults.LITE_ON in kinds:
            some += stepfaults.LITE_KINDS
        if faults.ACCESS_ON in kinds:
            some += stepfaults.ACCESS_KINDS
        return stepfaults.plan(chance, FAULTY_MS * 0.9, some)

    def _has(self, kind: str) -> bool:
        return any(fault.kind == kind for fault in self.planned)

    # -- running -------------------------------------------------------------------------------

    def run(self) -> Outcome:
        """Run to the end or to the first violation."""
        outcome = Outcome(self.world.seed, "", 0, faults=self.planned, elected=self.elected)
        try:
            with capture_logs():  # what the services say is for operators
                self._run()
        except Violation as violation:
            outcome.violation = str(violation)
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            outcome.failed_in = Path(where.filename).name
            outcome.violation = (
                f"{type(error).__name__}: {error} ({where.name}, {outcome.failed_in} "
                f"line {where.lineno})"
            )
        outcome.digest = self.world.digest
        outcome.events = self.world.events
        outcome.trace = self.world.trace
        outcome.counts = Counter(self.ghost.marks)
        outcome.counts.update({f"sends_{k}": n for k, n in self.history.outcomes().items()})
        outcome.counts["polls"] = self.history.polls
        if self.programs is not None:
            outcome.counts.update(self.programs.counts())
        for others in (self.sdk, self.lite, self.access, self.remade):
            if others is not None:
                outcome.counts.update(others.counts())
        outcome.counts["frames_lost"] = self.network.lost
        outcome.counts["frames_flipped"] = self.network.flipped
        outcome.counts["frames_mangled"] = self.network.mangled
        return outcome

    def _run(self) -> None:
        try:
            self._start()
            self.world.run_until(FAULTY_MS, lambda: None)
            self._heal()
            master = self.settle()
            for fault in self.planned:
                if fault.kind == faults.EXPIRES:
                    master = secondday.live(self, fault.other)
            checks.final(self.nodes, master, self.history)
            if self.programs is not None:
                jumped = self._has("clock_step") or self.setup.expires
                servicechecks.final(master, self.programs.history, jumped)
            if self.sdk is not None:
                sdkchecks.final(master, self.sdk.history)
                servicechecks.progress_never_goes_back(master)
            if self.lite is not None:
                litechecks.final(self.nodes, master, self.lite.history)
                servicechecks.progress_never_goes_back(master)
            if self.access is not None:
                accesschecks.final(self.nodes, self.access)
            if self.remade is not None:
                self.remade.final(master)
        finally:
            self._stop()

    def _stop(self) -> None:
        """No coroutine outlives the run."""
        for node in self.nodes:
            node.stop_loops()
        for programs in (self.programs, self.sdk, self.lite, self.access, self.remade):
            if programs is not None:
                programs.stop()

    def _start(self) -> None:
        for node in self.nodes:
            self.keeper.boot(node)
        for fault in self.planned:
            self.world.at(fault.at, lambda fault=fault: self._strike(fault))  # type: ignore[misc]
        for k, producer in enumerate(self._producers):
            self.world.at(5.0 + k, producer.begin)
        self.world.at(20.0, self._consumer.begin)
        if self.programs is not None:
            self.programs.poisons = self._has(faults.POISON_ON)
            if self._has("lower_limits"):
                self.programs.send_again()
            self.programs.begin()
        if self.sdk is not None:
            self.sdk.begin()
        if self.lite is not None:
            self.lite.begin()
        if self.access is not None:
            self.access.begin()
        if self.remade is not None:
            self.remade.begin()
        self.keeper.begin()
        if self.elected:
            self.world.after(0.0, self.etcd.expire)

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
            self.down_until[node.name] = self.world.now + fault.lasts
            self.keeper.after_kill(node, fault.level)
            if fault.level > 0.5:  # its directory is moved by a sparse copy
                node.disk.hollow()

    def _lower_limits(self, fault: Fault, node: Node) -> None:
        node.setup = replace(node.setup, message_max=1, topics_max=1)
        self.ghost.mark("limits_lowered")
        self._kill(fault, node)

    def _at_step(self, fault: Fault, node: Node) -> None:
        self.traps.set(fault)

    def _stopped(self, node: Node, trap: stepfaults.Trap) -> None:
        self.ghost.mark("killed_at_step")
        node.die()
        self.down_until[node.name] = self.world.now + trap.fault.lasts
        self.keeper.after_kill(node, trap.fault.level)

    def _take_copy(self, fault: Fault, node: Node) -> None:
        self.copies.take(node)

    def _put_back(self, fault: Fault, node: Node) -> None:
        self.copies.put_back(node, fault)

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

    def _etcd_restore(self, fault: Fault, node: Node) -> None:
        agents = [n.agent for n in self.nodes if n.up and n.agent is not None]
        if len(agents) < len(self.nodes) or self.copies.unresolved:
            return
        seen = min(agent.machine.membership.version for agent in agents)
        if self.etcd.restore(seen):
            self.ghost.mark("registry_restored")
            self.world.after(min(fault.lasts, 900.0), self.etcd.restore_newest)

    def _etcd_wipe(self, fault: Fault, node: Node) -> None:
        if self._healed or not isinstance(self.keeper, Caretaker):
            return
        lost = not self.copies.unresolved and self.keeper.may_lose_registry() and self.etcd.wipe()
        if not lost:
            self.world.after(150.0, lambda: self._etcd_wipe(fault, node))
            return
        self.ghost.mark("registry_wiped")
        later = min(fault.lasts, 900.0)
        if fault.level < 0.3:
            self.world.after(later, self.etcd.restore_newest)
        else:
            self.world.after(later, self.keeper.elect_by_hand)

    def _lose_disk(self, fault: Fault, node: Node) -> None:
        if not self.copies.unresolved and self.keeper.may_lose_disk(node):
            self.ghost.mark("disk_lost")
            node.lose_disk()
            self.down_until[node.name] = self.world.now + fault.lasts

    def _lose_segment(self, fault: Fault, node: Node) -> None:
        lostsegments.lose(self, node, fault)

    def _go_async(self, fault: Fault, node: Node) -> None:
        keeper = self.keeper
        if isinstance(keeper, Operator) and not self.copies.unresolved and keeper.go_async():
            self.ghost.mark("went_async")
            self._later(fault, keeper.go_sync)

    def _member_kill(self, fault: Fault, node: Node) -> None:
        if self.sdk is not None:
            self.ghost.mark(fault.kind)
            self.sdk.strike(fault.kind, fault.level, fault.lasts)

    _member_pause = _publisher_kill = _member_kill

    def _index_on(self, fault: Fault, node: Node) -> None:
        """Nothing happens: the setup looks for it."""

    _decay_often = _services_on = _sdk_on = _lite_on = _access_on = _poison_on = _index_on
    _unreachable = _remade_on = _expires = _classic_on = _index_on

    def _clock_step(self, fault: Fault, node: Node) -> None:
        node.wall_offset += CLOCK_STEPS_MS[int(fault.level * 4) % 4]
        self._wall_peak = max(self._wall_peak, node.wall_offset)

    # -- the end -------------------------------------------------------------------------------

    def _heal(self) -> None:
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
        if self.sdk is not None:
            self.sdk.heal()
        self.down_until.clear()

    def produce(self, ms: float, queues: Sequence[QueueKey]) -> None:
        """Send to some queues and read them, for a while."""
        self.produce_until = self.world.now + ms
        for producer in self._producers:
            producer.queues = queues
            producer.begin()
        self._consumer.begin()
        self.world.run_until(self.produce_until, lambda: None)

    def _drain(self) -> None:
        """Liveness of the services: healed, they must do what there is to do before long."""
        if not self.setup.services:
            return
        for programs in (self.programs, self.sdk, self.lite, self.access, self.remade):
            if programs is not None:
                programs.drain()
        until = self.world.now + CONVERGE_MS
        why = ""
        while self.world.now < until:
            self.world.run_until(self.world.now + 100, lambda: None)
            master = self.keeper.master
            why = "no master" if master is None else servicechecks.unfinished(master)
            if master is not None and self.sdk is not None:
                why = why or sdkchecks.unfinished(master, self.sdk.history)
            if master is not None and self.lite is not None:
                why = why or litechecks.unfinished(master, self.lite.history)
            for others in (self.access, self.remade):
                if others is not None:
                    why = why or others.unfinished()
            if not why:
                return
        raise Violation(f"the services do not come to an end: {why}; {self._standing()}")

    def settle(self) -> Node:
        """Wait until everything is done, and everywhere; the master then."""
        self._drain()
        self._converge()
        assert self.keeper.master is not None, "converged"
        return self.keeper.master

    def _converge(self) -> None:
        """Liveness: once faults are healed, all nodes must soon have everything."""
        until = self.world.now + CONVERGE_MS
        while not self._converged():
            if self.world.now >= until:
                raise Violation(f"no convergence after the faults: {self._standing()}")
            self.world.run_until(self.world.now + 50, lambda: None)

    def _converged(self) -> bool:
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

    def _standing(self) -> str:
        return "; ".join(
            f"{node.name} {'up' if node.up else 'down'} {node.store.role.value} "
            f"end {node.store.log.max_offset} confirm {node.store.confirm_offset} "
            f"reput {node.store.dispatcher.reput_from} flushed {node.store.flushed_offset} "
            f"{node.slave.state.value + ' ' + node.slave.reason if node.slave else ''}"
            for node in self.nodes
        )


def run(
    seed: int,
    planned: list[Fault] | None = None,
    trace: bool = False,
    elected: bool | None = None,
) -> Outcome:
    """One run."""
    return Cluster(seed, planned, trace, elected).run()
