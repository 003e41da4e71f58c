"""TLS handshakes that do not end, or never begin, shut nobody out."""

import asyncio
import asyncio.sslproto
import gc
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import pytest

from duolog_server.demo.certificates import Authority
from duolog_server.node.net import handshakes as module
from duolog_server.node.net.handshakes import Handshakes
from duolog_server.ops.console.http import serving as connections
from duolog_server.ops.console.http.serving import Server
from tests.node.replicas import WAIT_SECONDS
from tests.ops.console.http.test_connections import GET, app, connect, ended, reached


@asynccontextmanager
async def served(directory: Path) -> AsyncIterator[tuple[int, ssl.SSLContext, Handshakes]]:
    """The port of a server, what a browser trusts, and the handshakes."""
    authority = Authority(directory)
    own = authority.issue("console")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(own.cert, own.key)
    with socket.create_server(("127.0.0.1", 0)) as made:
        server = Server(app, context)
        serving = asyncio.create_task(server.serve([made]))
        async with asyncio.timeout(WAIT_SECONDS):
            assert server._handshakes is not None
            trusted = ssl.create_default_context(cafile=authority.cert)
            yield made.getsockname()[1], trusted, server._handshakes
        server.end()
        await serving


async def secured(
    port: int, context: ssl.SSLContext
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", port, ssl=context)


async def answer(port: int, context: ssl.SSLContext) -> bytes:
    """Of a browser that asks as it should."""
    reader, writer = await secured(port, context)
    writer.write(GET)
    found = await reader.readuntil(b"\r\n\r\nin")
    writer.close()
    return found


async def test_a_request_is_answered(tmp_path: Path) -> None:
    async with served(tmp_path) as (port, context, handshakes):
        assert b"200 OK" in await answer(port, context)
        assert len(handshakes) == 0


async def test_connections_without_a_handshake_are_few_and_shut_nobody_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "HANDSHAKES_MAX", 4)
    async with served(tmp_path) as (port, context, handshakes):
        idle = [await connect(port) for _ in range(20)]
        for reader, _ in idle[:16]:
            assert await ended(reader) == b""
        assert len(handshakes) == 4
        assert b"200 OK" in await answer(port, context)
        assert len(handshakes) < 4 + 1
        for _, writer in idle:
            writer.close()


async def test_a_thousand_connections_that_say_nothing_leave_room_for_others(
    tmp_path: Path,
) -> None:
    async with served(tmp_path) as (port, context, handshakes):
        with ExitStack() as opened:
            for _ in range(25):
                for _ in range(40):
                    opened.enter_context(reached(port))
                assert b"200 OK" in await answer(port, context)
                assert len(handshakes) <= module.HANDSHAKES_MAX


@pytest.mark.parametrize("quiet", ["10.0.0.9", "2001:db8:9::1"])
@pytest.mark.parametrize("loud", ["10.0.0.7", "2001:db8:7::{:x}"])
async def test_a_handshake_of_another_client_goes_on(quiet: str, loud: str) -> None:
    handshakes = Handshakes(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
    aborted: list[int] = []

    class Transport(asyncio.Transport):
        def __init__(self, address: str, number: int) -> None:
            super().__init__({"peername": (address, number)})
            self.number = number

        def abort(self) -> None:
            aborted.append(self.number)

    made = handshakes.of(asyncio.Protocol)
    for number in range(module.HANDSHAKES_MAX + 3):
        address = quiet if number in (0, 40) else loud.format(number)
        made().connection_made(Transport(address, number))
    assert aborted == [1, 2, 3]
    await handshakes.stop()


@pytest.mark.parametrize("said", [b"", b"\x16\x03\x01", b"GET / HTTP/1.1\r\n\r\n"])
async def test_a_handshake_that_does_not_end_ends_its_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: bytes
) -> None:
    monkeypatch.setattr(module, "HANDSHAKE_SECONDS", 0.05)
    async with served(tmp_path) as (port, context, handshakes):
        reader, writer = await connect(port)
        writer.write(said)
        await ended(reader)
        writer.close()
        assert len(handshakes) == 0
        monkeypatch.setattr(module, "HANDSHAKE_SECONDS", WAIT_SECONDS)
        assert b"200 OK" in await answer(port, context)


async def test_secured_connections_that_ask_nothing_are_few(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "CONNECTIONS_MAX", 3)
    async with served(tmp_path) as (port, context, _):
        idle = [await secured(port, context) for _ in range(5)]
        for reader, _ in idle[:2]:
            assert await ended(reader) == b""
        assert b"200 OK" in await answer(port, context)
        for _, writer in idle:
            writer.close()


async def test_a_server_ends_while_handshakes_are_in_progress(tmp_path: Path) -> None:
    async with served(tmp_path) as (port, _, handshakes):
        reader, writer = await connect(port)
        while not len(handshakes):
            await asyncio.sleep(0)
    assert await ended(reader) == b""
    writer.close()


async def test_a_handshake_that_failed_leaves_nothing_behind(tmp_path: Path) -> None:
    """Each one has 256 KiB of buffers, which must not wait for the collector of cycles."""

    def left() -> int:
        return sum(isinstance(one, asyncio.sslproto.SSLProtocol) for one in gc.get_objects())

    async with served(tmp_path) as (port, context, handshakes):
        assert b"200 OK" in await answer(port, context)
        gc.collect()
        gc.disable()
        try:
            before = left()
            for said in (b"", b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01") * 10:
                reader, writer = await connect(port)
                writer.write(said)
                writer.write_eof()
                assert await ended(reader) is not None
                writer.close()
            assert await turned(lambda: not len(handshakes) and left() <= before)
        finally:
            gc.enable()


async def turned(true: Callable[[], bool], most: int = 100) -> bool:
    """Whether something is true within some turns of the loop."""
    for _ in range(most):
        if true():
            return True
        await asyncio.sleep(0)
    return False
