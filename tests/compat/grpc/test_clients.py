"""The clients that are known: how many, and what is kept of each."""

import asyncio

import pytest

from duolog_server.compat.grpc.relay import clients as module
from duolog_server.compat.grpc.relay.clients import Clients
from tests.known import known


@pytest.fixture
def gone() -> list[str]:
    return []


@pytest.fixture
def clients(gone: list[str]) -> Clients:
    return Clients(gone.append, lambda client_id, node: None, lambda node: 1)


def test_where_there_are_too_many_the_longest_silent_one_is_gone(
    clients: Clients, gone: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CLIENTS_MAX", 3)
    for name in ("a", "b", "c", "a", "d", "b", "e"):
        clients.saw(name)
    assert gone == ["b", "c", "a"]
    assert [client.client_id for client in clients.all()] == ["d", "b", "e"]


async def test_silent_clients_are_gone(
    clients: Clients, gone: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SWEEP_SECONDS", 0)
    for name in ("a", "b", "c"):
        clients.saw(name)
    clients.saw("b")
    for name in ("a", "c"):
        found = known(clients.find(name))
        found.seen -= module.SILENT_SECONDS + 1
    running = asyncio.create_task(clients.run())
    for _ in range(3):
        await asyncio.sleep(0)
    running.cancel()
    assert gone == ["a", "c"]
    assert len(clients) == 1


def test_what_clients_publish_to_is_bounded(
    clients: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PUBLISHED_MAX", 5)
    one, other = clients.saw("one"), clients.saw("other")
    clients.publishes(one, {"A", "B", "C"})
    clients.publishes(one, {"A", "B", "D"})
    clients.publishes(other, {"A", "B"})  # one too many, and none of them
    assert (one.topics, other.topics) == ({"A", "B", "C", "D"}, set())
    clients.leave("one")
    clients.publishes(other, {"A", "B"})
    clients.publishes(one, {"E"})  # it is gone
    assert (other.topics, one.topics) == ({"A", "B"}, {"A", "B", "C", "D"})
