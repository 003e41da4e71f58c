"""Pulling by offset through RocketMQ's API."""

import asyncio
import time
from typing import Any

import duolog
import pytest

from duolog_server.compat.grpc.protocol.stubs import Code, definition, service
from duolog_server.serve.server import Node
from tests.compat.grpc.api import Api, message, resource


def queue(queue_id: int = 0, topic: str = "T") -> Any:
    return definition.MessageQueue(topic=resource(topic), id=queue_id)


async def pull(api: Api, offset: int, **how: Any) -> tuple[int, list[Any], int]:
    """The code, the messages, and where to go on."""
    request = service.PullMessageRequest(
        group=resource("g"),
        message_queue=how.pop("where", queue()),
        offset=offset,
        batch_size=how.pop("batch", 32),
        filter_expression=definition.FilterExpression(
            type=how.pop("kind", definition.FilterType.TAG), expression=how.pop("expression", "*")
        ),
    )
    request.long_polling_timeout.FromMilliseconds(how.pop("wait_ms", 0))
    code, found, following = 0, [], -1
    async for reply in api.stub.PullMessage(request, timeout=20, metadata=api.metadata):
        match reply.WhichOneof("content"):
            case "status":
                code = reply.status.code
            case "message":
                found.append(reply.message)
            case "next_offset":
                following = reply.next_offset
    return code, found, following


@pytest.fixture
async def filled(api: Api, node: Node) -> Api:
    """Ten messages of one message group, in one queue; the fixture says which."""
    for k in range(10):
        sent = message(b"%d" % k, tag="ab"[k % 2])
        sent.system_properties.message_group = "one"
        reply = await api.send(sent)
        assert reply.status.code == Code.OK
    return api


async def the_queue(api: Api) -> Any:
    for queue_id in range(2):
        if (await pull(api, 0, where=queue(queue_id)))[1]:
            return queue(queue_id)
    raise AssertionError("no queue has anything")


async def test_a_pull_returns_messages_and_the_next_offset(filled: Api) -> None:
    where = await the_queue(filled)
    code, found, following = await pull(filled, 3, where=where, batch=4)
    assert (code, following) == (Code.OK, 7)
    assert [one.body for one in found] == [b"3", b"4", b"5", b"6"]
    assert [one.system_properties.queue_offset for one in found] == [3, 4, 5, 6]
    assert {one.system_properties.message_group for one in found} == {"one"}
    code, found, following = await pull(filled, 0, where=where, expression="b")
    assert [one.body for one in found] == [b"1", b"3", b"5", b"7", b"9"]
    assert following == 10


async def test_a_pull_waits_at_the_end_and_refuses_invalid_offsets(filled: Api) -> None:
    where = await the_queue(filled)
    code, found, following = await pull(filled, 10, where=where)
    assert (code, found, following) == (Code.MESSAGE_NOT_FOUND, [], 10)
    waiting = asyncio.ensure_future(pull(filled, 10, where=where, wait_ms=4000))
    await asyncio.sleep(0.05)
    late = message(b"late")
    late.system_properties.message_group = "one"
    await filled.send(late)
    code, found, following = await waiting
    assert (code, [one.body for one in found], following) == (Code.OK, [b"late"], 11)
    code, _, following = await pull(filled, 99, where=where)
    assert (code, following) == (Code.ILLEGAL_OFFSET, 11)
    assert (await pull(filled, -1, where=where))[0] == Code.ILLEGAL_OFFSET
    assert (await pull(filled, 0, where=queue(7)))[0] == Code.BAD_REQUEST
    assert (await pull(filled, 0, where=queue(0, "nowhere")))[0] == Code.TOPIC_NOT_FOUND
    sql = definition.FilterType.SQL
    assert (await pull(filled, 0, kind=sql, expression="a >"))[0] == (
        Code.ILLEGAL_FILTER_EXPRESSION
    )


async def test_offsets_are_queried_by_group_and_by_time(filled: Api) -> None:
    where = await the_queue(filled)
    get = service.GetOffsetRequest(group=resource("g"), message_queue=where)
    assert (await filled.call("GetOffset", get)).status.code == Code.OFFSET_NOT_FOUND
    update = service.UpdateOffsetRequest(group=resource("g"), message_queue=where, offset=4)
    assert (await filled.call("UpdateOffset", update)).status.code == Code.OK
    assert (await filled.call("GetOffset", get)).offset == 4
    update.offset = -1
    assert (await filled.call("UpdateOffset", update)).status.code == Code.ILLEGAL_OFFSET

    policies = definition.QueryOffsetPolicy
    query = service.QueryOffsetRequest(message_queue=where)
    for policy, offset in ((policies.BEGINNING, 0), (policies.END, 10)):
        query.query_offset_policy = policy
        assert (await filled.call("QueryOffset", query)).offset == offset
    query.query_offset_policy = policies.TIMESTAMP
    assert (await filled.call("QueryOffset", query)).status.code == Code.BAD_REQUEST
    query.timestamp.FromMilliseconds(int(time.time() * 1000) - 60_000)
    assert (await filled.call("QueryOffset", query)).offset == 0


async def test_messages_acknowledged_to_the_sdk_can_be_pulled(
    api: Api, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over frames, a send is answered first and dispatched later."""
    monkeypatch.setenv("DUOLOG_TRANSPORT", "frames")
    monkeypatch.setattr("duolog_server.node.engine.log.LATER_SECONDS", 60)
    async with (
        duolog.Client(f"127.0.0.1:{node.port}", timeout=10) as client,
        client.producer() as producer,
    ):
        for k in range(20):
            await producer.send("T", b"%d" % k, queue_id=0)
            code, found, following = await pull(api, k)
            assert (code, [one.body for one in found]) == (Code.OK, [b"%d" % k])
            assert following == k + 1
