"""A consumer's stream through seeks, rebalances and breaks: it never stalls, and leaks nothing."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import duolog
import grpc.aio
import pytest
from duolog import _groupreader, _prefetch
from duolog._groupreader import GroupReader
from duolog._membership import Queue, Share
from duolog.wire import duolog_pb2 as wire
from duolog.wire.duolog_pb2_grpc import MessagesStub

from duolog_server.node.api import messages
from duolog_server.node.api.native import messages_of
from duolog_server.serve.server import Node
from duolog_server.store.metadata import TopicConfig
from tests.node.replicas import WAIT_SECONDS, broker_of
from tests.nodefixtures import StartNode, received
from tests.until import until

SMALL_CREDIT = 64 << 10
SMALL_BATCH = 4 << 10
ALL = {("T", queue) for queue in range(4)}


@pytest.fixture
def open_streams(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Every Subscribe call that the node serves now."""
    streams: list[Any] = []
    made, closed = messages._Subscription.__init__, messages._Subscription.close

    def opened(self: Any, *args: Any) -> None:
        made(self, *args)
        streams.append(self)

    def ended(self: Any) -> None:
        closed(self)
        streams.remove(self)

    monkeypatch.setattr(messages._Subscription, "__init__", opened)
    monkeypatch.setattr(messages._Subscription, "close", ended)
    return streams


