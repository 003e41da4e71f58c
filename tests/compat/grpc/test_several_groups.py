"""RocketMQ's API on a cluster of two replica groups: one route, and any node takes any call."""

import asyncio
import time
from typing import Any

from google.protobuf.duration_pb2 import Duration

from duolog_server.compat.grpc.protocol.stubs import Code, definition, service
from duolog_server.compat.remoting.routes import told_topics
from duolog_server.serve.server import Node
from tests.compat.grpc.api import CALL_SECONDS, Api, message, resource
from tests.node.replicas import GROUPS, WAIT_SECONDS, broker_of, client_of
from tests.until import until


async def test_a_route_has_the_queues_of_all_groups(nodes: dict[str, Node]) -> None:
    for node in nodes.values():
        api = Api(node)
        route = await api.route("T")
        places = [
            (queue.broker.name, queue.id, queue.broker.endpoints.addresses[0].port)
            for queue in route.message_queues
        ]
        assert sorted(places) == [
            (group, queue, nodes[group].port) for group in GROUPS for queue in (0, 1)
        ]
        request = service.QueryAssignmentRequest(topic=resource("T"), group=resource("g"))
        reply = await api.call("QueryAssignment", request)
        brokers = sorted(one.message_queue.broker.name for one in reply.assignments)
        assert brokers == list(GROUPS)
        assert (await api.route("nobody-made-this")).status.code == Code.TOPIC_NOT_FOUND
        await api.close()


async def test_a_topic_of_one_group_is_found_by_nodes_of_the_other(nodes: dict[str, Node]) -> None:
    await broker_of(nodes["broker-b"]).metadata.put_topic(
        broker_of(nodes["broker-b"]).metadata.new_topic("only-b", 1, 6)
    )
    api = Api(nodes["broker-a"])
    route = await api.route("only-b")
    assert [queue.broker.name for queue in route.message_queues] == ["broker-b"]


async def test_a_group_whose_nodes_are_gone_is_left_out(nodes: dict[str, Node]) -> None:
    await nodes["broker-b"].stop()
    api = Api(nodes["broker-a"])
    began = time.monotonic()
    route = await api.route("T")
    assert {queue.broker.name for queue in route.message_queues} == {"broker-a"}
    assert time.monotonic() - began < 10  # of the 30 s that the call has


async def test_producers_are_told_of_other_queues_where_a_group_retires(
    nodes: dict[str, Node],
) -> None:
    here, there = GROUPS
    api = Api(nodes[there])

    async def written() -> list[tuple[str, int]]:
        found = (await api.route("T")).message_queues
        writable = definition.Permission.READ_WRITE
        return sorted((one.broker.name, one.id) for one in found if one.permission == writable)

    own = [(group, queue) for group in GROUPS for queue in (0, 1)]
    async with client_of(nodes[there]) as client:
        for queue in (0, 1):
            moved = await client.admin.move_queue("T", queue, there, group=here)
            await until(lambda: broker_of(nodes[there]).metadata.moves.open_guests("T"))
            assert moved.has_moved
        assert await written() == own, "what is sent there is passed on"
        await client.admin.retire_group(here)
        for node in nodes.values():
            await until(lambda: broker_of(node).views[here].retiring)  # noqa: B023
        assert await written() == [(there, queue) for queue in range(4)]
        assert told_topics(broker_of(nodes[here]))["T"].queues == 0
        told = told_topics(broker_of(nodes[there]))["T"]
        assert (told.queues, told.guests) == (4, 0)
        async with client.producer() as producer:
            receipt = await producer.send("T", b"x", queue_id=3, group=there)
            assert (receipt.group, receipt.queue_id, receipt.queue_offset) == (there, 3, 0)
        await client.admin.retire_group(here, undo=True)
        await until(lambda: not broker_of(nodes[there]).views[here].retiring)
    await api.close()


async def test_receipt_handles_lead_to_their_replica_group(nodes: dict[str, Node]) -> None:
    """What was received, prepared or delayed in one group is settled by nodes of the other."""
    here, there = Api(nodes["broker-b"]), Api(nodes["broker-a"])
    await here.send(message(b"x"))
    request = service.ReceiveMessageRequest(
        group=resource("g"),
        message_queue=definition.MessageQueue(
            topic=resource("T"), id=-1, broker=definition.Broker(name="broker-b")
        ),
        batch_size=32,
        auto_renew=True,
        long_polling_timeout=Duration(seconds=1),
    )
    found: list[Any] = []
    async with asyncio.timeout(WAIT_SECONDS):
        while not found:
            call = there.stub.ReceiveMessage(request, timeout=CALL_SECONDS, metadata=there.metadata)
            found = [r.message async for r in call if r.WhichOneof("content") == "message"]
    assert [one.body for one in found] == [b"x"]
    handle = found[0].system_properties.receipt_handle
    changed = await there.change("g", handle, 20_000)
    assert changed.status.code == Code.OK
    assert (await there.ack("g", changed.receipt_handle)).status.code == Code.OK

    later = message(b"later", message_id="01" + "D" * 30)
    later.system_properties.delivery_timestamp.FromMilliseconds(int(time.time() * 1000) + 60_000)
    later.system_properties.message_type = definition.MessageType.DELAY
    entry = (await here.send(later)).entries[0]
    recall = service.RecallMessageRequest(topic=resource("T"), recall_handle=entry.recall_handle)
    assert (await there.call("RecallMessage", recall)).status.code == Code.OK

    half = message(b"half", message_id="01" + "E" * 30)
    half.system_properties.message_type = definition.MessageType.TRANSACTION
    entry = (await here.send(half)).entries[0]
    end = service.EndTransactionRequest(
        topic=resource("T"),
        message_id=entry.message_id,
        transaction_id=entry.transaction_id,
        resolution=definition.TransactionResolution.COMMIT,
    )
    assert (await there.call("EndTransaction", end)).status.code == Code.OK
    store = broker_of(nodes["broker-b"]).store
    await until(lambda: sum(store.queue_range("T", queue)[1] for queue in (0, 1)) == 2)
    await here.close()
