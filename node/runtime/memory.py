"""How much memory this process has, as the kernel says: asked many times a second.

Rule: one descriptor stays open, as opening it takes longer than the answer.
"""

import asyncio
import contextlib
import ctypes
import os

import structlog

_PATH = "/proc/self/statm"
_LINE_BYTES = 256  # seven numbers
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class OwnMemory:
    """Memory of the process that reads it first."""

    def __init__(self) -> None:
        self._descriptor = -1

    def read(self) -> int:
        """Bytes that are of no file. Raises OSError, as where no descriptor is left."""
        if self._descriptor < 0:
            self._descriptor = os.open(_PATH, os.O_RDONLY | os.O_CLOEXEC)
        _, resident, shared, *_ = os.pread(self._descriptor, _LINE_BYTES, 0).split()
        return (int(resident) - int(shared)) * _PAGE_BYTES

    def close(self) -> None:
        """It can be read again."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


# Trims the heap: returns freed memory to the system.
#
# glibc keeps what was freed between what is in use: after an attack, or a great many connections,
# some hundred MiB. Where a node has grown, it is asked to give back what it can, in a thread: that
# takes some 30 ms in which other threads may wait for memory.
log = structlog.get_logger("duolog.node")

CHECK_SECONDS = 10.0
GROWN_BYTES = 64 << 20  # since the last time


def give_back() -> None:
    """Give back what can be; nothing where the C library cannot."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


async def keep_trimmed() -> None:
    """Look, and give back, until cancelled; nothing where the system does not tell of memory. A
    node works on where it refuses a thread.
    """
    memory = OwnMemory()
    try:
        least = memory.read()
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            now = memory.read()
            least = min(least, now)
            if now >= least + GROWN_BYTES:
                with contextlib.suppress(RuntimeError, OSError):
                    await asyncio.to_thread(give_back)
                least = memory.read()
    except OSError as error:
        log.debug("freed memory is not given back", reason=str(error))
    finally:
        memory.close()
