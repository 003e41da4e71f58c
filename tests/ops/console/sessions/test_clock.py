"""Sessions end while a machine sleeps, and not because somebody sets its clock."""

import time

import pytest

from duolog_server.ops.console.sessions import sessions as clock


def test_the_clock_goes_on_while_the_machine_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    slept = {time.CLOCK_BOOTTIME: 3600.0, time.CLOCK_REALTIME: -86_400.0}
    read = time.clock_gettime
    before = clock.boot_seconds()
    monkeypatch.setattr(time, "clock_gettime", lambda which: read(which) + slept.get(which, 0.0))
    assert 3600 <= clock.boot_seconds() - before < 3660
    monkeypatch.delattr(time, "CLOCK_BOOTTIME")
    assert clock.boot_seconds() == pytest.approx(time.monotonic(), abs=60)
