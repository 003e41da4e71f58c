"""Bodies of requests in JSON: heartbeats, checks, locks, settings of topics and groups.

What a client of another language writes differently is accepted: numbers in the place of the names
of enums, and names in any case. Unknown members are left out.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from duolog_server.compat.remoting.codec.command import OTHER, BadRequest
from duolog_server.compat.remoting.codec.fastjson import Key, Value, loads

GROUPS_MAX = 1024  # of one client
SUBSCRIPTIONS_MAX = 1024  # of one group
TEXT_BYTES_MAX = 255
JSON_BYTES_MAX = 256 << 10  # of a body, which is read at once: a subscription takes 2 us
EXPRESSION_CHARACTERS_MAX = 16 << 10
TAG, SQL = "TAG", "SQL92"
_MODELS = ("BROADCASTING", "CLUSTERING")
_TYPES = ("CONSUME_ACTIVELY", "CONSUME_PASSIVELY")
MODES = PULL, POP = "PULL", "POP"
FROM_FIRST, FROM_TIME = "CONSUME_FROM_FIRST_OFFSET", "CONSUME_FROM_TIMESTAMP"
_BEGINS = (
    "CONSUME_FROM_LAST_OFFSET",
    "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST",
    "CONSUME_FROM_MIN_OFFSET",
    "CONSUME_FROM_MAX_OFFSET",
    FROM_FIRST,
    FROM_TIME,
)


@dataclass(frozen=True, slots=True)
class Subscription:
    """A group's subscription to a topic. version: grows when a client changes it."""

    topic: str
    expression: str
    kind: str = TAG
    version: int = 0


@dataclass(frozen=True, slots=True)
class ConsumerData:
    """A client as a member of a consumer group. begins: where, if the group has no offset."""

    group: str
    broadcasting: bool
    pushes: bool
    subscriptions: tuple[Subscription, ...]
    begins: str = _BEGINS[0]


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A client and its groups. language, version: as its request's header has them."""

    client_id: str
    producers: tuple[str, ...]
    consumers: tuple[ConsumerData, ...]
    language: str = OTHER
    version: int = 0


def read_heartbeat(body: bytes) -> Heartbeat:
    """HeartbeatData. Raises BadRequest."""
    found = read_object(read_text(body), "a heartbeat")
    producers = read_list(found.get("producerDataSet"), "producerDataSet", GROUPS_MAX)
    consumers = read_list(found.get("consumerDataSet"), "consumerDataSet", GROUPS_MAX)
    return Heartbeat(
        read_name(found.get("clientID"), "clientID"),
        tuple(
            read_name(read_object(one, "a producer").get("groupName"), "groupName")
            for one in producers
        ),
        tuple(_consumer(read_object(one, "a consumer")) for one in consumers),
    )


def read_check(body: bytes) -> Subscription:
    """The subscription of a CheckClientRequestBody. Raises BadRequest."""
    found = read_object(read_text(body), "a check of a client")
    return _subscription(read_object(found.get("subscriptionData"), "subscriptionData"))


def member_list(client_ids: list[str]) -> bytes:
    """GetConsumerListByGroupResponseBody."""
    return json.dumps({"consumerIdList": client_ids}, separators=(",", ":")).encode()


def _consumer(found: dict[str, Any]) -> ConsumerData:
    rows = read_list(found.get("subscriptionDataSet"), "subscriptionDataSet", SUBSCRIPTIONS_MAX)
    return ConsumerData(
        read_name(found.get("groupName"), "groupName"),
        _enum(found.get("messageModel"), _MODELS, "CLUSTERING") == "BROADCASTING",
        _enum(found.get("consumeType"), _TYPES, "CONSUME_PASSIVELY") == "CONSUME_PASSIVELY",
        tuple(_subscription(read_object(row, "a subscription")) for row in rows),
        _enum(found.get("consumeFromWhere"), _BEGINS, _BEGINS[0]),
    )


