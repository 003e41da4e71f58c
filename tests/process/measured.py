"""Nodes with metrics as real processes, and calls of RocketMQ's clients that metrics tell of."""

import time
from pathlib import Path
from typing import Any

import duolog.sync
from duolog.testing._ports import free_endpoint

from duolog_server.compat.grpc.protocol.stubs import Code, definition, service
from tests.compat.grpc.api import message, resource
from tests.process.support import NodeProcess
from tests.scraping import Scrape, scrape

LATER_SECONDS, TIMED_SECONDS = 2.0, 60.0


class Measured(NodeProcess):
    """A node with metrics, and with all ports for clients that they tell of."""

    def __init__(self, data: Path, *flags: str) -> None:
        self.metrics = free_endpoint()
        ports = (f"metrics.listen={self.metrics}", f"remoting.listen={free_endpoint()}")
        super().__init__(data, *(word for port in ports for word in ("--set", port)), *flags)

    def scrape(self) -> Scrape:
        return scrape(int(self.metrics.rpartition(":")[2]))


def send_timed(producer: duolog.sync.Producer, node: Measured) -> None:
    """A message that waits for its time.

    One that reaches the node after its time does not wait, and is not counted: another one is sent.
    """

    def waited() -> float:
        return sum(node.scrape().rows("rocketmq_timer_enqueue_total").values())

    before, end = waited(), time.monotonic() + TIMED_SECONDS
    while waited() == before:
        assert time.monotonic() < end, "no message reaches the node before its time"
        producer.send("T", b"timed", delay=LATER_SECONDS)


def official(stub: Any) -> None:
    """As RocketMQ's clients."""
    headers = [("x-mq-client-id", "test@1"), ("x-mq-language", "GO")]
    kinds = definition.ClientType
    for name, kind in (("test@1", kinds.PRODUCER), ("test@2", kinds.SIMPLE_CONSUMER)):
        beat = service.HeartbeatRequest(client_type=kind, group=resource("pop"))
        stub.Heartbeat(beat, metadata=[("x-mq-client-id", name), *headers[1:]])
    decisions = definition.TransactionResolution
    for decision in (decisions.COMMIT, decisions.ROLLBACK, None):
        half = message(b"half", message_type=definition.MessageType.TRANSACTION)
        (entry,) = stub.SendMessage(
            service.SendMessageRequest(messages=[half]), metadata=headers
        ).entries
        if decision is not None:
            request = service.EndTransactionRequest(
                topic=resource("T"),
                message_id=entry.message_id,
                transaction_id=entry.transaction_id,
                resolution=decision,
            )
            assert stub.EndTransaction(request, metadata=headers).status.code == Code.OK
    (handle, other, *_) = received(stub, headers)
    late = service.ChangeInvisibleDurationRequest(
        group=resource("pop"), topic=resource("T"), receipt_handle=other
    )
    late.invisible_duration.FromMilliseconds(50)  # then it is stored for another attempt
    stub.ChangeInvisibleDuration(late, metadata=headers)
    dead = service.ForwardMessageToDeadLetterQueueRequest(
        group=resource("pop"), topic=resource("T"), receipt_handle=handle, message_id="x"
    )
    stub.ForwardMessageToDeadLetterQueue(dead, metadata=headers)


def received(stub: Any, headers: list[tuple[str, str]]) -> list[str]:
    """Handles of messages that a consumer gets."""
    request = service.ReceiveMessageRequest(
        group=resource("pop"),
        message_queue=definition.MessageQueue(topic=resource("T"), id=-1),
        filter_expression=definition.FilterExpression(expression="*"),
        batch_size=4,
    )
    request.invisible_duration.FromMilliseconds(30_000)
    request.long_polling_timeout.FromSeconds(5)
    replies = stub.ReceiveMessage(request, timeout=30, metadata=headers)
    found = [reply.message for reply in replies if reply.HasField("message")]
    return [made.system_properties.receipt_handle for made in found]
