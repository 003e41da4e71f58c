"""Administration, metadata through the log, health and reflection, the synchronous client."""

import asyncio
import gc
import os
from pathlib import Path
from typing import Any

import duolog
import duolog.sync
import grpc
import pytest
from duolog._machine import place_of
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from duolog_server.node.api import admin as module
from duolog_server.node.api.reservedport import ListenError
from duolog_server.node.broker import Broker
from duolog_server.serve.server import Node
from duolog_server.store.clocks import WallMs
from duolog_server.store.columns import Columns
from duolog_server.store.messagestore import PutBatch
from duolog_server.store.metadata import TopicConfig
from duolog_server.store.offsets import QueueOffset
from duolog_server.store.status import PutMessageStatus
from tests.node.replicas import broker_of
from tests.nodefixtures import StartNode
from tests.until import until


async def test_a_nodes_status_says_what_its_parts_hold(client: duolog.Client) -> None:
    assert set((await client.admin.node_status()).parts.values()) == {0}
    async with client.producer() as producer, client.transactions("orders") as transactions:
        await producer.send("T", b"later", delay=60)
        await transactions.prepare("T", b"half")

        async def parts() -> dict[str, int]:
            return dict((await client.admin.node_status()).parts)

        async with asyncio.timeout(20):
            while (found := await parts())["timers_waiting"] < 1:
                await asyncio.sleep(0.01)
    assert found == {
        "messages_leased": 0,
        "calls_waiting": 0,
        "lite_subscriptions": 0,
        "timers_waiting": 1,
        "half_messages_waiting": found["half_messages_waiting"],
        "sinks": 0,
        "outbox_waiting": 0,
    }


async def test_topics_are_created_listed_altered_and_deleted(client: duolog.Client) -> None:
    admin = client.admin
    created = await admin.create_topic("new", 3)
    assert (created.queues, created.perm) == (3, 6)
    assert [topic.topic for topic in await admin.topics()] == ["T", "new"]
    assert (await admin.alter_topic("new", queues=5)).queues == 5
    with pytest.raises(duolog.BadRequest):
        await admin.alter_topic("new", queues=2)
    assert (await admin.create_topic("new", 5)).queues == 5  # as it is: a call that is repeated
    others: list[dict[str, Any]] = [
        {},
        {"queues": 5, "perm": 4},
        {"queues": 5, "message_type": "FIFO"},
        {"queues": 5, "message_type": "LITE", "lite_ttl_minutes": 7},
    ]
    for other in others:
        with pytest.raises(duolog.TopicExists, match="exists with 5 queues, perm 6"):
            await admin.create_topic("new", **other)
    made = await asyncio.gather(
        *(admin.create_topic("raced", 1 + k % 2) for k in range(10)), return_exceptions=True
    )
    kinds = [type(answer).__name__ for answer in made]
    assert sorted(set(kinds)) == ["TopicDescription", "TopicExists"]
    assert kinds.count("TopicDescription") == 5, (
        "one definition won, and all who asked for it heard so"
    )
    await admin.delete_topic("raced")
    await admin.delete_topic("new")
    with pytest.raises(duolog.UnknownTopic):
        await admin.delete_topic("new")
    assert [topic.topic for topic in await admin.topics(system=True)] == [
        "DUOLOG_SYS_EPOCH",
        "DUOLOG_SYS_METADATA",
        "T",
    ]
    named = ["T", "DUOLOG_SYS_METADATA", "none"]
    assert [topic.topic for topic in await admin.topics(named, system=True)] == named[:2]
    assert [topic.topic for topic in await admin.topics(named)] == ["T"]


@pytest.mark.usefixtures("nothing_noted")
async def test_topics_tell_the_bytes_of_their_messages_in_the_log(
    client: duolog.Client, node: Node
) -> None:
    await client.admin.create_topic("U", 2)
    before = (await client.admin.node_status()).max_offset
    async with client.producer() as producer:
        for number in range(20):
            await producer.send("U", b"x" * number, queue_id=number % 2, keys=["k"])
    added = (await client.admin.node_status()).max_offset - before
    (named,) = await client.admin.topics(["U"], sizes=True)
    page = await client.admin.topics_page("U", sizes=True)
    assert page.rows == (named,)
    assert sum(queue.log_bytes or 0 for queue in named.stats) == added
    assert all(queue.log_bytes for queue in named.stats)
    (unasked,) = await client.admin.topics(["U"])
    assert [queue.log_bytes for queue in unasked.stats] == [None, None]
    (empty,) = await client.admin.topics(["T"], sizes=True)
    assert {queue.log_bytes for queue in empty.stats} == {0}


