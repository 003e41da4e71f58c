"""Dials of other nodes' replication addresses."""

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest
import structlog
from duolog.testing._ports import free_endpoint

from duolog_server.node.election import dials
from duolog_server.node.election.dials import Dials


@pytest.fixture
async def listening() -> AsyncIterator[dict[str, str]]:
    """Addresses that take connections, as HOST:PORT, by family."""
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    found = {"four": f"127.0.0.1:{port}", "name": f"localhost:{port}"}
    six = None
    try:
        six = await asyncio.start_server(lambda _, writer: writer.close(), "::1", 0)
        found["six"] = f"[::1]:{six.sockets[0].getsockname()[1]}"
    except OSError:
        pass  # a machine without IPv6
    yield found
    for one in filter(None, (server, six)):
        one.close()
        await one.wait_closed()


async def reasons(found: Dials) -> dict[str, str]:
    await found.round()
    return {name: one.reason for name, one in found.unreachable.items()}


async def test_what_takes_no_connection_is_told_with_the_reason(listening: dict[str, str]) -> None:
    addresses = {**listening, "closed": free_endpoint(), "unknown": "nowhere.invalid:1", "odd": "x"}
    watched = Dials(1, lambda: addresses)
    with structlog.testing.capture_logs() as logs:
        found = await reasons(watched)
        assert set(found) == {"closed", "unknown", "odd"}
        assert found["closed"] == "Connection refused"
        assert found["unknown"]
        assert watched.unreachable["closed"].address == addresses["closed"]
        await watched.round()
    assert len(logs) == 3, "once each"
    addresses["closed"] = listening["four"]
    assert set(await reasons(watched)) == {"unknown", "odd"}
    watched.close()


async def test_an_address_that_leads_to_the_node_itself_is_not_the_other_nodes(
    listening: dict[str, str],
) -> None:
    """As a loopback address is, that a node on another machine advertises."""
    port = int(listening["four"].rpartition(":")[2])
    watched = Dials(port, lambda: {"b": listening["four"]})
    assert await reasons(watched) == {"b": "it leads to the node that dials"}
    watched.close()


async def test_a_dial_ends_though_a_lookup_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dials, "DIAL_SECONDS", 0.01)
    lookups, real = [], socket.getaddrinfo
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()

    def slow(host: str, *how: object, **more: object) -> object:
        lookups.append(host)
        asyncio.run_coroutine_threadsafe(ended.wait(), loop).result(30)
        return real("127.0.0.1", 1)

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    watched = Dials(1, lambda: {"b": "slow:1"})
    for _ in range(3):
        assert await reasons(watched) == {"b": "no answer within 0.01 s"}
    assert lookups == ["slow"], "one at a time"
    ended.set()
    watched.close()
