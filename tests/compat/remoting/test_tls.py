"""TLS on the remoting port: beside plain connections, or alone; certificates of clients."""

import asyncio
import contextlib
import shutil
import ssl
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from duolog.testing._ports import free_endpoint

from duolog_server.compat.remoting.calling import Sign
from duolog_server.compat.remoting.codec.codes import RequestCode, ResponseCode
from duolog_server.compat.remoting.codec.command import Command
from duolog_server.compat.remoting.codec.frames import FRAME_BYTES_MAX, FrameReader
from duolog_server.compat.remoting.codec.signatures import ACCESS_KEY, SIGNATURE
from duolog_server.compat.remoting.port import server as port_server
from duolog_server.demo.certificates import Authority, Issued
from duolog_server.node.net import handshakes
from duolog_server.node.runtime import certificates
from duolog_server.serve.server import Node
from tests.certificates import trusting
from tests.compat.grpc.test_rights import make_topics
from tests.compat.grpc.users import Users, with_users
from tests.compat.remoting.client import connected
from tests.compat.remoting.guarding.asked import signs
from tests.known import known
from tests.node.replicas import WAIT_SECONDS
from tests.nodefixtures import StartNode
from tests.until import until

ROUTE = RequestCode.GET_ROUTEINFO_BY_TOPIC
DENIED = ResponseCode.NO_PERMISSION
T = {"topic": "T"}


@pytest.fixture
def ours(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "ours")


@pytest.fixture
def others(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "others")


@pytest.fixture
def start(start_node: StartNode, ours: Authority) -> Callable[..., Any]:
    """Starts a node with topic T and a certificate."""

    async def made(client_certs: str = "none", only: bool = False, **how: Any) -> Node:
        own = ours.issue("node")
        tls: dict[str, Any] = {"cert": own.cert, "key": own.key, "only": only}
        if client_certs != "none":
            tls |= {"client_certs": client_certs, "client_ca": ours.cert}
        node = await start_node(tls=tls, remoting={"listen": free_endpoint()}, **how)
        await make_topics(node, "T")
        return node

    return made


def trusts(authority: Authority, own: Issued | None = None) -> ssl.SSLContext:
    return trusting(authority.cert, own)


def port_of(node: Node) -> int:
    return known(node.remoting).port


async def route(node: Node, tls: ssl.SSLContext | None, **how: Any) -> int | None:
    """The code of an answer over a new connection; None where it ends. Raises OSError."""
    async with connected(node, tls=tls, **how) as client:
        asked = client.begin(ROUTE, T)
        ended = asyncio.ensure_future(client.ended.wait())
        async with asyncio.timeout(WAIT_SECONDS):
            await asyncio.wait((asked, ended), return_when=asyncio.FIRST_COMPLETED)
        ended.cancel()
        return asked.result().code if asked.done() else None


async def refused(node: Node, tls: ssl.SSLContext | None) -> bool:
    """Whether a new connection is."""
    try:
        return await route(node, tls) is None
    except OSError:
        return True


async def gone(node: Node) -> None:
    """Wait until no connection is counted."""
    remoting = known(node.remoting)
    await until(lambda: remoting.connections == 0)


def adds(field: str, value: str) -> Sign:
    """What a client does that adds a field to its requests."""
    return lambda request: replace(request, fields={**request.fields, field: value})


# -- plain and TLS -----------------------------------------------------------------------------


async def test_plain_connections_and_tls_share_a_port(
    start: Callable[..., Any], ours: Authority, others: Authority
) -> None:
    node = await start()
    assert await route(node, None) == 0
    assert await route(node, trusts(ours)) == 0
    assert await refused(node, trusts(others))
    async with connected(node, tls=trusts(ours)) as client:
        for size in (10, 1 << 14, 60_000):
            assert (await client.send("T", b"x" * size)).code == 0
    await gone(node)


async def test_where_tls_alone_is_served_a_plain_connection_is_refused(
    start: Callable[..., Any], ours: Authority
) -> None:
    node = await start(only=True)
    assert await route(node, trusts(ours)) == 0
    assert await refused(node, None)
    await gone(node)


async def test_without_a_certificate_no_handshake(start_node: StartNode, ours: Authority) -> None:
    node = await start_node(remoting={"listen": free_endpoint()})
    assert await refused(node, trusts(ours))
    await gone(node)


@pytest.mark.parametrize(("certs", "served"), [("none", True), ("required", False)])
async def test_tls_1_2_is_taken_where_no_certificate_is_asked_for(
    start: Callable[..., Any], ours: Authority, certs: str, served: bool
) -> None:
    node = await start(certs, only=True)
    old = trusts(ours, ours.issue("alice"))
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    assert await refused(node, old) is not served
    assert await route(node, trusts(ours, ours.issue("alice"))) == 0


async def test_a_handshake_may_come_in_pieces_and_requests_with_its_end(
    start: Callable[..., Any], ours: Authority
) -> None:
    node = await start()
    reader, writer = await asyncio.open_connection("127.0.0.1", port_of(node))
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = trusts(ours).wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
    async with asyncio.timeout(WAIT_SECONDS):
        while True:
            try:
                tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                for byte in outgoing.read():  # the first one is the first packet
                    writer.write(bytes((byte,)))
                    await asyncio.sleep(0)
                incoming.write(await reader.read(1 << 16))
        for number in range(50):
            tls.write(Command(ROUTE, number, T).frame())
        writer.write(outgoing.read())  # behind the client's last part of the handshake
        frames, answers = FrameReader(FRAME_BYTES_MAX), list[tuple[int, int]]()
        while len(answers) < 50:
            incoming.write(await reader.read(1 << 16))
            with contextlib.suppress(ssl.SSLWantReadError):
                while True:
                    frames.feed(tls.read(1 << 16))
                    while (found := frames.next()) is not None:
                        answers.append((found.opaque, found.code))
    assert answers == [(number, 0) for number in range(50)]
    writer.close()
    await gone(node)


