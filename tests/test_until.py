"""The wait for what follows from events says what did not come."""

import asyncio
import os
import time
from itertools import count

import pytest

from tests.until import SLOWNESS_MAX, slowness, until, wait_until


async def test_a_wait_ends_once_its_condition_holds() -> None:
    looks = count()
    await until(lambda: next(looks) == 3, pause=0)
    assert next(looks) == 4

    async def holds() -> bool:
        await asyncio.sleep(0)
        return next(looks) == 7

    await until(holds, pause=0)
    assert next(looks) == 8
    wait_until(lambda: next(looks) == 11, pause=0)
    assert next(looks) == 12


async def test_a_late_one_says_what_was_waited_for_and_what_was_seen_last() -> None:
    with pytest.raises(AssertionError, match=r"^the end: not within 0 s; last seen: \[\]$"):
        await until(lambda: [], "the end", seconds=0)
    with pytest.raises(AssertionError, match=r"test_until\.py:\d+ waits for: .* last seen: ''$"):
        wait_until(lambda: "", seconds=0)


@pytest.mark.parametrize(("load", "found"), [(0.5, 1), (4, 4), (4000, SLOWNESS_MAX)])
async def test_a_wait_is_longer_while_more_processes_than_processors_want_to_run(
    load: float, found: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = (load * (os.cpu_count() or 1), 0.0, 0.0)
    monkeypatch.setattr(os, "getloadavg", lambda: row)
    assert slowness() == found
    began = time.monotonic()
    with pytest.raises(AssertionError):
        wait_until(lambda: False, seconds=0.02, pause=0.001)
    with pytest.raises(AssertionError):
        await until(lambda: False, seconds=0.02, pause=0.001)
    assert time.monotonic() - began >= 0.04 * found


def test_a_blocking_wait_returns_what_it_found_and_lets_others_go_on() -> None:
    """Who leads, for one: nobody may, a moment later."""
    masters = iter(["", "", "a", ""])
    assert wait_until(lambda: next(masters), pause=0) == "a"
    slept = list[float]()
    wait_until(lambda: len(slept) == 2, pause=0.5, sleep=slept.append)
    assert slept == [0.5, 0.5]
