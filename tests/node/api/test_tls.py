"""Clients of the SDK that speak TLS, at real nodes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import duolog
import duolog.sync
import grpc.aio
import pytest
from duolog import Tls, _runtime, _tls
from duolog.testing._ports import free_endpoint

from duolog_server.serve.server import Node
from tests.certificates import certificates
from tests.nodefixtures import StartNode, received


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """An authority, and a certificate of it for 127.0.0.1."""
    return certificates(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def start_secured(start_node: StartNode, files: Any) -> Callable[[], Any]:
    """Start a node that has a port with TLS beside its plain one."""
    section = {"listen": free_endpoint(), "cert": files.cert, "key": files.key}
    return lambda: start_node(tls=section)


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("duolog._client.AT_ONCE", 4.0)  # for a machine that stands still


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Endpoints that are dialled without TLS."""
    dialled: list[str] = []
    original = grpc.aio.insecure_channel

    def dial(endpoint: str, *how: Any, **more: Any) -> grpc.aio.Channel:
        dialled.append(endpoint)
        return original(endpoint, *how, **more)

    monkeypatch.setattr(grpc.aio, "insecure_channel", dial)
    return dialled


async def use(client: duolog.Client) -> None:
    """What clients do; it ends with a question to the endpoint that the node names."""
    await client.admin.create_topic("T", 1)
    async with client.producer() as producer, client.consumer("G", "T") as consumer:
        await producer.send("T", b"x")
        message = await received(consumer)
        assert message.body == b"x"


async def test_all_calls_go_over_tls(
    start_secured: Callable[[], Any], files: Any, plain: list[str]
) -> None:
    node: Node = await start_secured()
    assert node._frames is not None
    endpoint = f"127.0.0.1:{node.tls_port}"
    tls = Tls(ca=files.ca)
    async with duolog.Client(endpoint, user="alice", password="pw", tls=tls) as client:
        await use(client)
        assert await client.status_of(endpoint) is not None
        # The node names its plain port, which is not spoken to without TLS.
        named = f"127.0.0.1:{node.port}"
        assert await client.replicas("broker-a") == [named]
        assert await client.status_of(named) is None
    assert node._frames.connections == 0
    assert plain == []


async def test_nodes_are_reached_at_their_tls_port_by_clients_that_vouch_for_them(
    start_secured: Callable[[], Any], files: Any, plain: list[str]
) -> None:
    node: Node = await start_secured()
    named = f"127.0.0.1:{node.port}"
    async with duolog.Client(named, tls=Tls(ca=files.ca, port=node.tls_port)) as client:
        await use(client)
        assert await client.status_of(named) is not None
    assert plain == []
    # The system's authorities do not know the node's; and a plain port is no way out.
    for port in (node.tls_port, node.port):
        async with duolog.Client(f"127.0.0.1:{port}", timeout=1, tls=True) as client:
            with pytest.raises((duolog.Unavailable, duolog.Timeout)):
                await client.admin.node_status()
    assert plain == []


@pytest.mark.parametrize(
    ("tls", "why"),
    [
        (Tls(ca="/nowhere/ca.pem"), "cannot read /nowhere/ca.pem"),
        (Tls(cert=__file__), "both cert and key"),
        (Tls(key=__file__), "both cert and key"),
        (Tls(port=65536), "65536"),
    ],
)
@pytest.mark.parametrize("made", [duolog.Client, duolog.sync.Client])
def test_files_that_cannot_be_used(made: type[Any], tls: Tls, why: str) -> None:
    with pytest.raises(duolog.BadRequest, match=why):
        made("127.0.0.1:1", tls=tls)


def test_without_tls_nothing_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for none in (None, False):
        assert _tls.tls_of(none) is None
    secured = Tls().over(_runtime.MACHINE)
    assert secured.frames
    assert secured.tls is not None
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "missing"))
    monkeypatch.setattr(_tls, "_SYSTEMS", (str(tmp_path / "one"),))
    assert _tls._systems_authorities() is None  # gRPC has its own
    (tmp_path / "one").write_bytes(b"pem")
    assert _tls._systems_authorities() == b"pem"