# -- certificates ------------------------------------------------------------------------------


async def test_a_certificate_names_a_user_unless_a_signature_does(
    start: Callable[..., Any], ours: Authority, others: Authority, tmp_path: Path
) -> None:
    node = await start("required", only=True, access=with_users(tmp_path))
    users = Users(node)
    await users.new("root", super=True)
    await users.new("alice", "Get Topic:T")
    await users.new("bob")
    of_alice, of_bob, of_nobody = (
        trusts(ours, ours.issue(name)) for name in ("alice", "bob", "nobody")
    )
    assert await route(node, of_alice) == 0
    assert await route(node, of_bob) == DENIED
    assert await route(node, of_nobody) == DENIED
    assert await route(node, of_bob, sign=signs("alice")) == 0
    assert await route(node, of_alice, sign=signs("bob")) == DENIED
    assert await route(node, of_alice, sign=signs("alice", "wrong")) == DENIED
    for half in (ACCESS_KEY, SIGNATURE):
        assert await route(node, of_alice, sign=adds(half, "alice")) == DENIED
    await users.put("alice", disabled=True)
    assert await route(node, of_alice) == DENIED
    for tls in (trusts(ours), trusts(ours, others.issue("alice"))):
        assert await refused(node, tls)
    await gone(node)


async def test_new_connections_get_certificates_that_were_replaced(
    start: Callable[..., Any], ours: Authority, others: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(certificates, "LOOK_SECONDS", 0.0)
    node = await start()
    async with connected(node, tls=trusts(ours)) as client:
        assert (await client.ask(ROUTE, T)).code == 0
        new = others.issue("node")
        shutil.copy(new.cert, node.config.tls.cert)
        shutil.copy(new.key, node.config.tls.key)
        assert await route(node, trusts(others)) == 0
        assert (await client.ask(ROUTE, T)).code == 0
    assert await refused(node, trusts(ours))


# -- handshakes that do not end ----------------------------------------------------------------


@pytest.mark.parametrize("said", [b"\x16", b"\x16\x03\x01", b"\x16\x03\x01\x02\x00\x01"])
async def test_a_handshake_that_does_not_end_ends_its_connection(
    start: Callable[..., Any], ours: Authority, monkeypatch: pytest.MonkeyPatch, said: bytes
) -> None:
    monkeypatch.setattr(handshakes, "HANDSHAKE_SECONDS", 0.05)
    node = await start()
    reader, writer = await asyncio.open_connection("127.0.0.1", port_of(node))
    writer.write(said)
    async with asyncio.timeout(WAIT_SECONDS):
        assert await reader.read() == b""
    writer.close()
    await gone(node)
    monkeypatch.setattr(handshakes, "HANDSHAKE_SECONDS", WAIT_SECONDS)
    assert await route(node, trusts(ours)) == 0


@pytest.mark.parametrize("said", [b"\x16" + b"x" * 1000, b"\x16\x03\x01\xff\xff" + b"\0" * 70_000])
async def test_what_begins_as_a_handshake_and_is_none_ends_its_connection_alone(
    start: Callable[..., Any], ours: Authority, said: bytes
) -> None:
    node = await start()
    async with connected(node, tls=trusts(ours)) as client:
        reader, writer = await asyncio.open_connection("127.0.0.1", port_of(node))
        writer.write(said)
        async with asyncio.timeout(WAIT_SECONDS):
            try:
                await reader.read()
            except ConnectionError:
                pass
        writer.close()
        assert (await client.ask(ROUTE, T)).code == 0
    await gone(node)


async def test_handshakes_in_progress_are_few_and_shut_nobody_out(
    start: Callable[..., Any], ours: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handshakes, "HANDSHAKES_MAX", 4)
    node = await start()
    idle = []
    for _ in range(10):
        idle.append(await asyncio.open_connection("127.0.0.1", port_of(node)))
        idle[-1][1].write(b"\x16")
    async with asyncio.timeout(WAIT_SECONDS):
        for reader, _ in idle[:6]:
            try:
                assert await reader.read() == b""
            except ConnectionError:
                pass
    assert await route(node, trusts(ours)) == 0
    for _, writer in idle:
        writer.close()
    await gone(node)


async def test_connections_that_say_nothing_count_and_end(
    start: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    node = await start(limits={"connections_per_address_max": 8})
    remoting = known(node.remoting)
    idle = [await asyncio.open_connection("127.0.0.1", port_of(node)) for _ in range(8)]
    await until(lambda: remoting.connections == 8)
    assert await refused(node, None)
    assert remoting.refused == 1
    monkeypatch.setattr(port_server, "IDLE_TICKS", 0)
    for one in remoting._connections:
        one.tick()
    async with asyncio.timeout(WAIT_SECONDS):
        for reader, writer in idle:
            try:
                assert await reader.read() == b""
            except ConnectionError:
                pass
            writer.close()
    await gone(node)
    assert await route(node, None) == 0


async def test_a_node_ends_while_a_handshake_is_in_progress(start: Callable[..., Any]) -> None:
    node = await start()
    remoting = known(node.remoting)
    reader, writer = await asyncio.open_connection("127.0.0.1", port_of(node))
    writer.write(b"\x16\x03")
    await until(lambda: remoting._handshakes is not None and len(remoting._handshakes) == 1)
    await node.stop()
    async with asyncio.timeout(WAIT_SECONDS):
        try:
            assert await reader.read() == b""
        except ConnectionError:
            pass
    writer.close()
    assert remoting.connections == 0
