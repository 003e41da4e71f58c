"""An event loop that looks for what comes next, for a moment, before it sleeps.

Where one message is sent after the other, most of the time of each goes into waking cores that
went to sleep: some 50 µs on each side. Linux does the same for devices and virtual machines (busy
polling, halt polling). Rules: it is done only where the next one is likely to come at once, for a
bounded time, and as long as it pays: every try in vain makes tries rarer, and so does another
program that wants the processor.
"""

import asyncio
import os
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

if sys.platform == "linux":
    import resource

SMALL_BYTES = 2048  # of a request that goes alone: larger ones are batches, which take their time
MISSES_MAX = 8  # then one time in 256 is tried
LOSS_MISSES = 3  # tries in vain that losing the processor to another program counts for
MICROSECONDS_MAX = 10_000
CGROUP = Path("/sys/fs/cgroup")


def thread_losses() -> int:
    """How often this thread lost its processor to another program."""
    if sys.platform != "linux":
        return 0
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw


class BusyPoll:
    """Keeps one event loop awake. All of it is called in that loop."""

    __slots__ = ("_clock", "_losses", "_lost", "_misses", "_polling", "_seconds", "_skip", "_until")

    def __init__(
        self,
        seconds: float,
        clock: Callable[[], float] = perf_counter,
        losses: Callable[[], int] = thread_losses,
    ) -> None:
        """seconds: how long it looks at most; 0: it never does."""
        self._seconds = seconds
        self._clock = clock
        self._losses = losses
        self._lost = 0  # times, so far
        self._until = 0.0  # while something is expected
        self._polling = False
        self._misses = 0  # in a row
        self._skip = 0  # times that are not tried

    @property
    def polling(self) -> bool:
        """Whether the loop is kept awake."""
        return self._polling

    def expect(self) -> None:
        """Something is likely to come in a moment: look for it without sleeping."""
        if not self._seconds:
            return
        if self._skip:
            self._skip -= 1
            return
        self._until = self._clock() + self._seconds
        if not self._polling:
            self._polling = True
            self._lost = self._losses()
            asyncio.get_running_loop().call_soon(self._turn)

    def came(self) -> None:
        """It came."""
        if not self._until:
            return
        self._until = 0.0
        lost, self._lost = self._lost, self._losses()
        if lost == self._lost:
            self._misses = 0
        else:
            self._missed(LOSS_MISSES)

    def _turn(self) -> None:
        """Once in every turn of the loop, which so does not sleep."""
        if self._clock() < self._until:
            asyncio.get_running_loop().call_soon(self._turn)
            return
        self._polling = False
        if self._until:
            self._until = 0.0
            self._missed(1)

    def _missed(self, times: int) -> None:
        self._misses = min(self._misses + times, MISSES_MAX)
        self._skip = (1 << self._misses) - 1


def busy_poll(microseconds: int) -> BusyPoll:
    """One that looks for so long, unless the process has no core to spare."""
    return BusyPoll(microseconds / 1e6 if microseconds and has_spare_core() else 0.0)


def has_spare_core(root: Path = CGROUP) -> bool:
    """Whether this process may keep one core busy, and still has another one."""
    if sys.platform != "linux" or len(os.sched_getaffinity(0)) < 2:
        return False
    quota = _container_cores(root)
    return quota is None or quota >= 2


def _container_cores(root: Path) -> float | None:
    """The processors' time that a container may use, in cores; None for no limit."""
    try:
        quota, period = (root / "cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return None


__all__ = ["MICROSECONDS_MAX", "SMALL_BYTES", "BusyPoll", "busy_poll", "has_spare_core"]
