"""Quotas on a node: what is over one is refused or delayed, typed, and nothing is lost."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import duolog
import pytest
from duolog.wire import duolog_pb2 as wire
from duolog.wire import duolog_pb2_grpc as stubs

from duolog_server.node.core.untaken import LITTLE_BYTES, SHARES
from duolog_server.node.identity.quotas.quota import Kind, Limit, Quota
from duolog_server.node.identity.quotas.quotas import Who
from duolog_server.serve.server import Node
from tests.keyfiles import access_files
from tests.node.api.test_messages import append, append_request
from tests.node.replicas import WAIT_SECONDS, Group, broker_of, caught_up, following
from tests.nodefixtures import StartNode
from tests.until import slowness, until

PASSWORD = "a password of the test"


def counted(node: Node, kind: Kind, limit: Limit) -> int:
    return broker_of(node).core.throttle.refused[kind, limit]


def stop_the_clock(node: Node) -> None:
    """The one of its quotas: what is owed stays owed, however long the test takes."""
    broker = broker_of(node)
    now = broker.times.mono_ms()
    broker.core.throttle._times = SimpleNamespace(mono_ms=lambda: now)  # type: ignore[assignment]


def stored(node: Node, topic: str = "T") -> int:
    """Messages in all queues of a topic."""
    return sum(broker_of(node).store.next_offset(topic, queue) for queue in range(4))


async def test_a_batch_over_a_quota_is_refused_with_the_time_to_wait_and_not_stored(
    node: Node, client: duolog.Client
) -> None:
    await client.admin.put_quota("Topic:T", bytes_in=1000, burst_ms=100)
    stop_the_clock(node)
    first = await append(client, append_request([b"x" * 500, b"y" * 500]))
    assert first.status == wire.PUT_OK
    refused = await append(client, append_request([b"z"]))
    assert refused.status == wire.THROTTLED
    assert refused.retry_after_ms == 901
    assert refused.reason == "over the quota of Topic:T: bytes in, 1000 a second"
    assert broker_of(node).store.next_offset("T", 0) == 2
    assert counted(node, Kind.TOPIC, Limit.BYTES_IN) == 1


async def test_properties_count_as_bodies_do(node: Node, client: duolog.Client) -> None:
    await client.admin.put_quota("Topic:T", bytes_in=1000, burst_ms=100)
    stop_the_clock(node)
    properties = b"k\x01" + b"v" * 900 + b"\x02"
    request = append_request(
        [b""],
        properties=properties,
        property_offsets=b"\0\0\0\0" + len(properties).to_bytes(4, "little"),
    )
    assert (await append(client, request)).status == wire.PUT_OK
    assert (await append(client, append_request([b""]))).status == wire.THROTTLED


async def test_a_producer_waits_that_time_and_keeps_the_order(
    node: Node, client: duolog.Client
) -> None:
    await client.admin.put_quota("Topic:T", messages_in=200, burst_ms=50)
    throttle = broker_of(node).core.throttle
    times = throttle._times
    stop_the_clock(node)  # until one has to wait: a slow machine does not send that fast

    async def send(producer: duolog.Producer) -> list[duolog.Posted]:
        for number in range(100):
            await producer.send("T", b"%d" % number, key="k")
        posted = [producer.post("T", b"%d" % number, key="k") for number in range(100, 200)]
        await producer.flush()
        return posted

    async with client.producer() as producer, asyncio.TaskGroup() as tasks:
        sending = tasks.create_task(send(producer))
        await until(lambda: counted(node, Kind.TOPIC, Limit.MESSAGES_IN) > 0)
        throttle._times = times
        posted = await sending
    (queue,) = {one.receipt().queue_id for one in posted}
    batch = await client.pull("T", queue, 0)
    assert [message.body for message in batch] == [b"%d" % number for number in range(200)]


async def test_a_send_whose_time_is_too_short_says_so_and_stores_nothing(
    node: Node, client: duolog.Client
) -> None:
    await client.admin.put_quota("Client:127.0.0.1", messages_in=1)
    async with client.producer() as producer:
        await producer.send_batch("T", [b"x"] * 100)
        with pytest.raises(duolog.Throttled, match=r"quota of Client:127\.0\.0\.1") as caught:
            await producer.send("T", b"late", timeout=5)
    assert caught.value.retry_after_ms > 10_000
    assert isinstance(caught.value, duolog.Retryable)
    assert stored(node) == 100


async def test_a_subscription_is_delayed_and_gets_all(node: Node, client: duolog.Client) -> None:
    async with client.producer() as producer:
        await producer.send_batch("T", [b"%d" % number for number in range(60)])
    await client.admin.put_quota("Topic:T", messages_out=100, burst_ms=100)
    loop = asyncio.get_running_loop()
    async with client.consumer("g", "T") as consumer:
        began, found = loop.time(), []
        async for message in consumer:
            found.append(message.body)
            if len(found) == 60:
                break
    assert sorted(found) == sorted(b"%d" % number for number in range(60))
    assert loop.time() - began >= 0.4
    assert counted(node, Kind.TOPIC, Limit.MESSAGES_OUT) > 0


async def test_one_throttled_topic_does_not_delay_another_of_the_same_subscription(
    client: duolog.Client,
) -> None:
    await client.admin.create_topic("U", 1)
    await client.admin.put_quota("Topic:T", messages_out=1)
    async with client.producer() as producer:
        await producer.send_batch("T", [b"slow"] * 100)
        await producer.send_batch("U", [b"quick"] * 100)
    loop = asyncio.get_running_loop()
    began = loop.time()
    async with client.consumer("g", ["T", "U"]) as consumer:
        found = [await consumer.get(WAIT_SECONDS) for _ in range(100)]
    took = loop.time() - began
    assert took < 25 * slowness(), "one of each a second would be 50 s"
    slow = 4 + took  # a burst of a second, and one each second
    assert sum(one is not None and one.body == b"quick" for one in found) >= 100 - slow


async def test_a_quota_that_is_taken_away_delays_nobody_any_more(client: duolog.Client) -> None:
    await client.admin.put_quota("Topic:T", messages_out=1)
    async with client.producer() as producer:
        await producer.send_batch("T", [b"x"] * 1000)
    async with client.consumer("g", "T") as consumer:
        assert await consumer.get(5) is not None
        await client.admin.delete_quota("Topic:T")
        for _ in range(999):
            assert await consumer.get(5) is not None


async def test_a_pull_over_a_quota_waits_in_its_time_or_is_refused(
    node: Node, client: duolog.Client
) -> None:
    async with client.producer() as producer:
        receipt = await producer.send_batch("T", [b"x" * 100] * 10)
    queue = receipt.parts[0].queue_id
    await client.admin.put_quota("Client:*", bytes_out=1000, burst_ms=100)
    stub = client._router.seed.messages
    pulled = await stub.Pull(wire.PullRequest(topic="T", queue_id=queue), timeout=10)
    assert pulled.count == 1, "no more than a burst"
    batch = await client.pull("T", queue, 1, max_messages=1)
    assert len(batch) == 1
    await client.admin.put_quota("Client:*", bytes_out=1)
    await client.pull("T", queue, 1, max_messages=1)
    async with duolog.Client(f"127.0.0.1:{node.port}", timeout=10) as hasty:
        with pytest.raises(duolog.Throttled) as caught:
            await hasty.pull("T", queue, 2)
    assert caught.value.retry_after_ms > 50_000


async def test_a_pull_waits_as_long_as_for_messages_also_where_that_is_not_enough(
    client: duolog.Client,
) -> None:
    """And goes on where the quota is raised meanwhile."""
    await client.admin.put_quota("Topic:T", bytes_out=1)
    assert (await append(client, append_request([b"x" * 10_000] * 2))).status == wire.PUT_OK
    await client.pull("T", 0, 0, max_messages=1)
    stub, loop = client._router.seed.messages, asyncio.get_running_loop()
    began = loop.time()
    with pytest.raises(Exception, match="quota of Topic:T"):
        await stub.Pull(wire.PullRequest(topic="T", queue_offset=1, wait_ms=500), timeout=10)
    assert loop.time() - began >= 0.4, "it would ask again at once"
    request = wire.PullRequest(topic="T", queue_offset=1, wait_ms=10_000)
    waiting = asyncio.ensure_future(stub.Pull(request, timeout=20))
    await asyncio.sleep(0.1)
    began = loop.time()
    await client.admin.delete_quota("Topic:T")
    assert (await waiting).count == 1
    assert loop.time() - began < 5


async def test_of_many_pulls_that_wait_for_a_message_one_gets_it_at_a_time(
    node: Node, client: duolog.Client
) -> None:
    await client.admin.put_quota("Topic:T", bytes_out=10_000, burst_ms=1)
    stub = client._router.seed.messages
    request = wire.PullRequest(topic="T", wait_ms=5000)
    waiting = [asyncio.ensure_future(stub.Pull(request, timeout=20)) for _ in range(5)]
    await until(lambda: len(broker_of(node).log.board) == 5)
    began = asyncio.get_running_loop().time()
    assert (await append(client, append_request([b"x" * 2000]))).status == wire.PUT_OK
    assert [(await pull).count for pull in waiting] == [1] * 5
    assert asyncio.get_running_loop().time() - began >= 0.7


async def test_a_read_that_is_dropped_for_want_of_room_is_not_charged(
    node: Node, client: duolog.Client
) -> None:
    broker, address = broker_of(node), "somebody"
    untaken, charged = broker.untaken, list[int]()
    throttle = broker.core.throttle
    sent = throttle.sent

    def noted(who: Who, topic: str, size: int, count: int) -> None:
        charged.append(count)
        sent(who, topic, size, count)

    throttle.sent = noted  # type: ignore[method-assign]
    await client.admin.put_quota("Topic:T", messages_out=1000)
    request = wire.PullRequest(topic="T", wait_ms=5000)
    waiting = asyncio.ensure_future(client._router.seed.messages.Pull(request, timeout=20))
    await until(lambda: len(broker.log.board) == 1)
    most = untaken.room(address)
    taken = [f"{address}{number}" for number in range(SHARES)]
    for one in taken:
        untaken.take(one, most)
    bodies = [b"x" * LITTLE_BYTES] * 4  # a little is always left
    assert (await append(client, append_request(bodies))).status == wire.PUT_OK
    pulled = await waiting
    for one in taken:
        untaken.give(one, most)
    assert pulled.count == 1
    assert charged == [1]


async def test_what_a_sink_stages_counts_and_its_publication_does_not(
    node: Node, client: duolog.Client
) -> None:
    await client.admin.put_quota("Topic:T", messages_in=1)
    stub = client._router.seed.messages
    batch = append_request([b"x"] * 50, producer_id=b"p" * 10).SerializeToString()
    staged = await stub.Stage(wire.StageRequest(sink="s", batch=batch), timeout=10)
    with pytest.raises(Exception, match="over the quota of Topic:T"):
        await stub.Stage(wire.StageRequest(sink="s", batch=batch), timeout=10)
    request = wire.PublishRequest(sink="s", batch=1, staged=[staged.staged])
    await stub.Publish(request, timeout=10)
    assert broker_of(node).store.next_offset("T", 0) == 50


async def test_quotas_outlive_a_restart_from_the_log_and_from_the_snapshot(
    start_node: StartNode, tmp_path: Path
) -> None:
    node = await start_node()
    async with duolog.Client(f"127.0.0.1:{node.port}") as client:
        await client.admin.put_quota("User:*", bytes_in=5, connections=6, burst_ms=70)
        await client.admin.put_quota("Namespace:eu", topics=7)
        before = await client.admin.quotas()
    await node.stop()
    snapshot = tmp_path / "data" / "config" / "duologMetadata.json"
    for damage in (False, True):
        if damage:
            snapshot.unlink()
            snapshot.with_name(snapshot.name + ".bak").unlink(missing_ok=True)
        node = await start_node()
        assert broker_of(node).core.throttle.on
        async with duolog.Client(f"127.0.0.1:{node.port}") as client:
            assert await client.admin.quotas() == before
        await node.stop()


async def test_a_slave_that_joins_goes_by_the_quotas_that_there_are(
    start_node: StartNode, tmp_path: Path
) -> None:
    """It reads no record of them, but takes its master's tables."""
    group = Group(start_node, tmp_path)
    master = await group.start_master("ASYNC_MASTER")
    metadata = broker_of(master).metadata
    await metadata.change({"op": "quota", "quota": {"subject": "Topic:T", "bytes_out": 5}})
    slave = await group.start_slave()
    await following(slave)
    await caught_up(master, slave)
    throttle = broker_of(slave).core.throttle
    assert (throttle.on, throttle.quotas.count) == (True, 1)


