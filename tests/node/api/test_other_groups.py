"""What a user may learn of the messages and groups of others, by whatever names them."""

from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from duolog.wire import duolog_pb2 as wire
from duolog.wire import duolog_pb2_grpc as stubs

from duolog_server.serve.server import Node
from tests.keyfiles import access_files
from tests.node.api.test_rights import PASSWORD, client_of, rights_of, words
from tests.nodefixtures import StartNode

OWN = ["Topic:B Pub,Sub,Get,List,Create,Update,Delete", "Group:b Pub,Sub,Get,List,Create,Update"]
DENIED, NONE = "PERMISSION_DENIED", "NOT_FOUND"
SESSION_MS = 9000
A = [wire.QueueRef(topic="A")]


@pytest.fixture
async def node(start_node: StartNode, tmp_path: Path) -> Node:
    """With a topic A and its group, and a user bob who has only B and its group."""
    made = await start_node(access=access_files(tmp_path, PASSWORD))
    async with client_of(made, "root") as root, root.producer() as producer:
        await root.access.create_user("root", PASSWORD, is_super=True)
        await root.access.create_user("bob", PASSWORD)
        await root.access.set_rights("bob", rights_of(OWN))
        for topic in ("A", "B", "ns%A"):
            await root.admin.create_topic(topic, 1)
            for name in ("%RETRY%a", "%DLQ%a"):
                await root.admin.create_topic(name, 1)
        for topic in ("A", "ns%A", "%DLQ%a"):
            await producer.send(topic, b"secret body", key="k", properties={"secret": "word"})
        await root.admin.put_group("a")
    return made


def calls(message_id: str, unique_key: str) -> list[tuple[str, Any, str]]:
    """Methods, requests of bob that are about what he has no right to, and how they end."""
    inside = f"{message_id[:-1]}{(int(message_id[-1], 16) + 1) % 16:X}"
    beyond = message_id[:-16] + f"{1 << 40:016X}"
    pulls = ("A", "ns%A", "%RETRY%a", "%DLQ%a", "%DLQ%%DLQ%a", "%LMQ%$A$x", "RMQ_SYS_TRACE_TOPIC")
    system = ("RMQ_SYS_TRANS_HALF_TOPIC", "SCHEDULE_TOPIC_XXXX", "DUOLOG_SYS_METADATA")
    return [
        ("Messages/Find", wire.FindRequest(message_id=message_id), NONE),
        ("Messages/Find", wire.FindRequest(message_id=inside), NONE),
        ("Messages/Find", wire.FindRequest(message_id=beyond), NONE),
        ("Messages/Find", wire.FindRequest(message_id=message_id, topic="B"), NONE),
        ("Messages/Find", wire.FindRequest(topic="B", unique_key=unique_key), NONE),
        ("Messages/Find", wire.FindRequest(topic="B", key="k"), "OK"),
        ("Messages/Find", wire.FindRequest(topic="A", key="k"), DENIED),
        ("Admin/Track", wire.TrackRequest(topic="B", key=unique_key), NONE),
        ("Admin/Track", wire.TrackRequest(topic="A", key="k"), DENIED),
        *(("Messages/Pull", wire.PullRequest(topic=one), DENIED) for one in (*pulls, *system)),
        ("Groups/SendBack", wire.SendBackRequest(group="b", topic="A"), DENIED),
        ("Groups/SendBack", wire.SendBackRequest(group="a", topic="B"), DENIED),
        ("Groups/Offsets", wire.OffsetsRequest(group="a", queues=A), DENIED),
        ("Groups/Commit", wire.CommitRequest(
            group="b", offsets=[wire.QueueOffset(topic="A")]
        ), DENIED),
        ("Groups/Heartbeat", wire.HeartbeatRequest(
            group="b", member_id="m", topics=["B"], sql="secret = ", session_ms=SESSION_MS
        ), "INVALID_ARGUMENT"),
        ("Groups/Heartbeat", wire.HeartbeatRequest(
            group="b", member_id="m", topics=["B"], owned=A, wanted=A, session_ms=SESSION_MS
        ), "OK"),
        ("Admin/DescribeGroup", wire.DescribeGroupRequest(group="a"), DENIED),
        ("Admin/PutGroup", wire.PutGroupRequest(group="b", lite_topic="A"), DENIED),
        ("Admin/ResetGroup", wire.ResetGroupRequest(
            group="b", topic="A", start=wire.EARLIEST
        ), DENIED),
        ("Admin/ListTopics", wire.ListTopicsRequest(system=True), "OK"),
        ("Admin/ListGroups", wire.ListGroupsRequest(), "OK"),
        ("Messages/EndTransactions", wire.EndTransactionsRequest(group="b", halves=[0]), NONE),
    ]  # fmt: skip


async def test_no_id_key_or_name_shows_what_belongs_to_others(node: Node) -> None:
    found, answers = [], []
    async with grpc.aio.insecure_channel(f"127.0.0.1:{node.port}") as channel:
        find = stubs.MessagesStub(channel).Find
        seen = await find(wire.FindRequest(topic="A", key="k"), metadata=words("root"), timeout=20)
        (message,) = seen.messages
        for method, request, _ in calls(message.message_id, message.properties["UNIQ_KEY"]):
            service, name = method.split("/")
            call = getattr(getattr(stubs, f"{service}Stub")(channel), name)
            try:
                answers.append(str(await call(request, metadata=words("bob"), timeout=20)))
                found.append("OK")
            except grpc.aio.AioRpcError as error:
                answers.append(str(error.details()))
                found.append(error.code().name)
    wanted = calls(message.message_id, message.properties["UNIQ_KEY"])
    assert list(zip([one[0] for one in wanted], found, strict=True)) == [
        (method, end) for method, _, end in wanted
    ]
    for text in answers:
        assert "secret body" not in text
        assert "word" not in text
        assert '"A"' not in text
    assert len({answer for answer in answers[:4]}) == 1, "each unknown id has the same answer"
