"""Planted bugs of elections: those of the protocol's model, and some that real systems had."""

import random
from dataclasses import replace
from typing import Any

from duolog_server.ha import identity, master, slave, succession
from duolog_server.ha.epochs import NO_EPOCH
from duolog_server.ha.failover import Failover, Role
from duolog_server.ha.groupchanges import GroupChanges
from duolog_server.ha.knowngroup import KnownGroup
from duolog_server.ha.localreplica import unfit, was_never_synced
from duolog_server.ha.mandate import Mandate, ReplicaProgress
from duolog_server.ha.masterevents import Instructed
from duolog_server.ha.syncstate import Seen, SyncState
from duolog_server.store.clocks import MonoMs
from duolog_server.store.dispatch import DispatchTargets
from duolog_server.store.messagestore import MessageStore
from sim import agent
from sim.faults import NODES, Fault, unreachable
from sim.planted import Mutant, Patch

_MASTER, _SLAVE = master.Master, slave.Slave


def _any_member() -> list[Patch]:
    """push2SlaveMaxOffset in the place of the whole set: some slave has it."""

    def held(self: Any, own: int, progress: Any) -> int:
        fastest = max((reached.held for reached in progress.values()), default=own)
        return int(min(own, fastest))

    return [(Mandate, "held", held)]


def _members_only_connected() -> list[Patch]:
    """A member that is not connected does not count (rmq#6662)."""

    def held(self: Any, own: int, progress: Any) -> int:
        there = [progress[r].held for r in self.required if r in progress]
        return int(min([own, *there]))

    return [(Mandate, "held", held)]


def _eager_shrink() -> list[Patch]:
    """A smaller set is used before the registry has it."""
    original = SyncState.propose

    def propose(self: Any, members: Any) -> None:
        original(self, members)
        self.members = members
        self._proposed.clear()

    return [(SyncState, "propose", propose)]


def _no_union() -> list[Patch]:
    """A growing set is not required before its transaction is answered (rmq#5663)."""
    return [(SyncState, "required", property(lambda self: self.members))]


def _smaller_set_unused() -> list[Patch]:
    """What a master that is told of a smaller set could confirm waits for an acknowledgement."""
    original = _MASTER.step

    def step(self: Any, event: Any, now: int) -> Any:
        if isinstance(event, Instructed):
            self.mandate = event.mandate
            return []
        return original(self, event, MonoMs(now))

    return [(_MASTER, "step", step)]


def _settled_by_reading() -> list[Patch]:
    """A transaction without an answer is taken for lost when a read does not show it."""

    def observe(self: Any, members: Any, revision: int, opened: bool = True) -> None:
        self.members, self.revision, self.opened = members, revision, opened
        self._proposed = {}

    def uncertain(self: Any, now: int) -> Any:
        quiet[self.me.replica] = now + 400  # it backs off before it asks again
        return original(self, MonoMs(now))

    def keep(self: Any, now: int) -> Any:
        waits = self._is_mine() and now < quiet.get(self.me.replica, 0)
        return [] if waits else keep_leading(self, MonoMs(now))

    quiet: dict[Any, int] = {}
    original, keep_leading = Failover._uncertain, Failover._keep_leading
    return [
        (SyncState, "observe", observe),
        (Failover, "_uncertain", uncertain),
        (Failover, "_keep_leading", keep),
    ]


def _own_word() -> list[Patch]:
    """A master goes by its own settings, whatever its group promises."""
    return [(Failover, "guarantee", property(lambda self: self._own))]


def _blind_members() -> list[Patch]:
    """The set is written without a look at who is the master by now."""
    return [(GroupChanges, "_mastership", lambda self: ())]


def _no_incarnations() -> list[Patch]:
    """A disk that lost its page cache passes for the same replica (NATS, Kafka before KIP-966)."""

    def settle(disk: Any, fresh: Any, last: Any) -> Any:
        return original(disk, fresh, replace(last, abnormal=False))

    original = identity.settle
    return [(identity, "settle", settle)]


def _names_only() -> list[Patch]:
    """Whoever bears the name of a member is one, whatever became of its disk (KAFKA-14139)."""
    original = Failover._try_election

    def attempt(self: Any, now: int) -> Any:
        state = self.view.state
        if state is not None:
            me = self.me.replica
            members = frozenset(me if r.node == me.node else r for r in state.sync_state_set)
            seen = replace(state, sync_state_set=members)
            self.group.view = replace(self.view, state=seen)
        return original(self, MonoMs(now))

    return [(Failover, "_try_election", attempt)]


def _cut_to_confirmed() -> list[Patch]:
    """A slave cuts to its own confirm offset when it follows another master (KIP-101)."""
    original = _SLAVE._say_hello

    def hello(self: Any) -> Any:
        confirmed = self.store.known_confirmed
        inside = self.store.log.min_offset < confirmed < self.end
        if self._cuts == 0 and inside and self.store.log.is_boundary(confirmed):
            self._cut(confirmed)
        return original(self)

    return [(_SLAVE, "_say_hello", hello)]


