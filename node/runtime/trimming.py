"""Trims the heap: returns freed memory to the system.

glibc keeps what was freed between what is in use: after an attack, or a great many connections,
some hundred MiB. Where a node has grown, it is asked to give back what it can, in a thread: that
takes some 30 ms in which other threads may wait for memory.
"""

import asyncio
import contextlib
import ctypes

import structlog

from duolog_server.node.runtime.memory import OwnMemory

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
