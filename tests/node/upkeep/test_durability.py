"""Group commit, fencing, deadlines: what an acknowledgement means."""

import asyncio
import contextlib
import errno
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import duolog
import pytest
import structlog
from duolog._connection import Connection
from duolog.wire import duolog_pb2 as wire

from duolog_server.node.upkeep.groupcommit import GroupCommitService
from duolog_server.ops.cli.node import problems_of
from duolog_server.serve.server import Node
from duolog_server.store.mappedfile import FlushJob
from duolog_server.store.offsets import PhyOffset
from duolog_server.store.osdisk import OsFile
from duolog_server.store.status import PutMessageStatus
from tests.node.api.test_messages import append, append_request
from tests.node.replicas import WAIT_SECONDS, broker_of
from tests.nodefixtures import StartNode
from tests.until import until


@pytest.fixture
async def node(start_node: StartNode) -> Node:
    return await start_node(flush_disk_type="SYNC_FLUSH")


Topic = Callable[[Node], Awaitable[duolog.Client]]


@pytest.fixture
async def topic() -> AsyncIterator[Topic]:
    """A client of a node, and a topic `T` with one queue."""
    async with contextlib.AsyncExitStack() as made:

        async def make(node: Node) -> duolog.Client:
            client = duolog.Client(f"127.0.0.1:{node.port}", timeout=20)
            await made.enter_async_context(client)
            await client.admin.create_topic("T", 1)
            return client

        yield make


