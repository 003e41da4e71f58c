"""Topics as mqadmin and the dashboard make, list and describe them."""

import json
from pathlib import Path
from typing import Any

import duolog
import pytest
from duolog.testing._ports import free_endpoint

from duolog_server.compat.remoting.codec.codes import RequestCode, ResponseCode
from duolog_server.compat.remoting.codec.command import Serialization
from duolog_server.serve.server import Node
from duolog_server.store.metadata import TopicConfig
from tests.compat.remoting.administration.support import queue, refused, told
from tests.compat.remoting.client import Remoting, connected
from tests.node.replicas import broker_of
from tests.nodefixtures import StartNode

PUT = RequestCode.UPDATE_AND_CREATE_TOPIC
FIELDS: dict[str, Any] = {
    "topic": "N", "defaultTopic": "TBW102", "readQueueNums": 8, "writeQueueNums": 8, "perm": 6,
    "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": "false",
}  # fmt: skip


async def test_a_topic_is_made_and_altered_by_the_native_verbs(
    node: Node, remoting: Remoting
) -> None:
    await told(remoting, PUT, **FIELDS, attributes="+message.type=FIFO")
    await told(remoting, PUT, **{**FIELDS, "readQueueNums": 9, "writeQueueNums": 9, "perm": 4})
    async with duolog.Client(f"127.0.0.1:{node.port}", timeout=10) as client:
        (found,) = await client.admin.topics(["N"])
    assert (found.queues, found.perm, found.message_type) == (9, 4, "FIFO")
    code, remark = await refused(remoting, PUT, **FIELDS)
    assert code == ResponseCode.SYSTEM_ERROR
    assert "the number can grow, not shrink" in remark
    config = await told(remoting, RequestCode.GET_TOPIC_CONFIG, topic="N")
    assert (config["readQueueNums"], config["writeQueueNums"], config["perm"]) == (9, 9, 4)
    assert config["attributes"] == {"message.type": "FIFO"}
    unknown = await refused(remoting, RequestCode.GET_TOPIC_CONFIG, topic="M")
    assert unknown[0] == ResponseCode.TOPIC_NOT_EXIST


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"writeQueueNums": 4}, "one number of queues"),
        ({"readQueueNums": 0, "writeQueueNums": 0}, "no number of queues"),
        ({"readQueueNums": 5000, "writeQueueNums": 5000}, "queues"),
        ({"perm": 0}, "READ is 4"),
        ({"perm": 9}, "perm"),
        ({"order": "true"}, "order configuration"),
        ({"topicSysFlag": 1}, "units"),
        (
            {"attributes": "+cleanup.policy=COMPACTION"},
            "cleanup.policy=COMPACTION is not supported",
        ),
        ({"attributes": "+message.type=ODD"}, "ODD"),
        ({"attributes": "-message.type"}, "of the form"),
        ({"topic": "DUOLOG_SYS_X"}, "reserved"),
        ({"topic": "a b"}, "a b"),
    ],
)
async def test_what_a_topic_cannot_be_is_told(
    node: Node, remoting: Remoting, more: dict[str, Any], why: str
) -> None:
    code, remark = await refused(remoting, PUT, **{**FIELDS, **more})
    assert code == ResponseCode.SYSTEM_ERROR
    assert why in remark
    assert set(broker_of(node).metadata.topics) == {"T"}


async def test_a_topic_is_deleted_with_its_route(remoting: Remoting) -> None:
    route = RequestCode.GET_ROUTEINFO_BY_TOPIC
    delete, forget = RequestCode.DELETE_TOPIC_IN_BROKER, RequestCode.DELETE_TOPIC_IN_NAMESRV
    code, remark = await refused(remoting, forget, topic="T")
    assert code == ResponseCode.SYSTEM_ERROR
    assert "delete the topic" in remark
    for _ in range(2):
        await told(remoting, delete, topic="T")
        await told(remoting, forget, topic="T")
    assert (await refused(remoting, route, topic="T"))[0] == ResponseCode.TOPIC_NOT_EXIST