def _subscription(found: dict[str, Any]) -> Subscription:
    expression = found.get("subString") or ""
    if not isinstance(expression, str) or len(expression) > EXPRESSION_CHARACTERS_MAX:
        raise BadRequest(f"subString is not text of at most {EXPRESSION_CHARACTERS_MAX} characters")
    if any("\ud800" <= character <= "\udfff" for character in expression):
        raise BadRequest("subString has half characters")
    kind = found.get("expressionType") or TAG
    if not isinstance(kind, str) or kind.upper() not in (TAG, SQL):
        raise BadRequest(f"the expression type {str(kind)[:40]!r} is not TAG or SQL92")
    version = found.get("subVersion", 0)
    if not isinstance(version, int) or isinstance(version, bool):
        raise BadRequest("subVersion is not a number")
    return Subscription(read_name(found.get("topic"), "topic"), expression, kind.upper(), version)


def read_text(body: bytes) -> object:
    """A body as JSON. Raises BadRequest."""
    if len(body) > JSON_BYTES_MAX:
        raise BadRequest(f"a body in JSON has {len(body)} bytes, the limit is {JSON_BYTES_MAX}")
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"the body is not JSON: {str(error)[:200]}") from None


def read_object(found: object, what: str) -> dict[str, Any]:
    """An object. Raises BadRequest."""
    if not isinstance(found, dict):
        raise BadRequest(f"{what} is not a JSON object")
    return found


def read_list(found: object, name: str, most: int) -> list[Any]:
    """An array of so many entries at most, empty for none. Raises BadRequest."""
    if found is None:
        return []
    if not isinstance(found, list):
        raise BadRequest(f"{name} is not a JSON array")
    if len(found) > most:
        raise BadRequest(f"{name} has {len(found)} entries, the limit is {most}")
    return found


def read_name(found: object, name: str) -> str:
    """A name. Raises BadRequest."""
    if not isinstance(found, str) or not found or len(found) > TEXT_BYTES_MAX:
        raise BadRequest(f"{name} is not a text of 1 to {TEXT_BYTES_MAX} characters")
    if not found.isprintable():  # which half characters are not, either
        raise BadRequest(f"{name} has characters that cannot be shown")
    return found


def _enum(found: object, names: tuple[str, ...], default: str) -> str:
    """A name, in any case, or a number in its place; the default for anything else."""
    if isinstance(found, str) and found.upper() in names:
        return found.upper()
    if isinstance(found, int) and 0 <= found < len(names):
        return names[found]
    return default


@dataclass(frozen=True, slots=True)
class AssignmentQuery:
    """QueryAssignmentRequestBody. strategy: by its name in RocketMQ."""

    topic: str
    group: str
    client_id: str
    strategy: str
    broadcasting: bool


def read_assignment_query(body: bytes) -> AssignmentQuery:
    """The queues that a client asks for. Raises BadRequest."""
    found = read_object(read_text(body), "a query of an assignment")
    return AssignmentQuery(
        read_name(found.get("topic"), "topic"),
        read_name(found.get("consumerGroup"), "consumerGroup"),
        read_name(found.get("clientId"), "clientId"),
        read_name(found.get("strategyName"), "strategyName"),
        _enum(found.get("messageModel"), _MODELS, "CLUSTERING") == "BROADCASTING",
    )


def assigned(queues: Iterable["QueueName"] | None, mode: str) -> bytes:
    """QueryAssignmentResponseBody. None: a client keeps the queues that it has."""
    if queues is None:
        return b"{}"
    rows = [{"messageQueue": _row(one), "mode": mode} for one in queues]
    return json.dumps({"messageQueueAssignments": rows}, separators=(",", ":")).encode()


@dataclass(frozen=True, slots=True)
class RequestMode:
    """SetMessageRequestModeRequestBody: how a group reads a topic, PULL or POP."""

    topic: str
    group: str
    mode: str


