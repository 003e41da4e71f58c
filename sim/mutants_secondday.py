"""Planted bugs of retention: queue offsets, tables and messages once the first records expired."""

from collections.abc import Callable
from functools import partial
from typing import Any

from duolog_server.store.clocks import AgeClock
from duolog_server.store.consumequeue import ConsumeQueue
from duolog_server.store.messagestore import MessageStore
from duolog_server.store.metadatafiles import NO_ENDS
from duolog_server.store.metadatarecovery import MetadataRecovery
from duolog_server.store.recovery import Recovery
from sim.faults import EXPIRES, NODES, Fault
from sim.mutants_services import with_services
from sim.planted import Bugs, Patch, left_out


def _saved_ends_unused() -> list[Patch]:
    """A start looks for the ends of queues in the log and in their files alone."""
    original = Recovery._floors

    def floors(self: Any, noted: Any) -> Any:
        self.saved = NO_ENDS
        return original(self, noted)

    return [(Recovery, "_floors", floors)]


def _ends_untold() -> list[Patch]:
    """A replica that only has the log is not told which queues have nothing left in it."""
    return [(MessageStore, "expired_ends", lambda self: NO_ENDS)]


def _snapshots_expire() -> list[Patch]:
    """A snapshot is not believed once the log has lost its last record."""
    original = MetadataRecovery._mismatch

    def mismatch(self: Any, saved: Any) -> str:
        applied = saved.tables.applied
        gone = applied > 0 and self.records.place(applied - 1) < 0
        return "its last record has expired" if gone else original(self, saved)

    return [(MetadataRecovery, "_mismatch", mismatch)]


def _jumps_believed() -> list[Patch]:
    """Data ages with every jump of the wall clock."""
    return [(AgeClock, "now", lambda self, wall, mono: wall)]


def _longer_log_ignored() -> list[Patch]:
    """Queues that are newer than the log are believed to have all of its records."""
    return [(Recovery, "_of_a_longer_log", lambda self, end: {})]


def second_day(seed: int, way: str = "") -> list[Fault]:
    """A run's usual faults, services, and a second day. way: what happens to each node on it."""
    return [*with_services(seed), Fault(0.0, EXPIRES, NODES[0], way)]


def _after(way: str) -> Callable[[int], list[Fault]]:
    return partial(second_day, way=way)


_bug = Bugs(second_day)

SECOND_DAY = [
    _bug("saved-ends-unused", "offsets begin again", _saved_ends_unused),
    _bug("ends-untold", "offsets begin again on a new disk", _ends_untold, _after("new disk")),
    _bug(
        "starts-unknowing",
        "offsets are guessed",
        left_out(Recovery, "_check_known"),
        _after("unknown"),
    ),
    _bug("snapshots-expire", "tables expire with their records", _snapshots_expire),
    _bug("longer-log-ignored", "queues lack entries", _longer_log_ignored, _after("older log")),
    _bug(
        "noted-minimums-stay",
        "queues hide records that an older log has",
        left_out(ConsumeQueue, "forget_minimum"),
        _after("older log"),
    ),
    _bug("jumps-believed", "a jump of the clock deletes messages", _jumps_believed),
]
