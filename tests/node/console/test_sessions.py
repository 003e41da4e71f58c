"""Sessions end, failed logins have to wait."""

from typing import Any, cast

import duolog
import pytest

from node.console import sessions as module
from node.console.sessions import (
    AGE_SECONDS,
    ATTEMPT_SECONDS,
    ATTEMPTS,
    IDLE_SECONDS,
    Attempts,
    Sessions,
)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Client:
    closed = 0

    async def close(self) -> None:
        self.closed += 1


def client() -> Any:
    return cast(Any, Client())


async def test_a_session_is_named_by_its_cookie_alone() -> None:
    sessions = Sessions(Clock())
    one, other = client(), client()
    first, second = await sessions.add("a", one), await sessions.add("b", other)
    found = sessions.get(first)
    assert found is not None
    assert (found.user, found.client) == ("a", one)
    assert first not in str(vars(sessions)), "only its digest is kept"
    assert sessions.get(first[:-1]) is sessions.get("") is None
    await sessions.end(first)
    await sessions.end(first)
    assert (one.closed, other.closed) == (1, 0)
    assert sessions.get(first) is None
    assert sessions.get(second) is not None
    await sessions.close()
    assert (other.closed, len(sessions)) == (1, 0)


async def test_a_session_ends_when_it_is_not_used_and_at_its_age() -> None:
    clock = Clock()
    sessions = Sessions(clock)
    idle, busy = client(), client()
    unused, used = await sessions.add("a", idle), await sessions.add("b", busy)
    while clock.now < 100 + AGE_SECONDS - IDLE_SECONDS:
        clock.now += IDLE_SECONDS - 1
        assert sessions.get(used) is not None
    assert sessions.get(unused) is None
    await sessions.expire()
    assert (idle.closed, busy.closed, len(sessions)) == (1, 0, 1)
    clock.now = 100 + AGE_SECONDS + 1
    assert sessions.get(used) is None
    await sessions.expire()
    assert busy.closed == 1


async def test_sessions_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SESSIONS_MAX", 2)
    clock = Clock()
    sessions = Sessions(clock)
    for _ in range(2):
        await sessions.add("a", client())
    with pytest.raises(duolog.Busy):
        await sessions.add("a", client())
    clock.now += IDLE_SECONDS + 1
    await sessions.add("a", client())


def test_the_proof_of_a_form_is_its_own_sessions() -> None:
    one = module.Session("a", client(), 0.0, 0.0)
    other = module.Session("a", client(), 0.0, 0.0)
    assert one.proves(one.form)
    assert not one.proves(other.form)
    assert not one.proves("ü")


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
