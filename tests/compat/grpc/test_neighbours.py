"""On a node without users, only nodes of the cluster say for whom they call."""

import asyncio
import socket
from pathlib import Path
from typing import Any

import duolog
import pytest

from duolog_server.compat.grpc.protocol.stubs import Code, service
from duolog_server.compat.grpc.relay.nodes import Neighbours
from duolog_server.node.identity.quotas.quotas import Who
from duolog_server.serve.server import Node
from tests.compat.grpc.api import Api, message, resource
from tests.node.replicas import Group, broker_of, caught_up, following
from tests.nodefixtures import StartNode
from tests.until import until

ELSEWHERE = "192.0.2.1:8081"  # of a node that is not on this machine


def forging(node: Node, address: str) -> Api:
    headers = {"x_duolog_forwarded": "plain", "x_duolog_peer": f"ipv4:{address}:1"}
    return Api(node, f"forger@{address}", **headers)


async def test_a_forged_address_escapes_no_quota(node: Node, api: Api) -> None:
    broker_of(node).advertised = ELSEWHERE
    async with duolog.Client(f"127.0.0.1:{node.port}", timeout=10) as client:
        await client.admin.put_quota("Client:127.0.0.1", messages_in=1, burst_ms=1)
    codes = []
    for address in ("10.0.0.1", "10.0.0.2"):
        forger = forging(node, address)
        reply = await forger.send(*(message(b"%d" % number) for number in range(20)))
        codes.append(reply.status.code)
        await forger.close()
    assert codes == [Code.OK, Code.TOO_MANY_REQUESTS]


async def test_a_forged_address_counts_where_its_stream_comes_from(node: Node, api: Api) -> None:
    broker_of(node).advertised = ELSEWHERE
    connections = broker_of(node).core.throttle.connections
    forger = forging(node, "10.0.0.1")
    settings = service.TelemetryCommand()
    settings.settings.publishing.topics.append(resource("T"))
    stream: Any = forger.stub.Telemetry(metadata=forger.metadata)
    await stream.write(settings)
    assert (await stream.read()).status.code == Code.OK
    assert connections.of_address("127.0.0.1") == 1
    stream.cancel()
    await until(lambda: not connections.of_address("127.0.0.1"))
    await forger.close()


async def test_a_node_is_believed_about_its_client(start_node: StartNode, tmp_path: Path) -> None:
    group = Group(start_node, tmp_path)
    master = await group.start_master("ASYNC_MASTER")
    slave = await group.start_slave()
    metadata = broker_of(master).metadata
    await metadata.put_topic(metadata.new_topic("T", 1, 6))
    await following(slave)
    await caught_up(master, slave)
    broker_of(master).advertised = ELSEWHERE  # it knows 127.0.0.1 by the slave that follows it
    assert Neighbours(broker_of(master)).has("ipv4:127.0.0.1:5")
    assert not Neighbours(broker_of(master)).has("ipv4:127.0.0.2:5")
    quotas = broker_of(master).core.throttle.quotas.incoming
    await metadata.change(
        {"op": "quota", "quota": {"subject": "Client:10.0.0.1", "messages_in": 1, "burst_ms": 1}}
    )
    forwarded = forging(master, "10.0.0.1")
    reply = await forwarded.send(*(message(b"%d" % number) for number in range(20)))
    assert reply.status.code == Code.OK
    now = broker_of(master).times.mono_ms()
    assert quotas.wait(Who("", "10.0.0.1"), "T", now) is not None
    await forwarded.close()


@pytest.mark.parametrize(
    ("host", "peer"),
    [
        ("[2001:DB8:0::0007]", "ipv6:%5B2001:db8::7%5D:1"),
        ("[::ffff:10.0.0.7]", "ipv4:10.0.0.7:1"),
    ],
)
async def test_a_node_is_known_however_its_address_is_written(
    node: Node, host: str, peer: str
) -> None:
    broker_of(node).advertised = f"{host}:8081"
    assert Neighbours(broker_of(node)).has(peer)


async def test_names_of_hosts_are_looked_up(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"n1.example": ["10.0.0.7", "::ffff:10.0.0.8"]}

    async def look_up(host: str, port: None, *, type: socket.SocketKind) -> list[object]:
        if host not in found:
            raise socket.gaierror(f"{host} is not known")
        return [(socket.AF_INET, type, 6, "", (address, 0)) for address in found[host]]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", look_up)
    monkeypatch.setattr("duolog_server.compat.grpc.relay.nodes.RESOLVE_SECONDS", 0.01)
    broker_of(node).advertised = "n1.example:8081"
    neighbours = Neighbours(broker_of(node))
    assert not neighbours.has("ipv4:10.0.0.7:1")
    running = asyncio.create_task(neighbours.run())
    await until(lambda: neighbours.has("ipv4:10.0.0.7:1"))
    assert neighbours.has("ipv4:10.0.0.8:1")
    assert neighbours.has("ipv6:%5B::ffff:10.0.0.8%5D:1")
    found.clear()  # while nobody can tell, they are what they were
    assert await neighbours._addresses("n1.example") == {"10.0.0.7", "10.0.0.8"}
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
