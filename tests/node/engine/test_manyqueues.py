"""Work that must be in proportion to what changes, however many queues are watched."""

import asyncio
from collections import Counter
from typing import Any

import duolog
import pytest
from duolog.wire import duolog_pb2 as wire

from duolog_server.node.api.messages import _Subscription
from duolog_server.node.api.native import messages_of
from duolog_server.node.engine.arrivals import ArrivalBoard
from duolog_server.node.identity.quotas.quotas import Who
from duolog_server.serve.server import Node
from tests.node.replicas import broker_of
from tests.until import until


class Unscanned(dict[Any, Any]):
    """A table that is looked up in and never gone through."""

    def __iter__(self) -> Any:
        raise AssertionError("all watched queues were gone through")

    values = items = keys = __iter__


def test_watched_queues_are_counted_without_going_through_them() -> None:
    board = ArrivalBoard()
    board._watchers = Unscanned()
    one, two = asyncio.Event(), asyncio.Event()
    for event in (one, two, two):
        for queue in range(10):
            board.watch(("T", queue), event)
    assert len(board) == 20
    board.unwatch(("T", 3), one)
    board.unwatch(("T", 3), one)
    board.unwatch(("U", 3), one)
    assert len(board) == 19
    board.arrived([("T", 3), ("U", 0)])
    assert two.is_set()
    assert not one.is_set()


class Writes:
    """The context of a stream: what was written to it."""

    def __init__(self) -> None:
        self.batches: list[wire.MessageBatch] = []

    def peer(self) -> str:
        return "ipv4:127.0.0.1:5555"

    async def write(self, batch: wire.MessageBatch) -> None:
        self.batches.append(batch)


async def test_an_arrival_checks_its_own_queue_only(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = broker_of(node)
    reads: Counter[int] = Counter()
    read = broker.reader.read

    def counted(key: tuple[str, int], *how: Any) -> Any:
        reads[key[1]] += 1
        return read(key, *how)

    monkeypatch.setattr(broker.reader, "read", counted)
    over = asyncio.Event()

    async def requests() -> Any:
        adding = [wire.QueueOffset(topic="T", queue_id=k, offset=0) for k in range(500)]
        yield wire.SubscribeRequest(credit_bytes=1 << 20, add=adding)
        await over.wait()

    async with duolog.Client(f"127.0.0.1:{node.port}") as client, client.producer() as producer:
        await client.admin.create_topic("T", 500)
        context = Writes()
        subscription = _Subscription(messages_of(broker)._parts, context, Who("", "127.0.0.1"))
        reader = asyncio.ensure_future(subscription.take_requests(requests()))
        sender = asyncio.ensure_future(subscription.send_batches())
        await until(lambda: reads.total() >= 500)
        assert reads == dict.fromkeys(range(500), 1)
        reads.clear()
        for _ in range(3):
            await producer.send("T", b"x", queue_id=7)
        await until(lambda: sum(len(batch.body_offsets) - 4 for batch in context.batches) >= 12)
        assert reads.keys() == {7}
        assert reads[7] <= 6  # a message, and that there is no more of them
        over.set()
        await asyncio.gather(reader, sender)
        subscription.close()
        assert len(broker.log.board) == 0
