"""Planted bugs of what is known to be confirmed, and of directories that lack some of that."""

import random
from dataclasses import replace
from typing import Any

from duolog_server.ha import starts
from duolog_server.ha.failover import Failover
from duolog_server.ha.identity import LastRun
from duolog_server.ha.knowngroup import KnownGroup
from duolog_server.ha.master import Master
from duolog_server.ha.provenance import Provenance
from duolog_server.ha.slave import Slave
from duolog_server.store.checkpoint import ConfirmNote
from duolog_server.store.messagestore import MessageStore
from sim import copies
from sim.faults import Fault
from sim.planted import Mutant, Patch


def _noted_late() -> list[Patch]:
    """The confirm offset reaches the checkpoint with the thorough queue flush only."""

    def confirm(self: Any, offset: int) -> None:
        self.replicated_offset = offset

    return [(MessageStore, "confirm", confirm)]


def _cut_all_the_same() -> list[Patch]:
    return [(Slave, "_promised", property(lambda self: 0))]


def _copies_believed() -> list[Patch]:
    """The incarnation alone says who a replica is; it travels in a copy."""
    original = Provenance.claim

    def claim(self: Any, group: Any, me: Any) -> Any:
        found = original(self, group, me)
        return starts.Claim.UNCLAIMED if found is starts.Claim.OLDER else found

    return [(Provenance, "claim", claim)]


def _starts_only_counted() -> list[Patch]:
    """A start with a higher number than the registry has follows the one that it has."""

    def against(self: Any, row: Any, marks: Any) -> Any:
        if row is None or row.number < self.number:
            return starts.Claim.UNCLAIMED
        return starts.Claim.CLAIMED if row == self else starts.Claim.OLDER

    return [(starts.Start, "against", against)]


def _claimed_unmarked() -> list[Patch]:
    """A start is claimed while its mark is on the way to the disk, or before."""
    return [(KnownGroup, "is_marked", lambda self, start: True)]


def _never_renewed() -> list[Patch]:
    """An older copy says so, and goes on as the replica that it was."""

    def renew(self: Any, reason: str) -> Any:
        start, group = self.provenance.start, self.group
        self.provenance = Provenance(starts.Start(start.number + 1, start.run))
        row, _ = self.view.start_of(self.me.replica, group.keys)
        marks = (row,) if row is not None else ()
        group.membership = replace(group.membership, marks=marks)
        return []

    return [(Failover, "_renew", renew)]


def _contradiction_ignored() -> list[Patch]:
    return [(Provenance, "may_depose", lambda self, state, me: False)]


def _members_believed() -> list[Patch]:
    """A member of the set that comes back with less counts as before."""
    return [(Master, "_older_copy", lambda self, hello, verdict: None)]


def _note_not_believed() -> list[Patch]:
    """Recovery forgets the note: a process that was killed has promised nothing."""
    original = ConfirmNote.settle

    def settle(self: Any, boot_id: str, whole_end: int, end: int, abnormal: bool) -> None:
        if abnormal:
            self.confirmed = self.durable
        original(self, boot_id, whole_end, end, abnormal)

    return [(ConfirmNote, "settle", settle)]


def _damage_counts() -> list[Patch]:
    """A member of the set stays one while its damaged log is cut, and copied again."""
    return [(Slave, "_counts_still", lambda self: False)]


def weather(seed: int) -> list[Fault]:
    """Copies, and little else."""
    chance = random.Random(seed)
    found = copies.plan(chance, 3600.0, often=1.0)
    if chance.random() < 0.5:
        at = round(chance.uniform(400, 3600), 3)
        found.append(Fault(at, "kill", chance.choice("abc"), lasts=200.0, level=chance.random()))
    return sorted(found, key=lambda fault: fault.at)


def _older_log_counts() -> list[Patch]:
    """A node with an older log beside newer files goes on as the replica that it was."""
    original = LastRun.__init__

    def make(self: Any, **values: Any) -> None:
        original(self, **{**values, "lacks_confirmed": False})

    return [(LastRun, "__init__", make)]


def mixtures(seed: int) -> list[Fault]:
    """Parts of directories that are put back."""
    chance = random.Random(f"{seed}:mixtures")
    return copies.plan(chance, 3600.0, often=1.0, mixed=1.0)


def starts_without_etcd(seed: int) -> list[Fault]:
    """A copy of an earlier run starts several times while etcd is away, and is the first there."""
    chance = random.Random(seed)
    node, other, third = chance.sample("abc", 3)
    taken = chance.uniform(400, 800)
    killed = taken + chance.uniform(20, 300)
    put_back = killed + 100 + chance.uniform(5, 100)
    away = put_back + chance.uniform(10, 200)
    back = away + chance.uniform(1500, 2000)
    found = [
        Fault(taken, "take_copy", node),
        Fault(killed, "kill", node, lasts=50.0),
        Fault(put_back, "put_back", node, lasts=1.0, level=0.9),
        Fault(away, "etcd_outage", node, lasts=back - away),
        *(Fault(back - 150 * k, "kill", node, lasts=20.0) for k in range(1, 6)),
        *(Fault(back - 400, "kill", name, lasts=600.0) for name in (other, third)),
    ]
    return sorted(found, key=lambda fault: fault.at)


def lost_segments(seed: int) -> list[Fault]:
    """A segment is lost, and who leads then has lost what it had noted to be confirmed."""
    chance = random.Random(seed)
    damaged, leads, third = chance.sample("abc", 3)
    at = round(chance.uniform(900, 3000), 3)
    lasts = chance.uniform(20, 300)
    return [
        Fault(at, "power_cut", leads, lasts=lasts),
        Fault(at + 2, "kill", third, lasts=2000.0),
        Fault(at + 4, "lose_segment", damaged, lasts=chance.uniform(300, 900), level=0.999),
    ]


COPIES = [
    Mutant("confirm-noted-late", "a kill forgets what was confirmed", _noted_late, None, weather),
    Mutant("note-not-believed", "a kill forgets what was noted", _note_not_believed, None, weather),
    Mutant(
        "cut-all-the-same", "a slave is cut wherever it is told", _cut_all_the_same, weather=weather
    ),
    Mutant("copies-believed", "a backup is elected", _copies_believed, True, weather),
    Mutant("never-renewed", "an older copy keeps its incarnation", _never_renewed, True, weather),
    Mutant(
        "contradiction-ignored",
        "an older copy leads for ever",
        _contradiction_ignored,
        True,
        weather,
    ),
    Mutant(
        "members-believed", "a member that lost its tail counts", _members_believed, True, weather
    ),
    Mutant(
        "starts-only-counted",
        "a backup counts up without etcd, and is elected",
        _starts_only_counted,
        True,
        starts_without_etcd,
    ),
    Mutant("claimed-unmarked", "a start is claimed unmarked", _claimed_unmarked, True, weather),
    Mutant("older-log-counts", "an older log is elected", _older_log_counts, True, mixtures),
    Mutant(
        "damage-counts",
        "a member that lost a segment counts",
        _damage_counts,
        True,
        lost_segments,
    ),
]
