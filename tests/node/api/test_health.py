"""The health of a node: what is told, to how many at a time, and to whom it makes no difference."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from duolog_server.node.api import health
from duolog_server.node.api.health import HealthService
from duolog_server.serve.server import Node
from tests import http2bytes as h2
from tests.grpccaller import WATCH, Caller
from tests.nodefixtures import StartNode

WAIT_SECONDS = 20.0
Response = health_pb2.HealthCheckResponse
Request = health_pb2.HealthCheckRequest


def endpoint(node: Node) -> str:
    return f"127.0.0.1:{node.port}"


class Context:
    """A call. deaf: it takes nothing."""

    def __init__(self, deaf: bool = False) -> None:
        self.told: list[Any] = []
        self.refused: tuple[grpc.StatusCode, str] | None = None
        self._deaf = deaf

    async def write(self, answer: Any) -> None:
        if self._deaf:
            await asyncio.Event().wait()
        self.told.append(answer.status)

    async def abort(self, code: grpc.StatusCode, words: str) -> None:
        self.refused = code, words
        raise grpc.aio.AbortError


@pytest.fixture
async def watch() -> AsyncIterator[Any]:
    """Begins a watch: its context, once it waits or is over, and its task."""
    tasks: list[asyncio.Task[None]] = []

    async def begin(
        service: HealthService, name: str = "", deaf: bool = False
    ) -> tuple[Context, asyncio.Task[None]]:
        context = Context(deaf)
        watching: Any = service.Watch(Request(service=name), context)  # type: ignore[arg-type]
        tasks.append(asyncio.ensure_future(watching))
        await asyncio.sleep(0)
        return context, tasks[-1]

    yield begin
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_watch_is_told_of_changes_alone_and_holds_up_nobody(watch: Any) -> None:
    service = HealthService()
    node, _ = await watch(service)
    topics, _ = await watch(service, "topics")
    assert (node.told, topics.told) == ([Response.SERVING], [Response.SERVICE_UNKNOWN])
    service.serve(["topics"])
    await asyncio.sleep(0)
    assert (node.told[1:], topics.told[1:]) == ([], [Response.SERVING])
    service.end()
    await asyncio.sleep(0)
    assert (node.told[1:], topics.told[2:]) == ([Response.NOT_SERVING], [Response.NOT_SERVING])
    service = HealthService()
    await watch(service, deaf=True)
    other, _ = await watch(service)
    service.end()
    await asyncio.sleep(0)
    assert other.told == [Response.SERVING, Response.NOT_SERVING]


async def test_watches_are_limited_and_one_that_ends_makes_room(
    watch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "WATCHES_MAX", 2)
    service = HealthService()
    (_, first), (_, _) = await watch(service), await watch(service, deaf=True)
    third, over = await watch(service)
    assert over.done()
    assert third.refused == (
        grpc.StatusCode.UNIMPLEMENTED,
        "this node already has its maximum of 2 watches of health: call Check instead",
    )
    assert service.watches == 2
    first.cancel()
    await asyncio.wait((first,))
    again, over = await watch(service)
    assert not over.done()
    assert again.told == [Response.SERVING]


async def test_an_unknown_service_is_named_and_a_node_stops_beside_a_deaf_watch(node: Node) -> None:
    async with grpc.aio.insecure_channel(endpoint(node)) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await health_pb2_grpc.HealthStub(channel).Check(Request(service="tpoics"))
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    assert caught.value.details() == 'this node has no service "tpoics"'
    caller = await asyncio.to_thread(Caller, endpoint(node), 0)
    call = h2.begin(1, h2.call_block(WATCH)) + h2.message(1, b"", h2.END_STREAM)
    await asyncio.to_thread(caller.send, call)
    async with asyncio.timeout(WAIT_SECONDS):
        while not node._health.watches:
            await asyncio.sleep(0.01)
        await node.stop()
    caller.close()


async def test_a_client_that_watches_uses_a_node_that_has_no_room_for_its_watch(
    start_node: StartNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a load balancer of gRPC does: any other error would be a node that is not served."""
    monkeypatch.setattr(health, "WATCHES_MAX", 1)
    node = await start_node()
    watching = {
        "loadBalancingConfig": [{"round_robin": {}}],
        "healthCheckConfig": {"serviceName": "duolog.v1.Messages"},
    }
    options = [("grpc.service_config", json.dumps(watching))]
    async with grpc.aio.insecure_channel(endpoint(node)) as first:
        held = health_pb2_grpc.HealthStub(first).Watch(Request())
        await held.read()
        async with grpc.aio.insecure_channel(endpoint(node), options) as second:
            check = health_pb2_grpc.HealthStub(second).Check
            reply = await check(Request(), timeout=WAIT_SECONDS, wait_for_ready=True)
        assert reply.status == Response.SERVING
        held.cancel()
