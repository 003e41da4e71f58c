"""How a port accepts: some connections in a turn, however many wait."""

import asyncio
import socket

import pytest

from node.accepting import ACCEPTED_AT_ONCE, listen
from tests.turns import turns_of


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
    await server.wait_closed()
    assert max(turns.count(turn) for turn in turns) <= ACCEPTED_AT_ONCE
