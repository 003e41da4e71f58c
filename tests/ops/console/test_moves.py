"""Queues that move, and that moved, on the pages of the cluster and of a topic."""

import asyncio
from dataclasses import replace
from pathlib import Path

import duolog

from tests.node.moving.fakemoves import with_fakes
from tests.node.replicas import GROUPS, WAIT_SECONDS, broker_of, start_groups
from tests.nodefixtures import StartNode
from tests.ops.console.test_app import browser
from tests.until import until

A, B = GROUPS


async def test_pages_show_queues_that_move_and_that_moved(
    start_node: StartNode, tmp_path: Path
) -> None:
    nodes = await start_groups(start_node, tmp_path)
    endpoint = f"127.0.0.1:{nodes[A].port}"
    async with duolog.Client(endpoint, timeout=WAIT_SECONDS) as client, browser(endpoint) as at:
        await client.admin.create_topic("T", 2)
        for page in ("/", "/topics/T"):
            assert "Queues that move" not in (await at.get(page)).text
        await client.admin.move_queue("T", 1, B, group=A)
        own = broker_of(nodes[B]).moves
        fake = with_fakes(nodes, stays="OPENING")[B]
        moving = asyncio.ensure_future(fake.begin("T", 0, A))
        await until(lambda: len(fake.known) == 1)
        fake.known[0] = replace(fake.known[0], pause_ms=20_000.0)
        topic = (await at.get("/topics/T")).text
        assert f"<td>{B}/2</td>" in topic
        assert f"at {B}/2" in topic
        cluster = (await at.get("/")).text
        for text in (topic, cluster):
            assert f'<th scope="row">T {B}/0</th>' in text
            assert "OPENING" in text
        assert f"Queue T {B}/0: its move to {A} (state OPENING) has held" in cluster
        moving.cancel()
        broker_of(nodes[B]).moves = own
