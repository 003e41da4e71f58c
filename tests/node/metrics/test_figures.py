"""The figures of a node: they are what happened, and reading them changes nothing."""

import asyncio
import errno
import threading
import time
from pathlib import Path
from typing import Any

import duolog
import pytest

from duolog_server.compat.grpc.protocol.stubs import Code, definition, service
from duolog_server.node.consuming.groups import Heartbeat
from duolog_server.serve import server
from duolog_server.serve.server import Node
from tests.compat.grpc.api import Api, message, resource
from tests.node.replicas import (
    WAIT_SECONDS,
    Elected,
    Group,
    broker_of,
    caught_up,
    drained,
    following,
    master_of,
)
from tests.nodefixtures import StartNode
from tests.scraping import Scrape, scraped
from tests.until import until

METRICS = {"listen": "127.0.0.1:0"}
TRANSACTION = definition.MessageType.TRANSACTION


@pytest.fixture
async def node(start_node: StartNode) -> Node:
    """A node with metrics."""
    return await start_node(metrics=METRICS)


async def of(node: Node) -> Scrape:
    assert node.metrics is not None
    return await scraped(node.metrics.port)


async def in_sync(master: Node) -> None:
    """Wait until a slave is in sync: before, a put is refused."""
    machine = master_of(master)
    await until(lambda: machine.in_sync() == 2)


async def test_messages_are_counted_by_topic_and_kind(node: Node, client: duolog.Client) -> None:
    async with client.producer() as producer:
        await producer.send_batch("T", [b"12345"] * 10)
        await producer.send_batch("T", [b"1"] * 4, delay_level=18)
        await producer.send("T", b"123", deliver_at=int(time.time() * 1000) + 3_600_000)
    async with (
        client.transactions("p") as transactions,
        transactions.begin("T", b"12"),
    ):
        pass
    found = await of(node)
    assert found.value("rocketmq_messages_in_total", topic="T", message_type="transaction") == 1
    assert found.value("rocketmq_throughput_in_total", topic="T", message_type="transaction") == 2
    assert found.value("rocketmq_messages_in_total", topic="T", message_type="normal") == 10
    assert found.value("rocketmq_throughput_in_total", topic="T", message_type="normal") == 50
    assert found.value("rocketmq_messages_in_total", topic="T", message_type="delay") == 5
    assert found.value("rocketmq_throughput_in_total", topic="T", message_type="delay") == 7
    assert len(found.rows("rocketmq_messages_in_total")) == 3, "and nothing of the node's own"
    assert {dict(key[1])["is_system"] for key in found.rows("rocketmq_messages_in_total")} == {
        "false"
    }


async def test_messages_are_counted_by_size(node: Node, client: duolog.Client) -> None:
    async with client.producer() as producer:
        await producer.send_batch("T", [b"x" * 100] * 3 + [b"x" * 5000])
    api = Api(node)
    await api.send(message(b"x" * 2000))
    await api.close()
    found = await of(node)
    rows = found.rows("rocketmq_message_size_bucket", topic="T", message_type="normal")
    by_bound = {dict(key[1])["le"]: value for key, value in rows.items()}
    assert (by_bound["1024"], by_bound["4096"], by_bound["524288"]) == (3, 4, 5)
    assert found.value("rocketmq_message_size_sum", topic="T") == 7300
    assert found.value("rocketmq_message_size_count", topic="T") == 5


async def test_a_repeated_send_is_counted_once(node: Node, client: duolog.Client) -> None:
    async with client.producer() as producer:
        await producer.send("T", b"x")
    api = Api(node)
    sent = message(b"12", message_id="01CD")
    for _ in range(2):
        assert (await api.send(sent)).status.code == Code.OK
    await api.close()
    found = await of(node)
    assert found.value("rocketmq_messages_in_total", topic="T") == 2
    assert found.value("rocketmq_throughput_in_total", topic="T") == 3


