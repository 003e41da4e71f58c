"""Properties that the node makes itself, and a client that forges them."""

import duolog
import grpc.aio
import pytest
from duolog._columns import pack
from duolog.wire import duolog_pb2 as wire
from duolog.wire import duolog_pb2_grpc as stubs

from duolog_server.node.deferred.transactionservice import CHECKS, IMMUNITY, ORIGIN
from duolog_server.serve.server import Node
from tests.node.api.test_messages import append, append_request
from tests.node.replicas import broker_of
from tests.until import until


def forged(properties: dict[str, str], **changes: object) -> wire.AppendRequest:
    """One message with properties that the SDK would refuse."""
    text = "\x02".join(f"{name}\x01{value}" for name, value in properties.items()).encode()
    blob, offsets = pack([text])
    body = str(changes.pop("body", "forged")).encode()
    return append_request([body], properties=blob, property_offsets=offsets, **changes)


async def commit(node: Node, group: str, half: int) -> None:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{node.port}") as channel:
        request = wire.EndTransactionsRequest(group=group, halves=[half], commit=True)
        await stubs.MessagesStub(channel).EndTransactions(request, timeout=10)


async def test_half_messages_and_sinks_take_nobodys_place(
    node: Node, client: duolog.Client
) -> None:
    """The other could be neither committed nor read again."""
    own = append_request([b"own"], transaction_group="owners")
    victim = (await append(client, own)).queue_offset
    false = {ORIGIN: str(victim), CHECKS: "9999", IMMUNITY: "1", "PGROUP": "owners"}
    reply = await append(client, forged({**false, "a": "b"}, transaction_group="others"))
    await commit(node, "owners", victim)
    await commit(node, "others", reply.queue_offset)
    await until(lambda: broker_of(node).store.queue_range("T", 0)[1] == 2)
    first, second = await client.pull("T", 0, 0)
    assert (first.body, second.body) == (b"own", b"forged")
    assert second.properties["a"] == "b"
    assert not second.properties.keys() & false.keys()
    batch = forged({"DLQ_ORIGIN_TOPIC": "U"}).SerializeToString()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{node.port}") as channel:
        with pytest.raises(grpc.aio.AioRpcError, match="DLQ_ORIGIN_TOPIC") as refused:
            request = wire.StageRequest(sink="s", batch=batch)
            await stubs.MessagesStub(channel).Stage(request, timeout=10)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize("number", ["9" * 5000, "\u0663", "1"])
async def test_what_a_waiting_message_says_of_its_way_counts_for_nothing(
    node: Node, client: duolog.Client, number: str
) -> None:
    """A number with so many digits cannot be read at all: the service would end with it."""
    names = (ORIGIN, CHECKS, IMMUNITY, "REAL_QID", "DELAY", "TIMER_OUT_MS")
    false = {**dict.fromkeys(names, number), "REAL_TOPIC": "U", "a": "b"}
    due = broker_of(node).times.wall_ms() + 300
    await client.admin.create_topic("U", 4)
    for how in ({"deliver_time": due}, {"delay_level": 1}, {"transaction_group": "G"}):
        reply = await append(client, forged(false, queue_id=2, **how))
        assert reply.status == wire.PUT_OK
    await commit(node, "G", reply.queue_offset)
    await until(lambda: broker_of(node).store.queue_range("T", 2)[1] == 3)
    assert all(one.properties["a"] == "b" for one in await client.pull("T", 2, 0))
    assert broker_of(node).store.queue_range("U", 1)[1] == 0
    assert not broker_of(node).failed.is_set()


@pytest.mark.parametrize("name", ["RETRY_TOPIC", "DLQ_ORIGIN_TOPIC"])
async def test_a_message_does_not_say_which_topic_it_came_from(
    client: duolog.Client, name: str
) -> None:
    """Dead letters are sent there again, with the rights of who redelivers them."""
    for properties in ({name: "U"}, {"a": "b", name: "U"}):
        for how in ({}, {"delay_level": 1}, {"transaction_group": "G"}):
            reply = await append(client, forged(properties, **how))
            assert reply.status == wire.MESSAGE_ILLEGAL
            assert name in reply.reason
    for properties in ({"a": name}, {f"MY_{name}": "U"}):
        assert (await append(client, forged(properties))).status == wire.PUT_OK
    with pytest.raises(duolog.BadRequest, match=name):
        async with client.producer() as producer:
            await producer.send("T", b"x", properties={name: "U"})