@pytest.fixture
def small_credit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A budget that a test uses up quickly, and no heartbeats but those the test makes."""
    monkeypatch.setattr(_groupreader, "HEARTBEAT_SECONDS", 300.0)
    monkeypatch.setattr(_groupreader, "CREDIT_BYTES", SMALL_CREDIT)
    monkeypatch.setattr(_groupreader, "BATCH_BYTES", SMALL_BATCH)


@contextmanager
def shares(reader: GroupReader) -> Iterator[list[set[Queue]]]:
    """Say what the next heartbeats answer: the last set holds for all that follow."""
    membership: Any = reader._membership
    told: list[set[Queue]] = [set(ALL)]
    share = membership.share

    async def answered(owned: Any) -> Share:
        await share(owned)
        return Share(set(told[-1]))

    membership.share = answered
    yield told
    membership.share = share


async def fill(client: duolog.Client, count: int, size: int = 1000) -> None:
    async with client.producer() as producer:
        await asyncio.gather(
            *(producer.send("T", b"%d " % k + bytes(size), queue_id=k % 4) for k in range(count))
        )


def reader_of(consumer: duolog.Consumer) -> GroupReader:
    (reader,) = consumer._readers.values()
    return reader


def tasks_of_the_sdk() -> int:
    """Tasks that run the client's code; gRPC's own come and go."""
    names = [getattr(task.get_coro(), "__qualname__", "") for task in asyncio.all_tasks()]
    kinds = ("GroupReader.", "Subscription.", "Consumer.", "SharingMember.")
    return sum(name.startswith(kinds) for name in names)


async def read_to_the_end(consumer: duolog.Consumer, count: int) -> dict[int, list[int]]:
    """Queue offsets of so many messages, and of what else comes within half a second."""
    found: dict[int, list[int]] = {queue: [] for queue in range(4)}
    while (message := await consumer.get(WAIT_SECONDS if count > 0 else 0.5)) is not None:
        found[message.queue_id].append(message.queue_offset)
        count -= 1
    return found


@pytest.mark.usefixtures("small_credit")
async def test_a_stream_cancelled_while_it_ends_watches_no_queue(
    start_node: StartNode, open_streams: list[Any], tmp_path: Path
) -> None:
    """gRPC cancels a call again while its reader, which lost its cancellation, is waited for."""
    broker = broker_of(await start_node(tmp_path / "d"))
    await broker.metadata.put_topic(TopicConfig("T", 1))
    reading, over = asyncio.Event(), asyncio.Event()

    async def requests() -> AsyncIterator[wire.SubscribeRequest]:
        yield wire.SubscribeRequest(add=[wire.QueueOffset(topic="T")], credit_bytes=1)
        with contextlib.suppress(asyncio.CancelledError):
            reading.set()
            await asyncio.sleep(60)
        reading.set()
        await over.wait()

    service = messages_of(broker)
    context: Any = SimpleNamespace(peer=lambda: "ipv4:127.0.0.1:1")  # nothing is answered
    call = asyncio.ensure_future(service.Subscribe(requests(), context))
    for _ in range(2):
        await reading.wait()
        reading.clear()
        assert not call.done()
        call.cancel()
    await asyncio.sleep(0)
    assert not call.done()
    over.set()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert (open_streams, len(broker.log.board)) == ([], 0)


async def test_messages_are_counted_by_groups_that_exist(node: Node, client: duolog.Client) -> None:
    """A reader may name any group: of names that clients make up, the figures keep none."""
    await fill(client, 4)
    await client.admin.put_group("known")
    begin = wire.SubscribeRequest(add=[wire.QueueOffset(topic="T")], credit_bytes=1 << 20)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{node.port}") as channel:
        for group in ("known", "made-up"):
            begin.group = group
            stream: Any = MessagesStub(channel).Subscribe(timeout=WAIT_SECONDS)
            await stream.write(begin)
            assert (await stream.read()).count == 1
            stream.cancel()
    delivered = broker_of(node).core.traffic.delivered.table
    assert {key: flow.messages for key, flow in delivered.items()} == {
        ("T", "known", False): 1,
        ("T", "", False): 1,
    }


async def test_a_hundred_seeks_do_not_stop_a_consumer(client: duolog.Client) -> None:
    """Messages that a seek drops return their credit to the node."""
    await fill(client, 400)
    async with client.consumer("G", "T") as consumer:
        for turn in range(100):
            assert await consumer.get(WAIT_SECONDS) is not None
            if turn % 10 == 9:
                await consumer.seek_to_time(0)
            else:
                await consumer.seek("T", turn % 4, 0)
        for queue in range(4):
            await consumer.seek("T", queue, 0)
        assert await read_to_the_end(consumer, 400) == {q: list(range(100)) for q in range(4)}


@pytest.mark.usefixtures("small_credit")
async def test_a_hundred_rebalances_leak_no_stream_task_or_credit(
    client: duolog.Client, open_streams: list[Any]
) -> None:
    await fill(client, 400)
    async with client.consumer("G", "T", session=300) as consumer:
        reader = reader_of(consumer)
        assert await consumer.get(WAIT_SECONDS) is not None
        tasks = tasks_of_the_sdk()
        with shares(reader) as told:
            for turn in range(100):
                told.append({("T", turn % 4)} if turn % 2 == 0 else ALL)
                await reader._heartbeat()
                assert set(consumer.assignment) == told[-1]
                if turn % 5 == 0:
                    await consumer.get(0.05)
            assert len(open_streams) == 1
            assert tasks_of_the_sdk() == tasks
            await consumer.seek_to_time(0)
            assert await read_to_the_end(consumer, 400) == {q: list(range(100)) for q in range(4)}
    assert tasks_of_the_sdk() == 0
    await until(lambda: not open_streams)  # the node is told, and does not answer


async def test_a_queue_that_returns_is_read_from_after_the_message_in_hand(
    client: duolog.Client,
) -> None:
    await fill(client, 40)
    async with client.consumer("G", "T", session=300) as consumer:
        reader = reader_of(consumer)
        first = await received(consumer)
        queue = ("T", first.queue_id)
        with shares(reader) as told:
            for share in (set(), ALL, ALL - {queue}, ALL):
                told.append(share)
                await reader._heartbeat()
            await consumer.commit()
            assert (await client.admin.group("G")).queues[first.queue_id].committed in (None, 0, -1)
            found = await read_to_the_end(consumer, 39)
    assert found[first.queue_id] == list(range(1, 10))


@pytest.mark.usefixtures("small_credit")
async def test_a_stream_that_is_opened_again_never_reads_a_queue_that_was_taken_away(
    client: duolog.Client, open_streams: list[Any]
) -> None:
    """The stream breaks, and while it is opened again a heartbeat takes queues away."""
    await fill(client, 400)
    chance = random.Random(7)
    async with client.consumer("G", "T", session=300) as consumer:
        reader = reader_of(consumer)
        assert await consumer.get(WAIT_SECONDS) is not None
        tasks = tasks_of_the_sdk()
        with shares(reader) as told:
            for turn in range(100):
                await reader._reading._let_go()
                await asyncio.sleep(chance.choice([0, 0, 0.001, 0.03, 0.1]))
                told.append({("T", turn % 4)} if turn % 2 == 0 else ALL)
                await reader._heartbeat()
                message = await consumer.get(0.01)
                assert message is None or ("T", message.queue_id) in told[-1]
            told.append({("T", 2)})
            await reader._heartbeat()
            await until(lambda: [set(s._cursors) for s in open_streams] == [told[-1]])
            assert tasks_of_the_sdk() == tasks
            await consumer.seek("T", 2, 0)
            assert (await read_to_the_end(consumer, 100))[2] == list(range(100))
    await until(lambda: open_streams == [])
    assert tasks_of_the_sdk() == 0


@pytest.mark.usefixtures("small_credit")
async def test_a_get_that_is_cancelled_loses_no_message(client: duolog.Client) -> None:
    await fill(client, 200)
    chance = random.Random(7)
    seen: dict[int, list[int]] = {queue: [] for queue in range(4)}
    async with client.consumer("G", "T", commit_interval=0.01) as consumer:
        async with asyncio.timeout(30):
            while sum(map(len, seen.values())) < 200:
                getting = asyncio.ensure_future(consumer.get())
                await asyncio.sleep(chance.choice([0, 0, 0.001]))
                getting.cancel()
                (found,) = await asyncio.gather(getting, return_exceptions=True)
                if isinstance(found, duolog.Message):
                    seen[found.queue_id].append(found.queue_offset)
    assert seen == {queue: list(range(50)) for queue in range(4)}


async def test_all_queues_are_served_while_credit_is_short(
    client: duolog.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Credit for one batch at a time goes to one queue after the other, not to the first one."""
    monkeypatch.setattr(_groupreader, "CREDIT_BYTES", SMALL_BATCH)
    monkeypatch.setattr(_groupreader, "BATCH_BYTES", SMALL_BATCH)
    await fill(client, 400)
    async with client.consumer("G", "T") as consumer:
        found = [await consumer.get(WAIT_SECONDS) for _ in range(60)]
    assert {message.queue_id for message in found if message is not None} == {0, 1, 2, 3}


