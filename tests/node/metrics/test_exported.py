"""What the dashboards of rocketmq-exporter ask for."""

import time
from functools import partial
from pathlib import Path

import duolog
import pytest

from duolog_server.compat.grpc.protocol.stubs import service
from duolog_server.node.engine.log import APPEND_BOUNDS
from duolog_server.node.metrics.table import BY_NAME, PUT_TIMES
from duolog_server.serve.server import Node
from duolog_server.store.clocks import WallMs
from duolog_server.store.columns import Columns
from duolog_server.store.puts import PutBatch
from tests.compat.grpc.api import Api, message, resource
from tests.node.replicas import WAIT_SECONDS, Elected, broker_of
from tests.nodefixtures import StartNode
from tests.scraping import Scrape, scraped
from tests.until import until

# The queries of dashboard 10477 that a broker can answer; the others ask for thread pools, clients
# of RocketMQ 4's protocol, and counts of the mornings.
BROKER = (
    "broker_tps",
    "broker_qps",
    "consumer_offset",
    "consumer_message_size",
    "producer_offset",
    "consumer_tps",
    "producer_message_size",
    "producer_tps",
    "group_get_latency_by_storetime",
)
RUNTIME = (
    "put_tps10",
    "gettransfered_tps10",
    "gettotal_tps10",
    "getmiss_tps10",
    "getfound_tps10",
    "commitlogdir_capacity_total",
    "commitlogdir_capacity_free",
    "commitlog_disk_ratio",
    "consumequeue_disk_ratio",
    "commitlog_minoffset",
    "commitlog_maxoffset",
    "dispatch_behind_bytes",
    "put_message_size_total",
    "put_message_average_size",
    "msg_put_total_today_now",
    "msg_gettotal_today_now",
)
QUERIES = [
    *(f"rocketmq_{name}" for name in BROKER),
    *(f"rocketmq_brokeruntime_{name}" for name in RUNTIME),
    *(f"rocketmq_brokeruntime_pmdt_{name}" for name, _, _ in PUT_TIMES),
]


