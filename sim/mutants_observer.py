"""Planted bugs that an observer sees at once who looks at the bytes, and at what is on its way."""

import random
from dataclasses import replace
from typing import Any

from duolog_server.ha import identity, master, membership, slave
from duolog_server.ha.epochs import Epoch
from duolog_server.ha.failover import Failover
from duolog_server.ha.groupchanges import GroupChanges
from duolog_server.ha.groupstate import Replica
from duolog_server.ha.knowngroup import KnownGroup
from duolog_server.ha.membership import LINE_BYTES, LINES, PATH, Membership
from duolog_server.ha.progress import ConnectionState
from duolog_server.ha.registry import Put
from duolog_server.ha.slaveevents import Adopt
from duolog_server.ha.syncstate import SyncState
from duolog_server.store.clocks import MonoMs, WallMs
from duolog_server.store.dispatch import DispatchTargets
from duolog_server.store.messagestore import MessageStore
from duolog_server.store.recovery import Recovery
from sim.faults import INDEX_ON, NODES, Fault
from sim.planted import Mutant, Patch

_MASTER, _SLAVE = master.Master, slave.Slave


def _slave_shows_all() -> list[Patch]:
    """A slave's readers see what it holds, not what is confirmed."""
    original = _SLAVE._confirm

    def confirm(self: Any, confirmed: int) -> Any:
        return original(self, max(confirmed, self.end))

    return [(_SLAVE, "_confirm", confirm)]


def _confirm_unchecked() -> list[Patch]:
    """What is written down as confirmed is not what readers may see."""

    def note(self: Any) -> None:
        self.checkpoint.confirm_phy_offset = max(
            self.checkpoint.confirm_phy_offset, self.flushed_offset
        )

    return [(MessageStore, "note_confirmed", note)]


def _end_is_start() -> list[Patch]:
    """A put says that it ends where it begins: it is answered before anybody has it."""
    original = MessageStore.put

    def put(self: Any, batch: Any, now: WallMs) -> Any:
        result = original(self, batch, now)
        return replace(result, end_offset=result.physical_offset) if result.count else result

    return [(MessageStore, "put", put)]


def _wiped_believed() -> list[Patch]:
    """A registry without the group is taken for a new one."""
    original = KnownGroup.distrust

    def distrust(self: Any) -> str:
        if self.view.state is None:
            self.membership = Membership(starts=self.membership.starts)
        return original(self)

    return [(KnownGroup, "distrust", distrust)]


def _begun_again() -> list[Patch]:
    """A first node whose disk is empty begins an opened group again."""

    def may(self: Any, state: Any) -> bool:
        mine = state.master.node == self.me.replica.node
        return mine and self.me.replica not in state.sync_state_set and self._facts.log_empty()

    return [(Failover, "_may_begin_again", may)]


def _same_replica() -> list[Patch]:
    """Who comes back with an empty disk counts as the member it was."""
    original = _MASTER.progress

    def progress(self: Any, now: int) -> Any:
        found = original(self, MonoMs(now))
        assert self.mandate is not None, "asked of elected masters"
        members = {member.node: member for member in self.mandate.members}
        return {
            Replica(r.node, members.get(r.node, r).incarnation): reached
            for r, reached in found.items()
        }

    return [(_MASTER, "progress", progress)]


def _slave_unindexed() -> list[Patch]:
    """A slave does not index what it copies: as a master it finds nothing by key."""

    def targets(self: Any) -> Any:
        return DispatchTargets(self.queues, None, self.idempotence)

    return [(MessageStore, "_replica_targets", targets)]


def _nothing_adopted() -> list[Patch]:
    """A slave keeps its own tables when it begins to follow."""
    original = _SLAVE._welcome

    def welcome(self: Any, frame: Any, now: int) -> Any:
        return [
            effect for effect in original(self, frame, MonoMs(now)) if not isinstance(effect, Adopt)
        ]

    return [(_SLAVE, "_welcome", welcome)]


def _membership_unnamed() -> list[Patch]:
    """The name of the membership file is not made durable."""
    original = membership.save

    def save(disk: Any, found: Membership) -> None:
        if membership._newest(disk) is not None:
            original(disk, found)
            return
        line = membership._Line(0, found).to_bytes()
        assert len(line) == LINE_BYTES, "a line is a sector"
        disk.write(PATH + ".tmp", line * LINES)
        disk.rename(PATH + ".tmp", PATH)

    return [(membership, "save", save)]


def _decides_unnoted() -> list[Patch]:
    """What follows from a state of the group is done while it is being noted."""
    original = KnownGroup._remember

    def remember(self: Any) -> Any:
        effects = original(self)
        self.noting = False
        return effects

    return [(KnownGroup, "_remember", remember)]


