"""Lite topics: each client subscribes to its own set, and messages of each come in order."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import duolog
import pytest

from duolog_server.compat.grpc.protocol.settings import LITE_QUOTA
from duolog_server.compat.grpc.protocol.stubs import Code, definition, service
from duolog_server.serve.server import Node
from duolog_server.store.clocks import WallMs
from duolog_server.store.lightqueues import lite_queue
from duolog_server.store.metadata import Metadata, TopicConfig
from tests.compat.grpc.api import Api, Received, message, resource
from tests.node.replicas import Elected, broker_of, start_groups
from tests.nodefixtures import StartNode
from tests.until import until

ADD, REMOVE = definition.PARTIAL_ADD, definition.PARTIAL_REMOVE
ADD_ALL, REMOVE_ALL = definition.COMPLETE_ADD, definition.COMPLETE_REMOVE
Policy = definition.OffsetOption.Policy


@pytest.fixture
async def parent(start_node: StartNode) -> Node:
    made = await start_node()
    async with duolog.Client(f"127.0.0.1:{made.port}", timeout=10) as client:
        await client.admin.create_topic("P", 2, message_type="LITE", lite_ttl_minutes=1)
        await client.admin.create_topic("N", 1, message_type="NORMAL")
        await client.admin.put_group("plain")
    return made


@pytest.fixture
async def api(parent: Node) -> AsyncIterator[Api]:
    made = Api(parent)
    yield made
    await made.close()


@pytest.fixture
async def other(parent: Node) -> AsyncIterator[Api]:
    made = Api(parent, "test@2")
    yield made
    await made.close()


async def sync(
    api: Api,
    *names: str,
    action: definition.LiteSubscriptionAction = ADD,
    topic: str = "P",
    group: str = "g",
    **option: Any,
) -> int:
    request = service.SyncLiteSubscriptionRequest(
        action=action, topic=resource(topic), group=resource(group), lite_topic_set=names
    )
    if option:
        request.offset_option.CopyFrom(definition.OffsetOption(**option))
    return int((await api.call("SyncLiteSubscription", request)).status.code)


async def send(api: Api, lite_topic: str, *bodies: bytes, topic: str = "P") -> None:
    for body in bodies:
        reply = await api.send(message(body, topic, lite_topic=lite_topic))
        assert reply.status.code == Code.OK


async def take(api: Api, group: str = "g", **how: Any) -> list[tuple[str, bytes]]:
    """What there is, acknowledged: (lite topic, body)."""
    received = await api.receive(group, "P", **how)
    if received.handles:
        reply = await api.ack(group, *received.handles, topic="P")
        assert reply.status.code == Code.OK
    return given(received)


def given(received: Received) -> list[tuple[str, bytes]]:
    return [(made.system_properties.lite_topic, made.body) for made in received.messages]


async def test_a_client_gets_what_it_subscribes_to_and_nothing_else(api: Api, other: Api) -> None:
    await send(api, "a", b"a0", b"a1")
    await send(api, "b", b"b0")
    await send(api, "c", b"c0")
    assert await sync(api, "a", "b") == Code.OK
    assert await sync(other, "b", "c") == Code.OK
    received = await api.receive("g", "P")
    assert sorted(given(received)) == [("a", b"a0"), ("a", b"a1"), ("b", b"b0")]
    first = received.messages[0]
    assert first.system_properties.message_type == definition.MessageType.LITE
    assert dict(first.user_properties) == {}
    assert first.topic.name == "P"
    assert await take(other) == [("c", b"c0")]  # the first one has what b had
    assert (await api.ack("g", *received.handles, topic="P")).status.code == Code.OK
    assert await take(api) == await take(other) == []


async def test_a_client_that_waits_gets_a_message_at_once(
    api: Api, other: Api, parent: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dispatch is put off only while nobody waits."""
    await sync(api, "a")
    log, put_off = broker_of(parent).log, list[float]()
    waits = asyncio.create_task(take(api, timeout=10.0))
    await until(lambda: broker_of(parent).waiting_calls.count > 0)
    monkeypatch.setattr(log, "_pump_within", put_off.append)
    await send(other, "a", b"a0")
    assert await waits == [("a", b"a0")]
    assert put_off == []
    assert len(log.board) == 0


