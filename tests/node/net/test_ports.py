"""Each port of a node speaks its own protocol, and no other's, whatever the caller proves."""

import asyncio
import base64
from pathlib import Path
from typing import Any

import duolog
import grpc
import grpc.aio
import pytest
from duolog import _frames as frames
from duolog.wire import duolog_pb2 as wire
from duolog.wire import duolog_pb2_grpc as stubs

from duolog_server.compat.grpc.protocol.stubs import METHODS, SERVICE_NAME
from duolog_server.node.replication.outgoing import HA_METHOD
from duolog_server.serve.server import Node
from tests import http2bytes as h2
from tests.keyfiles import access_files
from tests.node.replicas import broker_of
from tests.nodefixtures import StartNode

PASSWORD = "of a node with four ports"
BASIC = f"Basic {base64.b64encode(f'root:{PASSWORD}'.encode()).decode()}"
SECONDS = 20.0


@pytest.fixture
async def node(start_node: StartNode, tmp_path: Path) -> Node:
    listen = {"listen": "127.0.0.1:0"}
    return await start_node(
        access=access_files(tmp_path, PASSWORD),
        metrics=listen,
        ha=listen,
        broker_role="ASYNC_MASTER",
    )


def ports_of(node: Node) -> dict[str, int]:
    service = node._replication
    assert node.metrics is not None
    assert service is not None
    assert service.frames is not None
    return {
        "clients": node.port,
        "frames": broker_of(node).dialects.frames_port,
        "metrics": node.metrics.port,
        "replication": node.ha_port,
        "replication's frames": service.frames.port,
    }


async def is_served(kind: str, port: int, first: bytes, seconds: float) -> bool:
    """Whether a port answers a peer that says this, and nothing more, within so many seconds."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(first)
    found = b""
    try:
        async with asyncio.timeout(seconds):
            while not served(kind, found) and (data := await reader.read(1 << 16)):
                found += data
    except (TimeoutError, ConnectionError):
        pass
    writer.close()
    return served(kind, found)


async def first_words(node: Node) -> dict[str, bytes]:
    """What a client that may do everything says first to each kind of port."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{node.port}") as channel:
        route = stubs.AdminStub(channel).Route
        who = (("authorization", BASIC),)
        key = (await route(wire.RouteRequest(), metadata=who, timeout=SECONDS)).frames_key
    greeting = h2.greeting() + h2.frame(h2.SETTINGS, h2.ACK, 0)
    user = h2.field(b"authorization", BASIC.encode())
    block = h2.call_block(b"/duolog.v1.Access/WhoAmI", user)
    call = greeting + h2.begin(1, block) + h2.message(1, b"", h2.END_STREAM)
    ask = f"GET /metrics HTTP/1.1\r\nHost: a\r\nAuthorization: {BASIC}\r\n\r\n"
    return {"clients": call, "frames": frames.hello(key), "metrics": ask.encode()}


def served(kind: str, answer: bytes) -> bool:
    """Whether an answer is what a client of this kind asked for."""
    return {"clients": b"root", "frames": frames.NODE_MAGIC, "metrics": b"duolog_"}[kind] in answer


async def test_each_port_serves_the_methods_of_its_own_clients(node: Node) -> None:
    found = {
        (kind, name): await is_served(kind, port, first, SECONDS if kind == name else 0.5)
        for name, port in ports_of(node).items()
        for kind, first in (await first_words(node)).items()
    }
    assert {both for both, answered in found.items() if answered} == {
        (kind, kind) for kind in ("clients", "frames", "metrics")
    }
    async with duolog.Client(f"127.0.0.1:{node.port}", user="root", password=PASSWORD) as client:
        assert (await client.access.who_am_i()).name == "root"
    # What a port serves is decided by its own list, and not by who calls.
    services = wire.DESCRIPTOR.services_by_name.values()
    methods = [f"/duolog.v1.{s.name}/{m.name}" for s in services for m in s.methods]
    methods += [f"/{SERVICE_NAME}/{name}" for name in METHODS]
    how: Any = {"timeout": SECONDS, "metadata": (("authorization", BASIC),)}
    for port, paths in ((node.ha_port, methods), (node.port, [HA_METHOD])):
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            for path in paths:
                call: Any = channel.unary_unary(path)
                with pytest.raises(grpc.aio.AioRpcError) as refused:
                    await call(b"", **how)
                assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED, path
