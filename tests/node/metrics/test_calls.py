"""How long calls take: by method, code and transport."""

import asyncio
from pathlib import Path

import duolog
import pytest
from duolog import _errors as sdk

from duolog_server.serve.server import Node
from tests.compat.grpc.api import Api, message
from tests.keyfiles import access_files
from tests.node.metrics.test_figures import METRICS, in_sync, of
from tests.node.replicas import Group, broker_of
from tests.nodefixtures import StartNode
from tests.until import until

CALLS, RPCS = "duolog_call_seconds_count", "rocketmq_rpc_latency_count"


@pytest.fixture
async def node(start_node: StartNode) -> Node:
    return await start_node(metrics=METRICS)


@pytest.mark.parametrize("transport", ["frames", "grpc"])
async def test_calls_of_the_sdk_are_timed_by_method_and_code(
    start_node: StartNode, transport: str
) -> None:
    frames = "auto" if transport == "frames" else ""
    node = await start_node(metrics=METRICS, frames_listen=frames)
    async with duolog.Client(f"127.0.0.1:{node.port}", timeout=10) as client:
        await client.admin.create_topic("T", 1)
        with pytest.raises(sdk.UnknownTopic):
            await client.admin.delete_topic("absent")
        await client.pull("T", 0, 0)
    found = await of(node)
    assert found.value(CALLS, method="Admin/CreateTopic", code="OK") == 1
    assert found.value(CALLS, method="Admin/DeleteTopic", code="NOT_FOUND") == 1
    assert found.rows(CALLS, method="Admin/DeleteTopic", code="OK") == {}
    assert found.value(CALLS, method="Messages/Pull", long_polling="false") >= 1
    total = found.value("duolog_call_seconds_sum", method="Admin/CreateTopic")
    assert 0 < total < 60


async def test_abandoned_calls_are_counted_apart(
    node: Node, client: duolog.Client, producer: duolog.Producer
) -> None:
    pulling = asyncio.ensure_future(client.pull("T", 0, 0, wait=20))
    await until(lambda: broker_of(node).waiting_calls.count == 1)
    pulling.cancel()
    times = broker_of(node).core.traffic.calls.table
    await until(lambda: ("Messages/Pull", "CANCELLED", True) in times)
    for _ in range(3):
        await producer.send("T", b"x")
    with pytest.raises(sdk.DuologError):
        await producer.send("T", b"x", delay=10 * 86_400)
    found = await of(node)
    assert found.value("duolog_append_wait_seconds_count") == 0
    assert found.value("duolog_append_failures_total", status="MESSAGE_ILLEGAL") == 1


async def test_the_wait_for_a_slave_is_timed(start_node: StartNode, tmp_path: Path) -> None:
    group = Group(start_node, tmp_path)
    master = await group.start_master(metrics=METRICS)
    slave = await group.start_slave()
    await in_sync(master)
    async with group.client(master, slave) as client:
        await client.admin.create_topic("T", 1)
        async with client.producer() as producer:
            await producer.send("T", b"x")
    found = await of(master)
    assert found.value("duolog_append_wait_seconds_count") == 1
    assert found.value("duolog_append_wait_seconds_sum") > 0


@pytest.mark.parametrize("users", [False, True])
async def test_calls_of_rocketmq_are_timed_by_code(
    start_node: StartNode, tmp_path: Path, users: bool
) -> None:
    access = access_files(tmp_path, "secret") if users else None
    node = await start_node(metrics=METRICS, access=access)
    api = Api(node)
    try:
        if not users:
            async with duolog.Client(f"127.0.0.1:{node.port}", timeout=10) as client:
                await client.admin.create_topic("T", 1)
        await api.send(message(b"12345"))
        await api.receive("g", poll_ms=5000, timeout=20)
    finally:
        await api.close()
    times = broker_of(node).core.traffic.rpcs.table
    keys = {(request, waits, result) for request, _, waits, result in times}
    assert keys == {("send_message", False, "success"), ("receive_message", True, "success")}
    codes = {request: code for request, code, _, _ in times}
    assert set(codes.values()) == {"unauthorized" if users else "ok"}
    if not users:
        found = await of(node)
        assert found.value(RPCS, request_code="send_message", protocol_type="grpc") == 1
        bounds = {
            dict(key[1])["le"]
            for key in found.rows("rocketmq_rpc_latency_bucket", request_code="send_message")
        }
        assert {"1.0", "3000.0", "+Inf"} <= bounds


async def test_a_node_without_metrics_measures_no_calls(start_node: StartNode) -> None:
    node = await start_node()
    async with duolog.Client(f"127.0.0.1:{node.port}", timeout=10) as client:
        await client.admin.create_topic("T", 1)
    assert broker_of(node).core.traffic.calls.table == {}
