"""An event loop that looks for what comes next, for a moment, before it sleeps.

Where one message is sent after the other, most of the time of each goes into waking cores that
went to sleep: some 50 µs on each side. Linux does the same for devices and virtual machines (busy
polling, halt polling). Rules: it is done only where the next one is likely to come at once, for a
bounded time, and as long as it pays: every try in vain makes tries rarer, and so does another
program that wants the processor.
"""

import asyncio
import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter

if sys.platform == "linux":
    import resource

SMALL_BYTES = 2048  # of a request that goes alone: larger ones are batches, which take their time
MISSES_MAX = 8  # then one time in 256 is tried
LOSS_MISSES = 3  # tries in vain that losing the processor to another program counts for
MICROSECONDS_MAX = 10_000
GROUPS, OWN_GROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
_VERSION_1 = ("cpu.cfs_quota_us", "cpu.cfs_period_us")


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


def has_spare_core(groups: Path = GROUPS, own: Path = OWN_GROUPS) -> bool:
    """Whether this process may keep one core busy, and still has another one.

    groups: where control groups are mounted. own: names those of this process.
    """
    if sys.platform != "linux" or len(os.sched_getaffinity(0)) < 2:
        return False
    return all(cores >= 2 for cores in _quotas(groups, own))


def _quotas(groups: Path, own: Path) -> Iterator[float]:
    """The processors' time, in cores, that containers and services around this process may use."""
    for directory in _directories(groups, own):
        with contextlib.suppress(OSError, ValueError, ZeroDivisionError):
            quota, period = _quota_of(directory)
            if quota >= 0:
                yield quota / period


def _directories(groups: Path, own: Path) -> Iterator[Path]:
    """The directories of this process's control groups, outermost first.

    A container sees its own one as the outermost, and may name one that it does not see.
    """
    try:
        lines = own.read_text().splitlines()
    except OSError:
        lines = ["0::/"]
    for line in lines:
        controllers, _, path = line.partition(":")[2].partition(":")
        if controllers and "cpu" not in controllers.split(","):
            continue
        directory = groups / controllers
        yield directory
        for name in filter(None, path.split("/")):
            directory /= name
            yield directory


def _quota_of(directory: Path) -> tuple[int, int]:
    """Quota and period of a control group, in µs; a negative quota is none. Raises OSError where it
    has no such limit, ValueError.
    """
    try:
        quota, period = (directory / "cpu.max").read_text().split()
    except FileNotFoundError:  # version 1
        quota, period = ((directory / name).read_text() for name in _VERSION_1)
    return -1 if quota == "max" else int(quota), int(period)
