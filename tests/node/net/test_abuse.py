"""What a client that means harm may do to a node, and that others do not notice."""

import asyncio
import contextlib
import itertools
import socket
import struct
import zlib
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import duolog
import grpc
import pytest
from duolog import _frames as frames
from duolog._runtime import CHANNEL_OPTIONS, MACHINE
from duolog.testing._ports import free_endpoint
from duolog.wire import duolog_pb2 as wire
from duolog.wire import duolog_pb2_grpc as stubs
from structlog.testing import capture_logs

from duolog_server.node.core import untaken as untaken_module
from duolog_server.node.net.grpc import options as grpcoptions
from duolog_server.serve import server
from duolog_server.serve.server import Node
from tests import http2bytes as h2
from tests.node.replicas import broker_of
from tests.nodefixtures import StartNode
from tests.until import until

PULL = b"/duolog.v1.Messages/Pull"
TELEMETRY = b"/apache.rocketmq.v2.MessagingService/Telemetry"
MIB = 1 << 20
WAIT_SECONDS = 20.0


class Raw:
    """A connection of bytes."""

    def __init__(self, port: int, buffer: int = 0) -> None:
        self.socket = socket.socket()
        if buffer:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        self.socket.connect(("127.0.0.1", port))
        self.socket.setblocking(False)
        self._data = bytearray()

    async def send(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self.socket, data)

    async def read(self) -> bytes:
        """What is there, at least a byte; empty at the end."""
        async with asyncio.timeout(WAIT_SECONDS):
            with contextlib.suppress(ConnectionResetError):
                return await asyncio.get_running_loop().sock_recv(self.socket, MIB)
        return b""

    async def frame(self) -> tuple[int, int, int, bytes]:
        """A frame of HTTP/2: kind, flags, stream, payload. Raises EOFError."""
        while len(self._data) < 9 or len(self._data) < 9 + int.from_bytes(self._data[:3], "big"):
            if not (more := await self.read()):
                raise EOFError
            self._data += more
        length = int.from_bytes(self._data[:3], "big")
        kind, flags, stream = struct.unpack_from(">BBI", self._data, 3)
        payload = bytes(self._data[9 : 9 + length])
        del self._data[: 9 + length]
        return kind, flags, stream, payload

    async def headers(self, stream: int) -> bytes:
        """The first headers of a stream."""
        while True:
            kind, _, of, payload = await self.frame()
            if kind == h2.HEADERS and of == stream:
                return payload

    def close(self) -> None:
        self.socket.close()


@pytest.fixture
async def open_raw() -> AsyncIterator[Any]:
    made: list[Raw] = []

    def connect(port: int, buffer: int = 0) -> Raw:
        made.append(Raw(port, buffer))
        return made[-1]

    yield connect
    for one in made:
        one.close()


def endpoint(node: Node) -> str:
    return f"127.0.0.1:{node.port}"


def shorten(monkeypatch: pytest.MonkeyPatch, times: dict[str, int]) -> None:
    """Have other times than the node's in its options, where they are among them."""
    options = tuple((name, times.get(name, value)) for name, value in grpcoptions._ANY_PORT)
    monkeypatch.setattr(grpcoptions, "_ANY_PORT", options)


