"""Replies to requests: they reach the client that asked, and are stored."""

import asyncio
import json

import duolog
import pytest
from duolog.testing._ports import free_endpoint

from duolog_server.compat.remoting.codec.codes import RequestCode, ResponseCode
from duolog_server.compat.remoting.codec.command import Command, Serialization
from duolog_server.serve.server import Node
from tests.compat.remoting.client import LETTERS, Remoting, connected
from tests.compat.remoting.test_sending import properties_of, stored
from tests.node.replicas import broker_of
from tests.nodefixtures import StartNode

TOPIC = "DefaultCluster_REPLY_TOPIC"
ASKS = "CORRELATION_ID\x01c1\x02REPLY_TO_CLIENT\x01{}\x02TTL\x013000"
FIELDS = {
    "producerGroup": "q", "topic": TOPIC, "defaultTopic": "TBW102", "defaultTopicQueueNums": 4,
    "queueId": 0, "sysFlag": 0, "bornTimestamp": 7, "flag": 3,
}  # fmt: skip


def reply(
    client: Remoting, to: str, body: bytes = b"yes", topic: str = TOPIC
) -> "asyncio.Future[Command]":
    """SEND_REPLY_MESSAGE_V2."""
    properties = "MSG_TYPE\x01reply\x02" + ASKS.format(to) if to else "MSG_TYPE\x01reply"
    short = {LETTERS[name]: value for name, value in {**FIELDS, "topic": topic}.items()}
    return client.begin(RequestCode.SEND_REPLY_MESSAGE_V2, {**short, "i": properties}, body)


@pytest.mark.parametrize("form", Serialization)
async def test_a_reply_reaches_the_client_that_asked(node: Node, form: Serialization) -> None:
    async with connected(node, form) as asking, connected(node, form) as replying:
        await asking.produce("asker")
        await asking.send("T", b"really?", ASKS.format("asker") + "\x02CLUSTER\x01other")
        request = await stored(node, "T")
        assert properties_of(request)["CLUSTER"] == "DefaultCluster"  # RocketMQ's replies need it

        answered = reply(replying, "asker")
        pushed = await asking.asked()
        assert pushed.code == RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT
        assert (pushed.body, pushed.fields["topic"]) == (b"yes", TOPIC)
        assert pushed.fields["bornHost"] == replying.address()
        names = [pair.partition("\x01")[0] for pair in pushed.fields["properties"].split("\x02")]
        assert names == [
            "MSG_TYPE", "CORRELATION_ID", "REPLY_TO_CLIENT", "TTL", "PUSH_REPLY_TIME", "",
        ]  # fmt: skip
        assert not pushed.is_oneway
        assert not answered.done()
        asking.write(pushed.answer(0).frame())
        sent = await answered
    assert (sent.code, sent.fields["MSG_REGION"]) == (ResponseCode.SUCCESS, "DefaultRegion")
    record = await stored(node, TOPIC)
    assert (record.body, record.flag) == (b"yes", 3)
    assert int(sent.fields["msgId"][16:], 16) == record.physical_offset


async def test_the_long_names_say_the_same(node: Node, remoting: Remoting) -> None:
    await remoting.produce("asker")
    fields = {**FIELDS, "properties": ASKS.format("asker")}
    answered = remoting.begin(RequestCode.SEND_REPLY_MESSAGE, fields, b"yes")
    pushed = await remoting.asked()
    remoting.write(pushed.answer(0).frame())
    assert (await answered).code == ResponseCode.SUCCESS


async def test_a_client_that_is_not_here_is_reported(node: Node, remoting: Remoting) -> None:
    gone = await reply(remoting, "asker")
    assert gone.code == ResponseCode.SYSTEM_ERROR
    assert gone.remark == "push reply message fail, channel of <asker> not found."
    unnamed = await reply(remoting, "")
    assert unnamed.remark == "reply message properties[REPLY_TO_CLIENT] is null"
    assert (await stored(node, TOPIC, 0, 1)).body == b"yes", "as in RocketMQ, it is stored anyway"


@pytest.mark.parametrize("ends", [True, False])
async def test_a_client_that_does_not_take_a_reply(node: Node, ends: bool) -> None:
    async with connected(node) as asking, connected(node) as replying:
        await asking.produce("asker")
        answered = reply(replying, "asker")
        pushed = await asking.asked()
        if ends:
            asking.close()
        else:
            asking.write(pushed.answer(ResponseCode.SYSTEM_ERROR, "no").frame())
        sent = await answered
    assert (sent.code, sent.remark) == (
        ResponseCode.SYSTEM_ERROR, "push reply message to askerfail.",
    )  # fmt: skip


async def test_replies_need_not_be_stored(start_node: StartNode) -> None:
    made = await start_node(
        remoting={"listen": free_endpoint(), "store_reply_message_enable": False}
    )
    async with connected(made) as remoting:
        await remoting.produce("asker")
        answered = reply(remoting, "asker")
        remoting.write((await remoting.asked()).answer(0).frame())
        sent = await answered
        assert sent.code == ResponseCode.SUCCESS
        assert (sent.fields["msgId"], sent.fields["queueOffset"]) == ("0", "0")
        assert TOPIC not in broker_of(made).metadata.topics


async def test_the_topic_of_replies_has_a_route_before_the_first(remoting: Remoting) -> None:
    found = await remoting.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": TOPIC})
    assert found.code == ResponseCode.SUCCESS
    (queues,) = json.loads(found.body)["queueDatas"]
    assert (queues["writeQueueNums"], queues["perm"]) == (1, 6)


@pytest.mark.parametrize("stores", [True, False])
async def test_replies_over_a_quota_are_not_pushed(start_node: StartNode, stores: bool) -> None:
    made = await start_node(
        remoting={"listen": free_endpoint(), "store_reply_message_enable": stores}
    )
    async with (
        connected(made) as remoting,
        duolog.Client(f"127.0.0.1:{made.port}", timeout=10) as client,
    ):
        await client.admin.create_topic(TOPIC, 1)
        await client.admin.put_quota(f"Topic:{TOPIC}", messages_in=1, burst_ms=1)
        codes = []
        for _ in range(3):
            answer = await reply(remoting, "nobody")  # a push to nobody is an error at once
            codes.append(answer.code)
        assert codes[0] == ResponseCode.SYSTEM_ERROR
        assert ResponseCode.SYSTEM_BUSY in codes


async def test_waiting_replies_have_a_bound(
    start_node: StartNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("duolog_server.compat.remoting.producing.replies.HELD_BYTES_MAX", 10_000)
    made = await start_node(remoting={"listen": free_endpoint()})
    async with connected(made) as remoting:
        await remoting.produce("asker")
        first = reply(remoting, "asker", b"x" * 8_000)
        pushed = await remoting.asked()
        refused = await reply(remoting, "asker", b"x" * 8_000)
        assert refused.code == ResponseCode.SYSTEM_BUSY
        remoting.write(pushed.answer(0).frame())
        assert (await first).code == ResponseCode.SUCCESS
        again = reply(remoting, "asker", b"x" * 8_000)
        remoting.write((await remoting.asked()).answer(0).frame())
        assert (await again).code == ResponseCode.SUCCESS
