"""A queue that moved away: what its producers are told."""

import pytest
from duolog.wire import duolog_pb2 as wire

from duolog_server.compat.grpc.protocol import codes
from duolog_server.compat.remoting import refusals
from duolog_server.compat.remoting.codec.codes import ResponseCode
from duolog_server.node.broker import Broker
from duolog_server.node.moving import passing
from duolog_server.store.moves import Place
from duolog_server.store.status import PutMessageStatus
from tests.node.api.test_messages import append, append_request
from tests.node.deferred.test_delays import client_of
from tests.node.replicas import broker_of
from tests.node.sealing import sealed
from tests.nodefixtures import StartNode

MOVED = PutMessageStatus.QUEUE_MOVED
TOO_FEW = PutMessageStatus.IN_SYNC_REPLICAS_NOT_ENOUGH
PRODUCER = b"0123456789"


async def seal(broker: Broker) -> None:
    await sealed(broker.metadata, "T", 0, Place("b", 4), "m")


async def test_a_producer_is_told_to_repeat_what_a_moved_queue_does_not_have(
    start_node: StartNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(passing, "PUT_SECONDS", 0.01)  # the queue is not released in this test
    node = await start_node()
    async with await client_of(node) as client:
        first = append_request([b"a"], producer_id=PRODUCER)
        assert (await append(client, first)).status == wire.PUT_OK
        await seal(broker_of(node))
        assert (await append(client, first)).status == wire.PUT_OK, "it was stored before"
        new = await append(client, append_request([b"c"], producer_id=PRODUCER, sequence=9))
        assert new.status == wire.SERVICE_NOT_AVAILABLE
        assert new.reason.startswith("not stored within 0.01 s: queue T/0 ends at 1, and continues")
        longer = await append(client, append_request([b"a", b"b"], producer_id=PRODUCER))
        assert longer.status == wire.UNKNOWN_ERROR, "part of it is stored"


def test_rocketmqs_clients_are_told_to_try_another_queue() -> None:
    assert refusals.put_code(MOVED) is ResponseCode.SERVICE_NOT_AVAILABLE
    assert codes.put_status(MOVED, "").code == codes.PUT_CODES[TOO_FEW]
