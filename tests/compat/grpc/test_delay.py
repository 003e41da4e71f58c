"""Delivery times and recall through RocketMQ's API."""

import asyncio
import time
from typing import Any

import pytest

from duolog_server.compat.grpc.protocol.stubs import Code, definition, service
from duolog_server.serve.server import Node
from tests.compat.grpc.api import Api, message, resource


def soon(ms: int) -> int:
    return int(time.time() * 1000) + ms


async def recall(api: Api, handle: str, topic: str = "T") -> Any:
    request = service.RecallMessageRequest(topic=resource(topic), recall_handle=handle)
    return await api.call("RecallMessage", request)


async def test_a_message_with_a_delivery_time_is_not_seen_before(api: Api) -> None:
    at = soon(2000)  # after the end of the first poll, which takes half a second
    reply = await api.send(message(b"x", delivery_ms=at, message_id="01AA", tag="A"))
    assert reply.status.code == Code.OK
    assert reply.entries[0].recall_handle
    received = await api.receive("g")
    assert received.code == Code.MESSAGE_NOT_FOUND or int(time.time() * 1000) >= at
    if not received.messages:
        received = await api.receive("g", timeout=20)
    assert int(time.time() * 1000) >= at
    (found,) = received.messages
    assert (found.body, found.system_properties.message_id) == (b"x", "01AA")
    assert found.system_properties.tag == "A"
    assert found.system_properties.message_type == definition.MessageType.DELAY
    assert found.system_properties.delivery_timestamp.ToMilliseconds() == at
    assert not found.user_properties


async def test_a_past_delivery_time_means_now_and_one_too_distant_is_refused(api: Api) -> None:
    assert (await api.send(message(b"past", delivery_ms=1000))).entries[0].recall_handle == ""
    (found,) = (await api.receive("g")).messages
    assert found.body == b"past"
    assert found.system_properties.message_type == definition.MessageType.DELAY
    assert found.system_properties.delivery_timestamp.ToMilliseconds() == 1000
    far = await api.send(message(delivery_ms=soon(4 * 86_400_000)))
    assert far.status.code == Code.ILLEGAL_DELIVERY_TIME


async def test_a_message_is_recalled_once_and_never_comes(api: Api, node: Node) -> None:
    reply = await api.send(message(b"x", delivery_ms=soon(4000), message_id="01BB"))
    handle = reply.entries[0].recall_handle
    recalled = await recall(api, handle)
    assert (recalled.status.code, recalled.message_id) == (Code.OK, "01BB")
    assert (await recall(api, handle)).status.code == Code.NOT_FOUND
    await asyncio.sleep(4.2)
    assert (await api.receive("g")).code == Code.MESSAGE_NOT_FOUND


async def test_a_recall_that_is_too_late_is_refused(api: Api) -> None:
    reply = await api.send(message(b"x", delivery_ms=soon(200)))
    assert (await api.receive("g", timeout=20)).bodies == [b"x"]
    late = await recall(api, reply.entries[0].recall_handle)
    assert late.status.code == Code.NOT_FOUND


@pytest.mark.parametrize("handle", ["", "x", "djEKYQ==", "Äß"])
async def test_forged_recall_handles_are_refused(api: Api, handle: str) -> None:
    assert (await recall(api, handle)).status.code == Code.BAD_REQUEST


async def test_a_recall_handle_of_another_topic_is_refused(api: Api, node: Node) -> None:
    reply = await api.send(message(b"x", delivery_ms=soon(5000)))
    handle = reply.entries[0].recall_handle
    assert (await recall(api, handle, topic="U")).status.code == Code.BAD_REQUEST
    assert (await recall(api, handle)).status.code == Code.OK
