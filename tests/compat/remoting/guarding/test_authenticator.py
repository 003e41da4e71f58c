"""Callers of the remoting port: one pair of keys, quotas of users, the audit log, slaves."""

import json
from pathlib import Path

import duolog
import pytest
from duolog.testing._ports import free_endpoint

from duolog_server.compat.remoting.codec.codes import RequestCode, ResponseCode
from duolog_server.serve.server import Node
from tests.compat.grpc.test_rights import make_topics
from tests.compat.grpc.users import PASSWORD, Users, with_users
from tests.compat.remoting.client import connected
from tests.compat.remoting.guarding.asked import TABLE, Places, ask, signs
from tests.node.replicas import broker_of
from tests.nodefixtures import StartNode
from tests.until import until

DENIED = ResponseCode.NO_PERMISSION
BUSY = ResponseCode.SYSTEM_BUSY


@pytest.fixture
async def node(start_node: StartNode, tmp_path: Path) -> Node:
    """With users."""
    made = await start_node(
        access=with_users(tmp_path),
        remoting={"listen": free_endpoint()},
        audit={"file": tmp_path / "audit.log"},
    )
    await make_topics(made, "T")
    await Users(made).new("root", super=True)
    await Users(made).new("alice", "Pub,Sub Topic:T", "Sub Group:g")
    await Users(made).new("none")
    return made


async def test_with_a_pair_of_keys_who_signs_with_it_may_do_everything(
    start_node: StartNode, tmp_path: Path
) -> None:
    node = await start_node(
        rocketmq={"access_key": "key", "secret_key": "secret"},
        remoting={"listen": free_endpoint()},
        audit={"file": tmp_path / "audit.log"},
    )
    await make_topics(node, "T")
    for sign, code in (
        (None, DENIED),
        (signs("key", "wrong"), DENIED),
        (signs("other", "secret"), DENIED),
        (signs("key", "secret"), ResponseCode.SUCCESS),
    ):
        async with connected(node, sign=sign) as client:
            assert (await client.send("T", b"x")).code == code
            found = await client.ask(RequestCode.GET_BROKER_CLUSTER_INFO)
            assert found.code == code
    await until(lambda: broker_of(node).status()["audit_waiting"] == 0)
    lines = (tmp_path / "audit.log").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    assert {(row["method"], row["user"], row["decision"]) for row in rows} == {
        ("Remoting/SEND_MESSAGE_V2", "", "denied"),
        ("Remoting/GET_BROKER_CLUSTER_INFO", "", "denied"),
    }


async def test_each_request_that_is_denied_is_noted(node: Node, tmp_path: Path) -> None:
    async with connected(node, sign=signs("none")) as client:
        for row in TABLE.values():
            await ask(client, row.ask(Places()))
        client.sign = signs("none", "wrong")
        await ask(client, TABLE[RequestCode.SEND_MESSAGE].ask(Places()))
    await until(lambda: broker_of(node).status()["audit_waiting"] == 0)
    text = (tmp_path / "audit.log").read_text()
    rows = [json.loads(line) for line in text.splitlines()]
    found = {row["method"]: row for row in rows if row["user"] == "none"}
    finds = (RequestCode.VIEW_MESSAGE_BY_ID, RequestCode.END_TRANSACTION)  # they find nothing
    wanted = {f"Remoting/{RequestCode(code).name}" for code in TABLE if code not in finds}
    assert found.keys() == wanted
    for name, row in found.items():
        assert (row["source"], row["decision"]) == ("127.0.0.1", "denied")
        assert row["resource"] in ("Topic:T", "Group:g", "Cluster:DefaultCluster"), name
    (unknown,) = (row for row in rows if not row["user"])
    assert (unknown["method"], unknown["decision"]) == ("Remoting/SEND_MESSAGE", "denied")
    assert "accessKey=none" in unknown["reason"]
    assert PASSWORD.format("none") not in text


async def test_quotas_of_a_user_hold_over_all_of_its_connections(node: Node) -> None:
    root = duolog.Client(
        f"127.0.0.1:{node.port}", user="root", password=PASSWORD.format("root"), timeout=10
    )
    async with root:
        await root.admin.put_quota("User:alice", connections=1)
        async with connected(node, sign=signs("alice")) as one:
            assert (await one.send("T", b"x")).code == 0
            async with connected(node, sign=signs("alice")) as two:
                refused = await two.send("T", b"x")
                assert refused.code == BUSY
                assert "over the quota of User:alice: connections" in refused.remark
                two.sign = signs("root")
                assert (await two.send("T", b"x")).code == 0
            assert (await one.send("T", b"x")).code == 0
        await root.admin.put_quota("User:alice", messages_in=1, burst_ms=1)
        async with connected(node, sign=signs("alice")) as one:
            sent = [(await one.send("T", b"x")).code for _ in range(3)]
            assert sent[0] == 0
            assert BUSY in sent
            one.sign = signs("root")
            assert (await one.send("T", b"x")).code == 0


async def test_a_topic_belongs_to_the_user_whose_message_made_it(
    start_node: StartNode, tmp_path: Path
) -> None:
    node = await start_node(
        access=with_users(tmp_path),
        remoting={"listen": free_endpoint()},
        limits={"auto_create_topic": True},
    )
    await Users(node).new("root", super=True)
    await Users(node).new("alice", "Pub Topic:new*")
    async with connected(node, sign=signs("alice")) as client:
        route = {"topic": "TBW102"}
        assert (await client.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, route)).code == 0
        assert (await client.send("old", b"x")).code == DENIED
        assert (await client.send("new1", b"x")).code == 0
    topics = broker_of(node).metadata.topics
    assert topics["new1"].owner == "alice"
    assert "old" not in topics


async def test_a_node_that_may_lack_the_newest_users_does_not_say_no(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_of(node).replication, "may_be_behind", lambda: True)
    for sign in (signs("none"), signs("unknown")):
        async with connected(node, sign=sign) as client:
            found = await client.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"})
            assert found.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert node._access is not None
    assert node._remoting_service is not None
    sight, user = node._remoting_service._sight, node._access.gate.by_signature("none", "127.0.0.1")
    told = (sight.may_consume(user, "g"), sight.may_get(user, "T"), sight.may_decide(user, "T"))
    assert not any(told), "nor does it tell clients what they may not see"
    async with connected(node, sign=signs("alice")) as client:
        found = await client.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"})
        assert found.code == 0, "what is known to be allowed is allowed"
