"""The audit log of a node: what operators change, and what is denied, in a file and as a topic."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import duolog
import grpc
import grpc.aio
import pytest
from duolog._runtime import MACHINE
from duolog.wire import duolog_pb2 as wire
from duolog.wire import duolog_pb2_grpc as stubs
from structlog.testing import capture_logs

from duolog_server.node.audit import auditlog
from duolog_server.node.audit.auditfile import AuditFile
from duolog_server.node.identity.access.recovery import Claims, Place
from duolog_server.node.identity.access.secrets import read_key
from duolog_server.ops.cli.node import problems_of
from duolog_server.ops.cli.recovery import recover_everywhere
from duolog_server.serve.server import Node
from tests.keyfiles import access_files
from tests.node.api.test_messages import append, append_request
from tests.node.api.test_rights import words
from tests.node.replicas import Group, broker_of, caught_up, master_of
from tests.nodefixtures import StartNode
from tests.until import until

PASSWORD = "a password of the test"
TOPIC = "DUOLOG_SYS_AUDIT"
FAILED, AGAIN = "cannot write the audit log: trying again", "the audit log is written again"
Row = dict[str, Any]


def rows_of(path: Path) -> list[Row]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def events(logs: Sequence[Mapping[str, Any]]) -> list[str]:
    return [line["event"] for line in logs]


def is_written(node: Node) -> bool:
    """Whether no entry waits."""
    return broker_of(node).status()["audit_waiting"] == 0


def written(node: Node, to: str) -> int:
    """Entries that the metric counts as written to a place."""
    audit = broker_of(node).audit
    assert audit is not None
    return audit.outlets[to].written


async def noted(path: Path, **wanted: Any) -> Row:
    """The one entry with these fields, once it is written."""

    def found() -> list[Row]:
        return [row for row in rows_of(path) if wanted.items() <= row.items()]

    await until(lambda: bool(found()))
    (row,) = found()
    return row


@pytest.fixture
def log_file(tmp_path: Path) -> Path:
    return tmp_path / "audit.log"


@pytest.fixture
async def node(start_node: StartNode, tmp_path: Path, log_file: Path) -> Node:
    """With a super user root and a user alice without rights."""
    audit = {"file": log_file, "topic": True}
    made = await start_node(access=access_files(tmp_path, PASSWORD), audit=audit)
    async with client_of(made, "root") as root:
        await root.access.create_user("root", PASSWORD, is_super=True)
        await root.access.create_user("alice", PASSWORD)
        await root.admin.create_topic("T", 1)
    return made


def client_of(node: Node, user: str, password: str = PASSWORD) -> duolog.Client:
    return duolog.Client(f"127.0.0.1:{node.port}", timeout=10, user=user, password=password)


async def test_a_change_is_noted_with_who_from_where_and_what(node: Node, log_file: Path) -> None:
    row = await noted(log_file, method="Admin/CreateTopic")
    assert row.pop("time")
    assert [*row["request"]] == ["topic", "queues", "perm", "lite_ttl_minutes"], "in one order"
    assert row == {
        "node": "test",
        "user": "root",
        "source": "127.0.0.1",
        "method": "Admin/CreateTopic",
        "resource": "Topic:T",
        "decision": "allowed",
        "request": {"topic": "T", "queues": 1, "perm": 6, "lite_ttl_minutes": 0},
    }
    async with client_of(node, "root") as root:
        await root.access.set_rights("alice", '{"policies": []}')
        await root.admin.put_quota("User:alice", bytes_in=5)
        await root.admin.topics()
        with pytest.raises(duolog.BadRequest):
            await root.access.delete_user("nobody")
    rights = await noted(log_file, method="Access/PutRights")
    assert rights["request"] == {"user": "alice", "rights": '{"policies": []}'}
    assert (await noted(log_file, method="Admin/PutQuota"))["resource"] == "User:alice"
    failed = await noted(log_file, method="Access/DeleteUser", decision="failed")
    assert failed["reason"] == "BadRequest: there is no user 'nobody'"
    assert not [row for row in rows_of(log_file) if row["method"] == "Admin/ListTopics"]


async def test_a_trim_is_noted_and_a_dry_run_only_where_it_is_denied(
    node: Node, log_file: Path
) -> None:
    async with client_of(node, "root") as root, client_of(node, "alice") as alice:
        await root.admin.trim_topic("T", 5, dry_run=True)
        await root.admin.trim_topic("T", 5)
        with pytest.raises(duolog.NoPermission):
            await alice.admin.trim_topic("T", 6, dry_run=True)
    done = await noted(log_file, method="Admin/TrimTopic", decision="allowed")
    assert done["request"] == {"topic": "T", "time": 5}
    denied = await noted(log_file, method="Admin/TrimTopic", decision="denied")
    assert denied["user"] == "alice"


async def test_denied_calls_are_noted_with_what_decided(node: Node, log_file: Path) -> None:
    async with client_of(node, "alice") as alice:
        with pytest.raises(duolog.NoPermission):
            await alice.pull("T", 0, 0)
        with pytest.raises(duolog.NoPermission):
            await alice.admin.delete_topic("T")
        assert (await append(alice, append_request([b"x"]))).status == wire.NO_PERMISSION
    row = await noted(log_file, method="Messages/Pull")
    assert (row["user"], row["resource"], row["decision"]) == ("alice", "Topic:T", "denied")
    assert row["reason"] == "user alice: denied: the user has no entries"
    assert (await noted(log_file, method="Admin/DeleteTopic"))["decision"] == "denied"
    batch = await noted(log_file, method="Messages/Append")
    assert (batch["user"], batch["source"], batch["resource"]) == ("alice", "127.0.0.1", "Topic:T")


async def test_a_refused_login_is_noted_and_no_secret_ever(node: Node, log_file: Path) -> None:
    wrong = "a wrong password"
    async with client_of(node, "alice", wrong) as stranger:
        with pytest.raises(duolog.Unauthenticated):
            await stranger.access.who_am_i()
    row = await noted(log_file, method="Access/WhoAmI")
    assert (row["user"], row["decision"]) == ("", "denied")
    assert "user 'alice'" in row["reason"]
    async with client_of(node, "root") as root:
        await root.access.alter_user("alice", password="quite a new one", signs=True)
        token = await root.access.issue_token(60, user="alice")
    issued = await noted(log_file, method="Access/IssueToken")
    assert issued["request"] == {"user": "alice", "seconds": 60}
    told = log_file.read_text()
    for secret in (PASSWORD, wrong, "quite a new one", token, words("root", PASSWORD)[0][1]):
        assert secret not in told


async def test_a_recovery_is_noted_and_so_is_one_with_another_key(
    node: Node, tmp_path: Path, log_file: Path
) -> None:
    """No guard is before it, and whoever has the key becomes a super user."""
    key = read_key(Path(access_files(tmp_path, PASSWORD)["key_file"]))
    new, endpoints = "a brand new word", (f"127.0.0.1:{node.port}",)
    ours = Claims(key, "alice", new)
    with pytest.raises(duolog.Unauthenticated):
        await recover_everywhere(endpoints, MACHINE, Claims(b"o" * 32, "alice", new), 20)
    await recover_everywhere(endpoints, MACHINE, ours, 20)
    denied = await noted(log_file, method="Recovery/Recover", decision="denied")
    assert (denied["user"], denied["source"]) == ("", "127.0.0.1")
    assert (denied["resource"], "request" in denied) == ("User:alice", False)
    assert "another key" in denied["reason"]
    done = await noted(log_file, method="Recovery/Recover", decision="allowed")
    assert (done["user"], done["source"], done["resource"]) == ("", "127.0.0.1", "User:alice")
    assert done["request"] == {"user": "alice"}
    told = log_file.read_text()
    assert new not in told
    assert ours.answer("", Place("", "", ""))[0].password_hash not in told


async def test_a_stream_that_is_refused_is_noted(node: Node, log_file: Path) -> None:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{node.port}") as channel:
        call = stubs.MessagesStub(channel).Subscribe(metadata=words("alice", PASSWORD))
        await call.write(wire.SubscribeRequest(add=[wire.QueueOffset(topic="T")]))
        assert await call.code() is grpc.StatusCode.PERMISSION_DENIED
    row = await noted(log_file, method="Messages/Subscribe")
    assert (row["user"], row["decision"], row["resource"]) == ("alice", "denied", "Topic:T")


async def test_the_entries_are_a_topic_for_super_users_alone(node: Node, log_file: Path) -> None:
    async with client_of(node, "root") as root, client_of(node, "alice") as alice:
        with pytest.raises(duolog.NoPermission):
            await alice.admin.create_topic("U", 1)
        await noted(log_file, method="Admin/CreateTopic", decision="denied")
        await until(lambda: is_written(node))
        batch = await root.pull(TOPIC, 0, 0)
        assert [json.loads(message.body) for message in batch] == rows_of(log_file)
        denied = await root.pull(TOPIC, 0, 0, tags=["denied"])
        assert {json.loads(message.body)["decision"] for message in denied} == {"denied"}
        rights = '{"policies": [{"policyType": "Custom", "entries": [{"resource": "*", "actions": '
        await root.access.set_rights("alice", rights + '["All"], "decision": "Allow"}]}]}')
        with pytest.raises(duolog.NoPermission, match="only super users"):
            await alice.pull(TOPIC, 0, 0)
        with pytest.raises(duolog.NoPermission):
            await alice.admin.delete_topic(TOPIC)
        for change in (root.admin.delete_topic(TOPIC), root.admin.alter_topic(TOPIC, queues=2)):
            with pytest.raises(duolog.BadRequest, match="belongs to the system"):
                await change
        assert (await append(root, append_request([b"{}"], topic=TOPIC))).status != wire.PUT_OK


async def test_without_users_changes_are_noted_by_address(
    start_node: StartNode, log_file: Path
) -> None:
    node = await start_node(audit={"file": log_file, "level": "all"})
    async with duolog.Client(f"127.0.0.1:{node.port}", timeout=10) as client:
        await client.admin.create_topic("T", 1)
        await client.admin.topics()
    row = await noted(log_file, method="Admin/CreateTopic")
    assert (row["user"], row["source"], row["decision"]) == ("", "127.0.0.1", "allowed")
    assert (await noted(log_file, method="Admin/ListTopics"))["decision"] == "allowed"


async def test_what_was_noted_shortly_before_a_stop_is_in_the_file(
    start_node: StartNode, tmp_path: Path, log_file: Path
) -> None:
    node = await start_node(access=access_files(tmp_path, PASSWORD), audit={"file": log_file})
    async with client_of(node, "root") as root:
        await root.access.create_user("root", PASSWORD, is_super=True)
        for _ in range(3):
            with pytest.raises(duolog.BadRequest):
                await root.access.delete_user("nobody")
    async with client_of(node, "stranger") as stranger:
        for _ in range(3):
            with pytest.raises(duolog.Unauthenticated):
                await stranger.access.who_am_i()
    await node.stop()
    found = rows_of(log_file)
    failed = [row["method"] for row in found if row["decision"] == "failed"]
    assert failed == ["Access/DeleteUser"] * 3
    assert sum(row.get("times", 1) for row in found if row["method"] == "Access/WhoAmI") == 3


async def test_a_slave_notes_in_its_file_alone_and_has_its_masters_topic(
    start_node: StartNode, tmp_path: Path
) -> None:
    group = Group(start_node, tmp_path)
    master = await group.start_master(audit={"file": tmp_path / "m.log", "topic": True})
    slave = await group.start_slave(
        audit={"file": tmp_path / "s.log", "topic": True, "level": "all"}
    )
    machine = master_of(master)
    await until(lambda: machine.in_sync() == 2)
    async with group.client(master, slave) as client:
        await client.admin.create_topic("T", 1)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{slave.port}") as channel:
        admin = stubs.AdminStub(channel)
        with pytest.raises(grpc.aio.AioRpcError, match="FAILED_PRECONDITION"):
            await admin.CreateTopic(wire.TopicRequest(topic="U"))
        await admin.NodeStatus(wire.NodeStatusRequest())
    assert (await noted(tmp_path / "m.log", method="Admin/CreateTopic"))["node"] == "m"
    assert (await noted(tmp_path / "s.log", method="Admin/NodeStatus"))["node"] == "s"
    assert {row["method"] for row in rows_of(tmp_path / "s.log")} == {"Admin/NodeStatus"}
    await until(lambda: is_written(master) and is_written(slave))
    assert [written(slave, to) > 0 for to in ("file", "topic")] == [True, False]
    assert written(master, "topic") == written(master, "file") == 1
    await caught_up(master, slave)
    async with group.client(slave) as client:
        batch = await client.pull(TOPIC, 0, 0)
    assert {json.loads(message.body)["node"] for message in batch} == {"m"}


async def test_a_file_that_cannot_be_written_blocks_no_call_and_is_written_later(
    start_node: StartNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "missing" / "audit.log"
    path.parent.write_text("no directory")
    opened, tries = AuditFile.open, []

    def counted(file: AuditFile) -> None:
        tries.append(file)
        opened(file)

    monkeypatch.setattr(AuditFile, "open", counted)
    monkeypatch.setattr(auditlog, "AGAIN_SECONDS", 0.01)
    with capture_logs() as logs:
        node = await start_node(audit={"file": path})
        await until(lambda: FAILED in events(logs))  # before there is anything to write
        async with duolog.Client(f"127.0.0.1:{node.port}", timeout=10) as client:
            await client.admin.create_topic("T", 1)
            assert broker_of(node).status()["audit_waiting"] == 1
            problem = "its audit log cannot be written to audit.file: 1 entries wait"
            assert problems_of(await client.admin.node_status()) == [problem]
            await until(lambda: len(tries) > 3)
            path.parent.unlink()
            await noted(path, method="Admin/CreateTopic")
            await until(lambda: is_written(node))
            assert problems_of(await client.admin.node_status()) == []
            place = ("T", "broker-a", 0)
            await client.admin.commit("g", {place: 0}, forward=True)
            await client.admin.commit("g", {place: 0})
            entry = await noted(path, method="Groups/Commit")
            assert entry["request"] == {"group": "g", "offsets": ["T/0@0"]}
    assert broker_of(node).status()["audit_lost"] == 0
    assert [event for event in events(logs) if "audit log" in event] == [FAILED, AGAIN]


async def test_the_port_of_the_metrics_notes_whom_it_refuses(
    start_node: StartNode, tmp_path: Path, log_file: Path
) -> None:
    node = await start_node(
        access=access_files(tmp_path, PASSWORD),
        audit={"file": log_file},
        metrics={"listen": "127.0.0.1:0"},
    )
    assert node.metrics is not None
    reader, writer = await asyncio.open_connection("127.0.0.1", node.metrics.port)
    writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    assert b" 401 " in await reader.readline()
    writer.close()
    row = await noted(log_file, method="GET /metrics")
    assert (row["source"], row["decision"]) == ("127.0.0.1", "denied")
