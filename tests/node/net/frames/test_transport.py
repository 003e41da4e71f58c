"""The SDK and a node over frames: when they are spoken, what breaks them, and the way back."""

import asyncio
import contextlib
import socket
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import duolog
import grpc
import grpc.aio
import pytest
from duolog import _connection, _frameschannel
from duolog import _frames as frames
from duolog._connection import Connection
from duolog._errors import error_of
from duolog._frames import Kind
from duolog._frameschannel import FramesChannel
from duolog._nodechannel import AppendStream
from duolog._runtime import MACHINE
from duolog.wire import duolog_pb2 as wire

from duolog_server.node.identity.access.frameskeys import SharedKey
from duolog_server.node.net.frames.connection import Connection as ServersConnection
from duolog_server.node.net.frames.server import FramesServer
from duolog_server.serve.server import Node
from tests.node.replicas import broker_of
from tests.nodefixtures import StartNode
from tests.until import until


@pytest.fixture(autouse=True)
def _frames_whatever_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DUOLOG_TRANSPORT", "frames")
    monkeypatch.setattr(_connection, "FRAMES_AGAIN_SECONDS", (0.05, 0.1))
    monkeypatch.setattr(_connection, "GATE_SECONDS", 10.0)  # a first call waits for them


def seed(client: duolog.Client) -> Connection:
    return client._router.seed


def over_frames(client: duolog.Client) -> bool:
    return isinstance(seed(client).channel, FramesChannel)


def server(node: Node) -> FramesServer:
    assert node._frames is not None
    return node._frames


async def test_the_first_send_goes_over_frames(node: Node, client: duolog.Client) -> None:
    async with client.producer() as producer:
        await producer.send("T", b"x", queue_id=0)
        batch = await client.pull("T", 0, 0)
    assert batch.bodies == b"x"
    assert over_frames(client)
    assert server(node).connections == 1
    assert not seed(client)._over_grpc().busy
    assert seed(client)._over_grpc()._stream is None  # no append went over gRPC


async def test_a_long_poll_and_its_cancellation(node: Node, client: duolog.Client) -> None:
    assert node.broker is not None
    board = node.broker.log.board
    waiting = asyncio.ensure_future(client.pull("T", 0, 0, wait=20))
    await until(lambda: len(board))
    waiting.cancel()
    await until(lambda: not len(board))
    waiting = asyncio.ensure_future(client.pull("T", 0, 0, wait=20))
    await until(lambda: len(board))
    async with client.producer() as producer:
        await producer.send("T", b"late", queue_id=0)
    assert (await waiting).bodies == b"late"


async def test_a_stream_may_have_a_deadline(node: Node, client: duolog.Client) -> None:
    await client.admin.node_status()
    channel = seed(client).channel
    assert isinstance(channel, FramesChannel)
    stream: Any = seed(client).messages.Subscribe(timeout=0.05)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stream.read()
    assert isinstance(error_of(caught.value), duolog.Timeout)
    await until(lambda: not any(one.busy for one in server(node)._connections))