async def test_a_compressed_message_is_refused_before_it_is_decompressed(
    node: Node, open_raw: Any
) -> None:
    raw = open_raw(node.port)
    packed = zlib.compress(bytes(16 * MIB), wbits=31)
    await raw.send(h2.greeting() + h2.frame(h2.SETTINGS, h2.ACK, 0))
    block = h2.call_block(PULL, h2.field(b"grpc-encoding", b"gzip"))
    await raw.send(h2.begin(1, block) + h2.message(1, packed, h2.END_STREAM, packed=True))
    answer = await raw.headers(1)
    assert b"grpc-status" in answer
    assert b"12" in answer  # UNIMPLEMENTED
    assert b"gzip" in answer  # is named in the reason
    raw = open_raw(node.port)
    await raw.send(h2.greeting() + h2.frame(h2.SETTINGS, h2.ACK, 0))
    large = h2.field(b"x-long", bytes(grpcoptions.METADATA_BYTES_MAX))
    await raw.send(h2.begin(1, h2.call_block(PULL, large)))
    answer = await raw.headers(1)
    assert b"grpc-status\x018" in answer  # RESOURCE_EXHAUSTED
    request = wire.PullRequest(topic="none").SerializeToString()
    await raw.send(h2.begin(3, h2.call_block(PULL)) + h2.message(3, request, h2.END_STREAM))
    assert b"UnknownTopic" in await raw.headers(3)
    raw = open_raw(node.port)
    await raw.send(h2.greeting() + h2.frame(h2.SETTINGS, h2.ACK, 0))
    block = h2.call_block(TELEMETRY, h2.field(b"x-mq-client-id", b"c"))
    cancel = struct.pack(">I", h2.CANCEL)
    async with duolog.Client(endpoint(node)) as client:
        await client.admin.create_topic("T", 1)
        for stream in range(1, 4001, 2):
            await raw.send(h2.begin(stream, block) + h2.frame(h2.RST_STREAM, 0, stream, cancel))
        await client.admin.create_topic("U", 1)
        assert node.rocketmq is not None
        clients = node.rocketmq.clients
        await until(lambda: not any(one.streams for one in clients.all()))


async def test_a_connection_too_many_is_closed_and_the_others_go_on(
    start_node: StartNode, open_raw: Any
) -> None:
    node = await start_node(limits={"connections_max": 16})
    over_grpc = replace(MACHINE, frames=False)  # it would end its gRPC connection otherwise
    async with duolog.Client(endpoint(node), runtime=over_grpc) as client:
        await client.admin.create_topic("T", 1)
        held = [open_raw(node.port) for _ in range(15)]
        for raw in held:
            assert await raw.read()  # the node greets
        assert await open_raw(node.port).read() == b""
        await client.admin.create_topic("U", 1)
        held[0].close()
        await until(lambda: open_raw(node.port).read())


async def test_a_connection_that_does_not_greet_is_closed(
    start_node: StartNode, open_raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grpcoptions, "_ANY_PORT", (("grpc.server_handshake_timeout_ms", 100),))
    node = await start_node()
    raw = open_raw(node.port)
    await raw.send(h2.PREFACE[:5])
    async with asyncio.timeout(WAIT_SECONDS):
        while await raw.read():
            pass


async def test_a_connection_without_a_call_is_closed(
    start_node: StartNode, open_raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grpcoptions, "IDLE_SECONDS", 1)
    node = await start_node()
    raw = open_raw(node.port)
    await raw.send(h2.greeting() + h2.frame(h2.SETTINGS, h2.ACK, 0))
    async with asyncio.timeout(WAIT_SECONDS):
        while (await raw.frame())[0] != h2.GOAWAY:
            pass


