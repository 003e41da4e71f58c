"""What is wrong with groups, as a node with real consumers of each protocol tells it."""

import asyncio
from collections.abc import AsyncIterator, Callable

import duolog
import pytest
from duolog.testing._ports import free_endpoint
from duolog.wire import duolog_pb2 as wire

from duolog_server.compat.grpc.protocol.stubs import definition, service
from duolog_server.compat.remoting.codec.codes import RequestCode
from duolog_server.ops.inspection.doctor.consumers import ON_DEMAND, diagnose_groups, topics_of
from duolog_server.ops.inspection.doctor.findings import NOTE, WARNING, Finding
from duolog_server.serve.server import Node
from duolog_server.store.groupproblems import Patience
from tests.compat.grpc.api import Api, resource
from tests.compat.remoting.client import Remoting, connected
from tests.node.replicas import WAIT_SECONDS, broker_of
from tests.nodefixtures import StartNode

AT_ONCE = Patience(-1, 100)


@pytest.fixture
async def node(start_node: StartNode) -> Node:
    return await start_node(remoting={"listen": free_endpoint()})


@pytest.fixture
async def remoting(node: Node) -> AsyncIterator[Remoting]:
    async with connected(node) as made:
        yield made


async def explained(
    client: duolog.Client, group: str, patience: Patience = ON_DEMAND
) -> dict[str, Finding]:
    """What `duolog group explain` finds, by cause."""
    found = await client.admin.group(group)
    topics = await client.admin.topics(topics_of(found), system=True)
    return {one.cause: one for one in diagnose_groups([found], topics, patience)}


async def until_explained(
    client: duolog.Client, group: str, so: Callable[[dict[str, Finding]], bool]
) -> dict[str, Finding]:
    async with asyncio.timeout(WAIT_SECONDS):
        while not so(found := await explained(client, group, AT_ONCE)):
            await asyncio.sleep(0.01)
    return found


async def sent(client: duolog.Client, count: int) -> None:
    async with client.producer() as producer:
        await producer.send_batch("T", [b"x"] * count)


async def settings(api: Api, group: str, tag: str) -> None:
    """A consumer of RocketMQ's gRPC API says what it reads."""
    entry = definition.SubscriptionEntry(
        topic=resource("T"),
        expression=definition.FilterExpression(type=definition.FilterType.TAG, expression=tag),
    )
    command = service.TelemetryCommand(
        settings=definition.Settings(
            client_type=definition.ClientType.PUSH_CONSUMER,
            subscription=definition.Subscription(group=resource(group), subscriptions=[entry]),
        )
    )
    call = api.stub.Telemetry(metadata=api.metadata)
    await call.write(command)
    await call.read()


# -- subscriptions -----------------------------------------------------------------------------


async def test_members_of_the_sdk_with_different_tags_are_named(client: duolog.Client) -> None:
    async with (
        client.consumer("g", "T", tags=["b", "a"]) as first,
        client.consumer("g", "T", tags=["a", "b"]) as second,
    ):
        await asyncio.gather(first.get(0.01), second.get(0.01))
        assert await explained(client, "g") == {}
        async with client.consumer("g", "T", tags=["c"]) as third:
            await third.get(0.01)
            found = (await explained(client, "g"))["subscriptions-differ"]
            assert found.severity == WARNING
            assert "'a || b' by 2" in found.what
            assert "'c' by 1" in found.what
        async with client.consumer("g", "T", sql="a > 1") as fourth:
            await fourth.get(0.01)
            assert "'a > 1' by 1" in (await explained(client, "g"))["subscriptions-differ"].what
    assert await explained(client, "g") == {}


async def test_a_member_that_does_not_say_what_it_selects_differs_from_nobody(
    client: duolog.Client,
) -> None:
    """One of an earlier version."""
    groups = client._router.seed.groups
    request = wire.HeartbeatRequest(group="g", member_id="old", topics=["T"])
    await groups.Heartbeat(request)
    async with client.consumer("g", "T", tags=["a"]) as first:
        await first.get(0.01)
        assert await explained(client, "g") == {}


async def test_clients_of_remoting_with_different_tags_or_topics_are_named(
    node: Node, client: duolog.Client, remoting: Remoting
) -> None:
    await client.admin.create_topic("U", 4)
    await remoting.beat("c1", "g", "T", tags="a||b")
    async with connected(node) as other:
        await other.beat("c2", "g", "T", tags=" b || a")
        assert await explained(client, "g") == {}
        await other.beat("c2", "g", "T", tags="*")
        found = await explained(client, "g")
        assert "'a || b' by 1, for example c1" in found["subscriptions-differ"].what
        assert "all messages by 1, for example c2" in found["subscriptions-differ"].what
        await other.beat("c2", "g", "U", tags="a||b")
        found = await explained(client, "g")
        assert found.keys() == {"topics-differ"}
        assert "only 1 of its 2 consumers read" in found["topics-differ"].what
        # Not those in broadcasting mode, each of which has all messages.
        body = (
            b'{"clientID":"c2","consumerDataSet":[{"groupName":"g","messageModel":"BROADCASTING",'
            b'"subscriptionDataSet":[{"topic":"T","subString":"z","expressionType":"TAG"}]}]}'
        )
        await other.ask(RequestCode.HEART_BEAT, body=body)
        assert await explained(client, "g") == {}


async def test_clients_of_grpc_with_different_tags_are_named(
    node: Node, client: duolog.Client
) -> None:
    await client.admin.put_group("g")
    apis = [Api(node, f"c{number}") for number in range(2)]
    await settings(apis[0], "g", "a")
    await settings(apis[1], "g", "b")
    found = await explained(client, "g")
    assert found.keys() == {"subscriptions-differ"}
    assert (
        "'a' by 1, for example c0; 'b' by 1, for example c1" in found["subscriptions-differ"].what
    )