def _elect_outsiders() -> list[Patch]:
    """Any replica may be elected."""
    original = Failover._try_election

    def attempt(self: Any, now: int) -> Any:
        state = self.view.state
        if state is not None:
            members = state.sync_state_set | {self.me.replica}
            seen = replace(state, sync_state_set=members)
            self.group.view = replace(self.view, state=seen)
        return original(self, MonoMs(now))

    return [(Failover, "_try_election", attempt)]


def _no_fencing() -> list[Patch]:
    """Replicas take log bytes of masters that are over."""

    def unpromised(self: Any) -> Any:
        return replace(hello(self), promised=NO_EPOCH)

    def answered(self: Any, frame: Any, now: int) -> Any:
        self.identity = replace(self.identity, promised_epoch=0)
        return original(self, frame, MonoMs(now))

    def keep_following(self: Any, now: int) -> Any:
        state, held = self.view.state, self._followed
        if state is not None and held is not None and held[1] == state.epoch - 1:
            return []
        return find(self, MonoMs(now))

    hello, original, find = _SLAVE.hello, _SLAVE._answered, Failover._find_a_master
    return [
        (_SLAVE, "hello", unpromised),
        (_SLAVE, "_answered", answered),
        (Failover, "_find_a_master", keep_following),
    ]


def _stale_acknowledgements() -> list[Patch]:
    """What a slave held in an earlier epoch of this master still counts."""
    seen: dict[str, dict[Any, int]] = {}
    original = _MASTER.progress

    def progress(self: Any, now: int) -> Any:
        found = original(self, MonoMs(now))
        known = seen.setdefault(self.me.node, {})
        for replica, reached in found.items():
            known[replica] = max(known.get(replica, 0), reached.held)
        for replica, held in known.items():
            lag = found[replica].lag_ms if replica in found else 0
            found[replica] = ReplicaProgress(held, lag)
        return found

    return [(_MASTER, "progress", progress)]


def _no_epoch_start() -> list[Patch]:
    """A replica comes in with what is confirmed, though this epoch began further on."""
    original = SyncState.wanted

    def wanted(self: Any, seen: Seen, now: int) -> Any:
        return original(self, replace(seen, floor=0), MonoMs(now))

    return [(SyncState, "wanted", wanted)]


def _no_deadline() -> list[Patch]:
    """A master trusts its lease for as long as nobody takes it away."""
    return [(_MASTER, "is_over", lambda self, now: False)]


def _registry_believed() -> list[Patch]:
    """A registry that was restored from an old backup is taken at its word."""
    return [(KnownGroup, "distrust", lambda self: "")]


def _shrinks_to_one() -> list[Patch]:
    """The set shrinks to the master alone, which then answers alone."""
    original = SyncState.wanted

    def wanted(self: Any, seen: Seen, now: int) -> Any:
        return original(self, replace(seen, needed=1), MonoMs(now))

    return [
        (SyncState, "wanted", wanted),
        (_MASTER, "_set_too_small", lambda self, mandate: ""),
    ]


def _sequences_forgotten() -> list[Patch]:
    """A slave does not learn the sequences in its log: as a master it stores a repeat again."""

    def targets(self: Any) -> Any:
        return DispatchTargets(self.queues, None)

    return [(MessageStore, "_replica_targets", targets)]


def _offsets_of_readers() -> list[Patch]:
    """A promoted slave counts queue offsets from what its readers saw (rmq#7689)."""

    def change(self: Any, role: Any) -> None:
        self.recover_topic_queue_table()
        self.role = role

    return [(MessageStore, "change_role", change)]


def _lead_twice() -> list[Patch]:
    """A master goes on with its epoch after it had stopped."""

    def step_down(self: Any, reason: str) -> Any:
        self.led_epoch = 0
        return original(self, reason)

    def abandon(self: Any, reason: str, dropped: bool = False) -> Any:
        if self.role is Role.LEADING:
            return self._step_down(reason)
        return give_up(self, reason, dropped)

    original, give_up = Failover._step_down, Failover._abandon_lease
    return [(Failover, "_step_down", step_down), (Failover, "_abandon_lease", abandon)]


def _torn_elected() -> list[Patch]:
    """A hole above what a node knows to be confirmed is no reason against it."""

    def lenient(store: MessageStore) -> str:
        if all(
            found.start >= store.known_confirmed and was_never_synced(store, found)
            for found in store.log.corrupt_ranges
        ):
            return store.fence_reason or ", ".join(store.flags.names())
        return unfit(store)

    return [(agent, "unfit", lenient)]


def failing_syncs(seed: int) -> list[Fault]:
    """Disks that fail a sync now and then, so that their node starts again without its tail."""
    chance = random.Random(f"{seed}:syncs")
    found: list[Fault] = []
    at = chance.uniform(400, 700)
    while at < 3500:
        found.append(Fault(at, "fail_sync", chance.choice(NODES), lasts=20.0))
        at += chance.uniform(200, 500)
    return found


def _unreachable_successors() -> list[Patch]:
    """A master hands over to a node that others cannot follow."""
    return [(succession, "_lost", lambda view, me, target: {})]


