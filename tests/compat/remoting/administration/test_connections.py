"""Who is connected, as consumerConnection, producerConnection and the exporter ask for it."""

import json

from duolog_server.compat.remoting.codec.codes import RequestCode, ResponseCode
from duolog_server.compat.remoting.codec.command import Serialization
from duolog_server.serve.server import Node
from tests.compat.remoting.administration.support import refused, told
from tests.compat.remoting.client import Remoting, connected


async def test_the_connections_of_a_consumer_group(node: Node, remoting: Remoting) -> None:
    code = RequestCode.GET_CONSUMER_CONNECTION_LIST
    offline = await refused(remoting, code, consumerGroup="g")
    assert offline[0] == ResponseCode.CONSUMER_NOT_ONLINE
    async with connected(node, Serialization.ROCKETMQ) as member:
        row = {"topic": "T", "subString": "a || b", "subVersion": 7, "expressionType": "TAG"}
        data = {
            "groupName": "g", "consumeType": 0, "messageModel": "BroadCasting",
            "consumeFromWhere": 4, "subscriptionDataSet": [row],
        }  # fmt: skip
        beat = json.dumps({"clientID": "c1", "consumerDataSet": [data]}).encode()
        await member.ask(RequestCode.HEART_BEAT, {}, beat, language="GO", version=317)
        found = await told(remoting, code, consumerGroup="g")
        assert found["connectionSet"] == [
            {
                "clientAddr": member.address(), "clientId": "c1", "language": "GO",
                "version": 317,
            }
        ]  # fmt: skip
        assert found["consumeType"] == "CONSUME_ACTIVELY"
        assert found["messageModel"] == "BROADCASTING"
        assert found["consumeFromWhere"] == "CONSUME_FROM_FIRST_OFFSET"
        reads = found["subscriptionTable"]["T"]
        assert (reads["subString"], reads["tagsSet"], reads["subVersion"]) == (
            "a || b", ["a", "b"], 7,
        )  # fmt: skip


async def test_the_connections_of_producers(node: Node, remoting: Remoting) -> None:
    one, every = RequestCode.GET_PRODUCER_CONNECTION_LIST, RequestCode.GET_ALL_PRODUCER_INFO
    missing = await refused(remoting, one, producerGroup="p")
    assert missing == (ResponseCode.SYSTEM_ERROR, "the producer group[p] not exist")
    assert await told(remoting, every) == {"data": {}}
    async with connected(node) as producer:
        beat = json.dumps({"clientID": "c1", "producerDataSet": [{"groupName": "p"}]}).encode()
        await producer.ask(RequestCode.HEART_BEAT, {}, beat, language="LATIN", version=409)
        row = {
            "clientAddr": producer.address(), "clientId": "c1", "language": "OTHER",
            "version": 409,
        }  # fmt: skip
        assert await told(remoting, one, producerGroup="p") == {"connectionSet": [row]}
        found = (await told(remoting, every))["data"]["p"]
        assert found[0]["remoteIP"] == producer.address()
        assert found[0]["lastUpdateTimestamp"] > 1_600_000_000_000
        leave = {"clientID": "c1", "producerGroup": "p"}
        await producer.ask(RequestCode.UNREGISTER_CLIENT, leave)
        assert await told(remoting, every) == {"data": {}}
