"""What real nodes pass on, and what they do not: rights, TLS and quotas are not got round."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import duolog
import pytest
from duolog.testing._ports import free_endpoint

from duolog_server.compat.remoting.calling import Sign
from duolog_server.compat.remoting.codec.codes import RequestCode, ResponseCode
from duolog_server.compat.remoting.codec.command import ONEWAY
from duolog_server.compat.remoting.producing.sending import Sending
from duolog_server.compat.remoting.relay import RELAYED
from duolog_server.compat.remoting.routes import Routes
from duolog_server.demo.certificates import Authority
from duolog_server.serve.server import Node
from tests.compat.grpc.test_rights import make_topics
from tests.compat.grpc.users import Users, with_users
from tests.compat.remoting.client import Remoting, connected
from tests.compat.remoting.guarding.asked import signs
from tests.compat.remoting.relay.fakes import MasterFake, master
from tests.compat.remoting.test_tls import trusts
from tests.node.replicas import WAIT_SECONDS, broker_of
from tests.nodefixtures import StartNode
from tests.until import until

KEYS = {"access_key": "key", "secret_key": "secret"}
UNAVAILABLE = ResponseCode.SERVICE_NOT_AVAILABLE
COMMIT = {"consumerGroup": "g", "topic": "T", "queueId": 0, "commitOffset": 0}


@pytest.fixture
async def elsewhere(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[MasterFake]:
    """Where all nodes believe their master to be."""
    async with master() as made:
        monkeypatch.setattr(Routes, "master_elsewhere", lambda _: made.address)
        monkeypatch.setattr(Sending, "stores_at_once", False)  # as a node that takes no puts
        yield made


@pytest.fixture
def ours(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "ours")


async def started(start_node: StartNode, **how: Any) -> Node:
    node = await start_node(remoting={"listen": free_endpoint()}, **how)
    await make_topics(node, "T")
    return node


def with_tls(ours: Authority, only: bool) -> dict[str, Any]:
    own = ours.issue("node")
    return {"cert": own.cert, "key": own.key, "only": only}


async def serves(client: Remoting, node: Node) -> None:
    """The node serves itself what a node without users passes on."""
    assert (await client.beat("c", "g", "T")).code == 0
    assert (await client.send("T", b"x")).code == 0
    assert (await client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, COMMIT)).code == 0
    await broker_of(node).log.caught_up()
    assert broker_of(node).store.next_offset("T", 0) == 1


async def test_without_users_requests_are_passed_on(
    start_node: StartNode, elsewhere: MasterFake
) -> None:
    node = await started(start_node)
    async with connected(node) as client:
        assert (await client.send("T", b"x")).body == b"body", "the master's"
    assert [one.flag for one in elsewhere.taken] == [RELAYED]
    assert broker_of(node).store.next_offset("T", 0) == 0
    await node.stop()
    await until(lambda: all(one.is_closing() for one in elsewhere.connections))


async def test_with_users_nothing_is_passed_on(
    start_node: StartNode, elsewhere: MasterFake, tmp_path: Path
) -> None:
    node = await started(start_node, access=with_users(tmp_path))
    await Users(node).new("root", super=True)
    async with connected(node, sign=signs("root")) as client:
        await serves(client, node)
    async with connected(node) as client:
        assert (await client.send("T", b"x")).code == ResponseCode.NO_PERMISSION
    assert elsewhere.connections == []


async def test_with_an_access_key_nothing_is_passed_on(
    start_node: StartNode, elsewhere: MasterFake
) -> None:
    node = await started(start_node, rocketmq=KEYS)
    async with connected(node, sign=signs("key", "secret")) as client:
        await serves(client, node)
    async with connected(node) as client:
        assert (await client.send("T", b"x")).code == ResponseCode.NO_PERMISSION
    assert elsewhere.connections == []


async def test_with_tls_alone_nothing_is_passed_on(
    start_node: StartNode, elsewhere: MasterFake, ours: Authority
) -> None:
    node = await started(start_node, tls=with_tls(ours, only=True))
    async with connected(node, tls=trusts(ours)) as client:
        await serves(client, node)
    assert elsewhere.connections == []


async def test_beside_tls_plain_requests_are_passed_on_and_no_others(
    start_node: StartNode, elsewhere: MasterFake, ours: Authority
) -> None:
    node = await started(start_node, tls=with_tls(ours, only=False))
    async with connected(node, tls=trusts(ours)) as client:
        await serves(client, node)
    assert elsewhere.connections == []
    async with connected(node) as client:
        assert (await client.send("T", b"x")).body == b"body"


@pytest.mark.parametrize(("name", "secret"), [("root", ""), ("key", "secret")])
async def test_where_requests_are_signed_none_is_served_that_was_passed_on(
    start_node: StartNode, tmp_path: Path, name: str, secret: str
) -> None:
    """It would be judged by the address of the node that passed it on."""
    users = name == "root"
    how = {"access": with_users(tmp_path)} if users else {"rocketmq": KEYS}
    node = await started(start_node, **how)
    if users:
        await Users(node).new("root", super=True)
    sign: Sign = signs(name, secret)
    async with connected(node, sign=sign) as client:
        assert (await client.beat("c", "g", "T")).code == 0
        passed_on = await client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, COMMIT, flag=RELAYED)
        assert (passed_on.code, "signed here" in passed_on.remark) == (UNAVAILABLE, True)
        client.begin(RequestCode.UPDATE_CONSUMER_OFFSET, COMMIT, flag=RELAYED | ONEWAY)
        assert (await client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, COMMIT)).code == 0


async def test_a_quota_of_an_address_counts_at_the_node_that_passes_on(
    start_node: StartNode, elsewhere: MasterFake
) -> None:
    node = await started(start_node)
    async with duolog.Client(f"127.0.0.1:{node.port}", timeout=WAIT_SECONDS) as sdk:
        await sdk.admin.put_quota("Client:127.0.0.1", messages_in=1, burst_ms=1)
    async with connected(node) as client, connected(node) as other:
        sent = [await one.send("T", b"x") for one in (client, other, client)]
    assert sent[0].code == 0
    assert ResponseCode.SYSTEM_BUSY in {one.code for one in sent[1:]}
    assert len(elsewhere.taken) == sum(one.code == 0 for one in sent)
