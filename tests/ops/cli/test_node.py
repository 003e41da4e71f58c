"""`duolog node check`: what a probe of a node finds."""

from pathlib import Path

import duolog

from duolog_server.ops.cli.node import probe
from duolog_server.serve.server import Node
from tests.node.replicas import GROUPS, broker_of, start_groups
from tests.nodefixtures import StartNode


def client_of(node: Node) -> duolog.Client:
    return duolog.Client(f"127.0.0.1:{node.port}", timeout=10)


async def test_each_group_is_probed_by_itself(start_node: StartNode, tmp_path: Path) -> None:
    nodes = await start_groups(start_node, tmp_path)
    for name in [*GROUPS, *GROUPS]:
        async with client_of(nodes[name]) as client:
            before = broker_of(nodes[name]).store.log.max_offset
            assert await probe(client, await client.admin.node_status(), 30.0) == ""
            assert broker_of(nodes[name]).store.log.max_offset > before
    await nodes["broker-b"].stop()
    async with client_of(nodes["broker-a"]) as client:
        assert await probe(client, await client.admin.node_status(), 30.0) == ""
