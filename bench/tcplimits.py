"""The limits below gRPC's: bare TCP, one message at a time over asyncio, and as many as go.

As a program it is the bare server; as a module, the client that measures it.
"""

import asyncio
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from duolog_server.demo.childprocess import ChildProcess
from duolog_server.demo.ports import free_endpoint

ROOT = Path(__file__).parent.parent
MESSAGE_BYTES = 128
BLOCK = 1 << 20
CALL_SECONDS = 30.0
ECHO, SINK = b"e", b"s"  # what a connection begins with


class _Server(asyncio.BufferedProtocol):
    """Echoes what it gets, or counts it and says so at its end."""

    def __init__(self) -> None:
        self._memory = bytearray(BLOCK)
        self._mode = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Somebody connected."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def get_buffer(self, sizehint: int) -> bytearray:
        """Where to receive."""
        return self._memory

    def buffer_updated(self, count: int) -> None:
        """So many bytes are there."""
        begin = 0
        if not self._mode:
            self._mode, begin = bytes(self._memory[:1]), 1
        if self._mode == ECHO and count > begin:
            self._transport.write(bytes(self._memory[begin:count]))

    def eof_received(self) -> bool:
        """All of it was read."""
        self._transport.write(b"k")
        return False


class _Asker(asyncio.Protocol):
    """The client of the echo: a future for each answer."""

    def __init__(self) -> None:
        self.answer: asyncio.Future[None] | None = None
        self._left = MESSAGE_BYTES

    def data_received(self, data: bytes) -> None:
        """A part of the answer."""
        self._left -= len(data)
        if self._left == 0 and self.answer is not None:
            self._left = MESSAGE_BYTES
            self.answer.set_result(None)


async def _serve(listen: str) -> None:
    host, _, port = listen.rpartition(":")
    server = await asyncio.get_running_loop().create_server(_Server, host, int(port))
    await server.serve_forever()


@contextmanager
def bare_server(directory: Path) -> Iterator[str]:
    """HOST:PORT of a bare server in a process of its own, whose log lies in the directory."""
    listen = free_endpoint()
    command = [sys.executable, str(Path(__file__)), listen]
    log = directory / "bare-tcp.log"
    process = ChildProcess("bare-tcp", command, log, environment={"PYTHONPATH": str(ROOT)})
    try:
        process.start()
        process.wait_listening(listen)
        yield listen
    finally:
        process.stop()


async def ping_pong_p50(listen: str, calls: int = 5000) -> float:
    """Median seconds of one message and its answer, one at a time."""
    host, _, port = listen.rpartition(":")
    loop = asyncio.get_running_loop()
    transport, asker = await loop.create_connection(_Asker, host, int(port))
    body, times = b"x" * MESSAGE_BYTES, []
    transport.write(ECHO)
    async with asyncio.timeout(CALL_SECONDS):
        for _ in range(calls):
            began = time.perf_counter()
            asker.answer = loop.create_future()
            transport.write(body)
            await asker.answer
            times.append(time.perf_counter() - began)
    transport.close()
    return sorted(times)[calls // 2]


def throughput(listen: str, blocks: int = 2000) -> float:
    """Bytes a second that a blocking sender gets through to an asyncio receiver."""
    host, _, port = listen.rpartition(":")
    block = b"x" * BLOCK
    with socket.create_connection((host, int(port)), CALL_SECONDS) as connection:
        began = time.perf_counter()
        connection.sendall(SINK)
        for _ in range(blocks):
            connection.sendall(block)
        connection.shutdown(socket.SHUT_WR)
        if connection.recv(1) != b"k":
            raise ConnectionError("the bare server ended early")
        return blocks * BLOCK / (time.perf_counter() - began)


if __name__ == "__main__":
    asyncio.run(_serve(sys.argv[1]))
