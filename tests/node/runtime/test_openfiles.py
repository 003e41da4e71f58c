"""A node takes as many open files as it may have."""

import asyncio
import resource

import pytest
from structlog.testing import capture_logs

from duolog_server.node.runtime import openfiles
from duolog_server.node.runtime.config import Config
from duolog_server.serve import server
from tests.nodefixtures import StartNode


def test_the_limit_is_raised_as_far_as_it_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (1024, 4096))
    monkeypatch.setattr(resource, "setrlimit", lambda kind, limits: given.append(limits))
    openfiles.raise_limit()
    assert given == [(4096, 4096)]


@pytest.mark.parametrize(
    ("limit", "fits"),
    [(resource.RLIM_INFINITY, 3500), (1 << 20, 3500), (4096, 896), (1024, 128), (100, 16)],
)
def test_connections_leave_the_store_its_files(
    monkeypatch: pytest.MonkeyPatch, limit: int, fits: int
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (limit, limit))
    assert openfiles.connections_that_fit(3500, ports=4) == fits


def test_a_node_that_may_open_few_files_takes_fewer_connections(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (1024, 1024))
    config = Config.model_validate({"remoting": {"listen": "127.0.0.1:0"}})
    with capture_logs() as logged:
        fitted = server.with_files_for(config)
    assert fitted.limits.connections_max == (1024 - openfiles.OWN_FILES) // 3
    assert "connections_max" in logged[0]["reason"]
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (1 << 20, 1 << 20))
    assert server.with_files_for(config) is config


@pytest.mark.parametrize(
    ("limit", "fits"),
    [(resource.RLIM_INFINITY, 256), (4096, 256), (1024, 64), (256, 16), (100, 16)],
)
def test_slaves_leave_the_store_its_files(
    monkeypatch: pytest.MonkeyPatch, limit: int, fits: int
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (limit, limit))
    assert openfiles.slaves_that_fit(256) == fits


async def test_a_flood_of_the_replication_port_takes_few_files(
    start_node: StartNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Anybody may connect to it: 256 connections took all files of a node with `ulimit -n 256`,
    and its store could not sync.
    """
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (256, 256))
    node = await start_node(ha={"listen": "127.0.0.1:0"})
    lines = [await asyncio.open_connection("127.0.0.1", node.ha_port) for _ in range(60)]
    greeted = await asyncio.gather(*(reader.read(1) for reader, _ in lines))
    assert len([one for one in greeted if one]) <= openfiles.LEAST
    for _, writer in lines:
        writer.transport.abort()
