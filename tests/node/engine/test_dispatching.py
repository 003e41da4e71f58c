"""When a group's messages are dispatched: at once if somebody waits for them, else in a moment."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import duolog
import pytest
from duolog.wire import duolog_pb2 as wire

from duolog_server.node.core.metadatalog import MetadataLog
from duolog_server.node.engine.log import Log
from duolog_server.serve.server import Node
from duolog_server.store.errors import StoreFenced
from duolog_server.store.metadata import TopicConfig
from duolog_server.store.offsets import PhyOffset
from tests.node.replicas import Group, broker_of, caught_up, master_of
from tests.nodefixtures import StartNode
from tests.until import until

SOON_SECONDS = 10.0  # far less than the moment is in these tests


@pytest.fixture
async def pair(
    start_node: StartNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Group, Node, Node]:
    """A master and its slave with a topic, in which nothing is dispatched by time alone."""
    # Ticks and flushes dispatch as well.
    monkeypatch.setattr("duolog_server.node.engine.log.TICK_SECONDS", 600)
    monkeypatch.setattr(Log, "_flushed", lambda log: log.replicas.flushed())
    group = Group(start_node, tmp_path)
    master, slave = await group.start_master(), await group.start_slave()
    machine = master_of(master)
    await until(lambda: machine.in_sync() == 2)
    async with group.client(master) as client:
        await client.admin.create_topic("T", 1)
    await caught_up(master, slave)
    monkeypatch.setattr("duolog_server.node.engine.log.LATER_SECONDS", 600)
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

    assert seconds() > 30
    log.board.watch(("T", 0), asyncio.Event())
    log.applied()
    assert log._later is not None
    assert log._later.when() - loop.time() < 1, "a reader came: what was planned is too late"
    assert seconds() < 1


async def test_a_dispatch_that_waited_for_half_of_the_delay_comes_behind_the_next_answer(
    pair: tuple[Group, Node, Node],
) -> None:
    group, master, _ = pair
    async with group.client(master) as client, client.producer() as producer:
        await producer.send("T", b"x")
        before, end = dispatched(master), broker_of(master).store.max_offset
        await producer.send("T", b"y")
        assert dispatched(master) == before < end, "it has hardly waited"
        broker_of(master).log._later_since -= 301
        await producer.send("T", b"z")
        await until(lambda: dispatched(master) >= end)


async def test_much_is_dispatched_earlier_behind_an_answer_than_little(
    pair: tuple[Group, Node, Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    group, master, _ = pair
    async with group.client(master) as client, client.producer() as producer:
        await producer.send("T", b"x")
        end = broker_of(master).store.max_offset
        broker_of(master).log._later_since -= 100
        await producer.send("T", b"y")
        assert dispatched(master) < end, "a few messages wait for half of it"
        monkeypatch.setattr("duolog_server.node.engine.log.MANY_BYTES", 1)
        await producer.send("T", b"z")
        await until(lambda: dispatched(master) >= end)


async def test_what_others_follow_is_dispatched_soon(pair: tuple[Group, Node, Node]) -> None:
    _, master, _ = pair
    log, loop = broker_of(master).log, asyncio.get_running_loop()
    log.followers = 1
    log.answered()
    log.replicated()
    assert log._later is not None
    assert log._later.when() - loop.time() < 100, "a tenth of the delay"


async def test_what_a_new_master_needs_before_it_answers_is_dispatched_at_once(
    pair: tuple[Group, Node, Node],
) -> None:
    group, master, _ = pair
    async with group.client(master) as client, client.producer() as producer:
        await producer.send("T", b"x")
        end = broker_of(master).store.max_offset
        assert dispatched(master) < end, "nobody waits for it"
        master_of(master).barrier_end = PhyOffset(end)  # as if it were its first record
        broker_of(master).replication.confirmed()
        assert broker_of(master).log._next is not None, "in the next turn"
        await until(lambda: dispatched(master) >= end)


async def test_a_change_of_the_tables_waits_for_no_moment(
    pair: tuple[Group, Node, Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, master, _ = pair
    monkeypatch.setattr(MetadataLog, "note", lambda self, change: None)  # its put dispatches, too
    async with asyncio.timeout(SOON_SECONDS):
        await broker_of(master).metadata.put_topic(TopicConfig("U", 1))


# -- more than a few ms of work --------------------------------------------------------------------

MANY = 30_000  # messages: dispatched in several steps
READS: dict[str, Callable[[duolog.Client], Awaitable[int]]] = {}


def read(method: Callable[[duolog.Client], Awaitable[int]]) -> Callable[..., Awaitable[int]]:
    READS[method.__name__] = method
    return method


@read
async def by_pull(client: duolog.Client) -> int:
    return MANY - 1 + len((await client.pull("T", 0, MANY - 1)).body_list())


@read
async def by_queue_list(client: duolog.Client) -> int:
    return (await client.admin.topics(["T"]))[0].stats[0].max_offset


@read
async def by_end(client: duolog.Client) -> int:
    return await client.admin.offset_at_time("T", 0, duolog.Start.LATEST)


@read
async def by_key(client: duolog.Client) -> int:
    return (await client.admin.find("T", key="last"))[0].queue_offset + 1


@read
async def by_subscription(client: duolog.Client) -> int:
    stream = client._router.seed.messages.Subscribe()
    begin = wire.QueueOffset(topic="T", queue_id=0, offset=MANY - 1)
    await stream.write(wire.SubscribeRequest(add=[begin], credit_bytes=1 << 20))
    batch = await stream.read()
    stream.cancel()
    assert isinstance(batch, wire.MessageBatch)
    return batch.max_offset


@pytest.fixture
async def with_a_backlog(
    start_node: StartNode, monkeypatch: pytest.MonkeyPatch, nothing_noted: None
) -> AsyncIterator[tuple[Node, duolog.Client]]:
    """A node that dispatches step by step, and has MANY messages that nothing has dispatched."""
    monkeypatch.setattr("duolog_server.node.engine.log.TICK_SECONDS", 600)
    monkeypatch.setattr(Log, "_flushed", lambda log: log.replicas.flushed())
    node = await start_node(mapped_file_size_commit_log=64 << 20)
    log = broker_of(node).log
    async with duolog.Client(broker_of(node).advertised) as client, client.producer() as producer:
        await client.admin.create_topic("T", 1)
        await client.admin.topics()
        monkeypatch.setattr("duolog_server.node.engine.log.LATER_SECONDS", 600)
        monkeypatch.setattr(Log, "_dispatch_a_while", lambda log: log.store.dispatch())
        before = dispatched(node)
        keys = [["last"] if k == MANY - 1 else [] for k in range(MANY)]
        await producer.send_batch("T", [b"x"] * MANY, keys=keys, queue_id=0)
        assert dispatched(node) == before, "nobody waits for it"
        log.store.dispatch()
        assert dispatched(node) < log.confirm_offset, "it takes several steps"
        yield node, client


@pytest.mark.parametrize("how", READS)
async def test_a_read_sees_a_large_batch_that_was_answered(
    with_a_backlog: tuple[Node, duolog.Client], how: str
) -> None:
    _, client = with_a_backlog
    async with asyncio.timeout(SOON_SECONDS):
        assert await READS[how](client) == MANY


async def test_a_read_waits_for_no_dispatch_that_does_not_go_on(
    with_a_backlog: tuple[Node, duolog.Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    node, _ = with_a_backlog
    log = broker_of(node).log
    with monkeypatch.context() as patch:
        patch.setattr("duolog_server.node.engine.log.CATCH_UP_SECONDS", 600)
        patch.setattr(log.store, "dispatch", lambda: False)  # the disk is full
        async with asyncio.timeout(SOON_SECONDS):
            await log.caught_up()
        patch.setattr(log.store, "dispatch", lambda: True)  # there is always more
        log.pump_soon()
        patch.setattr("duolog_server.node.engine.log.CATCH_UP_SECONDS", 0.01)
        async with asyncio.timeout(SOON_SECONDS):
            await log.caught_up()
    assert dispatched(node) < log.confirm_offset


async def test_a_read_that_waits_for_dispatch_learns_of_its_failure(
    with_a_backlog: tuple[Node, duolog.Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    node, _ = with_a_backlog
    broker, dispatch = broker_of(node), broker_of(node).store.dispatch
    steps = iter([dispatch])

    def breaks() -> bool:
        step = next(steps, None)
        if step is None:
            raise ValueError("a bug")
        return step()

    monkeypatch.setattr(broker.store, "dispatch", breaks)
    with pytest.raises(StoreFenced, match="a bug"):
        await broker.log.caught_up()