async def test_a_lite_topic_delivers_no_more_while_its_messages_are_in_flight(api: Api) -> None:
    await sync(api, "a", "b")
    await send(api, "a", b"a0", b"a1", b"a2")
    first = await api.receive("g", "P", count=1)
    assert given(first) == [("a", b"a0")]
    await send(api, "b", b"b0")
    assert await take(api, count=1) == [("b", b"b0")]
    assert await take(api) == []
    assert (await api.ack("g", *first.handles, topic="P")).status.code == Code.OK
    assert await take(api) == [("a", b"a1"), ("a", b"a2")]


async def test_a_lite_topic_that_is_suspended_waits_as_a_whole_and_counts_no_attempt(
    api: Api,
) -> None:
    await sync(api, "a")
    await send(api, "a", b"a0", b"a1")
    received = await api.receive("g", "P", invisible_ms=10_000)
    changed = await api.change("g", received.handles[0], 0, topic="P", suspend=True)
    assert changed.status.code == Code.OK
    again: list[Any] = []
    async with asyncio.timeout(8):  # before the lease of the second one ends
        while not again:
            again = (await api.receive("g", "P")).messages
    found = [(made.body, made.system_properties.delivery_attempt) for made in again]
    assert found == [(b"a0", 1), (b"a1", 1)]


async def test_unacknowledged_messages_are_redelivered_first(api: Api) -> None:
    await sync(api, "a")
    await send(api, "a", b"a0", b"a1")
    received = await api.receive("g", "P")
    await api.ack("g", received.handles[1], topic="P")
    changed = await api.change("g", received.handles[0], 0, topic="P")
    assert changed.status.code == Code.OK
    await send(api, "a", b"a2")
    again: list[Any] = []
    async with asyncio.timeout(60):
        while not again:
            again = (await api.receive("g", "P")).messages
    (found,) = again
    assert (found.body, found.system_properties.delivery_attempt) == (b"a0", 2)
    await api.ack("g", found.system_properties.receipt_handle, topic="P")
    assert await take(api) == [("a", b"a2")]
    stale = await api.ack("g", received.handles[0], topic="P")
    assert stale.entries[0].status.code == Code.INVALID_RECEIPT_HANDLE


async def test_the_same_attempt_gets_the_same_messages(api: Api) -> None:
    await sync(api, "a", "b", "c")
    await send(api, "a", b"a0")
    await send(api, "b", b"b0")
    first = await api.receive("g", "P", attempt_id="one")
    await send(api, "c", b"c0")
    await send(api, "a", b"a1")  # behind what is out
    again = await api.receive("g", "P", attempt_id="one", count=2)
    assert sorted(given(again)) == [("a", b"a0"), ("b", b"b0")]
    again = await api.receive("g", "P", attempt_id="one", count=3)
    assert given(again)[2:] == [("c", b"c0")]
    await api.ack("g", again.handles[2], topic="P")
    again = await api.receive("g", "P", attempt_id="one")
    assert sorted(given(again)) == sorted(given(first)) == [("a", b"a0"), ("b", b"b0")]
    dead = await api.ack("g", *first.handles, topic="P")
    assert {entry.status.code for entry in dead.entries} == {Code.INVALID_RECEIPT_HANDLE}
    assert (await api.ack("g", *again.handles, topic="P")).status.code == Code.OK
    assert await take(api, attempt_id="two") == [("a", b"a1")]


