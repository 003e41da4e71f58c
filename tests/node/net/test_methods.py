"""Services of a node are found by name: no method is registered, and all of them answer."""

from types import SimpleNamespace
from typing import cast

import duolog
import grpc
import grpc.aio
import pytest
from duolog.wire import duolog_pb2_grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from duolog_server.node.api.groups import GroupsService
from duolog_server.node.net.methods import Methods
from duolog_server.serve.server import Node
from tests.nodefixtures import StartNode


def test_generated_code_is_collected_by_service_and_by_path() -> None:
    methods = Methods()
    duolog_pb2_grpc.add_GroupsServicer_to_server(
        cast(GroupsService, object.__new__(duolog_pb2_grpc.GroupsServicer)), methods.as_server()
    )
    (service,) = methods.generic
    assert len(methods.by_path) == 7
    for path, method in methods.by_path.items():
        called = cast(grpc.HandlerCallDetails, SimpleNamespace(method=path))
        found: object = service.service(called)
        assert found is method


async def test_a_node_registers_no_method(
    start_node: StartNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    registered: list[str] = []
    monkeypatch.setattr(
        grpc.aio.Server,
        "add_registered_method_handlers",
        lambda _, service, methods: registered.append(service),
    )
    await start_node()
    assert registered == []


async def test_every_service_of_a_node_is_found(
    node: Node, client: duolog.Client, producer: duolog.Producer
) -> None:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{node.port}") as channel:
        health = health_pb2_grpc.HealthStub(channel)
        for name in ("", "duolog.v1.Messages", "duolog.v1.Groups", "duolog.v1.Admin"):
            reply = await health.Check(health_pb2.HealthCheckRequest(service=name), timeout=5)
            assert reply.status == health_pb2.HealthCheckResponse.SERVING
    await producer.send("T", b"found")
    assert (await client.admin.node_status()).name == "test"
