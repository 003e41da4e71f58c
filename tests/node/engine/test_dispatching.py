"""When a group's messages are dispatched: at once if somebody waits for them, else in a moment."""

import asyncio
from pathlib import Path

import duolog
import pytest
from duolog.wire import duolog_pb2 as wire

from node.core.metadatalog import MetadataLog
from node.engine.log import Log
from node.server import Node
from store.metadata import TopicConfig
from tests.node.conftest import StartNode
from tests.node.replicas import Group, broker_of, caught_up, until

SOON_SECONDS = 10.0  # far less than the moment is in these tests


@pytest.fixture
async def pair(
    start_node: StartNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Group, Node, Node]:
    """A master and its slave with a topic, in which nothing is dispatched by time alone."""
    # Ticks and flushes dispatch as well.
    monkeypatch.setattr("node.engine.log.TICK_SECONDS", 600)
    monkeypatch.setattr(Log, "_flushed", lambda log: log.replicas.flushed())
    group = Group(start_node, tmp_path)
    master, slave = await group.start_master(), await group.start_slave()
    machine = broker_of(master).replication.master
    assert machine is not None
    await until(lambda: machine.in_sync() == 2)
    async with group.client(master) as client:
        await client.admin.create_topic("T", 1)
    await caught_up(master, slave)
    monkeypatch.setattr("node.engine.log.LATER_SECONDS", 600)
    for node in (master, slave):
        broker_of(node).log.catch_up()  # what still comes within a short moment
    return group, master, slave


def dispatched(node: Node) -> int:
    return broker_of(node).store.dispatcher.reput_from


async def test_what_was_answered_is_dispatched_before_a_read(
    pair: tuple[Group, Node, Node],
) -> None:
    group, master, slave = pair
    before = dispatched(master), dispatched(slave)
    async with group.client(master) as client, client.producer() as producer:
        for k in range(3):
            await producer.send("T", b"%d" % k)
        confirmed = broker_of(master).store.confirm_offset
        theirs = broker_of(slave).store
        await until(lambda: theirs.confirm_offset == confirmed)
        assert (dispatched(master), dispatched(slave)) == before, "nobody waits for them"
        assert len((await client.pull("T", 0, 0)).body_list()) == 3
    async with group.client(slave) as reader, asyncio.timeout(SOON_SECONDS):
        assert len((await reader.pull("T", 0, 0)).body_list()) == 3


async def test_readers_who_wait_get_it_at_once(pair: tuple[Group, Node, Node]) -> None:
    group, master, slave = pair
    request = wire.PullRequest(topic="T", max_messages=1, wait_ms=30_000)

    async def poll(client: duolog.Client) -> wire.ReadStatus:
        reply = await client._router.seed.messages.Pull(request)
        return reply.status

    async with (
        group.client(master) as client,
        group.client(slave) as reader,
        client.producer() as producer,
        asyncio.timeout(SOON_SECONDS),
        asyncio.TaskGroup() as tasks,
    ):
        polls = [tasks.create_task(poll(one)) for one in (client, reader)]
        await until(lambda: all(len(broker_of(node).log.board) for node in (master, slave)))
        await producer.send("T", b"x")
        assert [await one for one in polls] == [wire.FOUND, wire.FOUND]


async def test_a_subscription_begins_with_what_was_answered(pair: tuple[Group, Node, Node]) -> None:
    group, master, _ = pair
    async with (
        group.client(master) as client,
        client.producer() as producer,
        asyncio.timeout(SOON_SECONDS),
    ):
        await client.admin.topics()
        before = dispatched(master)
        await producer.send("T", b"x")
        assert dispatched(master) == before, "nobody waits for it"
        stream = client._router.seed.messages.Subscribe()
        begin = wire.QueueOffset(topic="T", queue_id=0, offset=0)
        await stream.write(wire.SubscribeRequest(add=[begin], credit_bytes=1 << 20))
        await until(lambda: len(broker_of(master).log.board) > 0)
        assert dispatched(master) > before
        batch = await stream.read()
        stream.cancel()
    assert isinstance(batch, wire.MessageBatch)
    assert batch.count == 1


async def test_a_slave_takes_its_time_unless_a_reader_waits(pair: tuple[Group, Node, Node]) -> None:
    _, _, slave = pair
    log, loop = broker_of(slave).log, asyncio.get_running_loop()

    def seconds() -> float:
        log.catch_up()
        log.applied()
        assert log._later is not None
        return log._later.when() - loop.time()

    assert seconds() > 300
    log.board.watch(("T", 0), asyncio.Event())
    assert seconds() < 1


async def test_a_change_of_the_tables_waits_for_no_moment(
    pair: tuple[Group, Node, Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, master, _ = pair
    monkeypatch.setattr(MetadataLog, "note", lambda self, change: None)  # its put dispatches, too
    async with asyncio.timeout(SOON_SECONDS):
        await broker_of(master).metadata.put_topic(TopicConfig("U", 1))
