"""Work that must not wait for a slow disk or slow replicas: ticks, preallocation, ended leases."""

import asyncio
import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duolog
import pytest

from duolog_server.node.filters.tagfilter import EVERYTHING
from duolog_server.node.pop.popservice import PopRequest
from duolog_server.serve.server import Node
from duolog_server.store import osdisk
from duolog_server.store.mappedfile import FlushJob
from tests.node.replicas import broker_of
from tests.nodefixtures import StartNode
from tests.until import until


class Gate:
    """Something that threads stand before."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.reached = threading.Event()

    def wait(self) -> None:
        self.reached.set()
        assert self.open.wait(30), "nobody opened the gate"


@pytest.fixture
def gate() -> Iterator[Gate]:
    made = Gate()
    yield made
    made.open.set()


async def test_a_long_sync_delays_neither_ticks_nor_allocation(
    start_node: StartNode, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = await start_node(flush_interval_commit_log=100, flush_commit_log_least_pages=0)
    broker = broker_of(node)
    ticks = []
    tick, run = broker.replication.tick, FlushJob.run

    def counted() -> None:
        ticks.append(1)
        tick()

    def slow(self: FlushJob) -> None:
        gate.wait()
        run(self)

    async with duolog.Client(f"127.0.0.1:{node.port}") as client, client.producer() as producer:
        await client.admin.create_topic("T", 1)
        monkeypatch.setattr(FlushJob, "run", slow)
        await producer.send("T", b"x")
        await until(gate.reached.is_set)
        monkeypatch.setattr(broker.replication, "tick", counted)
        queue = broker.store.log.queue
        assert queue.ahead is None
        while broker.store.log.allocation_wanted() is None:
            await producer.send("T", b"x" * 60_000)
        await until(lambda: queue.ahead is not None)
        await until(lambda: len(ticks) >= 3)
        assert not gate.open.is_set()
        gate.open.set()
        await until(lambda: broker.store.flushed_offset == broker.store.log.max_offset)


@pytest.mark.parametrize("times", [1, 3])
async def test_a_stop_leaves_no_segment_that_was_being_allocated(
    start_node: StartNode, gate: Gate, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    """However long the disk takes: a stop cancels again what has not ended."""
    monkeypatch.setattr("duolog._background.CANCEL_AGAIN_SECONDS", 0.01 if times > 1 else 60.0)
    node = await start_node()
    broker = broker_of(node)
    queue = broker.store.log.queue
    create = queue.create

    def slow(start: int) -> Any:
        gate.wait()
        return create(start)

    async with duolog.Client(f"127.0.0.1:{node.port}") as client, client.producer() as producer:
        await client.admin.create_topic("T", 1)
        monkeypatch.setattr(queue, "create", slow)
        while broker.store.log.allocation_wanted() is None:
            await producer.send("T", b"x" * 60_000)
        await until(gate.reached.is_set)
    (allocating,) = (
        task
        for task in broker.background._tasks
        if getattr(task.get_coro(), "__qualname__", "") == "Allocator.run"
    )
    stopping = asyncio.ensure_future(node.stop())
    await until(lambda: allocating.cancelling() >= times or allocating.done())
    gate.open.set()
    await stopping
    assert len(list((broker.store.disk.root / "commitlog").iterdir())) == 1  # type: ignore[attr-defined]


async def test_progress_of_all_groups_is_recorded_at_the_same_time_and_leases_end_meanwhile(
    node: Node, client: duolog.Client, producer: duolog.Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = broker_of(node)
    await producer.send("T", b"x", queue_id=0)
    await until(lambda: broker.store.queue_range("T", 0) == (0, 1))
    begun: list[str] = []
    go_on = asyncio.Event()

    async def slow(group: str, offsets: Any, done: Any) -> None:
        begun.append(group)
        await go_on.wait()

    monkeypatch.setattr(broker.metadata, "commit_popped", slow)
    ended: list[int] = []
    monkeypatch.setattr(broker.pop, "_end_leases", lambda now, tasks: ended.append(now))
    groups = [f"g{k}" for k in range(120)]
    for group in groups:
        request = PopRequest(group, "T", 0, 1, 60_000, "c", EVERYTHING)
        (popped,) = broker.pop.pop(request, broker.times.mono_ms())
        assert broker.pop.ack(group, popped.handle)
    await until(lambda: len(begun) == 120)
    assert sorted(begun) == sorted(groups)
    looks = len(ended)
    await until(lambda: len(ended) >= looks + 3)
    go_on.set()
    await until(lambda: not broker.pop._saving)


async def test_unlinking_files_of_retention_and_deleted_topics_does_not_block_the_event_loop(
    start_node: StartNode, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = await start_node(clean_resource_interval=100, file_reserved_time=0, delete_when="x")
    broker = broker_of(node)
    monkeypatch.setattr(osdisk, "UNLINKED_AT_ONCE_BYTES", 1000)
    reclaim = broker.store.disk.reclaim

    def slow() -> None:
        gate.wait()
        reclaim()

    async with duolog.Client(f"127.0.0.1:{node.port}") as client, client.producer() as producer:
        await client.admin.create_topic("T", 1)
        await client.admin.create_topic("U", 1)
        await producer.send("U", b"x")
        while len(broker.store.log.queue.files) < 3:
            await producer.send("T", b"x" * 60_000)
        await until(lambda: broker.store.flushed_offset == broker.store.log.max_offset)
        broker.store.retention.trigger()
        monkeypatch.setattr(broker.store.disk, "reclaim", slow)
        await until(gate.reached.is_set)
        await until(lambda: len(broker.store.log.queue.files) == 1)
        deleting = asyncio.ensure_future(client.admin.delete_topic("U"))
        for _ in range(3):
            await producer.send("T", b"still here")
        await until(lambda: "U" not in broker.metadata.topics)
        gate.open.set()
        await deleting
        aside = broker.store.disk.root / osdisk.STAGING  # type: ignore[attr-defined]
        await until(lambda: list(aside.iterdir()) == [])


@pytest.mark.parametrize("which", ["log", "queues"])
async def test_a_sync_that_fails_during_a_stop_makes_the_stop_unclean(
    start_node: StartNode, gate: Gate, monkeypatch: pytest.MonkeyPatch, which: str
) -> None:
    """The system reports a failed sync once: a later sync succeeds."""
    every = {"flush_interval_commit_log": 100, "flush_interval_consume_queue": 100}
    node = await start_node(
        flush_commit_log_least_pages=0, flush_consume_queue_least_pages=0, **every
    )
    store, run = broker_of(node).store, FlushJob.run
    wanted = "consumequeue" if which == "queues" else "commitlog"
    failed: list[str] = []

    def fails_once(self: FlushJob) -> None:
        path = self.files[0][0].file.path if self.files else ""
        if path.startswith(wanted) and not failed:
            failed.append(path)
            gate.wait()
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        run(self)

    async with duolog.Client(f"127.0.0.1:{node.port}") as client, client.producer() as producer:
        await client.admin.create_topic("T", 1)
        monkeypatch.setattr(FlushJob, "run", fails_once)
        await producer.send("T", b"x")
        await until(gate.reached.is_set)
    stopping = asyncio.ensure_future(node.stop())
    await asyncio.sleep(0.1)
    gate.open.set()
    await stopping
    assert store.fence_reason.startswith("sync failed")
    assert (Path(node.config.node.data) / "abort").exists(), "the next start looks at everything"
