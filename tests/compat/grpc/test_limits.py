"""Limits of what clients send by RocketMQ's gRPC API, which leave room for what nodes add."""

from typing import Any

import pytest

from duolog_server.compat.grpc.protocol.names import PROPERTIES_BYTES_MAX
from duolog_server.compat.grpc.protocol.stubs import definition, service
from duolog_server.serve.server import Node
from duolog_server.store.record import SENT_PROPERTIES_BYTES_MAX
from tests.compat.grpc.api import Api, message, resource
from tests.node.replicas import broker_of

Code, Kind = definition.Code, definition.MessageType
assert 2 * PROPERTIES_BYTES_MAX > SENT_PROPERTIES_BYTES_MAX > 1.5 * PROPERTIES_BYTES_MAX


@pytest.mark.parametrize("kind", [Kind.NORMAL, Kind.FIFO, Kind.DELAY, Kind.TRANSACTION])
async def test_what_the_node_takes_it_delivers_and_the_rest_is_refused_at_once(
    node: Node, api: Api, kind: Any
) -> None:

    def sized(size: int) -> Any:
        how: dict[str, Any] = {"message_type": kind, "tag": "t", "keys": ["k"]}
        if kind == Kind.FIFO:
            how["message_group"] = "m" * 63
        if kind == Kind.DELAY:
            how["delivery_ms"] = broker_of(node).times.wall_ms() + 200
        return message(b"x", properties={"p": "v" * (size - 3)}, **how)

    for several in ([sized(PROPERTIES_BYTES_MAX + 1)], [sized(9), sized(PROPERTIES_BYTES_MAX + 1)]):
        refused = await api.send(*several)
        assert refused.status.code == Code.MESSAGE_PROPERTIES_TOO_LARGE
        assert broker_of(node).store.queue_range("T", 0)[1] == 0
    sent = await api.send(sized(PROPERTIES_BYTES_MAX))
    assert sent.status.code == Code.OK
    if kind == Kind.TRANSACTION:
        (entry,) = sent.entries
        request = service.EndTransactionRequest(
            topic=resource("T"),
            message_id=entry.message_id,
            transaction_id=entry.transaction_id,
            resolution=definition.TransactionResolution.COMMIT,
        )
        assert (await api.call("EndTransaction", request)).status.code == Code.OK
    received = await api.receive("g", poll_ms=10_000)
    (one,) = received.messages
    assert len(one.user_properties["p"]) == PROPERTIES_BYTES_MAX - 3
