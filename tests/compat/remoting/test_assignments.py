"""Queues that the node assigns to clients of RocketMQ 5, and how they are read."""

import json
from contextlib import AsyncExitStack

import duolog
import pytest

from duolog_server.compat.remoting.codec.codes import ResponseCode
from duolog_server.compat.remoting.codec.command import Command
from duolog_server.serve.server import Node
from tests.compat.remoting.client import Remoting, connected
from tests.node.replicas import broker_of


def queues(answer: Command, mode: str = "PULL") -> list[int] | None:
    """The numbers of the queues; None where a client keeps what it has."""
    assert answer.code == 0, answer.remark
    rows = json.loads(answer.body).get("messageQueueAssignments")
    if rows is None:
        return None
    for row in rows:
        assert row["mode"] == mode
        assert row["messageQueue"]["brokerName"] == "broker-a"
    return [row["messageQueue"]["queueId"] for row in rows]


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [("AVG", [[0, 1], [2], [3]]), ("AVG_BY_CIRCLE", [[0, 3], [1], [2]])],
)
async def test_members_share_the_queues(
    node: Node, strategy: str, expected: list[list[int]]
) -> None:
    async with AsyncExitStack() as stack:
        made = [await stack.enter_async_context(connected(node)) for _ in expected]
        for k, one in enumerate(made):
            await one.beat(f"c{k}", "g", "T")
        found = [
            queues(await one.assignment(f"c{k}", "g", "T", strategy)) for k, one in enumerate(made)
        ]
    assert found == expected


async def test_each_queue_has_one_member_by_hashes(node: Node, remoting: Remoting) -> None:
    async with connected(node) as other:
        await remoting.beat("a", "g", "T")
        await other.beat("b", "g", "T")
        found = [queues(await one.assignment(name, "g", "T", "CONSISTENT_HASH")) or []
                 for one, name in ((remoting, "a"), (other, "b"))]  # fmt: skip
    assert sorted(found[0] + found[1]) == [0, 1, 2, 3]


async def test_a_client_whose_heartbeat_did_not_arrive_keeps_what_it_reads(
    remoting: Remoting,
) -> None:
    assert queues(await remoting.assignment("c", "g", "T")) is None
    await remoting.beat("c", "g", "T")
    assert queues(await remoting.assignment("c", "g", "T")) == [0, 1, 2, 3]
    assert queues(await remoting.assignment("c", "g", "%RETRY%g_T")) is None, "it has none yet"
    assert queues(await remoting.assignment("c", "g", "%RETRY%g")) == [0]
    broadcast = await remoting.assignment("c", "g", "T", messageModel="BROADCASTING")
    assert queues(broadcast) == [0, 1, 2, 3]


async def test_what_the_node_cannot_assign_is_refused(remoting: Remoting) -> None:
    await remoting.beat("c", "g", "T")
    refused = await remoting.assignment("c", "g", "T", "MACHINE_ROOM")
    assert refused.code == ResponseCode.SYSTEM_ERROR
    assert "setClientRebalance(true)" in refused.remark
    unknown = await remoting.assignment("c", "g", "unknown")
    assert unknown.code == ResponseCode.TOPIC_NOT_EXIST


async def test_all_members_of_a_group_that_pops_read_all_queues(
    node: Node, remoting: Remoting
) -> None:
    await remoting.beat("c", "g", "T")
    assert (await remoting.set_mode("g", "T")).code == 0
    assert queues(await remoting.assignment("c", "g", "T"), "POP") == [-1]
    assert queues(await remoting.assignment("c", "g", "%RETRY%g")) == [0], "by PULL"
    rows = broker_of(node).metadata.tables.groups
    assert rows["g"]["messageRequestModes"] == {"T": "POP"}
    async with duolog.Client(f"127.0.0.1:{node.port}", timeout=10) as client:
        await client.admin.put_group("g", retry_times=3)  # another setting
        await client.admin.create_topic("U", 1)
    assert (await remoting.set_mode("g", "U")).code == 0
    assert queues(await remoting.assignment("c", "g", "T"), "POP") == [-1]
    assert (await remoting.set_mode("g", "T", "PULL")).code == 0
    assert queues(await remoting.assignment("c", "g", "T")) == [0, 1, 2, 3]
    assert rows["g"]["messageRequestModes"] == {"U": "POP"}


@pytest.mark.parametrize(
    ("group", "topic", "mode", "code"),
    [
        ("unknown", "T", "POP", ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST),
        ("g", "unknown", "POP", ResponseCode.TOPIC_NOT_EXIST),
        ("g", "%RETRY%g", "POP", ResponseCode.SYSTEM_ERROR),
        ("g", "T", "PUSH", ResponseCode.SYSTEM_ERROR),
    ],
)
async def test_a_mode_that_cannot_be_set_is_refused(
    remoting: Remoting, group: str, topic: str, mode: str, code: ResponseCode
) -> None:
    await remoting.beat("c", "g", "T")
    assert (await remoting.set_mode(group, topic, mode)).code == code
