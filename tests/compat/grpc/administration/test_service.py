"""The Admin service: what its methods answer."""

import json
import time
from typing import Any, Never

import duolog
import pytest
from duolog import _errors as sdk
from google.protobuf.timestamp_pb2 import Timestamp

from duolog_server.compat.grpc.administration import groups
from duolog_server.compat.grpc.administration.consumers import Consumers
from duolog_server.compat.grpc.administration.groups import TOPICS_MAX
from duolog_server.compat.grpc.protocol.codes import OK
from duolog_server.compat.grpc.protocol.stubs import (
    Code,
    MessageType,
    Resource,
    admin,
    definition,
    service,
)
from duolog_server.compat.grpc.relay.forward import Forwarder
from duolog_server.compat.grpc.sending import Sender
from duolog_server.compat.remoting.codec.codes import RequestCode
from duolog_server.node.api.verbs import Verbs
from duolog_server.node.broker import Broker
from duolog_server.node.core import turnbudget
from duolog_server.serve.server import Node
from tests.compat.grpc.administration.api import AdminApi, requests, subscribed
from tests.compat.grpc.api import QUEUES, Api, message, resource
from tests.compat.remoting.client import connected
from tests.known import known
from tests.node.replicas import broker_of
from tests.turns import turns_of
from tests.until import until

REFUSED = ("DeleteSubscription", "GetConsumerRunningInfo")


@pytest.mark.parametrize("name", REFUSED)
async def test_what_is_not_served_says_why(admin_api: AdminApi, name: str) -> None:
    status = (await admin_api.call(name, requests()[name])).status
    assert status.code == Code.UNSUPPORTED
    assert "mqadmin" in status.message


async def test_another_deployment_is_none(node: Node, admin_api: AdminApi) -> None:
    request = requests()["DescribeTopicStatus"]
    request.deployment_name = node.config.node.cluster
    assert await admin_api.code("DescribeTopicStatus", request) == Code.OK
    request.deployment_name = "elsewhere"
    status = (await admin_api.call("DescribeTopicStatus", request)).status
    assert status.code == Code.NOT_FOUND
    assert "node.cluster" in status.message


# -- topics ------------------------------------------------------------------------------------


async def test_a_topics_type_is_told(node: Node, admin_api: AdminApi) -> None:
    async with duolog.Client(f"127.0.0.1:{node.port}", timeout=10) as client:
        await client.admin.create_topic("F", 1, message_type="FIFO")
    found = await admin_api.call("DescribeTopicStatus", requests("F")["DescribeTopicStatus"])
    assert found.topic_message_type == MessageType.FIFO
    every = await admin_api.call("DescribeTopicStatus", requests("T")["DescribeTopicStatus"])
    assert every.status.code == Code.OK
    assert every.topic_message_type == MessageType.MESSAGE_TYPE_UNSPECIFIED
    missing = requests("nobody-made-this")["DescribeTopicStatus"]
    assert await admin_api.code("DescribeTopicStatus", missing) == Code.TOPIC_NOT_FOUND


async def test_a_route_is_that_of_the_remoting_port(node: Node, admin_api: AdminApi) -> None:
    request = requests()["GetTopicRoute"]
    request.protocol_type = "REMOTING"
    found = json.loads((await admin_api.call("GetTopicRoute", request)).topic_route_data)
    (broker,), (queues,) = found["brokerDatas"], found["queueDatas"]
    port = node.config.remoting.listen.rpartition(":")[2]
    assert broker["brokerAddrs"]["0"].endswith(f":{port}")
    assert (queues["brokerName"], queues["readQueueNums"]) == ("broker-a", 2)
    request.protocol_type = "grpc"
    status = (await admin_api.call("GetTopicRoute", request)).status
    assert (status.code, "QueryRoute" in status.message) == (Code.UNSUPPORTED, True)


# -- messages ----------------------------------------------------------------------------------


async def test_a_message_is_sent_and_found(admin_api: AdminApi, api: Api) -> None:
    request = requests()["AdminSendMessage"]
    request.tag, request.user_properties["colour"] = "blue", "dark"
    sent = await admin_api.call("AdminSendMessage", request)
    assert sent.status.code == Code.OK
    by_id = admin.ListMessageRequest(topic=resource("T"), message_id=sent.message_id)
    found = (await admin_api.call("QueryMessage", by_id)).messages
    by_key = await admin_api.call("QueryMessage", requests()["QueryMessage"])
    assert list(by_key.messages) == list(found)
    (one,) = found
    system = one.system_properties
    assert (one.body, one.user_properties["colour"]) == (b"x", "dark")
    assert (system.tag, list(system.keys), system.message_id) == ("blue", ["k"], sent.message_id)
    assert (await api.receive("g", timeout=10)).bodies == [b"x"]


