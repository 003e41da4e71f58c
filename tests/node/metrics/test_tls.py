"""The port of the metrics with TLS."""

import asyncio
import base64
import gc
import http.client
import shutil
import socket
import ssl
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from duolog_server.demo.certificates import Authority, Issued
from duolog_server.node.metrics.endpoint import Endpoint
from duolog_server.node.net import handshakes
from duolog_server.node.runtime import certificates
from duolog_server.serve.server import Node
from tests.certificates import trusting
from tests.keyfiles import access_files
from tests.nodefixtures import StartNode
from tests.scraping import Scrape
from tests.until import until

USER = {"Authorization": "Basic " + base64.b64encode(b"root:secret").decode()}


class Files:
    """The certificates of a node and of a client."""

    def __init__(self, directory: Path) -> None:
        authority = Authority(directory)
        self.ca = authority.cert
        self.node = authority.issue("node")
        self.client = authority.issue("prometheus")

    def section(self, **more: Any) -> dict[str, Any]:
        return {"cert": str(self.node.cert), "key": str(self.node.key), **more}

    def replace(self, other: "Files") -> None:
        for ours, theirs in zip(_pair(self.node), _pair(other.node), strict=True):
            shutil.copy(theirs, ours)


def _pair(issued: Issued) -> tuple[Path, Path]:
    return issued.cert, issued.key


def get(node: Node, ca: Path, own: Issued | None = None, **headers: str) -> tuple[int, str]:
    """What an HTTPS client gets."""
    assert node.metrics is not None
    client = http.client.HTTPSConnection(
        "127.0.0.1", node.metrics.port, timeout=20, context=trusting(ca, own)
    )
    try:
        client.request("GET", "/metrics", headers=headers)
        reply = client.getresponse()
        return reply.status, reply.read().decode()
    finally:
        client.close()


async def asked(node: Node, ca: Path, own: Issued | None = None, **headers: str) -> tuple[int, str]:
    return await asyncio.to_thread(get, node, ca, own, **headers)


METRICS = {"listen": "127.0.0.1:0", "tls": True}


async def test_metrics_are_served_over_tls_with_the_newest_certificate(
    start_node: StartNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where no port of clients has TLS."""
    monkeypatch.setattr(certificates, "LOOK_SECONDS", 0.0)
    ours, next_ones = Files(tmp_path / "ours"), Files(tmp_path / "next")
    node = await start_node(tls=ours.section(), metrics=METRICS)
    status, text = await asked(node, ours.ca)
    assert status == 200
    told = Scrape(text).value("duolog_certificate_expiry_timestamp_seconds")
    first = certificates.read(certificates.CertificateFiles(cert=ours.node.cert, key=ours.node.key))
    assert first.until is not None
    assert told == first.until.timestamp() > time.time()
    with pytest.raises(ssl.SSLCertVerificationError):
        await asked(node, next_ones.ca)
    ours.replace(next_ones)
    status, _ = await asked(node, next_ones.ca)
    assert status == 200
    with pytest.raises(ssl.SSLCertVerificationError):
        await asked(node, ours.ca)


async def test_a_plain_client_gets_nothing(start_node: StartNode, tmp_path: Path) -> None:
    node = await start_node(tls=Files(tmp_path / "files").section(only=True), metrics=METRICS)
    assert node.metrics is not None
    reader, writer = await asyncio.open_connection("127.0.0.1", node.metrics.port)
    writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
    async with asyncio.timeout(20):
        try:
            found = await reader.read()
        except ConnectionResetError:
            found = b""
    writer.close()
    assert b"HTTP" not in found


async def test_a_client_that_begins_no_handshake_is_hung_up_on(
    start_node: StartNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handshakes, "HANDSHAKE_SECONDS", 0.2)
    node = await start_node(tls=Files(tmp_path / "files").section(only=True), metrics=METRICS)
    assert node.metrics is not None
    reader, writer = await asyncio.open_connection("127.0.0.1", node.metrics.port)
    async with asyncio.timeout(20):
        assert await reader.read() == b""
    writer.close()


class _LeftAt(list[bytes]):
    """Pieces of an answer whose client breaks off before the one of that index is written."""

    def __init__(self, index: int, client: ssl.SSLSocket) -> None:
        super().__init__([b"a", b"b"])
        self._index = index
        self._client = client
        self._is_measured = False

    def __iter__(self) -> Iterator[bytes]:
        if self._is_measured:
            return self._written()
        self._is_measured = True
        return super().__iter__()

    def _written(self) -> Iterator[bytes]:
        yield from self[: self._index]
        reset = struct.pack("ii", 1, 0)
        self._client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
        self._client.close()
        yield from self[self._index :]


@pytest.mark.parametrize("index", [0, 1, 2])
async def test_a_client_that_leaves_during_its_answer_is_not_kept_for_the_collector(
    tmp_path: Path, index: int
) -> None:
    """After the last piece, the end of TLS fails within another error, whose frames have the
    connection as well.
    """
    files = Files(tmp_path / "files")

    async def scrape(_: float) -> list[bytes]:
        return _LeftAt(index, clients.pop())

    def ask() -> None:
        line = socket.create_connection(("127.0.0.1", endpoint.port), 20)
        clients.append(trusting(files.ca).wrap_socket(line, server_hostname="127.0.0.1"))
        clients[-1].sendall(b"GET /metrics HTTP/1.1\r\n\r\n")

    def kept() -> int:
        return sum(type(one).__name__ == "SSLProtocol" for one in gc.get_objects())

    clients: list[ssl.SSLSocket] = []
    endpoint, context = Endpoint(scrape, "text/plain"), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*_pair(files.node))
    await endpoint.start("127.0.0.1", 0, context)
    gc.collect()
    gc.disable()
    try:
        before = kept()
        await asyncio.to_thread(ask)
        await until(lambda: not clients and kept() <= before)
    finally:
        gc.enable()
        await endpoint.stop()


async def test_metrics_are_for_clients_with_a_certificate_where_one_is_required(
    start_node: StartNode, tmp_path: Path
) -> None:
    """It is asked for besides the user."""
    files = Files(tmp_path / "files")
    required = {"client_certs": "required", "client_ca": str(files.ca)}
    access = access_files(tmp_path, "secret")
    node = await start_node(
        tls=files.section(only=True, **required), metrics=METRICS, access=access
    )
    with pytest.raises((ssl.SSLError, ConnectionError, http.client.BadStatusLine)):
        await asked(node, files.ca, None, **USER)
    assert (await asked(node, files.ca, files.client))[0] == 401
    assert (await asked(node, files.ca, files.client, **USER))[0] == 200
