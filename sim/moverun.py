"""One run from one seed: two replica groups of a cluster, and queues that move between them.

Both elect their masters through one simulated etcd. The faults strike nodes of either, links within
and between them, and etcd; they leave at least one copy of everything acknowledged in each group.
"""

import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from duolog_server.ha.groupstate import Keys
from duolog_server.node.deferred import outbox
from duolog_server.node.deferred.delayservice import DONE_TOPIC, TIMER_TOPIC
from sim import config, movechain, stepfaults
from sim.cluster import FAULTY_MS, Outcome
from sim.etcd import SimEtcd
from sim.faults import Fault
from sim.group import CONVERGE_MS, Group
from sim.moveclients import MoveClients
from sim.movehistory import TOPIC
from sim.network import Network
from sim.node import Node
from sim.witness import Violation
from sim.world import World

GROUPS = {"left": ("a", "b", "c"), "right": ("d", "e", "f")}
NODES = tuple(name for names in GROUPS.values() for name in names)
KINDS = (
    *("kill", "kill", "power_cut", "pause", "cut_link", "cut_one_way", "weather", "slow_disk"),
    *("fail_sync", "full_disk", "reset_streams", "switch_master", "lose_disk"),
    *("cut_etcd", "etcd_outage", "etcd_slow", "etcd_revoke", "etcd_watch_lag"),
)
STEPS = (
    *("seal", "seal", "guest", "open", "open", "revoke", "crossed", "offsets"),
    *("timers", "delays", DONE_TOPIC, TIMER_TOPIC, outbox.TOPIC, outbox.TOPIC, TOPIC, TOPIC),
)
MEMBER = "member"
CUT_GROUPS = "cut_groups"
# What a large number of runs must have met, or they do not test what they should.
MUST_SEE = (
    *("moves_done", "moves_ended", "moves_sent_ok", "moves_sent_delayed", "moves_given", "spans"),
    *("killed", "power_cut", "failed_over", "killed_at_step"),
    *("link_cut", "etcd_cut", "etcd_outage"),
)


def plan(chance: random.Random) -> list[Fault]:
    """The faults of one run: a few kinds, so that runs differ in character."""
    kinds = [*chance.sample(KINDS, chance.randint(1, 5)), MEMBER, CUT_GROUPS]
    found = []
    for _ in range(chance.randint(0, 14)):
        node, other = chance.sample(NODES, 2)
        found.append(
            Fault(
                round(chance.uniform(600, FAULTY_MS * 0.9), 3),
                chance.choice(kinds),
                node,
                other,
                round(chance.choice((20, 200, 1000, 2500)) * chance.uniform(0.5, 1.5), 3),
                round(chance.random(), 3),
            )
        )
    if chance.random() < 0.5:
        steps = stepfaults.plan(chance, FAULTY_MS * 0.9, STEPS)
        found += [replace(fault, node=chance.choice(NODES)) for fault in steps]
    return sorted(found, key=lambda fault: fault.at)


class MoveRun:
    """The run's parts."""

    def __init__(self, seed: int, planned: list[Fault] | None, trace: bool) -> None:
        self.world = world = World(seed)
        if trace:
            world.trace = []
        self.planned = plan(world.chance("faults")) if planned is None else planned
        self.network = Network(world)
        setup = replace(config.draw(world.chance("setup"), True), services=True, index=True)
        self.groups: dict[str, Group] = {}
        for name, nodes in GROUPS.items():
            etcd = SimEtcd(world, self.network, Keys("sim", name))
            for other in self.groups.values():
                etcd.share(other.etcd)
            self.groups[name] = Group(world, etcd, setup, nodes, True)
        self.by_name = {node.name: node for group in self.groups.values() for node in group.nodes}
        for node in self.by_name.values():
            node.others = {
                name: other for name, other in self.by_name.items() if name not in node.peers
            }
        self.clients = MoveClients(self)

    def run(self) -> Outcome:
        """Run to the end or to the first violation."""
        outcome = Outcome(self.world.seed, "", 0, faults=self.planned, elected=True)
        outcome.follow(self.world, lambda: self._run(outcome))
        for group in self.groups.values():
            outcome.counts.update(group.ghost.marks)
        outcome.counts.update(self.clients.counts())
        return outcome

    def _run(self, outcome: Outcome) -> None:
        try:
            for group in self.groups.values():
                group.boot()
                group.keeper.begin()
                self.world.after(0.0, group.etcd.expire)
            for fault in self.planned:
                self.world.at(fault.at, lambda fault=fault: self._strike(fault))  # type: ignore[misc]
            self.clients.begin()
            self.world.run_until(FAULTY_MS, lambda: None)
            for group in self.groups.values():
                group.heal()
            self.clients.heal()
            masters = self._settle()
            outcome.counts = Counter(movechain.final(masters, self.clients.history))
        finally:
            for group in self.groups.values():
                group.stop()
            self.clients.stop()

    # -- faults ------------------------------------------------------------------------------------

    def _strike(self, fault: Fault) -> None:
        if fault.kind == MEMBER:
            self.world.note(f"fault {fault.kind} {fault.level}")
            self.clients.strike(fault.level, fault.lasts)
        elif fault.kind == CUT_GROUPS:
            self._cut_groups(fault)
        elif fault.kind.startswith("etcd_"):
            for group in self.groups.values() if fault.kind != "etcd_revoke" else [self._of(fault)]:
                group.strike(replace(fault, node=group.nodes[0].name))
        else:
            self._of(fault).strike(fault)

    def _of(self, fault: Fault) -> Group:
        return next(group for group in self.groups.values() if fault.node in group.by_name)

    def _cut_groups(self, fault: Fault) -> None:
        """One group's nodes do not reach another's: both ways, or one."""
        left, right = (group.nodes for group in self.groups.values())
        links = {(one.name, two.name) for one in left for two in right}
        if fault.level > 0.3:
            links |= {(two, one) for one, two in links}
        self.world.note(f"fault {fault.kind} {len(links)} {fault.lasts}")
        self._of(fault).ghost.mark("groups_cut")
        self.network.cuts |= links
        self.world.after(fault.lasts, lambda: self.network.cuts.difference_update(links))

    # -- the end -----------------------------------------------------------------------------------

    def _settle(self) -> Mapping[str, Node]:
        """Healed, all that there is to do is done before long; the masters then."""
        self.clients.drain()
        until, why = self.world.now + CONVERGE_MS, ""
        while self.world.now < until:
            self.world.run_until(self.world.now + 100, lambda: None)
            why = self._unfinished()
            if not why:
                break
        else:
            standing = "; ".join(group.standing() for group in self.groups.values())
            raise Violation(f"the moves do not come to an end: {why}; {standing}")
        for group in self.groups.values():
            group.converge()
        return self.masters()

    def masters(self) -> Mapping[str, Node]:
        """The masters of the groups that have one."""
        found = {name: group.keeper.master for name, group in self.groups.items()}
        return {name: node for name, node in found.items() if node is not None}

    def _unfinished(self) -> str:
        masters = self.masters()
        if len(masters) < len(self.groups):
            return f"only {sorted(masters)} have a master"
        try:
            return movechain.unfinished(masters, self.clients.history)
        except Violation as violation:
            return str(violation)  # of a state that need not last


def run(
    seed: int,
    planned: list[Fault] | None = None,
    trace: bool = False,
    elected: bool | None = True,
) -> Outcome:
    """One run. elected: both groups elect their masters, whatever it says."""
    return MoveRun(seed, planned, trace).run()
