"""How a port accepts: a few connections in a turn, however many wait."""

import asyncio
import os
import socket

import pytest

from duolog_server.node.net.listener import ACCEPTED_AT_ONCE, close, listen
from tests.turns import turns_of
from tests.until import until


class Greeted(asyncio.Protocol):
    """A connection that does nothing."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio."""


async def test_connections_that_wait_are_accepted_some_in_each_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    count = 100 * ACCEPTED_AT_ONCE
    server = await listen(Greeted, "127.0.0.1", 0)
    address = server.sockets[0].getsockname()
    with turns_of(monkeypatch, Greeted, "connection_made") as turns:
        waiting = [socket.create_connection(address, 5) for _ in range(count)]  # in this turn
        await until(lambda: len(turns) >= count)
        for one in waiting:
            one.close()
    server.close()
    assert max(turns.count(turn) for turn in turns) <= ACCEPTED_AT_ONCE


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


@pytest.mark.parametrize("turns", range(4))  # in the second, asyncio has accepted, and made nothing
async def test_what_was_accepted_when_a_port_closes_is_made(turns: int) -> None:
    made: list[asyncio.BaseTransport] = []

    class Kept(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            made.append(transport)

    server = await listen(Kept, "127.0.0.1", 0)
    address = server.sockets[0].getsockname()
    with socket.create_connection(address, 5) as client:
        for _ in range(turns):
            await asyncio.sleep(0)
        await close(server)
        if turns >= 2:
            await until(lambda: made)
        for transport in made:
            transport.close()
        client.setblocking(False)  # closed by the one side or the other: nobody keeps it open

        def ended() -> bool:
            try:
                return not client.recv(1)
            except ConnectionResetError:
                return True
            except BlockingIOError:
                return False

        await until(ended)
    assert not server.sockets
