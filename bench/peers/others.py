"""What other programs used of the machine while a run took place."""

import os
import time
from pathlib import Path

STAT = Path("/proc/stat")
_IDLE = (3, 4)  # idle, and waiting for a disk
_GUESTS = 8  # from here on, what is in the other figures already


class OthersTime:
    """The processors' time that went to others than this process and those it waited for.

    What the host of a virtual machine took counts, too, and what the kernel did by itself.
    """

    def __init__(self, stat: Path = STAT) -> None:
        """From now on. stat: as /proc/stat."""
        self._stat = stat
        self._began = time.monotonic()
        self._before = self._now()

    def _now(self) -> float:
        ticks = [int(word) for word in self._stat.read_text().split("\n", 1)[0].split()[1:]]
        busy = sum(count for k, count in enumerate(ticks[:_GUESTS]) if k not in _IDLE)
        return busy / os.sysconf("SC_CLK_TCK") - sum(os.times()[:4])

    def share(self, cores: int) -> float:
        """Of the time of all cores since the beginning, 0 to 1."""
        took = time.monotonic() - self._began
        return min(1.0, max(0.0, (self._now() - self._before) / (cores * took)))
