"""Every field of every request with values that nobody should send: each is answered, and well."""

import asyncio
import json

import pytest
import structlog.testing

from duolog_server.compat.remoting.codec.codes import RequestCode
from duolog_server.compat.remoting.codec.command import Command, Serialization
from duolog_server.compat.remoting.codec.fields import fields_of
from duolog_server.compat.remoting.codec.headers import SHORT_NAMES
from duolog_server.serve.server import Node
from tests.compat.remoting.client import LETTERS, SENT_ONLY, WAIT_SECONDS, Remoting, connected
from tests.compat.remoting.requests import REQUESTS
from tests.node.replicas import broker_of

SHORT = {
    RequestCode.SEND_MESSAGE_V2,
    RequestCode.SEND_BATCH_MESSAGE,
    RequestCode.SEND_REPLY_MESSAGE_V2,
}
RIGHT = {
    "topic": "T",
    "group": "g",
    "consumerGroup": "g",
    "producerGroup": "p",
    "clientID": "c",
    "defaultTopic": "TBW102",
    "key": "k",
    "msgId": "ID",
    "properties": "K\x01v",
    "expressionType": "TAG",
    "subscription": "*",
}
WRONG = (
    "", " ", "\x00", "\x01\x02\x01", "-1", "0", "1", "255", str((1 << 31) - 1), str(-(1 << 31)),
    str((1 << 63) - 1), str(-(1 << 63)), str(1 << 63), "NaN", "true", "T", "%RETRY%g", "%DLQ%g",
    "TBW102", "SCHEDULE_TOPIC_XXXX", "DUOLOG_SYS_METADATA", "../../etc/passwd", "💥" * 40,
    "x" * 40_000, "a" + "%" * 300, "(" * 5000, "DELAY\x01-1", "DELAY\x0199", "TRAN_MSG\x01true",
    "TIMER_DELIVER_MS\x019999999999999", "TIMER_DELAY_MS\x01x", "UNIQ_KEY\x01", "INNER_NUM\x010",
)  # fmt: skip
HALF = "+\ud800"  # a character
TOPIC = {"topicName": "C", "readQueueNums": 1, "writeQueueNums": 1}
BODIES = (
    b"", b"\x00" * 40, b"{}", b"[]", b"null", b'{"clientID":1}', b"\xff" * 10, b"[" * 50_000,
    json.dumps({"clientID": "c", "consumerDataSet": [{"groupName": "%RETRY%g"}]}).encode(),
    json.dumps({"groupName": "g", "retryMaxTimes": -1}).encode(),
    json.dumps({"groupName": "g", "consumeEnable": 1, "brokerId": 1 << 70}).encode(),
    json.dumps({"consumerGroup": "g", "clientId": "c", "mqSet": [{"topic": "T"}]}).encode(),
    *(json.dumps(body).encode() for body in (
        {"clientID": HALF, "consumerDataSet": [{"groupName": HALF}]},
        {"subscriptionData": {"topic": "T", "expressionType": HALF, "subString": HALF}},
        {"consumerGroup": HALF, "clientId": "c", "mqSet": [{"topic": HALF, "brokerName": HALF}]},
        {"topicConfigList": [{**TOPIC, "attributes": {HALF: "x"}}]},
        {"topicConfigList": [{**TOPIC, "attributes": {"+message.type": HALF}}]},
        {"groupName": "g", "groupRetryPolicy": {"type": HALF}, HALF: HALF},
        {"groupConfigList": [{"groupName": HALF}]},
    )),
)  # fmt: skip


def right(code: RequestCode) -> dict[str, str]:
    """Fields with which a request does something."""
    return {
        field.name: RIGHT.get(field.name, "false" if field.bits == 1 else "0")
        for field in fields_of(REQUESTS[code])
    }


def spelled(code: RequestCode, fields: dict[str, str]) -> dict[str, str]:
    if code not in SHORT:
        return fields
    return {LETTERS[name]: text for name, text in fields.items() if name in SHORT_NAMES.values()}


async def answers(waiting: list["asyncio.Future[Command]"]) -> None:
    async with asyncio.timeout(WAIT_SECONDS * 3):
        for answer in await asyncio.gather(*waiting):
            assert answer.is_response


@pytest.mark.parametrize("code", sorted(set(REQUESTS) - SENT_ONLY))
async def test_every_field_may_be_anything(
    node: Node, remoting: Remoting, code: RequestCode, monkeypatch: pytest.MonkeyPatch
) -> None:
    # This client answers nothing that it is asked.
    monkeypatch.setattr(
        "duolog_server.compat.remoting.administration.consumers.asking.STATUS_SECONDS", 0.05
    )
    await remoting.beat("c", "g", "T")
    await remoting.send("T", b"x", "KEYS\x01k")
    with structlog.testing.capture_logs() as logged:
        for field in fields_of(REQUESTS[code]):
            sent = [{**right(code), field.name: wrong} for wrong in WRONG]
            if field.name in ("suspendTimeoutMillis", "sysFlag"):  # it would be held, rightly
                sent = [{**one, "queueOffset": "0"} for one in sent]
            await answers([remoting.begin(code, spelled(code, one), b"body") for one in sent])
        async with connected(node, Serialization.ROCKETMQ) as binary:
            # The other form has 16 bits for a code: POP has none in it, as with RocketMQ.
            for client in (remoting, binary) if code < 1 << 15 else (remoting,):
                fields = spelled(code, right(code))
                await answers([client.begin(code, fields, body) for body in BODIES])
    failed = [one for one in logged if one["event"] == "remoting: a request failed"]
    assert failed == []
    assert broker_of(node).validate() == ""
    if code is not RequestCode.DELETE_TOPIC_IN_BROKER:  # which has deleted it
        assert (await remoting.send("T", b"after", queue_id=3)).code == 0