# -- progress ----------------------------------------------------------------------------------


async def test_a_member_that_took_a_message_and_hangs_is_named(client: duolog.Client) -> None:
    await sent(client, 300)
    async with client.consumer("g", "T", commit_interval=0.01) as consumer:
        assert await consumer.get(WAIT_SECONDS)
        found = await until_explained(client, "g", lambda found: "consumer-stalled" in found)
        (member,) = {
            queue.member_id for queue in (await client.admin.group("g")).queues if queue.stalled_ms
        }
        stalled = found["consumer-stalled"]
        assert f"consumer {member}: it hangs" in stalled.do
        assert "nothing was committed in T/" in stalled.what
        assert await explained(client, "g", Patience()) == {}  # not yet, unasked
        for _ in range(300):
            await consumer.get(0.2)
        assert await until_explained(client, "g", lambda found: not found) == {}


@pytest.mark.parametrize("protocol", ["remoting", "rocketmq"])
async def test_clients_of_rocketmq_that_commit_nothing_are_named(
    node: Node, client: duolog.Client, remoting: Remoting, protocol: str
) -> None:
    await client.admin.put_group("g")
    await remoting.send("T", b"x")
    await remoting.send("T", b"y")
    if protocol == "remoting":
        await remoting.beat("c", "g", "T")
        await remoting.pull("g", "T", 0)
    else:
        api = Api(node, "c")
        await settings(api, "g", "*")
        assert await api.receive("g", count=1)
    found = await until_explained(client, "g", lambda found: "consumer-stalled" in found)
    assert "check its RocketMQ clients" in found["consumer-stalled"].do
    fields = {"consumerGroup": "g", "topic": "T", "queueId": 0, "commitOffset": 1}
    if protocol == "remoting":
        await remoting.ask(RequestCode.UPDATE_CONSUMER_OFFSET, fields)
        before = (await client.admin.group("g")).queues[0].stalled_ms
        assert before < broker_of(node).times.mono_ms()
        fields["commitOffset"] = 2
        await remoting.ask(RequestCode.UPDATE_CONSUMER_OFFSET, fields)
        assert await until_explained(client, "g", lambda found: not found) == {}


async def test_somebody_who_asks_need_not_wait_until_messages_are_old(
    client: duolog.Client,
) -> None:
    async with client.consumer("g", "T") as consumer:
        await consumer.get(0.01)
    await sent(client, 3)
    found = await explained(client, "g")
    assert found.keys() == {"no-consumers"}
    assert await explained(client, "g", Patience()) == {}
    async with client.consumer("g", "T"):  # its program asks for nothing
        assert (await explained(client, "g")).keys() == {"not-polled"}


# -- queues ------------------------------------------------------------------------------------


async def test_more_members_than_queues_are_told(
    node: Node, client: duolog.Client, remoting: Remoting
) -> None:
    for number in range(4):
        await client._router.seed.groups.Heartbeat(
            wire.HeartbeatRequest(group="g", member_id=f"m{number}", topics=["T"], tags="*")
        )
    assert await explained(client, "g") == {}
    await remoting.beat("c1", "g", "T")
    (found,) = (await explained(client, "g")).values()
    assert (found.severity, found.cause) == (NOTE, "more-consumers-than-queues")
    assert "5 consumers share the 4 queues of T: 1 of them get" in found.what
    assert found.do.startswith("duolog topic alter T --queues 5")


# -- quotas, permissions -----------------------------------------------------------------------


async def test_a_group_whose_reads_a_quota_delays_is_told_so(
    node: Node, client: duolog.Client, remoting: Remoting
) -> None:
    await sent(client, 300)
    await client.admin.put_quota("Topic:T", messages_out=1, burst_ms=1)
    async with client.consumer("g", "T", commit_interval=0.01) as consumer:
        await consumer.get(0.5)
        found = await until_explained(client, "g", lambda found: "reads-over-quota" in found)
        assert found["reads-over-quota"].severity == WARNING
        assert (
            "over the quota of Topic:T: messages out, 1 a second" in found["reads-over-quota"].what
        )
        assert found.keys() == {"reads-over-quota"}
    for group in ("h", "p"):
        await client.admin.put_group(group)
    await remoting.beat("c", "h", "T")
    pulling = remoting.pull("h", "T", 0, 10_000)
    found = await until_explained(client, "h", lambda found: "reads-over-quota" in found)
    api = Api(node, "c2")
    await settings(api, "p", "*")
    receiving = asyncio.create_task(api.receive("p", poll_ms=5000))
    found = await until_explained(client, "p", lambda found: "reads-over-quota" in found)
    await client.admin.delete_quota("Topic:T")
    assert "reads-over-quota" not in await explained(client, "h")
    receiving.cancel()
    pulling.cancel()


async def test_a_topic_that_is_closed_is_told_of_to_its_groups(client: duolog.Client) -> None:
    async with client.consumer("g", "T") as consumer:
        await consumer.get(0.01)
        await client.admin.alter_topic("T", perm=4)
        (found,) = (await explained(client, "g")).values()
        assert (found.severity, found.cause, found.where) == (NOTE, "topic-read-only", "topic T")
        await client.admin.alter_topic("T", perm=2)
        (found,) = (await explained(client, "g")).values()
        assert (found.severity, found.cause, found.where) == (
            WARNING,
            "topic-unreadable",
            "topic T",
        )
        await client.admin.alter_topic("T", perm=6)
        assert await explained(client, "g") == {}