def read_request_mode(body: bytes) -> RequestMode:
    """The mode that a group gets. Raises BadRequest."""
    found = read_object(read_text(body), "a request mode")
    mode = found.get("mode", PULL)
    if mode not in MODES:
        raise BadRequest(f"the mode {str(mode)[:80]!r} is neither PULL nor POP")
    return RequestMode(
        read_name(found.get("topic"), "topic"),
        read_name(found.get("consumerGroup"), "consumerGroup"),
        str(mode),
    )


QUEUES_MAX = 1 << 16


@dataclass(frozen=True, slots=True)
class QueueName:
    """MessageQueue."""

    topic: str
    broker_name: str
    queue_id: int


@dataclass(frozen=True, slots=True)
class LockBatch:
    """The queues that a client wants to lock, or to unlock."""

    group: str
    client_id: str
    queues: tuple[QueueName, ...]


def read_locks(body: bytes) -> LockBatch:
    """LockBatchRequestBody, UnlockBatchRequestBody. Raises BadRequest."""
    found = read_object(read_text(body), "a batch of locks")
    rows = read_list(found.get("mqSet"), "mqSet", QUEUES_MAX)
    return LockBatch(
        read_name(found.get("consumerGroup"), "consumerGroup"),
        read_name(found.get("clientId"), "clientId"),
        tuple(_queue(row) for row in rows),
    )


def locked(queues: Iterable[QueueName]) -> bytes:
    """LockBatchResponseBody."""
    rows = [_row(one) for one in queues]
    return json.dumps({"lockOKMQSet": rows}, separators=(",", ":")).encode()


def _row(one: QueueName) -> dict[str, str | int]:
    return {"brokerName": one.broker_name, "queueId": one.queue_id, "topic": one.topic}


def _queue(row: object) -> QueueName:
    found = read_object(row, "a queue")
    queue_id = found.get("queueId")
    if not isinstance(queue_id, int) or isinstance(queue_id, bool):
        raise BadRequest("queueId is not a number")
    name = read_name(found.get("brokerName"), "brokerName")
    return QueueName(read_name(found.get("topic"), "topic"), name, queue_id)


ROWS_MAX = 1000  # of one list


def read_topics(body: bytes) -> list[dict[str, Any]]:
    """The TopicConfigs of CreateTopicListRequestBody. Raises BadRequest."""
    found = read_object(read_text(body), "a list of topics")
    rows = read_list(found.get("topicConfigList"), "topicConfigList", ROWS_MAX)
    return [read_object(row, "a topic") for row in rows]


def topic_name(row: Mapping[str, Any]) -> str:
    """The name in a TopicConfig. Raises BadRequest."""
    return read_name(row.get("topicName"), "topicName")


def read_group(body: bytes) -> Mapping[Key, Value]:
    """A SubscriptionGroupConfig. Raises BadRequest."""
    return _group(_read(body))


def read_groups(body: bytes) -> list[Mapping[Key, Value]]:
    """The rows of SubscriptionGroupList. Raises BadRequest."""
    found = _read(body)
    rows = found.get("groupConfigList") if isinstance(found, dict) else None
    if not isinstance(rows, list) or len(rows) > ROWS_MAX:
        raise BadRequest(f"groupConfigList is not a list of at most {ROWS_MAX} groups")
    return [_group(row) for row in rows]


def group_name(row: Mapping[Key, Value]) -> str:
    """The name in a SubscriptionGroupConfig. Raises BadRequest."""
    return read_name(row.get("groupName"), "groupName")


def _read(body: bytes) -> Value:
    if len(body) > JSON_BYTES_MAX:
        raise BadRequest(f"a body of {len(body)} bytes is not a list of groups")
    return loads(body)


def _group(found: Value) -> Mapping[Key, Value]:
    if not isinstance(found, dict):
        raise BadRequest("the settings of a group are not a JSON object")
    return found
