"""A node inside the test's process that serves the remoting protocol."""

from collections.abc import AsyncIterator

import duolog
import pytest
from duolog.testing._ports import free_endpoint

from duolog_server.serve.server import Node
from tests.compat.remoting.client import Remoting, connected
from tests.nodefixtures import StartNode


@pytest.fixture
async def node(start_node: StartNode) -> Node:
    made = await start_node(remoting={"listen": free_endpoint()})
    async with duolog.Client(f"127.0.0.1:{made.port}", timeout=10) as client:
        await client.admin.create_topic("T", 4)
    return made


@pytest.fixture
async def remoting(node: Node) -> AsyncIterator[Remoting]:
    async with connected(node) as made:
        yield made
