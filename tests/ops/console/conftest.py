"""Pages of the console, as tests look at them."""

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from duolog_server.ops.console import searches as running
from duolog_server.serve.server import Node
from tests.keyfiles import access_files
from tests.nodefixtures import StartNode
from tests.ops.console.test_app import browser, make_users


@pytest.fixture(autouse=True)
def a_page_waits_until_its_search_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine the half second of the first look ends before it."""
    monkeypatch.setattr(running, "FIRST_SECONDS", 20.0)


@pytest.fixture
async def at(node: Node) -> AsyncIterator[httpx.AsyncClient]:
    """A browser at a console of the node."""
    async with browser(f"127.0.0.1:{node.port}") as made:
        yield made


@pytest.fixture
async def guarded(start_node: StartNode, tmp_path: Path) -> str:
    """The endpoint of a node that has the users boss and alice."""
    node = await start_node(access=access_files(tmp_path, "pw"))
    endpoint = f"127.0.0.1:{node.port}"
    await make_users(endpoint)
    return endpoint
