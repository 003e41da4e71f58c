"""RocketMQ's API on nodes that take TLS only: they forward calls to each other with TLS."""

import asyncio
import shutil
from pathlib import Path

import duolog
import grpc
import grpc.aio
import pytest

from duolog_server.compat.grpc.protocol.stubs import Code
from duolog_server.demo.certificates import Authority, Issued
from duolog_server.node.runtime import certificates
from duolog_server.serve.server import Node
from tests.compat.grpc.api import Api, message
from tests.known import known
from tests.node.replicas import WAIT_SECONDS, Elected, broker_of
from tests.nodefixtures import StartNode
from tests.until import until


class SecuredApi(Api):
    """A client that uses TLS, with a certificate."""

    def __init__(self, node: Node, authority: Authority, own: Issued) -> None:
        files = (authority.cert, own.key, own.cert)
        self._credentials = grpc.ssl_channel_credentials(*(file.read_bytes() for file in files))
        super().__init__(node)

    def dial(self, endpoint: str) -> grpc.aio.Channel:
        return grpc.aio.secure_channel(endpoint, self._credentials)


async def test_calls_are_forwarded_with_tls_and_after_certificates_were_replaced(
    start_node: StartNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(certificates, "LOOK_SECONDS", 0.05)
    authority, others = Authority(tmp_path / "ca"), Authority(tmp_path / "others")
    own = authority.issue("node")
    files = {"cert": own.cert, "key": own.key, "ca": authority.cert, "client_ca": authority.cert}
    tls = {**files, "only": True, "client_certs": "required"}
    group = await Elected.start(start_node, tmp_path, tls=tls)
    endpoints = group.endpoints
    secured = duolog.Tls(authority.cert, own.cert, own.key)
    async with duolog.Client(endpoints, tls=secured, timeout=WAIT_SECONDS) as client:
        await client.admin.create_topic("T", 1)
    await until(lambda: all("T" in broker_of(node).metadata.topics for node in group.nodes))
    slave = next(node for node in group.nodes if node is not group.the_master())

    api = SecuredApi(slave, authority, own)
    assert (await api.send(message(b"x"))).status.code == Code.OK
    assert (await api.receive("g", timeout=WAIT_SECONDS)).bodies == [b"x"]

    new = others.issue("node")
    for source, target in ((new.cert, own.cert), (new.key, own.key), (others.cert, authority.cert)):
        shutil.copy(source, target)
    await asyncio.sleep(0.1)
    assert (await api.send(message(b"y"))).status.code == Code.OK  # by its open connection
    later = SecuredApi(slave, authority, own)
    assert (await later.receive("g", timeout=WAIT_SECONDS)).bodies == [b"y"]
    ((_, credentials), _) = known(slave.rocketmq).forwarder._channels["broker-a"]
    assert credentials is broker_of(slave).peers.credentials()