def _membership_unsaved() -> list[Patch]:
    """What was seen of the group is kept in memory only."""
    return [(membership, "save", lambda disk, found: None)]


def _connected_counts() -> list[Patch]:
    """A slave that is merely connected counts as one that holds something."""

    def in_sync(self: Any) -> int:
        return 1 + sum(s.state is not ConnectionState.SUSPEND for s in self.sessions.values())

    return [(_MASTER, "in_sync", in_sync)]


def _state_unchecked() -> list[Patch]:
    """A change of the set checks the lock, and not the state that it builds on."""
    original = GroupChanges._mastership

    def mine(self: Any) -> Any:
        return original(self)[1:]

    return [(GroupChanges, "_mastership", mine)]


def _second_proposal() -> list[Patch]:
    """A second change on one revision makes the first one forgotten."""

    def propose(self: Any, members: Any) -> None:
        self._proposed[self.revision] = members

    return [(SyncState, "propose", propose)]


def _full_disks_and_kills(seed: int) -> list[Fault]:
    """Masters die while the next ones' slaves have no room for a barrier."""
    chance = random.Random(seed)
    found = []
    for k in range(6):
        at = 300.0 + 600 * k
        node, other = chance.sample(NODES, 2)
        found.append(Fault(at, "full_disk", node, other, 900.0, chance.random()))
        at += chance.uniform(10, 200)
        found.append(Fault(at, "kill", other, node, chance.uniform(50, 300), 0.5))
    return sorted(found, key=lambda fault: fault.at)


def _full_disks_at_switches(seed: int) -> list[Fault]:
    """Nodes have no room from a switch on, until after somebody was killed; there is an index."""
    chance = random.Random(f"{seed}:full")
    found = [Fault(0.0, INDEX_ON, NODES[0])]
    at = chance.uniform(400, 700)
    while at < 3300:
        full, lasts = at + chance.uniform(5, 65), chance.uniform(150, 600)
        found.append(Fault(at, "switch_master", NODES[0], level=chance.random()))
        found += [
            Fault(full, "full_disk", node, lasts=lasts) for node in NODES if chance.random() < 0.5
        ]
        killed = full + lasts * chance.uniform(0.2, 0.7)
        found.append(Fault(killed, "kill", chance.choice(NODES), lasts=20.0, level=0.9))
        at += chance.uniform(600, 900)
    return sorted(found, key=lambda fault: fault.at)


def _full_masters(seed: int) -> list[Fault]:
    """Two of three nodes have no room, and one of them leads for a while."""
    chance = random.Random(f"{seed}:masters")
    full = chance.sample(NODES, 2)
    return [Fault(600.0, "full_disk", node, lasts=3300.0, level=0.5) for node in full]


def _full_leads_on() -> list[Patch]:
    """A master keeps the lead though its disk is full, whoever has room."""
    return [(Failover, "relief", lambda self, now_ms: "")]


def _barriers_overlooked() -> list[Patch]:
    """A start on a full disk looks for masterships among the entries of queues only."""
    return [(MessageStore, "not_dispatched", lambda *_: [])]


def _epoch_before_barrier() -> list[Patch]:
    """A slave notes an epoch before it has stored its barrier."""
    original = _SLAVE._apply

    def apply(self: Any, start: int, data: Any, many: bool) -> int:
        found: list[Any] = []
        self._records.find(start, data, lambda rows: found.extend(self._barriers(data, rows)))
        self._note(found)
        return original(self, start, data, many)

    return [(_SLAVE, "_apply", apply)]


def _late_registration() -> list[Patch]:
    """A registration is bound to the lease before this one."""
    original = Failover._send

    def send(self: Any, kind: Any, transaction: Any, **how: Any) -> Any:
        changes = tuple(
            replace(change, lease=max(1, change.lease - 3))
            if kind.name == "REGISTER" and isinstance(change, Put)
            else change
            for change in transaction.changes
        )
        return original(self, kind, replace(transaction, changes=changes), **how)

    return [(Failover, "_send", send)]


def _promise_ignored() -> list[Patch]:
    """A node follows the registry's master, and does not promise its epoch."""
    return [(_SLAVE, "promise", lambda self, epoch: None)]


def _promise_unwritten() -> list[Patch]:
    """A promise is kept in memory, until the next power cut."""

    def promise(disk: Any, who: identity.Identity, epoch: Epoch) -> identity.Identity:
        return replace(who, promised_epoch=max(epoch, who.promised_epoch))

    return [(identity, "promise", promise)]


def _recovered_unsynced() -> list[Patch]:
    """Recovery takes what it finds in the page cache for synced."""
    return [(Recovery, "_sync", lambda self, start: None)]


