"""A node registers at name servers: as what it is, at once when that changes, and not any more."""

import ssl
from math import inf
from pathlib import Path
from typing import Any

import duolog
import pytest
import structlog.testing
from duolog.testing._ports import free_endpoint

from duolog_server.compat.remoting.codec.codes import RequestCode
from duolog_server.compat.remoting.naming import NameServer, Registration
from duolog_server.node.election.memoryregistry import MemoryRegistry
from duolog_server.node.runtime.config import Config, ConfigError
from duolog_server.serve.server import Node
from tests.certificates import certificates
from tests.compat.remoting.naming.fakes import NONSENSE, NameServerFake, name_server, nonsense
from tests.node.replicas import WAIT_SECONDS, Elected, broker_of
from tests.nodefixtures import StartNode
from tests.until import until

LOST = "name server: not registered"


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Name servers that do not answer are asked again after a moment."""
    monkeypatch.setattr("duolog_server.compat.remoting.naming.RETRY_SECONDS", 0.05)
    monkeypatch.setattr("duolog_server.compat.remoting.naming.RETRY_SECONDS_MAX", 0.2)
    monkeypatch.setattr("duolog_server.compat.remoting.naming.LEAVE_SECONDS", 0.3)


def section(*servers: str, **more: Any) -> dict[str, Any]:
    return {"listen": free_endpoint(), "namesrv_addr": list(servers), **more}


def address(node: Node) -> str:
    listen: str = node.config.remoting.listen
    return listen


def sdk(node: Node) -> duolog.Client:
    return duolog.Client(f"127.0.0.1:{node.port}", timeout=WAIT_SECONDS)


async def test_a_master_registers_its_topics_and_their_changes(start_node: StartNode) -> None:
    async with name_server() as names:
        node = await start_node(remoting=section(names.address))
        await until(lambda: names.ids == {0: address(node)})
        fields = names.requests[0].fields
        assert fields["clusterName"] == "DefaultCluster"
        assert fields["brokerName"] == "broker-a"
        assert {"DefaultCluster_REPLY_TOPIC", "SELF_TEST_TOPIC"} <= set(names.topics)
        assert not any(name.startswith("DUOLOG_SYS_") for name in names.topics)
        async with sdk(node) as client:
            await client.admin.create_topic("T", 3)
            await until(lambda: "T" in names.topics)
            assert names.topics["T"]["writeQueueNums"] == 3
            await client.admin.delete_topic("T")
            await until(lambda: names.topics["T"]["perm"] == 0)
            assert names.topics["T"]["readQueueNums"] == 0, "clients leave it out"
            await client.admin.create_topic("T", 2)
            await until(lambda: names.topics["T"]["perm"] == 6)
        await node.stop()
        assert names.ids == {}
        assert names.requests[-1].code == RequestCode.UNREGISTER_BROKER


async def test_a_master_that_a_namesake_unregisters_is_known_again_within_a_second(
    start_node: StartNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("duolog_server.compat.remoting.naming.PERIOD_SECONDS", inf)
    monkeypatch.setattr("duolog_server.compat.remoting.naming.CHECK_SECONDS", 0.05)
    async with name_server() as names:
        node = await start_node(remoting=section(names.address))
        await until(lambda: names.ids == {0: address(node)})
        names.end_broker(0)
        await until(lambda: names.ids == {0: address(node)})
        names.ids = {1: "10.0.0.8:1"}  # its slave is still there
        await until(lambda: names.ids.get(0) == address(node))
        told = names.count(RequestCode.REGISTER_BROKER)
        names.ids[0] = "10.0.0.8:2"  # another master: this node may not know yet that it is none
        looks = names.looks
        await until(lambda: names.looks > looks + 3)
        assert names.count(RequestCode.REGISTER_BROKER) == told


async def test_topics_that_the_first_message_makes_are_offered(start_node: StartNode) -> None:
    async with name_server() as names:
        limits = {"auto_create_topic": True, "default_topic_queues": 5}
        await start_node(remoting=section(names.address), limits=limits)
        await until(lambda: "TBW102" in names.topics)
        row = names.topics["TBW102"]
        assert (row["writeQueueNums"], row["perm"]) == (5, 7)


async def test_a_name_server_that_does_not_answer_delays_nobody(
    start_node: StartNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("duolog_server.compat.remoting.naming.REGISTER_SECONDS", 1.0)
    gone = free_endpoint()
    async with name_server() as names, name_server() as silent:
        silent.silent = True
        with structlog.testing.capture_logs() as logged:

            def told(address: str) -> list[str]:
                return [one["event"] for one in logged if one.get("address") == address]

            node = await start_node(remoting=section(gone, silent.address, names.address))
            await until(lambda: names.ids == {0: address(node)})
            await until(lambda: silent.count(RequestCode.REGISTER_BROKER) > 1)
            await until(lambda: broker_of(node).status()["name_servers_lost"] == 2)
            assert broker_of(node).status()["name_servers"] == 3
            assert told(gone) == [LOST], "once, although it tried often"
            async with name_server(gone) as late:
                silent.silent = False
                await until(lambda: broker_of(node).status()["name_servers_lost"] == 0)
                assert late.ids == silent.ids == names.ids
                assert told(gone)[:2] == [LOST, "name server: registered"]


@pytest.mark.parametrize("answers", NONSENSE)
async def test_a_name_server_that_answers_nonsense_harms_nobody(
    start_node: StartNode, monkeypatch: pytest.MonkeyPatch, answers: str
) -> None:
    async with name_server() as names, nonsense(NONSENSE[answers]) as other:
        tell = NameServer._tell

        async def tell_in(server: NameServer, registration: Registration, seconds: float) -> None:
            """The one that answers has time enough on any machine."""
            seconds = 0.2 if server.address == other.address else WAIT_SECONDS
            await tell(server, registration, seconds)

        monkeypatch.setattr(NameServer, "_tell", tell_in)
        with structlog.testing.capture_logs() as logged:
            node = await start_node(remoting=section(other.address, names.address))
            await until(lambda: names.ids == {0: address(node)})
            await until(lambda: other.requests > 2, "it is asked again")
            counts = broker_of(node).status()
            assert (counts["name_servers"], counts["name_servers_lost"]) == (2, 1)
            async with sdk(node) as client:
                await client.admin.create_topic("T", 1)
                await until(lambda: "T" in names.topics)
            told = [one for one in logged if one.get("address") == other.address]
            assert [one["event"] for one in told] == [LOST]
            assert len(told[0]["reason"]) < 1200
            await node.stop()
    assert not broker_of(node).failed.is_set()
    assert names.ids == {}
    assert other.open == 0, "no connection is left"


async def test_a_name_that_cannot_be_looked_up_is_no_error_of_the_node(
    start_node: StartNode,
) -> None:
    with structlog.testing.capture_logs() as logged:
        node = await start_node(remoting=section("a..b:9876", f"{'a' * 64}.c:9876"))
        await until(lambda: sum(one["event"] == LOST for one in logged) == 2)
        assert not broker_of(node).failed.is_set()
        assert broker_of(node).status()["name_servers_lost"] == 2


@pytest.mark.parametrize("knows", [True, False])
async def test_name_servers_with_tls(start_node: StartNode, tmp_path: Path, knows: bool) -> None:
    files = certificates(tmp_path / "certificates")
    other = certificates(tmp_path / "others")
    assert files.cert is not None
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(files.cert, files.key)
    async with name_server(tls=tls) as names:
        ca = (files if knows else other).ca
        with structlog.testing.capture_logs() as logged:
            node = await start_node(remoting=section(names.address, namesrv_ca=ca))
            if knows:
                await until(lambda: names.ids == {0: address(node)})
            else:
                await until(lambda: any("name server" in one["event"] for one in logged))
                (told,) = [one for one in logged if "name server" in one["event"]]
                assert "certificate verify failed" in told["reason"]
                assert names.requests == []


async def test_a_name_server_that_lost_its_connection_is_told_again(start_node: StartNode) -> None:
    async with name_server() as names:
        node = await start_node(remoting=section(names.address))
        await until(lambda: names.ids == {0: address(node)})
        names.ids.clear()  # as a name server does with a broker whose connection ends
        names.drop()
        await until(lambda: names.ids == {0: address(node)})


async def test_it_is_told_again_from_time_to_time(
    start_node: StartNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("duolog_server.compat.remoting.naming.PERIOD_SECONDS", 0.05)
    async with name_server() as names:
        await start_node(remoting=section(names.address))
        await until(lambda: names.count(RequestCode.REGISTER_BROKER) > 3)
        bodies = {one.body for one in names.requests[-2:]}
        assert len(bodies) == 1, "nothing has changed"


async def test_a_stop_does_not_wait_for_a_silent_name_server(start_node: StartNode) -> None:
    async with name_server() as names:
        node = await start_node(remoting=section(names.address))
        await until(lambda: names.ids == {0: address(node)})
        names.silent = True
        await node.stop()
        assert names.requests[-1].code == RequestCode.UNREGISTER_BROKER


async def test_a_slave_with_a_fixed_role_has_its_configured_id(
    start_node: StartNode, tmp_path: Path
) -> None:
    async with name_server() as names:
        ha = {"listen": free_endpoint()}
        master = await start_node(
            tmp_path / "m", ha=ha, broker_role="SYNC_MASTER", name="m",
            remoting=section(names.address),
        )  # fmt: skip
        slave = await start_node(
            tmp_path / "s", ha={"master": ha["listen"]}, broker_role="SLAVE", name="s",
            remoting=section(names.address, broker_id=7),
        )  # fmt: skip
        await until(lambda: names.ids == {0: address(master), 7: address(slave)})


@pytest.fixture
async def group(start_node: StartNode, tmp_path: Path) -> Any:
    """Three nodes that elect their master, and a name server."""
    async with name_server() as names:
        registry = MemoryRegistry()
        nodes = [
            await start_node(
                tmp_path / name,
                remoting=section(names.address),
                ha={"listen": free_endpoint()},
                name=name,
                registry=registry,
                broker_role="AUTO",
            )
            for name in "abc"
        ]
        made = Elected(nodes)
        await until(made.is_whole)
        yield made, names
        for node in nodes:  # while there is a name server
            if not broker_of(node).store.closed:
                await node.stop()


def ids(group: Elected, master: Node) -> dict[int, str]:
    """As they should be registered."""
    numbers = dict(zip(group.nodes, (1, 2, 3), strict=True))
    return {0 if node is master else numbers[node]: address(node) for node in group.nodes}


async def test_the_next_master_registers_at_once(group: tuple[Elected, NameServerFake]) -> None:
    nodes, names = group
    old = nodes.the_master()
    await until(lambda: names.ids == ids(nodes, old))
    async with duolog.Client(nodes.endpoints, timeout=WAIT_SECONDS) as client:
        await client.admin.create_topic("T", 1)
        await until(lambda: "T" in names.topics)
        new = await nodes.switch(client)
        await until(lambda: names.ids == ids(nodes, new))
        await client.admin.create_topic("U", 1)
        await until(lambda: "U" in names.topics)


async def test_a_master_that_stops_takes_nothing_from_the_next_one(
    group: tuple[Elected, NameServerFake],
) -> None:
    nodes, names = group
    old = nodes.the_master()
    await until(lambda: names.ids == ids(nodes, old))
    await old.stop()
    await until(lambda: nodes.master not in (None, old))
    new = nodes.the_master()
    await until(lambda: names.ids.get(0) == address(new))
    assert address(old) not in names.ids.values()
    ended = [one for one in names.requests if one.code == RequestCode.UNREGISTER_BROKER]
    assert [one.fields["brokerId"] != "0" for one in ended] == [True], "0 may be another's by then"


def test_name_servers_need_the_port_that_they_name() -> None:
    config = Config.model_validate({"remoting": {"namesrv_addr": "127.0.0.1:1;127.0.0.1:2"}})
    assert config.remoting.namesrv_addr == ("127.0.0.1:1", "127.0.0.1:2")
    with pytest.raises(ConfigError, match="namesrv_addr needs"):
        config.check()
    with pytest.raises(ValueError, match="HOST:PORT"):
        Config.model_validate({"remoting": {"namesrv_addr": "nowhere"}})
