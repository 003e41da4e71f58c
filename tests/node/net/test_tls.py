"""Ports of clients that speak TLS, over gRPC and over frames: certificates of both ends."""

import asyncio
import contextlib
import gc
import shutil
import socket
import ssl
from pathlib import Path
from typing import Any

import duolog
import grpc
import grpc.aio
import pytest
from duolog import Tls, _connection
from duolog._frameschannel import FramesChannel, connect
from duolog._runtime import MACHINE
from duolog.testing._ports import free_endpoint
from duolog.wire import duolog_pb2 as wire
from duolog.wire import duolog_pb2_grpc as stubs

from duolog_server.demo.certificates import Authority, Issued
from duolog_server.node.runtime import certificates
from duolog_server.serve.server import Node
from tests.certificates import trusting
from tests.keyfiles import access_files
from tests.node.replicas import broker_of
from tests.nodefixtures import StartNode, received
from tests.until import until

PASSWORD = "a password of the test"


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DUOLOG_TRANSPORT", "frames")
    monkeypatch.setattr(_connection, "FRAMES_AGAIN_SECONDS", (0.05, 0.1))
    monkeypatch.setattr(_connection, "GATE_SECONDS", 10.0)  # a first call waits for them
    monkeypatch.setattr("duolog._client.AT_ONCE", 4.0)  # for a machine that stands still
    monkeypatch.setattr(certificates, "LOOK_SECONDS", 0.05)


@pytest.fixture
def ours(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "ours")


@pytest.fixture
def others(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "others")


class Secured:
    """Starts nodes that take TLS only, and makes clients of them."""

    def __init__(self, start: StartNode, authority: Authority) -> None:
        self._start = start
        self.authority = authority
        self.served = authority.issue("node")

    async def start(self, client_certs: str = "none", **how: Any) -> Node:
        section: dict[str, Any] = {"cert": self.served.cert, "key": self.served.key, "only": True}
        if client_certs != "none":
            section |= {"client_certs": client_certs, "client_ca": self.authority.cert}
        return await self._start(tls={**section, **how.pop("tls", {})}, **how)

    def tls(self, own: Issued | None = None) -> Tls:
        return Tls(self.authority.cert) if own is None else Tls(self.authority.cert, *_files(own))

    def client(self, node: Node, own: Issued | None = None, **how: Any) -> duolog.Client:
        return duolog.Client(f"127.0.0.1:{node.port}", tls=self.tls(own), **how)

    def replace(self, authority: Authority) -> None:
        """Replace the node's certificate by one of another authority."""
        for new, old in zip(_files(authority.issue("node")), _files(self.served), strict=True):
            shutil.copy(new, old)


def _files(issued: Issued) -> tuple[Path, Path]:
    return issued.cert, issued.key


@pytest.fixture
def secured(start_node: StartNode, ours: Authority) -> Secured:
    return Secured(start_node, ours)


async def use(client: duolog.Client, topic: str = "T") -> None:
    """Create, send and read."""
    await client.admin.create_topic(topic, 1)
    async with client.producer() as producer, client.consumer("G", topic) as consumer:
        await producer.send(topic, b"x")
        message = await received(consumer)
        assert message.body == b"x"


def over_frames(client: duolog.Client) -> bool:
    return isinstance(client._router.seed.channel, FramesChannel)


async def frames_port_of(node: Node, channel: grpc.aio.Channel) -> wire.RouteReply:
    return await stubs.AdminStub(channel).Route(wire.RouteRequest(), timeout=5)


def dial(node: Node, tls: Tls) -> grpc.aio.Channel:
    made = tls.over(MACHINE).dial(f"127.0.0.1:{node.port}")
    assert isinstance(made, grpc.aio.Channel)
    return made


async def greet(node: Node, tls: Tls, asked_with: Tls | None = None) -> FramesChannel:
    """A frames connection. asked_with: for the key; the same if None."""
    async with dial(node, asked_with or tls) as channel:
        route = await stubs.AdminStub(channel).Route(wire.RouteRequest(), timeout=5)
    assert route.frames_port
    context = tls.over(MACHINE).tls
    assert context is not None
    return await connect(("127.0.0.1", route.frames_port), route.frames_key, 5, context)


# -- TLS only --------------------------------------------------------------------------------------


async def test_where_only_tls_is_taken_both_transports_use_it(secured: Secured) -> None:
    node = await secured.start()
    assert node._frames is not None
    async with secured.client(node) as client:
        await use(client)
        assert over_frames(client)
        assert node._frames.connections >= 1
        named = f"127.0.0.1:{node.port}"
        assert await client.replicas("broker-a") == [named]
        assert await client.status_of(named) is not None