@pytest.fixture
async def gate(
    single: duolog.Client, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[asyncio.Event]:
    """No flush of the log begins before it is set."""
    opened, loop, run = asyncio.Event(), asyncio.get_running_loop(), FlushJob.run

    def held(self: FlushJob) -> None:
        asyncio.run_coroutine_threadsafe(opened.wait(), loop).result()
        run(self)

    monkeypatch.setattr(FlushJob, "run", held)
    yield opened
    opened.set()


async def test_nothing_is_acknowledged_before_it_is_on_disk(
    node: Node, single: duolog.Client, gate: asyncio.Event
) -> None:
    store = broker_of(node).store
    sending = asyncio.ensure_future(append(single, append_request([b"x"])))
    await asyncio.sleep(0.2)
    assert not sending.done()
    assert (await single.pull("T", 0, 0)).count == 0  # nor is it read
    gate.set()
    assert (await sending).status == wire.PUT_OK
    assert store.flushed_offset >= store.log.max_offset
    assert (await single.pull("T", 0, 0, wait=5)).count == 1


async def test_many_senders_share_one_sync(
    node: Node, single: duolog.Client, gate: asyncio.Event
) -> None:
    service = broker_of(node).log.group_commit
    before = service.flushes
    sends = [
        asyncio.ensure_future(append(single, append_request([b"x"], id=n))) for n in range(1, 201)
    ]
    await until(lambda: len(service._waiters) >= 200)  # the first sync holds all of them up
    gate.set()
    assert {reply.status for reply in await asyncio.gather(*sends)} == {wire.PUT_OK}
    assert service.flushes - before <= 2


@pytest.mark.usefixtures("gate")
async def test_wait_false_is_answered_at_once(single: duolog.Client) -> None:
    reply = await append(single, append_request([b"x"], no_wait=True))
    assert reply.status == wire.PUT_OK


async def test_a_disk_too_slow_is_flush_disk_timeout_and_the_message_is_stored(
    node: Node, single: duolog.Client, gate: asyncio.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_of(node).log.group_commit, "_timeout", 0.3)
    async with single.producer(accept_weak=True) as producer:
        receipt = await producer.send("T", b"late")
    assert receipt.status == "FLUSH_DISK_TIMEOUT"
    async with single.producer() as producer:
        with pytest.raises(duolog.ResultUnknown) as failure:
            await producer.send("T", b"unknown", timeout=1.0)
        assert failure.value.status == "FLUSH_DISK_TIMEOUT"
        sending = asyncio.ensure_future(producer.send("T", b"in time", timeout=60))
        end = broker_of(node).store.log.max_offset
        await until(lambda: broker_of(node).store.log.max_offset > end)
        gate.set()
        assert (await sending).status == "PUT_OK"
    batch = await single.pull("T", 0, 0, wait=5)
    assert batch.body_list() == [b"late", b"unknown", b"in time"], "each is stored once"


def failing(self: OsFile) -> None:
    raise OSError(errno.EIO, "injected")


async def test_a_failed_sync_fences_the_node_and_acknowledges_nothing(
    node: Node, single: duolog.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OsFile, "sync", failing)
    replies = await asyncio.gather(
        *(append(single, append_request([b"x"], id=n)) for n in range(1, 20))
    )
    assert wire.PUT_OK not in {reply.status for reply in replies}
    assert wire.UNKNOWN_ERROR in {reply.status for reply in replies}
    await asyncio.wait_for(broker_of(node).failed.wait(), 20)
    monkeypatch.undo()
    # A sync that works again revives nothing: the lost pages look clean to the kernel.
    reply = await append(single, append_request([b"later"], id=99))
    assert reply.status == wire.SERVICE_NOT_AVAILABLE
    status = await single.admin.node_status()
    assert "sync failed" in status.fence_reason
    async with duolog.Client(f"127.0.0.1:{node.port}", timeout=3) as impatient:
        with pytest.raises(duolog.NotMaster):
            await impatient.admin.create_topic("after")
    await node.stop()
    assert (Path(node.config.node.data) / "abort").exists()


async def test_a_failed_sync_of_queues_fences_too(
    start_node: StartNode, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = await start_node(flush_interval_consume_queue=50)
    client = await topic(node)
    monkeypatch.setattr(OsFile, "sync", failing)
    await append(client, append_request([b"x"]))
    await asyncio.wait_for(broker_of(node).failed.wait(), 15)
    monkeypatch.undo()


async def test_a_background_task_that_fails_fences_the_node(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    def explode(*_: Any) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(broker_of(node).store, "queues_flush", explode)
    await asyncio.wait_for(broker_of(node).failed.wait(), 20)
    assert "a bug" in broker_of(node).store.fence_reason


async def test_waiters_are_released_in_offset_order_and_failed_at_the_end(node: Node) -> None:
    store, threads = broker_of(node).store, broker_of(node).log.threads
    service = GroupCommitService(store, threads, lambda: None, lambda error: None)
    low = service.wait(store.flushed_offset)
    assert low.result() is PutMessageStatus.PUT_OK
    waiting = [service.wait(PhyOffset(1 << 40)), service.wait(PhyOffset(1 << 41))]
    service.fail_all()
    assert [future.result() for future in waiting] == [PutMessageStatus.UNKNOWN_ERROR] * 2


async def test_disk_full_refuses_writes_serves_reads_and_ends(
    node: Node, client: duolog.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = broker_of(node).store
    async with client.producer(timeout=20) as producer:
        await producer.send("T", b"before", queue_id=0)
        monkeypatch.setattr(store.disk, "used_ratio", lambda *_: 0.95)
        store.retention.check_space()
        with pytest.raises(duolog.Retryable, match="DISK_FULL"):
            await producer.send("T", b"during", queue_id=0, timeout=5)
        assert (await client.pull("T", 0, 0)).body_list() == [b"before"]
        monkeypatch.undo()
        store.retention.check_space()
        await producer.send("T", b"after", queue_id=0)


async def test_retention_runs_while_producers_and_readers_work(
    start_node: StartNode, topic: Topic
) -> None:
    node = await start_node(
        clean_resource_interval=50, delete_when=";".join(map(str, range(24))), file_reserved_time=0
    )
    client = await topic(node)
    async with client.producer() as producer:
        for _ in range(40):
            await producer.send_batch("T", [b"x" * 1000] * 200)
            await asyncio.sleep(0.02)
    # until no round can remove more: the last segment stays
    await until(lambda: len(broker_of(node).store.log.queue.files) <= 1)
    (stats,) = await client.admin.topics(["T"])
    low = stats.stats[0].min_offset
    assert low > 0
    batch = await client.pull("T", 0, low)
    assert batch.count > 0
    too_small = await client.pull("T", 0, 0)
    assert (too_small.count, too_small.next_offset) == (0, low)


@pytest.mark.parametrize(
    ("others", "rocketmqs_rule"), [(0, False), (1 << 40, False), (1 << 40, True)]
)
async def test_forced_deletion_of_unexpired_segments_is_logged_as_a_warning_with_the_reason(
    start_node: StartNode,
    topic: Topic,
    monkeypatch: pytest.MonkeyPatch,
    others: int,
    rocketmqs_rule: bool,
) -> None:
    node = await start_node(
        clean_resource_interval=50, clean_file_forcibly_for_others=rocketmqs_rule
    )
    client = await topic(node)
    store = broker_of(node).store
    used_bytes = store.disk.used_bytes
    own = 5 << 20
    monkeypatch.setattr(store.disk, "used_bytes", lambda: (own + others, own))
    assert used_bytes()[1] > 0
    with structlog.testing.capture_logs() as lines:
        monkeypatch.setattr(store.disk, "used_ratio", lambda *_: 0.86)
        async with client.producer() as producer:
            async with asyncio.timeout(20):
                while not (told := [line for line in lines if "segments" in line["event"]]):
                    await producer.send_batch("T", [b"x" * 1000] * 200)
                    await asyncio.sleep(0.02)
        status = await client.admin.node_status()
    assert told[0]["log_level"] == "warning"
    kept = bool(others) and not rocketmqs_rule
    assert ("segments are kept" in told[0]["event"]) is kept
    assert any("other files" in problem for problem in problems_of(status)) is kept
    if kept:
        assert store.log.min_offset == 0
        return
    assert told[0]["segments"][0] == f"commitlog/{0:020}"
    assert (told[0]["disk_used"], told[0]["limit"]) == (0.86, 0.85)
    assert (told[0]["store_bytes"], told[0]["others_bytes"]) == (own, others)
    assert told[0]["mostly"] == ("others' files" if others else "this store")


@pytest.mark.parametrize("others", [0, 3])
async def test_a_lost_answer_is_recovered_or_reported_as_unknown_and_never_stored_twice(
    start_node: StartNode, topic: Topic, monkeypatch: pytest.MonkeyPatch, others: int
) -> None:
    """others: producers that send between the two attempts; the node remembers three."""
    node = await start_node(producers_max=3)
    client = await topic(node)
    append, seen = Connection.append, 0

    async def lost(
        connection: Connection, request: wire.AppendRequest, bodies: bytes, deadline: float
    ) -> wire.AppendReply:
        nonlocal seen
        reply = await append(connection, request, bodies, deadline)
        if bodies == b"mine":
            seen += 1
            if seen == 1:
                for _ in range(others):
                    async with client.producer() as other:
                        await other.send("T", b"theirs")
                raise duolog.Unavailable("the answer is lost")
        return reply

    monkeypatch.setattr(Connection, "append", lost)
    async with client.producer(timeout=5) as producer:
        if others:
            with pytest.raises(duolog.ResultUnknown, match="find the message by its key"):
                await producer.send("T", b"mine")
        else:
            assert (await producer.send("T", b"mine")).duplicate
        assert seen == 2
        assert (await producer.send("T", b"next")).queue_offset == others + 1
    bodies = (await client.pull("T", 0, 0)).body_list()
    assert bodies == [b"mine", *[b"theirs"] * others, b"next"]


async def test_sends_of_a_hundred_producers_in_turn_are_stored_once_and_answered(
    start_node: StartNode, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is forgotten soon; each repeats at once, while it is known."""
    node = await start_node(producers_max=3)
    client = await topic(node)
    append = Connection.append
    answered: set[tuple[bytes, int]] = set()

    async def lost(
        connection: Connection, request: wire.AppendRequest, bodies: bytes, deadline: float
    ) -> wire.AppendReply:
        reply = await append(connection, request, bodies, deadline)
        name = (request.producer_id, request.sequence)
        if name not in answered:
            answered.add(name)
            raise duolog.Unavailable("the first answer is always lost")
        return reply

    monkeypatch.setattr(Connection, "append", lost)
    monkeypatch.setattr("duolog._backoff.FIRST_SECONDS", 0.001)
    for number in range(100):
        async with client.producer(timeout=WAIT_SECONDS) as producer:
            assert (await producer.send("T", b"%d" % number)).queue_offset == number


async def test_the_producer_follows_a_node_through_its_restart(
    start_node: StartNode, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    # the producer's stream stays open
    monkeypatch.setattr("duolog_server.serve.server.GRACE_SECONDS", 0.2)
    node = await start_node()
    listen, data = f"127.0.0.1:{node.port}", node.config.node.data
    client = await topic(node)

    async def restart() -> None:
        await asyncio.sleep(0.3)
        await node.stop()
        await asyncio.sleep(0.3)
        await start_node(data=data, listen=listen)

    sent: list[bytes] = []
    async with client.producer(timeout=30) as producer:
        task = asyncio.ensure_future(restart())
        while not task.done() or len(sent) < 300:
            body = b"%d" % len(sent)
            await producer.send("T", body)
            sent.append(body)
        await task
    found: list[bytes] = []
    offset = 0
    while len(found) < len(sent):
        batch = await client.pull("T", 0, offset, wait=2)
        assert batch.count
        found += batch.body_list()
        offset = batch.next_offset
    assert found == sent