async def test_a_message_is_found_by_its_place_in_the_log(
    node: Node, admin_api: AdminApi, api: Api
) -> None:
    entry = (await api.send(message(b"placed"))).entries[0]
    async with duolog.Client(f"127.0.0.1:{node.port}", timeout=10) as client:
        await client.admin.create_topic("U", 1)
    broker = broker_of(node)
    record = known(broker.store.lookups.by_unique_key("T", entry.message_id))
    by_place = admin.ListMessageRequest(topic=resource("T"), message_id=record.message_id)
    (found,) = (await admin_api.call("QueryMessage", by_place)).messages
    assert found.body == b"placed"
    by_place.topic.name = "U"  # whose reader need not be one of T
    assert await admin_api.code("QueryMessage", by_place) == Code.MESSAGE_NOT_FOUND
    for unknown in ("x", "01" + "A" * 32, "F" * 32):
        request = admin.ListMessageRequest(topic=resource("T"), message_id=unknown)
        assert await admin_api.code("QueryMessage", request) == Code.MESSAGE_NOT_FOUND, unknown


async def test_messages_are_chosen_by_time_and_queue(admin_api: AdminApi) -> None:
    sends, query = requests()["AdminSendMessage"], requests()["QueryMessage"]
    await admin_api.call("AdminSendMessage", sends)
    await admin_api.call("AdminSendMessage", sends)
    found = (await admin_api.call("QueryMessage", query)).messages
    assert sorted(one.system_properties.queue_id for one in found) == [0, 1]
    query.queue_id = 1
    (one,) = (await admin_api.call("QueryMessage", query)).messages
    assert one.system_properties.queue_id == 1
    query.end_timestamp.FromMilliseconds(1)
    assert not (await admin_api.call("QueryMessage", query)).messages
    query.broker_name = "elsewhere"
    assert await admin_api.code("QueryMessage", query) == Code.MESSAGE_NOT_FOUND


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"message_key": ""}, Code.BAD_REQUEST),
        ({"page_num": 2}, Code.BAD_REQUEST),
        ({"scroll_id": "x"}, Code.BAD_REQUEST),
        ({"max_message_nums": 33}, Code.BAD_REQUEST),
        ({"max_message_nums": -1}, Code.BAD_REQUEST),
        ({"subscription": "*"}, Code.UNSUPPORTED),
        ({"lite_topic": "l"}, Code.UNSUPPORTED),
    ],
)
async def test_other_queries_are_refused(
    admin_api: AdminApi, changes: dict[str, Any], code: Code
) -> None:
    request = admin.ListMessageRequest(topic=resource("T"), **{"message_key": "k", **changes})
    assert await admin_api.code("QueryMessage", request) == code


async def test_a_half_message_is_not_sent_by_an_operator(admin_api: AdminApi) -> None:
    request = requests()["AdminSendMessage"]
    request.system_properties.message_type = definition.TRANSACTION
    assert await admin_api.code("AdminSendMessage", request) == Code.BAD_REQUEST