def _unreachable_leads_on() -> list[Patch]:
    """A master that nobody can follow stays the master."""
    return [(succession, "better_placed", lambda *found: "")]


def wrong_addresses(seed: int) -> list[Fault]:
    """A node advertises an address of nobody; nodes die, and an operator switches masters."""
    chance = random.Random(f"{seed}:addresses")
    found = unreachable(chance, 3600.0, often=1.0)
    kinds = ("switch_master", "switch_master", "kill")
    found += [
        Fault(
            round(chance.uniform(600, 3600), 3),
            chance.choice(kinds),
            chance.choice(NODES),
            lasts=round(chance.uniform(50, 1500), 3),
            level=round(chance.random(), 3),
        )
        for _ in range(chance.randint(2, 6))
    ]
    return sorted(found, key=lambda fault: fault.at)


def switches_in_bad_weather(seed: int) -> list[Fault]:
    """Planned switches, most of them while etcd is slow or away."""
    chance = random.Random(seed)
    found: list[Fault] = []
    at = 400.0
    while at < 3800:
        found.append(Fault(at, "switch_master", "a", level=chance.random()))
        if chance.random() < 0.7:
            kind = chance.choice(("etcd_slow", "etcd_outage"))
            began = at - 20 + chance.uniform(0, 30)
            found.append(Fault(began, kind, "a", lasts=chance.uniform(100, 700)))
        at += chance.uniform(300, 700)
    return found


def each_alone(seed: int) -> list[Fault]:
    """All nodes start again; then each of them in turn is the only one for a while."""
    chance = random.Random(f"{seed}:alone")
    found = [Fault(500.0 + 300 * k, "kill", node, lasts=30.0) for k, node in enumerate(NODES)]
    for k in range(6):
        left = NODES[k % len(NODES)]
        at = 1600.0 + 400 * k
        found.append(Fault(at, "switch_master", left, level=chance.random()))
        found += [Fault(at + 120, "kill", node, lasts=200.0) for node in NODES if node != left]
    return found


def slow_etcd_and_short_cuts(seed: int) -> list[Fault]:
    """Changes of the set that are made long after they were sent, while slaves come and go."""
    chance = random.Random(seed)
    found = [Fault(300.0, "etcd_slow", "a", lasts=3400.0)]
    for k in range(20):
        node, other = chance.sample(NODES, 2)
        kind = chance.choice(("cut_link", "pause", "reset_streams"))
        lasts = round(chance.uniform(60, 500), 1)
        at = round(300 + 160 * k + chance.uniform(0, 100), 1)
        found.append(Fault(at, kind, node, other, lasts, 0.3))
    return found


ELECTION = [
    Mutant("any-member", "one replica of the set is enough", _any_member, True),
    Mutant("connected-only", "absent members do not count", _members_only_connected, True),
    Mutant("eager-shrink", "a smaller set is used at once", _eager_shrink, True),
    Mutant("smaller-set-unused", "a smaller set confirms nothing", _smaller_set_unused, True),
    Mutant("no-union", "a growing set is not waited for", _no_union, True),
    Mutant(
        "settled-by-reading",
        "no answer is taken for no",
        _settled_by_reading,
        True,
        slow_etcd_and_short_cuts,
    ),
    Mutant("blind-members", "the set is written unchecked", _blind_members, True),
    Mutant("no-incarnations", "a lossy disk is the same replica", _no_incarnations, True),
    Mutant("names-only", "a name is enough to be elected", _names_only, True),
    Mutant("cut-to-confirmed", "a slave cuts what is not confirmed", _cut_to_confirmed, True),
    Mutant("outsiders-elected", "any replica is elected", _elect_outsiders, True),
    Mutant("no-fencing", "old masters are obeyed", _no_fencing, True),
    Mutant("stale-acks", "acknowledgements outlive an epoch", _stale_acknowledgements, True),
    Mutant("no-epoch-start", "a replica comes in too early", _no_epoch_start, True),
    Mutant("no-deadline", "a lease is trusted for ever", _no_deadline, True),
    Mutant(
        "guarantee-of-the-node",
        "a weak node lowers the group's promise",
        _own_word,
        True,
        each_alone,
    ),
    Mutant(
        "unreachable-successors",
        "a master hands over to a node that nobody can follow",
        _unreachable_successors,
        True,
        wrong_addresses,
    ),
    Mutant(
        "unreachable-leads-on",
        "a master that nobody can follow stays",
        _unreachable_leads_on,
        True,
        wrong_addresses,
    ),
    Mutant("registry-believed", "an old backup is believed", _registry_believed, True),
    Mutant("shrinks-to-one", "the set shrinks to the master", _shrinks_to_one, True),
    Mutant("sequences-forgotten", "a new master stores repeats", _sequences_forgotten, True),
    Mutant("offsets-of-readers", "a new master gives offsets twice", _offsets_of_readers, True),
    Mutant("torn-elected", "a damaged log leads", _torn_elected, True, failing_syncs),
    Mutant("leads-twice", "an epoch is led again", _lead_twice, True, switches_in_bad_weather),
]
