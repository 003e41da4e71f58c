"""How a port accepts: some connections in a turn, however many wait."""

import asyncio
import errno
import os
import socket
from typing import cast

import pytest
from structlog.testing import capture_logs

from duolog_server.node.net import accept_limiter as accepting
from duolog_server.node.net.accept_limiter import (
    ACCEPTED_AT_ONCE,
    BURST,
    PAUSE_SECONDS,
    Pace,
    listen,
)
from tests.turns import turns_of
from tests.until import until


class Greeted(asyncio.Protocol):
    """A connection that does nothing."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio."""


async def test_connections_that_wait_are_accepted_some_in_each_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    count = 10 * ACCEPTED_AT_ONCE
    server = await listen(Greeted, "127.0.0.1", 0)
    address = server.sockets[0].getsockname()
    with turns_of(monkeypatch, Greeted, "connection_made") as turns:
        waiting = [socket.create_connection(address, 5) for _ in range(count)]  # in this turn
        async with asyncio.timeout(20):
            while len(turns) < count:
                await asyncio.sleep(0)
        for one in waiting:
            one.close()
    server.close()
    assert max(turns.count(turn) for turn in turns) <= ACCEPTED_AT_ONCE


async def test_while_many_begin_there_is_a_pause_after_each_few(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(accepting, "PAUSE_SECONDS", 3600.0)
    server = await listen(Greeted, "127.0.0.1", 0)
    address = server.sockets[0].getsockname()
    with turns_of(monkeypatch, Greeted, "connection_made") as turns:
        waiting = [socket.create_connection(address, 5) for _ in range(2 * BURST)]
        for _ in range(10 * BURST):
            await asyncio.sleep(0)
        assert BURST - ACCEPTED_AT_ONCE <= len(turns) <= BURST
        server._resume(server.sockets[0])  # as the pause does when it is over
        before = len(turns)
        for _ in range(10 * BURST):
            await asyncio.sleep(0)
        assert len(turns) == before + ACCEPTED_AT_ONCE
        for one in waiting:
            one.close()
    server.close()


async def test_a_port_that_is_closed_in_a_pause_accepts_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(accepting, "PAUSE_SECONDS", 3600.0)
    server = await listen(Greeted, "127.0.0.1", 0)
    address = server.sockets[0].getsockname()
    waiting = [socket.create_connection(address, 5) for _ in range(2 * BURST)]
    await until(lambda: server._timers, "a pause")
    server.close()
    server.close()
    assert all(timer.cancelled() for timer in server._timers.values()), "nothing listens again"
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address, 5)
    for one in waiting:
        one.close()


@pytest.mark.parametrize(
    ("problem", "told"),
    [
        (errno.EMFILE, "a connection cannot be accepted"),
        (errno.EPERM, "a connection did not begin"),
    ],
)
async def test_a_connection_that_cannot_be_accepted_keeps_no_other_one_away(
    monkeypatch: pytest.MonkeyPatch, problem: int, told: str
) -> None:
    monkeypatch.setattr(accepting, "SCARCE_SECONDS", 0.0)
    server = await listen(Greeted, "127.0.0.1", 0)
    listener = server.sockets[0]
    problems = iter((OSError(problem, os.strerror(problem)),))

    class Scarce:
        """The socket, of which the first connection cannot be accepted."""

        def __init__(self, real: socket.socket) -> None:
            self.real = real

        def fileno(self) -> int:
            return self.real.fileno()

        def accept(self) -> object:
            for error in problems:
                raise error
            return self.real.accept()

    loop = asyncio.get_running_loop()
    loop.remove_reader(listener)
    scarce = cast(socket.socket, Scarce(listener))
    loop.add_reader(scarce, server._accept, scarce)
    with (
        turns_of(monkeypatch, Greeted, "connection_made") as turns,
        capture_logs() as logged,
        socket.create_connection(listener.getsockname(), 5),
    ):
        async with asyncio.timeout(20):
            while not turns:
                await asyncio.sleep(0)
    assert [one["event"] for one in logged] == [told]
    server.close()


def test_a_pace_is_a_burst_and_then_some_in_each_pause() -> None:
    pace = Pace()
    for _ in range(BURST // ACCEPTED_AT_ONCE - 1):
        assert pace.pause_seconds(ACCEPTED_AT_ONCE, 100.0) == 0
    assert pace.pause_seconds(ACCEPTED_AT_ONCE, 100.0) == PAUSE_SECONDS
    now = 100.0
    for _ in range(5):
        now += PAUSE_SECONDS
        assert pace.pause_seconds(ACCEPTED_AT_ONCE, now) == PAUSE_SECONDS
    assert pace.pause_seconds(ACCEPTED_AT_ONCE, now + 10) == 0
    assert pace.pause_seconds(0, now + 10) == 0


def test_two_addresses_of_a_port_have_together_what_one_has() -> None:
    pace, begin, counts = Pace(), 100.0, 0
    due = [begin, begin]  # when each of them accepts again
    while (now := min(due)) < begin + 1:
        counts += ACCEPTED_AT_ONCE
        due[due.index(now)] = now + pace.pause_seconds(ACCEPTED_AT_ONCE, now)
    most = BURST + ACCEPTED_AT_ONCE / PAUSE_SECONDS
    assert 0.9 * most <= counts <= most + 2 * ACCEPTED_AT_ONCE


async def test_an_address_that_is_taken_leaves_no_descriptor_open() -> None:
    server = await listen(Greeted, "127.0.0.1", 0)

    async def leaves_none() -> bool:
        """Whether this time; threads of other tests may open and close some meanwhile."""
        before = len(os.listdir("/proc/self/fd"))
        with pytest.raises(OSError, match="in use"):
            await listen(Greeted, "127.0.0.1", server.sockets[0].getsockname()[1])
        return len(os.listdir("/proc/self/fd")) == before

    await until(leaves_none)
    server.close()
