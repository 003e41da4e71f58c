"""Connections that keep the console waiting end, and shut nobody out."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from itertools import islice
from typing import Any

import pytest

from duolog_server.ops.console.http import serving as module
from duolog_server.ops.console.http.serving import Server
from tests.node.replicas import WAIT_SECONDS

GET = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
LONG = 16 << 20
Reached = Callable[[], Any]


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Answers /long with much, and what has a body once it has it."""
    if scope["type"] == "lifespan":
        for kind in ("startup", "shutdown"):
            await receive()
            await send({"type": f"lifespan.{kind}.complete"})
        return
    while (await receive()).get("more_body"):
        pass
    body = bytes(LONG) if scope["path"] == "/long" else b"in"
    length = (b"content-length", str(len(body)).encode())
    await send({"type": "http.response.start", "status": 200, "headers": [length]})
    await send({"type": "http.response.body", "body": body})


@asynccontextmanager
async def served() -> AsyncIterator[int]:
    """The port of a server."""
    with socket.create_server(("127.0.0.1", 0)) as made:
        server = Server(app)
        serving = asyncio.create_task(server.serve([made]))
        async with asyncio.timeout(WAIT_SECONDS):
            yield made.getsockname()[1]
        server.end()
        await serving


async def connect(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", port)


def reached(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=WAIT_SECONDS)


async def ended(reader: asyncio.StreamReader) -> bytes:
    """What is read until the end."""
    try:
        return await reader.read()
    except ConnectionError:
        return b""


@pytest.mark.parametrize(
    "said",
    [
        b"",
        GET[:-2],
        GET.replace(b"GET", b"POST").replace(b"\r\n\r\n", b"\r\nContent-Length: 9\r\n\r\nx"),
        GET + GET.replace(b"GET", b"POST").replace(b"\r\n\r\n", b"\r\nContent-Length: 9\r\n\r\nx"),
        GET + GET[:-2],
    ],
)
async def test_a_request_that_does_not_arrive_ends_its_connection(
    monkeypatch: pytest.MonkeyPatch, said: bytes
) -> None:
    monkeypatch.setattr(module, "REQUEST_SECONDS", 0.05)
    monkeypatch.setattr("duolog_server.ops.console.http.serving.IDLE_SECONDS", 0.05)
    async with served() as port:
        reader, writer = await connect(port)
        writer.write(said)
        answers = await ended(reader)
        assert answers.count(b"200 OK") == said.startswith(GET)
        writer.close()


async def test_a_connection_that_asks_again_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    async with served() as port:
        reader, writer = await connect(port)
        for _ in range(3):
            writer.write(GET[:9])
            await writer.drain()
            writer.write(GET[9:])
            assert b"200 OK" in await reader.readuntil(b"\r\n\r\nin")
        writer.close()


async def test_an_answer_that_is_not_read_ends_its_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "WRITE_SECONDS", 0.05)
    async with served() as port:
        made = reached(port)
        made.setblocking(False)
        loop = asyncio.get_running_loop()
        gone = asyncio.Event()
        lost = module.Connection.connection_lost

        def note(connection: module.Connection, error: Exception | None) -> None:
            lost(connection, error)
            gone.set()

        monkeypatch.setattr(module.Connection, "connection_lost", note)
        with made:
            await loop.sock_sendall(made, GET.replace(b"/ ", b"/long "))
            await gone.wait()


async def test_connections_that_say_nothing_shut_nobody_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "CONNECTIONS_MAX", 4)
    async with served() as port:
        idle = [await connect(port) for _ in range(10)]
        reader, writer = await connect(port)
        writer.write(GET)
        assert b"200 OK" in await reader.readuntil(b"\r\n\r\nin")
        for first, _ in idle[:7]:
            assert await ended(first) == b""
        for _, one in (*idle, (reader, writer)):
            one.close()


async def test_connections_that_come_at_once_are_as_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CONNECTIONS_MAX", 4)
    monkeypatch.setattr(module, "REQUEST_SECONDS", 3600.0)
    count = 40
    async with served() as port:
        clients = await asyncio.gather(*(connect(port) for _ in range(count)))
        ends = [asyncio.create_task(ended(reader)) for reader, _ in clients]
        for end in islice(asyncio.as_completed(ends), count - 4):
            assert await end == b""
        assert sum(not end.done() for end in ends) == 4
        for _, writer in clients:
            writer.close()
        await asyncio.gather(*ends)


async def test_a_request_is_read_among_connections_that_come_at_once() -> None:
    async with served() as port:
        reader, writer = await connect(port)
        writer.write(GET)
        assert b"200 OK" in await reader.readuntil(b"\r\n\r\nin")  # it serves
        with ExitStack() as opened:
            # None is accepted meanwhile: the loop does not run.
            made = [opened.enter_context(reached(port)) for _ in range(400)]
            made[0].sendall(GET)
            made[0].setblocking(False)
            answer = await asyncio.get_running_loop().sock_recv(made[0], 4096)
        assert b"200 OK" in answer
        writer.close()
