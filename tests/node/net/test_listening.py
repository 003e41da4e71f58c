"""When a node's ports accept connections, and its errors if a port is not available."""

import asyncio
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import duolog
import pytest
from duolog.testing._ports import free_endpoint, free_ports
from structlog.testing import capture_logs

from duolog_server.compat.remoting.codec.codes import ResponseCode
from duolog_server.node.api.reservedport import ListenError, ReservedPort
from duolog_server.node.net.connections import host_of
from duolog_server.node.net.listener import listen
from duolog_server.serve.server import Node
from duolog_server.store.errors import StoreLocked
from duolog_server.store.messagestore import MessageStore
from duolog_server.store.metadata import TopicConfig
from duolog_server.store.record import Host
from duolog_server.store.recovery import RecoveryReport
from tests.compat.remoting.client import connected
from tests.node.replicas import broker_of
from tests.nodefixtures import StartNode
from tests.until import until


def accepts(port: int, host: str = "127.0.0.1") -> bool:
    try:
        socket.create_connection((host, port), 2).close()
    except ConnectionRefusedError:
        return False
    return True


async def test_no_port_accepts_a_connection_before_the_directory_is_recovered(
    start_node: StartNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    recovering, go_on = threading.Event(), threading.Event()
    start = MessageStore.start

    def slow(store: MessageStore, *locked: Callable[[], None]) -> RecoveryReport:
        recovering.set()
        assert go_on.wait(20)
        return start(store, *locked)

    monkeypatch.setattr(MessageStore, "start", slow)
    port, ha_port = free_ports(2)
    starting = asyncio.ensure_future(
        start_node(listen=f"127.0.0.1:{port}", ha={"listen": f"127.0.0.1:{ha_port}"})
    )
    try:
        await until(recovering.is_set)
        for _ in range(20):
            assert not accepts(port)
            assert not accepts(ha_port)
            await asyncio.sleep(0.005)
    finally:
        go_on.set()
    node = await starting
    assert node.port == port
    assert accepts(port)
    assert accepts(ha_port)
    async with duolog.Client(f"127.0.0.1:{port}", timeout=5) as client:
        await client.admin.create_topic("T", 1)


async def test_a_directory_that_is_held_leaves_the_port_closed(
    start_node: StartNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    def held(store: MessageStore, *_: object) -> RecoveryReport:
        raise StoreLocked("data")

    monkeypatch.setattr(MessageStore, "start", held)
    port = free_ports(1)[0]
    with pytest.raises(StoreLocked):
        await start_node(listen=f"127.0.0.1:{port}")
    assert not accepts(port)


async def test_the_port_of_the_vip_channel_serves_the_same_and_may_be_taken(
    start_node: StartNode, tmp_path: Path
) -> None:
    host, _, text = free_endpoint().rpartition(":")
    port = int(text)
    vip, first, second = port - 2, f"{host}:{port - 2}", f"{host}:{port}"
    node = await start_node(remoting={"listen": second, "vip_channel": False})
    assert not accepts(vip)
    await node.stop()
    node = await start_node(remoting={"listen": second})
    await broker_of(node).metadata.put_topic(TopicConfig("T", 1))
    async with connected(node, port=vip) as client:
        assert (await client.send("T", b"by the VIP channel")).code == ResponseCode.SUCCESS
    with pytest.raises(ListenError, match="two ports above has it"):
        await start_node(tmp_path / "first", remoting={"listen": first})
    await node.stop()
    lower = await start_node(tmp_path / "first", remoting={"listen": first})
    with capture_logs() as lines:
        node = await start_node(tmp_path / "second", remoting={"listen": second})
        assert accepts(port)
        for one in (node, lower):
            await one.stop()
        more = {"remoting": {"listen": second}, "metrics": {"listen": first}}
        await start_node(tmp_path / "third", **more)
    reasons = [line["reason"] for line in lines if line["event"] == "remoting: no VIP channel"]
    assert "in use" in reasons[0]
    assert reasons[1:] == ["it is the port of metrics.listen"]


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0.0.0.0"])
async def test_a_free_port_is_chosen_and_known(start_node: StartNode, host: str) -> None:
    node = await start_node(listen=f"{host}:0")
    assert accepts(node.port)


def test_an_address_in_use_elsewhere_or_impossible_is_reported() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        for _ in range(100):
            with pytest.raises(ListenError, match=address):
                ReservedPort(address)
    for address in ("192.0.2.1:8081", "no-such-host.invalid:8081"):
        with pytest.raises(ListenError, match=address):
            ReservedPort(address)
    with pytest.raises(ListenError, match=r"cannot listen on x{70}:0: .*label too long"):
        ReservedPort("x" * 70 + ":0")


async def test_an_address_in_use_is_reported_before_the_directory_is_created(
    start_node: StartNode, node: Node, tmp_path: Path
) -> None:
    taken = f"127.0.0.1:{node.port}"
    for ports in ({"listen": taken}, {"ha": {"listen": taken}}):
        with pytest.raises(ListenError, match=taken):
            await start_node(data=tmp_path / "other", **ports)
    assert not (tmp_path / "other").exists()


def test_a_reserved_port_refuses_connections_and_is_free_afterwards() -> None:
    reserved = ReservedPort(free_endpoint())  # which no connection takes in between
    assert not accepts(reserved.port)
    reserved.release()
    reserved.release()
    again = ReservedPort(reserved.address)
    assert again.port == reserved.port
    again.release()


async def test_a_node_on_an_ipv6_address_names_it_in_brackets(start_node: StartNode) -> None:
    node = await start_node(listen="[::1]:0")
    async with duolog.Client(f"[::1]:{node.port}") as client:
        assert (await client.admin.node_status()).listen == f"[::1]:{node.port}"


async def test_every_port_that_listens_on_all_addresses_takes_ipv4_and_ipv6(
    start_node: StartNode,
) -> None:
    node = await start_node(
        listen="[::]:0",
        frames_listen="[::]:0",
        remoting={"listen": "[::]:0"},
        metrics={"listen": "[::]:0"},
        ha={"listen": "[::]:0"},
    )
    assert node.remoting is not None
    assert node.metrics is not None
    assert broker_of(node).advertised == f"[::1]:{node.port}"
    for port in (
        node.port,
        broker_of(node).dialects.frames_port,
        node.remoting.port,
        node.metrics.port,
        node.ha_port,
    ):
        for host in ("127.0.0.1", "::1"):
            assert await asyncio.to_thread(accepts, port, host), (port, host)


async def test_an_ipv4_client_of_a_port_for_both_is_known_by_its_ipv4_address() -> None:
    hosts: list[Host] = []

    class Told(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            hosts.append(host_of(transport))

    server = await listen(Told, "[::]", 0)
    line = socket.create_connection(("127.0.0.1", server.sockets[0].getsockname()[1]), 5)
    await until(lambda: bool(hosts))
    assert hosts == [Host("127.0.0.1", line.getsockname()[1])]
    line.close()
    server.close()