async def test_a_connection_that_answers_no_ping_is_closed(
    start_node: StartNode, open_raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    shorten(monkeypatch, {"grpc.keepalive_time_ms": 1000, "grpc.http2.ping_timeout_ms": 500})
    node = await start_node()
    raw = open_raw(node.port)
    await raw.send(h2.greeting() + h2.frame(h2.SETTINGS, h2.ACK, 0))
    await raw.send(h2.begin(1, h2.call_block(PULL)))  # it is not idle
    async with asyncio.timeout(WAIT_SECONDS):
        while await raw.read():
            pass


async def test_a_client_is_told_how_many_calls_a_connection_may_have(
    start_node: StartNode, open_raw: Any
) -> None:
    listen = {"listen": free_endpoint()}
    node = await start_node(limits={"streams_max": 16}, ha=listen, broker_role="ASYNC_MASTER")
    told = []
    for port in (node.port, node.ha_port):
        raw = open_raw(port)
        await raw.send(h2.greeting())
        kind, _, _, payload = await raw.frame()
        assert kind == h2.SETTINGS
        told.append(dict(struct.iter_unpack(">HI", payload))[h2.CONCURRENT_STREAMS])
    assert told == [16, grpcoptions.SLAVES_STREAMS_MAX]


async def test_calls_that_send_no_request_are_bounded_on_all_connections_together(
    start_node: StartNode, open_raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "SHORT_CALLS_MAX", 7)
    node = await start_node(limits={"polls_max": 1})
    begun = h2.call_block(PULL)
    silent = [open_raw(node.port) for _ in range(2)]
    for raw in silent:
        calls = b"".join(h2.begin(stream, begun) for stream in (1, 3, 5, 7))
        await raw.send(h2.greeting() + h2.frame(h2.SETTINGS, h2.ACK, 0) + calls)
    async with grpc.aio.insecure_channel(endpoint(node)) as channel:
        status = stubs.AdminStub(channel).NodeStatus

        async def refused() -> bool:
            try:
                await status(wire.NodeStatusRequest(), timeout=WAIT_SECONDS)
            except grpc.aio.AioRpcError as error:
                return error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            return False

        async with asyncio.timeout(WAIT_SECONDS):
            for stream in itertools.count(9, 2):
                with capture_logs() as logged:
                    if await refused():
                        break
                # A silent call that came while this one was under way may have been refused.
                await silent[0].send(h2.begin(stream, begun))
        assert ("gRPC: too many calls", "8 are open") in [
            (line["event"], line.get("reason")) for line in logged
        ]
        for raw in silent:
            raw.close()
        async with asyncio.timeout(WAIT_SECONDS):
            while await refused():
                await asyncio.sleep(0.01)


async def test_more_calls_than_a_connection_may_have_take_another_one(
    start_node: StartNode,
) -> None:
    node = await start_node(limits={"streams_max": 16})
    async with duolog.Client(endpoint(node)) as client:
        await client.admin.create_topic("T", 1)
    async with grpc.aio.insecure_channel(endpoint(node), CHANNEL_OPTIONS) as channel:
        pull = stubs.MessagesStub(channel).Pull
        calls = [
            asyncio.ensure_future(_waits(pull(wire.PullRequest(topic="T", wait_ms=30_000))))
            for _ in range(100)
        ]
        broker = broker_of(node)
        await until(lambda: broker.waiting_calls.count == 100)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)


async def _waits(call: Any) -> None:
    await call


async def _fill(client: duolog.Client, mib: int) -> None:
    await client.admin.create_topic("T", 1)
    async with client.producer() as producer:
        for _ in range(mib * 32):
            await producer.send_batch("T", [bytes(1000)] * 33, queue_id=0)


async def test_answers_that_nobody_takes_are_bounded_over_grpc(
    start_node: StartNode, open_raw: Any
) -> None:
    node = await start_node(limits={"answers_bytes_max": 4 * MIB, "pull_bytes_max": MIB})
    untaken = broker_of(node).untaken
    async with duolog.Client(endpoint(node)) as client:
        await _fill(client, 2)
        request = wire.PullRequest(topic="T").SerializeToString()
        raw = open_raw(node.port, 4096)
        await raw.send(h2.greeting((1 << 31) - 1) + h2.frame(h2.SETTINGS, h2.ACK, 0))
        for stream in range(1, 41, 2):
            calls = h2.begin(stream, h2.call_block(PULL))
            await raw.send(calls + h2.message(stream, request, h2.END_STREAM))
        await until(lambda: untaken.room("127.0.0.1") == 0)
        assert MIB <= untaken.held_bytes <= 2 * MIB
        assert untaken.validate() == ""
        raw.close()
        await until(lambda: untaken.held_bytes == 0)
        assert (await client.pull("T", 0, 0)).count > 0


