"""The audit log and RocketMQ's API: calls that are denied, by whom, and what they were about."""

import json
from pathlib import Path
from typing import Any

import pytest

from duolog_server.compat.grpc.protocol.stubs import METHODS, Code
from duolog_server.serve.server import Node
from tests.compat.grpc.api import Api
from tests.compat.grpc.users import Users, as_user, first_code, headers, requests, with_users
from tests.node.replicas import broker_of
from tests.nodefixtures import StartNode
from tests.until import until


@pytest.fixture
async def node(start_node: StartNode, tmp_path: Path) -> Node:
    audit = {"file": tmp_path / "audit.log"}
    made = await start_node(access=with_users(tmp_path), audit=audit)
    metadata = broker_of(made).metadata
    await metadata.put_topic(metadata.new_topic("T", 1, 6))
    users = Users(made)
    await users.new("root", super=True)
    await users.new("none")
    return made


async def rows(node: Node) -> list[dict[str, Any]]:
    """What is written."""
    await until(lambda: broker_of(node).status()["audit_waiting"] == 0)
    path = node.config.audit.file
    assert path is not None
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


async def test_each_method_that_is_denied_is_noted(node: Node) -> None:
    api = as_user(node, "none")
    for name, request in requests().items():
        assert await first_code(api, name, request) == Code.FORBIDDEN
    await api.close()
    found = {row["method"].removeprefix("MessagingService/"): row for row in await rows(node)}
    assert found.keys() == set(METHODS)
    for name, row in found.items():
        assert (row["user"], row["source"], row["decision"]) == ("none", "127.0.0.1", "denied")
        assert row["reason"] == "user none: denied: the user has no entries"
        about = ("",) if name == "Telemetry" else ("Topic:T", "Group:g")
        assert row["resource"] in about, name


async def test_a_wrong_signature_is_noted_without_it_and_without_a_user(node: Node) -> None:
    given = headers("none", "wrong")
    api = Api(node, **given, x_mq_duolog_user="root")
    assert await first_code(api, "SendMessage", requests()["SendMessage"]) == Code.UNAUTHORIZED
    await api.close()
    (row,) = await rows(node)
    assert (row["user"], row["source"], row["decision"]) == ("", "127.0.0.1", "denied")
    assert row["resource"] == "Topic:T"
    signature = given["authorization"].rpartition("=")[2]
    assert signature not in json.dumps(row)


async def test_a_wrong_access_key_of_a_node_without_users_is_noted(
    start_node: StartNode, tmp_path: Path
) -> None:
    keys = {"access_key": "key", "secret_key": "secret"}
    node = await start_node(rocketmq=keys, audit={"file": tmp_path / "audit.log"})
    api = Api(node, **headers("key", "wrong"))
    assert await first_code(api, "QueryRoute", requests()["QueryRoute"]) == Code.UNAUTHORIZED
    await api.close()
    (row,) = await rows(node)
    assert (row["method"], row["source"]) == ("MessagingService", "127.0.0.1")
    assert row["decision"] == "denied"
