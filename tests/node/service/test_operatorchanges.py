"""Operators' changes by every protocol: the same rights, the same entries of the audit log."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duolog
import pytest
from duolog import _errors as sdk
from duolog.testing._ports import free_endpoint

from duolog_server.compat.grpc.protocol.stubs import admin
from duolog_server.compat.remoting.codec.codes import RequestCode
from duolog_server.compat.remoting.codec.command import Command
from duolog_server.node.audit.entry import Decision, Entry
from duolog_server.node.broker import Broker
from duolog_server.serve.server import Node
from tests.compat.grpc.administration.api import AdminApi, as_admin
from tests.compat.grpc.api import resource
from tests.compat.grpc.users import PASSWORD, Users, with_users
from tests.compat.remoting.client import connected
from tests.compat.remoting.guarding.asked import signs
from tests.node.replicas import broker_of
from tests.nodefixtures import StartNode

Do = Callable[[], Awaitable[bool]]  # whether it was done


@dataclass
class Operator:
    """A user that makes changes by one protocol: by the name of each change, None where the
    protocol has none of it.
    """

    user: str
    changes: dict[str, Do]


# The method and the resource of each change, as the audit log has them; the last is a failure.
NOTED = {
    "create": ("Admin/CreateTopic", "Topic:N", Decision.ALLOWED),
    "alter": ("Admin/AlterTopic", "Topic:N", Decision.ALLOWED),
    "shrink": ("Admin/AlterTopic", "Topic:N", Decision.FAILED),
    "delete_topic": ("Admin/DeleteTopic", "Topic:N", Decision.ALLOWED),
    "put": ("Admin/PutGroup", "Group:g", Decision.ALLOWED),
    "reset": ("Admin/ResetGroup", "Group:g", Decision.ALLOWED),
    "delete": ("Admin/DeleteGroup", "Group:g", Decision.ALLOWED),
    "reset_unknown": ("Admin/ResetGroup", "Group:g", Decision.FAILED),
}


def native(user: str, client: duolog.Client) -> Operator:
    def order(call: Callable[[], Awaitable[object]]) -> Do:
        async def do() -> bool:
            try:
                await call()
            except sdk.DuologError:
                return False
            return True

        return do

    calls = client.admin
    return Operator(
        user,
        {
            "create": order(lambda: calls.create_topic("N", 2)),
            "alter": order(lambda: calls.alter_topic("N", 3)),
            "shrink": order(lambda: calls.alter_topic("N", 1)),
            "delete_topic": order(lambda: calls.delete_topic("N")),
            "put": order(lambda: calls.put_group("g", retry_times=3)),
            "reset": order(lambda: calls.reset_group("g", "T", duolog.Start.EARLIEST)),
            "delete": order(lambda: calls.delete_group("g")),
            "reset_unknown": order(lambda: calls.reset_group("g", "U", duolog.Start.EARLIEST)),
        },
    )


def rocketmq(user: str, api: AdminApi) -> Operator:
    def reset(topic: str) -> Do:
        async def do() -> bool:
            request = admin.ResetGroupOffsetRequest(group=resource("g"), topic=resource(topic))
            request.reset_timestamp.FromMilliseconds(0)
            return await api.code("ResetGroupOffset", request) == 20000

        return do

    return Operator(user, {"reset": reset("T"), "reset_unknown": reset("U")})


def remoting(user: str, ask: Callable[..., Awaitable[Command]]) -> Operator:
    def order(code: RequestCode, body: bytes = b"", **fields: Any) -> Do:
        async def do() -> bool:
            return (await ask(code, fields, body)).code == 0

        return do

    put, reset = (
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
    )
    settings = json.dumps({"groupName": "g", "retryMaxTimes": 3}).encode()
    how: dict[str, Any] = {"group": "g", "timestamp": 0, "isForce": "true"}

    def topic(queues: int) -> Do:
        fields: dict[str, Any] = {
            "topic": "N",
            "readQueueNums": queues,
            "writeQueueNums": queues,
            "perm": 6,
        }
        fields |= {"defaultTopic": "TBW102", "topicFilterType": "SINGLE_TAG"}
        return order(RequestCode.UPDATE_AND_CREATE_TOPIC, **fields)

    return Operator(
        user,
        {
            "create": topic(2),
            "alter": topic(3),
            "shrink": topic(1),
            "delete_topic": order(RequestCode.DELETE_TOPIC_IN_BROKER, topic="N"),
            "put": order(put, settings),
            "reset": order(reset, topic="T", **how),
            "delete": order(RequestCode.DELETE_SUBSCRIPTIONGROUP, groupName="g"),
            "reset_unknown": order(reset, topic="U", **how),
        },
    )


@pytest.fixture
async def node(start_node: StartNode, tmp_path: Path) -> Node:
    made = await start_node(
        access=with_users(tmp_path),
        remoting={"listen": free_endpoint()},
        audit={"file": tmp_path / "audit.log"},
    )
    await Users(made).new("root", super=True)
    await Users(made).new("operator", "All Group:g", "All Topic:T", "All Topic:U", "All Topic:N")
    await Users(made).new("stranger", "All Group:other", "All Topic:T")
    endpoint, secret = f"127.0.0.1:{made.port}", PASSWORD.format("root")
    async with duolog.Client(endpoint, timeout=10, user="root", password=secret) as client:
        await client.admin.create_topic("T", 1)
    return made


@pytest.fixture
def entries(node: Node, monkeypatch: pytest.MonkeyPatch) -> list[Entry]:
    """What is noted from now on."""
    found: list[Entry] = []
    monkeypatch.setattr(broker_of(node).audit, "note", found.append)
    return found


@pytest.fixture(params=["native", "rocketmq", "remoting"])
async def operators(
    node: Node, request: pytest.FixtureRequest
) -> AsyncIterator[Callable[[str], Awaitable[Operator]]]:
    """An operator of one protocol, by the name of its user."""
    closing = []

    async def made(user: str) -> Operator:
        if request.param == "rocketmq":
            api = as_admin(node, user)
            closing.append(api.close)
            return rocketmq(user, api)
        if request.param == "native":
            client = duolog.Client(
                f"127.0.0.1:{node.port}", timeout=10, user=user, password=PASSWORD.format(user)
            )
            closing.append(client.close)
            return native(user, client)

        async def ask(*what: Any) -> Command:
            async with connected(node, sign=signs(user)) as one:
                return await one.ask(*what)

        return remoting(user, ask)

    yield made
    for close in closing:
        await close()


def tables_of(broker: Broker) -> object:
    tables = broker.metadata.tables
    return dict(tables.topics), dict(tables.groups), dict(tables.offsets)


async def test_each_change_is_noted_once_and_alike(
    operators: Callable[[str], Awaitable[Operator]], entries: list[Entry]
) -> None:
    operator = await operators("operator")
    for name, do in operator.changes.items():
        entries.clear()
        assert await do() == (NOTED[name][2] is Decision.ALLOWED), name
        (entry,) = entries
        assert (entry.method, entry.resource, entry.decision) == NOTED[name], name
        assert (entry.user, entry.source) == ("operator", "127.0.0.1")
        kind, _, resource_name = entry.resource.partition(":")
        assert entry.shown[kind.lower()] == resource_name


async def test_who_lacks_the_right_changes_nothing_and_is_noted(
    node: Node, operators: Callable[[str], Awaitable[Operator]], entries: list[Entry]
) -> None:
    before = tables_of(broker_of(node))
    stranger = await operators("stranger")
    for name, do in stranger.changes.items():
        entries.clear()
        assert not await do(), name
        (entry,) = entries
        assert (entry.user, entry.decision) == ("stranger", Decision.DENIED), name
        assert not entry.shown
    assert tables_of(broker_of(node)) == before