async def test_a_message_keeps_its_id_where_another_node_becomes_the_master(
    admin_api: AdminApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which may have it already, and then does not store it again."""
    ids = list[str]()

    async def stored(sender: Any, topic: str, messages: list[Any], *more: Any) -> Never:
        ids.append(messages[0].system_properties.message_id)
        raise sdk.NotMaster("the next master knows what was stored")

    async def forwarded(forwarder: Any, kind: Any, request: Any, *more: Any) -> Any:
        ids.append(request.system_properties.message_id)
        return admin.AdminSendMessageResponse(status=OK)

    monkeypatch.setattr(Sender, "send", stored)
    monkeypatch.setattr(Forwarder, "unary", forwarded)
    assert await admin_api.code("AdminSendMessage", requests()["AdminSendMessage"]) == Code.OK
    assert len(ids) == 2
    assert ids[0] == ids[1] != ""


# -- groups ------------------------------------------------------------------------------------


async def test_what_is_leased_and_what_waits_is_counted(admin_api: AdminApi, api: Api) -> None:
    for number in range(4):
        await api.send(message(f"{number}".encode()))
    request = admin.DescribeGroupAccumulationRequest(group=resource("g"), topics=[resource("T")])
    before = await admin_api.call("DescribeGroupAccumulation", request)
    assert before.status.code == Code.OK
    assert not before.topic_accumulation  # the group has read nothing yet
    received = await api.receive("g", count=1, timeout=10)
    assert len(received.messages) == 1
    await until_recorded(api)
    reply = await admin_api.call("DescribeGroupAccumulation", request)
    whole, of_topic = reply.accumulation, reply.topic_accumulation["T"]
    assert whole == of_topic
    assert (whole.inflight_messages, whole.ready_messages, whole.accumulation) == (1, 3, 4)
    await api.ack("g", *received.handles)
    reply = await admin_api.call("DescribeGroupAccumulation", request)
    assert (reply.accumulation.inflight_messages, reply.accumulation.accumulation) == (0, 3)
    missing = admin.DescribeGroupAccumulationRequest(group=resource("nobody"))
    code = await admin_api.code("DescribeGroupAccumulation", missing)
    assert code == Code.CONSUMER_GROUP_NOT_FOUND


async def test_groups_and_topics_of_one_name_in_two_namespaces_are_told_apart(
    node: Node, admin_api: AdminApi, api: Api
) -> None:
    async with duolog.Client(f"127.0.0.1:{node.port}", timeout=10) as client:
        await client.admin.create_topic("eu%T", QUEUES)
        await client.admin.put_group("eu%g")
    await api.send(message(b"x"))
    for number in range(2):
        await api.send(message(b"%d" % number, topic="eu%T"))
    read = {("T", "g"), ("eu%T", "g"), ("eu%T", "eu%g")}
    for topic, group in sorted(read):
        await api.receive(group, topic)
    tables = broker_of(node).metadata.tables
    await until(lambda: read <= tables.offsets.keys())

    async def counted(namespace: str, *topics: Resource) -> tuple[int, dict[str, int]]:
        group = resource("g", namespace)
        request = admin.DescribeGroupAccumulationRequest(group=group, topics=topics)
        reply = await admin_api.call("DescribeGroupAccumulation", request)
        assert reply.status.code == Code.OK
        found = {name: one.accumulation for name, one in reply.topic_accumulation.items()}
        return reply.accumulation.accumulation, found

    here, there = resource("T"), resource("T", "eu")
    assert await counted("eu", there) == (2, {"T": 2})
    assert await counted("", here) == (3, {"T": 1})
    assert await counted("", there) == (3, {"T": 2})
    assert await counted("", here, there) == (3, {"T": 1, "eu%T": 2})


async def until_recorded(api: Api) -> None:
    """The group's progress in T is in the tables."""
    tables = broker_of(api.node).metadata.tables
    await until(lambda: ("T", "g") in tables.offsets)


async def test_a_group_is_set_back_and_forward(node: Node, admin_api: AdminApi, api: Api) -> None:
    await api.send(message(b"again"))
    received = await api.receive("g", timeout=10)
    await api.ack("g", *received.handles)
    request = requests()["ResetGroupOffset"]
    assert await admin_api.code("ResetGroupOffset", request) == Code.OK
    assert (await api.receive("g", timeout=10)).bodies == [b"again"]
    request.reset_timestamp.FromMilliseconds(int(time.time() * 1000) + 3_600_000)
    assert await admin_api.code("ResetGroupOffset", request) == Code.OK
    tables = broker_of(node).metadata.tables
    ends = {queue: broker_of(node).store.queue_range("T", queue)[1] for queue in (0, 1)}
    assert tables.offsets["T", "g"] == ends
    request.ClearField("reset_timestamp")
    assert await admin_api.code("ResetGroupOffset", request) == Code.BAD_REQUEST


async def test_a_time_that_is_none_is_refused(admin_api: AdminApi, api: Api) -> None:
    never = Timestamp(seconds=1 << 60)
    reset, query = requests()["ResetGroupOffset"], requests()["QueryMessage"]
    reset.reset_timestamp.CopyFrom(never)
    query.end_timestamp.CopyFrom(never)
    for name, request in (("ResetGroupOffset", reset), ("QueryMessage", query)):
        reply = await admin_api.call(name, request)
        assert reply.status.code == Code.BAD_REQUEST
        assert "_timestamp: " in reply.status.message
    sent = message()
    sent.system_properties.delivery_timestamp.CopyFrom(never)
    assert (await api.send(sent)).status.code == Code.ILLEGAL_DELIVERY_TIME


async def test_the_times_of_a_groups_queues(admin_api: AdminApi, api: Api) -> None:
    await api.send(message(b"1"))
    now = time.time() * 1000
    reply = await admin_api.call("QueryTimeSpan", requests()["QueryTimeSpan"])
    rows = {row.message_queue.id: row for row in reply.queue_time_span_list}
    assert sorted(rows) == [0, 1]
    (filled,) = [row for row in rows.values() if row.max_timestamp > 0]
    assert filled.min_timestamp == filled.max_timestamp
    assert abs(filled.min_timestamp - now) < 60_000
    assert filled.message_queue.broker.name == "broker-a"
    every = await admin_api.call("QueryTimeSpan", admin.QueryTimeSpanRequest(group=resource("g")))
    assert every.status.code == Code.OK
    assert not every.queue_time_span_list  # the group has read no topic


async def test_a_topic_that_is_deleted_meanwhile_has_no_times(
    admin_api: AdminApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def gone(*given: Any) -> None:
        """As of a topic that does not exist."""

    asked = requests()
    assert await admin_api.code("ResetGroupOffset", asked["ResetGroupOffset"]) == Code.OK
    monkeypatch.setattr(Verbs, "topic", gone)
    assert await admin_api.code("QueryTimeSpan", asked["QueryTimeSpan"]) == Code.TOPIC_NOT_FOUND
    reply = await admin_api.call("QueryTimeSpan", admin.QueryTimeSpanRequest(group=resource("g")))
    assert (reply.status.code, len(reply.queue_time_span_list)) == (Code.OK, 0)


@pytest.mark.parametrize("name", ["QueryTimeSpan", "DescribeGroupAccumulation"])
async def test_the_topics_that_a_request_names_are_few(admin_api: AdminApi, name: str) -> None:
    request = requests()[name]
    del request.topics[:]
    request.topics.extend(resource("T") for _ in range(TOPICS_MAX))
    assert await admin_api.code(name, request) == Code.OK
    request.topics.append(resource("T"))
    reply = await admin_api.call(name, request)
    assert (reply.status.code, "1001 topics" in reply.status.message) == (Code.BAD_REQUEST, True)


# -- consumers ---------------------------------------------------------------------------------


async def test_consumers_of_all_protocols_are_told(node: Node, admin_api: AdminApi) -> None:
    request = requests()["ListConsumerConnection"]
    assert not (await admin_api.call("ListConsumerConnection", request)).client_info
    one = Api(node, "c-grpc", x_mq_language="GO", x_mq_client_version="5.1.4")
    stream = await subscribed(one, "a || b")
    row = {"topic": "T", "subString": "a", "subVersion": 7, "expressionType": "TAG"}
    data = {"groupName": "g", "messageModel": "CLUSTERING", "subscriptionDataSet": [row]}
    beat = json.dumps({"clientID": "c-remoting", "consumerDataSet": [data]}).encode()
    async with (
        connected(node) as member,
        duolog.Client(f"127.0.0.1:{node.port}", timeout=10) as client,
        client.consumer("g", "T") as consumer,
    ):
        await member.ask(RequestCode.HEART_BEAT, {}, beat, language="JAVA", version=401)
        await until(lambda: broker_of(node).members("g") == 2)
        found = (await admin_api.call("ListConsumerConnection", request)).client_info
        rows = {row.client_id: row for row in found}
        assert len(rows) == 3
        described = await client.admin.group("g")
        assert (described.members, described.clients, described.consumers) == (1, 2, 3)
        assert described.client_topics == ("T",)
        (listed,) = (await client.admin.groups_page("g")).rows
        assert (listed.members, listed.clients) == (1, 2)
        grpc_, remoting = rows["c-grpc"], rows["c-remoting"]
        assert (grpc_.language, grpc_.version, grpc_.hostname) == ("GO", "5.1.4", "host-1")
        assert (grpc_.egress_ip, remoting.egress_ip) == ("127.0.0.1", "127.0.0.1")
        assert (remoting.language, remoting.version) == ("JAVA", "401")
        assert {row.message_model for row in found} == {admin.CLUSTERING}
        stats = await admin_api.call("GetProxyRuntimeStats", admin.GetProxyRuntimeStatsRequest())
        assert (stats.proxy_name, stats.consumers) == ("test", 3)
        assert stats.version == duolog.__version__
        await subscriptions(admin_api)
        assert consumer is not None
    stream.cancel()
    await one.close()
    missing = requests(group="nobody")["ListConsumerConnection"]
    code = await admin_api.code("ListConsumerConnection", missing)
    assert code == Code.CONSUMER_GROUP_NOT_FOUND


async def subscriptions(admin_api: AdminApi) -> None:
    """What the consumers of the test before read."""
    (row,) = (
        await admin_api.call("ListSubscription", requests()["ListSubscription"])
    ).subscription_info
    assert (row.group.name, row.topic.name) == ("g", "T")
    assert (row.online, row.subscription_consistency) == (True, False)
    assert row.HasField("last_update_timestamp")
    by_topic = requests()["ListSubscription"]
    by_topic.ClearField("group")
    by_group = requests()["ListSubscription"]
    by_group.ClearField("topic")
    for request in (by_topic, by_group):
        found = (await admin_api.call("ListSubscription", request)).subscription_info
        assert [(one.group.name, one.topic.name) for one in found] == [("g", "T")]
    reply = await admin_api.call("DescribeSubscription", requests()["DescribeSubscription"])
    told = {
        one.client_info.client_id: one.subscription_info.expression.expression
        for one in reply.client_subscription_info
    }
    assert len(told) == 3
    assert (told["c-grpc"], told["c-remoting"]) == ("a || b", "a")
    neither = admin.ListSubscriptionRequest()
    assert await admin_api.code("ListSubscription", neither) == Code.BAD_REQUEST


async def test_a_subscription_outlives_its_clients(admin_api: AdminApi, api: Api) -> None:
    await api.send(message(b"x"))
    await api.receive("g", timeout=10)
    await until_recorded(api)
    (row,) = (
        await admin_api.call("ListSubscription", requests()["ListSubscription"])
    ).subscription_info
    assert (row.online, row.subscription_consistency) == (False, True)
    reply = await admin_api.call("DescribeSubscription", requests()["DescribeSubscription"])
    assert not reply.client_subscription_info


async def test_others_have_their_turn_between_the_times_of_two_queues(
    admin_api: AdminApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turnbudget, "SLICE_SECONDS", 0.0)
    with turns_of(monkeypatch, groups, "time_span") as told:
        reply = await admin_api.call("QueryTimeSpan", requests()["QueryTimeSpan"])
    assert len(reply.queue_time_span_list) == len(set(told)) == 2


async def test_others_have_their_turn_while_what_clients_read_is_told(
    node: Node, admin_api: AdminApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turnbudget, "SLICE_SECONDS", 0.0)
    clients = [Api(node, f"c-{number}") for number in range(3)]
    streams = [await subscribed(client) for client in clients]
    with turns_of(monkeypatch, Consumers, "_info") as told:
        reply = await admin_api.call("DescribeSubscription", requests()["DescribeSubscription"])
    assert len(reply.client_subscription_info) == len(set(told)) == 3
    for stream, client in zip(streams, clients, strict=True):
        stream.cancel()
        await client.close()


async def test_what_consumers_say_is_bounded(
    node: Node, admin_api: AdminApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("duolog_server.compat.grpc.relay.clients.READS_BYTES_MAX", 200)
    first, second = Api(node, "c-1"), Api(node, "c-2")
    streams = [await subscribed(one) for one in (first, second)]
    request = requests()["DescribeSubscription"]
    reply = await admin_api.call("DescribeSubscription", request)
    assert [one.client_info.client_id for one in reply.client_subscription_info] == ["c-1"]
    await first.call("NotifyClientTermination", service.NotifyClientTerminationRequest())
    streams.append(await subscribed(second, "a"))
    reply = await admin_api.call("DescribeSubscription", request)
    assert [one.client_info.client_id for one in reply.client_subscription_info] == ["c-2"]
    for stream in streams:
        stream.cancel()
    await first.close()
    await second.close()


async def test_rates_are_told_over_a_minute(node: Node, admin_api: AdminApi, api: Api) -> None:
    await api.send(message(b"x"))
    broker: Broker = broker_of(node)
    stats = await admin_api.call("GetProxyRuntimeStats", admin.GetProxyRuntimeStatsRequest())
    assert broker.log.counters.messages_in == 1
    assert stats.in_tps > 0
    assert stats.out_tps == 0
    assert stats.producers == 1