async def test_what_a_group_reads_is_counted_and_its_lag_falls(
    node: Node, client: duolog.Client, producer: duolog.Producer
) -> None:
    await producer.send_batch("T", [b"12345"] * 10, queue_id=1)
    async with client.consumer("g", "T") as consumer:
        for _ in range(10):
            await consumer.get(10)
        found = await of(node)
        group = {"consumer_group": "g", "topic": "T", "is_retry": "false"}
        assert found.value("rocketmq_messages_out_total", **group) == 10
        assert found.value("rocketmq_throughput_out_total", **group) == 50
        assert found.value("rocketmq_consumer_lag_messages", **group) == 10
        assert found.value("rocketmq_consumer_ready_messages", **group) == 10
        assert found.value("rocketmq_consumer_inflight_messages", **group) == 0
        assert found.value("rocketmq_consumer_lag_latency", **group) > 0
        connected = {"consumer_group": "g", "protocol_type": "duolog"}
        assert found.value("rocketmq_consumer_connections", **connected) == 1
        assert await consumer.get(0.05) is None  # which settles the last one
        await consumer.commit()
        found = await of(node)
        for name in ("lag_messages", "ready_messages", "lag_latency", "queueing_latency"):
            assert found.value(f"rocketmq_consumer_{name}", **group) == 0
    await producer.send_batch("T", [b"x"] * 3, queue_id=2)
    await until(lambda: broker_of(node).store.queue_range("T", 2)[1] == 3)
    found = await of(node)
    assert found.value("rocketmq_consumer_lag_messages", **group) == 3
    assert found.rows("rocketmq_consumer_connections") == {}
    assert found.value("rocketmq_consumer_group_number") == 1


