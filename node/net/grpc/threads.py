"""The threads of gRPC's core, which accept, read and write for all its connections.

They are more than there are processors, do what a peer asks for as fast as it asks, and nothing
bounds how many connections or resets they take in a second. Where they want much of a processor,
they give way to the event loop, which serves all clients. Else they do not: what a slave has
stored, say, comes by one of them, and a send waits for it.
"""

import asyncio
import contextlib
import os
import time
from pathlib import Path

import structlog

log = structlog.get_logger("duolog.node")

NAMES = frozenset({"event_engine", "lifeguard"})  # a thread that one of these begins is like it
NICENESS = 10  # over the event loop's: a tenth of what it gets, where both want a processor
BUSY_PART = 0.4  # of a processor, that they had since the last look
LOOK_SECONDS = 0.02
FIND_SECONDS = 1.0  # between two looks for those that have begun
SHORT_SECONDS = 0.01  # since then: it says nothing
QUIET_SECONDS = 10.0  # without that; then they may have what they had
AGAIN_SECONDS = 1.0  # to the next try, where the system could not tell of them
_THREADS_CLOCK = 6  # of Linux: the bits of a clock that counts the CPU time of a thread
_TASKS = Path("/proc/self/task")


async def keep_looking() -> None:
    """Have them give way where they must, until cancelled; once in a process, whose threads serve
    all its ports. A node works on where this fails.
    """
    threads = CoreThreads()
    try:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            threads.look()
    except Exception as error:
        log.error("gRPC: its threads give way no more", exc_info=error)


class CoreThreads:
    """Looks at how much they have of the processors.

    Attributes:
        give_way: whether they do.
    """

    def __init__(self) -> None:
        self.give_way = False
        self._is_lasting = False  # this process may not change it
        self._busy_at = self._at = time.monotonic()
        self._again_at = 0.0
        self._used: dict[int, float] = {}  # CPU seconds of each thread, at the last look
        self._found_at = -FIND_SECONDS

    def look(self) -> None:
        """To be called by the event loop's thread."""
        now = time.monotonic()
        gone = now - self._at
        if gone >= SHORT_SECONDS:
            self._at = now
            self.looked(now, gone, self._busy(now))

    def _busy(self, now: float) -> float:
        """CPU seconds that they had since the last look."""
        if now - self._found_at >= FIND_SECONDS:
            self._found_at = now
            with contextlib.suppress(OSError):  # as where no descriptor is left
                for thread in _threads():
                    self._used.setdefault(thread, 0.0 if self._used else _cpu_seconds(thread))
        busy = 0.0
        for thread, before in list(self._used.items()):
            try:
                self._used[thread] = _cpu_seconds(thread)
            except OSError:  # it ended
                del self._used[thread]
            else:
                busy += self._used[thread] - before
        return busy

    def looked(self, now: float, gone: float, busy: float) -> None:
        """All in seconds: since the look before, and what they had of a processor since then."""
        if busy >= BUSY_PART * gone:
            self._busy_at = now
            if not self.give_way:
                self._change(True, now)
        elif self.give_way and now - self._busy_at >= QUIET_SECONDS:
            self._change(False, now)

    def _change(self, give_way: bool, now: float) -> None:
        if self._is_lasting or now < self._again_at:
            return
        usual = os.getpriority(os.PRIO_PROCESS, 0)  # of this thread
        try:
            threads = _renice(usual + NICENESS if give_way else usual)
        except PermissionError:  # neither CAP_SYS_NICE nor RLIMIT_NICE
            self._is_lasting = True
            return
        except OSError:  # as where no descriptor is left: a flood of connections takes them
            self._again_at = now + AGAIN_SECONDS
            return
        self.give_way = give_way
        if give_way:
            log.debug("gRPC: its threads give way to the event loop", threads=threads)


def _renice(niceness: int) -> int:
    """How many threads there were, of which others are made. Raises OSError before anything is
    changed, PermissionError where it may not be.
    """
    found = _threads()
    for thread in found:
        with contextlib.suppress(ProcessLookupError):
            os.setpriority(os.PRIO_PROCESS, thread, niceness)
    return len(found)


def _threads() -> list[int]:
    """Those that there are. Raises OSError."""
    found: list[int] = []
    with contextlib.suppress(FileNotFoundError):  # this system does not tell of threads
        for entry in os.scandir(_TASKS):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it ended meanwhile
                if Path(entry.path, "comm").read_text().strip() in NAMES:
                    found.append(int(entry.name))
    return found


def _cpu_seconds(thread: int) -> float:
    """That a thread has used. Raises OSError where there is none."""
    return time.clock_gettime((~thread << 3) | _THREADS_CLOCK)


__all__ = [
    "AGAIN_SECONDS",
    "BUSY_PART",
    "FIND_SECONDS",
    "NICENESS",
    "QUIET_SECONDS",
    "SHORT_SECONDS",
    "CoreThreads",
    "keep_looking",
]
