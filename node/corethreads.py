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
NICENESS = 10  # a tenth of what the event loop gets, where both want a processor
BUSY_PART = 0.4  # of a processor, that threads beside the event loop's had since the last look
SHORT_SECONDS = 0.01  # since then: it says nothing
QUIET_SECONDS = 10.0  # without that; then they may have what they had
_TASKS = Path("/proc/self/task")


class CoreThreads:
    """Looks at how much they have of the processors.

    Attributes:
        give_way: whether they do.
    """

    def __init__(self) -> None:
        self.give_way = False
        self._is_lasting = False  # this process may not undo it
        self._busy_at = self._at = time.monotonic()
        self._used = time.process_time() - time.thread_time()

    def look(self) -> None:
        """To be called time and again, by the event loop's thread."""
        now, used = time.monotonic(), time.process_time() - time.thread_time()
        gone, busy = now - self._at, used - self._used
        self._at, self._used = now, used
        self.looked(now, gone, busy)

    def looked(self, now: float, gone: float, busy: float) -> None:
        """All in seconds: since the look before, and what threads beside the event loop's had of a
        processor since then.
        """
        if gone >= SHORT_SECONDS and busy >= BUSY_PART * gone:
            self._busy_at = now
            if not self.give_way:
                self.give_way = True
                log.info("gRPC: its threads give way to the event loop", threads=_renice(NICENESS))
        elif self.give_way and not self._is_lasting and now - self._busy_at >= QUIET_SECONDS:
            try:
                _renice(0)
                self.give_way = False
            except PermissionError:  # neither CAP_SYS_NICE nor RLIMIT_NICE
                self._is_lasting = True


def _renice(niceness: int) -> int:
    """How many threads there were, of which others are made. Raises PermissionError."""
    found = 0
    with contextlib.suppress(FileNotFoundError):  # this system does not tell of threads
        for entry in os.scandir(_TASKS):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it ended meanwhile
                if Path(entry.path, "comm").read_text().strip() in NAMES:
                    os.setpriority(os.PRIO_PROCESS, int(entry.name), niceness)
                    found += 1
    return found


__all__ = ["BUSY_PART", "NICENESS", "QUIET_SECONDS", "SHORT_SECONDS", "CoreThreads"]
