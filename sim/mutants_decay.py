"""Planted bugs of recovery from what a disk has lost: derived files, and segments of the log."""

import random
from typing import Any

from duolog_server.ha import epochs
from duolog_server.store import cuts, recovery
from duolog_server.store.commitlog import CommitLog
from duolog_server.store.mappedfile import MappedFile
from duolog_server.store.recovery import Recovery
from sim import lostsegments
from sim.faults import DECAY_OFTEN, INDEX_ON, NODES, Fault
from sim.planted import Mutant, Patch


def _queues_trusted() -> list[Patch]:
    """Queue files are believed as they are: neither the note nor the records that follow count."""
    return [
        (recovery, "doubtful", lambda *found: {}),
        (Recovery, "_lacking", lambda *found: set()),
    ]


def _not_rebuilt() -> list[Patch]:
    """Queues that are doubted are dropped, and nobody makes them anew."""
    return [(Recovery, "_rebuild", lambda *found: None)]


def _hole_unnamed() -> list[Patch]:
    """A missing segment is passed over in silence."""
    return [(CommitLog, "note_holes", lambda self: [])]


def _floors_kept() -> list[Patch]:
    """Places that were kept free for lost records stay taken when these come again."""
    return [(cuts, "drop_floors", lambda *found: None)]


def _barriers_lost() -> list[Patch]:
    """Epochs whose barriers are lost are forgotten."""
    return [(epochs, "_fits", lambda *found: False)]


def _never_repaired() -> list[Patch]:
    """A replica claims what lies behind a hole in its log."""
    end: Any = property(lambda self: self.wrote_offset)
    return [(CommitLog, "sound_end", end)]


def _into_holes() -> list[Patch]:
    """Records are stored in a segment that was found without asking for room."""
    return [(MappedFile, "room", property(lambda self: self.size))]


def decays(seed: int) -> list[Fault]:
    """Restarts, and at most of them a derived file that is damaged."""
    chance = random.Random(f"{seed}:decays")
    found = [
        Fault(round(chance.uniform(300, 3900), 3), "kill", node, lasts=30.0, level=0.9)
        for node in NODES
        for _ in range(3)
    ]
    found += [Fault(0.0, DECAY_OFTEN, NODES[0]), Fault(0.0, INDEX_ON, NODES[0])]
    return sorted(found, key=lambda fault: fault.at)


def lost_segments(seed: int) -> list[Fault]:
    """Segments that are lost, and a kill or a planned switch before."""
    chance = random.Random(f"{seed}:segments")
    found = lostsegments.plan(chance, 3600.0, often=1.0)
    for kind in ("kill", "switch_master"):
        at = round(chance.uniform(100, 2000), 3)
        found.append(Fault(at, kind, chance.choice(NODES), lasts=100.0, level=chance.random()))
    return sorted(found, key=lambda fault: fault.at)


DECAY = [
    Mutant("queues-trusted", "lost queue files are not missed", _queues_trusted, None, decays),
    Mutant("queues-not-rebuilt", "doubted queues stay away", _not_rebuilt, None, decays),
    Mutant("hole-unnamed", "a lost segment is passed over", _hole_unnamed, None, lost_segments),
    Mutant("floors-kept", "repaired messages are not served", _floors_kept, None, lost_segments),
    Mutant("barriers-lost", "a damaged slave is refused", _barriers_lost, None, lost_segments),
    Mutant("into-holes", "a full disk ends the process", _into_holes, None, decays),
    Mutant("never-repaired", "a hole is never filled", _never_repaired, None, lost_segments),
]
