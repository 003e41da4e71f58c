"""A client of the Admin service of a node that also serves the remoting protocol."""

from collections.abc import AsyncIterator

import duolog
import pytest
from duolog.testing._ports import free_endpoint

from duolog_server.serve.server import Node
from tests.compat.grpc.administration.api import AdminApi
from tests.compat.grpc.api import QUEUES, Api
from tests.nodefixtures import StartNode


@pytest.fixture
async def node(start_node: StartNode) -> Node:
    made = await start_node(remoting={"listen": free_endpoint()})
    async with duolog.Client(f"127.0.0.1:{made.port}", timeout=10) as client:
        await client.admin.create_topic("T", QUEUES)
        await client.admin.put_group("g", retry_times=2)
    return made


@pytest.fixture
async def admin_api(node: Node) -> AsyncIterator[AdminApi]:
    made = AdminApi(node)
    yield made
    await made.close()


@pytest.fixture
async def api(node: Node) -> AsyncIterator[Api]:
    made = Api(node)
    yield made
    await made.close()
