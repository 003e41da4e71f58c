"""Deletion of a topic, while clients work and topics of the same name are created."""

import asyncio
from collections.abc import AsyncIterator

import duolog
import pytest

from duolog_server.node.broker import Broker
from duolog_server.serve.server import Node
from duolog_server.store import dump
from tests.node.replicas import broker_of
from tests.nodefixtures import StartNode
from tests.until import until


@pytest.fixture
async def node(start_node: StartNode) -> Node:
    return await start_node(limits={"auto_create_topic": True, "default_topic_queues": 1})


@pytest.fixture
async def client(node: Node) -> AsyncIterator[duolog.Client]:
    async with duolog.Client(f"127.0.0.1:{node.port}", timeout=10) as made:
        yield made


async def send(client: duolog.Client, *bodies: bytes) -> None:
    async with client.producer() as producer:
        await producer.send_batch("T", list(bodies), queue_id=0)


async def stored(client: duolog.Client) -> list[bytes]:
    batch = await client.pull("T", 0, 0)
    if not batch.count:  # the first offsets are gone
        batch = await client.pull("T", 0, batch.next_offset)
    return batch.body_list()


async def deleting(broker: Broker) -> "asyncio.Task[None]":
    """A deletion whose record is applied, and whose queues are not removed yet."""
    work = asyncio.ensure_future(broker.metadata.delete_topic("T"))
    await until(lambda: "T" not in broker.metadata.topics)
    return work


async def test_a_topic_recreated_while_its_queues_are_removed_keeps_its_messages(
    node: Node, client: duolog.Client
) -> None:
    broker = broker_of(node)
    await client.admin.create_topic("T", 1)
    await send(client, b"old 0", b"old 1")
    async with broker.log.file_work.changes:  # as a flush has it
        work = await deleting(broker)
        await client.admin.create_topic("T", 1)
        await send(client, b"new 0", b"new 1")
        assert await stored(client) == [b"new 0", b"new 1"]
    await work
    assert await stored(client) == [b"new 0", b"new 1"]
    await send(client, b"new 2")
    assert await stored(client) == [b"new 0", b"new 1", b"new 2"]


async def test_an_interrupted_topic_deletion_is_finished_and_restores_nothing(
    node: Node, client: duolog.Client
) -> None:
    broker = broker_of(node)
    await client.admin.create_topic("T", 1)
    await client.admin.create_topic("U", 1)
    await send(client, b"old")
    async with broker.log.file_work.changes:
        work = await deleting(broker)
        work.cancel()  # as gRPC does at a call's deadline
        await asyncio.gather(work, return_exceptions=True)
        await send(client, b"new")  # which makes the topic
        assert await stored(client) == [b"new"]
        await broker.metadata.change({"op": "delete_topic", "topic": "T", "floors": {"0": 2}})
    await until(lambda: broker.store.queues.get("T", 0) is None)


async def test_the_event_loop_keeps_running_while_many_queues_are_removed(
    node: Node, client: duolog.Client
) -> None:
    broker, queues = broker_of(node), 50
    await client.admin.create_topic("T", queues)
    async with client.producer() as producer:
        for queue_id in range(queues):
            await producer.send("T", b"x", queue_id=queue_id)
    seen: set[int] = set()

    async def watch() -> None:
        while True:
            seen.add(sum(topic == "T" for topic, _ in broker.store.queues.table))
            await asyncio.sleep(0)

    watching = asyncio.ensure_future(watch())
    await client.admin.delete_topic("T")
    watching.cancel()
    assert seen == set(range(queues + 1))


async def test_a_check_of_the_directory_misses_nothing_of_deleted_topics(
    node: Node, client: duolog.Client
) -> None:
    for topic in ("T", "U"):
        await client.admin.create_topic(topic, 2)
        async with client.producer() as producer:
            await producer.send_batch(topic, [b"old"] * 3, queue_id=0)
        await client.admin.delete_topic(topic)
    await client.admin.create_topic("T", 1)
    await send(client, b"new")
    store = broker_of(node).store
    await node.stop()
    assert dump.check(store.disk, store.options)["problems"] == []
    for name in store.disk.list("consumequeue/T/0"):
        store.disk.remove(f"consumequeue/T/0/{name}")
    assert dump.check(store.disk, store.options)["problems"] == [
        "consumequeue/T/0: has no files for its 1 entries"
    ]
