"""The metrics of all shards at one port."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from duolog_server.serve.shardmetrics import Answer, ShardsPort, ask, header, merged

FIRST = b"""\
# HELP a_total Things.
# TYPE a_total counter
a_total{x="1"} 2
a_total{x="{"} 3
# HELP h Times.
# TYPE h histogram
h_bucket{le="+Inf"} 4
h_sum 0.5
"""
SECOND = b"""\
# HELP h Times.
# TYPE h histogram
h_sum 1.5
# HELP a_total Things.
# TYPE a_total counter
a_total{x="1"} 9
# HELP only_here x
# TYPE only_here gauge
only_here 1.0
"""


def test_a_family_is_in_one_place_and_its_samples_name_their_shards() -> None:
    text = b"".join(merged([Answer(200, FIRST), Answer(), Answer(200, SECOND)])).decode()
    head, _, families = text.partition("# HELP a_total")
    assert [line[-1] for line in head.splitlines()[2:]] == ["1", "0", "1"]
    assert f"# HELP a_total{families}" == (
        "# HELP a_total Things.\n# TYPE a_total counter\n"
        'a_total{shard="0",x="1"} 2\na_total{shard="0",x="{"} 3\na_total{shard="2",x="1"} 9\n'
        "# HELP h Times.\n# TYPE h histogram\n"
        'h_bucket{shard="0",le="+Inf"} 4\nh_sum{shard="0"} 0.5\nh_sum{shard="2"} 1.5\n'
        '# HELP only_here x\n# TYPE only_here gauge\nonly_here{shard="2"} 1.0\n'
    )


@asynccontextmanager
async def shard(status: str, text: bytes, seen: list[bytes]) -> AsyncIterator[int]:
    """The port of a shard's metrics that gives this answer."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            seen.append(await reader.readuntil(b"\r\n\r\n"))
            writer.write(
                f"HTTP/1.1 {status}\r\nContent-Length: {len(text)}\r\n\r\n".encode() + text
            )
            await writer.drain()
        except (OSError, EOFError):
            pass
        finally:
            writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]


@asynccontextmanager
async def of_all(*ports: int) -> AsyncIterator[ShardsPort]:
    port = ShardsPort(ports)
    await port.start("127.0.0.1", 0)
    try:
        yield port
    finally:
        await port.stop()


async def get(port: int, path: str, more: str = "") -> tuple[str, bytes]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\n{more}\r\n".encode())
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    return head.decode(), body


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port: int = closed.getsockname()[1]
    return port


async def test_a_shard_that_does_not_answer_is_down_and_the_others_are_there() -> None:
    async with shard("200 OK", SECOND, []) as up, of_all(closed_port(), up) as port:
        head, body = await get(port.port, "/metrics")
        assert head.startswith("HTTP/1.1 200 ")
        assert b'duolog_shard_up{shard="0"} 0\n' in body
        assert b'only_here{shard="1"} 1.0\n' in body
        assert body.endswith(b"\r\n0\r\n\r\n")
        head, body = await get(port.port, "/health")
        assert head.startswith("HTTP/1.1 503 ")
        assert body == b"shard 0 does not answer\n"


async def test_all_shards_answer_is_health() -> None:
    async with shard("200 OK", b"", []) as one, of_all(one, one) as port:
        head, body = await get(port.port, "/health")
        assert (head.split(" ")[1], body) == ("200", b"2 shards answer\n")
        assert (await get(port.port, "/other"))[0].startswith("HTTP/1.1 404 ")


@pytest.mark.parametrize("status", ["401 Unauthorized", "403 Forbidden"])
async def test_shards_ask_who_asks_and_their_refusal_is_the_answer(status: str) -> None:
    seen: list[bytes] = []
    async with shard(status, b"who?", seen) as one, of_all(one) as port:
        head, body = await get(port.port, "/metrics", "authorization: Basic eA==\r\n")
    assert head.startswith(f"HTTP/1.1 {status}\r\n")
    assert body == b"who?"
    assert ("WWW-Authenticate" in head) is status.startswith("401")
    assert header(seen[0], "Authorization") == "Basic eA=="


async def test_a_shard_that_is_silent_is_not_waited_for() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert await ask(silent.getsockname()[1], seconds=0.01) == Answer()


@pytest.mark.parametrize("length", ["", "x", str(1 << 40)])
async def test_an_answer_without_a_length_or_a_far_too_long_one_is_none(length: str) -> None:
    status = f"200 OK\r\nContent-Length: {length}"
    async with shard(status, b"a 1\n", []) as one:
        assert await ask(one) == Answer()