async def test_a_client_that_takes_nothing_is_disconnected(
    start_node: StartNode, open_raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    shorten(monkeypatch, {"grpc.keepalive_timeout_ms": 1000})
    node = await start_node()
    untaken = broker_of(node).untaken
    async with duolog.Client(endpoint(node)) as client:
        await _fill(client, 4)
        request = wire.PullRequest(topic="T").SerializeToString()
        raw = open_raw(node.port, 4096)
        calls = h2.begin(1, h2.call_block(PULL)) + h2.message(1, request, h2.END_STREAM)
        await raw.send(h2.greeting((1 << 31) - 1) + h2.frame(h2.SETTINGS, h2.ACK, 0) + calls)
        await until(lambda: untaken.held_bytes)
        await until(lambda: not untaken.held_bytes)


async def test_answers_that_nobody_takes_are_bounded_over_frames(
    start_node: StartNode, open_raw: Any
) -> None:
    node = await start_node(limits={"answers_bytes_max": 16 * MIB, "pull_bytes_max": 4 * MIB})
    broker, untaken = broker_of(node), broker_of(node).untaken
    async with duolog.Client(endpoint(node)) as client:
        await _fill(client, 6)
        raws = []
        for _ in range(4):
            raw = open_raw(broker.dialects.frames_port, 4096)
            raws.append(raw)
            await raw.send(frames.hello(broker.dialects.frames_keys.issue()))
            request = wire.PullRequest(topic="T").SerializeToString()
            code = frames.NUMBERS["/duolog.v1.Messages/Pull"]
            for number in range(1, 9):
                await raw.send(frames.frame(frames.Kind.CALL, number, 60_000, request, code))
        await until(lambda: untaken.room("127.0.0.1") == 0)
        assert untaken.held_bytes <= 6 * MIB
        for raw in raws:
            raw.close()
        await until(lambda: untaken.held_bytes == 0)
        assert (await client.pull("T", 0, 0)).count > 0


async def test_properties_need_room_as_bodies_do(start_node: StartNode) -> None:
    node = await start_node(limits={"answers_bytes_max": 4 * MIB, "pull_bytes_max": MIB})
    untaken = broker_of(node).untaken
    async with duolog.Client(endpoint(node)) as client:
        await client.admin.create_topic("T", 1)
        async with client.producer() as producer:
            for _ in range(10):
                await producer.send_batch("T", [b"x"] * 10, keys=[["k" * 9000]] * 10, queue_id=0)
        for other in range(untaken_module.SHARES):
            untaken.take(str(other), MIB)
        batch = await client.pull("T", 0, 0)
        assert len(batch) > 1
        assert len(batch._wire.properties) <= untaken_module.LITTLE_BYTES


@pytest.mark.parametrize(
    ("limit", "most"), [("connections_per_address_max", 8), ("connections_max", 16)]
)
async def test_one_address_does_not_take_all_connections_of_frames(
    start_node: StartNode, open_raw: Any, limit: str, most: int
) -> None:
    node = await start_node(limits={limit: most})
    assert node._frames is not None
    taking, port = node._frames, broker_of(node).dialects.frames_port
    held = [open_raw(port) for _ in range(most)]
    await until(lambda: taking.connections == most)
    assert await open_raw(port).read() == b""
    assert taking.refused == 1
    held[0].close()
    await until(lambda: taking.connections == most - 1)
    open_raw(port)
    await until(lambda: taking.connections == most)


@pytest.mark.parametrize("path", [b"/duolog.v1.Messages/\xff\xfe", b"\xc3\x28", b"/", b""])
async def test_a_call_of_a_method_whose_name_is_no_text_ends_nothing(
    start_node: StartNode, open_raw: Any, path: bytes
) -> None:
    node = await start_node(ha={"listen": free_endpoint()}, broker_role="ASYNC_MASTER")
    for port in (node.port, node.ha_port):
        raw = open_raw(port)
        await raw.send(h2.greeting() + h2.frame(h2.SETTINGS, h2.ACK, 0))
        await raw.send(h2.begin(1, h2.call_block(path)) + h2.message(1, b"", h2.END_STREAM))
        with contextlib.suppress(EOFError):
            await raw.headers(1)
        assert await open_raw(port).read()
    async with duolog.Client(endpoint(node)) as client:
        await client.admin.create_topic("T", 1)


async def test_headers_that_are_no_text_end_nothing(start_node: StartNode, open_raw: Any) -> None:
    node = await start_node(ha={"listen": free_endpoint()}, broker_role="ASYNC_MASTER")
    for port in (node.port, node.ha_port):
        raw = open_raw(port)
        await raw.send(h2.greeting() + h2.frame(h2.SETTINGS, h2.ACK, 0))
        for stream, value in ((1, b"\xff\xfe"), (3, b"\xc3\x28"), (5, b"")):
            block = h2.call_block(PULL, h2.field(b"x-mq-client-id", value))
            await raw.send(h2.begin(stream, block) + h2.message(stream, b"", h2.END_STREAM))
        with contextlib.suppress(EOFError):
            await raw.headers(5)
        assert await open_raw(port).read()
    async with duolog.Client(endpoint(node)) as client:
        await client.admin.create_topic("T", 1)
