"""The port of the metrics with TLS."""

import asyncio
import base64
import http.client
import shutil
import ssl
import time
from pathlib import Path
from typing import Any

import pytest

from duolog_server.demo.certificates import Authority, Issued
from duolog_server.node.net import handshakes
from duolog_server.node.runtime import certificates
from duolog_server.serve.server import Node
from tests.certificates import trusting
from tests.keyfiles import access_files
from tests.nodefixtures import StartNode
from tests.scraping import Scrape

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
