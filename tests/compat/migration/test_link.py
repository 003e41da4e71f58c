"""The connection to a master's HA port."""

import asyncio
import contextlib

import pytest

from duolog_server.compat.hawire.frames import HEAD, REPORT
from duolog_server.compat.migration import link as links
from duolog_server.compat.migration.copying import OutOfOrder
from tests.until import until


async def _master(
    said: list[bytes], answer: bytes = b""
) -> tuple[asyncio.Server, str, asyncio.Event]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answer)
        with contextlib.suppress(ConnectionError):  # the other side ends it at once
            while word := await reader.read(8):
                said.append(word)
        writer.transport.abort()
        ended.set()

    ended = asyncio.Event()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    return server, f"127.0.0.1:{server.sockets[0].getsockname()[1]}", ended


async def test_reports_repeat_and_silence_ends_the_link(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "REPORT_SECONDS", 0.01)
    said: list[bytes] = []
    server, address, ended = await _master(said)
    async with server:
        link = await links.connect(address, lambda frames: 0)
        holding = asyncio.ensure_future(link.hold(lambda: 4711))
        await until(lambda: len(b"".join(said)) >= 16)
        assert b"".join(said)[:16] == 2 * REPORT.pack(4711)
        assert not holding.done()
        link._heard -= links.SILENCE_SECONDS  # as if that time had passed
        with pytest.raises(ConnectionError, match="nothing came"):
            await holding
        await ended.wait()


@pytest.mark.parametrize(
    ("answer", "why"), [(HEAD.pack(0, -1), "a frame of -1 bytes"), (HEAD.pack(3, 0), "from 3")]
)
async def test_what_cannot_be_taken_ends_the_link(answer: bytes, why: str) -> None:
    def take(frames: object) -> int:
        raise OutOfOrder("bytes from 3, expected from 1")

    server, address, ended = await _master([], answer)
    async with server:
        link = await links.connect(address, take)
        with pytest.raises(Exception, match=why):
            await link.hold(lambda: 0)
        await ended.wait()


async def test_a_master_that_closes_ends_the_link() -> None:
    server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
    async with server:
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        link = await links.connect(address, lambda frames: 0)
        with pytest.raises(ConnectionError, match=r"closed|broke"):
            await link.hold(lambda: 0)
