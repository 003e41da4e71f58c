"""What a user tries with the handles, ids and names of others."""

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import structlog

from duolog_server.compat.grpc.protocol.stubs import METHODS, Code, definition, service
from duolog_server.compat.grpc.relay.calls import (
    CLIENT_ID,
    COPY,
    FORWARDED,
    PEER,
    PLAIN,
    USER,
    VIA,
)
from duolog_server.node.pop.liteservice import bound
from duolog_server.serve.server import Node
from duolog_server.store.metadata import TopicConfig, new_group
from tests.compat.grpc.api import CALL_SECONDS, Api, message, resource
from tests.compat.grpc.test_rights import make_topics
from tests.compat.grpc.test_transactions import COMMIT, PATIENT, Checker, end, half
from tests.compat.grpc.users import (
    PASSWORD,
    Users,
    as_user,
    codes,
    first_code,
    headers,
    requests,
    with_users,
)
from tests.node.replicas import broker_of
from tests.nodefixtures import StartNode
from tests.until import until

LONG_MS = 3_600_000


@pytest.fixture
async def node(start_node: StartNode, tmp_path: Path) -> Node:
    made = await start_node(access=with_users(tmp_path), transactions=PATIENT)
    await make_topics(made, "T", "U")
    users = Users(made)
    await users.new("root", super=True)
    await users.new("alice", "Pub,Sub,Get Topic:T", "Sub Group:g")
    await users.new("bob", "Pub,Sub,Get Topic:U", "Sub Group:h")
    return made


@pytest.fixture
async def users(node: Node) -> Users:
    return Users(node)


@pytest.fixture
async def alice(node: Node) -> AsyncIterator[Api]:
    made = as_user(node, "alice")
    yield made
    await made.close()


@pytest.fixture
async def bob(node: Node) -> AsyncIterator[Api]:
    """With the client id of alice's client."""
    made = as_user(node, "bob")
    yield made
    await made.close()


async def to_dead_letters(api: Api, group: str, handle: str, topic: str) -> Any:
    request = service.ForwardMessageToDeadLetterQueueRequest(
        group=resource(group), topic=resource(topic), receipt_handle=handle
    )
    return await api.call("ForwardMessageToDeadLetterQueue", request)


async def test_a_handle_is_of_no_use_to_another_user(alice: Api, bob: Api) -> None:
    await alice.send(message(b"x"))
    await bob.receive("h", "U")
    (handle,) = (await alice.receive("g", held=True)).handles
    for group, topic, code in (
        ("g", "T", Code.FORBIDDEN),
        ("h", "T", Code.FORBIDDEN),
        ("g", "U", Code.FORBIDDEN),
        ("h", "U", Code.INVALID_RECEIPT_HANDLE),
    ):
        found = [
            await bob.ack(group, handle, topic=topic),
            await bob.change(group, handle, 0, topic),
            await to_dead_letters(bob, group, handle, topic),
        ]
        assert [reply.status.code for reply in found] == [code] * 3
    assert (await alice.ack("g", handle)).status.code == Code.OK


async def test_a_retry_topic_that_two_groups_share_gives_each_its_own_messages(
    node: Node, users: Users
) -> None:
    """%RETRY%a_b_c is that of a for the topic b_c, and that of a_b for the topic c."""
    await make_topics(node, "c", "b_c")
    await users.new("carol", "Pub,Sub Topic:c", "Sub Group:a_b")
    await users.new("mallory", "Pub,Sub Topic:b_c", "Sub Group:a")
    carol, mallory = as_user(node, "carol"), as_user(node, "mallory")
    try:
        for api, group, topic in ((carol, "a_b", "c"), (mallory, "a", "b_c")):
            await api.send(message(topic.encode(), topic=topic))
            (handle,) = (await api.receive(group, topic)).handles
            assert (await api.change(group, handle, 20, topic)).status.code == Code.OK
        store = broker_of(node).store
        await until(lambda: store.queue_range("%RETRY%a_b_c", 0)[1] == 2)
        for api, group, topic in ((carol, "a_b", "c"), (mallory, "a", "b_c")):
            found = [await api.receive(group, topic) for _ in range(2)]
            assert [body for received in found for body in received.bodies] == [topic.encode()]
    finally:
        await carol.close()
        await mallory.close()