async def test_large_batches_and_streams_pass_over_frames_with_tls(secured: Secured) -> None:
    node = await secured.start()
    async with secured.client(node) as client, client.producer() as producer:
        await client.admin.create_topic("T", 1)
        await producer.send("T", b"first")
        assert over_frames(client)
        bodies = [bytes([k]) * 60_000 for k in range(100)]
        await asyncio.gather(*(producer.send("T", body) for body in bodies))
        async with client.consumer("G", "T") as consumer:
            found = [await consumer.get(10) for _ in range(101)]
        assert sorted(m.body for m in found[1:] if m is not None) == sorted(bodies)


async def test_a_plain_client_is_refused_in_bounded_time_and_told_why(secured: Secured) -> None:
    node = await secured.start()
    async with asyncio.timeout(20):
        async with duolog.Client(f"127.0.0.1:{node.port}", timeout=3) as client:
            with pytest.raises(duolog.Retryable, match="may take TLS only"):
                await client.admin.node_status()
            with pytest.raises(duolog.Retryable):
                async with client.producer() as producer:
                    await producer.send("T", b"x")
    with pytest.raises((duolog.Unavailable, TimeoutError)):
        await connect(("127.0.0.1", node._frames.port), b"x" * 16, 1)  # type: ignore[union-attr]


async def test_a_client_with_tls_is_told_of_a_plain_port(node: Node, secured: Secured) -> None:
    async with asyncio.timeout(20):
        async with secured.client(node, timeout=1) as client:
            with pytest.raises(duolog.Retryable, match="does not speak TLS"):
                await client.admin.node_status()


async def test_an_authority_or_a_name_that_does_not_match_is_refused_by_both_transports(
    secured: Secured, others: Authority, ours: Authority
) -> None:
    node = await secured.start()
    assert node._frames is not None
    wrong = Tls(others.cert)
    async with duolog.Client(f"127.0.0.1:{node.port}", tls=wrong, timeout=3) as client:
        with pytest.raises(
            duolog.Retryable, match=r"CERTIFICATE_VERIFY_FAILED.*is not trusted: look at the CA"
        ):
            await client.admin.node_status()
    context = wrong.over(MACHINE).tls
    with pytest.raises(ssl.SSLCertVerificationError):
        await connect(("127.0.0.1", node._frames.port), b"x" * 16, 5, context)

    for new, old in zip(
        _files(ours.issue("x", ("n9.example",))), _files(secured.served), strict=True
    ):
        shutil.copy(new, old)
    await asyncio.sleep(0.1)
    async with secured.client(node, timeout=1) as client:
        with pytest.raises(duolog.Retryable):
            await client.admin.node_status()
    with pytest.raises(ssl.SSLCertVerificationError, match="not valid for"):
        context = secured.tls().over(MACHINE).tls
        await connect(("127.0.0.1", node._frames.port), b"x" * 16, 5, context)


async def test_beside_a_plain_port_frames_stay_plain_and_clients_with_tls_use_none(
    secured: Secured, start_node: StartNode
) -> None:
    files = {"cert": secured.served.cert, "key": secured.served.key, "listen": free_endpoint()}
    node = await start_node(tls=files)
    assert node._frames is not None
    async with duolog.Client(f"127.0.0.1:{node.tls_port}", tls=secured.tls()) as client:
        await use(client)
        assert not over_frames(client)
    assert node._frames.connections == 0
    async with duolog.Client(f"127.0.0.1:{node.port}") as client:
        await use(client, "U")
        assert over_frames(client)


