"""Lists that nobody takes: they have the room that messages have, over gRPC and frames."""

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from types import SimpleNamespace
from typing import Any

import duolog
import grpc
import pytest
from duolog import _frames as frames
from duolog.wire import duolog_pb2 as wire

from duolog_server.node.api import longanswers as module
from duolog_server.node.api.longanswers import LONG, counted_methods
from duolog_server.node.api.native import native_methods
from duolog_server.node.core.untaken import Untaken
from duolog_server.node.core.waitingcalls import WaitingCalls
from duolog_server.node.net.methods import Methods
from duolog_server.serve.server import Node
from tests import http2bytes as h2
from tests.node.replicas import broker_of
from tests.nodefixtures import StartNode
from tests.until import until

LIST, CREATE = "/duolog.v1.Admin/ListTopics", "/duolog.v1.Admin/CreateTopic"
MIB = 1 << 20
# Nodes and epochs, what a group promises; queues of a member, whose renewal must not wait until
# others at its address have taken their answers.
FEW_ROWS = frozenset(
    f"/duolog.v1.{name}"
    for name in ("Admin/NodeStatus", "Admin/Route", "Admin/SetGuarantee", "Groups/Heartbeat")
)
WAIT_SECONDS = 20.0


class Context:
    """A call of some address, whose client takes the answer when the test says so."""

    def __init__(self) -> None:
        self.callbacks: list[Any] = []

    def peer(self) -> str:
        return "ipv4:10.0.0.7:1"

    def add_done_callback(self, callback: Any) -> None:
        self.callbacks.append(callback)

    def taken(self) -> None:
        for callback in self.callbacks:
            callback(self)


def serving(method: Any, untaken: Untaken, path: str = LIST) -> Any:
    methods = Methods()
    handler: Any = grpc.unary_unary_rpc_method_handler(method)
    methods.by_path[path] = handler
    return counted_methods(methods, untaken).by_path[path].unary_unary


