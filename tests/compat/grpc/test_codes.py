"""Every situation of RocketMQ's code table is answered with exactly its code."""

import hashlib
from typing import Any

import pytest

from duolog_server.compat.grpc.protocol.stubs import Code, definition, service
from duolog_server.compat.grpc.relay.clients import CLIENT_ID_MAX
from duolog_server.serve.server import Node
from duolog_server.store.metadata import TopicConfig
from tests.compat.grpc.api import Api, message, resource
from tests.known import known
from tests.node.replicas import broker_of
from tests.nodefixtures import StartNode

MIB = 1 << 20


async def code_of_send(api: Api, *messages: Any) -> int:
    reply = await api.send(*messages)
    return int(reply.status.code)


async def test_a_call_without_a_client_id_is_refused(node: Node) -> None:
    api = Api(node, client_id="")
    assert (await api.route("T")).status.code == Code.CLIENT_ID_REQUIRED
    received = await api.receive("g")
    assert received.code == Code.CLIENT_ID_REQUIRED


async def test_a_client_id_has_an_end(node: Node) -> None:
    api = Api(node, client_id="c" * (CLIENT_ID_MAX + 1))
    assert (await api.route("T")).status.code == Code.CLIENT_ID_REQUIRED
    assert len(known(node.rocketmq).clients) == 0


@pytest.mark.parametrize(
    ("topic", "code"),
    [
        ("", Code.ILLEGAL_TOPIC),
        ("  ", Code.ILLEGAL_TOPIC),
        ("a" * 128, Code.ILLEGAL_TOPIC),
        ("a b", Code.ILLEGAL_TOPIC),
        ("ü", Code.ILLEGAL_TOPIC),
        ("TBW102", Code.ILLEGAL_TOPIC),
        ("SCHEDULE_TOPIC_XXXX", Code.ILLEGAL_TOPIC),
        ("RMQ_SYS_TRANS_HALF_TOPIC", Code.ILLEGAL_TOPIC),
        ("rmq_sys_wheel_timer", Code.ILLEGAL_TOPIC),
        ("DUOLOG_SYS_METADATA", Code.ILLEGAL_TOPIC),
        ("Missing", Code.TOPIC_NOT_FOUND),
    ],
)
async def test_invalid_topics_are_refused(api: Api, topic: str, code: int) -> None:
    assert (await api.route(topic)).status.code == code
    assert await code_of_send(api, message(topic=topic)) == code
    assert (await api.receive("g", topic)).code == code


@pytest.mark.parametrize("group", ["", " ", "a" * 256, "a b", "CID_RMQ_SYS_TRANS"])
async def test_invalid_groups_are_refused(api: Api, group: str) -> None:
    assert (await api.receive(group)).code == Code.ILLEGAL_CONSUMER_GROUP
    assert (await api.ack(group, "x")).status.code == Code.ILLEGAL_CONSUMER_GROUP


