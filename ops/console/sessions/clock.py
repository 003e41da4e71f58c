"""The clock by which sessions end."""

import time


def seconds() -> float:
    """Seconds that do not go back, and continue while the machine sleeps, where the system has such
    a clock: who wakes a machine the next day finds no session there.
    """
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    return time.clock_gettime(clock)
