"""Users and their rights at the Admin service: who may call which method, and what is noted."""

import json
from pathlib import Path
from typing import Any

import grpc
import pytest

from duolog_server.compat.grpc.administration.rules import RULES
from duolog_server.compat.grpc.protocol.stubs import ADMIN_METHODS as METHODS
from duolog_server.compat.grpc.protocol.stubs import ADMIN_SERVICE_NAME as SERVICE_NAME
from duolog_server.compat.grpc.protocol.stubs import Code, admin
from duolog_server.serve.server import Node
from tests.compat.grpc.administration.api import AdminApi, as_admin, requests
from tests.compat.grpc.api import Api, resource
from tests.compat.grpc.test_rights import REFUSED, make_topics
from tests.compat.grpc.users import Users, headers, old, with_users
from tests.node.replicas import broker_of
from tests.nodefixtures import StartNode
from tests.until import until

CLUSTER = "Cluster:DefaultCluster"
SEES_BOTH = ("Get Group:g", "Get Topic:T")
# What a method needs, for topic T and group g: all of it.
NEEDS = {
    "ChangeLogLevel": (f"Update {CLUSTER}",),
    "DescribeTopicStatus": ("Get Topic:T",),
    "ListSubscription": SEES_BOTH,
    "DescribeSubscription": SEES_BOTH,
    "DeleteSubscription": ("Update Group:g",),
    "DescribeGroupAccumulation": ("Get Group:g",),
    "ListConsumerConnection": ("Get Group:g",),
    "ResetGroupOffset": ("Update Group:g", "Get Topic:T"),
    "QueryMessage": ("Sub Topic:T",),
    "PrintThreadStackTrace": ("Get Group:g",),
    "VerifyMessage": ("Sub Group:g", "Sub Topic:T"),
    "AdminSendMessage": ("Pub Topic:T",),
    "GetConsumerRunningInfo": ("Get Group:g",),
    "GetTopicRoute": ("Get Topic:T",),
    "QueryTimeSpan": SEES_BOTH,
    "GetProxyRuntimeStats": (f"Get {CLUSTER}",),
}
ALL = ("Pub,Sub,Get Topic:T", "Sub,Get,Update Group:g", f"Get,Update {CLUSTER}")


@pytest.fixture
async def node(start_node: StartNode, tmp_path: Path) -> Node:
    audit = {"file": tmp_path / "audit.log"}
    made = await start_node(access=with_users(tmp_path), audit=audit)
    await make_topics(made, "T", "U", "ns%T")
    await broker_of(made).metadata.put_group({"groupName": "g"})
    users = Users(made)
    await users.new("root", super=True)
    await users.new("right", *ALL)
    await users.new("none")
    return made


@pytest.fixture
async def users(node: Node) -> Users:
    return Users(node)


async def codes(api: AdminApi, asked: dict[str, Any]) -> dict[str, int]:
    return {name: await api.code(name, request) for name, request in asked.items()}


def test_each_admin_method_has_a_rule_and_no_other_has() -> None:
    assert RULES.keys() == METHODS.keys() == NEEDS.keys() == requests().keys()


@pytest.mark.usefixtures("many_failures")
async def test_each_admin_method_answers_each_kind_of_caller(node: Node, users: Users) -> None:
    await users.new("gone", *ALL)
    await users.put("gone", disabled=True)
    await users.new("elsewhere", "Pub,Sub,Get Topic:ns%*", "Sub,Get,Update Group:ns%*")
    await users.put("no-signer", password="the password of no-signer")
    unknown = {name: Code.UNAUTHORIZED for name in METHODS}
    forbidden = {name: Code.FORBIDDEN for name in METHODS}
    callers: dict[str, tuple[dict[str, str], dict[str, Any]]] = {
        "nobody": ({}, unknown),
        "unknown": (headers("unknown"), unknown),
        "wrong key": (headers("right", "wrong"), unknown),
        "old date": (headers("right", date=old(400)), unknown),
        "disabled": (headers("gone"), unknown),
        "does not sign": (headers("no-signer"), unknown),
        "basic": ({"authorization": "Basic cmlnaHQ6dGhlIHBhc3N3b3JkIG9mIHJpZ2h0"}, unknown),
        "no rights": (headers("none"), forbidden),
        "another namespace": (headers("elsewhere"), forbidden),
    }
    for caller, (given, wanted) in callers.items():
        api = AdminApi(node, **given)
        assert {caller: await codes(api, requests())} == {caller: wanted}
        await api.close()
    for caller in ("right", "root"):
        api = as_admin(node, caller)
        found = await codes(api, requests())
        assert not {name: code for name, code in found.items() if code in REFUSED}, caller
        await api.close()


