"""One request of each code that a node serves, and clients that sign."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from node.remoting.calling import Sign
from node.remoting.codec.codes import RequestCode
from node.remoting.codec.command import Command
from node.remoting.codec.signatures import signed
from node.server import Node
from tests.node.remoting.client import LETTERS, Remoting
from tests.node.replicas import broker_of
from tests.node.rocketmq.users import PASSWORD

HALF = "TRAN_MSG\x01true\x02PGROUP\x01p\x02UNIQ_KEY\x01ID1"
COMMIT, UNKNOWN = 8, 0


def signs(name: str, secret: str = "") -> Sign:
    """What a client of a user does with its requests."""
    return partial(signed, access_key=name, secret=secret or PASSWORD.format(name))


@dataclass(frozen=True, slots=True)
class Places:
    """What requests may name. message: where one of the topic is in the log. half: the number of a
    half message to the topic.
    """

    topic: str = "T"
    group: str = "g"
    message: int = 0
    half: int = 0


@dataclass(frozen=True, slots=True)
class Row:
    """A request and what it needs. finds: its topic shows only in what it names, so that it is
    answered as if that did not exist.
    """

    ask: Callable[[Places], Command]
    needs: tuple[str, ...]
    finds: bool = False


def _command(code: int, body: Any = b"", **fields: Any) -> Command:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Command(code, fields={name: str(value) for name, value in fields.items()}, body=data)


def _send(code: int, p: Places) -> Command:
    fields = {
        "producerGroup": "p", "topic": p.topic, "defaultTopic": "TBW102",
        "defaultTopicQueueNums": 4, "queueId": 0, "sysFlag": 0, "bornTimestamp": 1, "flag": 0,
    }  # fmt: skip
    if code == RequestCode.SEND_MESSAGE:
        return _command(code, b"x", **fields)
    batch = b"\0\0\0\x17" + b"\0" * 12 + b"\0\0\0\x01x" + b"\0\0"
    body = batch if code == RequestCode.SEND_BATCH_MESSAGE else b"x"
    return _command(code, body, **{LETTERS[name]: value for name, value in fields.items()})


def _pull(code: int, p: Places) -> Command:
    return _command(
        code, consumerGroup=p.group, topic=p.topic, queueId=0, queueOffset=0, maxMsgNums=1,
        sysFlag=4, commitOffset=0, suspendTimeoutMillis=0, subVersion=1, subscription="*",
    )  # fmt: skip


def _queue(code: int, p: Places) -> Command:
    return _command(code, topic=p.topic, queueId=0)


def _heartbeat(p: Places) -> Command:
    data = {"groupName": p.group, "subscriptionDataSet": [{"topic": p.topic, "subString": "*"}]}
    body = {"clientID": "c", "producerDataSet": [{"groupName": "p"}], "consumerDataSet": [data]}
    return _command(RequestCode.HEART_BEAT, body)


def _locks(code: int, p: Places) -> Command:
    queue = {"topic": p.topic, "brokerName": "broker-a", "queueId": 0}
    return _command(code, {"consumerGroup": p.group, "clientId": "c", "mqSet": [queue]})


def _end(p: Places) -> Command:
    return _command(
        RequestCode.END_TRANSACTION, producerGroup="p", tranStateTableOffset=p.half,
        commitLogOffset=0, commitOrRollback=UNKNOWN, msgId="ID1",
    )  # fmt: skip


CONSUMES = ("Sub Topic:T", "Sub Group:g")
OF_QUEUE = (
    RequestCode.GET_MAX_OFFSET,
    RequestCode.GET_MIN_OFFSET,
    RequestCode.GET_EARLIEST_MSG_STORETIME,
)
TABLE: dict[int, Row] = {
    RequestCode.SEND_MESSAGE: Row(partial(_send, RequestCode.SEND_MESSAGE), ("Pub Topic:T",)),
    RequestCode.SEND_MESSAGE_V2: Row(partial(_send, RequestCode.SEND_MESSAGE_V2), ("Pub Topic:T",)),
    RequestCode.SEND_BATCH_MESSAGE: Row(
        partial(_send, RequestCode.SEND_BATCH_MESSAGE), ("Pub Topic:T",)
    ),
    RequestCode.PULL_MESSAGE: Row(partial(_pull, RequestCode.PULL_MESSAGE), CONSUMES),
    RequestCode.LITE_PULL_MESSAGE: Row(partial(_pull, RequestCode.LITE_PULL_MESSAGE), CONSUMES),
    RequestCode.QUERY_MESSAGE: Row(
        lambda p: _command(
            RequestCode.QUERY_MESSAGE,
            topic=p.topic,
            key="k",
            maxNum=1,
            beginTimestamp=0,
            endTimestamp=1 << 50,
        ),
        ("Sub Topic:T",),
    ),
    RequestCode.VIEW_MESSAGE_BY_ID: Row(
        lambda p: _command(RequestCode.VIEW_MESSAGE_BY_ID, offset=p.message),
        ("Sub Topic:T",),
        finds=True,
    ),
    RequestCode.QUERY_CONSUMER_OFFSET: Row(
        lambda p: _command(
            RequestCode.QUERY_CONSUMER_OFFSET, consumerGroup=p.group, topic=p.topic, queueId=0
        ),
        ("Get Topic:T", "Get Group:g"),
    ),
    RequestCode.UPDATE_CONSUMER_OFFSET: Row(
        lambda p: _command(
            RequestCode.UPDATE_CONSUMER_OFFSET,
            consumerGroup=p.group,
            topic=p.topic,
            queueId=0,
            commitOffset=0,
        ),
        CONSUMES,
    ),
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: Row(
        lambda p: _command(
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, topic=p.topic, queueId=0, timestamp=1
        ),
        ("Get Topic:T",),
    ),
    **{code: Row(partial(_queue, code), ("List Topic:T",)) for code in OF_QUEUE},
    RequestCode.HEART_BEAT: Row(_heartbeat, CONSUMES),
    RequestCode.UNREGISTER_CLIENT: Row(
        lambda p: _command(
            RequestCode.UNREGISTER_CLIENT, clientID="c", producerGroup="p", consumerGroup=p.group
        ),
        ("Sub Group:g",),
    ),
    RequestCode.CONSUMER_SEND_MSG_BACK: Row(
        lambda p: _command(
            RequestCode.CONSUMER_SEND_MSG_BACK, offset=p.message, group=p.group, delayLevel=0
        ),
        CONSUMES,
        finds=True,
    ),
    RequestCode.END_TRANSACTION: Row(_end, ("Pub Topic:T",), finds=True),
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: Row(
        lambda p: _command(RequestCode.GET_CONSUMER_LIST_BY_GROUP, consumerGroup=p.group),
        ("Get Group:g",),
    ),
    RequestCode.LOCK_BATCH_MQ: Row(partial(_locks, RequestCode.LOCK_BATCH_MQ), CONSUMES),
    RequestCode.UNLOCK_BATCH_MQ: Row(partial(_locks, RequestCode.UNLOCK_BATCH_MQ), CONSUMES),
    RequestCode.CHECK_CLIENT_CONFIG: Row(
        lambda p: _command(
            RequestCode.CHECK_CLIENT_CONFIG,
            {"clientId": "c", "group": p.group, "subscriptionData": {"topic": p.topic}},
        ),
        ("Sub Topic:T",),
    ),
    RequestCode.GET_ROUTEINFO_BY_TOPIC: Row(
        lambda p: _command(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic=p.topic), ("Get Topic:T",)
    ),
    RequestCode.GET_BROKER_CLUSTER_INFO: Row(
        lambda p: _command(RequestCode.GET_BROKER_CLUSTER_INFO), ("Get Cluster:DefaultCluster",)
    ),
}


async def ask(client: Remoting, command: Command) -> Command:
    """The answer to a request of the table."""
    return await client.ask(command.code, dict(command.fields), command.body)


async def places(node: Node, client: Remoting, topic: str = "T", group: str = "g") -> Places:
    """A message and a half message of a topic, stored as the client's user, and a group."""
    await broker_of(node).metadata.ensure_group(group)
    sent = await client.send(topic, b"secret", "KEYS\x01k\x02UNIQ_KEY\x01ID0")
    half = await client.send(topic, b"half secret", HALF)
    assert (sent.code, half.code) == (0, 0)
    await broker_of(node).log.caught_up()
    at = int(sent.fields["msgId"][16:], 16)
    return Places(topic, group, at, int(half.fields["queueOffset"]))