@pytest.mark.parametrize("how", ["at the node", "by the variable", "by the runtime"])
async def test_frames_can_be_turned_off(
    start_node: StartNode, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    node = await start_node(frames_listen="" if how == "at the node" else "auto")
    runtime = replace(MACHINE, frames=how != "by the runtime")
    if how == "by the variable":
        monkeypatch.setenv("DUOLOG_TRANSPORT", "grpc")
    async with duolog.Client(f"127.0.0.1:{node.port}", runtime=runtime) as client:
        await client.admin.create_topic("T", 1)
        async with client.producer() as producer:
            await producer.send("T", b"x")
        assert not over_frames(client)
        assert (await client.admin.route()).frames_port == (
            0 if how == "at the node" else server(node).port
        )


async def test_errors_are_the_same_and_name_the_master(node: Node, client: duolog.Client) -> None:
    await client.admin.node_status()
    assert over_frames(client)
    with pytest.raises(duolog.UnknownTopic, match="U"):
        await client.pull("U", 0, 0)
    with pytest.raises(duolog.BadRequest):
        await client.admin.create_topic("a b")
    refusal = duolog.NotMaster("go away", "10.0.0.1:8081", 7)

    def refuse(*_: object) -> None:
        raise refusal

    broker_of(node).admission.readable_topic = refuse  # type: ignore[assignment]
    channel = seed(client).messages
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await channel.Pull(wire.PullRequest(topic="T"), timeout=5)
    found = error_of(caught.value)
    assert isinstance(found, duolog.NotMaster)
    assert (found.endpoint, found.epoch, found.master_away) == ("10.0.0.1:8081", 7, False)


async def test_large_batches_both_ways(start_node: StartNode) -> None:
    node = await start_node(mapped_file_size_commit_log=64 << 20, max_message_size=4 << 20)
    async with duolog.Client(f"127.0.0.1:{node.port}", timeout=30) as client:
        await client.admin.create_topic("T", 1)
        bodies = [bytes([k]) * (1 << 20) for k in range(20)]
        async with client.producer() as producer:
            await producer.send_batch("T", bodies, queue_id=0)
        assert over_frames(client)
        found: list[bytes] = []
        async with client.consumer("G", "T") as consumer:
            async for message in consumer:
                found.append(message.body)
                if len(found) == len(bodies):
                    break
        assert found == bodies


async def test_a_batch_over_the_limit_goes_in_parts_and_a_message_over_it_is_too_large(
    start_node: StartNode,
) -> None:
    node = await start_node(limits={"request_bytes_max": 1 << 20})
    async with duolog.Client(f"127.0.0.1:{node.port}") as client:
        await client.admin.create_topic("T", 1)
        async with client.producer() as producer:
            await producer.send("T", b"first")
            assert over_frames(client)
            with pytest.raises(duolog.MessageTooLarge, match="the node's limit is 1048576"):
                await producer.send("T", b"x" * (1 << 20))
            key = "k" * 100  # its bytes come on top of those of the bodies
            posted = [producer.post("T", b"x" * 1000, key=key) for _ in range(3000)]
            await producer.flush()
        assert all(one.error() is None for one in posted)
        assert broker_of(node).log.counters.messages_in == 3001


async def test_over_grpc_posts_stay_within_the_least_limit_that_a_node_may_have(
    start_node: StartNode,
) -> None:
    """There, what is over it ends the stream, and with it all that is in flight."""
    node = await start_node(limits={"request_bytes_max": 1 << 20}, frames_listen="")
    async with duolog.Client(f"127.0.0.1:{node.port}") as client:
        await client.admin.create_topic("T", 1)
        async with client.producer() as producer:
            posted = [producer.post("T", b"x" * 1000) for _ in range(3000)]
            await producer.flush()
        assert not over_frames(client)
    assert all(one.error() is None for one in posted)


async def test_messages_of_a_key_stay_in_order_while_the_transport_changes(
    node: Node, client: duolog.Client
) -> None:
    """Frames break again and again under posts: all are stored once, in their order."""
    sent = 600
    async with client.producer(timeout=30) as producer:
        for number in range(sent):
            producer.post("T", b"%d" % number, queue_id=1)
            if number % 40 == 20:
                for connection in list(server(node)._connections):
                    connection.abort()
            if number % 10 == 0:
                await asyncio.sleep(0.005)
        await producer.flush()
    await until(lambda: over_frames(client))
    found: list[int] = []
    while len(found) < sent:
        batch = await client.pull("T", 1, len(found), wait=5)
        found += [int(message.body) for message in batch]
    assert found == list(range(sent))


async def test_a_client_returns_to_frames_after_they_broke(
    node: Node, client: duolog.Client, producer: duolog.Producer
) -> None:
    await client.admin.node_status()
    first = seed(client).channel
    assert isinstance(first, FramesChannel)
    for connection in list(server(node)._connections):
        connection.abort()
    await until(lambda: first.error is not None)
    await producer.send("T", b"x")
    await until(lambda: over_frames(client) and seed(client).channel is not first)


async def test_a_client_returns_to_frames_that_could_not_be_reached(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A firewall in front of the port: gRPC is used, and frames once the port is reachable."""
    right = _frameschannel.connect
    refused = 0

    async def no_way(*_: object) -> FramesChannel:
        nonlocal refused
        refused += 1
        raise ConnectionRefusedError

    monkeypatch.setattr(_frameschannel, "connect", no_way)
    async with duolog.Client(f"127.0.0.1:{node.port}") as client:
        await client.admin.create_topic("T", 1)
        async with client.producer() as producer:
            await producer.send("T", b"over gRPC")
            assert not over_frames(client)
            assert seed(client)._over_grpc()._stream is not None
            await until(lambda: refused > 2)
            monkeypatch.setattr(_frameschannel, "connect", right)
            await until(lambda: over_frames(client))
            await producer.send("T", b"over frames")
            assert not seed(client)._over_grpc().busy


async def test_a_client_with_another_key_is_refused(node: Node, client: duolog.Client) -> None:
    """NAT, or a port now used by another process: the key reveals it, and gRPC is used."""
    with pytest.raises(duolog.Unavailable, match="stale connection key"):
        await _frameschannel.connect(("127.0.0.1", server(node).port), b"x" * 16, 5)
    keys, broker_of(node).dialects.frames_keys = broker_of(node).dialects.frames_keys, SharedKey()
    async with duolog.Client(f"127.0.0.1:{node.port}") as misled:
        async with misled.producer() as producer:
            assert (await producer.send("T", b"x")).status == "PUT_OK"
        assert not over_frames(misled)
        broker_of(node).dialects.frames_keys = keys
        await until(lambda: over_frames(misled))


@pytest.mark.parametrize(
    "answer",
    [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x00" * 64, frames.hello(b"k" * 16), b"echo"],
)
async def test_a_port_that_speaks_something_else_is_not_used(node: Node, answer: bytes) -> None:
    """Whatever it answers, or if it does not answer: the SDK sends over gRPC."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard = await reader.read(1000)
        writer.write(heard if answer == b"echo" else answer)
        await writer.drain()
        if answer != b"":
            await reader.read()
        writer.close()

    async with await asyncio.start_server(talk, "127.0.0.1", 0) as stranger:
        port = stranger.sockets[0].getsockname()[1]
        broker_of(node).dialects.frames_port = port
        async with duolog.Client(f"127.0.0.1:{node.port}") as client:
            await client.admin.create_topic("T", 1)
            async with client.producer() as producer:
                assert (await producer.send("T", b"x")).status == "PUT_OK"
            assert not over_frames(client)
            broker_of(node).dialects.frames_port = server(node).port
            await until(lambda: over_frames(client))


async def test_an_invalid_port_is_rejected_at_once(node: Node) -> None:
    """Calls do not wait for frames that are no longer tried."""
    broker_of(node).dialects.frames_port = 70_000
    async with duolog.Client(f"127.0.0.1:{node.port}") as client:
        await client.admin.create_topic("T", 1)
        await until(seed(client)._tried.is_set)
        assert not over_frames(client)
        broker_of(node).dialects.frames_port = server(node).port
        await until(lambda: over_frames(client))


async def test_a_restarted_node_has_another_key(start_node: StartNode) -> None:
    node = await start_node()
    endpoint = f"127.0.0.1:{node.port}"
    async with duolog.Client(endpoint, timeout=20) as client:
        await client.admin.create_topic("T", 1)
        async with client.producer() as producer:
            await producer.send("T", b"1", queue_id=0)
            key = broker_of(node).dialects.frames_keys.issue()
            await node.stop()
            again = await start_node(listen=endpoint)
            assert broker_of(again).dialects.frames_keys.issue() != key
            await producer.send("T", b"2", queue_id=0)
            await until(lambda: over_frames(client))
            await producer.send("T", b"3", queue_id=0)
        assert [message.body for message in await client.pull("T", 0, 0)] == [b"1", b"2", b"3"]


async def test_a_stop_answers_the_calls_under_way(node: Node, single: duolog.Client) -> None:
    waiting = asyncio.ensure_future(single.pull("T", 0, 0, wait=60))
    board = broker_of(node).log.board
    await until(lambda: len(board))
    began = asyncio.get_running_loop().time()
    await node.stop()
    assert asyncio.get_running_loop().time() - began < 10
    assert server(node).connections == 0
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)


async def test_connections_during_a_stop_are_refused(node: Node) -> None:
    """Also one that was accepted in the same turn of the event loop."""
    port = server(node).port
    with socket.socket() as early:
        early.connect(("127.0.0.1", port))  # in the backlog: the loop has not accepted it
        await node.stop()
        assert server(node).connections == 0
        early.settimeout(5)
        with contextlib.suppress(ConnectionError):
            assert await asyncio.to_thread(early.recv, 100) == b""


async def test_a_connection_to_a_silent_node_is_closed_and_its_calls_fail(
    node: Node, client: duolog.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.admin.node_status()
    channel = seed(client).channel
    assert isinstance(channel, FramesChannel)
    for connection in list(server(node)._connections):
        connection._write = lambda data: None  # type: ignore[method-assign]
        connection.tick = lambda: None  # type: ignore[method-assign]
    waiting = asyncio.ensure_future(channel.append(wire.AppendRequest(id=1), b"", 1e9))
    await asyncio.sleep(0)
    for _ in range(_frameschannel.SILENT_TICKS):
        channel._tick()
    with pytest.raises(duolog.Unavailable, match="does not answer"):
        await waiting
    assert channel.closed


async def test_a_node_that_reads_nothing_meets_deadlines(node: Node, client: duolog.Client) -> None:
    await client.admin.node_status()
    channel = seed(client).channel
    assert isinstance(channel, FramesChannel)
    for connection in list(server(node)._connections):
        connection._write = lambda data: None  # type: ignore[method-assign]
    loop = asyncio.get_running_loop()
    request = wire.AppendRequest(id=1, topic="T")

    async def ended(deadline: float) -> float:
        with pytest.raises(TimeoutError):
            await channel.append(request, b"", deadline)
        return loop.time()

    deadlines = [loop.time() + seconds for seconds in (0.5, 0.05)]
    late, early = await asyncio.gather(*map(ended, deadlines))
    assert early >= deadlines[1] - 0.001
    assert late >= deadlines[0] - 0.001, "not with the earlier one"
    assert not channel.busy
    assert channel.error is None  # others go on
    channel.pause_writing()
    with pytest.raises(grpc.aio.AioRpcError) as ended_late:
        await seed(client).admin.ListTopics(wire.ListTopicsRequest(), timeout=0.05)
    assert ended_late.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    channel.resume_writing()
    assert [topic.topic for topic in await client.admin.topics()] == ["T"]


async def test_appends_change_over_in_order_while_others_are_under_way_over_grpc(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = _frameschannel.connect
    reachable = asyncio.Event()

    async def later(*how: Any) -> FramesChannel:
        await reachable.wait()
        return await right(*how)

    monkeypatch.setattr(_frameschannel, "connect", later)
    monkeypatch.setattr(_connection, "GATE_SECONDS", 0.01)
    sent: list[str] = []
    gate = asyncio.Event()

    async def slowly(stream: AppendStream, request: wire.AppendRequest) -> wire.AppendReply:
        sent.append("gRPC")
        await gate.wait()
        return await append(stream, request)

    append = AppendStream.append
    monkeypatch.setattr(AppendStream, "append", slowly)
    monkeypatch.setattr(AppendStream, "busy", property(lambda stream: not gate.is_set()))

    async def idle(stream: AppendStream) -> None:
        await gate.wait()

    monkeypatch.setattr(AppendStream, "idle", idle)
    async with duolog.Client(f"127.0.0.1:{node.port}", timeout=10) as client:
        await client.admin.create_topic("T", 1)
        async with client.producer() as producer:
            first = asyncio.ensure_future(producer.send("T", b"0", queue_id=0))
            await until(lambda: sent)
            reachable.set()
            await until(lambda: over_frames(client))
            # Each of a producer of its own: one producer sends one batch at a time to a queue.
            others = [client.producer() for _ in range(3)]
            rest = []
            for number, other in enumerate(others, 1):
                rest.append(asyncio.ensure_future(other.send("T", b"%d" % number, queue_id=0)))
                await until(lambda number=number: len(seed(client)._held) == number)  # type: ignore[misc]
            assert not any(send.done() for send in (first, *rest))
            gate.set()
            await asyncio.gather(first, *rest)
            assert sent == ["gRPC"]
            assert not seed(client)._held
            batch = await client.pull("T", 0, 0)
            rest_in_order = [body for body in batch.body_list() if body != b"0"]
            assert rest_in_order == [b"1", b"2", b"3"]


# -- a key that stands for a user, and is taken no more --------------------------------------------


class Refusing:
    """Ends what comes over frames with UNAUTHENTICATED, while it is on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.on = False
        self.refused: list[int] = []  # kinds of frames
        for name in ("_append", "_call"):
            monkeypatch.setattr(ServersConnection, name, self._instead_of(name))

    def _instead_of(self, name: str) -> Callable[[ServersConnection, frames.Frame], None]:
        original = getattr(ServersConnection, name)

        def handle(connection: ServersConnection, found: frames.Frame) -> None:
            if not self.on:
                original(connection, found)
                return
            self.refused.append(found.kind)
            code = grpc.StatusCode.UNAUTHENTICATED
            connection.send_end(found.call, code, "the key is no longer valid", ())

        return handle


async def test_a_key_that_is_taken_no_more_is_asked_for_again(
    node: Node, client: duolog.Client, producer: duolog.Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was refused goes over gRPC, what comes later over frames again."""
    refusing = Refusing(monkeypatch)
    await producer.send("T", b"0", queue_id=0)
    assert over_frames(client)
    refusing.on = True
    receipt = await producer.send("T", b"1", queue_id=0)
    assert (receipt.status, refusing.refused) == ("PUT_OK", [Kind.APPEND])
    assert (await client.pull("T", 0, 0)).count == 2
    await until(lambda: over_frames(client))  # greeted again
    assert (await client.pull("T", 0, 0)).count == 2
    assert refusing.refused[1:] == [Kind.CALL]
    assert seed(client).endpoint == f"127.0.0.1:{node.port}"
    refusing.on = False
    await until(lambda: over_frames(client))
    await producer.send("T", b"2", queue_id=0)
    assert over_frames(client)


async def test_a_subscription_outlives_the_key_of_its_frames(
    node: Node, client: duolog.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Frames are tried again later than the subscription, or this one's keys are refused for ever.
    monkeypatch.setattr(_connection, "FRAMES_AGAIN_SECONDS", (0.5, 30.0))
    refusing = Refusing(monkeypatch)
    await client.admin.node_status()
    assert over_frames(client)
    refusing.on = True
    async with client.producer() as producer, client.consumer("G", "T") as consumer:
        await producer.send("T", b"x")
        message = await consumer.get(10)
    assert message is not None
    assert message.body == b"x"


async def test_who_is_refused_over_grpc_as_well_is_told(node: Node, client: duolog.Client) -> None:
    await client.admin.node_status()
    assert over_frames(client)
    asked = 0

    def refuse(*_: object) -> None:
        nonlocal asked
        asked += 1
        raise duolog.Unauthenticated("no such user")

    broker_of(node).admission.readable_topic = refuse  # type: ignore[assignment]
    with pytest.raises(duolog.Unauthenticated, match="no such user"):
        await client.pull("T", 0, 0)
    assert asked == 2  # over frames, over gRPC