async def test_a_transaction_is_decided_only_with_the_right_to_its_topic(
    alice: Api, bob: Api
) -> None:
    ids = await half(alice)
    assert await end(bob, ids, COMMIT) == Code.FORBIDDEN
    assert await end(bob, ids, COMMIT, "U") == Code.INVALID_TRANSACTION_ID
    assert await end(alice, ("another", ids[1]), COMMIT) == Code.INVALID_TRANSACTION_ID
    assert await end(alice, ids, COMMIT) == Code.OK


async def test_a_message_is_recalled_only_with_the_right_to_its_topic(
    node: Node, alice: Api, bob: Api
) -> None:
    due = broker_of(node).times.wall_ms() + LONG_MS
    (entry,) = (await alice.send(message(b"later", delivery_ms=due))).entries

    async def recall(api: Api, topic: str) -> int:
        request = service.RecallMessageRequest(
            topic=resource(topic), recall_handle=entry.recall_handle
        )
        return int((await api.call("RecallMessage", request)).status.code)

    assert await recall(bob, "T") == Code.FORBIDDEN
    assert await recall(bob, "U") == Code.BAD_REQUEST
    assert await recall(alice, "T") == Code.OK


async def test_retry_and_dead_letter_topics_are_their_groups(
    users: Users, node: Node, bob: Api
) -> None:
    await make_topics(node, "%RETRY%g_T", "%DLQ%g", "%RETRY%g")
    await broker_of(node).metadata.ensure_group("g")
    names = ("%RETRY%g_T", "%DLQ%g", "%RETRY%g")
    for entries in (
        ("Pub,Sub,Get Topic:*", "Sub Group:h"),
        ("Pub,Sub,Get Topic:*", "Sub Group:h", "Sub Group:g_T"),
    ):
        await users.may("bob", *entries)
        for name in names:
            asked = requests(name, "h")
            reading = ("ReceiveMessage", "PullMessage", "QueryAssignment", "UpdateOffset")
            found = await codes(bob, [(method, asked[method]) for method in reading])
            assert set(found.values()) == {Code.FORBIDDEN}, name
            assert await first_code(bob, "SendMessage", asked["SendMessage"]) == Code.FORBIDDEN
    await users.may("bob", "Sub Group:g")
    assert await first_code(bob, "PullMessage", requests("%DLQ%g", "g")["PullMessage"]) == (
        Code.MESSAGE_NOT_FOUND
    )


async def test_lite_topics_are_their_parent_topic(users: Users, node: Node, bob: Api) -> None:
    await broker_of(node).metadata.put_topic(TopicConfig("P", 1, 6, message_type="LITE"))
    subscribe = requests("P", "h")["SyncLiteSubscription"]
    sending = service.SendMessageRequest(messages=[message(topic="P", lite_topic="x")])
    await users.may("bob", "Pub,Sub Topic:x", "Pub,Sub Topic:P$x", "Sub Group:h")
    assert await first_code(bob, "SyncLiteSubscription", subscribe) == Code.FORBIDDEN
    assert await first_code(bob, "SendMessage", sending) == Code.FORBIDDEN
    await users.may("bob", "Pub,Sub Topic:P", "Sub Group:h")
    assert await first_code(bob, "SyncLiteSubscription", subscribe) == Code.OK
    assert await first_code(bob, "SendMessage", sending) == Code.OK
    for name in ("$P$x", "%LMQ%$P$x"):  # a light queue itself
        asked = requests(name, "h")["PullMessage"]
        assert await first_code(bob, "PullMessage", asked) == Code.ILLEGAL_TOPIC


