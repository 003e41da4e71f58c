"""Memory that nobody uses any more, given back to the system.

glibc keeps what was freed between what is in use: after an attack, or a great many connections,
some hundred MiB. Where a node has grown, it is asked to give back what it can, in a thread: that
takes some 30 ms in which other threads may wait for memory.
"""

import asyncio
import contextlib
import ctypes
from pathlib import Path

CHECK_SECONDS = 10.0
GROWN_MIB = 64  # since the last time
_STATUS = Path("/proc/self/status")


def anonymous_mib() -> int:
    """Anonymous memory of this process; 0 where the system does not tell."""
    try:
        lines = _STATUS.read_text().splitlines()
    except OSError:
        return 0
    found = next((line for line in lines if line.startswith("RssAnon:")), "")
    return int(found.split()[1]) // 1024 if found else 0


def give_back() -> None:
    """Give back what can be; nothing where the C library cannot."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


async def keep_trimmed() -> None:
    """Look, and give back, until cancelled. A node works on where the system refuses a thread."""
    least = anonymous_mib()
    while True:
        await asyncio.sleep(CHECK_SECONDS)
        now = anonymous_mib()
        least = min(least, now)
        if now >= least + GROWN_MIB:
            with contextlib.suppress(RuntimeError, OSError):
                await asyncio.to_thread(give_back)
            least = anonymous_mib()


__all__ = ["anonymous_mib", "give_back", "keep_trimmed"]
