"""Failed logins have to wait."""

import pytest

from duolog_server.ops.console.requests import logins as module
from duolog_server.ops.console.requests.logins import ATTEMPT_SECONDS, ATTEMPTS, Attempts


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_failed_logins_have_to_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ADDRESSES_MAX", 2)
    clock = Clock()
    attempts = Attempts(clock)
    for _ in range(ATTEMPTS):
        assert attempts.left_seconds("a") == 0
        attempts.failed("a")
    assert attempts.left_seconds("a") == pytest.approx(ATTEMPT_SECONDS)
    assert attempts.left_seconds("b") == 0
    clock.now += ATTEMPT_SECONDS
    assert attempts.left_seconds("a") == 0
    attempts.failed("a")
    assert attempts.left_seconds("a") > 0
    attempts.passed("a")
    assert attempts.left_seconds("a") == 0
    for address in "abc":
        attempts.failed(address)
    assert len(attempts._free_at) == 2


def test_a_login_that_does_not_fail_gives_none_back_and_leaves_nothing() -> None:
    attempts = Attempts(Clock())
    for _ in range(ATTEMPTS):
        attempts.failed("a")
        attempts.failed("a")
        attempts.passed("a")
    assert attempts.left_seconds("a") > 0
    attempts = Attempts(Clock())
    attempts.failed("a")
    attempts.passed("a")
    attempts.passed("a")
    assert not attempts._free_at
