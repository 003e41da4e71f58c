"""The remoting protocol on several nodes: routes name them all, and clients follow their master."""

import asyncio
import json
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import duolog
import pytest
from duolog.testing._ports import free_endpoint

from duolog_server.compat.remoting.codec.codes import RequestCode, ResponseCode
from duolog_server.compat.remoting.codec.command import Command
from duolog_server.compat.remoting.port.dispatcher import Begun, Peer
from duolog_server.compat.remoting.relay import RELAYED
from duolog_server.compat.remoting.service import RemotingService
from duolog_server.node.election.memoryregistry import MemoryRegistry
from duolog_server.serve.server import Node
from tests.compat.remoting.client import Remoting, connected, receipts, records
from tests.compat.remoting.requests import write_batch
from tests.node.replicas import WAIT_SECONDS, Elected, broker_of
from tests.nodefixtures import StartNode
from tests.until import until

MANY = 9000  # whose ids take a longer header than requests may have
HOSTS = {name: f"127.0.0.{number}" for number, name in enumerate("abc", 1)}


def port() -> str:
    return free_endpoint().rpartition(":")[2]


@pytest.fixture
async def group(start_node: StartNode, tmp_path: Path) -> Elected:
    """Three nodes on addresses of their own, with the same ports, as on three machines."""
    registry, remoting, client_port = MemoryRegistry(), port(), port()
    nodes = [
        await start_node(
            tmp_path / name,
            f"{host}:{client_port}",
            remoting={"listen": f"{host}:{remoting}"},
            ha={"listen": free_endpoint()},
            name=name,
            registry=registry,
            broker_role="AUTO",
        )
        for name, host in HOSTS.items()
    ]
    made = Elected(nodes)
    await until(made.is_whole)
    return made


def sdk(group: Elected) -> duolog.Client:
    endpoints = [f"{HOSTS[node.config.node.name]}:{node.port}" for node in group.nodes]
    return duolog.Client(endpoints, timeout=WAIT_SECONDS)


def address(node: Node) -> str:
    listen: str = node.config.remoting.listen
    return listen


async def addresses(remoting: Remoting) -> dict[str, str]:
    found = await remoting.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"})
    assert found.code == ResponseCode.SUCCESS, found.remark
    table: dict[str, str] = json.loads(found.body)["brokerDatas"][0]["brokerAddrs"]
    return table


async def test_clients_follow_the_master(group: Elected) -> None:
    old = group.the_master()
    async with sdk(group) as client, AsyncExitStack() as stack:
        await client.admin.create_topic("T", 1)
        await until(lambda: all("T" in broker_of(node).metadata.topics for node in group.nodes))
        clients = {node: await stack.enter_async_context(connected(node)) for node in group.nodes}
        for remoting in clients.values():  # as clients do
            assert (await remoting.beat("c", "g", "T")).code == ResponseCode.SUCCESS
            found = await addresses(remoting)
            assert found["0"] == address(old)
            assert sorted(found) == ["0", "1", "2"]
            assert set(found.values()) == {address(node) for node in group.nodes}
        assert (await clients[old].send("T", b"before")).code == ResponseCode.SUCCESS
        update = {"consumerGroup": "g", "topic": "T", "queueId": 0, "commitOffset": 1}
        commit = RequestCode.UPDATE_CONSUMER_OFFSET
        assert (await clients[old].ask(commit, update)).code == ResponseCode.SUCCESS
        await until(lambda: broker_of(old).metadata.tables.committed("g", "T", 0) == 1)
        slave = next(node for node in group.nodes if node is not old)
        passed_on = await clients[slave].send("T", b"passed on")
        assert (passed_on.code, passed_on.fields["queueOffset"]) == (ResponseCode.SUCCESS, "1")
        assert (await clients[slave].ask(commit, update)).code == ResponseCode.SUCCESS
        many = write_batch([(0, b"", b"")] * MANY)
        fields = {
            "a": "p", "b": "T", "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 7, "h": 0, "m": "true",
        }  # fmt: skip
        batch = await clients[slave].ask(RequestCode.SEND_BATCH_MESSAGE, fields, many)
        assert len(set(batch.fields["msgId"].split(","))) == MANY, batch.remark
        refused = await clients[slave].ask(commit, update, flag=RELAYED)
        assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE, "never twice"

        new = await group.switch(client)
        await until(group.is_whole)
        assert (await addresses(clients[old]))["0"] == address(new)
        assert (await addresses(clients[new]))["0"] == address(new)
        assert (await clients[new].send("T", b"after")).code == ResponseCode.SUCCESS
        assert (await clients[old].send("T", b"by the old one")).code == ResponseCode.SUCCESS
        query = {"consumerGroup": "g", "topic": "T", "queueId": 0}
        answered = await clients[old].ask(RequestCode.QUERY_CONSUMER_OFFSET, query)
        assert answered.fields["offset"] == "1"
        listed = await clients[new].ask(
            RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "g"}
        )
        assert json.loads(listed.body)["consumerIdList"] == ["c"]
        offset = await clients[new].ask(RequestCode.QUERY_CONSUMER_OFFSET, query)
        assert offset.fields["offset"] == "1"
        found_now = await clients[new].pull("g", "T", 0)
        assert [one.body for one in records(found_now.body)][:2] == [b"before", b"passed on"]
        found_now = await clients[new].pull("g", "T", 2 + MANY)
        bodies = [b"after", b"by the old one"]
        assert [one.body for one in records(found_now.body)] == bodies


