"""Messages that wait: timed ones and half messages, and for how long."""

import time

import duolog
import pytest

from duolog_server.compat.grpc.protocol.stubs import definition, service
from duolog_server.node.deferred.delayservice import TIMER_TOPIC
from duolog_server.serve.server import Node
from duolog_server.store.clocks import WallMs
from duolog_server.store.messagestore import PutBatch, PutResult
from duolog_server.store.status import PutMessageStatus
from tests.compat.grpc.api import Api, message, resource
from tests.node.metrics.test_figures import METRICS, of
from tests.node.replicas import broker_of, take_checks
from tests.nodefixtures import StartNode
from tests.until import until

SNAPSHOT = "rocketmq_timer_message_snapshot"
HALF = "duolog_half_message_age_seconds"


@pytest.fixture
async def node(start_node: StartNode) -> Node:
    return await start_node(metrics=METRICS)


async def test_timed_messages_are_counted_in_and_out(node: Node, client: duolog.Client) -> None:
    broker = broker_of(node)
    api = Api(node)
    now = time.time()
    async with client.producer() as producer:
        await producer.send("T", b"x", delay=1.5)  # one that comes after its time does not wait
        await producer.send("T", b"x", deliver_at=int(now * 1000) - 1)  # which waits for nothing
        await producer.send("T", b"x", delay_level=18)
        await producer.send_batch("T", [b"x"] * 3, deliver_at=int((now + 50) * 1000))
        await producer.send("T", b"x", deliver_at=int((now + 7200) * 1000))
    sent = message(b"1", message_type=definition.MessageType.DELAY)
    sent.system_properties.delivery_timestamp.FromMilliseconds(int((now + 200_000) * 1000))
    await api.send(sent)
    await api.close()
    await until(lambda: "T" in broker.core.traffic.timed_out.table)
    await until(lambda: broker.delays.waiting == 5 and broker.delays.unread == 0)
    found = await of(node)
    assert found.value("rocketmq_timer_enqueue_total", topic="T", storage_medium="disk") == 6
    assert found.value("rocketmq_timer_dequeue_total", topic="T") == 1
    assert found.value("rocketmq_timer_enqueue_lag") == 0
    assert found.value("rocketmq_timer_dequeue_lag") == 0
    assert found.value("rocketmq_timer_dequeue_latency") == 0
    assert found.value("duolog_timer_overdue_seconds") == 0
    rows = found.rows(SNAPSHOT)
    by_bound = {dict(key[1])["timer_bound_s"]: value for key, value in rows.items()}
    assert by_bound == {
        **{"5": 0, "60": 3, "300": 0, "900": 0, "3600": 0, "14400": 1, "28800": 0, "86400": 0}
    }


async def test_a_timed_message_that_cannot_be_delivered_is_overdue(
    node: Node, client: duolog.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = broker_of(node)
    write_now = broker.log.write_now
    full = PutResult(PutMessageStatus.SERVICE_NOT_AVAILABLE, "a test")
    tries = 0

    def refuse(batch: PutBatch) -> PutResult:
        nonlocal tries
        if batch.topic != "T":
            return write_now(batch)
        tries += 1
        return full

    monkeypatch.setattr(broker.log, "write_now", refuse)
    async with client.producer() as producer:
        due = int(time.time() * 1000) + 1500
        await producer.send("T", b"x", deliver_at=due)
        await producer.send("T", b"x", deliver_at=due + 60_000)
    await until(lambda: tries >= 2)  # the second one a second after the first
    monkeypatch.setattr(broker.times, "wall_ms", lambda: WallMs(due + 5000))
    found = await of(node)
    assert found.value("rocketmq_timer_dequeue_latency") == 5000, "since its time, not since a try"
    assert found.value("duolog_timer_overdue_seconds") == 5
    assert found.value("rocketmq_timer_dequeue_lag") == 1
    monkeypatch.undo()
    await until(lambda: broker.delays.waiting == 1)
    assert (await of(node)).value("duolog_timer_overdue_seconds") == 0


async def test_timed_messages_that_are_not_read_yet_are_told(
    node: Node, client: duolog.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = broker_of(node)
    await until(lambda: broker.delays.known)
    ends = broker.store.queue_range

    def longer(topic: str, queue_id: int) -> tuple[int, int]:
        low, high = ends(topic, queue_id)
        return (low, high + 7 * (topic == TIMER_TOPIC))

    monkeypatch.setattr(broker.store, "queue_range", longer)
    assert broker.delays.unread == 7


async def test_the_oldest_half_message_of_a_topic_is_told_by_its_age(
    node: Node, client: duolog.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker, api = broker_of(node), Api(node)
    entries = []
    try:
        for _ in range(2):
            sent = message(b"12345", message_type=definition.MessageType.TRANSACTION)
            entries.append((await api.send(sent)).entries[0])
        await until(lambda: broker.transactions.waiting == 2)
        first, second = (half.stored_ms for half in broker.transactions.pending())
        assert 0 < first <= second
        monkeypatch.setattr(broker.times, "store_ms", lambda: WallMs(first + 70_000))
        found = await of(node)
        assert found.value(HALF, topic="T") == 70
        assert found.value("rocketmq_half_messages", topic="T") == 2
        request = service.EndTransactionRequest(
            topic=resource("T"),
            message_id=entries[0].message_id,
            transaction_id=entries[0].transaction_id,
            resolution=definition.TransactionResolution.COMMIT,
        )
        await api.call("EndTransaction", request)
        found = await of(node)
        assert found.value(HALF, topic="T") == (first + 70_000 - second) / 1000
        name = "rocketmq_finish_message_latency"
        assert found.value(f"{name}_count", topic="T") == 1
        assert found.value(f"{name}_sum", topic="T") == 70
        assert found.value(f"{name}_bucket", topic="T", le="60.0") == 0
    finally:
        await api.close()


async def test_a_check_does_not_make_a_half_message_younger(start_node: StartNode) -> None:
    """It is stored again for each check; a new master reads the newest record alone."""
    node = await start_node(
        metrics=METRICS,
        transactions={"timeout_ms": 100, "check_interval_ms": 100, "check_max": 1000},
    )
    broker = broker_of(take_checks(node))
    async with duolog.Client(f"127.0.0.1:{node.port}", timeout=10) as client:
        await client.admin.create_topic("T", 1)
        api = Api(node)
        await api.send(message(b"12345", message_type=definition.MessageType.TRANSACTION))
        await api.close()
        await until(lambda: any(half.checks >= 2 for half in broker.transactions.pending()))
        (half,) = broker.transactions.pending()
        stored = half.stored_ms
        assert stored == broker.store.store_time("RMQ_SYS_TRANS_HALF_TOPIC", 0, half.origin)
        broker.transactions.role_changed()  # as of a new master: it is read from the log
        await until(lambda: broker.transactions.waiting == 1)
        assert broker.transactions.pending()[0].stored_ms == stored
