"""Sessions end, and are few."""

import asyncio
from typing import Any, cast

import duolog
import pytest

from duolog_server.ops.console.sessions import sessions as module
from duolog_server.ops.console.sessions.sessions import AGE_SECONDS, IDLE_SECONDS, Sessions
from duolog_server.ops.console.view.visits import Undo


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Client:
    closed = 0

    async def close(self) -> None:
        await asyncio.sleep(0)
        self.closed += 1


def client() -> Any:
    return cast(Any, Client())


async def test_a_session_is_named_by_its_cookie_alone_and_proves_its_own_forms() -> None:
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
    one = module.Session("a", client(), 0.0, 0.0)
    other = module.Session("a", client(), 0.0, 0.0)
    assert one.proves(one.form)
    assert not one.proves(other.form)
    assert not one.proves("ü")


async def test_a_session_ends_when_it_is_not_used_at_its_age_and_for_good() -> None:
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
    clock = Clock()
    sessions = Sessions(clock)
    cookie = await sessions.add("a", client())
    session = sessions.peek(cookie)
    assert session is not None
    clock.now += IDLE_SECONDS - 1
    assert sessions.peek(cookie) is session
    assert sessions.lasts(session)
    clock.now += 2
    assert sessions.peek(cookie) is None
    assert not sessions.lasts(session)
    sessions = Sessions(Clock())
    cookie = await sessions.add("a", client())
    session = sessions.peek(cookie)
    assert session is not None
    await sessions.end(cookie)
    assert not sessions.lasts(session)


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


async def test_a_user_takes_no_sessions_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SESSIONS_OF_USER", 2)
    clock = Clock()
    sessions = Sessions(clock)
    other = await sessions.add("b", client())
    first, second = await sessions.add("a", client()), await sessions.add("a", client())
    clock.now += 1
    assert sessions.get(first) is not None
    third = await sessions.add("a", client())
    assert sessions.get(second) is None
    assert None not in (sessions.get(first), sessions.get(third), sessions.get(other))


async def test_a_user_who_logs_in_many_times_at_once_has_no_more_sessions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "SESSIONS_OF_USER", 2)
    sessions = Sessions(Clock())
    for _ in range(2):
        await sessions.add("a", client())
    await asyncio.gather(*(sessions.add("a", client()) for _ in range(5)))
    assert len(sessions) == 2


async def test_sessions_that_are_over_are_ended_by_several_at_a_time() -> None:
    clock = Clock()
    sessions = Sessions(clock)
    clients = [client() for _ in range(3)]
    for one in clients:
        await sessions.add("a", one)
    clock.now += IDLE_SECONDS + 1
    await asyncio.gather(sessions.expire(), sessions.expire(), sessions.close())
    assert [one.closed for one in clients] == [1, 1, 1]


async def test_few_actions_can_be_undone_and_few_pages_shown_at_a_time() -> None:
    async def run(client: duolog.Client) -> str:
        return "undone"

    session = module.Session("a", client(), 0.0, 0.0)
    names = [session.offer(Undo("Undo", run)) for _ in range(module.UNDOS_MAX + 1)]
    assert list(session.undos) == names[1:]
    session = module.Session("a", client(), 0.0, 0.0, looks_max=2)
    with session.looking():
        with session.looking(), pytest.raises(duolog.Busy), session.looking():
            pass
        assert session.looks == 1
    assert session.looks == 0
