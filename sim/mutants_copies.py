"""Planted bugs of what is known to be confirmed, and of directories that are older copies."""

import random
from typing import Any

from ha import starts
from ha.failover import Failover
from ha.master import Master
from ha.provenance import Provenance
from ha.slave import Slave
from sim import copies
from sim.faults import Fault
from sim.planted import Mutant, Patch
from store.confirmnote import ConfirmNote
from store.messagestore import MessageStore


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

    def claim(self: Any, view: Any, me: Any, keys: Any) -> Any:
        found = original(self, view, me, keys)
        return starts.Claim.UNCLAIMED if found is starts.Claim.OLDER else found

    return [(Provenance, "claim", claim)]


def _never_renewed() -> list[Patch]:
    """An older copy says so, and goes on as the replica that it was."""

    def renew(self: Any, reason: str) -> Any:
        start = self.provenance.start
        self.provenance = Provenance(starts.Start(start.number + 1, start.run))
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


def weather(seed: int) -> list[Fault]:
    """Copies, and little else."""
    chance = random.Random(seed)
    found = copies.plan(chance, 3600.0, often=1.0)
    if chance.random() < 0.5:
        at = round(chance.uniform(400, 3600), 3)
        found.append(Fault(at, "kill", chance.choice("abc"), lasts=200.0, level=chance.random()))
    return sorted(found, key=lambda fault: fault.at)


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
]
