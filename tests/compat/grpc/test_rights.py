"""Users and their rights at RocketMQ's API: who may call which method."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from duolog_server.compat.grpc.protocol.stubs import METHODS, Code, definition, service
from duolog_server.compat.grpc.rules import RULES
from duolog_server.node.runtime.config import Config, ConfigError
from duolog_server.serve.server import Node
from tests.compat.grpc.api import Api, resource
from tests.compat.grpc.users import (
    Users,
    as_user,
    codes,
    first_code,
    headers,
    old,
    requests,
    with_users,
)
from tests.node.replicas import broker_of
from tests.nodefixtures import StartNode

REFUSED = (Code.UNAUTHORIZED, Code.FORBIDDEN)
# What a method needs, for topic T and group g: all of it.
CONSUMES = ("Sub Group:g", "Sub Topic:T")
NEEDS = {
    "QueryRoute": ("Get Topic:T",),
    "Heartbeat": ("Sub Group:g",),
    "SendMessage": ("Pub Topic:T",),
    "QueryAssignment": CONSUMES,
    "ReceiveMessage": CONSUMES,
    "AckMessage": CONSUMES,
    "ForwardMessageToDeadLetterQueue": CONSUMES,
    "PullMessage": CONSUMES,
    "UpdateOffset": CONSUMES,
    "GetOffset": CONSUMES,
    "QueryOffset": ("Get Topic:T",),
    "EndTransaction": ("Pub Topic:T",),
    "Telemetry": ("Pub Topic:T",),
    "NotifyClientTermination": ("Sub Group:g",),
    "ChangeInvisibleDuration": CONSUMES,
    "RecallMessage": ("Pub Topic:T",),
    "SyncLiteSubscription": CONSUMES,
}


async def make_topics(node: Node, *names: str) -> None:
    metadata = broker_of(node).metadata
    for name in names:
        await metadata.put_topic(metadata.new_topic(name, 1, 6))


@pytest.fixture
async def node(start_node: StartNode, tmp_path: Path) -> Node:
    made = await start_node(access=with_users(tmp_path))
    await make_topics(made, "T", "U", "ns%T")
    users = Users(made)
    await users.new("root", super=True)
    await users.new("right", "Pub,Sub Topic:T", "Sub Group:g")
    await users.new("none")
    return made


@pytest.fixture
async def users(node: Node) -> Users:
    return Users(node)


@pytest.fixture
async def api(node: Node) -> AsyncIterator[Api]:
    made = as_user(node, "none")
    yield made
    await made.close()


def test_each_method_has_a_rule_and_no_other_has() -> None:
    assert RULES.keys() == METHODS.keys() == NEEDS.keys() == requests().keys()


@pytest.mark.usefixtures("many_failures")
async def test_each_method_answers_each_kind_of_caller(node: Node, users: Users) -> None:
    await users.new("gone", "Pub,Sub Topic:T", "Sub Group:g")
    await users.put("gone", disabled=True)
    await users.new("elsewhere", "Pub,Sub,Get Topic:ns%*", "Sub,Get Group:ns%*")
    await users.put("no-signer", password="the password of no-signer")
    unknown = {name: Code.UNAUTHORIZED for name in METHODS}
    forbidden = {name: Code.FORBIDDEN for name in METHODS}
    callers: dict[str, tuple[dict[str, str], dict[str, Any]]] = {
        "nobody": ({}, unknown),
        "unknown": (headers("unknown"), unknown),
        "wrong key": (headers("right", "wrong"), unknown),
        "another's key": (headers("right", "the password of root"), unknown),
        "old date": (headers("right", date=old(400)), unknown),
        "date to come": (headers("right", date=old(-400)), unknown),
        "disabled": (headers("gone"), unknown),
        "does not sign": (headers("no-signer"), unknown),
        "session token": (headers("right") | {"x_mq_session_token": "x"}, unknown),
        "basic": ({"authorization": "Basic cmlnaHQ6dGhlIHBhc3N3b3JkIG9mIHJpZ2h0"}, unknown),
        "no rights": (headers("none"), forbidden),
        "another namespace": (headers("elsewhere"), forbidden),
    }
    for caller, (given, wanted) in callers.items():
        api = Api(node, **given)
        assert {caller: await codes(api, requests().items())} == {caller: wanted}
        await api.close()
    for caller in ("right", "root"):
        api = as_user(node, caller)
        found = await codes(api, requests().items())
        assert not {name: code for name, code in found.items() if code in REFUSED}, caller
        await api.close()


async def test_a_namespace_is_part_of_the_name_that_rights_are_about(
    node: Node, users: Users
) -> None:
    await users.new("elsewhere", "Pub,Sub,Get Topic:ns%*", "Sub,Get Group:ns%*")
    inside = requests(namespace="ns")
    api = as_user(node, "right")
    assert await codes(api, inside.items()) == {name: Code.FORBIDDEN for name in METHODS}
    await api.close()
    api = as_user(node, "elsewhere")
    found = await codes(api, inside.items())
    assert not {name: code for name, code in found.items() if code in REFUSED}
    await api.close()


@pytest.mark.parametrize("name", NEEDS)
async def test_a_method_needs_all_of_its_rights(users: Users, api: Api, name: str) -> None:
    needs, request = NEEDS[name], requests()[name]
    for without in needs:
        await users.may("none", *(need for need in needs if need != without), "List Topic:U")
        assert await first_code(api, name, request) == Code.FORBIDDEN, without
    await users.may("none", *needs)
    assert await first_code(api, name, request) not in REFUSED


async def test_a_refusal_says_who_lacks_which_right(node: Node, api: Api) -> None:
    status = (await api.route("T")).status
    assert status.message.startswith("user none: denied: the user has no entries")
    nobody = Api(node)
    assert "MQv2-HMAC-SHA1" in (await nobody.route("T")).status.message
    await nobody.close()


async def test_all_topics_of_a_call_are_looked_at(users: Users, api: Api) -> None:
    await users.may("none", "Pub,Sub Topic:T", "Sub Group:g")
    sends = requests()["SendMessage"]
    sends.messages.extend(requests("U")["SendMessage"].messages)
    assert await first_code(api, "SendMessage", sends) == Code.FORBIDDEN
    publishing = definition.Publishing(topics=[resource("T"), resource("U")])
    settings = definition.Settings(publishing=publishing)
    command = service.TelemetryCommand(settings=settings)
    assert await first_code(api, "Telemetry", command) == Code.FORBIDDEN


@pytest.mark.parametrize(
    ("group", "topics", "code"),
    [
        ("g", ["T"], Code.OK),
        ("g", ["T", "U"], Code.FORBIDDEN),
        ("h", ["T"], Code.FORBIDDEN),
    ],
)
async def test_a_subscription_needs_its_group_and_all_of_its_topics(
    users: Users, api: Api, group: str, topics: list[str], code: Code
) -> None:
    await users.may("none", "Sub Topic:T", "Sub Group:g")
    subscription = definition.Subscription(
        group=resource(group),
        subscriptions=[definition.SubscriptionEntry(topic=resource(topic)) for topic in topics],
    )
    command = service.TelemetryCommand(settings=definition.Settings(subscription=subscription))
    assert await first_code(api, "Telemetry", command) == code


async def test_the_address_of_a_caller_counts(users: Users, api: Api) -> None:
    await users.may("none", "Get Topic:T 10.0.0.0/8")
    assert (await api.route("T")).status.code == Code.FORBIDDEN
    await users.may("none", "Get Topic:T 127.0.0.1")
    assert (await api.route("T")).status.code == Code.OK


async def test_topics_of_the_system_are_for_nobody(node: Node, users: Users) -> None:
    await users.new("everything", "Pub,Sub,Get Topic:*", "Sub,Get Group:*")
    for name in ("everything", "root"):
        api = as_user(node, name)
        for topic in ("DUOLOG_SYS_METADATA", "RMQ_SYS_TRANS_HALF_TOPIC", "SCHEDULE_TOPIC_XXXX"):
            asked = requests(topic)
            del asked["Heartbeat"], asked["NotifyClientTermination"]  # they name no topic
            del asked["Telemetry"]  # with an illegal name, it ends with an error of gRPC
            assert set((await codes(api, asked.items())).values()) == {Code.ILLEGAL_TOPIC}
        await api.close()


def test_one_pair_of_keys_and_users_contradict_each_other(tmp_path: Path) -> None:
    keys = {"access_key": "ak", "secret_key": "sk"}
    config = Config.model_validate({"rocketmq": keys, "access": with_users(tmp_path)})
    with pytest.raises(ConfigError, match=r"Remove rocketmq\.access_key"):
        config.check()


async def test_stubs_with_a_method_without_a_rule_are_refused(
    start_node: StartNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(RULES, "RecallMessage")
    with pytest.raises(ConfigError, match="RecallMessage"):
        await start_node(access=with_users(tmp_path))
