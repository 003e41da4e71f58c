"""A node inside the test's process, asked with the stubs of RocketMQ's API."""

from collections.abc import AsyncIterator
from pathlib import Path

import duolog
import pytest

from duolog_server.serve.server import Node
from tests.compat.grpc.api import QUEUES, Api, close_all
from tests.node.replicas import start_groups
from tests.nodefixtures import StartNode


@pytest.fixture
async def node(start_node: StartNode) -> Node:
    made = await start_node()
    async with duolog.Client(f"127.0.0.1:{made.port}", timeout=10) as client:
        await client.admin.create_topic("T", QUEUES)
        for group in ("g", "h"):
            await client.admin.put_group(group, retry_times=2)
        await client.admin.put_group("fifo", orderly=True, retry_times=2)
    return made


@pytest.fixture(autouse=True)
async def clients_end_with_their_test(start_node: StartNode) -> AsyncIterator[None]:
    """Before the nodes do."""
    yield
    await close_all()


@pytest.fixture
async def api(node: Node) -> Api:
    return Api(node)


@pytest.fixture
async def nodes(start_node: StartNode, tmp_path: Path) -> dict[str, Node]:
    """A node of each of two replica groups, by its group; there is a topic T."""
    found = await start_groups(start_node, tmp_path)
    async with duolog.Client(f"127.0.0.1:{found['broker-a'].port}", timeout=10) as client:
        await client.admin.create_topic("T", 2)
    return found
