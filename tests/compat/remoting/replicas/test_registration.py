"""RocketMQ's slaves register with a node, and learn the addresses of their master."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import duolog
import pytest
from duolog.testing._ports import free_endpoint

from duolog_server.compat.remoting.codec.codes import RequestCode, ResponseCode
from duolog_server.compat.remoting.codec.command import Command
from duolog_server.node.election.memoryregistry import MemoryRegistry
from duolog_server.serve.server import Node
from tests.compat.remoting.client import Remoting, connected
from tests.compat.remoting.replicas.sections import slaves
from tests.compat.remoting.replicas.test_tables import TOPICS
from tests.node.replicas import WAIT_SECONDS, Elected
from tests.nodefixtures import StartNode
from tests.until import until

FIELDS = {
    "brokerName": "broker-a",
    "brokerAddr": "127.0.0.1:10911",
    "clusterName": "DefaultCluster",
    "haServerAddr": "127.0.0.1:10912",
    "brokerId": 1,
    "compressed": "false",
    "bodyCrc32": 1,
}


async def register(remoting: Remoting, **fields: Any) -> Command:
    return await remoting.ask(RequestCode.REGISTER_BROKER, {**FIELDS, **fields}, b'{"x":1}')


async def test_a_slave_learns_where_its_master_is(start_node: StartNode) -> None:
    how = slaves()
    node = await start_node(**how)
    async with connected(node) as remoting:
        answer = await register(remoting)
        assert answer.fields == {
            "haServerAddr": how["rocketmq_slaves"]["listen"],
            "masterAddr": how["remoting"]["listen"],
        }
        left = await remoting.ask(RequestCode.UNREGISTER_BROKER, FIELDS)
        assert left.code == ResponseCode.SUCCESS


async def test_advertised_addresses_are_told(start_node: StartNode) -> None:
    how = slaves()
    how["remoting"]["advertise"] = "logs.example.org:9876"
    how["rocketmq_slaves"]["advertise"] = "logs.example.org:10912"
    async with connected(await start_node(**how)) as remoting:
        answer = await register(remoting)
    assert answer.fields["haServerAddr"] == "logs.example.org:10912"
    assert answer.fields["masterAddr"] == "logs.example.org:9876"


@pytest.mark.parametrize(
    ("fields", "code", "remark"),
    [
        ({"brokerName": "other"}, ResponseCode.SYSTEM_ERROR, "set brokerName to the name of the"),
        ({"brokerId": 0}, ResponseCode.SYSTEM_ERROR, "only slaves may register"),
        ({"brokerId": "x"}, ResponseCode.SYSTEM_ERROR, "brokerId is not a number"),
    ],
)
async def test_who_is_no_slave_of_this_group_is_refused(
    start_node: StartNode, fields: dict[str, Any], code: ResponseCode, remark: str
) -> None:
    async with connected(await start_node(**slaves())) as remoting:
        answer = await register(remoting, **fields)
    assert (answer.code, remark in answer.remark) == (code, True), answer.remark


async def test_an_address_that_is_not_allowed_learns_nothing(start_node: StartNode) -> None:
    how = slaves()
    how["rocketmq_slaves"]["allow"] = ["10.0.0.7"]
    async with connected(await start_node(**how)) as remoting:
        answers = [await register(remoting)]
        answers.append(await remoting.ask(RequestCode.UNREGISTER_BROKER, FIELDS))
    for answer in answers:
        assert answer.code == ResponseCode.NO_PERMISSION
        assert "127.0.0.1 is not in rocketmq_slaves.allow" in answer.remark


async def test_a_registered_slave_is_in_no_route(start_node: StartNode) -> None:
    node = await start_node(**slaves())
    async with duolog.Client(f"127.0.0.1:{node.port}", timeout=10) as client:
        await client.admin.create_topic("T", 1)
    async with connected(node) as remoting:
        await register(remoting)
        route = await remoting.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"})
    assert b"10911" not in route.body


async def test_topics_are_asked_for_two_ports_below(start_node: StartNode) -> None:
    """As RocketMQ's slaves do (fastListenPort)."""
    node = await start_node(**slaves())
    assert node.remoting is not None
    host, _, port = node.config.remoting.listen.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port) - 2)
    writer.write(Command(TOPICS, 7).frame())
    async with asyncio.timeout(WAIT_SECONDS):
        size = int.from_bytes(await reader.readexactly(4), "big")
        assert b"topicConfigTable" in await reader.readexactly(size)
    writer.close()


@pytest.fixture
async def group(start_node: StartNode, tmp_path: Path) -> Elected:
    """Three nodes on addresses of their own, with the same ports, as on three machines."""
    registry, how = MemoryRegistry(), slaves()
    client_port = free_endpoint().rpartition(":")[2]
    ports = {key: how[key]["listen"].rpartition(":")[2] for key in how}
    nodes: list[Node] = [
        await start_node(
            tmp_path / name,
            f"127.0.0.{number}:{client_port}",
            remoting={"listen": f"127.0.0.{number}:{ports['remoting']}"},
            rocketmq_slaves={
                "listen": f"127.0.0.{number}:{ports['rocketmq_slaves']}",
                "allow": ["127.0.0.0/8"],
            },
            ha={"listen": free_endpoint()},
            name=name,
            registry=registry,
            broker_role="AUTO",
        )
        for number, name in enumerate("abc", 1)
    ]
    made = Elected(nodes)
    await until(made.is_whole)
    return made


async def test_every_node_names_the_master_and_the_next_one(group: Elected) -> None:
    old = group.the_master()
    endpoints = [node.config.node.listen for node in group.nodes]
    async with duolog.Client(endpoints, timeout=WAIT_SECONDS) as client, AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(connected(node)) for node in group.nodes]

        async def told() -> set[tuple[str, str]]:
            answers = [await register(remoting) for remoting in clients]
            return {(one.fields["haServerAddr"], one.fields["masterAddr"]) for one in answers}

        def of(node: Node) -> tuple[str, str]:
            return node.config.rocketmq_slaves.listen, node.config.remoting.listen

        assert await told() == {of(old)}
        for node, remoting in zip(group.nodes, clients, strict=True):
            code = (await remoting.ask(TOPICS)).code
            assert (code == ResponseCode.SUCCESS) == (node is old), "the master alone knows"
        new = await group.switch(client)
        async with asyncio.timeout(WAIT_SECONDS):
            while await told() != {of(new)}:
                await asyncio.sleep(0.05)