def lost_disks(seed: int) -> list[Fault]:
    """Kills and lost disks, one node after the other."""
    return [
        Fault(
            500.0 + 900.0 * k,
            ("kill", "lose_disk")[k % 2],
            NODES[(seed + k) % 3],
            lasts=150.0 + 40 * (seed % 7),
            level=0.5,
        )
        for k in range(4)
    ]


def emptied_master(seed: int) -> list[Fault]:
    """A node whose disk is lost, while it alone reaches the registry."""
    lost, *others = NODES[seed % 3 :] + NODES[: seed % 3]
    cuts = [Fault(880.0, "cut_etcd", name, lasts=2000.0, level=0.1) for name in others]
    return [*cuts, Fault(900.0, "lose_disk", lost, lasts=100.0)]


def kills(seed: int) -> list[Fault]:
    """Processes that end while their page caches hold what no sync has reached."""
    return [Fault(500.0 + 333 * k, "kill", NODES[(seed + k) % 3], lasts=60.0) for k in range(6)]


def slow_etcd_and_resets(seed: int) -> list[Fault]:
    """Changes of the set that are made late, while connections break and come back."""
    chance = random.Random(seed)
    found = [Fault(250.0, "etcd_slow", "a", lasts=3400.0)]
    for k in range(60):
        node, other = chance.sample(NODES, 2)
        kind = "reset_streams" if k % 4 else "kill"
        lasts = round(chance.uniform(10, 60), 1)
        found.append(
            Fault(round(300 + 55 * k + chance.uniform(0, 30), 1), kind, node, other, lasts)
        )
    return found


def keyed(seed: int) -> list[Fault]:
    """Messages with keys, and masters that change."""
    chance = random.Random(seed)
    found = [Fault(0.0, INDEX_ON, "a")]
    for k in range(8):
        node, other = chance.sample(NODES, 2)
        kind = chance.choice(("kill", "switch_master", "cut_link", "cut_one_way"))
        lasts = round(chance.uniform(50, 900), 1)
        found.append(Fault(300.0 + 400 * k, kind, node, other, lasts, round(chance.random(), 2)))
    return found


def wiped_registry(seed: int) -> list[Fault]:
    """A registry that loses everything, while nodes come and go."""
    return [
        Fault(900.0, "etcd_wipe", "a", lasts=300.0 + 50 * (seed % 9), level=(seed % 10) / 10),
        Fault(700.0 + 30 * (seed % 20), "kill", NODES[seed % 3], lasts=50.0, level=0.9),
        Fault(2200.0, "etcd_wipe", "a", lasts=700.0, level=(seed % 7) / 7),
    ]


OBSERVER = [
    Mutant("slave-shows-all", "a slave's readers see what it holds", _slave_shows_all),
    Mutant("confirm-unchecked", "too much is written down as confirmed", _confirm_unchecked),
    Mutant("end-is-start", "a put names the wrong end", _end_is_start),
    Mutant(
        "wiped-believed", "an empty registry is believed", _wiped_believed, True, wiped_registry
    ),
    Mutant("begun-again", "an opened group is begun again", _begun_again, True, emptied_master),
    Mutant("same-replica", "an empty disk is the same replica", _same_replica, True, lost_disks),
    Mutant("slave-unindexed", "a slave keeps no index", _slave_unindexed, None, keyed),
    Mutant("nothing-adopted", "a slave keeps its own tables", _nothing_adopted),
    Mutant("membership-unnamed", "a file without a durable name", _membership_unnamed, True),
    Mutant("membership-unsaved", "the group is known in memory only", _membership_unsaved, True),
    Mutant("decides-unnoted", "a state is acted on before it is noted", _decides_unnoted, True),
    Mutant("connected-counts", "a connection is taken for a replica", _connected_counts, False),
    Mutant("state-unchecked", "the state is written unseen", _state_unchecked, True),
    Mutant(
        "second-proposal",
        "a second change replaces the first",
        _second_proposal,
        True,
        slow_etcd_and_resets,
    ),
    Mutant(
        "epoch-first",
        "an epoch is noted before its barrier",
        _epoch_before_barrier,
        elected=True,
        weather=_full_disks_and_kills,
    ),
    Mutant(
        "barriers-overlooked",
        "a mastership is unknown until it is dispatched",
        _barriers_overlooked,
        True,
        _full_disks_at_switches,
    ),
    Mutant("full-leads-on", "all puts are refused", _full_leads_on, True, _full_masters),
    Mutant("late-registration", "a registration under an older lease", _late_registration, True),
    Mutant("promise-ignored", "an epoch is followed and not promised", _promise_ignored, True),
    Mutant("promise-unwritten", "a promise is not written down", _promise_unwritten),
    Mutant(
        "recovered-unsynced", "a page cache is taken for a disk", _recovered_unsynced, True, kills
    ),
]
