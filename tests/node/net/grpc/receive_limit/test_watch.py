"""Requests over gRPC that do not end, against a node: their connections do, and others go on."""

import asyncio
import struct
import time

import duolog
import pytest
from structlog.testing import capture_logs

from duolog_server.node.net.grpc.receive_limit import watch as watching
from duolog_server.node.net.grpc.receive_limit.ledger import Ledger
from duolog_server.node.net.grpc.receive_limit.sockets import has_counters
from duolog_server.node.runtime.memory import OwnMemory
from duolog_server.serve.server import Node
from tests import http2bytes as h2
from tests.grpccaller import APPEND, CHECK, Caller
from tests.nodefixtures import StartNode
from tests.until import until

pytestmark = pytest.mark.skipif(not has_counters(), reason="no counters of connections")

MIB = 1 << 20
WAIT_SECONDS = 20.0
LIMITS = {"arriving_bytes_max": MIB, "request_bytes_max": MIB}


def endpoint(node: Node) -> str:
    return f"127.0.0.1:{node.port}"


def sends_half(address: str, streams: int, size: int) -> bool:
    """Send messages that never are whole; whether the connection was ended."""
    caller = Caller(address)
    head = b"\0" + struct.pack(">I", size + 1000)
    numbers = [2 * n + 1 for n in range(streams)]
    for number in numbers:
        caller.windows[number] = caller.initial - len(head)
        caller.windows[0] -= len(head)
        caller.send(h2.begin(number, h2.call_block(APPEND)) + h2.frame(h2.DATA, 0, number, head))
    left = dict.fromkeys(numbers, size)
    until = time.monotonic() + WAIT_SECONDS
    while not caller.ended and time.monotonic() < until:
        for number in numbers:
            left[number] -= caller.send_data(number, left[number])
        caller.read(0.01)
    caller.close()
    return caller.ended


def sends_endless_headers(address: str, first: bytes = b"") -> bool:
    """The same with headers. first: a call before them."""
    caller = Caller(address)
    caller.send(first + h2.frame(h2.HEADERS, 0, 3, h2.call_block(APPEND)))
    more = h2.frame(h2.CONTINUATION, 0, 3, h2.field(b"x", b"y" * 100) * 100)
    until = time.monotonic() + WAIT_SECONDS
    for _ in range(3 * MIB // len(more)):
        caller.send(more)
    while not caller.ended and time.monotonic() < until:
        caller.read(0.01)
    caller.close()
    return caller.ended


async def test_a_look_that_the_system_does_not_allow_is_made_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watching, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(watching, "BLIND_SECONDS", 0.0)
    looks = 0

    def memory(_: object) -> int:
        nonlocal looks
        looks += 1
        if looks in (2, 3, 6):
            raise OSError("too many open files")
        return 0

    monkeypatch.setattr(OwnMemory, "read", memory)
    watch = watching.Watch(Ledger(MIB, MIB))
    with capture_logs() as lines:
        watch.start({1})
        await until(lambda: looks >= 10)
        await watch.stop()
    assert [line["reason"] for line in lines] == ["too many open files"] * 2, "once for each spell"


@pytest.mark.parametrize("attack", ["messages", "headers"])
async def test_requests_that_do_not_end_are_bounded_and_others_go_on(
    start_node: StartNode, attack: str
) -> None:
    node = await start_node(limits=LIMITS)
    async with duolog.Client(endpoint(node)) as client:
        await client.admin.create_topic("T", 1)
        with capture_logs() as lines:
            if attack == "messages":
                ended = await asyncio.to_thread(sends_half, endpoint(node), 4, MIB)
            else:
                ended = await asyncio.to_thread(sends_endless_headers, endpoint(node))
        assert ended
        assert any(line["event"] == "gRPC: a connection was ended" for line in lines)
        await client.admin.create_topic("later", 1)


async def test_headers_that_do_not_end_behind_a_call_end_however_much_there_is_room(
    start_node: StartNode,
) -> None:
    node = await start_node()
    call = h2.begin(1, h2.call_block(CHECK)) + h2.message(1, b"", h2.END_STREAM)
    assert await asyncio.to_thread(sends_endless_headers, endpoint(node), call)


async def test_a_stopped_node_looks_no_more(start_node: StartNode) -> None:
    node = await start_node()
    watch = node._server._watch  # type: ignore[union-attr]
    assert watch._task is not None
    task = watch._task
    await node.stop()
    assert task.done()
    watch.known(("10.0.0.1", 1), 5)
    assert watch._ledger._connections == {}


async def test_requests_that_arrive_are_counted_as_such_and_nobody_ends(
    start_node: StartNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DUOLOG_TRANSPORT", "grpc")
    node = await start_node(limits={"arriving_bytes_max": MIB})
    watch = node._server._watch  # type: ignore[union-attr]
    with capture_logs() as lines:
        async with duolog.Client(endpoint(node)) as client, client.producer() as producer:
            await client.admin.create_topic("T", 1)
            for _ in range(8):
                await producer.send_batch("T", [b"x" * 60_000] * 60)
                await client.pull("T", 0, 0)
            connections = watch._ledger._connections
            await until(
                lambda: (
                    not (
                        sum(one.received for one in connections.values()) < 7 * 60 * 60_000
                        or any(one.known for one in connections.values())
                    )
                )
            )  # for a look that comes after all that
            found = [one.unfinished for one in connections.values()]
    assert max(found) < 64 << 10  # of 28 MB
    assert not [line for line in lines if line["event"] == "gRPC: a connection was ended"]