async def test_nobody_acts_as_the_client_of_another_user(node: Node, alice: Api, bob: Api) -> None:
    await alice.send(message(b"x"))
    (handle,) = (await alice.receive("g", held=True)).handles
    leave = service.NotifyClientTerminationRequest(group=resource("h"))
    assert (await bob.call("NotifyClientTermination", leave)).status.code == Code.OK
    assert (await alice.ack("g", handle)).status.code == Code.OK
    assert node.rocketmq is not None
    known = [client.client_id for client in node.rocketmq.clients.all()]
    assert known == ["alice/test@1"]


async def test_only_nodes_may_say_for_whom_they_forward_a_call(node: Node) -> None:
    said = {FORWARDED: PLAIN, PEER: "ipv4:10.0.0.1:1", VIA: "m", USER: "root", CLIENT_ID: "root/c"}
    for signed in ({}, headers("bob")):
        for names in ((FORWARDED,), (PEER,), (USER,), (COPY,), tuple(said)):
            forged = {name: said.get(name, "1") for name in names}
            api = Api(node, "", **signed, **forged, **{"x-duolog-mark": "0" * 64})
            assert (await api.route("U")).status.code == Code.UNAUTHORIZED
            await api.close()


async def test_a_poll_looks_again_before_it_delivers(
    users: Users, node: Node, alice: Api, bob: Api
) -> None:
    waiting = broker_of(node).waiting_calls
    polling = asyncio.ensure_future(alice.receive("g", timeout=20))
    await until(lambda: waiting.count == 1)
    await users.may("alice", "Pub Topic:T", "Sub Group:g")
    assert (await alice.send(message(b"x"))).status.code == Code.OK
    received = await polling
    assert (received.code, received.bodies) == (Code.FORBIDDEN, [])
    await users.may("bob", "Sub Topic:T", "Sub Group:g")
    assert (await bob.receive("g", timeout=20)).bodies == [b"x"]


async def test_a_pull_looks_again_before_it_delivers(users: Users, node: Node, alice: Api) -> None:
    request = requests()["PullMessage"]
    request.long_polling_timeout.FromMilliseconds(20_000)
    call = alice.stub.PullMessage(request, metadata=alice.metadata, timeout=20)
    reading = asyncio.ensure_future(call.read())
    await until(lambda: broker_of(node).waiting_calls.count == 1)
    await users.put("alice", disabled=True)
    root = as_user(node, "root")
    await root.send(message(b"x"))
    reply: Any = await reading
    assert reply.status.code == Code.UNAUTHORIZED
    await root.close()


def telemetry(api: Api, *topics: str) -> Any:
    """A stream with a producer's settings; it stays open."""
    publishing = definition.Publishing(topics=[resource(topic) for topic in topics])

    async def commands() -> Any:
        yield service.TelemetryCommand(settings=definition.Settings(publishing=publishing))
        await asyncio.Event().wait()

    return api.stub.Telemetry(commands(), metadata=api.metadata)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ("disabled", Code.UNAUTHORIZED),
        ("password", Code.UNAUTHORIZED),
        ("rights", Code.FORBIDDEN),
    ],
)
async def test_a_telemetry_stream_ends_with_the_rights_of_its_user(
    users: Users, alice: Api, bob: Api, change: str, code: Code
) -> None:
    stream, other = telemetry(alice, "T"), telemetry(bob, "U")
    for one in (stream, other):
        assert (await one.read()).status.code == Code.OK
    match change:
        case "disabled":
            await users.put("alice", disabled=True)
        case "password":
            await users.put("alice", password="another one", signs=True)
        case _:
            await users.may("alice", "Sub Topic:T")
    async with asyncio.timeout(60):
        assert (await stream.read()).status.code == code
    assert await stream.code() is grpc.StatusCode.OK
    reading = asyncio.ensure_future(other.read())
    await asyncio.sleep(0.1)
    assert not reading.done()
    other.cancel()
    await asyncio.gather(reading, return_exceptions=True)