async def test_a_waiting_poll_is_notified_of_messages_and_of_subscriptions(api: Api) -> None:
    await send(api, "early", b"e0")
    await sync(api, "a")

    async def poll() -> list[tuple[str, bytes]]:
        return await take(api, poll_ms=20_000, timeout=20)

    waiting = asyncio.ensure_future(poll())
    await asyncio.sleep(0.05)
    await send(api, "a", b"a0")
    assert await waiting == [("a", b"a0")]
    waiting = asyncio.ensure_future(poll())
    await asyncio.sleep(0.05)
    await sync(api, "early")
    assert await waiting == [("early", b"e0")]
    held = await api.receive("g", "P")
    assert held.messages == []
    await send(api, "a", b"a1", b"a2")
    held = await api.receive("g", "P", count=1)
    waiting = asyncio.ensure_future(poll())
    await asyncio.sleep(0.05)
    await api.ack("g", *held.handles, topic="P")
    assert await waiting == [("a", b"a2")]


async def test_two_clients_share_a_lite_topic_in_order(api: Api, other: Api) -> None:
    await sync(api, "a")
    await sync(other, "a")
    bodies = [b"%d" % k for k in range(20)]
    await send(api, "a", *bodies)
    found: list[bytes] = []
    clients = [api, other]
    while len(found) < 20:
        found += [body for _, body in await take(clients[len(found) % 2], count=1)]
    assert found == bodies


async def test_another_set_replaces_what_a_client_subscribes_to(api: Api) -> None:
    await sync(api, "a", "b")
    assert await sync(api, "b", "c", action=ADD_ALL) == Code.OK
    for name in "abc":
        await send(api, name, name.encode())
    assert sorted(await take(api)) == [("b", b"b"), ("c", b"c")]
    assert await sync(api, "c", action=REMOVE) == Code.OK
    await send(api, "b", b"b1")
    await send(api, "c", b"c1")
    assert await take(api) == [("b", b"b1")]
    assert await sync(api, action=REMOVE_ALL) == Code.OK
    await send(api, "b", b"b2")
    assert await take(api) == []
    await sync(api, "a", "b", "c", action=ADD_ALL)
    assert sorted(await take(api)) == [("a", b"a"), ("b", b"b2"), ("c", b"c1")]


async def test_a_star_subscribes_to_every_lite_topic(api: Api, other: Api) -> None:
    await send(api, "a", b"a0")
    assert await sync(api, "*") == Code.OK
    await send(api, "new", b"n0")
    assert sorted(await take(api)) == [("a", b"a0"), ("new", b"n0")]
    await sync(api, "a", action=ADD_ALL)
    await send(api, "new", b"n1")
    await send(api, "a", b"a1")
    assert await take(api) == [("a", b"a1")]
    await sync(other, "*")
    assert await take(other) == [("new", b"n1")]


async def test_an_unbound_group_reads_the_whole_parent_topic(api: Api) -> None:
    await send(api, "a", b"a0")
    await send(api, "b", b"b0")
    assert sorted(await take(api, "plain")) == [("a", b"a0"), ("b", b"b0")]


async def test_a_subscription_starts_where_the_client_asks(api: Api) -> None:
    await send(api, "a", *[b"%d" % k for k in range(5)])
    assert await sync(api, "a", tail_n=2) == Code.OK
    assert [body for _, body in await take(api)] == [b"3", b"4"]
    await sync(api, "a", action=REMOVE)
    await sync(api, "a", policy=Policy.MIN)
    assert len(await take(api)) == 5
    await sync(api, "a", action=REMOVE)
    await sync(api, "a", policy=Policy.LAST)
    assert await take(api) == []
    await sync(api, "a", action=REMOVE)
    low, _ = broker_of(api.node).store.queue_range(lite_queue("P", "a"), 0)
    await sync(api, "a", offset=low + 3)
    assert [body for _, body in await take(api)] == [b"3", b"4"]
    assert await sync(api, "a", group="h", policy=Policy.MAX) == Code.OK
    assert await take(api, "h") == []
    assert await sync(api, "a", group="i", timestamp=0) == Code.OK
    assert len(await take(api, "i")) == 5
    assert await sync(api, "unborn", group="h", policy=Policy.MAX) == Code.OK
    await send(api, "unborn", b"u0")
    assert await take(api, "h") == [("unborn", b"u0")]


