"""The limits that figures are compared with: bare gRPC and bare TCP, measured in the same run.

As a program it is the bare server; as a module, the client that measures it.
"""

import asyncio
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import grpc
import grpc.aio
from duolog.testing._ports import free_endpoint

OPTIONS = (
    ("grpc.max_receive_message_length", 64 << 20),
    ("grpc.max_send_message_length", 64 << 20),
)
MIB = 1 << 20
BODY = b"x" * 128
READY_SECONDS = 30.0
ECHO, SINK = b"e", b"s"  # what a TCP connection begins with
Context = grpc.aio.ServicerContext[bytes, bytes]


async def _unary(request: bytes, context: Context) -> bytes:
    return request


async def _sink(requests: AsyncIterator[bytes], context: Context) -> bytes:
    total = 0
    async for request in requests:
        total += len(request)
    return str(total).encode()


async def _echo(requests: AsyncIterator[bytes], context: Context) -> None:
    async for request in requests:
        await context.write(request)


class _TcpServer(asyncio.BufferedProtocol):
    """Echoes what it gets, or reads it and says so at its end."""

    def __init__(self) -> None:
        self._memory = bytearray(MIB)
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


class _TcpAsker(asyncio.Protocol):
    """The client of the echo: a future for each answer."""

    def __init__(self) -> None:
        self.answer: asyncio.Future[None] | None = None
        self._left = len(BODY)

    def data_received(self, data: bytes) -> None:
        """A part of the answer."""
        self._left -= len(data)
        if self._left == 0 and self.answer is not None:
            self._left = len(BODY)
            self.answer.set_result(None)


async def _serve(grpc_listen: str, tcp_listen: str) -> None:
    server = grpc.aio.server(options=OPTIONS)
    handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
        "Unary": grpc.unary_unary_rpc_method_handler(_unary),
        "Sink": grpc.stream_unary_rpc_method_handler(_sink),
        "Echo": grpc.stream_stream_rpc_method_handler(_echo),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bare.Bare", handlers),))
    host, port = _address(tcp_listen)
    await asyncio.get_running_loop().create_server(_TcpServer, host, port)
    server.add_insecure_port(grpc_listen)
    await server.start()
    await server.wait_for_termination()


def _address(endpoint: str) -> tuple[str, int]:
    host, _, port = endpoint.rpartition(":")
    return host, int(port)


async def _times(ask: Callable[[], Awaitable[object]], calls: int) -> list[float]:
    """Seconds of each."""
    found = []
    for _ in range(calls):
        began = time.perf_counter()
        await ask()
        found.append(time.perf_counter() - began)
    return found


@dataclass(frozen=True, slots=True)
class Bare:
    """A server in a process of its own, which does nothing."""

    channel: grpc.aio.Channel
    tcp: str  # HOST:PORT

    async def unary_rate(self, calls: int = 6000, in_flight: int = 32) -> float:
        """Unary calls a second, so many in flight."""
        await self.unary_times(200)
        each, began = calls // in_flight, time.perf_counter()
        await asyncio.gather(*(self.unary_times(each) for _ in range(in_flight)))
        return each * in_flight / (time.perf_counter() - began)

    async def unary_times(self, calls: int) -> list[float]:
        """Seconds of unary calls, one at a time."""
        call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]
        call = self.channel.unary_unary("/bare.Bare/Unary")
        return await _times(lambda: call(BODY), calls)

    async def stream_times(self, calls: int) -> list[float]:
        """Seconds of messages and their answers on an open stream, one at a time."""
        method: grpc.aio.StreamStreamMultiCallable[bytes, bytes]
        method = self.channel.stream_stream("/bare.Bare/Echo")
        call = method()

        async def ask() -> None:
            await call.write(BODY)
            await call.read()

        found = await _times(ask, calls)
        call.cancel()
        return found

    async def stream_rate(self, blocks: int = 800) -> float:
        """Bytes a second of a stream of 1 MiB messages."""
        method: grpc.aio.StreamUnaryMultiCallable[bytes, bytes]
        method = self.channel.stream_unary("/bare.Bare/Sink")
        call, block = method(), b"x" * MIB
        for _ in range(8):
            await call.write(block)
        began = time.perf_counter()
        for _ in range(blocks):
            await call.write(block)
        await call.done_writing()
        await call
        return blocks * MIB / (time.perf_counter() - began)

    async def tcp_times(self, calls: int) -> list[float]:
        """Seconds of messages and their answers over TCP, one at a time."""
        loop = asyncio.get_running_loop()
        transport, asker = await loop.create_connection(_TcpAsker, *_address(self.tcp))
        transport.write(ECHO)

        async def ask() -> None:
            asker.answer = loop.create_future()
            transport.write(BODY)
            await asker.answer

        try:
            async with asyncio.timeout(READY_SECONDS):
                return await _times(ask, calls)
        finally:
            transport.close()

    def tcp_rate(self, blocks: int = 2000) -> float:
        """Bytes a second that a blocking sender gets through to an asyncio receiver."""
        block = b"x" * MIB
        with socket.create_connection(_address(self.tcp), READY_SECONDS) as connection:
            began = time.perf_counter()
            connection.sendall(SINK)
            for _ in range(blocks):
                connection.sendall(block)
            connection.shutdown(socket.SHUT_WR)
            if connection.recv(1) != b"k":
                raise ConnectionError("the bare server ended early")
            return blocks * MIB / (time.perf_counter() - began)


@asynccontextmanager
async def bare() -> AsyncIterator[Bare]:
    """A bare server that answers."""
    listen, tcp = free_endpoint(), free_endpoint()
    process = subprocess.Popen([sys.executable, "-m", "bench.limits", listen, tcp])
    try:
        async with grpc.aio.insecure_channel(listen, options=OPTIONS) as channel:
            await asyncio.wait_for(channel.channel_ready(), READY_SECONDS)
            yield Bare(channel, tcp)
    finally:
        process.terminate()
        process.wait()


if __name__ == "__main__":
    asyncio.run(_serve(*sys.argv[1:3]))