async def test_transaction_checks_go_to_producers_that_may_have_them(
    users: Users, node: Node, alice: Api, bob: Api
) -> None:
    await users.new("carol", "Pub Topic:T")
    third = as_user(node, "carol")
    checkers = [Checker(api, "T") for api in (alice, third)]
    for checker in checkers:
        await checker.settled.wait()
    assert node.rocketmq is not None
    client = node.rocketmq.clients.find("carol/test@1")
    assert client is not None
    await users.may("carol", "Get Topic:T")
    ids = await half(alice)
    await until(lambda: [one.transaction_id for one in checkers[0].asked].count(ids[1]) >= 2)
    assert not [one.transaction_id for one in checkers[1].asked if one.transaction_id]
    for checker in checkers:
        await checker.close()
    await third.close()


@pytest.mark.usefixtures("many_failures")
async def test_no_secret_and_no_signature_is_logged_or_answered(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    given = {
        "good": headers("alice"),
        "of another": headers("alice", PASSWORD.format("bob")),
        "no rights": headers("bob"),
    }
    given["basic"] = {"authorization": f"Basic {PASSWORD.format('alice')}"}
    texts: list[str] = []
    with structlog.testing.capture_logs() as logs:
        for signed in given.values():
            api = Api(node, "c", **signed)
            for name, request in requests().items():
                if name in ("ReceiveMessage", "PullMessage", "Telemetry"):
                    asked = iter((request,)) if name == "Telemetry" else request
                    call = getattr(api.stub, name)(
                        asked, metadata=api.metadata, timeout=CALL_SECONDS
                    )
                    texts.append(str(await call.read()))
                    call.cancel()
                else:
                    texts.append(str(await api.call(name, request)))
            await api.close()
    secrets = {PASSWORD.format(name) for name in ("alice", "bob", "root")}
    secrets |= {signed["authorization"].rpartition("=")[2] for signed in given.values()}
    texts += [str(line) for line in logs]
    texts += [record.getMessage() for record in caplog.records]
    assert len(texts) > len(METHODS) * len(given)
    assert not [text for text in texts for secret in secrets if secret in text]


async def test_only_who_may_read_a_lite_topic_is_told_that_it_went_to_another_client(
    users: Users, node: Node, alice: Api, bob: Api
) -> None:
    metadata = broker_of(node).metadata
    await metadata.put_topic(TopicConfig("P", 1, 6, message_type="LITE"))
    await metadata.put_group(bound(new_group("lite"), "P", exclusive=True))
    for name in ("alice", "bob"):
        await users.may(name, "Sub Topic:P", "Sub Group:lite")
    told: list[str] = []

    async def subscribe(api: Api) -> None:
        asked = requests("P", "lite")["SyncLiteSubscription"]
        assert await first_code(api, "SyncLiteSubscription", asked) == Code.OK

    async def listen() -> None:
        subscription = definition.Subscription(group=resource("lite"))
        settings = definition.Settings(subscription=subscription)

        async def commands() -> Any:
            yield service.TelemetryCommand(settings=settings)
            await asyncio.Event().wait()

        stream = alice.stub.Telemetry(commands(), metadata=alice.metadata)
        async for command in stream:
            told.append(str(command.WhichOneof("command") or Code.Name(command.status.code)))

    listening = asyncio.ensure_future(listen())
    await until(lambda: told == ["settings"])
    await subscribe(alice)
    await subscribe(bob)
    await until(lambda: told == ["settings", "notify_unsubscribe_lite_command"])
    await subscribe(alice)
    await users.may("alice", "Sub Topic:P")
    await subscribe(bob)
    await listening
    assert told == ["settings", "notify_unsubscribe_lite_command", "FORBIDDEN"]