@pytest.fixture
async def node(start_node: StartNode) -> Node:
    return await start_node(metrics={"listen": "127.0.0.1:0"})


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds by which the clock of the rates is ahead."""
    ahead = [0.0]
    monkeypatch.setattr(
        "duolog_server.node.metrics.server.monotonic", lambda: time.monotonic() + ahead[0]
    )
    return ahead


async def of(node: Node) -> Scrape:
    assert node.metrics is not None
    return await scraped(node.metrics.port)


async def read_all(consumer: duolog.Consumer, count: int) -> None:
    """Read so many messages."""
    while count > 0:
        batch = await consumer.get_batch(WAIT_SECONDS)
        assert batch is not None
        count -= batch.count


async def test_every_query_of_the_dashboard_has_an_answer(
    node: Node, client: duolog.Client
) -> None:
    async with client.producer() as producer:
        await producer.send_batch("T", [b"12345"] * 10)
    async with client.consumer("g", "T") as consumer:
        for _ in range(10):
            await consumer.get(10)
        found = await of(node)
    assert [query for query in QUERIES if not found.rows(query)] == []
    assert {BY_NAME[query].kind for query in QUERIES} == {"gauge"}, "as the exporter's"


async def test_what_accumulates_is_the_difference_of_two_offsets(
    node: Node, client: duolog.Client
) -> None:
    async with client.producer() as producer:
        await producer.send_batch("T", [b"12345"] * 10, queue_id=1)
        await producer.send_batch("T", [b"12345"] * 4, queue_id=3)
    await until(lambda: broker_of(node).store.queue_range("T", 3)[1] == 4)
    await client.admin.reset_group("g", "T", offset=3)
    found = await of(node)
    produced = found.value("rocketmq_producer_offset", topic="T", broker="broker-a")
    consumed = found.value("rocketmq_consumer_offset", topic="T", group="g", broker="broker-a")
    assert (produced, consumed) == (14, 6)
    lag = found.value("rocketmq_consumer_lag_messages", topic="T", consumer_group="g")
    assert produced - consumed == lag
    age = found.value("rocketmq_group_get_latency_by_storetime", topic="T", group="g")
    assert age == found.value("rocketmq_consumer_lag_latency", topic="T", consumer_group="g") > 0


async def test_rates_are_of_the_last_minute_and_of_the_last_ten_seconds(
    node: Node, client: duolog.Client, producer: duolog.Producer, clock: list[float]
) -> None:
    async def after(seconds: float) -> Scrape:
        clock[0] += seconds
        return await of(node)

    began = time.monotonic()
    await after(60)
    await producer.send_batch("T", [b"12345"] * 600)
    async with client.consumer("g", "T") as consumer:
        await read_all(consumer, 600)
    found = await after(60)
    least = 60 / (60 + time.monotonic() - began)
    group = {"topic": "T", "group": "g"}
    assert 10 * least <= found.value("rocketmq_producer_tps", topic="T") <= 10
    assert 50 * least <= found.value("rocketmq_producer_message_size", topic="T") <= 50
    assert 10 * least <= found.value("rocketmq_consumer_tps", **group) <= 10
    assert 50 * least <= found.value("rocketmq_consumer_message_size", **group) <= 50
    assert 10 * least <= found.value("rocketmq_broker_tps") <= 10
    assert 10 * least <= found.value("rocketmq_broker_qps") <= 10
    found = await after(10)
    assert found.value("rocketmq_brokeruntime_put_tps10") == 0
    assert found.value("rocketmq_brokeruntime_gettransfered_tps10") == 0
    assert found.value("rocketmq_brokeruntime_msg_put_total_today_now") == 600
    assert found.value("rocketmq_brokeruntime_msg_gettotal_today_now") == 600
    assert found.value("rocketmq_brokeruntime_put_message_size_total") == 3000
    assert found.value("rocketmq_brokeruntime_put_message_average_size") == 5


async def test_what_was_long_before_is_in_no_rate_that_begins_to_be_shown(
    start_node: StartNode, tmp_path: Path, clock: list[float]
) -> None:
    """A new master that was one before, and a group that commits for the first time."""
    elected = await Elected.start(start_node, tmp_path, metrics={"listen": "127.0.0.1:0"})
    before = elected.the_master()
    async with duolog.Client(elected.endpoints, timeout=20) as client:
        await client.admin.create_topic("T", 1)
        async with client.producer() as producer:
            await producer.send_batch("T", [b"12345"] * 600)
        async with client.consumer("g", "T", mode="broadcasting") as consumer:
            await read_all(consumer, 600)
        await elected.switch(client)
        for _ in range(3):
            clock[0] += 61
            await of(before)
        await until(elected.is_whole)
        await client.admin.failover(before.config.node.name)
        await until(lambda: elected.is_whole() and elected.the_master() is before)
        await client.admin.commit("g", {("T", "broker-a", 0): 5})
    clock[0] += 1
    found = await of(before)
    assert found.value("rocketmq_messages_in_total", topic="T") == 600
    assert found.value("rocketmq_broker_tps") == 0
    assert found.value("rocketmq_broker_qps") == 0
    assert found.value("rocketmq_producer_tps", topic="T") == 0
    assert found.value("rocketmq_producer_message_size", topic="T") == 0
    assert found.value("rocketmq_consumer_tps", topic="T", group="g") == 0
    assert found.value("rocketmq_consumer_message_size", topic="T", group="g") == 0


def has_one(node: Node, topic: str) -> bool:
    return broker_of(node).store.queue_range(topic, 0)[1] == 1


async def test_retries_and_dead_letters_have_offsets_of_their_own(
    node: Node, client: duolog.Client
) -> None:
    api = Api(node)
    try:
        for _ in range(2):
            await api.send(message(b"12345"))
        one, two = (await api.receive("g")).handles
        await api.change("g", one, 50)
        dead = service.ForwardMessageToDeadLetterQueueRequest(
            group=resource("g"), topic=resource("T"), receipt_handle=two, message_id="x"
        )
        await api.call("ForwardMessageToDeadLetterQueue", dead)
        await until(lambda: "%RETRY%g_T" in broker_of(node).metadata.topics)
        for topic in ("%RETRY%g_T", "%DLQ%g"):
            await until(partial(has_one, node, topic))
        found = await of(node)
        assert found.value("rocketmq_topic_dlq_offset", group="g") == 1
        assert found.value("rocketmq_topic_retry_offset", topic="%RETRY%g_T") == 1
        topics = {dict(key[1])["topic"] for key in found.rows("rocketmq_producer_offset")}
        assert topics == {"T"}
    finally:
        await api.close()


async def test_what_waits_is_shown_rather_than_topics_where_nothing_happens(
    start_node: StartNode,
) -> None:
    metrics = {"listen": "127.0.0.1:0", "series_max": 1000}
    node = await start_node(metrics=metrics)
    async with duolog.Client(f"127.0.0.1:{node.port}") as client:
        names = ["T", "%DLQ%g", "%RETRY%g_T", *map(str, range(400))]
        tables = broker_of(node).metadata
        for name in names:
            tables.auto_create(name, 1)
        await client.admin.put_group("stuck")
        await client.admin.commit("stuck", {("T", "broker-a", 0): 0})
        for name in names[:3]:
            put = PutBatch(name, 0, Columns.of([b"x"] * 5), WallMs(1))
            await broker_of(node).core.log.put_and_wait(put)
        await until(lambda: broker_of(node).store.queue_range("%RETRY%g_T", 0)[1] == 5)
    found = await of(node)
    assert found.value("duolog_metrics_series_dropped") > 0
    assert found.value("rocketmq_consumer_lag_messages", consumer_group="stuck") == 5
    assert found.value("rocketmq_topic_dlq_offset", group="g") == 5
    assert found.value("rocketmq_topic_retry_offset", topic="%RETRY%g_T") == 5


@pytest.mark.usefixtures("nothing_noted")
async def test_each_put_is_in_one_range_of_times(node: Node) -> None:
    histogram = broker_of(node).log.append_seconds
    found = await of(node)
    before = {name: found.value(f"rocketmq_brokeruntime_pmdt_{name}") for name, _, _ in PUT_TIMES}
    for seconds in (
        0.0004,
        0.001,
        0.002,
        0.009,
        0.02,
        0.07,
        0.15,
        0.3,
        0.7,
        1.5,
        2.5,
        3.5,
        4.5,
        7,
        11,
    ):
        histogram.observe(seconds)
    found = await of(node)
    grew = {
        name: found.value(f"rocketmq_brokeruntime_pmdt_{name}") - before[name]
        for name, _, _ in PUT_TIMES
    }
    assert grew == {name: 2 if name in ("0ms", "0to10ms") else 1 for name, _, _ in PUT_TIMES}


def test_the_bounds_of_the_ranges_are_bounds_of_the_histogram() -> None:
    assert {high for _, _, high in PUT_TIMES} - {float("inf")} <= set(APPEND_BOUNDS)