async def test_a_group_pops_on_at_the_next_master(group: Elected) -> None:
    old = group.the_master()
    async with sdk(group) as client, AsyncExitStack() as stack:
        await client.admin.create_topic("T", 1)
        await until(lambda: all("T" in broker_of(node).metadata.topics for node in group.nodes))
        clients = {node: await stack.enter_async_context(connected(node)) for node in group.nodes}
        for remoting in clients.values():
            assert (await remoting.beat("c", "g", "T")).code == ResponseCode.SUCCESS
        assert (await clients[old].set_mode("g", "T")).code == ResponseCode.SUCCESS
        for body in (b"done", b"not done"):
            await clients[old].send("T", body)
        done, left = receipts(await clients[old].pop("g", "T"))
        assert (await clients[old].ack("g", "T", done.extra_info)).code == ResponseCode.SUCCESS
        await until(lambda: broker_of(old).metadata.tables.committed("g", "T", 0) == 1)
        slave = next(node for node in group.nodes if node is not old)
        refused = await clients[slave].pop("g", "T")
        assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
        await until(lambda: "messageRequestModes" in broker_of(slave).metadata.tables.groups["g"])
        by_slave = await clients[slave].assignment("c", "g", "T")
        assert b'"mode":"POP"' in by_slave.body, "one that is refused reads by PULL for ever"

        new = await group.switch(client)
        await until(group.is_whole)
        await until(lambda: not broker_of(new).replication.may_be_behind())
        assigned = await clients[new].assignment("c", "g", "T")
        assert b'"mode":"POP"' in assigned.body, assigned.remark
        stale = await clients[new].ack("g", "T", left.extra_info)
        assert stale.code == ResponseCode.NO_MESSAGE, "leases are of one mastership"
        (again,) = receipts(await clients[new].pop("g", "T"))
        assert again.record.body == b"not done"


async def test_a_client_that_stays_with_the_old_master_notices_no_switch(
    group: Elected, monkeypatch: pytest.MonkeyPatch
) -> None:
    # However slow the machine is: a send is held as long as the switch takes.
    monkeypatch.setattr(
        "duolog_server.compat.remoting.producing.sending.PATIENCE_MS", 1000 * WAIT_SECONDS
    )
    monkeypatch.setattr("duolog_server.node.replication.roles.PATIENCE_MS", 1000 * WAIT_SECONDS)
    monkeypatch.setattr("tests.compat.remoting.client.WAIT_SECONDS", WAIT_SECONDS)
    old = group.the_master()
    async with sdk(group) as client, connected(old) as remoting:
        await client.admin.create_topic("T", 1)
        await remoting.beat("c", "g", "T")
        switched = asyncio.Event()

        async def send() -> int:
            count = 0
            while not (switched.is_set() and group.the_master() is not old):
                sent = await remoting.send("T", b"%d" % count)
                assert sent.code == ResponseCode.SUCCESS, sent.remark
                count += 1
            return count

        async with asyncio.TaskGroup() as tasks:
            sending = tasks.create_task(send())
            await group.switch(client)
            await until(group.is_whole)
            switched.set()
        found: list[bytes] = []
        while len(found) < sending.result():
            answer = await remoting.pull("g", "T", len(found), 5000)
            found += [one.body for one in records(answer.body)]
    assert found == [b"%d" % k for k in range(len(found))]