@pytest.mark.parametrize(
    ("names", "how", "code"),
    [
        (["a b"], {}, Code.ILLEGAL_LITE_TOPIC),
        ([""], {}, Code.ILLEGAL_LITE_TOPIC),
        (["a$b"], {}, Code.ILLEGAL_LITE_TOPIC),
        (["x" * 65], {}, Code.ILLEGAL_LITE_TOPIC),
        (["x" * 64], {}, Code.OK),
        (["a"], {"topic": "N"}, Code.ILLEGAL_TOPIC),
        (["a"], {"topic": "Missing"}, Code.TOPIC_NOT_FOUND),
        (["a"], {"topic": " "}, Code.ILLEGAL_TOPIC),
        (["a"], {"group": " "}, Code.ILLEGAL_CONSUMER_GROUP),
        (["a"], {"group": "plain"}, Code.ILLEGAL_CONSUMER_GROUP),
        ([f"n{k}" for k in range(LITE_QUOTA + 1)], {}, Code.LITE_SUBSCRIPTION_QUOTA_EXCEEDED),
        (
            [f"n{k}" for k in range(LITE_QUOTA + 1)],
            {"action": ADD_ALL},
            Code.LITE_SUBSCRIPTION_QUOTA_EXCEEDED,
        ),
        ([f"n{k}" for k in range(LITE_QUOTA)], {"action": ADD_ALL}, Code.OK),
        (["a"], {"action": 9}, Code.BAD_REQUEST),
    ],
)
async def test_invalid_subscriptions_are_refused(
    api: Api, names: list[str], how: dict[str, Any], code: int
) -> None:
    assert await sync(api, *names, **how) == code


async def test_a_group_subscribes_to_lite_topics_of_one_topic(api: Api) -> None:
    async with duolog.Client(f"127.0.0.1:{api.node.port}") as client:
        await client.admin.create_topic("Q", 1, message_type="LITE")
        await sync(api, "a")
        assert await sync(api, "a", topic="Q") == Code.ILLEGAL_TOPIC
        assert (await api.receive("g", "Q")).code == Code.ILLEGAL_TOPIC
        found = await client.admin.put_group("g", lite_topic="Q")
        assert (found.lite_topic, found.lite_exclusive) == ("Q", False)
        assert await sync(api, "a", topic="Q") == Code.OK
        assert await sync(api, "a", topic="P") == Code.ILLEGAL_TOPIC
        for wrong in ({"lite_topic": "N"}, {"lite_exclusive": True}):
            with pytest.raises(duolog.BadRequest):
                await client.admin.put_group("h", **wrong)
        with pytest.raises(duolog.UnknownTopic):
            await client.admin.put_group("h", lite_topic="Missing")
        for wrong_topic in ({"lite_ttl_minutes": 5}, {"message_type": "LITER"}):
            with pytest.raises(duolog.BadRequest):
                await client.admin.create_topic("R", 1, **wrong_topic)