async def test_a_change_and_a_restart_read_each_quota_once(
    start_node: StartNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else ten thousand of them stop a node for half a second at each change, and its start for
    half an hour."""
    read: list[str] = []
    from_row = Quota.from_row

    def counting(row: Mapping[str, Any]) -> Quota:
        read.append(row["subject"])
        return from_row(row)

    monkeypatch.setattr(Quota, "from_row", counting)
    node = await start_node()
    metadata = broker_of(node).metadata
    for number in range(500):
        metadata.note({"op": "quota", "quota": {"subject": f"User:u{number}", "bytes_in": 1}})
    await metadata.all_applied()
    assert len(read) == 500
    async with duolog.Client(f"127.0.0.1:{node.port}") as client:
        await client.admin.put_quota("User:u7", bytes_in=2)
        assert read[500:] == ["User:u7"] * len(read[500:])
        await client.admin.delete_quota("User:u7")
        assert len(read) < 510
    assert broker_of(node).core.throttle.quotas.count == 499
    await node.stop()
    for file in (tmp_path / "data" / "config").glob("duologMetadata.json*"):
        file.unlink()
    read.clear()
    node = await start_node()
    assert broker_of(node).core.throttle.quotas.count == 499
    assert len(read) == 499


async def test_limits_are_altered_one_by_one_and_deleted(client: duolog.Client) -> None:
    await client.admin.put_quota("user:alice", bytes_in=5, messages_in=6)
    altered = await client.admin.put_quota("User:alice", bytes_in=0, messages_out=8)
    assert altered == duolog.Quota("User:alice", messages_in=6, messages_out=8)
    assert await client.admin.quotas() == [altered]
    await client.admin.delete_quota("User:alice")
    assert await client.admin.quotas() == []


@pytest.mark.parametrize(
    ("subject", "limits", "reason"),
    [
        ("alice", {"bytes_in": 1}, "is not User:NAME"),
        ("Topic:T", {"topics": 1}, "Topic has no limit topics"),
        ("Topic:T", {}, "would have no limit"),
        ("Topic:T", {"colours": 1}, "colours is not one of"),
        ("Topic:T", {"bytes_in": -1}, "bytes_in is -1; it must be at least 0"),
        ("Topic:T", {"bytes_in": 1 << 60}, "it must be 1 to"),
    ],
)
async def test_a_quota_that_cannot_be_is_a_bad_request(
    client: duolog.Client, subject: str, limits: dict[str, int], reason: str
) -> None:
    with pytest.raises(duolog.BadRequest, match=reason):
        await client.admin.put_quota(subject, **limits)
    assert await client.admin.quotas() == []


async def test_a_quota_that_there_is_not_cannot_be_deleted(client: duolog.Client) -> None:
    with pytest.raises(duolog.BadRequest, match="Topic:T has no quota"):
        await client.admin.delete_quota("Topic:T")


async def test_a_namespace_has_no_more_topics_than_its_quota(start_node: StartNode) -> None:
    node = await start_node(limits={"auto_create_topic": True})
    async with duolog.Client(f"127.0.0.1:{node.port}", timeout=10) as client:
        await client.admin.put_quota("Namespace:eu", topics=1)
        await client.admin.create_topic("eu%a", 1)
        await client.admin.create_topic("eu%a", 1)  # the same once more
        with pytest.raises(duolog.Throttled, match="quota of Namespace:eu: topics, 1"):
            await client.admin.create_topic("eu%b", 1)
        reply = await append(client, append_request([b"x"], topic="eu%b"))
        assert reply.status == wire.THROTTLED
        assert (await append(client, append_request([b"x"], topic="eu%a"))).status == wire.PUT_OK
        await client.admin.create_topic("us%b", 1)
        await client.admin.delete_topic("eu%a")
        await client.admin.create_topic("eu%b", 1)
    assert counted(node, Kind.NAMESPACE, Limit.TOPICS) >= 2


async def test_a_message_for_a_topic_that_may_not_be_created_uses_nothing_of_a_rate(
    start_node: StartNode, tmp_path: Path
) -> None:
    node = await start_node(
        access=access_files(tmp_path, PASSWORD), limits={"auto_create_topic": True}
    )
    where = f"127.0.0.1:{node.port}"
    async with duolog.Client(where, user="root", password=PASSWORD, timeout=10) as root:
        await root.access.create_user("root", PASSWORD, is_super=True)
        await root.admin.create_topic("T", 1)
        await root.admin.put_quota("User:root", topics=1, messages_in=1, burst_ms=1)
        for topic in ("new", "newer"):
            reply = await append(root, append_request([b"x"], topic=topic))
            assert (reply.status, reply.retry_after_ms) == (wire.THROTTLED, 0)
            staged = append_request([b"x"], topic=topic, producer_id=b"p" * 10)
            request = wire.StageRequest(sink="s", batch=staged.SerializeToString())
            with pytest.raises(Exception, match="User:root: topics, 1"):
                await root._router.seed.messages.Stage(request, timeout=10)
        assert (await append(root, append_request([b"x"]))).status == wire.PUT_OK


async def test_a_connection_over_the_quota_is_refused_and_may_begin_when_another_ends(
    node: Node, client: duolog.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over frames: over gRPC, only a stream that is read is a connection."""
    monkeypatch.setenv("DUOLOG_TRANSPORT", "frames")
    holder, first = (duolog.Client(f"127.0.0.1:{node.port}", timeout=10) for _ in range(2))
    connections = broker_of(node).core.throttle.connections
    async with holder, holder.producer() as producer:
        with monkeypatch.context() as patched:
            patched.setattr("duolog._connection.GATE_SECONDS", 10.0)
            await producer.send("T", b"x")  # this client has the connection
        await client.admin.put_quota("Client:*", connections=1)
        async with first, first.producer() as other:
            with pytest.raises(
                (duolog.Throttled, duolog.ResultUnknown),  # the latter if its last try was cut off
                match=r"quota of Client:127\.0\.0\.1: connections, 1",
            ):
                await other.send("T", b"y", timeout=5)
            assert stored(node) == 1
            await client.admin.put_quota("Client:*", connections=3)
            await other.send("T", b"y", timeout=10)
            assert connections.of_address("127.0.0.1") >= 2
        assert counted(node, Kind.CLIENT, Limit.CONNECTIONS) > 0
    await until(lambda: connections.of_address("127.0.0.1") <= 1)  # the fixture's, over frames
    assert connections.validate() == ""


async def test_users_have_quotas_by_their_names_and_all_transports(
    start_node: StartNode, tmp_path: Path
) -> None:
    node = await start_node(access=access_files(tmp_path, PASSWORD))

    def client_of(user: str, **how: Any) -> duolog.Client:
        where = f"127.0.0.1:{node.port}"
        return duolog.Client(where, user=user, password=PASSWORD, **{"timeout": 10, **how})

    async with client_of("root") as root:
        await root.access.create_user("root", PASSWORD, is_super=True)
        await root.access.create_user("alice", PASSWORD, is_super=True)
        await root.admin.create_topic("T", 4)
        await root.admin.put_quota("User:alice", messages_in=1, messages_out=1, burst_ms=1)
        stop_the_clock(node)
        async with client_of("alice") as alice:
            await append(alice, append_request([b"x"] * 1000))
            refused = await append(alice, append_request([b"x"]))
            assert refused.status == wire.THROTTLED
            over_grpc = stubs.MessagesStub(alice._router.seed._over_grpc())  # type: ignore[arg-type]
            call = over_grpc.Append()
            await call.write(append_request([b"x"]))
            reply = await call.read()
            assert isinstance(reply, wire.AppendReply)
            assert reply.status == wire.THROTTLED
            call.cancel()
            await alice.pull("T", 0, 0)
            with pytest.raises(duolog.Throttled, match="quota of User:alice"):
                await alice._router.seed.call(
                    lambda left: alice._router.seed.messages.Pull(
                        wire.PullRequest(topic="T", queue_id=0), timeout=left
                    ),
                    5.0,
                )
            for _ in range(3):
                assert (await append(root, append_request([b"x"]))).status == wire.PUT_OK


async def test_a_user_creates_no_more_topics_than_its_quota(
    start_node: StartNode, tmp_path: Path
) -> None:
    node = await start_node(
        access=access_files(tmp_path, PASSWORD), limits={"auto_create_topic": True}
    )
    where = f"127.0.0.1:{node.port}"
    async with duolog.Client(where, user="root", password=PASSWORD, timeout=10) as root:
        await root.access.create_user("root", PASSWORD, is_super=True)
        await root.access.create_user("alice", PASSWORD, is_super=True)
        await root.admin.put_quota("User:alice", topics=3)
        await root.admin.create_topic("of-root", 1)
        async with duolog.Client(where, user="alice", password=PASSWORD, timeout=10) as alice:
            await alice.admin.create_topic("ordered", 1)
            async with alice.producer() as producer:
                await producer.send("routed", b"x")
            reply = await append(alice, append_request([b"x"], topic="appended"))
            assert reply.status == wire.PUT_OK
            with pytest.raises(duolog.Throttled, match="quota of User:alice: topics, 3"):
                await alice.admin.create_topic("one-more", 1)
            refused = await append(alice, append_request([b"x"], topic="one-more"))
            assert (refused.status, refused.retry_after_ms) == (wire.THROTTLED, 0)
            await alice.admin.create_topic("ordered", 1)  # again
            await alice.admin.alter_topic("ordered", queues=2)
            owners = {topic.topic: topic.owner for topic in await root.admin.topics()}
            made = dict.fromkeys(("ordered", "routed", "appended"), "alice")
            assert owners == {"of-root": "root", **made}
            await alice.admin.delete_topic("routed")
            await alice.admin.create_topic("one-more", 1)