async def test_the_age_of_what_waits_is_that_of_its_oldest_message(
    node: Node, client: duolog.Client, producer: duolog.Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    await producer.send_batch("T", [b"x"] * 2, queue_id=0)
    await client.admin.reset_group("g", "T", offset=1)
    broker = broker_of(node)
    stored = broker.store.store_time("T", 0, 1)
    monkeypatch.setattr(broker.times, "wall_ms", lambda: stored + 123_456)
    for _ in range(2):  # the second time from what is remembered
        found = await of(node)
        assert found.value("rocketmq_consumer_lag_latency", consumer_group="g") == 123_456
        assert found.value("rocketmq_consumer_queueing_latency", consumer_group="g") == 123_456
        assert found.value("rocketmq_consumer_lag_messages", consumer_group="g") == 1
    assert found.value("rocketmq_storage_message_reserve_time") >= 123_456

    def read(*place: object) -> int:
        raise AssertionError("a group that stands still costs no read of the log")

    monkeypatch.setattr(broker.store, "store_time", read)
    assert (await of(node)).value("rocketmq_consumer_lag_latency", consumer_group="g") == 123_456


async def test_leases_are_in_flight_until_they_are_acknowledged(
    node: Node, client: duolog.Client
) -> None:
    api = Api(node, x_mq_language="GO", x_mq_client_version="5.1.0")
    try:
        for _ in range(3):
            await api.send(message(b"12345"))
        received = await api.receive("g", count=2)
        group = {"consumer_group": "g", "topic": "T", "is_retry": "false"}
        assert len(received.handles) == 2
        await until(lambda: ("T", "g") in broker_of(node).metadata.tables.offsets)
        found = await of(node)
        assert found.value("rocketmq_consumer_inflight_messages", **group) == 2
        assert found.value("rocketmq_consumer_ready_messages", **group) == 1
        assert found.value("rocketmq_consumer_lag_messages", **group) == 3
        assert found.value("rocketmq_messages_out_total", **group) == 2
        assert found.value("rocketmq_throughput_out_total", **group) == 10
        assert found.value("duolog_pop_leases") == 2
        await api.ack("g", *received.handles)
        await api.ack("g", *(await api.receive("g")).handles)
        found = await of(node)
        for name in ("inflight_messages", "ready_messages", "lag_messages", "lag_latency"):
            assert found.value(f"rocketmq_consumer_{name}", **group) == 0
        assert found.value("duolog_pop_leases") == 0
    finally:
        await api.close()


async def test_clients_of_rocketmq_are_counted_by_what_they_say_they_are(
    node: Node, client: duolog.Client
) -> None:
    hostile = 'C"\\'
    made = [
        Api(node, "p@1", x_mq_language="GO", x_mq_client_version="5.1.0"),
        Api(node, "p@2", x_mq_language="GO", x_mq_client_version="5.1.0"),
        Api(node, "c@1", x_mq_language=hostile + "x" * 200, x_mq_client_version="1"),
    ]
    try:
        kinds = definition.ClientType
        for api, kind in zip(
            made, (kinds.PRODUCER, kinds.PRODUCER, kinds.PUSH_CONSUMER), strict=True
        ):
            beat = service.HeartbeatRequest(client_type=kind)
            if kind == kinds.PUSH_CONSUMER:
                beat.group.CopyFrom(resource("g"))
            await api.call("Heartbeat", beat)
        found = await of(node)
        go = {"language": "GO", "version": "5.1.0", "protocol_type": "grpc"}
        assert found.value("rocketmq_producer_connections", **go) == 2
        consumers = {"consumer_group": "g", "consume_mode": "push", "is_system": "false"}
        assert found.value("rocketmq_consumer_connections", **consumers) == 1
        (key,) = found.rows("rocketmq_consumer_connections")
        assert dict(key[1])["language"] == (hostile + "x" * 200)[:64]
    finally:
        for api in made:
            await api.close()


async def test_dead_letters_are_counted_under_the_topic_they_were_sent_to(
    node: Node, client: duolog.Client
) -> None:
    api = Api(node)
    try:
        await api.send(message(b"12345"))
        (handle,) = (await api.receive("g")).handles
        await api.call(
            "ForwardMessageToDeadLetterQueue",
            service.ForwardMessageToDeadLetterQueueRequest(
                group=resource("g"), topic=resource("T"), receipt_handle=handle, message_id="x"
            ),
        )
        found = await of(node)
        name = "rocketmq_send_to_dlq_messages_total"
        assert found.value(name, consumer_group="g", topic="T") == 1
        assert found.value("rocketmq_messages_in_total", topic="T") == 1
        assert found.rows("rocketmq_messages_in_total", topic="%DLQ%g") == {}
    finally:
        await api.close()


async def test_another_attempt_is_counted_apart(node: Node, client: duolog.Client) -> None:
    await client.admin.put_group("g", retry_delays_ms=[0])
    api = Api(node)
    try:
        await api.send(message(b"12345"))
        (handle,) = (await api.receive("g")).handles
        await api.change("g", handle, 50)
        await until(lambda: any(t.startswith("%RETRY%") for t in broker_of(node).metadata.topics))
        async with asyncio.timeout(20):
            while not (await api.receive("g")).handles:
                pass
        found = await of(node)
        for again in ("false", "true"):
            group = {"consumer_group": "g", "topic": "T", "is_retry": again}
            assert found.value("rocketmq_messages_out_total", **group) == 1
        (retried,) = found.rows("rocketmq_consumer_inflight_messages", is_retry="true").items()
        assert (dict(retried[0][1])["topic"], retried[1]) == ("%RETRY%g_T", 1)
    finally:
        await api.close()


async def test_half_messages_wait_until_they_are_decided(node: Node, client: duolog.Client) -> None:
    await client.admin.create_topic("U", 1)
    api = Api(node)
    decisions = definition.TransactionResolution
    try:
        entries = []
        for topic in ("T", "T", "U"):
            sent = message(b"12345", topic, message_type=TRANSACTION)
            (entry,) = (await api.send(sent)).entries
            entries.append((topic, entry))
        await until(lambda: broker_of(node).transactions.waiting == 3)
        found = await of(node)
        assert found.value("rocketmq_half_messages", topic="T") == 2
        assert found.value("rocketmq_half_messages", topic="U") == 1
        kind = {"message_type": "transaction"}
        assert found.value("rocketmq_messages_in_total", topic="T", **kind) == 2
        for (topic, entry), decision in zip(
            entries, (decisions.COMMIT, decisions.ROLLBACK, decisions.ROLLBACK), strict=True
        ):
            request = service.EndTransactionRequest(
                topic=resource(topic),
                message_id=entry.message_id,
                transaction_id=entry.transaction_id,
                resolution=decision,
            )
            for _ in range(2):  # the same decision again changes nothing
                reply = await api.call("EndTransaction", request)
                assert reply.status.code == Code.OK
        found = await of(node)
        assert found.rows("rocketmq_half_messages") == {}
        assert found.value("rocketmq_commit_messages_total", topic="T") == 1
        assert found.value("rocketmq_rollback_messages_total", topic="T") == 1
        assert found.value("rocketmq_rollback_messages_total", topic="U") == 1
        assert found.rows("rocketmq_commit_messages_total", topic="U") == {}
        assert found.value("rocketmq_messages_in_total", topic="T", **kind) == 2
    finally:
        await api.close()


async def test_figures_of_deleted_topics_and_groups_disappear(
    node: Node, client: duolog.Client, producer: duolog.Producer
) -> None:
    await producer.send_batch("T", [b"x"] * 3)
    await client.admin.reset_group("g", "T", offset=0)
    found = await of(node)
    assert found.rows("rocketmq_consumer_lag_messages", topic="T")
    await client.admin.delete_topic("T")
    found = await of(node)
    assert 'topic="T"' not in found.text
    await client.admin.create_topic("T", 1)
    await client.admin.delete_group("g")
    assert 'consumer_group="g"' not in (await of(node)).text


@pytest.mark.usefixtures("nothing_noted")
async def test_a_scrape_makes_and_wakes_nothing(
    node: Node, client: duolog.Client, producer: duolog.Producer
) -> None:
    broker = broker_of(node)
    await producer.send_batch("T", [b"x"] * 3)
    await client.admin.reset_group("g", "T", offset=0)
    await client.admin.put_group("h")
    now = broker.times.mono_ms()
    broker.groups.heartbeat("m", "silent", Heartbeat(("T",), session_ms=1000), {"T": range(4)}, now)
    api = Api(node)
    assert len((await api.receive("h")).handles) == 3
    await until(lambda: ("T", "h") in broker.metadata.tables.offsets)
    polling = asyncio.ensure_future(api.receive("h", poll_ms=20_000, timeout=30))
    await until(lambda: broker.waiting_calls.count == 1)
    await until(lambda: broker.times.mono_ms() > now + 1100)  # its session has expired
    woken: list[Any] = []
    broker.log.dispatched.append(woken.append)

    def state() -> tuple[Any, ...]:
        tables = broker.metadata.tables
        members = {name: dict(group.members) for name, group in broker.groups._groups.items()}
        return (
            *(dict(tables.topics), dict(tables.groups), dict(tables.offsets), tables.changes),
            *(members, len(broker.log.board), broker.store.max_offset, broker.status()),
            *(list(broker.store.queues.table), dict(broker.store.topic_queue_table)),
        )

    before = state()
    for _ in range(3):
        assert (await of(node)).rows("rocketmq_consumer_connections", consumer_group="m") == {}
    assert state() == before
    assert woken == []
    assert not polling.done()
    polling.cancel()
    await asyncio.wait([polling])
    await api.close()


@pytest.mark.usefixtures("nothing_noted")
async def test_a_slave_tells_how_far_it_is_behind_and_nothing_of_groups(
    start_node: StartNode, tmp_path: Path
) -> None:
    group = Group(start_node, tmp_path)
    master = await group.start_master(metrics=METRICS)
    slave = await group.start_slave(metrics=METRICS)
    await in_sync(master)
    async with group.client(master, slave) as client:
        await client.admin.create_topic("T", 1)
        async with client.producer() as producer:
            await producer.send_batch("T", [b"x"] * 10)
        await client.admin.reset_group("g", "T", offset=0)
    await caught_up(master, slave)
    end = broker_of(master).store.max_offset
    machine, now = broker_of(master).replication.master, broker_of(master).times.mono_ms
    assert machine is not None
    await until(lambda: machine.in_sync() == 2 and machine.rows(now())[0].lag_bytes == 0)
    found, other = await of(master), await of(slave)
    assert found.value("duolog_role", role="master") == 1
    assert other.value("duolog_role", role="master") == 0
    assert other.value("duolog_role", role="slave") == 1
    assert found.value("duolog_in_sync_replicas") == 2
    names = {dict(key[1])["replica"] for key in found.rows("duolog_in_sync_replica")}
    assert names == {"m", "s"}
    for one in (found, other):
        assert one.value("duolog_replication_lag_bytes", slave="s") == 0
        assert one.value("duolog_replication_lag_seconds", slave="s") == 0
        assert one.value("duolog_log_max_offset") == end
        assert one.value("duolog_epoch") == 1
    assert found.value("duolog_writable") == 1
    assert other.value("duolog_writable") == 0
    assert found.value("rocketmq_broker_permission") == 6
    assert other.value("rocketmq_broker_permission") == 4
    assert found.value("rocketmq_consumer_lag_messages", consumer_group="g") == 10
    assert other.rows("rocketmq_consumer_lag_messages") == {}
    assert found.value("duolog_append_seconds_count") > 0


async def test_a_slave_that_is_refused_is_never_shown_as_one_that_has_everything(
    start_node: StartNode, tmp_path: Path
) -> None:
    """Here it has the name of another, as a copied configuration gives it."""
    group = Group(start_node, tmp_path)
    other = await start_node(tmp_path / "other", name="s")
    async with group.client(other) as client:
        await client.admin.create_topic("Other", 1)
    await other.stop()
    master = await group.start_master(metrics=METRICS)
    await following(await group.start_slave())
    refused = await start_node(
        tmp_path / "other",
        ha={"master": group.ha["listen"], "reconnect_interval": 100},
        name="s",
        broker_role="SLAVE",
        metrics=METRICS,
    )
    machine = master_of(master)
    await until(lambda: "s" in machine.refusals)
    found = await of(master)
    assert len(found.rows("duolog_replication_lag_bytes", slave="s")) == 1, "of the one it serves"
    await of(refused)
    await asyncio.sleep(0.02)
    found = await of(refused)
    assert found.rows("duolog_replication_lag_bytes") == {}
    assert found.value("duolog_replication_lag_seconds", slave="s") > 0


async def test_elected_nodes_tell_their_elections_and_the_margin_of_their_lease(
    start_node: StartNode, tmp_path: Path
) -> None:
    elected = await Elected.start(start_node, tmp_path, metrics=METRICS)

    def settled(found: dict[str, Scrape]) -> bool:
        """A machine that stands still for seconds elects once more, maybe between two scrapes."""
        one = elected.master.config.node.name if elected.master is not None else ""
        return (
            one != ""
            and len({each.value("duolog_epoch") for each in found.values()}) == 1
            and all(each.value("duolog_lease_margin_seconds") for each in found.values())
            and found[one].value("duolog_role", role="master") == 1
            and found[one].value("duolog_in_sync_replicas") == 3
        )

    async with asyncio.timeout(WAIT_SECONDS):
        while not settled(
            found := {node.config.node.name: await of(node) for node in elected.nodes}
        ):
            await asyncio.sleep(0.01)
    master = elected.the_master().config.node.name
    elections = {name: one.value("duolog_elections_total") for name, one in found.items()}
    assert elections[master] >= 1
    for name, one in found.items():
        assert one.value("duolog_role", role="master") == (name == master)
        assert 0 < one.value("duolog_lease_margin_seconds") <= 3
        assert one.value("duolog_in_sync_replicas_required") == 2
        assert one.value("duolog_epoch") == sum(elections.values())
    replicas = {dict(key[1])["replica"] for key in found[master].rows("duolog_in_sync_replica")}
    assert replicas == {"a", "b", "c"}
    assert found[master].value("duolog_in_sync_replicas") == 3


async def test_a_drained_node_and_the_renewals_of_its_lease_are_told(
    start_node: StartNode, tmp_path: Path
) -> None:
    elected = await Elected.start(start_node, tmp_path, metrics=METRICS)
    master = elected.the_master()
    (other, *_) = [node for node in elected.nodes if node is not master]
    failover = other.failover
    assert failover is not None
    found = await of(other)
    assert found.value("duolog_drained") == 0
    assert found.value("duolog_lease_renewal_seconds_max") < 3
    assert found.value("duolog_lease_seconds") == 3
    async with duolog.Client(elected.endpoints, timeout=10) as client:
        await drained(client, other.config.node.name)
    await until(lambda: other.config.node.name in failover.machine.view.drained)
    assert (await of(other)).value("duolog_drained") == 1
    assert (await of(master)).value("duolog_drained") == 0
    failover._keeper._took.append(1000.5)
    assert (await of(other)).value("duolog_lease_renewal_seconds_max") == 1000.5


async def test_a_node_tells_its_wall_clock(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_of(node).times, "wall_ms", lambda: 1_700_000_000_500)
    found = await of(node)
    assert found.value("duolog_wall_time_seconds") == 1_700_000_000.5
    assert found.rows("duolog_certificate_expiry_timestamp_seconds") == {}, "it has none"


async def test_a_fenced_node_says_so(node: Node) -> None:
    broker_of(node).store.fence("test")
    found = await of(node)
    assert found.value("duolog_fenced") == 1
    assert found.value("duolog_writable") == 0
    assert found.value("rocketmq_broker_permission") == 0


async def test_a_disk_that_tells_nothing_hides_nothing_else(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(path: object) -> None:
        raise OSError(errno.EIO, "it has failed")

    monkeypatch.setattr("duolog_server.node.metrics.nodefacts.fullest", broken)
    found = await of(node)
    assert found.rows("duolog_disk_free_bytes") == {}
    assert found.value("duolog_writable") == 1


async def test_a_full_disk_is_told(node: Node) -> None:
    broker = broker_of(node)
    assert (await of(node)).value("duolog_disk_full") == 0
    broker.store.flags.set(broker.store.flags.DISK_FULL)
    found = await of(node)
    assert found.value("duolog_disk_full") == 1
    assert found.value("rocketmq_broker_permission") == 4
    assert found.value("duolog_disk_free_bytes") > 0
    broker.store.flags.clear(broker.store.flags.DISK_FULL)


async def test_syncs_of_the_log_are_timed(start_node: StartNode) -> None:
    node = await start_node(metrics=METRICS, flush_disk_type="SYNC_FLUSH")
    async with duolog.Client(f"127.0.0.1:{node.port}", timeout=10) as client:
        await client.admin.create_topic("T", 1)
        before = await of(node)
        async with client.producer() as producer:
            await producer.send("T", b"x")
    found = await of(node)
    name = "duolog_fsync_seconds"
    assert found.value(f"{name}_count") > before.value(f"{name}_count") > 0
    assert 0 < found.value(f"{name}_sum") < 60
    assert found.value("duolog_log_flushed_offset") == found.value("duolog_log_max_offset")


async def test_a_start_after_a_kill_is_told(start_node: StartNode, tmp_path: Path) -> None:
    first = await start_node()
    async with duolog.Client(f"127.0.0.1:{first.port}", timeout=10) as client:
        await client.admin.create_topic("T", 1)
    await first.stop()
    (tmp_path / "data" / "abort").write_bytes(b"")  # as a kill leaves it
    found = await of(await start_node(metrics=METRICS))
    assert found.value("duolog_recovery_abnormal") == 1
    assert found.value("duolog_recovery_seconds") > 0
    assert found.value("rocketmq_topic_number") == 1


async def test_how_the_process_before_ended_is_told(start_node: StartNode, tmp_path: Path) -> None:
    async def told() -> str:
        node = await start_node(metrics=METRICS)
        rows = (await of(node)).rows("duolog_last_stop")
        (how,) = [dict(key[1])["how"] for key, value in rows.items() if value]
        assert sorted(rows.values()) == [0, 0, 1]
        await node.stop()
        return how

    assert await told() == "clean", "there was none"
    assert await told() == "clean"
    (tmp_path / "data" / "abort").write_bytes(b"")  # as a kill leaves it
    assert await told() == "killed"
    assert await told() == "clean"
    fenced = await start_node()
    broker_of(fenced).store.fence("test")
    await server._note_fence(broker_of(fenced))
    await fenced.stop()
    assert await told() == "fenced"
    assert await told() == "clean"


async def test_a_disk_that_does_not_take_the_note_of_a_fence_holds_nothing_up(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker, answers = broker_of(node), threading.Event()

    def stuck() -> None:
        answers.wait(20)
        raise OSError(errno.EIO, "it has failed")

    monkeypatch.setattr(server, "NOTE_SECONDS", 0.05)
    monkeypatch.setattr(broker.store, "note_fence", stuck)
    async with asyncio.timeout(60):
        await server._note_fence(broker)
        answers.set()
        await server._note_fence(broker)  # which fails at once


async def test_names_of_a_node_are_escaped(start_node: StartNode) -> None:
    name = 'a"b\\c{}='
    node = await start_node(metrics=METRICS, name=name)
    assert (await of(node)).value("duolog_queues", node_id=name) >= 0


async def test_calls_over_a_quota_are_counted_by_kind_and_limit(
    node: Node, client: duolog.Client, producer: duolog.Producer
) -> None:
    await client.admin.put_quota("Topic:T", messages_in=1, burst_ms=1)
    await producer.send_batch("T", [b"x"] * 100)
    with pytest.raises(duolog.Throttled):
        await producer.send("T", b"x", timeout=20)
    found = await of(node)
    assert found.value("duolog_quotas") == 1
    limits = {"kind": "Topic", "limit": "messages_in"}
    assert found.value("duolog_throttled_calls_total", **limits) == 1
    others = [value for value in found.rows("duolog_throttled_calls_total").values() if value]
    assert others == [1]
    assert len(found.rows("duolog_throttled_calls_total")) == 16


async def test_entries_of_the_audit_log_are_counted(start_node: StartNode, tmp_path: Path) -> None:
    node = await start_node(metrics=METRICS, audit={"file": tmp_path / "audit.log", "topic": True})
    async with duolog.Client(f"127.0.0.1:{node.port}", timeout=10) as client:
        await client.admin.create_topic("T", 1)
    await until(lambda: broker_of(node).status()["audit_waiting"] == 0)
    found = await of(node)
    for to in ("file", "topic"):
        assert found.value("duolog_audit_entries_total", to=to) == 1
        assert found.value("duolog_audit_entries_lost_total", to=to) == 0
