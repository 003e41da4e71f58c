"""Services of a node are found by name: no method is registered, and all of them answer."""

from collections.abc import Sequence
from typing import Any, cast

import duolog
import grpc
import grpc.aio
from duolog.wire import duolog_pb2_grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from node.api.byname import by_name
from node.api.groups import GroupsService
from node.server import Node


class Added:
    """A server that notes what is added to it."""

    def __init__(self) -> None:
        self.generic: list[grpc.GenericRpcHandler] = []
        self.registered: list[str] = []

    def add_generic_rpc_handlers(self, handlers: Sequence[grpc.GenericRpcHandler]) -> None:
        self.generic += handlers

    def add_registered_method_handlers(self, service: str, handlers: Any) -> None:
        self.registered.append(service)


def test_generated_code_registers_no_method() -> None:
    added = Added()
    servicer = cast(GroupsService, object.__new__(duolog_pb2_grpc.GroupsServicer))
    duolog_pb2_grpc.add_GroupsServicer_to_server(servicer, cast(grpc.aio.Server, added))
    assert (len(added.generic), added.registered) == (1, ["duolog.v1.Groups"])
    duolog_pb2_grpc.add_GroupsServicer_to_server(servicer, by_name(cast(grpc.aio.Server, added)))
    assert (len(added.generic), added.registered) == (2, ["duolog.v1.Groups"])


async def test_every_service_of_a_node_is_found(node: Node, client: duolog.Client) -> None:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{node.port}") as channel:
        health = health_pb2_grpc.HealthStub(channel)
        for name in ("", "duolog.v1.Messages", "duolog.v1.Groups", "duolog.v1.Admin"):
            reply = await health.Check(health_pb2.HealthCheckRequest(service=name), timeout=5)
            assert reply.status == health_pb2.HealthCheckResponse.SERVING
    async with client.producer() as producer:
        await producer.send("T", b"found")
    assert (await client.admin.node_status()).name == "test"