@pytest.mark.parametrize(
    ("how", "code"),
    [
        ({"body": b""}, Code.MESSAGE_BODY_EMPTY),
        ({"body": b"x" * (65536 + 1)}, Code.MESSAGE_BODY_TOO_LARGE),
        ({"properties": {f"p{k}": "v" for k in range(129)}}, Code.MESSAGE_PROPERTIES_TOO_LARGE),
        ({"properties": {"p": "v" * (16 << 10)}}, Code.MESSAGE_PROPERTIES_TOO_LARGE),
        ({"properties": {"UNIQ_KEY": "v"}}, Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
        ({"properties": {"p": "a\0b"}}, Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
        ({"properties": {"p\x01": "v"}}, Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
        ({"tag": " "}, Code.ILLEGAL_MESSAGE_TAG),
        ({"tag": "a|b"}, Code.ILLEGAL_MESSAGE_TAG),
        ({"tag": "a\n"}, Code.ILLEGAL_MESSAGE_TAG),
        ({"keys": [" "]}, Code.ILLEGAL_MESSAGE_KEY),
        ({"keys": ["a\tb"]}, Code.ILLEGAL_MESSAGE_KEY),
        ({"message_group": " "}, Code.ILLEGAL_MESSAGE_GROUP),
        ({"message_group": "g" * 64}, Code.ILLEGAL_MESSAGE_GROUP),
        ({"message_group": "g\0"}, Code.ILLEGAL_MESSAGE_GROUP),
        ({"message_id": " "}, Code.ILLEGAL_MESSAGE_ID),
        ({"digest": (definition.DigestType.MD5, "00")}, Code.OK),  # an empty digest is none
        ({"digest": (definition.DigestType.MD5, "AB" * 16)}, Code.MESSAGE_CORRUPTED),
    ],
)
async def test_invalid_messages_are_refused(api: Api, how: dict[str, Any], code: int) -> None:
    body = how.pop("body", b"x")
    reply = await api.send(message(body, **how))
    assert reply.status.code == code
    if code != Code.OK:
        assert reply.status.message
        assert not reply.entries


async def test_an_acknowledgement_of_an_earlier_delivery_is_refused(api: Api) -> None:
    await api.send(message())
    (first,) = (await api.receive("g", invisible_ms=30_000)).handles
    second = (await api.change("g", first, 30_000)).receipt_handle
    assert (await api.ack("g", second)).status.code == Code.OK
    assert (await api.ack("g", first)).status.code == Code.INVALID_RECEIPT_HANDLE


async def test_empty_tags_keys_and_properties_are_accepted_and_omitted(api: Api) -> None:
    sent = message(tag="", keys=["", "k", ""], properties={"p": "", "": "v", "q": "v"})
    assert await code_of_send(api, sent, message(keys=[""])) == Code.OK
    found = {tuple(one.system_properties.keys): one for one in (await api.receive("g")).messages}
    assert dict(found["k",].user_properties) == {"q": "v"}
    assert set(found) == {("k",), ()}
    assert not any(one.system_properties.HasField("tag") for one in found.values())


async def test_limits_are_reached_exactly(api: Api) -> None:
    assert (await api.receive("g" * 248)).code == Code.MESSAGE_NOT_FOUND
    assert (await api.receive("g" * 249)).code == Code.ILLEGAL_CONSUMER_GROUP
    properties = {f"p{k}": "v" for k in range(128)}
    assert await code_of_send(api, message(properties=properties)) == Code.OK
    assert await code_of_send(api, message(properties={"p": "v" * ((16 << 10) - 1)})) == Code.OK
    assert await code_of_send(api, message(b"x" * 65536)) == Code.OK
    assert await code_of_send(api, message(message_group="g" * 63)) == Code.OK


async def test_empty_requests_and_those_of_mixed_messages_are_refused(api: Api) -> None:
    assert await code_of_send(api) == Code.MESSAGE_CORRUPTED
    api_two = message(), message(topic="U")
    assert await code_of_send(api, *api_two) == Code.MESSAGE_CORRUPTED
    mixed = message(), message(message_group="g")
    assert await code_of_send(api, *mixed) == Code.MESSAGE_CORRUPTED
    other = message(message_group="g"), message(message_group="h")
    assert await code_of_send(api, *other) == Code.MESSAGE_CORRUPTED


async def test_a_digest_is_checked_over_the_bytes_as_they_came(api: Api) -> None:
    digests = [
        (definition.DigestType.MD5, hashlib.md5(b"x").hexdigest().upper()),
        (definition.DigestType.SHA1, hashlib.sha1(b"x").hexdigest()),
        (definition.DigestType.CRC32, "8cdc1683"),
    ]
    for digest in digests:
        assert await code_of_send(api, message(digest=digest)) == Code.OK


async def test_a_type_of_message_that_the_topic_does_not_accept_fails(api: Api, node: Node) -> None:
    import duolog

    async with duolog.Client(f"127.0.0.1:{node.port}") as client:
        await client.admin.create_topic("N", 1, message_type="NORMAL")
        await client.admin.create_topic("F", 1, message_type="FIFO")
        with pytest.raises(duolog.BadRequest, match="not one of NORMAL"):
            await client.admin.create_topic("X", 1, message_type="ODD")
    conflict = Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
    assert await code_of_send(api, message(topic="N")) == Code.OK
    assert await code_of_send(api, message(topic="N", message_group="g")) == conflict
    assert await code_of_send(api, message(topic="F")) == conflict
    assert await code_of_send(api, message(topic="F", message_group="g")) == Code.OK
    route = await api.route("F")
    assert list(route.message_queues[0].accept_message_types) == [definition.MessageType.FIFO]


async def test_a_topic_of_a_type_only_rocketmq_has_accepts_all_types(api: Api, node: Node) -> None:
    """Its tables may name MIXED."""
    await broker_of(node).metadata.put_topic(TopicConfig("M", 1, message_type="MIXED"))
    assert await code_of_send(api, message(topic="M")) == Code.OK
    assert await code_of_send(api, message(topic="M", message_group="g")) == Code.OK
    route = await api.route("M")
    assert len(route.message_queues[0].accept_message_types) == 4


@pytest.mark.parametrize(
    ("how", "code"),
    [
        ({"invisible_ms": 9999}, Code.ILLEGAL_INVISIBLE_TIME),
        ({"invisible_ms": 12 * 3600 * 1000 + 1}, Code.ILLEGAL_INVISIBLE_TIME),
        ({"poll_ms": -1}, Code.ILLEGAL_POLLING_TIME),
        ({"count": 0}, Code.BAD_REQUEST),
        ({"expression": " || "}, Code.ILLEGAL_FILTER_EXPRESSION),
        ({"queue_id": 99, "group": "fifo"}, Code.BAD_REQUEST),
        ({}, Code.MESSAGE_NOT_FOUND),
    ],
)
async def test_invalid_polls_are_refused(api: Api, how: dict[str, Any], code: int) -> None:
    received = await api.receive(how.pop("group", "g"), **how)
    assert received.code == code
    assert received.delivered == 1
    assert not received.messages


async def test_forged_foreign_and_stale_handles_are_refused(api: Api) -> None:
    await api.send(message())
    received = await api.receive("g")
    (handle,) = received.handles
    invalid = Code.INVALID_RECEIPT_HANDLE
    for forged in ("", "x", "####", handle[:-8], handle[:-3] + "AAA"):
        assert (await api.ack("g", forged)).status.code == invalid
        changed = await api.change("g", forged, 1000)
        assert (changed.status.code, changed.receipt_handle) == (invalid, forged)
    assert (await api.ack("h", handle)).status.code == invalid  # of another group
    assert (await api.ack("g", handle, topic="U")).status.code == invalid  # of another topic
    assert (await api.ack("g", handle)).status.code == Code.OK
    assert (await api.ack("g", handle)).status.code == Code.OK  # a repeat
    assert (await api.ack("h", handle)).status.code == invalid
    assert (await api.change("g", handle, 1000)).status.code == invalid


async def test_a_valid_and_an_invalid_handle_give_multiple_results(api: Api) -> None:
    await api.send(message(b"1"))
    (handle,) = (await api.receive("g")).handles
    reply = await api.ack("g", "dead", handle)
    assert reply.status.code == Code.MULTIPLE_RESULTS
    codes = [entry.status.code for entry in reply.entries]
    assert codes == [Code.INVALID_RECEIPT_HANDLE, Code.OK]
    assert [entry.receipt_handle for entry in reply.entries] == ["dead", handle]


async def test_topic_permissions_are_enforced(api: Api, node: Node) -> None:
    import duolog

    async with duolog.Client(f"127.0.0.1:{node.port}") as client:
        await client.admin.create_topic("R", 1, 4)
        await client.admin.create_topic("W", 1, 2)
    assert await code_of_send(api, message(topic="R")) == Code.FORBIDDEN
    assert await code_of_send(api, message(topic="W")) == Code.OK
    assert (await api.receive("g", "W")).code == Code.FORBIDDEN


async def test_a_signature_is_required_where_there_are_access_keys(start_node: StartNode) -> None:
    node = await start_node(rocketmq={"access_key": "ak", "secret_key": "sk"})
    date = "20260102T030405Z"
    signature = "d1d8a35c0fdcc8f2e3b4eb3a7f1e0a5a00000000"
    import hmac

    good = hmac.new(b"sk", date.encode(), hashlib.sha1).hexdigest()

    def header(access_key: str, signed: str) -> str:
        return (
            f"MQv2-HMAC-SHA1 Credential={access_key}/region/x, SignedHeaders=x-mq-date-time, "
            f"Signature={signed}"
        )

    for authorization, code in [
        (header("ak", good), Code.TOPIC_NOT_FOUND),
        (header("ak", good.upper()), Code.TOPIC_NOT_FOUND),
        (header("ak", signature), Code.UNAUTHORIZED),
        (header("other", good), Code.UNAUTHORIZED),
        ("MQv2-HMAC-SHA1 Credential=, SignedHeaders=x-mq-date-time, Signature=", Code.UNAUTHORIZED),
        ("", Code.UNAUTHORIZED),
        ("Basic xyz", Code.UNAUTHORIZED),
    ]:
        api = Api(node, x_mq_date_time=date, authorization=authorization)
        assert (await api.route("T")).status.code == code
        await api.close()


async def test_a_telemetry_stream_with_bad_settings_ends(api: Api) -> None:
    import grpc

    async def first_reply(settings: Any) -> Any:
        async def requests() -> Any:
            yield service.TelemetryCommand(settings=settings)

        call = api.stub.Telemetry(requests(), metadata=api.metadata, timeout=5)
        async for reply in call:
            return reply

    for settings in (
        definition.Settings(),
        definition.Settings(publishing=definition.Publishing(topics=[resource("a b")])),
        definition.Settings(
            subscription=definition.Subscription(
                group=resource("g"),
                subscriptions=[
                    definition.SubscriptionEntry(
                        topic=resource("T"),
                        expression=definition.FilterExpression(expression=" || "),
                    )
                ],
            )
        ),
    ):
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await first_reply(settings)
        assert failure.value.code() is grpc.StatusCode.INVALID_ARGUMENT