async def test_prefetch_of_messages_without_bodies_is_bounded(
    start_node: StartNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They cost no credit; the stream is not read while many batches of them wait."""
    monkeypatch.setattr(_prefetch, "BATCHES_MAX", 8)
    node = await start_node(limits={"pull_messages_max": 100})
    async with duolog.Client(f"127.0.0.1:{node.port}") as client:
        await client.admin.create_topic("T", 1)
        async with client.producer() as producer:
            for _ in range(20):
                await producer.send_batch("T", [b""] * 500)
        async with client.consumer("G", "T", session=300) as consumer:
            reader = reader_of(consumer)
            await until(lambda: reader._prefetch.full)
            await asyncio.sleep(0.1)
            assert len(reader._prefetch._ready) == 8
            assert (await read_to_the_end(consumer, 10_000))[0] == list(range(10_000))


async def test_get_and_get_batch_may_alternate_between_batches(
    client: duolog.Client, producer: duolog.Producer
) -> None:
    await client.admin.create_topic("one", 1)
    await producer.send_batch("one", [b"0", b"1"])
    async with client.consumer("G", "one") as consumer:
        assert await consumer.get(WAIT_SECONDS) is not None
        with pytest.raises(duolog.BadRequest, match="1 messages of the current batch"):
            await consumer.get_batch(5.0)
        assert await consumer.get(WAIT_SECONDS) is not None
        await producer.send_batch("one", [b"2", b"3"])
        batch = await consumer.get_batch(5.0)
        assert batch is not None
        assert batch.body_list() == [b"2", b"3"]


async def test_a_consumer_that_failed_to_start_leaves_no_tasks(
    client: duolog.Client, open_streams: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is cancelled or refused at any moment of its start."""

    async def start(cancel_after: int) -> bool:
        entering = asyncio.ensure_future(client.consumer("G", "T").__aenter__())
        for _ in range(cancel_after):
            await asyncio.sleep(0)
        entering.cancel()
        (entered,) = await asyncio.gather(entering, return_exceptions=True)
        if not isinstance(entered, duolog.Consumer):
            return False
        await entered.close()
        return True

    for moment in range(0, 100, 3):
        await start(moment)
        assert tasks_of_the_sdk() == 0
    await until(lambda: open_streams == [])
