"""A queue that moved away: what its producers are told, and what waits for it stays pending."""

import asyncio

import duolog
import pytest
from duolog.wire import duolog_pb2 as wire

from duolog_server.compat.grpc.protocol import codes
from duolog_server.compat.remoting import refusals
from duolog_server.compat.remoting.codec.codes import ResponseCode
from duolog_server.node.broker import Broker
from duolog_server.node.moving import passing
from duolog_server.store.clocks import WallMs
from duolog_server.store.messagestore import MessageStore, PutBatch, PutResult
from duolog_server.store.moves import Moves, Place
from duolog_server.store.status import PutMessageStatus
from tests.node.api.test_messages import append, append_request
from tests.node.deferred.test_decisions import prepare
from tests.node.deferred.test_delays import client_of, wait_for
from tests.node.deferred.test_publishing import stage, stored
from tests.node.replicas import broker_of
from tests.nodefixtures import StartNode
from tests.until import until

MOVED = PutMessageStatus.QUEUE_MOVED
TOO_FEW = PutMessageStatus.IN_SYNC_REPLICAS_NOT_ENOUGH
PRODUCER = b"0123456789"


async def seal(broker: Broker) -> None:
    await broker.metadata.seal("T", 0, Place("b", 4), "m")


class Refusals:
    """Counts puts to queues that moved, until these are where they were."""

    def __init__(self, broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self._broker = broker
        original = MessageStore.put

        def put(store: MessageStore, batch: PutBatch, wall_ms: WallMs) -> PutResult:
            result = original(store, batch, wall_ms)
            self.count += result.status is MOVED
            return result

        monkeypatch.setattr(MessageStore, "put", put)

    def end(self) -> None:
        self._broker.store.puts.moves = Moves()


@pytest.mark.parametrize("how", [{"delay_level": 1}, {"delay": 0.05}])
async def test_a_delayed_message_stays_pending(
    start_node: StartNode, monkeypatch: pytest.MonkeyPatch, how: dict[str, float]
) -> None:
    node = await start_node(message_delay_level="1s 2s 1h")
    broker = broker_of(node)
    async with await client_of(node) as client, client.producer() as producer:
        await producer.send("T", b"x", **how)  # type: ignore[arg-type]
        refusals = Refusals(broker, monkeypatch)
        await seal(broker)
        await until(lambda: refusals.count)
        assert broker.metadata.tables.delay_offsets.get(1, 0) == 0
        refusals.end()
        (found,) = await wait_for(client, 1)
        assert found.body == b"x"


async def test_a_half_message_that_is_committed_stays_pending(start_node: StartNode) -> None:
    node = await start_node()
    broker = broker_of(node)
    async with await client_of(node) as client:
        (origin,) = prepare(broker)
        await seal(broker)
        with pytest.raises(duolog.Unavailable, match="QUEUE_MOVED queue T/0 ends at 0"):
            await broker.transactions.end([origin], True, "g")
        broker.store.puts.moves = Moves()
        await broker.transactions.end([origin], True, "g")
        (found,) = await wait_for(client, 1)
        assert found.body == b"0"


async def test_a_published_batch_stays_pending(
    start_node: StartNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = await start_node()
    broker = broker_of(node)
    async with await client_of(node) as client:
        sink = await client.sink("s")
        staged = [await stage(sink, b"1"), await stage(sink, b"2")]
        refusals = Refusals(broker, monkeypatch)
        await seal(broker)
        publishing = asyncio.create_task(sink.publish(0, staged))
        await until(lambda: refusals.count)
        refusals.end()
        assert await publishing is False
        assert await stored(client) == [b"1", b"2"]


async def test_a_producer_is_told_to_repeat_what_a_moved_queue_does_not_have(
    start_node: StartNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(passing, "PUT_SECONDS", 0.01)  # the queue is not released in this test
    node = await start_node()
    async with await client_of(node) as client:
        first = append_request([b"a"], producer_id=PRODUCER)
        assert (await append(client, first)).status == wire.PUT_OK
        await seal(broker_of(node))
        assert (await append(client, first)).status == wire.PUT_OK, "it was stored before"
        new = await append(client, append_request([b"c"], producer_id=PRODUCER, sequence=9))
        assert new.status == wire.SERVICE_NOT_AVAILABLE
        assert new.reason.startswith("not stored within 0.01 s: queue T/0 ends at 1, and continues")
        longer = await append(client, append_request([b"a", b"b"], producer_id=PRODUCER))
        assert longer.status == wire.UNKNOWN_ERROR, "part of it is stored"


def test_rocketmqs_clients_are_told_to_try_another_queue() -> None:
    assert refusals.put_code(MOVED) is ResponseCode.SERVICE_NOT_AVAILABLE
    assert codes.put_status(MOVED, "").code == codes.PUT_CODES[TOO_FEW]
