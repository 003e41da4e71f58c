"""Bodies about the locks of queues, for consumers that read in order."""

import json
from collections.abc import Iterable
from dataclasses import dataclass

from duolog_server.compat.remoting.codec.errors import BadRequest
from duolog_server.compat.remoting.codec.heartbeats import (
    read_list,
    read_name,
    read_object,
    read_text,
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
    rows = [
        {"brokerName": one.broker_name, "queueId": one.queue_id, "topic": one.topic}
        for one in queues
    ]
    return json.dumps({"lockOKMQSet": rows}, separators=(",", ":")).encode()


def _queue(row: object) -> QueueName:
    found = read_object(row, "a queue")
    queue_id = found.get("queueId")
    if not isinstance(queue_id, int) or isinstance(queue_id, bool):
        raise BadRequest("queueId is not a number")
    name = read_name(found.get("brokerName"), "brokerName")
    return QueueName(read_name(found.get("topic"), "topic"), name, queue_id)
