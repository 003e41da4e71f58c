"""Planted bugs of clocks: what measures time by the wall clock, which jumps."""

import random
from typing import Any

from duolog_server.store.puts import Puts
from sim.faults import NODES, Fault
from sim.node import Node
from sim.planted import Mutant, Patch


def jumps(seed: int) -> list[Fault]:
    """The wall clocks of all nodes jump by seconds or an hour, both ways."""
    chance = random.Random(f"{seed}:jumps")
    return sorted(
        (
            Fault(round(chance.uniform(100, 3500), 3), "clock_step", node, level=chance.random())
            for node in NODES
            for _ in range(2)
        ),
        key=lambda fault: fault.at,
    )


def _wall_clock_flush() -> list[Patch]:
    """A clock that was set back by an hour stops every flush for that long."""
    return [(Node, "schedule_ms", Node.wall)]


def _wall_clock_leases() -> list[Patch]:
    """Deadlines of masters, leases and connections are told by the wall clock."""
    return [(Node, "mono", Node.wall), (Node, "schedule_ms", Node.mono)]


def _store_times_go_back() -> list[Patch]:
    """A record's store time may be before that of the record that it follows."""
    original = Puts._append

    def append(self: Any, batch: Any, first: int, known: Any, wall_ms: Any) -> Any:
        self._log.last_store_time = 0
        return original(self, batch, first, known, wall_ms)

    return [(Puts, "_append", append), (Node, "store_ms", Node.wall)]


CLOCKS = [
    Mutant("wall-clock-flush", "a jump stops the flush", _wall_clock_flush, weather=jumps),
    Mutant("wall-clock-leases", "a jump ends leases", _wall_clock_leases, True, jumps),
    Mutant("store-times-back", "store times go back", _store_times_go_back, weather=jumps),
]