async def test_a_send_during_a_switch_is_answered_such_that_clients_retry(group: Elected) -> None:
    old = group.the_master()
    async with sdk(group) as client, connected(old) as remoting:
        await client.admin.create_topic("T", 1)
        async with asyncio.TaskGroup() as tasks:
            sends = [tasks.create_task(remoting.send("T", b"%d" % k)) for k in range(20)]
            tasks.create_task(group.switch(client))
        codes = {send.result().code for send in sends}
        retried = {ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.SYSTEM_ERROR}
        assert codes <= {ResponseCode.SUCCESS, *retried}  # RocketMQ's producers retry on both
        await until(group.is_whole)
        master = group.the_master()
        async with connected(master) as following:
            assert (await following.send("T", b"next")).code == ResponseCode.SUCCESS


async def test_nodes_that_take_each_other_for_the_master_pass_nothing_round(
    group: Elected, monkeypatch: pytest.MonkeyPatch
) -> None:
    passed: list[tuple[str, bool]] = []
    served = RemotingService.serve

    def serve(service: RemotingService, peer: Peer, request: Command) -> Begun:
        if request.code == RequestCode.SEND_MESSAGE_V2:
            passed.append((peer.host.address, bool(request.flag & RELAYED)))
        return served(service, peer, request)

    monkeypatch.setattr(RemotingService, "serve", serve)
    one, other = (node for node in group.nodes if node is not group.the_master())
    for node, there in ((one, other), (other, one)):
        assert node._remoting_service is not None
        monkeypatch.setattr(node._remoting_service._relay, "_master", partial(address, there))
    async with sdk(group) as client, connected(one) as remoting:
        await client.admin.create_topic("T", 1)
        sent = await remoting.send("T", b"x")
    assert sent.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert [relayed for _, relayed in passed] == [False, True], "by the client, and once"


async def test_tools_may_ask_every_node_of_a_group_to_delete_a_topic(group: Elected) -> None:
    delete, make = RequestCode.DELETE_TOPIC_IN_BROKER, RequestCode.UPDATE_AND_CREATE_TOPIC
    fields = {"topic": "N", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
    master = group.the_master()
    async with AsyncExitStack() as stack:
        clients = {node: await stack.enter_async_context(connected(node)) for node in group.nodes}
        for node, remoting in clients.items():
            if node is not master:
                refused = await remoting.ask(make, fields)
                assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert (await clients[master].ask(make, fields)).code == ResponseCode.SUCCESS
        for node in sorted(group.nodes, key=lambda node: node is master):  # the slaves first
            assert (await clients[node].ask(delete, {"topic": "N"})).code == ResponseCode.SUCCESS
        await until(lambda: all("N" not in broker_of(node).metadata.topics for node in group.nodes))


async def test_tools_see_slaves_and_epochs(group: Elected) -> None:
    status, cache = RequestCode.GET_BROKER_HA_STATUS, RequestCode.GET_BROKER_EPOCH_CACHE
    master = group.the_master()
    slave = next(node for node in group.nodes if node is not master)
    async with connected(master) as first, connected(slave) as second:
        found = json.loads((await first.ask(status)).body)
        assert (found["master"], found["inSyncSlaveNums"]) == (True, 2)
        assert len(found["haConnectionInfo"]) == 2
        assert all(row["inSync"] for row in found["haConnectionInfo"])
        followed = json.loads((await second.ask(status)).body)
        assert (followed["master"], followed["haConnectionInfo"]) == (False, [])
        assert followed["haClientRuntimeInfo"]["masterAddr"]
        epochs = json.loads((await first.ask(cache)).body)
        assert (epochs["brokerName"], epochs["brokerId"]) == ("broker-a", 0)
        assert epochs["epochList"][0]["startOffset"] == 0
        assert epochs["epochList"][-1]["endOffset"] == (1 << 63) - 1
        assert json.loads((await second.ask(cache)).body)["brokerId"] == 1
