"""One run from one seed: three nodes, their supervisor, clients and faults.

The group elects its masters through a simulated etcd, or an operator gives the roles by hand. The
injected faults leave at least one copy of everything acknowledged (the atlas), so whatever is lost
is our bug.
"""

import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from structlog.testing import capture_logs

from duolog_server.ha.groupstate import Keys
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
from sim.config import Setup
from sim.etcd import SimEtcd
from sim.faults import NODES, Fault
from sim.group import CONVERGE_MS, Group
from sim.liteclients import LiteClients
from sim.network import Network
from sim.node import Node
from sim.operator import Operator
from sim.remadeclients import RemadeClients
from sim.sdkclients import SdkPrograms
from sim.serviceclients import ServiceClients
from sim.witness import Violation
from sim.world import World

FAULTY_MS = 4000.0


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

    def follow(self, world: World, work: Callable[[], None]) -> None:
        """Do the work of a run, to its end or to the first violation, and note what came of it."""
        try:
            with capture_logs():  # what the services say is for operators
                work()
        except Violation as violation:
            self.violation = str(violation)
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            self.failed_in = Path(where.filename).name
            self.violation = (
                f"{type(error).__name__}: {error} ({where.name}, {self.failed_in} "
                f"line {where.lineno})"
            )
        self.digest = world.digest
        self.events = world.events
        self.trace = world.trace


class Cluster(Group):
    """The run's parts."""

    def __init__(
        self,
        seed: int,
        planned: list[Fault] | None = None,
        trace: bool = False,
        elected: bool | None = None,
    ) -> None:
        """elected: whether the group elects its masters; by chance where not given."""
        self.world = world = World(seed)
        if trace:
            world.trace = []
        self.elected = world.chance("mode").random() < 0.6 if elected is None else elected
        self.planned = self._plan() if planned is None else planned
        etcd = SimEtcd(world, Network(world), Keys("sim", "group"))
        super().__init__(world, etcd, self._setup(), NODES, self.elected)
        self.produce_until = FAULTY_MS
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
        self.access = AccessClients(self, self.tables) if self.setup.users else None
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

    def _setup(self) -> Setup:
        setup = replace(
            config.draw(self.world.chance("setup"), self.elected),
            index=self._has(faults.INDEX_ON),
            classic=self._has(faults.CLASSIC_ON),
        )
        if self._has(faults.DECAY_OFTEN):
            setup = replace(setup, decay_share=decay.OFTEN)
        if self._has(faults.SERVICES_ON):
            setup = replace(setup, services=True, index=True)
            setup = replace(
                setup, lite=self._has(faults.LITE_ON), users=self._has(faults.ACCESS_ON)
            )
            setup = replace(setup, expires=self._has(faults.EXPIRES))
        if setup.expires:
            setup = replace(setup, segment_bytes=8 << 10, quick=True)
        return setup

    def _plan(self) -> list[Fault]:
        found = faults.plan(self.world.chance("faults"), FAULTY_MS * 0.9, self.elected)
        found += copies.plan(self.world.chance("copies"), FAULTY_MS * 0.9)
        found += copies.single_file(self.world.chance("single files"), FAULTY_MS * 0.9)
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
        outcome.follow(self.world, self._run)
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
            self.heal()
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
        self.stop()
        for programs in (self.programs, self.sdk, self.lite, self.access, self.remade):
            if programs is not None:
                programs.stop()

    def _start(self) -> None:
        self.boot()
        for fault in self.planned:
            self.world.at(fault.at, lambda fault=fault: self.strike(fault))  # type: ignore[misc]
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

    def _lower_limits(self, fault: Fault, node: Node) -> None:
        node.setup = replace(node.setup, message_max=1, topics_max=1)
        self.ghost.mark("limits_lowered")
        self._kill(fault, node)

    def _take_copy(self, fault: Fault, node: Node) -> None:
        self.copies.take(node)

    def _put_back(self, fault: Fault, node: Node) -> None:
        self.copies.put_back(node, fault)

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

    # -- the end -------------------------------------------------------------------------------

    def heal(self) -> None:
        """Also of the programs."""
        super().heal()
        if self.sdk is not None:
            self.sdk.heal()

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
        raise Violation(f"the services do not come to an end: {why}; {self.standing()}")

    def settle(self) -> Node:
        """Wait until everything is done, and everywhere; the master then."""
        self._drain()
        self.converge()
        assert self.keeper.master is not None, "converged"
        return self.keeper.master


def run(
    seed: int,
    planned: list[Fault] | None = None,
    trace: bool = False,
    elected: bool | None = None,
) -> Outcome:
    """One run."""
    return Cluster(seed, planned, trace, elected).run()
