"""Quotas for RocketMQ's clients: what is over one is answered with its code, nothing is lost."""

import asyncio
from pathlib import Path
from typing import Any

import duolog
import grpc.aio
import pytest

from duolog_server.compat.grpc.protocol.stubs import Code, definition, service
from duolog_server.node.core import untaken
from duolog_server.node.identity.quotas.quota import Kind, Limit
from duolog_server.node.identity.quotas.quotas import Who
from duolog_server.serve.server import Node
from tests.compat.grpc.api import Api, message, resource
from tests.compat.grpc.users import Users, as_user, first_code, with_users
from tests.node.replicas import Group, broker_of, caught_up, following
from tests.nodefixtures import StartNode
from tests.until import until


@pytest.fixture
async def admin(node: Node, api: Api) -> duolog.Admin:
    """Of the node with topic T."""
    return duolog.Client(f"127.0.0.1:{node.port}", timeout=10).admin


class Apart(Api):
    """A client with a connection of its own, as in another process."""

    def dial(self, endpoint: str) -> grpc.aio.Channel:
        options = (("grpc.use_local_subchannel_pool", 1),)
        return grpc.aio.insecure_channel(endpoint, options=options)


async def told(stream: Any) -> int:
    """The code of the next command of a telemetry stream."""
    return int((await stream.read()).status.code)


async def pull(api: Api, wait_ms: int = 0) -> list[service.PullMessageResponse]:
    request = service.PullMessageRequest(
        group=resource("g"),
        message_queue=definition.MessageQueue(topic=resource("T"), id=0),
        filter_expression=definition.FilterExpression(expression="*"),
        batch_size=32,
    )
    request.long_polling_timeout.FromMilliseconds(wait_ms)
    call = api.stub.PullMessage(request, timeout=10, metadata=api.metadata)
    return [reply async for reply in call]


def stored(node: Node) -> int:
    return sum(broker_of(node).store.next_offset("T", queue) for queue in range(2))


async def test_a_send_over_a_quota_is_too_many_requests_and_not_stored(
    node: Node, api: Api, admin: duolog.Admin
) -> None:
    await admin.put_quota("Topic:T", messages_in=1, burst_ms=1)
    assert (
        await api.send(*(message(b"%d" % number) for number in range(5)))
    ).status.code == Code.OK
    refused = await api.send(message(b"c"))
    assert refused.status.code == Code.TOO_MANY_REQUESTS
    assert "over the quota of Topic:T" in refused.status.message
    assert stored(node) == 5
    now = broker_of(node).times.mono_ms()
    wait = broker_of(node).core.throttle.quotas.incoming.wait(Who("", ""), "T", now)
    assert wait is not None
    assert wait.ms > 1000, "each message counts"
    await admin.delete_quota("Topic:T")
    assert (await api.send(message(b"c"))).status.code == Code.OK
    assert stored(node) == 6


async def test_receives_over_a_quota_are_delayed_and_get_all(
    node: Node, api: Api, admin: duolog.Admin
) -> None:
    for number in range(8):
        await api.send(message(b"%d" % number))
    await admin.put_quota("Client:127.0.0.1", messages_out=4, burst_ms=250)
    loop = asyncio.get_running_loop()
    began = loop.time()
    first = await api.receive("g")
    assert len(first.bodies) == 1, "no more than a burst"
    found = [*first.bodies]
    while len(found) < 8:
        found += (await api.receive("g", timeout=10, poll_ms=5000)).bodies
    assert sorted(found) == [b"%d" % number for number in range(8)]
    assert loop.time() - began >= 1.2
    await admin.put_quota("Client:127.0.0.1", messages_out=0, bytes_out=1, burst_ms=1)
    await api.receive("g2", poll_ms=800)
    began = loop.time()
    none = await api.receive("g3", timeout=10, poll_ms=500)
    assert none.code == Code.MESSAGE_NOT_FOUND
    assert loop.time() - began >= 0.4, "it would ask again at once"
    assert broker_of(node).core.throttle.refused[Kind.CLIENT, Limit.MESSAGES_OUT] > 0


