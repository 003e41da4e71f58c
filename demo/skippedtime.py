"""Clocks of a process that can be put forward, for tests of what takes hours.

The clocks are those of Python's `time` module, and by that of asyncio's event loops: timers are due
as if the time had passed. Clocks of the system, of gRPC's core and of log lines are not changed.
"""

import mmap
import time
from collections.abc import Callable
from pathlib import Path


def follow(file: Path) -> None:
    """Add to the clocks what the file has, 8 bytes with nanoseconds, and have later in it."""
    with file.open("rb") as opened:
        shared = mmap.mmap(opened.fileno(), 8, access=mmap.ACCESS_READ)
    ahead = memoryview(shared).cast("q")
    wall_ns, mono_ns, wall, mono = time.time_ns, time.monotonic_ns, time.time, time.monotonic

    clocks: dict[str, Callable[[], float]] = {
        "time_ns": lambda: wall_ns() + ahead[0],
        "monotonic_ns": lambda: mono_ns() + ahead[0],
        "time": lambda: wall() + ahead[0] / 1e9,
        "monotonic": lambda: mono() + ahead[0] / 1e9,
    }
    for name, clock in clocks.items():
        setattr(time, name, clock)
