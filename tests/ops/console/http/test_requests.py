"""Requests that a proxy and the console could read differently: the second one in them is none."""

import asyncio
import socket
from typing import Any

import pytest

from duolog_server.ops.console.http.security import Protected
from duolog_server.ops.console.http.serving import HEADER_BYTES_MAX, Server
from tests.node.replicas import WAIT_SECONDS

BEGIN = b"POST /first HTTP/1.1\r\nHost: localhost\r\nSec-Fetch-Site: same-origin\r\n"
NEXT = b"GET /smuggled HTTP/1.1\r\nHost: localhost\r\n\r\n"


class Pages:
    """An application that notes what it is asked for."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            for kind in ("startup", "shutdown"):
                await receive()
                await send({"type": f"lifespan.{kind}.complete"})
            return
        self.asked.append(scope["path"])
        while (await receive()).get("more_body"):
            pass
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"in"})


async def said_to(pages: Pages, said: bytes) -> bytes:
    """What a server answers, until it ends the connection."""
    with socket.create_server(("127.0.0.1", 0)) as made:
        server = Server(Protected(pages, loopback_only=True))
        serving = asyncio.create_task(server.serve([made]))
        async with asyncio.timeout(WAIT_SECONDS):
            reader, writer = await asyncio.open_connection(*made.getsockname())
            writer.write(said)
            answer = await reader.read()
            writer.close()
        server.end()
        await serving
    return answer


@pytest.mark.parametrize(
    "framed",
    [
        b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
        b"Content-Length: 0\r\nContent-Length: 44\r\n\r\n",
        b"Content-Length: 0, 44\r\n\r\n",
        b"Content-Length: +0\r\n\r\n",
        b"Content-Length: 0x0\r\n\r\n",
        b"Content-Length : 0\r\n\r\n",
        b"Content-Length: \xd9\xa0\r\n\r\n",
        b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
        b"Transfer-Encoding: identity, chunked\r\n\r\n0\r\n\r\n",
        b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n",
        b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
        b"Transfer-Encoding: chunked\r\n\r\n-0\r\n\r\n",
        b"Transfer-Encoding: chunked\r\n\r\n0x0\r\n\r\n",
        b"Host: evil.example\r\nContent-Length: 0\r\n\r\n",
        b"X: a\rContent-Length: 44\r\n\r\n",
        b"X\x00: a\r\nContent-Length: 0\r\n\r\n",
        b"X: a\x00b\r\nContent-Length: 0\r\n\r\n",
    ],
)
async def test_a_request_whose_end_is_not_certain_is_refused(framed: bytes) -> None:
    pages = Pages()
    answer = await said_to(pages, BEGIN + framed + NEXT)
    assert "/smuggled" not in pages.asked
    assert answer.split()[1] in (b"400", b"403", b"501")
    assert answer.count(b"HTTP/1.1") == 1


async def test_a_refusal_ends_the_connection_and_headers_are_bounded() -> None:
    pages = Pages()
    foreign = BEGIN.replace(b"same-origin", b"cross-site")
    answer = await said_to(pages, foreign + b"Content-Length: 9\r\n\r\n" + NEXT)
    assert answer.split()[1] == b"403"
    assert pages.asked == []
    pages = Pages()
    answer = await said_to(pages, BEGIN + b"X: " + b"a" * 2 * HEADER_BYTES_MAX)
    assert answer.split()[1] == b"400"
    assert pages.asked == []


@pytest.mark.parametrize("target", [b"http://evil.example/x", b"*", b"//evil.example/x"])
async def test_an_address_is_no_other_host(target: bytes) -> None:
    pages = Pages()
    get = b"GET " + target + b" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    assert (await said_to(pages, get)).split()[1] == b"200"
    assert pages.asked == [target.decode()], "a path that no page has"