async def test_how_far_queues_reach(remoting: Remoting) -> None:
    await remoting.send("T", b"one")
    await remoting.send("T", b"two")
    found = (await told(remoting, RequestCode.GET_TOPIC_STATS_INFO, topic="T"))["offsetTable"]
    first = found[queue(0)]
    assert (first["minOffset"], first["maxOffset"]) == (0, 2)
    assert first["lastUpdateTimestamp"] > 1_600_000_000_000
    assert found[queue(3)] == {"lastUpdateTimestamp": 0, "maxOffset": 0, "minOffset": 0}
    unknown = await refused(remoting, RequestCode.GET_TOPIC_STATS_INFO, topic="U")
    assert unknown[0] == ResponseCode.TOPIC_NOT_EXIST


async def test_a_group_is_found_by_its_retry_topic_before_there_is_one(
    node: Node, remoting: Remoting
) -> None:
    async with duolog.Client(f"127.0.0.1:{node.port}", timeout=10) as client:
        await client.admin.put_group("g")
    names = await told(remoting, RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
    assert names["topicList"] == ["%RETRY%g", "T"]
    stats = await told(remoting, RequestCode.GET_TOPIC_STATS_INFO, topic="%RETRY%g")
    assert list(stats["offsetTable"]) == [queue(0, "%RETRY%g")]
    route = await told(remoting, RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="%RETRY%g")
    assert route["queueDatas"][0]["readQueueNums"] == 1
    missing = await refused(remoting, RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="%RETRY%h")
    assert missing[0] == ResponseCode.TOPIC_NOT_EXIST


async def test_topics_are_listed_by_cluster_and_by_kind(node: Node, remoting: Remoting) -> None:
    cluster = node.config.node.cluster
    async with duolog.Client(f"127.0.0.1:{node.port}", timeout=10) as client:
        await client.admin.create_topic("RMQ_SYS_TRACE_TOPIC", 1)
    of_cluster = RequestCode.GET_TOPICS_BY_CLUSTER
    assert "T" in (await told(remoting, of_cluster, cluster=cluster))["topicList"]
    assert await told(remoting, of_cluster, cluster="other") == {"topicList": []}
    found = (await told(remoting, RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS))["topicList"]
    assert {cluster, "broker-a", "RMQ_SYS_TRACE_TOPIC"} == set(found)
    of_broker = await told(remoting, RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)
    assert of_broker == {"topicList": ["RMQ_SYS_TRACE_TOPIC"]}


async def test_who_reads_a_topic(node: Node, remoting: Remoting) -> None:
    code = RequestCode.QUERY_TOPIC_CONSUME_BY_WHO
    assert await told(remoting, code, topic="T") == {"groupList": []}
    await remoting.beat("c", "member", "T")
    async with duolog.Client(f"127.0.0.1:{node.port}", timeout=10) as client:
        await client.admin.reset_group("offsets", "T", duolog.Start.EARLIEST)
    assert await told(remoting, code, topic="T") == {"groupList": ["member", "offsets"]}
    assert await told(remoting, code, topic="U") == {"groupList": []}


async def test_twenty_thousand_topics_are_listed(node: Node, remoting: Remoting) -> None:
    names = [f"topic-{k:05d}" for k in range(20_000)]
    broker_of(node).metadata.topics.update((name, TopicConfig(name)) for name in names)
    found = await told(remoting, RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
    assert found["topicList"] == ["T", *names]
    assert broker_of(node).untaken.held_bytes == 0


async def test_an_answer_that_fits_no_frame_is_refused(
    node: Node, remoting: Remoting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("duolog_server.compat.remoting.administration.table.BODY_BYTES_MAX", 10)
    code, remark = await refused(remoting, RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
    assert code == ResponseCode.SYSTEM_ERROR
    assert "fits no frame" in remark
    assert broker_of(node).untaken.held_bytes == 0


async def test_changes_are_in_the_audit_log(start_node: StartNode, tmp_path: Path) -> None:
    file = tmp_path / "audit.log"
    node = await start_node(remoting={"listen": free_endpoint()}, audit={"file": str(file)})
    async with connected(node) as remoting:
        await told(remoting, PUT, **FIELDS)
        await refused(remoting, PUT, **{**FIELDS, "readQueueNums": 2, "writeQueueNums": 2})
        body = json.dumps({"groupName": "g", "consumeEnable": False}).encode()
        await told(remoting, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body)
        await remoting.beat("c", "g", "N")
        reset = {"topic": "N", "group": "g", "timestamp": -1, "isForce": "true"}
        await remoting.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset)
    await node.stop()
    made, failed, group, moved = map(json.loads, file.read_text().splitlines())
    assert (made["method"], made["resource"], made["source"]) == (
        "Admin/CreateTopic", "Topic:N", "127.0.0.1",
    )  # fmt: skip
    assert made["request"] == {"topic": "N", "queues": 8, "perm": 6}
    assert (failed["method"], failed["decision"]) == ("Admin/AlterTopic", "failed")
    assert (group["method"], group["resource"]) == ("Admin/PutGroup", "Group:g")
    assert group["request"] == {"group": "g", "consumeEnable": False}
    assert (moved["method"], moved["resource"]) == ("Admin/ResetGroup", "Group:g")
    assert moved["request"] == {"group": "g", "topic": "N", "time": -1}


async def test_a_list_of_topics_is_made(node: Node, remoting: Remoting) -> None:
    code = RequestCode.UPDATE_AND_CREATE_TOPIC_LIST
    rows = [
        {"topicName": "A", "readQueueNums": 2, "writeQueueNums": 2, "perm": 6},
        {"topicName": "B", "readQueueNums": 3, "writeQueueNums": 3,
         "attributes": {"+message.type": "DELAY"}},
    ]  # fmt: skip
    await told(remoting, code, json.dumps({"topicConfigList": rows}).encode())
    topics = broker_of(node).metadata.topics
    assert (topics["A"].queues, topics["B"].queues, topics["B"].message_type) == (2, 3, "DELAY")
    wrongs: tuple[Any, ...] = (
        [{"topicName": "C", "readQueueNums": "2", "writeQueueNums": 2}], [{"topicName": 7}], [1],
        [{"topicName": "C", "readQueueNums": 1, "writeQueueNums": 1, "attributes": [1]}],
        [{"topicName": "C", "readQueueNums": 1, "writeQueueNums": 2}], [{}] * 1001, {}, "x",
    )  # fmt: skip
    for wrong in wrongs:
        body = json.dumps({"topicConfigList": wrong}).encode()
        assert (await refused(remoting, code, body))[0] == ResponseCode.SYSTEM_ERROR
    assert "C" not in topics


@pytest.mark.parametrize("form", Serialization)
@pytest.mark.parametrize("attributes", [{"+a\ud800": "b"}, {"+message.type": "\ud800"}])
async def test_half_characters_of_a_list_are_refused(
    node: Node, form: Serialization, attributes: dict[str, str]
) -> None:
    row = {"topicName": "C", "readQueueNums": 1, "writeQueueNums": 1, "attributes": attributes}
    body = json.dumps({"topicConfigList": [row]}).encode()
    async with connected(node, form) as remoting:
        code, remark = await refused(remoting, RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body)
        assert code == ResponseCode.SYSTEM_ERROR
        assert "characters that cannot be shown" in remark
        assert (await remoting.send("T", b"x")).code == 0, "the node goes on"


async def test_what_a_group_reads(node: Node, remoting: Remoting) -> None:
    topics, one = RequestCode.QUERY_TOPICS_BY_CONSUMER, RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER
    assert await told(remoting, topics, group="g") == {"topicList": []}
    assert await told(remoting, one, group="g", topic="T") == {"group": "g", "topic": "T"}
    async with duolog.Client(f"127.0.0.1:{node.port}", timeout=10) as client:
        await client.admin.reset_group("g", "T", duolog.Start.EARLIEST)
    await remoting.beat("c", "g", "T", "a || b")
    assert await told(remoting, topics, group="g") == {"topicList": ["T"]}
    found = await told(remoting, one, group="g", topic="T")
    assert found["subscriptionData"]["tagsSet"] == ["a", "b"]


async def test_the_rate_of_a_topic(remoting: Remoting) -> None:
    code = RequestCode.GET_TOPIC_STATS_INFO
    assert (await told(remoting, code, topic="T"))["topicPutTps"] == 0.0
    await remoting.send("T", b"one")
    assert (await told(remoting, code, topic="T"))["topicPutTps"] > 0
