"""The threads of gRPC's core, which accept, read and write for all its connections.

They are more than there are processors, do what a peer asks for as fast as it asks, and nothing
bounds how many connections or resets they take in a second. Where they want much of a processor,
they give way to the event loop, which serves all clients. Else they do not: what a slave has
stored, say, comes by one of them, and a send waits for it.
"""

import contextlib
import os
import time
from pathlib import Path

import structlog

log = structlog.get_logger("duolog.node")

NAMES = frozenset({"event_engine", "lifeguard"})  # a thread that one of these begins is like it
NICENESS = 10  # over the event loop's: a tenth of what it gets, where both want a processor
BUSY_PART = 0.4  # of a processor, that threads beside the event loop's had since the last look
SHORT_SECONDS = 0.01  # since then: it says nothing
QUIET_SECONDS = 10.0  # without that; then they may have what they had
AGAIN_SECONDS = 1.0  # to the next try, where the system could not tell of them
_TASKS = Path("/proc/self/task")


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
        self._used = time.process_time() - time.thread_time()

    def look(self) -> None:
        """To be called time and again, by the event loop's thread."""
        now = time.monotonic()
        gone = now - self._at
        if gone >= SHORT_SECONDS:
            used = time.process_time() - time.thread_time()
            busy = used - self._used
            self._at, self._used = now, used
            self.looked(now, gone, busy)

    def looked(self, now: float, gone: float, busy: float) -> None:
        """All in seconds: since the look before, and what threads beside the event loop's had of a
        processor since then.
        """
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
            log.info("gRPC: its threads give way to the event loop", threads=threads)


def _renice(niceness: int) -> int:
    """How many threads there were, of which others are made. Raises OSError before anything is
    changed, PermissionError where it may not be.
    """
    found: list[int] = []
    with contextlib.suppress(FileNotFoundError):  # this system does not tell of threads
        for entry in os.scandir(_TASKS):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it ended meanwhile
                if Path(entry.path, "comm").read_text().strip() in NAMES:
                    found.append(int(entry.name))
    for thread in found:
        with contextlib.suppress(ProcessLookupError):
            os.setpriority(os.PRIO_PROCESS, thread, niceness)
    return len(found)


__all__ = [
    "AGAIN_SECONDS",
    "BUSY_PART",
    "NICENESS",
    "QUIET_SECONDS",
    "SHORT_SECONDS",
    "CoreThreads",
]