async def test_pulls_over_a_quota_are_delayed_or_refused(api: Api, admin: duolog.Admin) -> None:
    for number in range(8):
        await api.send(message(b"%d" % number))
    await admin.put_quota("Topic:T", bytes_out=1, burst_ms=1)
    first = await pull(api)
    assert [reply.status.code for reply in first if reply.HasField("status")] == [Code.OK]
    assert sum(reply.HasField("message") for reply in first) == 1
    (refused,) = await pull(api)
    assert refused.status.code == Code.TOO_MANY_REQUESTS
    loop = asyncio.get_running_loop()
    began = loop.time()
    (refused,) = await pull(api, 800)
    assert refused.status.code == Code.TOO_MANY_REQUESTS
    assert loop.time() - began >= 0.4, "it would ask again at once"


async def test_answers_that_a_client_does_not_take_keep_it_from_both_ways_to_read(
    node: Node, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(untaken, "WAIT_SECONDS", 0.0)
    answers = broker_of(node).untaken
    await api.send(message(b"x"))
    held = answers.room("127.0.0.1")
    answers.take("127.0.0.1", held)
    (refused,) = await pull(api)
    assert "answers_bytes_max" in refused.status.message
    assert (await api.receive("g")).code == refused.status.code
    answers.give("127.0.0.1", held)
    assert (await api.receive("g")).bodies == [b"x"]


async def test_a_telemetry_stream_over_the_quota_of_connections_is_refused(
    node: Node, api: Api, admin: duolog.Admin
) -> None:
    settings = service.TelemetryCommand()
    settings.settings.publishing.topics.append(resource("T"))
    first = api.stub.Telemetry(metadata=api.metadata)
    await first.write(settings)
    assert await told(first) == Code.OK
    connections = broker_of(node).core.throttle.connections
    await admin.put_quota("Client:127.0.0.1", connections=100)
    await until(lambda: connections.of_address("127.0.0.1") == 2)  # the admin's frames, too
    await admin.put_quota("Client:127.0.0.1", connections=(taken := 2))
    other = Apart(node, client_id="other@1")
    # It is refused as it begins: what it writes may come after its end.
    second = other.stub.Telemetry(metadata=other.metadata)
    assert await told(second) == Code.TOO_MANY_REQUESTS
    first.cancel()
    await until(lambda: connections.of_address("127.0.0.1") < taken)
    third = other.stub.Telemetry(metadata=other.metadata)
    await third.write(settings)
    assert await told(third) == Code.OK
    third.cancel()
    await other.close()


async def test_topics_that_a_user_creates_by_a_message_or_a_route_are_its_own_and_counted(
    start_node: StartNode, tmp_path: Path
) -> None:
    node = await start_node(access=with_users(tmp_path), limits={"auto_create_topic": True})
    users, metadata = Users(node), broker_of(node).metadata
    await users.new("root", super=True)
    await metadata.change({"op": "quota", "quota": {"subject": "User:root", "topics": 2}})
    api = as_user(node, "root")
    sends = [service.SendMessageRequest(messages=[message(b"x", topic=one)]) for one in "ac"]
    routes = [service.QueryRouteRequest(topic=resource(one)) for one in "bd"]
    for name, request in (("SendMessage", sends[0]), ("QueryRoute", routes[0])):
        assert await first_code(api, name, request) == Code.OK
    assert metadata.owners() == {"a": "root", "b": "root"}
    for name, request in (("SendMessage", sends[1]), ("QueryRoute", routes[1])):
        assert await first_code(api, name, request) == Code.TOO_MANY_REQUESTS
    assert metadata.owners().keys() == {"a", "b"}
    await api.close()


async def test_a_telemetry_stream_counts_at_the_node_of_its_client_and_not_at_the_master_too(
    start_node: StartNode, tmp_path: Path
) -> None:
    """There it would be one of the slave's address, as those of all clients of the slave."""
    group = Group(start_node, tmp_path)
    master = await group.start_master("ASYNC_MASTER")
    slave = await group.start_slave()
    metadata = broker_of(master).metadata
    await metadata.put_topic(metadata.new_topic("T", 1, 6))
    await following(slave)
    await caught_up(master, slave)
    api = Api(slave)
    stream = api.stub.Telemetry(metadata=api.metadata)
    settings = service.TelemetryCommand()
    settings.settings.publishing.topics.append(resource("T"))
    await stream.write(settings)
    assert await told(stream) == Code.OK

    def streams(node: Node) -> int:
        return broker_of(node).core.throttle.connections.of_address("127.0.0.1")

    assert [streams(node) for node in (slave, master)] == [1, 0]
    stream.cancel()
    await until(lambda: not streams(slave))
    await api.close()
