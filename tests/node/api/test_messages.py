"""The Messages service through the SDK: append, pull, subscribe, find."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any, cast

import duolog
import grpc.aio
import pytest
from duolog._columns import crc32, pack
from duolog._errors import error_of
from duolog.wire import duolog_pb2 as wire
from duolog.wire import duolog_pb2_grpc as stubs

from duolog_server.node.api.native import messages_of
from duolog_server.serve.server import Node
from tests.node.replicas import broker_of
from tests.nodefixtures import StartNode
from tests.until import WAIT_SECONDS, until

Subscribe = grpc.aio.StreamStreamCall[wire.SubscribeRequest, wire.MessageBatch]


def append_request(bodies: list[bytes], **changes: object) -> wire.AppendRequest:
    """A request as the SDK makes it, with changes."""
    blob, offsets = pack(bodies)
    fields: dict[str, object] = {
        "id": 1,
        "topic": "T",
        "queue_id": 0,
        "bodies": blob,
        "body_offsets": offsets,
        **changes,
    }
    made = wire.AppendRequest(**fields)  # type: ignore[arg-type]
    if "crc32" not in changes:
        made.crc32 = crc32(made.bodies, made.body_offsets, made.properties, made.property_offsets)
    return made


async def append(client: duolog.Client, request: wire.AppendRequest) -> wire.AppendReply:
    bare = wire.AppendRequest()
    bare.CopyFrom(request)
    bare.ClearField("bodies")
    deadline = asyncio.get_running_loop().time() + WAIT_SECONDS
    return await client._router.seed.append(bare, request.bodies, deadline)


async def test_a_sent_message_is_read_back_unchanged(
    client: duolog.Client, producer: duolog.Producer
) -> None:
    receipt = await producer.send(
        "T", b"hello", key="order 1".replace(" ", "-"), tags="en", properties={"ü": "€"}
    )
    batch = await client.pull("T", receipt.queue_id, receipt.queue_offset)
    (message,) = list(batch)
    assert message.body == b"hello"
    assert message.tags == "en"
    assert message.keys == ["order-1"]
    assert message.properties["ü"] == "€"
    assert message.unique_key == receipt.unique_key
    assert message.store_time_ms == receipt.store_time_ms
    assert abs(message.born_time_ms - time.time() * 1000) < 60_000


async def test_messages_go_to_the_queue_of_their_key_or_in_turn(
    client: duolog.Client, producer: duolog.Producer
) -> None:
    receipts = await asyncio.gather(*(producer.send("T", b"%d" % n, key="k") for n in range(200)))
    assert len({receipt.queue_id for receipt in receipts}) == 1
    assert [receipt.queue_offset for receipt in receipts] == list(range(200))
    bodies = [b"%d" % n * 30 for n in range(30_000)]
    receipt = await producer.send_batch("T", bodies, tags="x")
    assert receipt.count == sum(part.count for part in receipt.parts) == 30_000
    assert receipt.status == "PUT_OK"
    found = {}
    for part in receipt.parts:
        offset = part.queue_offset
        while offset < part.queue_offset + part.count:
            batch = await client.pull("T", part.queue_id, offset)
            for message in batch:
                found[part.queue_id, message.queue_offset] = message.body
            offset = batch.next_offset
    for part in receipt.parts:
        for k in range(part.count):
            assert found[part.queue_id, part.queue_offset + k] == bodies[part.first + k]


async def test_a_repeated_request_is_answered_with_the_first_result(client: duolog.Client) -> None:
    request = append_request([b"a", b"b"], producer_id=b"p" * 10, sequence=7)
    first = await append(client, request)
    request.id = 2
    again = await append(client, request)
    assert (first.count, again.count) == (2, 0)
    assert again.status == wire.PUT_OK
    assert [(run.count, run.queue_offset) for run in again.duplicates] == [(2, 0)]
    assert (await client.pull("T", 0, 0)).count == 2


BAD: list[tuple[dict[str, object], int]] = [
    ({"crc32": 5}, wire.CORRUPT_BATCH),
    ({"topic": "nope"}, wire.TOPIC_NOT_EXIST),
    ({"topic": "x" * 128}, wire.MESSAGE_ILLEGAL),
    ({"topic": "../x"}, wire.MESSAGE_ILLEGAL),
    ({"topic": "a/b"}, wire.MESSAGE_ILLEGAL),
    ({"topic": "a\0b"}, wire.MESSAGE_ILLEGAL),
    ({"topic": ""}, wire.MESSAGE_ILLEGAL),
    ({"topic": "DUOLOG_SYS_METADATA"}, wire.NO_PERMISSION),
    ({"queue_id": 4}, wire.MESSAGE_ILLEGAL),
    ({"queue_id": -1}, wire.MESSAGE_ILLEGAL),
    ({"body_offsets": b""}, wire.MESSAGE_ILLEGAL),
    ({"body_offsets": b"\0\0\0\0"}, wire.MESSAGE_ILLEGAL),
    ({"body_offsets": pack([b"x" * 9])[1]}, wire.MESSAGE_ILLEGAL),
    ({"body_offsets": b"\0\0\0\0\xff\xff\xff\xff"}, wire.MESSAGE_ILLEGAL),
    ({"body_offsets": b"\0\0\0\0\4\0\0\0\1\0\0\0"}, wire.MESSAGE_ILLEGAL),
    ({"properties": b"A\x01b"}, wire.MESSAGE_ILLEGAL),
    (
        {"properties": b"A\x01b\n", "property_offsets": b"\0\0\0\0\4\0\0\0"},
        wire.MESSAGE_ILLEGAL,
    ),
    (
        {
            "properties": b"A\x01" + b"x" * 40_000,
            "property_offsets": b"\0\0\0\0" + (40_002).to_bytes(4, "little"),
        },
        wire.PROPERTIES_SIZE_EXCEEDED,
    ),
    ({"bodies": b"x" * (64 << 10) + b"x"}, wire.MESSAGE_TOO_LARGE),
    ({"producer_id": b"short"}, wire.MESSAGE_ILLEGAL),
    ({"sequence": 1 << 48, "producer_id": b"p" * 10}, wire.MESSAGE_ILLEGAL),
    ({"born_time": -(1 << 63)}, wire.PUT_OK),
]


@pytest.mark.usefixtures("nothing_noted")
async def test_bad_input_gets_a_status_and_stores_nothing(
    client: duolog.Client, node: Node
) -> None:
    for changes, status in BAD:
        before = broker_of(node).store.log.max_offset
        bodies = [b"x" * len(changes["bodies"])] if "bodies" in changes else [b"four"]  # type: ignore[arg-type]
        changes = {name: value for name, value in changes.items() if name != "bodies"}
        reply = await append(client, append_request(bodies, **changes))
        assert reply.status == status, reply.reason
        if status != wire.PUT_OK:
            assert reply.reason
            assert broker_of(node).store.log.max_offset == before
        assert (await append(client, append_request([b"fine"]))).status == wire.PUT_OK


async def test_the_sdk_turns_statuses_into_typed_errors(client: duolog.Client) -> None:
    async with client.producer(timeout=5) as producer:
        with pytest.raises(duolog.UnknownTopic):
            await producer.send("nope", b"x")
        with pytest.raises(duolog.MessageTooLarge):
            await producer.send("T", b"x" * 70_000)
        for asked in (
            producer.send("T", b"x", properties={"KEYS": "reserved"}),
            producer.send("T", b"x", properties={"a": "line\nbreak"}),
            producer.send("T", b"x", queue_id=99),
        ):
            with pytest.raises(duolog.BadRequest):
                await asked
        assert (await producer.send("T", b"fine")).status == "PUT_OK"


async def test_a_request_over_the_grpc_limit_is_refused(start_node: StartNode) -> None:
    node = await start_node(limits={"request_bytes_max": 1 << 20})
    async with duolog.Client(f"127.0.0.1:{node.port}", timeout=5) as client:
        await client.admin.create_topic("T")
        with pytest.raises(duolog.DuologError):
            await append(client, append_request([b"x" * 30_000] * 100))
        reply = await append(client, append_request([b"fine"]))
        assert reply.status == wire.PUT_OK


async def test_a_partial_stream_and_a_reset_leave_the_node_healthy(
    client: duolog.Client, producer: duolog.Producer, node: Node
) -> None:
    await append(client, append_request([b"there"]))
    for _ in range(20):
        call = client._router.seed.messages.Append()
        await call.write(append_request([b"x"] * 100))
        call.cancel()
    subscription = client._router.seed.messages.Subscribe()
    await subscription.write(
        wire.SubscribeRequest(
            add=[wire.QueueOffset(topic="T", queue_id=0, offset=0)], credit_bytes=1 << 20
        )
    )
    await subscription.read()
    subscription.cancel()
    assert (await producer.send("T", b"x")).status == "PUT_OK"
    board = broker_of(node).log.board
    await until(lambda: len(board) == 0)


# -- pull --------------------------------------------------------------------------------------


async def test_a_pull_waits_for_a_matching_message_or_its_time(
    client: duolog.Client, producer: duolog.Producer
) -> None:
    waiting = asyncio.ensure_future(client.pull("T", 2, 0, wait=20.0))
    await asyncio.sleep(0.1)
    assert not waiting.done()
    began = time.monotonic()
    await producer.send("T", b"wake", queue_id=2)
    assert (await waiting).body_list() == [b"wake"]
    assert time.monotonic() - began < 15
    batch = await client.pull("T", 0, 0, wait=0.05)
    assert (batch.count, batch.next_offset) == (0, 0)
    waiting = asyncio.ensure_future(client.pull("T", 0, 0, wait=20.0, tags=["yes"]))
    for _ in range(5):
        await producer.send("T", b"no", tags="no", queue_id=0)
    await asyncio.sleep(0.1)
    assert not waiting.done()
    await producer.send("T", b"yes", tags="yes", queue_id=0)
    batch = await waiting
    assert batch.body_list() == [b"yes"]
    assert batch.next_offset == 6


async def test_a_request_for_a_billion_messages_gets_what_one_reply_holds(
    start_node: StartNode,
) -> None:
    node = await start_node(limits={"pull_messages_max": 1000})
    async with duolog.Client(f"127.0.0.1:{node.port}", timeout=5) as client:
        await client.admin.create_topic("T", 1)
        async with client.producer() as producer:
            await producer.send_batch("T", [b"x"] * 3000)
        batch = await client.pull("T", 0, 0, max_messages=10**9, max_bytes=4_000_000_000)
        assert batch.count == 1000


async def test_waiting_calls_are_bounded(start_node: StartNode) -> None:
    node = await start_node(limits={"polls_max": 3})
    async with duolog.Client(f"127.0.0.1:{node.port}", timeout=5) as client:
        await client.admin.create_topic("T", 1)
        waits = [asyncio.ensure_future(client.pull("T", 0, 0, wait=10)) for _ in range(3)]
        await until(lambda: broker_of(node).waiting_calls.count == 3)
        with pytest.raises(duolog.Busy):
            await client.pull("T", 0, 0, wait=10)
        async with client.producer() as producer:
            await producer.send("T", b"x")
        assert [batch.count for batch in await asyncio.gather(*waits)] == [1, 1, 1]


async def test_of_two_writers_that_expect_an_offset_one_succeeds(
    client: duolog.Client, node: Node
) -> None:
    async with client.producer() as one, client.producer() as other:
        first = await one.send_batch("T", [b"a", b"b"], queue_id=1, expect_offset=0)
        assert first.parts[0].queue_offset == 0
        with pytest.raises(duolog.OffsetMismatch, match="next offset of T/1 is 2") as refused:
            await other.send_batch("T", [b"x"], queue_id=1, expect_offset=0)
        assert refused.value.next_offset == 2
        await other.send_batch("T", [b"c"], queue_id=1, expect_offset=refused.value.next_offset)
        with pytest.raises(duolog.BadRequest, match="needs a queue_id"):
            await one.send_batch("T", [b"x"], expect_offset=3)
        with pytest.raises(duolog.BadRequest, match="a value >= 0"):
            await one.send_batch("T", [b"x"], queue_id=1, expect_offset=-1)
        with pytest.raises(duolog.BadRequest, match="needs a queue_id, no delay"):
            await one.send_batch("T", [b"x"], queue_id=1, expect_offset=3, delay=5)
        with pytest.raises(duolog.BadRequest, match="several requests"):
            await one.send_batch("T", [bytes(1 << 20)] * 2, queue_id=1, expect_offset=3)
    assert broker_of(node).store.puts.ends["T", 1] == 3


async def test_an_expected_offset_is_refused_by_nodes_that_do_not_know_it(
    client: duolog.Client, node: Node
) -> None:
    def older(request: wire.AppendRequest, bodies: bytes) -> bool:
        columns = request.body_offsets, request.properties, request.property_offsets
        return crc32(bodies, *columns) == request.crc32

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("duolog_server.node.api.appends.is_whole", older)
        async with client.producer() as producer:
            await producer.send_batch("T", [b"a"], queue_id=1)
            with pytest.raises(duolog.CorruptBatch):
                await producer.send_batch("T", [b"x"], queue_id=1, expect_offset=5)
    assert broker_of(node).store.puts.ends["T", 1] == 1


async def test_damaged_batches_and_unknown_ids_are_refused(
    client: duolog.Client, producer: duolog.Producer
) -> None:
    await producer.send("T", b"x", queue_id=0)
    batch = await client.pull("T", 0, 0)
    damaged = wire.MessageBatch()
    damaged.CopyFrom(batch._wire)
    damaged.bodies = b"y"
    with pytest.raises(duolog.CorruptBatch):
        duolog.Batch(damaged)
    for message_id in ("F" * 32, "0" * 32, "7F0000010000270F0000000000000003"):
        with pytest.raises(duolog.NoSuchMessage):
            await client.admin.find(message_id=message_id)
    for asked in (client.admin.find(message_id="nonsense"), client.admin.find("T")):
        with pytest.raises(duolog.BadRequest):
            await asked
    with pytest.raises(duolog.NoSuchMessage):
        await client.admin.find("T", unique_key="0" * 32)
    batch = await client.pull("T", 0, 5)
    assert (batch._wire.status, batch.next_offset) == (wire.OFFSET_TOO_LARGE, 1)
    with pytest.raises(duolog.BadRequest):
        await client.pull("T", 0, -1)
    with pytest.raises(duolog.BadRequest):
        await client.pull("T", 4, 0)
    with pytest.raises(duolog.UnknownTopic):
        await client.pull("nope", 0, 0)


# -- subscribe ---------------------------------------------------------------------------------


async def _batch(call: Subscribe) -> wire.MessageBatch:
    batch = await call.read()
    assert isinstance(batch, wire.MessageBatch)
    return batch


async def test_a_subscription_sends_no_more_than_was_granted(
    client: duolog.Client, producer: duolog.Producer
) -> None:
    await producer.send_batch("T", [b"x" * 1000] * 100, queue_id=0)
    call = client._router.seed.messages.Subscribe()
    await call.write(
        wire.SubscribeRequest(
            credit_bytes=10_000,
            batch_bytes=5000,
            add=[wire.QueueOffset(topic="T", queue_id=0, offset=0)],
            subscription=9,
        )
    )
    first, second = [await _batch(call) for _ in range(2)]
    assert (first.count, second.count) == (5, 5)
    assert first.subscription == 9
    third = asyncio.ensure_future(_batch(call))
    await asyncio.sleep(0.1)
    assert not third.done()
    await call.write(wire.SubscribeRequest(credit_bytes=3000))
    assert (await third).count == 3
    call.cancel()


@pytest.mark.parametrize(
    ("topic", "queue_id", "offset"), [("nope", 0, 0), ("T", 9, 0), ("T", 0, -1)]
)
async def test_a_subscription_to_a_queue_that_does_not_exist_is_refused(
    client: duolog.Client, topic: str, queue_id: int, offset: int
) -> None:
    import grpc

    call = client._router.seed.messages.Subscribe()
    await call.write(
        wire.SubscribeRequest(add=[wire.QueueOffset(topic=topic, queue_id=queue_id, offset=offset)])
    )
    with pytest.raises(grpc.RpcError) as caught:
        await call.read()
    assert caught.value.code() in (
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.INVALID_ARGUMENT,
    )


# -- find --------------------------------------------------------------------------------------


async def test_messages_are_found_by_key_unique_key_id_and_time(
    client: duolog.Client, producer: duolog.Producer
) -> None:
    receipts = [await producer.send("T", b"%d" % n, key=f"k{n % 3}", queue_id=1) for n in range(9)]
    found = await client.admin.find("T", key="k1")
    assert [message.body for message in found] == [b"1", b"4", b"7"]
    (by_unique_key,) = await client.admin.find("T", unique_key=receipts[4].unique_key)
    assert by_unique_key.body == b"4"
    (by_id,) = await client.admin.find(message_id=by_unique_key.message_id)
    assert by_id.body == b"4"
    offset = await client.admin.offset_at_time("T", 1, receipts[5].store_time_ms)
    assert offset <= 5
    assert await client.admin.offset_at_time("T", 1, duolog.Start.EARLIEST) == 0
    assert await client.admin.offset_at_time("T", 1, duolog.Start.LATEST) == 9
    nothing = await client.admin.find("T", key="k1", end_ms=1)
    assert nothing == []


async def test_a_fault_in_answering_ends_the_stream_of_appends(
    start_node: StartNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = await start_node(flush_disk_type="SYNC_FLUSH")
    async with duolog.Client(f"127.0.0.1:{node.port}", timeout=10) as client:
        await client.admin.create_topic("T", 1)
    monkeypatch.setattr("duolog_server.node.api.appends.PUT_STATUS", {})
    async with grpc.aio.insecure_channel(f"127.0.0.1:{node.port}") as channel:
        call = stubs.MessagesStub(channel).Append()
        await call.write(append_request([b"x"]))
        async with asyncio.timeout(60):
            assert await call.code() is grpc.StatusCode.UNKNOWN


async def test_an_invalid_queue_position_is_refused(node: Node, client: duolog.Client) -> None:
    places: list[Any] = [-1, -2, "earliest", 1.5, None]
    for place in places:
        with pytest.raises(duolog.BadRequest, match="is not a position in a queue: give Start"):
            await client.admin.offset_at_time("T", 1, place)
        with pytest.raises(duolog.BadRequest, match="is not a position in a queue"):
            await client.admin.reset_group("G", "T", place)
        with pytest.raises(duolog.BadRequest, match="start must be Start"):
            client.consumer("G", "T", start=place)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{node.port}") as channel:
        for how, text in (
            ({"time": -1}, "time is -1 ms"),
            ({}, "start is 0: set it to EARLIEST"),
            ({"start": 9}, "start is 9: set it to EARLIEST"),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                request = wire.OffsetAtTimeRequest(topic="T", **how)  # type: ignore[arg-type]
                await stubs.GroupsStub(channel).OffsetAtTime(request)
            assert isinstance(error_of(refused.value), duolog.BadRequest)
            assert text in str(refused.value.details())
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                reset = wire.ResetGroupRequest(group="G", topic="T", **how)  # type: ignore[arg-type]
                await stubs.AdminStub(channel).ResetGroup(reset)
            assert text in str(refused.value.details())


async def test_messages_of_a_disconnected_producer_are_readable_at_once(
    node: Node, client: duolog.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    pumped: list[int] = []

    class HungUp:
        def peer(self) -> str:
            return "ipv4:127.0.0.1:1"

        async def write(self, reply: wire.AppendReply) -> None:
            pumped.clear()
            raise asyncio.CancelledError

    async def requests() -> AsyncIterator[wire.AppendRequest]:
        yield append_request([b"x"])

    broker = broker_of(node)
    monkeypatch.setattr(broker.log, "pump_soon", lambda: pumped.append(1))
    with pytest.raises(asyncio.CancelledError):
        await messages_of(broker).Append(requests(), cast("Any", HungUp()))
    assert broker.store.log.max_offset > 0
    assert pumped == [1]