def room(most: int) -> Untaken:
    return Untaken(most, most // 4, WaitingCalls(100))


async def test_a_call_begins_where_there_is_room_and_is_counted_until_it_is_taken() -> None:
    untaken, began, made = room(16 * module.KEPT_BYTES), [], asyncio.Event()

    async def method(request: Any, context: Any) -> wire.ListTopicsReply:
        began.append(request)
        await made.wait()
        return wire.ListTopicsReply(next="x" * (2 * module.KEPT_BYTES))

    serve, held = serving(method, untaken), [0]

    async def one(number: int) -> None:
        context = Context()
        await serve(number, context)
        held.append(untaken.held_bytes)
        await asyncio.sleep(0)
        context.taken()

    calls = [asyncio.create_task(one(number)) for number in range(20)]
    for _ in range(3):
        await asyncio.sleep(0)
    assert began == [0, 1, 2, 3]  # a 4th of the room is for one address
    made.set()
    async with asyncio.timeout(WAIT_SECONDS):
        await asyncio.gather(*calls)
    assert module.KEPT_BYTES <= max(held) <= 4 * 3 * module.KEPT_BYTES
    assert untaken.held_bytes == 0
    assert untaken.validate() == ""
    untaken, began, made = room(16 * module.KEPT_BYTES), [], asyncio.Event()

    async def create(request: Any, context: Any) -> wire.TopicReply:
        began.append(request)
        await made.wait()
        return wire.TopicReply(topic="x" * module.KEPT_BYTES)

    serve, contexts = serving(create, untaken, CREATE), [Context() for _ in range(20)]
    calls = [asyncio.create_task(serve(number, one)) for number, one in enumerate(contexts)]
    await asyncio.sleep(0)
    assert began == list(range(20)), "many wait for slaves and disks at a time"
    made.set()
    async with asyncio.timeout(WAIT_SECONDS):
        await asyncio.gather(*calls)
    assert untaken.held_bytes > 20 * module.KEPT_BYTES
    later = asyncio.create_task(serve(20, Context()))
    await asyncio.sleep(0)
    assert began == list(range(20)), "the answers are not taken"
    for context in contexts:
        context.taken()
    async with asyncio.timeout(WAIT_SECONDS):
        await later
    assert began[-1] == 20
    untaken = room(4 * MIB)

    async def fail(request: Any, context: Any) -> None:
        raise duolog.UnknownTopic("no such topic")

    with pytest.raises(duolog.UnknownTopic):
        await serving(fail, untaken)(None, Context())
    assert untaken.held_bytes == 0


async def test_the_bytes_that_were_counted_are_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    replies, untaken = [wire.ListTopicsReply(next=name) for name in "ab"], room(16 * MIB)

    async def method(request: int, context: Any) -> wire.ListTopicsReply:
        return replies[request]

    async def serialized(reply: Any, slices: Any) -> bytes:
        return b"made before"

    monkeypatch.setattr(module, "serialized", serialized)
    methods = Methods()
    handler: Any = grpc.unary_unary_rpc_method_handler(method)
    methods.by_path[LIST] = handler
    made: Any = counted_methods(methods, untaken).by_path[LIST]
    context = Context()
    for number in (0, 1):
        assert await made.unary_unary(number, context) is replies[number]
    assert untaken.held_bytes == 2 * len(b"made before")
    assert made.response_serializer(replies[0]) == replies[0].SerializeToString(), "not the last"
    assert made.response_serializer(replies[1]) == b"made before"
    assert made.response_serializer(replies[1]) == replies[1].SerializeToString(), "sent already"
    await made.unary_unary(0, context)
    context.taken()
    assert made.response_serializer(replies[0]) == replies[0].SerializeToString(), "over"


async def test_every_call_that_answers_with_rows_is_counted(node: Node) -> None:
    assert native_methods(broker_of(node)).by_path.keys() >= LONG
    rows = {path for path, reply in replies() if has_rows(reply)}
    assert rows - LONG == FEW_ROWS


def replies() -> Iterator[tuple[str, Any]]:
    """The calls that have one answer, and its type."""
    for service in wire.DESCRIPTOR.services_by_name.values():
        for method in service.methods:
            if not method.server_streaming:
                yield f"/{service.full_name}/{method.name}", method.output_type


def has_rows(message: Any) -> bool:
    """Whether a message has rows of any number, in itself or in its parts."""
    nested = (field.message_type for field in message.fields if field.message_type is not None)
    return any(field.is_repeated for field in message.fields) or any(map(has_rows, nested))


@pytest.fixture
async def many(start_node: StartNode) -> Node:
    """A node with a list of half a MiB."""
    node = await start_node(limits={"answers_bytes_max": 4 * MIB, "pull_bytes_max": MIB})
    async with duolog.Client(f"127.0.0.1:{node.port}") as client:
        for number in range(20):
            await client.admin.create_topic(f"T{number}", 1000)
    return node


@pytest.fixture
async def deaf() -> AsyncIterator[Any]:
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    made.setblocking(False)
    yield SimpleNamespace(socket=made)
    made.close()


@pytest.mark.parametrize("way", ["gRPC", "frames"])
async def test_lists_that_nobody_takes_are_bounded(many: Node, deaf: Any, way: str) -> None:
    broker, loop = many.broker, asyncio.get_running_loop()
    assert broker is not None
    if way == "gRPC":
        port, first = many.port, h2.greeting(0) + h2.frame(h2.SETTINGS, h2.ACK, 0)
        calls = (
            h2.begin(stream, h2.call_block(LIST.encode())) + h2.message(stream, b"", h2.END_STREAM)
            for stream in range(1, 401, 2)
        )
    else:
        port, first = broker.dialects.frames_port, frames.hello(broker.dialects.frames_keys.issue())
        code = frames.NUMBERS[LIST]
        calls = (frames.frame(frames.Kind.CALL, n, 60_000, b"", code) for n in range(1, 201))
    await loop.sock_connect(deaf.socket, ("127.0.0.1", port))
    await loop.sock_sendall(deaf.socket, first + b"".join(calls))
    await until(lambda: broker.untaken.room("127.0.0.1") == 0)
    assert broker.untaken.held_bytes <= 4 * MIB
    deaf.socket.close()
    await until(lambda: broker.untaken.held_bytes == 0)
    async with duolog.Client(f"127.0.0.1:{many.port}") as client:
        assert len(await client.admin.topics()) == 20