async def test_bytes_that_one_call_may_not_count_are_told_by_the_next(
    client: duolog.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ENTRIES_MAX", 3)
    async with client.producer() as producer:
        await producer.send_batch("T", [b"x"] * 8, queue_id=0)
    told = []
    for _ in range(3):
        (topic,) = await client.admin.topics(["T"], sizes=True)
        told.append(topic.stats[0].log_bytes)
    assert told[:2] == [None, None]
    assert told[2]


async def test_a_deletion_whose_answer_was_lost_succeeds(
    client: duolog.Client, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    metadata = broker_of(node).metadata
    await client.admin.put_group("G")
    await client.admin.create_topic("gone", 1)
    for name, delete in (("gone", "delete_topic"), ("G", "delete_group")):
        really: Any = getattr(metadata, delete)
        tries: list[str] = []

        async def lossy(name: str, really: Any = really, tries: list[str] = tries) -> None:
            tries.append(name)
            await really(name)
            raise duolog.Unavailable("the connection broke")

        monkeypatch.setattr(metadata, delete, lossy)
        await getattr(client.admin, delete)(name)
        assert tries == [name]
        with pytest.raises((duolog.UnknownTopic, duolog.UnknownGroup)):
            await getattr(client.admin, delete)(name)


@pytest.mark.parametrize("name", ["", "x" * 128, "a/b", "../x", "a\0", "DUOLOG_SYS_METADATA"])
async def test_invalid_topic_names_are_refused(client: duolog.Client, name: str) -> None:
    with pytest.raises(duolog.BadRequest):
        await client.admin.create_topic(name)


async def test_a_name_that_no_topic_can_have_is_refused_with_one_to_use(
    client: duolog.Client,
) -> None:
    async with client.producer() as producer:
        for call in (
            client.admin.create_topic("orders.created"),
            producer.send("orders.created", b"x"),
            producer.send("orders.created", b"x", queue_id=0),
        ):
            with pytest.raises(duolog.BadRequest, match=r"has '\.': .* try 'orders_created'"):
                await call


async def test_permissions_are_kept(client: duolog.Client) -> None:
    await client.admin.create_topic("readonly", 1, perm=4)
    await client.admin.create_topic("writeonly", 1, perm=2)
    async with client.producer() as producer:
        with pytest.raises(duolog.NoPermission):
            await producer.send("readonly", b"x")
        await producer.send("writeonly", b"x")
    with pytest.raises(duolog.NoPermission):
        await client.pull("writeonly", 0, 0)


async def make_again(broker: Broker, topic: str) -> None:
    """A message is stored before the deletion of its topic is confirmed; then it is made again,
    before the queues of the first one are removed.
    """
    metadata = broker.metadata
    deleting = asyncio.create_task(metadata.delete_topic(topic))
    await asyncio.sleep(0)
    batch = PutBatch(topic, 0, Columns.of([b"late"]), WallMs(1))
    assert broker.log.write_now(batch).status is PutMessageStatus.PUT_OK
    while topic in metadata.topics:
        await asyncio.sleep(0)
    end = broker.store.max_offset
    making = asyncio.create_task(metadata.put_topic(TopicConfig(topic, 1)))
    await asyncio.sleep(0)
    assert (topic in metadata.topics, metadata.tables.births.topics[topic]) == (False, end)
    await asyncio.gather(making, deleting)


async def test_a_deleted_topics_messages_never_come_back(start_node: StartNode) -> None:
    node = await start_node()
    listen, data = f"127.0.0.1:{node.port}", node.config.node.data
    async with duolog.Client(listen, timeout=10) as client:
        await client.admin.create_topic("T", 1)
        async with client.producer() as producer:
            await producer.send_batch("T", [b"old"] * 10)
            async with client.consumer("G", "T") as consumer:
                await consumer.get(5)
            await make_again(broker_of(node), "T")
            receipt = await producer.send("T", b"new")
        assert receipt.queue_offset == 11
        assert (await client.pull("T", 0, 11)).body_list() == [b"new"]
        (topic,) = await client.admin.topics(["T"])
        assert topic.stats[0].min_offset == 11
    await node.stop()
    (Path(data) / "abort").write_bytes(b"")  # an abnormal recovery rebuilds the queues
    await start_node(data=data, listen=listen)
    async with duolog.Client(listen, timeout=10) as client:
        (topic,) = await client.admin.topics(["T"])
        assert (topic.stats[0].min_offset, topic.stats[0].max_offset) == (11, 12)
        assert (await client.pull("T", 0, 11)).body_list() == [b"new"]


@pytest.mark.parametrize("lose_snapshots", [False, True])
async def test_metadata_survives_a_restart_with_and_without_its_snapshots(
    start_node: StartNode, lose_snapshots: bool
) -> None:
    node = await start_node()
    listen, data = f"127.0.0.1:{node.port}", node.config.node.data
    async with duolog.Client(listen, timeout=10) as client:
        await client.admin.create_topic("T", 7)
        async with client.producer() as producer:
            await producer.send_batch("T", [b"x"] * 50, queue_id=3)
        async with client.consumer("G", "T") as consumer:
            for _ in range(20):
                await consumer.get(5)
    await node.stop()
    if lose_snapshots:
        for path in (Path(data) / "config").iterdir():
            path.unlink()
    await start_node(data=data, listen=listen)
    async with duolog.Client(listen, timeout=10) as client:
        (topic,) = await client.admin.topics(["T"])
        assert topic.queues == 7
        group = await client.admin.group("G")
        assert {queue.queue_id: queue.committed for queue in group.queues}[3] == 20


async def test_auto_create_makes_a_topic_on_first_use(start_node: StartNode) -> None:
    node = await start_node(limits={"auto_create_topic": True, "default_topic_queues": 2})
    async with duolog.Client(f"127.0.0.1:{node.port}", timeout=5) as client:
        async with client.producer() as producer:
            receipt = await producer.send("fresh", b"x", queue_id=1)
        assert receipt.queue_offset == 0
        (topic,) = await client.admin.topics(["fresh"])
        assert topic.queues == 2


async def test_every_kind_of_send_creates_a_topic_and_reading_does_not(
    start_node: StartNode,
) -> None:
    node = await start_node(limits={"auto_create_topic": True, "default_topic_queues": 3})
    async with duolog.Client(f"127.0.0.1:{node.port}", timeout=5) as client:
        async with client.producer() as producer:
            await producer.send("plain", b"x")
            keyed = [await producer.send("keyed", b"x", key="k") for _ in range(3)]
            await producer.send_batch("batch", [b"x"] * 10)
            await producer.send("late", b"x", delay=0.1)
            await producer.send("numbered", b"x", queue_id=2)
            await asyncio.gather(*(producer.send("many", b"x") for _ in range(20)))
        assert len({receipt.queue_id for receipt in keyed}) == 1  # the first one, too
        made = {topic.topic: topic.queues for topic in await client.admin.topics()}
        names = ("batch", "keyed", "late", "many", "numbered", "plain")
        assert made == dict.fromkeys(names, 3)
        with pytest.raises(duolog.UnknownTopic):
            await client.pull("unread", 0, 0)
        with pytest.raises(duolog.UnknownTopic):
            async with client.consumer("G", "unread") as consumer:
                await consumer.get(2)
        assert "unread" not in broker_of(node).metadata.topics
        for name in ("a/b", "DUOLOG_SYS_METADATA", "%SYS%x", ""):
            with pytest.raises(duolog.DuologError):
                async with client.producer(timeout=2) as producer:
                    await producer.send(name, b"x")
        assert set(broker_of(node).metadata.topics) <= {*names, "SCHEDULE_TOPIC_XXXX"}


async def test_a_send_does_not_undo_the_creation_of_its_topic(start_node: StartNode) -> None:
    node = await start_node(limits={"auto_create_topic": True, "default_topic_queues": 2})
    metadata = broker_of(node).metadata
    creating = asyncio.ensure_future(metadata.put_topic(TopicConfig("T", 8)))
    await asyncio.sleep(0)  # it is stored, and not applied
    assert "T" not in metadata.topics
    assert metadata.auto_create("T").queues == 8
    await creating
    assert metadata.topics["T"].queues == 8
    await node.stop()
    again = await start_node()
    assert broker_of(again).metadata.topics["T"].queues == 8


async def test_no_send_undoes_an_interrupted_topic_creation(
    start_node: StartNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its record is stored: the topic is the requested one, even if the caller is gone."""
    node = await start_node(limits={"auto_create_topic": True, "default_topic_queues": 2})
    broker, metadata = broker_of(node), broker_of(node).metadata
    with monkeypatch.context() as patched:
        patched.setattr(broker.log, "pump_soon", lambda: None)  # it is stored, and not applied
        creating = asyncio.ensure_future(metadata.put_topic(TopicConfig("T", 8)))
        await asyncio.sleep(0)
        creating.cancel()  # as gRPC does at a call's deadline
        await asyncio.gather(creating, return_exceptions=True)
        assert "T" not in metadata.topics
        assert metadata.auto_create("T").queues == 8
    broker.log.pump_soon()
    async with duolog.Client(f"127.0.0.1:{node.port}", timeout=5) as client:
        await client.admin.create_topic("T", 8)  # the same again is no error
        (topic,) = await client.admin.topics(["T"])
        assert topic.queues == 8
    assert metadata.creating("T") is None
    await node.stop()
    again = await start_node()
    assert broker_of(again).metadata.topics["T"].queues == 8


async def test_a_topic_creation_that_was_lost_with_its_mastership_is_forgotten(
    start_node: StartNode,
) -> None:
    node = await start_node(limits={"auto_create_topic": True, "default_topic_queues": 2})
    metadata = broker_of(node).metadata
    creating = asyncio.ensure_future(metadata.put_topic(TopicConfig("T", 8)))
    await asyncio.sleep(0)
    assert metadata.creating("T") == TopicConfig("T", 8)
    metadata.fail_all(duolog.Unavailable("the master changed during the call"))
    with pytest.raises(duolog.ResultUnknown):
        await creating
    assert metadata.creating("T") is None  # the next master may never have heard of it


async def test_without_auto_create_a_send_makes_no_topic(client: duolog.Client) -> None:
    async with client.producer() as producer:
        for how in ({}, {"key": "k"}, {"queue_id": 0}):
            with pytest.raises(duolog.UnknownTopic):
                await producer.send("none", b"x", **how)
    assert [topic.topic for topic in await client.admin.topics()] == ["T"]


async def test_topics_are_bounded(start_node: StartNode) -> None:
    node = await start_node(limits={"topics_max": 2})
    async with duolog.Client(f"127.0.0.1:{node.port}", timeout=5) as client:
        await client.admin.create_topic("a")
        await client.admin.create_topic("b")
        with pytest.raises(duolog.Busy):
            await client.admin.create_topic("c")


async def test_concurrent_deletions_and_sends_leave_the_node_healthy(client: duolog.Client) -> None:
    sent = asyncio.Event()

    async def churn() -> None:
        for _ in range(15):
            await client.admin.create_topic("churn", 2)
            await asyncio.sleep(0.01)
            await sent.wait()
            await client.admin.delete_topic("churn")

    async def send(producer: duolog.Producer, stop: asyncio.Event) -> None:
        while not stop.is_set():
            try:
                await producer.send("churn", b"x", queue_id=0, timeout=1)
                sent.set()
            except duolog.DuologError:
                await asyncio.sleep(0.001)

    stop = asyncio.Event()
    async with client.producer() as producer:
        sending = [asyncio.ensure_future(send(producer, stop)) for _ in range(4)]
        await churn()
        stop.set()
        await asyncio.gather(*sending)
        assert (await producer.send("T", b"x")).status == "PUT_OK"


async def test_deleted_topics_leave_nothing_behind(
    client: duolog.Client, node: Node, tmp_path: Path
) -> None:
    async def come_and_go(number: int) -> None:
        topic = f"passing-{number}"
        await client.admin.create_topic(topic, 2)
        async with client.producer() as producer:
            await producer.send_batch(topic, [b"x"] * 4)
        await until(lambda: broker_of(node).store.dispatcher.behind_bytes() == 0)
        await client.admin.delete_topic(topic)

    def held() -> tuple[int, int, int]:
        maps = Path("/proc/self/maps").read_text()
        files = [path for path in (tmp_path / "data" / "consumequeue").rglob("*") if path.is_file()]
        return len(os.listdir("/proc/self/fd")), maps.count("consumequeue"), len(files)

    for number in range(20):
        await come_and_go(number)
    gc.collect()
    before = held()
    for number in range(20, 220):
        await come_and_go(number)
    await until(
        lambda: (
            gc.collect() >= 0
            and all(now <= then for now, then in zip(held()[1:], before[1:], strict=True))
        ),
        "files are let go of",
    )
    await until(lambda: held()[0] <= before[0] + 8)
    assert held()[2] == before[2]
    assert {topic.topic for topic in await client.admin.topics()} == {"T"}


# -- status, health, reflection ----------------------------------------------------------------


async def test_status_says_what_the_node_is(client: duolog.Client, node: Node) -> None:
    status = await client.admin.node_status()
    assert (status.name, status.role) == ("test", "ASYNC_MASTER")
    assert status.max_offset == status.confirm_offset > 0
    cluster = await client.admin.cluster_status()
    assert [found.name for found in cluster.nodes] == ["test"]
    assert status.store == place_of(str(node.config.node.data.resolve()))
    assert status.store.inode


async def test_health_and_reflection_answer(node: Node) -> None:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{node.port}") as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        for service in ("", "duolog.v1.Messages"):
            reply = await stub.Check(health_pb2.HealthCheckRequest(service=service))
            assert reply.status == health_pb2.HealthCheckResponse.SERVING
        reflected = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(
            iter([reflection_pb2.ServerReflectionRequest(list_services="")])
        )
        answer = await reflected.read()
        names = {service.name for service in answer.list_services_response.service}
        assert {"duolog.v1.Messages", "duolog.v1.Groups", "duolog.v1.Admin"} <= names


async def test_a_port_in_use_is_an_error(node: Node, start_node: StartNode, tmp_path: Path) -> None:
    with pytest.raises(ListenError):
        await start_node(data=tmp_path / "other", listen=f"127.0.0.1:{node.port}")


async def test_a_missing_answer_is_a_typed_error_within_the_deadline() -> None:
    async with duolog.Client("127.0.0.1:1", timeout=0.5) as client:
        with pytest.raises(duolog.Retryable):
            await client.admin.topics()
        async with client.producer() as producer:
            with pytest.raises((duolog.Retryable, duolog.ResultUnknown)):
                await producer.send("T", b"x", queue_id=0)


@pytest.mark.parametrize("endpoints", ["", "localhost", "a:b", "a:0", "a:70000", [], ":1"])
def test_invalid_endpoints_are_refused(endpoints: str) -> None:
    with pytest.raises(duolog.BadRequest):
        duolog.Client(endpoints)


async def test_a_dead_endpoint_in_the_list_is_skipped(node: Node) -> None:
    async with duolog.Client(f"127.0.0.1:1,127.0.0.1:{node.port}", timeout=10) as client:
        await client.admin.create_topic("T", 1)
        async with client.producer() as producer:
            assert (await producer.send("T", b"x")).status == "PUT_OK"


# -- the synchronous face ----------------------------------------------------------------------


async def test_the_synchronous_client_does_the_same(node: Node) -> None:
    def work() -> list[bytes]:
        with duolog.sync.Client(f"127.0.0.1:{node.port}") as client:
            client.admin.create_topic("S", 1)
            with client.producer() as producer:
                producer.send("S", b"one", tags="t")
                producer.send_batch("S", [b"two", b"three"])
            with client.consumer("G", "S") as consumer:
                found = [message.body for _, message in zip(range(3), consumer, strict=False)]
                assert consumer.assignment == [("S", 0)]
            assert client.pull("S", 0, 1).body_list() == [b"two", b"three"]
            with pytest.raises(duolog.UnknownTopic):
                client.pull("nope", 0, 0)
            return found

    assert await asyncio.to_thread(work) == [b"one", b"two", b"three"]


async def test_a_producer_notices_that_a_topic_was_recreated_with_fewer_queues(
    client: duolog.Client,
) -> None:
    await client.admin.create_topic("shrunk", 8)
    async with client.producer(timeout=5) as producer:
        for _ in range(8):
            await producer.send("shrunk", b"x")
        await client.admin.delete_topic("shrunk")
        with pytest.raises(duolog.UnknownTopic):
            await producer.send("shrunk", b"x")
        await client.admin.create_topic("shrunk", 1)
        for _ in range(4):
            assert (await producer.send("shrunk", b"x")).queue_id == 0


async def test_without_an_index_lookups_by_key_are_refused_and_those_by_id_are_not(
    start_node: StartNode,
) -> None:
    node = await start_node(message_index_enable=False)
    async with duolog.Client(f"127.0.0.1:{node.port}", timeout=5) as client:
        await client.admin.create_topic("T", 1)
        async with client.producer() as producer:
            receipt = await producer.send("T", b"x", key="k")
        with pytest.raises(duolog.BadRequest, match="message_index_enable=false"):
            await client.admin.find("T", key="k")
        with pytest.raises(duolog.BadRequest, match="message_index_enable=false"):
            await client.admin.find("T", unique_key=receipt.unique_key)
        with pytest.raises(duolog.BadRequest, match="message_index_enable=false"):
            await client.admin.track("T", 0, 0)
        record = broker_of(node).store.record_at("T", 0, QueueOffset(0))
        assert record is not None
        (found,) = await client.admin.find(message_id=record.message_id)
        assert found.body == b"x"