@pytest.mark.parametrize("name", NEEDS)
async def test_an_admin_method_needs_all_of_its_rights(node: Node, users: Users, name: str) -> None:
    needs, request = NEEDS[name], requests()[name]
    api = as_admin(node, "none")
    for without in needs:
        await users.may("none", *(need for need in needs if need != without), "List Topic:U")
        assert await api.code(name, request) == Code.FORBIDDEN, without
    await users.may("none", *needs)
    assert await api.code(name, request) not in REFUSED
    await api.close()


async def test_of_a_topic_the_groups_are_told_that_the_caller_may_see(
    node: Node, users: Users
) -> None:
    await users.new("reader", "Sub Topic:T", "Sub Group:g", "Sub Group:h")
    reader = Api(node, **headers("reader"))
    for group in ("g", "h"):
        assert (await reader.receive(group, queue_id=0)).code == Code.MESSAGE_NOT_FOUND
    await users.may("none", "Get Topic:T", "Get Group:h")
    api = as_admin(node, "none")
    request = requests()["ListSubscription"]
    request.ClearField("group")
    found = (await api.call("ListSubscription", request)).subscription_info
    assert [row.group.name for row in found] == ["h"]
    await reader.close()
    await api.close()


async def test_of_a_group_the_times_of_topics_are_told_that_the_caller_may_see(
    node: Node, users: Users
) -> None:
    root = as_admin(node, "root")
    for topic in ("T", "U"):
        reset = requests(topic)["ResetGroupOffset"]
        assert await root.code("ResetGroupOffset", reset) == Code.OK
    await root.close()
    await users.may("none", "Get Topic:T", "Get Group:g")
    request = admin.QueryTimeSpanRequest(group=resource("g"))
    told = {}
    for name in ("none", "root"):
        api = as_admin(node, name)
        found = (await api.call("QueryTimeSpan", request)).queue_time_span_list
        told[name] = {row.message_queue.topic.name for row in found}
        await api.close()
    assert told == {"none": {"T"}, "root": {"T", "U"}}


async def test_denials_and_changes_are_noted(node: Node) -> None:
    stranger, root = as_admin(node, "none"), as_admin(node, "root")
    for name, request in requests().items():
        assert await stranger.code(name, request) == Code.FORBIDDEN
    assert await root.code("ResetGroupOffset", requests()["ResetGroupOffset"]) == Code.OK
    await stranger.close()
    await root.close()
    await until(lambda: broker_of(node).status()["audit_waiting"] == 0)
    path = node.config.audit.file
    assert path is not None
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    denied = [row for row in rows if row["decision"] == "denied"]
    assert [row["method"] for row in denied] == [f"{SERVICE_NAME}/{name}" for name in requests()]
    assert {row["user"] for row in denied} == {"none"}
    (change,) = [row for row in rows if row["method"] == "Admin/ResetGroup"]
    assert (change["user"], change["resource"]) == ("root", "Group:g")
    assert change["decision"] == "allowed"


async def test_without_users_the_keys_of_the_file_are_asked_for(start_node: StartNode) -> None:
    node = await start_node(rocketmq={"access_key": "ak", "secret_key": "sk"})
    stranger, known = AdminApi(node), AdminApi(node, **headers("ak", "sk"))
    for name, request in requests().items():
        assert await stranger.code(name, request) == Code.UNAUTHORIZED, name
        assert await known.code(name, request) not in REFUSED, name
    with pytest.raises(grpc.aio.AioRpcError, match=r"node\.log_level"):
        await known.call("ChangeLogLevel", requests()["ChangeLogLevel"])
    await stranger.close()
    await known.close()
