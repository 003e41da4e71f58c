"""Offsets set back or forward by tools, with members and without."""

import json
from typing import Any

import duolog
import pytest

from duolog_server.compat.remoting.codec.codes import RequestCode, ResponseCode
from duolog_server.compat.remoting.codec.fastjson import loads
from duolog_server.serve.server import Node
from tests.compat.remoting.administration.support import queue, refused, told
from tests.compat.remoting.client import Remoting, connected

RESET = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET
ALL: dict[str, Any] = {"topic": "T", "group": "g", "isForce": "true"}


async def offsets(node: Node, group: str = "g") -> list[int | None]:
    async with duolog.Client(f"127.0.0.1:{node.port}", timeout=10) as client:
        found = await client.admin.group(group)
    return [one.committed for one in found.queues if one.topic == "T"]


async def send_two(remoting: Remoting) -> None:
    for queue_id in (0, 0, 1):
        await remoting.send("T", b"x", queue_id=queue_id)


async def test_a_group_without_members_goes_where_it_is_told(
    node: Node, remoting: Remoting
) -> None:
    await send_two(remoting)
    found = await told(remoting, RESET, **ALL, timestamp=-1)
    assert found["offsetTable"] == {queue(0): 2, queue(1): 1, queue(2): 0, queue(3): 0}
    assert await offsets(node) == [2, 1, 0, 0]
    await told(remoting, RESET, **ALL, timestamp=0)
    assert await offsets(node) == [0, 0, 0, 0]


async def test_without_force_no_queue_goes_forward(node: Node, remoting: Remoting) -> None:
    await send_two(remoting)
    one = {**ALL, "queueId": 1, "offset": 0}
    found = await told(remoting, RESET, **{**ALL, "isForce": "false"}, timestamp=-1)
    assert found["offsetTable"][queue(0)] == 2, "a group without offsets gets some"
    assert await offsets(node) == [2, 1, 0, 0]
    await told(remoting, RESET, **one, timestamp=0)
    assert await offsets(node) == [2, 0, 0, 0]
    found = await told(remoting, RESET, **{**ALL, "isForce": "false"}, timestamp=-1)
    assert found["offsetTable"][queue(1)] == 0
    assert await offsets(node) == [2, 0, 0, 0]
    await told(remoting, RESET, **{**ALL, "isForce": "false"}, timestamp=0)
    assert await offsets(node) == [0, 0, 0, 0]


async def test_one_queue_goes_to_an_offset_or_its_end(node: Node, remoting: Remoting) -> None:
    await send_two(remoting)
    await told(remoting, RESET, **ALL, timestamp=0)
    found = await told(remoting, RESET, **ALL, queueId=0, offset=99, timestamp=-1)
    assert found["offsetTable"] == {queue(0): 2}
    assert await offsets(node) == [2, 0, 0, 0]
    outside = await refused(remoting, RESET, **ALL, queueId=4, timestamp=0)
    assert outside[0] == ResponseCode.SYSTEM_ERROR
    unknown = await refused(remoting, RESET, **{**ALL, "topic": "U"}, timestamp=0)
    assert unknown[0] == ResponseCode.TOPIC_NOT_EXIST


async def test_members_are_told_where_to_go_on(node: Node, remoting: Remoting) -> None:
    await send_two(remoting)
    async with connected(node) as java, connected(node) as cpp:
        await java.beat("c1", "g", "T", language="JAVA")
        await cpp.beat("c2", "g", "T", language="CPP")
        await told(remoting, RESET, **ALL, timestamp=-1)
        requests = {}
        for client in (java, cpp):
            while (command := await client.told.get()).code != 220:
                pass
            requests[client] = command
        assert requests[java].is_oneway
        assert requests[java].fields["topic"] == "T"
        assert requests[java].fields["timestamp"] == "-1"
        assert requests[java].fields["isForce"] == "true"
        found = loads(requests[java].body)
        assert isinstance(found, dict)
        assert found["offsetTable"] == {queue(0): 2, queue(1): 1, queue(2): 0, queue(3): 0}
        rows = json.loads(requests[cpp].body)["offsetTable"]
        assert rows[0] == {"brokerName": "broker-a", "offset": 2, "queueId": 0, "topic": "T"}
    assert await offsets(node) == []  # members commit what they were told


@pytest.mark.parametrize("more", [{"timestamp": -1}, {"timestamp": 0, "queueId": 0, "offset": 0}])
async def test_members_of_other_apis_are_to_be_stopped_first(
    node: Node, remoting: Remoting, more: dict[str, Any]
) -> None:
    async with (
        duolog.Client(f"127.0.0.1:{node.port}", timeout=10) as client,
        client.consumer("g", "T"),
        connected(node) as member,
    ):
        code, remark = await refused(remoting, RESET, **ALL, **more)
        assert code == ResponseCode.SYSTEM_BUSY
        assert "stop them first" in remark
        await member.beat("c1", "g", "T")
        assert (await refused(remoting, RESET, **ALL, **more))[0] == code
