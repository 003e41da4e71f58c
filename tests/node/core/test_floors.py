"""Floors of deleted topics, where the tables are newer than the log."""

from pathlib import Path

import duolog

from duolog_server.node.broker import Broker
from duolog_server.store.clocks import WallMs
from duolog_server.store.metadatafiles import MetadataFiles, Snapshots
from duolog_server.store.osdisk import OsDisk
from tests.node.replicas import StartNode, broker_of


async def test_a_floor_beyond_the_end_of_a_queue_hides_no_message_that_is_stored_later(
    tmp_path: Path, start_node: StartNode
) -> None:
    """As where a backup of commitlog/ was put back, and not the config/ beside it."""
    node = await start_node()
    async with duolog.Client(f"127.0.0.1:{node.port}") as client, client.producer() as producer:
        await client.admin.create_topic("T", 1)
        await producer.send_batch("T", [b"old"] * 20, queue_id=0)
    await node.stop()
    disk = OsDisk(node.config.node.data)
    newer = Snapshots.read(disk).found[0]
    newer.tables.floors["T"] = {0: 50, 1: 7}
    MetadataFiles(disk).write(newer.tables.snapshot(), newer.place, WallMs(0), newer.ends)
    node = await start_node()
    async with duolog.Client(f"127.0.0.1:{node.port}") as client, client.producer() as producer:
        receipt = await producer.send("T", b"new", queue_id=0)
        found = await client.pull("T", 0, receipt.queue_offset)
        assert (receipt.queue_offset, found.body_list()) == (20, [b"new"])
    broker: Broker = broker_of(node)
    assert broker.store.dispatcher.refused == 0
    assert broker.metadata.tables.floors["T"] == {0: 20, 1: 7}, "a queue without files begins there"