@pytest.mark.parametrize(
    ("topic", "system", "code"),
    [
        ("P", {}, Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
        ("N", {"lite_topic": "a"}, Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
        ("P", {"lite_topic": "a/b"}, Code.ILLEGAL_LITE_TOPIC),
        ("P", {"lite_topic": "x" * 65}, Code.ILLEGAL_LITE_TOPIC),
        (
            "P",
            {"lite_topic": "a", "properties": {"INNER_MULTI_DISPATCH": "%LMQ%$P$b"}},
            Code.ILLEGAL_MESSAGE_PROPERTY_KEY,
        ),
        (
            "P",
            {"lite_topic": "a", "properties": {"__LITE_TOPIC": "b"}},
            Code.ILLEGAL_MESSAGE_PROPERTY_KEY,
        ),
    ],
)
async def test_invalid_lite_messages_are_refused(
    api: Api, topic: str, system: dict[str, Any], code: int
) -> None:
    assert (await api.send(message(b"x", topic, **system))).status.code == code


async def test_the_number_of_lite_topics_is_limited(start_node: StartNode) -> None:
    node = await start_node(max_lmq_consume_queue_num=2)
    async with duolog.Client(f"127.0.0.1:{node.port}") as client:
        await client.admin.create_topic("P", 1, message_type="LITE")
    api = Api(node)
    await send(api, "a", b"x")
    await send(api, "b", b"x")
    reply = await api.send(message(b"x", "P", lite_topic="c"))
    assert reply.entries[0].status.code == Code.LITE_TOPIC_QUOTA_EXCEEDED
    await send(api, "b", b"y")


async def test_an_exclusive_group_delivers_to_who_polled_last(api: Api, other: Api) -> None:
    async with duolog.Client(f"127.0.0.1:{api.node.port}") as client:
        found = await client.admin.put_group("g", lite_topic="P", lite_exclusive=True)
        assert found.lite_exclusive
    told: list[str] = []
    over = asyncio.Event()

    async def requests() -> Any:
        settings = definition.Settings(client_type=definition.ClientType.LITE_PUSH_CONSUMER)
        settings.subscription.group.CopyFrom(resource("g"))
        yield service.TelemetryCommand(settings=settings)
        await over.wait()

    async def listen() -> None:
        call = api.stub.Telemetry(requests(), metadata=api.metadata)
        async for command in call:
            if command.WhichOneof("command") == "settings":
                assert command.settings.subscription.fifo
                assert command.settings.subscription.lite_subscription_quota == LITE_QUOTA
                assert command.settings.subscription.max_lite_topic_size == 64
                told.append("settings")
            else:
                told.append(command.notify_unsubscribe_lite_command.lite_topic)

    listening = asyncio.ensure_future(listen())
    await until(lambda: told == ["settings"])
    await sync(api, "a", "b")
    await sync(other, "b", "a", action=ADD_ALL)  # repeats what it takes its subscriptions to be
    await send(api, "a", b"a0")
    await send(api, "b", b"b0")
    assert await take(other) == []
    await sync(other, "b")
    await until(lambda: told == ["settings", "b"])
    assert await take(other) == [("b", b"b0")]
    assert await take(api) == [("a", b"a0")]
    over.set()
    listening.cancel()
    await asyncio.gather(listening, return_exceptions=True)


async def test_nothing_is_delivered_to_a_client_that_left(api: Api, parent: Node) -> None:
    await sync(api, "a")
    lite = broker_of(parent).lite
    assert lite.subscriptions == 1
    leave = service.NotifyClientTerminationRequest(group=resource("g"))
    assert (await api.call("NotifyClientTermination", leave)).status.code == Code.OK
    assert lite.subscriptions == 0


async def test_a_lite_message_is_forwarded_to_the_dead_letter_topic(api: Api) -> None:
    await sync(api, "a")
    await send(api, "a", b"bad", b"good")
    received = await api.receive("g", "P", count=1)
    request = service.ForwardMessageToDeadLetterQueueRequest(
        group=resource("g"),
        topic=resource("P"),
        receipt_handle=received.handles[0],
        message_id="x",
        lite_topic="a",
    )
    reply = await api.call("ForwardMessageToDeadLetterQueue", request)
    assert reply.status.code == Code.OK
    assert await take(api) == [("a", b"good")]
    async with duolog.Client(f"127.0.0.1:{api.node.port}") as client:
        (dead,) = await client.pull("%DLQ%g", 0, 0)
        assert dead.body == b"bad"
        assert dead.properties["DLQ_ORIGIN_TOPIC"] == "P"
        assert dead.properties["__LITE_TOPIC"] == "a"
        assert "INNER_MULTI_DISPATCH" not in dead.properties


async def test_handles_of_other_topics_are_refused(api: Api) -> None:
    await sync(api, "a")
    await send(api, "a", b"a0")
    received = await api.receive("g", "P")
    for group, topic in (("g", "N"), ("plain", "P")):
        reply = await api.ack(group, *received.handles, topic=topic)
        assert reply.entries[0].status.code == Code.INVALID_RECEIPT_HANDLE


async def test_operators_see_the_progress_of_a_group(api: Api) -> None:
    await sync(api, "a")
    await send(api, "a", b"a0", b"a1")
    assert len(await take(api, count=1)) == 1
    broker = broker_of(api.node)
    name = lite_queue("P", "a")
    await until(lambda: broker.metadata.tables.committed("g", name, 0) > 0)
    async with duolog.Client(f"127.0.0.1:{api.node.port}") as client:
        (row,) = (await client.admin.group("g")).queues
        assert (row.topic, row.lag_messages) == (name, 1)
        states = {}
        for queue in range(2):
            for found in await client.pull("P", queue, 0):
                tracked = await client.admin.track("P", queue, found.queue_offset)
                states[found.body] = tracked
        assert states == {b"a0": {"g": "CONSUMED"}, b"a1": {"g": "WAITING"}}


async def test_progress_survives_a_restart(start_node: StartNode, tmp_path: Path) -> None:
    node = await start_node(tmp_path / "d")
    async with duolog.Client(f"127.0.0.1:{node.port}") as client:
        await client.admin.create_topic("P", 2, message_type="LITE")
    api = Api(node)
    await sync(api, "a", "b")
    await send(api, "a", b"a0", b"a1")
    await send(api, "b", b"b0")
    assert len(await take(api, count=1)) == 1
    broker = broker_of(node)
    await until(lambda: broker.metadata.tables.committed("g", lite_queue("P", "a"), 0) > 0)
    await api.close()
    await node.stop()
    node = await start_node(tmp_path / "d")
    api = Api(node)
    assert await take(api) == []  # it has not subscribed
    await sync(api, "a", "b", action=ADD_ALL)
    assert sorted(await take(api)) == [("a", b"a1"), ("b", b"b0")]


async def test_an_idle_lite_topic_is_forgotten(api: Api, parent: Node) -> None:
    broker = broker_of(parent)
    await sync(api, "old", "young")
    await send(api, "old", b"0")
    assert len(await take(api)) == 1
    await until(lambda: broker.metadata.tables.committed("g", lite_queue("P", "old"), 0) > 0)
    await send(api, "young", b"0")
    now = broker.times.wall_ms()
    names = broker.lite.queues_of("P")
    assert names == [lite_queue("P", "old"), lite_queue("P", "young")]
    assert broker.lite.expired(names, now) == []
    assert broker.lite.expired(names, WallMs(now + 61_000)) == names
    await broker.lite.forget([lite_queue("P", "old")])
    files = Path(parent.config.node.data) / "lightqueue"
    await until(lambda: [path.name for path in files.iterdir()] == [lite_queue("P", "young")])
    assert broker.metadata.tables.committed("g", lite_queue("P", "old"), 0) == -1
    await send(api, "old", b"1")
    assert sorted(await take(api)) == [("old", b"1"), ("young", b"0")]
    config = broker.metadata.topics.pop("P")  # as where the last deletion was cut short
    names = broker.lite.queues_of("P")
    assert broker.lite.expired(names, now) == names
    broker.metadata.topics["P"] = config
    await broker.metadata.delete_topic("P")
    await until(lambda: list(files.iterdir()) == [])
    assert broker.lite.queues_of("P") == []


async def test_a_lost_answer_is_not_repeated_after_an_unsubscription(api: Api, other: Api) -> None:
    for client in (api, other):
        await sync(client, "a", "b")
    await send(api, "a", b"a0")
    lost = await api.receive("g", "P", attempt_id="one")
    await sync(api, "a", action=REMOVE)
    assert (await api.change("g", lost.handles[0], 0, topic="P")).status.code == Code.OK
    assert given(await api.receive("g", "P", attempt_id="one")) == []
    assert await take(other) == [("a", b"a0")]
    await sync(api, "*")
    await send(api, "a", b"a1")
    lost = await api.receive("g", "P", attempt_id="two")
    await sync(api, "*", action=REMOVE)
    assert (await api.change("g", lost.handles[0], 0, topic="P")).status.code == Code.OK
    assert given(await api.receive("g", "P", attempt_id="two")) == []
    assert await take(other) == [("a", b"a1")]


async def test_a_lite_topic_that_starts_again_at_once_is_kept(api: Api, parent: Node) -> None:
    broker = broker_of(parent)
    await sync(api, "a")
    await send(api, "a", b"0")
    forgetting = asyncio.ensure_future(broker.lite.forget([lite_queue("P", "a")]))
    await asyncio.sleep(0)
    await send(api, "a", b"1")
    await forgetting
    await until(lambda: not broker.lite._going)
    assert await take(api) == [("a", b"1")]


async def test_messages_of_a_forgotten_lite_topic_are_not_delivered_and_later_ones_are_once(
    api: Api, other: Api, parent: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker, go_on = broker_of(parent), asyncio.Event()
    remove = broker.lite._remove_forgotten

    async def later() -> None:
        await go_on.wait()
        await remove()

    monkeypatch.setattr(broker.lite, "_remove_forgotten", later)
    await sync(api, "a")
    await sync(other, "a")
    await send(api, "a", b"0", b"1")
    await broker.lite.forget([lite_queue("P", "a")])
    assert broker.lite._going, "its files are still there"
    assert await take(api) == []
    await send(api, "a", b"2")
    received = await api.receive("g", "P")
    assert given(received) == [("a", b"2")]
    await send(api, "a", b"3")
    go_on.set()
    await until(lambda: not broker.lite._going)
    assert await take(other) == []  # the first one has what was stored before
    reply = await api.ack("g", *received.handles, topic="P")
    assert reply.status.code == Code.OK
    assert await take(other) == [("a", b"3")]


async def test_a_lite_topic_that_another_node_forgot_is_removed(api: Api, parent: Node) -> None:
    broker, name = broker_of(parent), lite_queue("P", "a")
    await send(api, "a", b"0")
    later = json.loads(broker.metadata.snapshot_bytes())
    later["applied"] += 1  # of a master that has forgotten it; the log comes after its tables
    broker.metadata.adopt_snapshot(json.dumps(later).encode())
    ends = {name: broker.store.topic_queue_table[name, 0]}
    await broker.metadata.change({"op": "forget_light_queues", "ends": ends})
    await until(lambda: broker.store.queues.get(name, 0) is None)


@pytest.mark.usefixtures("nothing_noted")
async def test_a_lite_topic_that_another_call_has_forgotten_is_no_obstacle(
    api: Api, parent: Node
) -> None:
    broker, name, gone = broker_of(parent), lite_queue("P", "a"), lite_queue("P", "gone")
    await send(api, "a", b"0")
    await broker.metadata.forget_light_queues([gone, name])
    await until(lambda: broker.store.queues.get(name, 0) is None)
    stored = broker.store.log.max_offset
    await broker.metadata.forget_light_queues([gone, name])
    assert broker.store.log.max_offset == stored


@pytest.mark.parametrize("ahead", [False, True], ids=["applied here", "applied by another node"])
async def test_a_malformed_record_is_ignored(parent: Node, ahead: bool) -> None:
    metadata = broker_of(parent).metadata
    if ahead:
        later = json.loads(metadata.snapshot_bytes())
        later["applied"] += 1
        metadata.adopt_snapshot(json.dumps(later).encode())
    await metadata.change({"op": "forget_light_queues", "ends": ["no", "ends"]})
    await metadata.put_topic(TopicConfig("T", 1))
    assert "T" in metadata.topics


async def test_any_node_accepts_subscriptions_and_the_next_master_continues_them(
    start_node: StartNode, tmp_path: Path
) -> None:
    group = await Elected.start(start_node, tmp_path)
    async with duolog.Client(group.endpoints, timeout=10) as client:
        await client.admin.create_topic("P", 2, message_type="LITE", lite_ttl_minutes=1)
        await until(lambda: all("P" in broker_of(node).metadata.topics for node in group.nodes))
        slave = next(node for node in group.nodes if node is not group.the_master())
        api = Api(slave)
        assert await sync(api, "a", "b") == Code.OK
        await send(api, "a", b"a0", b"a1")
        await send(api, "b", b"b0")
        await send(api, "gone", b"g0")
        assert await take(api, count=1, timeout=20) == [("a", b"a0")]
        name = lite_queue("P", "a")
        await until(
            lambda: all(
                broker_of(node).metadata.tables.committed("g", name, 0) > 0 for node in group.nodes
            )
        )
        await broker_of(group.the_master()).lite.forget([lite_queue("P", "gone")])
        for node in group.nodes:
            queues = broker_of(node).store.queues
            await until(lambda queues=queues: queues.get(lite_queue("P", "gone"), 0) is None)  # type: ignore[misc]
        assert {broker_of(node).lite.subscriptions for node in group.nodes} == {2}
        await group.switch(client)
        found = await take(api, timeout=20)
        if len(found) < 2:  # it knows of one before the other
            found += await take(api, timeout=20)
        assert sorted(found) == [("a", b"a1"), ("b", b"b0")]
        assert await sync(api, "a", "b", "gone", action=ADD_ALL) == Code.OK
        await send(api, "gone", b"g1")
        assert await take(api, timeout=20) == [("gone", b"g1")]
        await api.close()


async def test_a_client_gets_messages_of_all_groups(start_node: StartNode, tmp_path: Path) -> None:
    nodes = await start_groups(start_node, tmp_path)
    first, second = nodes.values()
    async with duolog.Client(f"127.0.0.1:{first.port}", timeout=10) as client:
        await client.admin.create_topic("P", 1, message_type="LITE")
    api, there = Api(first), Api(second)
    assert await sync(api, "a") == Code.OK
    assert [broker_of(node).lite.subscriptions for node in (first, second)] == [1, 1]
    await send(there, "a", b"x")
    assert await take(there) == [("a", b"x")]


async def _without_its_tables(start_node: StartNode, directory: Path) -> Node:
    """A node with lite topics, started again where the files of its tables are gone."""
    node = await start_node(directory)
    async with duolog.Client(f"127.0.0.1:{node.port}") as client:
        await client.admin.create_topic("P", 2, message_type="LITE", lite_ttl_minutes=1)
    api = Api(node)
    await send(api, "a", b"a0")
    await api.close()
    await node.stop()
    for path in (directory / "config").iterdir():
        path.unlink()
    return await start_node(directory)


async def test_a_directory_without_tables_has_no_topics_of_light_queues(
    start_node: StartNode, tmp_path: Path
) -> None:
    node = await _without_its_tables(start_node, tmp_path / "d")
    assert set(broker_of(node).metadata.topics) == {"P"}


async def test_topics_known_only_from_their_queues_keep_their_type(
    start_node: StartNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As where other changes came first and are lost: the log does not claim to have them all.
    monkeypatch.setattr(Metadata, "empty", property(lambda tables: False))
    node = await _without_its_tables(start_node, tmp_path / "d")
    found = broker_of(node).metadata.topics["P"]
    assert (found.queues, found.message_type, found.lite_ttl_minutes) == (2, "LITE", 1)
