"""The remoting port of a node: when it opens, its routes, what it refuses, its bounds, its end."""

import asyncio
import json
from typing import Any

import pytest
from duolog.testing._ports import free_endpoint

from duolog_server.compat.remoting.codec.codes import RequestCode, ResponseCode
from duolog_server.compat.remoting.replicas import TABLES
from duolog_server.node.runtime.config import Config, ConfigError
from duolog_server.serve.server import Node
from tests.compat.remoting.client import SENT_ONLY, Remoting, connected
from tests.compat.remoting.requests import WITHOUT_FIELDS
from tests.known import known
from tests.node.replicas import broker_of
from tests.nodefixtures import StartNode

# A stop that waits for no call is over before a held pull ends, and long before the grace of calls.
STOP_SECONDS_MAX, HOLD_MS, GRACE_SECONDS = 15.0, 20_000, 100.0


def config(**sections: Any) -> Config:
    return Config.model_validate(sections)


async def test_a_node_opens_no_port_unless_asked(start_node: StartNode) -> None:
    assert (await start_node()).remoting is None


def test_a_port_is_used_once_and_an_address_needs_a_port() -> None:
    with pytest.raises(ConfigError, match="the same port"):
        config(node={"listen": "127.0.0.1:9876"}, remoting={"listen": "127.0.0.1:9876"}).check()
    with pytest.raises(ConfigError, match=r"remoting\.advertise needs"):
        config(remoting={"advertise": "10.0.0.1:9876"}).check()


# -- routes ------------------------------------------------------------------------------------


async def test_a_route_names_this_node_as_master(node: Node, remoting: Remoting) -> None:
    fields = {"topic": "T", "acceptStandardJsonOnly": "true"}
    found = await remoting.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, fields)
    route = json.loads(found.body)
    (broker,) = route["brokerDatas"]
    assert broker["brokerAddrs"] == {"0": f"127.0.0.1:{known(node.remoting).port}"}
    assert (broker["brokerName"], broker["cluster"]) == ("broker-a", "DefaultCluster")
    (queues,) = route["queueDatas"]
    assert (queues["readQueueNums"], queues["perm"]) == (4, 6)


@pytest.mark.parametrize(("version", "standard"), [(400, False), (401, True), (409, True)])
async def test_the_dialect_goes_by_the_version(
    remoting: Remoting, version: int, standard: bool
) -> None:
    code = RequestCode.GET_ROUTEINFO_BY_TOPIC
    found = await remoting.ask(code, {"topic": "T"}, version=version)
    assert (b'{"0":' in found.body) is standard
    assert (b"{0:" in found.body) is not standard
    cluster = await remoting.ask(RequestCode.GET_BROKER_CLUSTER_INFO, version=version)
    assert b"{0:" in cluster.body


async def test_an_unknown_topic_has_no_route(remoting: Remoting) -> None:
    for topic in ("Unknown", "TBW102"):
        found = await remoting.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
        assert found.code == ResponseCode.TOPIC_NOT_EXIST


async def test_clients_are_sent_to_where_they_reach_the_node(start_node: StartNode) -> None:
    listen = free_endpoint()
    node = await start_node(remoting={"listen": listen, "advertise": "broker.example:10911"})
    async with connected(node) as client:
        found = await client.ask(RequestCode.GET_BROKER_CLUSTER_INFO)
    assert b'"broker.example:10911"' in found.body


async def test_a_slave_names_its_master(start_node: StartNode) -> None:
    node = await start_node(
        remoting={"listen": free_endpoint()}, ha={"master": "127.0.0.1:1"}, broker_role="SLAVE"
    )
    known(broker_of(node).replication.slave).master_endpoint = "10.0.0.9:8081"
    async with connected(node) as client:
        found = await client.ask(RequestCode.GET_BROKER_CLUSTER_INFO)
    port = known(node.remoting).port
    assert f'{{0:"10.0.0.9:{port}",1:"127.0.0.1:{port}"}}'.encode() in found.body


# Served with `rocketmq_slaves.listen` only.
OF_SLAVES = {RequestCode.REGISTER_BROKER, RequestCode.UNREGISTER_BROKER}

# -- what is not served, and bounds ------------------------------------------------------------


@pytest.mark.parametrize("code", [39, 40, 220, 221, 326, 9999, 200_099, -1])
async def test_what_is_not_served_is_said_to_be_so(remoting: Remoting, code: int) -> None:
    found = await remoting.ask(code)
    assert found.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert found.remark == f" request type {code} not supported"


WITH_BODIES = {
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
}
BARE = {RequestCode.GET_BROKER_CLUSTER_INFO, *TABLES, *WITHOUT_FIELDS} - WITH_BODIES


@pytest.mark.parametrize("code", sorted(set(RequestCode) - SENT_ONLY))
async def test_a_request_without_fields_and_body_is_answered(
    remoting: Remoting, code: RequestCode
) -> None:
    found = await remoting.ask(code)
    expected = ResponseCode.SUCCESS if code in BARE else ResponseCode.SYSTEM_ERROR
    if code in OF_SLAVES:
        expected = ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert found.code == expected


async def test_one_bad_connection_hurts_no_other(node: Node, remoting: Remoting) -> None:
    async with connected(node) as bad:
        bad.write(b"GET / HTTP/1.1\r\n\r\n")
        async with asyncio.timeout(60):
            await bad.ended.wait()
    assert (await remoting.send("T", b"x")).code == ResponseCode.SUCCESS


async def test_connections_have_a_limit(start_node: StartNode) -> None:
    node = await start_node(
        remoting={"listen": free_endpoint()}, limits={"connections_per_address_max": 8}
    )
    async with asyncio.TaskGroup() as tasks:
        inside: list[asyncio.Event] = []
        leave = asyncio.Event()

        async def hold(here: asyncio.Event) -> None:
            async with connected(node) as client:
                await client.ask(RequestCode.GET_BROKER_CLUSTER_INFO)
                here.set()
                await leave.wait()

        for _ in range(8):
            inside.append(asyncio.Event())
            tasks.create_task(hold(inside[-1]))
            await inside[-1].wait()
        async with connected(node) as over:
            async with asyncio.timeout(60):
                await over.ended.wait()
        leave.set()
    assert known(node.remoting).refused == 1


async def test_a_node_does_not_wait_for_held_pulls_at_its_end(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("duolog_server.serve.server.GRACE_SECONDS", GRACE_SECONDS)
    async with connected(node) as client:
        await client.send("T", b"x")
        await client.beat("c", "g", "T")
        client.pull("g", "T", 1, wait_ms=HOLD_MS)
        while not broker_of(node).waiting_calls.count:
            await asyncio.sleep(0.01)
        async with asyncio.timeout(STOP_SECONDS_MAX):
            await node.stop()
        async with asyncio.timeout(60):
            await client.ended.wait()
    assert known(node.remoting).connections == 0
    assert known(node.remoting).buffered_bytes == 0
