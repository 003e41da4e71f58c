"""RocketMQ's Admin service about Apache's clients: what they say of themselves and answer."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import duolog.sync
import grpc
import pytest

from node.rocketmq.words.adminstubs import admin, rpc
from node.rocketmq.words.stubs import Code, Resource
from tests.conformance.conftest import SMALL
from tests.conformance.test_other_clients import Stream, go, java
from tests.process.support import NodeProcess

pytestmark = [pytest.mark.process, pytest.mark.long, pytest.mark.timeout(400)]

GROUP, TOPIC = Resource(name="g"), Resource(name="S")


@pytest.mark.parametrize(
    ("command", "program", "language", "frame"),
    [(java, "Streaming.java", "JAVA", "java.base"), (go, "streaming.go", "GO", "goroutine")],
    ids=["java", "go"],
)
def test_a_client_answers_an_operator(
    command: Callable[[Path, str], list[str]],
    program: str,
    language: str,
    frame: str,
    tmp_path: Path,
) -> None:
    node = NodeProcess(tmp_path / "data", *SMALL)
    node.start()
    with duolog.sync.Client(node.endpoint, timeout=15) as client:
        client.admin.create_topic("S", 1)
    with (
        Stream(command(tmp_path, program), node.endpoint, tmp_path),
        grpc.insecure_channel(node.endpoint) as channel,
    ):
        stub = cast(Any, rpc.AdminStub(cast(Any, channel)))
        (row,) = stub.DescribeSubscription(
            admin.DescribeSubscriptionRequest(group=GROUP)
        ).client_subscription_info
        assert (row.client_info.language, row.client_info.egress_ip) == (language, "127.0.0.1")
        read = row.subscription_info
        assert (read.topic.name, read.expression.expression, read.online) == ("S", "*", True)
        sent = stub.AdminSendMessage(admin.AdminSendMessageRequest(topic=TOPIC, body=b"0"))
        client_id = row.client_info.client_id
        trace = stub.PrintThreadStackTrace(
            admin.PrintThreadStackTraceRequest(group=GROUP, client_id=client_id)
        )
        assert trace.status.code == Code.OK, trace.status
        assert frame in trace.thread_stack_trace
        verified = stub.VerifyMessage(
            admin.VerifyMessageRequest(
                group=GROUP, topic=TOPIC, client_id=client_id, message_id=sent.message_id
            )
        )
        assert verified.status.code == Code.OK, verified.status
        stats = stub.GetProxyRuntimeStats(admin.GetProxyRuntimeStatsRequest())
        assert (stats.producers, stats.consumers) == (1, 1)
        assert stats.in_tps > 0
    assert node.stop() == 0
