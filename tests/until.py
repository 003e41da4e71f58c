"""Waiting in a test for what follows from events, with an end that says what did not come.

The deadlines are for what hangs, not for what is slow: they are seconds of a machine that does
nothing else, and grow where more processes want to run than there are processors.
"""

import asyncio
import inspect
import os
import time
from collections.abc import Awaitable, Callable
from reprlib import Repr
from typing import TypeVar

T = TypeVar("T")

WAIT_SECONDS = 60.0
PAUSE_SECONDS = 0.01  # between two looks
BLOCKING_SECONDS = 0.05  # the same, where each may be a call to another process

SLOWNESS_MAX = 30.0

_SHOWN = Repr()
_SHOWN.maxstring = _SHOWN.maxother = 300


async def until(
    holds: Callable[[], object | Awaitable[object]],
    what: str = "",
    *,
    seconds: float = WAIT_SECONDS,
    pause: float = PAUSE_SECONDS,
) -> None:
    """Give others their turns until something holds.

    what: is waited for; where the condition is written, if not given. Raises AssertionError, which
    says that and what the condition gave last.
    """
    found: object = None
    began = asyncio.get_running_loop().time()
    try:
        async with asyncio.timeout(seconds * slowness()) as limit:
            while not (found := await _asked(holds)):
                await asyncio.sleep(pause)
                limit.reschedule(max(limit.when() or 0.0, began + seconds * slowness()))
    except TimeoutError:
        if not limit.expired():  # the condition's own
            raise
        raise AssertionError(_late(what, holds, found, seconds)) from None


def wait_until(
    holds: Callable[[], T],
    what: str = "",
    *,
    seconds: float = WAIT_SECONDS,
    pause: float = BLOCKING_SECONDS,
    sleep: Callable[[float], object] = time.sleep,
) -> T:
    """Block this thread until something holds, and return it: a second look may find it changed.

    As `until`. sleep: gives the turn to others.
    """
    began, patience = time.monotonic(), seconds * slowness()
    while not (found := holds()):
        patience = max(patience, seconds * slowness())
        assert time.monotonic() < began + patience, _late(what, holds, found, seconds)
        sleep(pause)
    return found


def slowness() -> float:
    """How many times longer a process takes now than alone on this machine, about: processes that
    want to run or wait for a disk, for each processor, within the last minute.
    """
    return min(max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1)), SLOWNESS_MAX)


async def _asked(holds: Callable[[], object | Awaitable[object]]) -> object:
    found = holds()
    return await found if inspect.isawaitable(found) else found


def _late(what: str, holds: Callable[[], object], found: object, seconds: float) -> str:
    return f"{what or _place(holds)}: not within {seconds:g} s; last seen: {_SHOWN.repr(found)}"


def _place(holds: Callable[[], object]) -> str:
    """FILE:LINE of a condition."""
    code = getattr(holds, "__code__", None)
    if code is None:
        return repr(holds)
    return f"what {os.path.relpath(code.co_filename)}:{code.co_firstlineno} waits for"


__all__ = ["WAIT_SECONDS", "slowness", "until", "wait_until"]
