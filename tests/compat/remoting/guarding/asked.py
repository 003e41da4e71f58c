"""One request of each code that a node serves, and clients that sign."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from duolog_server.compat.remoting.calling import Sign
from duolog_server.compat.remoting.codec.codes import RequestCode, ResponseCode
from duolog_server.compat.remoting.codec.command import Command
from duolog_server.compat.remoting.codec.signatures import signed
from duolog_server.compat.remoting.replicas import TABLES
from duolog_server.serve.server import Node
from tests.compat.grpc.users import PASSWORD
from tests.compat.remoting.client import LETTERS, Remoting
from tests.node.replicas import broker_of

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
    if code in (RequestCode.SEND_MESSAGE, RequestCode.SEND_REPLY_MESSAGE):
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


def _pop(p: Places) -> Command:
    return _command(
        RequestCode.POP_MESSAGE, consumerGroup=p.group, topic=p.topic, queueId=-1, maxMsgNums=1,
        invisibleTime=1000, pollTime=0, bornTime=0, initMode=0, expType="TAG", exp="*",
    )  # fmt: skip


def _receipt(code: int, p: Places) -> Command:
    return _command(
        code, consumerGroup=p.group, topic=p.topic, queueId=0, offset=0, invisibleTime=1000,
        extraInfo="0 1 1000 1 0 broker-a 0 0",
    )  # fmt: skip


def _receipts(p: Places) -> Command:
    row = {"c": p.group, "t": p.topic, "r": "0", "so": 0, "q": 0, "rq": 1, "b": "AQ=="}
    return _command(RequestCode.BATCH_ACK_MESSAGE, {"brokerName": "broker-a", "acks": [row]})


def _assignment(p: Places) -> Command:
    row = {"topic": p.topic, "consumerGroup": p.group, "clientId": "c", "strategyName": "AVG"}
    return _command(RequestCode.QUERY_ASSIGNMENT, row)


CONSUMES = ("Sub Topic:T", "Sub Group:g")
OF_RECEIPTS = (RequestCode.ACK_MESSAGE, RequestCode.CHANGE_MESSAGE_INVISIBLETIME)
OF_QUEUE = (
    RequestCode.GET_MAX_OFFSET,
    RequestCode.GET_MIN_OFFSET,
    RequestCode.GET_EARLIEST_MSG_STORETIME,
)
REPLIES = (RequestCode.SEND_REPLY_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2)
REPLIES_NEED = ("Pub Topic:T", "Pub Topic:DefaultCluster_REPLY_TOPIC")
TABLE: dict[int, Row] = {
    **{code: Row(partial(_send, code), REPLIES_NEED) for code in REPLIES},
    RequestCode.SEND_MESSAGE: Row(partial(_send, RequestCode.SEND_MESSAGE), ("Pub Topic:T",)),
    RequestCode.SEND_MESSAGE_V2: Row(partial(_send, RequestCode.SEND_MESSAGE_V2), ("Pub Topic:T",)),
    RequestCode.SEND_BATCH_MESSAGE: Row(
        partial(_send, RequestCode.SEND_BATCH_MESSAGE), ("Pub Topic:T",)
    ),
    RequestCode.PULL_MESSAGE: Row(partial(_pull, RequestCode.PULL_MESSAGE), CONSUMES),
    RequestCode.LITE_PULL_MESSAGE: Row(partial(_pull, RequestCode.LITE_PULL_MESSAGE), CONSUMES),
    RequestCode.POP_MESSAGE: Row(_pop, CONSUMES),
    **{code: Row(partial(_receipt, code), CONSUMES) for code in OF_RECEIPTS},
    RequestCode.BATCH_ACK_MESSAGE: Row(_receipts, CONSUMES),
    RequestCode.QUERY_ASSIGNMENT: Row(_assignment, CONSUMES),
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


_OF_CLUSTER_GET = ("Get Cluster:DefaultCluster",)
_OF_CLUSTER_UPDATE = ("Update Cluster:DefaultCluster",)


def _plain(code: int, needs: tuple[str, ...], **fields: Any) -> Row:
    """A request that names nothing of others."""
    return Row(lambda p: _command(code, **fields), needs)


def _of_topic(code: int, action: str, **fields: Any) -> Row:
    return Row(lambda p: _command(code, topic=p.topic, **fields), (f"{action} Topic:T",))


def _of_group(code: int, action: str, field: str = "group", **fields: Any) -> Row:
    return Row(lambda p: _command(code, **{field: p.group}, **fields), (f"{action} Group:g",))


DELETES = (RequestCode.DELETE_TOPIC_IN_BROKER, RequestCode.DELETE_SUBSCRIPTIONGROUP)
NO_ID = "7F000001000000010000000000000000"
ADMINISTRATION: dict[int, Row] = {
    RequestCode.UPDATE_AND_CREATE_TOPIC: _of_topic(
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        "Update",
        readQueueNums=8,
        writeQueueNums=8,
        perm=6,
    ),
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: Row(
        lambda p: _command(
            RequestCode.UPDATE_AND_CREATE_TOPIC_LIST,
            {
                "topicConfigList": [
                    {"topicName": p.topic, "readQueueNums": 8, "writeQueueNums": 8, "perm": 6}
                ]
            },
        ),
        ("Update Topic:T",),
    ),
    RequestCode.DELETE_TOPIC_IN_NAMESRV: _of_topic(RequestCode.DELETE_TOPIC_IN_NAMESRV, "Delete"),
    RequestCode.DELETE_TOPIC_IN_BROKER: _of_topic(RequestCode.DELETE_TOPIC_IN_BROKER, "Delete"),
    RequestCode.GET_TOPIC_STATS_INFO: _of_topic(RequestCode.GET_TOPIC_STATS_INFO, "Get"),
    RequestCode.GET_TOPIC_CONFIG: _of_topic(RequestCode.GET_TOPIC_CONFIG, "Get"),
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: _of_topic(
        RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, "Get"
    ),
    RequestCode.QUERY_CONSUME_TIME_SPAN: Row(
        lambda p: _command(RequestCode.QUERY_CONSUME_TIME_SPAN, topic=p.topic, group=p.group),
        ("Get Topic:T", "Get Group:g"),
    ),
    RequestCode.QUERY_CONSUME_QUEUE: Row(
        lambda p: _command(
            RequestCode.QUERY_CONSUME_QUEUE,
            topic=p.topic,
            queueId=0,
            index=0,
            count=1,
            consumerGroup=p.group,
        ),
        ("Get Topic:T", "Get Group:g"),
    ),
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: Row(
        lambda p: _command(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {"groupName": p.group}),
        ("Update Group:g",),
    ),
    RequestCode.SET_MESSAGE_REQUEST_MODE: Row(
        lambda p: _command(
            RequestCode.SET_MESSAGE_REQUEST_MODE,
            {"topic": p.topic, "consumerGroup": p.group, "mode": "PULL"},
        ),
        ("Update Group:g", "Get Topic:T"),
    ),
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: Row(
        lambda p: _command(
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
            {"groupConfigList": [{"groupName": p.group}]},
        ),
        ("Update Group:g",),
    ),
    RequestCode.DELETE_SUBSCRIPTIONGROUP: _of_group(
        RequestCode.DELETE_SUBSCRIPTIONGROUP, "Delete", "groupName"
    ),
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: _of_group(
        RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, "Get"
    ),
    RequestCode.GET_CONSUME_STATS: _of_group(RequestCode.GET_CONSUME_STATS, "Get", "consumerGroup"),
    RequestCode.GET_CONSUMER_CONNECTION_LIST: _of_group(
        RequestCode.GET_CONSUMER_CONNECTION_LIST, "Get", "consumerGroup"
    ),
    RequestCode.QUERY_TOPICS_BY_CONSUMER: _of_group(RequestCode.QUERY_TOPICS_BY_CONSUMER, "Get"),
    RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: _of_group(
        RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER, "Get", topic="T"
    ),
    RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: _of_group(
        RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, "Get", topic="T", clientAddr="none"
    ),
    RequestCode.GET_CONSUMER_RUNNING_INFO: _of_group(
        RequestCode.GET_CONSUMER_RUNNING_INFO, "Get", "consumerGroup", clientId="none"
    ),
    RequestCode.CONSUME_MESSAGE_DIRECTLY: Row(
        lambda p: _command(
            RequestCode.CONSUME_MESSAGE_DIRECTLY,
            consumerGroup=p.group,
            clientId="none",
            msgId=f"7F00000100000001{p.message:016X}",
        ),
        CONSUMES,
        finds=True,
    ),
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: Row(
        lambda p: _command(
            RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
            topic=p.topic,
            group=p.group,
            timestamp=0,
            isForce="true",
        ),
        ("Update Group:g", "Get Topic:T"),
    ),
    RequestCode.CLONE_GROUP_OFFSET: Row(
        lambda p: _command(
            RequestCode.CLONE_GROUP_OFFSET, srcGroup=f"{p.group}2", destGroup=p.group
        ),
        ("Update Group:g", "Get Group:g2"),
    ),
    **{
        code: _plain(code, _OF_CLUSTER_GET)
        for code in (
            *TABLES,
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER,
            RequestCode.GET_ALL_PRODUCER_INFO,
            RequestCode.GET_BROKER_CONFIG,
            RequestCode.GET_BROKER_RUNTIME_INFO,
            RequestCode.GET_NAMESRV_CONFIG,
            RequestCode.GET_BROKER_HA_STATUS,
            RequestCode.GET_BROKER_EPOCH_CACHE,
        )
    },
    RequestCode.GET_TOPICS_BY_CLUSTER: _plain(
        RequestCode.GET_TOPICS_BY_CLUSTER, _OF_CLUSTER_GET, cluster="DefaultCluster"
    ),
    RequestCode.GET_PRODUCER_CONNECTION_LIST: _plain(
        RequestCode.GET_PRODUCER_CONNECTION_LIST, _OF_CLUSTER_GET, producerGroup="p"
    ),
    RequestCode.VIEW_BROKER_STATS_DATA: _plain(
        RequestCode.VIEW_BROKER_STATS_DATA,
        _OF_CLUSTER_GET,
        statsName="TOPIC_PUT_NUMS",
        statsKey="T",
    ),
    RequestCode.GET_BROKER_CONSUME_STATS: _plain(
        RequestCode.GET_BROKER_CONSUME_STATS, _OF_CLUSTER_GET, isOrder="false"
    ),
    RequestCode.GET_KV_CONFIG: _plain(
        RequestCode.GET_KV_CONFIG, _OF_CLUSTER_GET, namespace="n", key="k"
    ),
    RequestCode.GET_KVLIST_BY_NAMESPACE: _plain(
        RequestCode.GET_KVLIST_BY_NAMESPACE, _OF_CLUSTER_GET, namespace="n"
    ),
    RequestCode.DELETE_KV_CONFIG: _plain(
        RequestCode.DELETE_KV_CONFIG, _OF_CLUSTER_UPDATE, namespace="n", key="k"
    ),
    RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: _plain(
        RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE, _OF_CLUSTER_UPDATE
    ),
    RequestCode.CLEAN_UNUSED_TOPIC: _plain(RequestCode.CLEAN_UNUSED_TOPIC, _OF_CLUSTER_UPDATE),
    RequestCode.RESUME_CHECK_HALF_MESSAGE: _plain(
        RequestCode.RESUME_CHECK_HALF_MESSAGE, _OF_CLUSTER_UPDATE, msgId=NO_ID
    ),
}
TABLE.update(ADMINISTRATION)


def is_refused(code: int, end: int) -> bool:
    """Whether a request was answered as one that its user may not send."""
    unfound = TABLE[code].finds and end == ResponseCode.QUERY_NOT_FOUND
    return unfound or end == ResponseCode.NO_PERMISSION


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
