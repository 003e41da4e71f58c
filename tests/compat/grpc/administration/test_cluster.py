"""The Admin service in a cluster: any node takes any call, and all replica groups count."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from duolog import _errors as sdk

from duolog_server.compat.grpc.administration.cluster import WholeCluster, the_first
from duolog_server.compat.grpc.protocol.codes import Refused, status
from duolog_server.compat.grpc.protocol.stubs import Code, admin
from duolog_server.serve.server import Node
from tests.compat.grpc.administration.api import AdminApi, requests
from tests.compat.grpc.api import Api, LocalCall, message, resource
from tests.compat.grpc.test_cluster import start_group
from tests.node.replicas import GROUPS, broker_of
from tests.nodefixtures import StartNode

KIND = admin.DescribeTopicStatusResponse


class Others:
    """Groups beside this one, with what each answers."""

    def __init__(self, answers: dict[str, Any]) -> None:
        self._answers = answers

    def other_groups(self) -> list[str]:
        return sorted(self._answers)

    async def unary(self, kind: type, request: Any, context: Any, group: str) -> Any:
        answer = self._answers[group]
        if isinstance(answer, BaseException):
            raise answer
        return answer


async def told(own: Any, **answers: Any) -> Any:
    """The answer of a cluster. own: of this group."""

    async def here() -> Any:
        if isinstance(own, BaseException):
            raise own
        return own

    broker = SimpleNamespace(group="a", replication=SimpleNamespace(not_master=lambda: ""))
    cluster = WholeCluster(broker, Others(answers))  # type: ignore[arg-type]
    request = admin.DescribeTopicStatusRequest()
    return await cluster.answer(KIND, request, LocalCall(), here, the_first)


async def test_what_one_group_does_not_know_another_may() -> None:
    found, unknown = KIND(status=status(Code.OK)), KIND(status=status(Code.TOPIC_NOT_FOUND))
    assert await told(sdk.UnknownTopic("no topic T"), b=found) is found
    assert await told(found, b=unknown) is found
    with pytest.raises(Refused, match="no topic T") as error:
        await told(sdk.UnknownTopic("no topic T"), b=unknown)
    assert error.value.code == Code.TOPIC_NOT_FOUND


async def test_a_group_that_does_not_answer_is_not_left_out() -> None:
    found, failed = KIND(status=status(Code.OK)), KIND(status=status(Code.TOO_MANY_REQUESTS, "x"))
    with pytest.raises(Refused, match="replica group b: x"):
        await told(found, b=failed)
    with pytest.raises(Refused, match="replica group b: no answer"):
        await told(found, b=sdk.Unavailable("no answer"))


async def test_a_call_concerns_all_replica_groups(nodes: dict[str, Node]) -> None:
    apis = [Api(node) for node in nodes.values()]
    for api in apis:
        await api.send(message(b"x", keys=["k"]))
    asked = AdminApi(nodes["broker-a"])
    found = (await asked.call("QueryMessage", requests()["QueryMessage"])).messages
    assert len(found) == 2
    assert await asked.code("ResetGroupOffset", requests()["ResetGroupOffset"]) == Code.OK
    request = admin.DescribeGroupAccumulationRequest(group=resource("g"), topics=[resource("T")])
    reply = await asked.call("DescribeGroupAccumulation", request)
    assert reply.accumulation.accumulation == reply.topic_accumulation["T"].accumulation == 2
    spans = (await asked.call("QueryTimeSpan", requests()["QueryTimeSpan"])).queue_time_span_list
    places = sorted((row.message_queue.broker.name, row.message_queue.id) for row in spans)
    assert places == [(group, queue) for group in GROUPS for queue in (0, 1)]
    rows = (await asked.call("ListSubscription", requests()["ListSubscription"])).subscription_info
    assert [(row.group.name, row.topic.name) for row in rows] == [("g", "T")]
    for api in (*apis, asked):
        await api.close()


async def test_a_message_goes_to_the_group_that_has_the_topic(nodes: dict[str, Node]) -> None:
    metadata = broker_of(nodes["broker-b"]).metadata
    await metadata.put_topic(metadata.new_topic("only-b", 1, 6))
    asked = AdminApi(nodes["broker-a"])
    request = requests("only-b")["AdminSendMessage"]
    assert await asked.code("AdminSendMessage", request) == Code.OK
    assert broker_of(nodes["broker-b"]).store.queue_range("only-b", 0)[1] == 1
    missing = requests("nowhere")["AdminSendMessage"]
    assert await asked.code("AdminSendMessage", missing) == Code.TOPIC_NOT_FOUND
    await asked.close()


async def test_a_slave_forwards_to_its_master(start_node: StartNode, tmp_path: Path) -> None:
    group = await start_group(start_node, tmp_path)
    master = group.the_master()
    slave = next(node for node in group.nodes if node is not master)
    asked = AdminApi(slave)
    assert await asked.code("AdminSendMessage", requests()["AdminSendMessage"]) == Code.OK
    assert await asked.code("ResetGroupOffset", requests()["ResetGroupOffset"]) == Code.OK
    request = admin.DescribeGroupAccumulationRequest(group=resource("g"))
    reply = await asked.call("DescribeGroupAccumulation", request)
    assert reply.accumulation.accumulation == 1
    stats = await asked.call("GetProxyRuntimeStats", admin.GetProxyRuntimeStatsRequest())
    assert stats.proxy_name == slave.config.node.name
    await asked.close()