async def test_a_connection_that_says_nothing_is_closed(
    secured: Secured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("duolog_server.node.net.handshakes.HANDSHAKE_SECONDS", 0.2)
    node = await secured.start()
    assert node._frames is not None
    reader, writer = await asyncio.open_connection("127.0.0.1", node._frames.port)
    async with asyncio.timeout(20):
        assert await reader.read() == b""
    writer.close()
    await writer.wait_closed()
    assert node._frames.connections == 0


async def test_connections_without_a_handshake_are_few_and_shut_nobody_out(
    secured: Secured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("duolog_server.node.net.handshakes.HANDSHAKES_MAX", 4)
    node = await secured.start()
    assert node._frames is not None
    silent = [await asyncio.open_connection("127.0.0.1", node._frames.port) for _ in range(20)]
    async with asyncio.timeout(20):
        for reader, _ in silent[:16]:
            with contextlib.suppress(ConnectionResetError):
                assert await reader.read() == b""
    async with secured.client(node) as client:
        await use(client)
        assert over_frames(client)
    for _, writer in silent:
        writer.close()


# -- certificates of clients -----------------------------------------------------------------------


@pytest.mark.parametrize("port", ["frames", "remoting", "metrics"])
async def test_a_connection_that_ended_is_not_kept_for_the_collector(
    secured: Secured, port: str
) -> None:
    """TLS has 256 KiB for each, and the collector of a node looks at old objects very rarely."""
    address = {"listen": "127.0.0.1:0"}
    node = await secured.start(remoting=address, metrics={**address, "tls": True})
    assert node.remoting is not None
    assert node.metrics is not None
    ports = {"frames": broker_of(node).dialects.frames_port, "remoting": node.remoting.port}
    ports["metrics"] = node.metrics.port
    context = trusting(secured.authority.cert)

    def come_and_go() -> None:  # in a thread, without objects of asyncio of its own
        line = socket.create_connection(("127.0.0.1", ports[port]), 10)
        with context.wrap_socket(line, server_hostname="127.0.0.1") as secure:
            secure.settimeout(10)
            if port == "metrics":
                secure.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
                assert secure.recv(100)  # and breaks it off

    def kept() -> int:
        return sum(type(one).__name__ == "SSLProtocol" for one in gc.get_objects())

    gc.collect()
    gc.disable()
    try:
        before = kept()
        for _ in range(5):
            await asyncio.to_thread(come_and_go)
        await until(lambda: kept() <= before)
    finally:
        gc.enable()


async def test_a_required_certificate_must_be_valid(secured: Secured, others: Authority) -> None:
    node = await secured.start("required")
    authority = secured.authority
    async with secured.client(node, authority.issue("anyone", ())) as client:
        await use(client)
        assert over_frames(client)
    expired, strange = authority.issue("late", (), days=0), others.issue("anyone", ())
    for own in (None, expired, strange):
        async with secured.client(node, own, timeout=1) as client:
            with pytest.raises(duolog.Retryable, match="or refuse the one it has"):
                await client.admin.node_status()
        context = secured.tls(own).over(MACHINE).tls
        assert node._frames is not None
        with pytest.raises((OSError, duolog.Unavailable)):
            await connect(("127.0.0.1", node._frames.port), b"x" * 16, 5, context)


async def test_a_client_without_a_certificate_is_told_that_one_may_be_required(
    secured: Secured,
) -> None:
    node = await secured.start("required")
    async with secured.client(node, timeout=1) as client:
        with pytest.raises(duolog.Retryable, match="may require a certificate"):
            await client.admin.node_status()


async def test_optional_certificates_have_a_port_of_their_own(secured: Secured) -> None:
    node = await secured.start("optional", tls={"listen": free_endpoint()})
    own = secured.authority.issue("anyone", ())
    for how in (None, own):
        async with secured.client(node, how) as client:
            await use(client, "T" if how is None else "U")
            assert over_frames(client)
    second = f"127.0.0.1:{node.tls_port}"
    async with duolog.Client(second, tls=secured.tls(own)) as client:
        await use(client, "V")
        assert over_frames(client)
    async with duolog.Client(second, tls=secured.tls(), timeout=1) as client:
        with pytest.raises(duolog.Retryable):
            await client.admin.node_status()


@pytest.fixture
async def with_users(secured: Secured, tmp_path: Path) -> Node:
    """A node that requires certificates, and has users root (super), alice, and carol, disabled."""
    node = await secured.start("required", access=access_files(tmp_path, PASSWORD))
    async with secured.client(node, secured.authority.issue("root", ())) as root:
        await root.access.create_user("root", PASSWORD, is_super=True)
        await root.access.create_user("alice", PASSWORD)
        await root.access.create_user("carol", PASSWORD)
        await root.access.alter_user("carol", disabled=True)
    return node


async def test_a_certificate_says_who_calls(with_users: Node, secured: Secured) -> None:
    alice = secured.authority.issue("alice", ())
    async with secured.client(with_users, alice) as client:
        assert (await client.access.who_am_i()).name == "alice"
        await until(lambda: over_frames(client))
        assert (await client.access.who_am_i()).name == "alice"
        with pytest.raises(duolog.NoPermission, match="alice"):
            await client.admin.create_topic("T", 1)
        with pytest.raises(duolog.NoPermission, match="outlast"):
            await client.access.issue_token(60)
    async with secured.client(with_users, secured.authority.issue("root", ())) as root:
        await use(root)
        assert over_frames(root)


async def test_a_password_counts_before_the_certificate(with_users: Node, secured: Secured) -> None:
    alice = secured.authority.issue("alice", ())
    async with secured.client(with_users, alice, user="root", password=PASSWORD) as client:
        assert (await client.access.who_am_i()).name == "root"
        await asyncio.sleep(0.3)
        assert not over_frames(client)  # they take the key of root with a certificate of root only
        assert (await client.access.who_am_i()).name == "root"
    async with secured.client(with_users, alice, user="root", password="wrong") as client:
        with pytest.raises(duolog.Unauthenticated):
            await client.access.who_am_i()


async def test_a_key_for_frames_is_taken_with_a_certificate_of_its_user_only(
    with_users: Node, secured: Secured
) -> None:
    alice, root = (secured.tls(secured.authority.issue(name, ())) for name in ("alice", "root"))
    channel = await greet(with_users, alice)
    await channel.close()
    with pytest.raises(duolog.Unavailable, match="names another user"):
        await greet(with_users, alice, asked_with=root)


@pytest.mark.parametrize("name", ["stranger", "carol", ""])
async def test_a_certificate_of_nobody_is_refused(
    with_users: Node, secured: Secured, name: str
) -> None:
    own = secured.authority.issue(name or " ", (), file="nobody")
    async with secured.client(with_users, own) as client:
        with pytest.raises(duolog.Unauthenticated):
            await client.access.who_am_i()


async def test_a_user_who_is_disabled_is_refused_on_open_connections(
    with_users: Node, secured: Secured
) -> None:
    root = secured.client(with_users, secured.authority.issue("root", ()))
    alice = secured.client(with_users, secured.authority.issue("alice", ()))
    async with root, alice:
        await alice.access.who_am_i()
        await until(lambda: over_frames(alice))
        await root.access.alter_user("alice", disabled=True)
        with pytest.raises(duolog.Unauthenticated):
            await alice.access.who_am_i()
        await root.access.alter_user("alice", disabled=False)
        assert (await alice.access.who_am_i()).name == "alice"


# -- certificates are replaced ---------------------------------------------------------------------


@pytest.mark.parametrize("transport", ["frames", "grpc"])
async def test_no_send_fails_while_certificates_are_replaced(
    secured: Secured, others: Authority, transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DUOLOG_TRANSPORT", transport)
    node = await secured.start()
    async with secured.client(node) as client, client.producer() as producer:
        await client.admin.create_topic("T", 1)
        await producer.send("T", b"before")
        assert over_frames(client) == (transport == "frames")
        moves = client._router.seed.moves
        stop, sent = asyncio.Event(), 0

        async def send() -> None:
            nonlocal sent
            while not stop.is_set():
                await producer.send("T", b"x")
                sent += 1

        async def sends_go_on() -> None:
            before = sent
            await until(lambda: sent > before + 3)

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(send())
            await sends_go_on()
            whole = secured.served.cert.read_bytes()
            secured.served.cert.write_bytes(whole[:100])  # half written: the old ones stay
            await sends_go_on()
            async with secured.client(node) as another:
                assert (await another.admin.node_status()).is_master
            secured.replace(others)
            await sends_go_on()
            trusting = Tls(others.cert)
            async with duolog.Client(f"127.0.0.1:{node.port}", tls=trusting) as newer:
                await newer.admin.node_status()
                if transport == "frames":
                    await until(lambda: over_frames(newer))
            async with secured.client(node, timeout=0.5) as older:  # it trusts the old ones only
                with pytest.raises(duolog.Retryable):
                    await older.admin.node_status()
            await sends_go_on()
            stop.set()
        assert client._router.seed.moves == moves


async def test_another_authority_of_clients_counts_for_new_connections(
    secured: Secured, others: Authority
) -> None:
    node = await secured.start("required")
    own, strange = secured.authority.issue("a", ()), others.issue("a", ())
    trusted = secured.authority.cert.read_bytes()
    roots = secured.authority.directory / "roots.pem"  # clients go on to trust the node
    roots.write_bytes(trusted)
    old, new = Tls(roots, *_files(own)), Tls(roots, *_files(strange))
    await (await greet(node, old)).close()
    shutil.copy(others.cert, secured.authority.cert)
    await asyncio.sleep(0.1)
    await (await greet(node, new)).close()
    assert node._frames is not None
    for tls in (old,):
        with pytest.raises((OSError, duolog.Unavailable)):
            context = tls.over(MACHINE).tls
            await connect(("127.0.0.1", node._frames.port), b"x" * 16, 5, context)
        async with dial(node, tls) as channel:
            with pytest.raises(grpc.aio.AioRpcError):
                await stubs.AdminStub(channel).Route(wire.RouteRequest(), timeout=2)
