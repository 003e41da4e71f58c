"""Bare ping-pongs, one message at a time: over an open gRPC stream, and over a TCP connection.

As a program it answers; as a module, it asks and measures. The limits of a send that waits for an
answer, and what each side of them costs in CPU.
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

from bench.usage import CpuOf
from demo.measure import percentile

METHOD = "/bare.Bare/Echo"
BODY = b"x" * 100
Context = grpc.aio.ServicerContext[bytes, bytes]


@dataclass(frozen=True, slots=True)
class Trip:
    """A round trip: seconds at two percentiles, and CPU seconds of each side."""

    p50: float
    p99: float
    asker_cpu: float
    answerer_cpu: float

    @property
    def cpu(self) -> float:
        """CPU seconds of both sides."""
        return self.asker_cpu + self.answerer_cpu


async def _echo(requests: AsyncIterator[bytes], context: Context) -> None:
    async for request in requests:
        await context.write(request)


class _EchoTcp(asyncio.Protocol):
    """Sends back what comes."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport), "a TCP connection"
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._transport.write(data)


class _AskTcp(asyncio.Protocol):
    """Sends, and wakes whoever waits for all of it to come back."""

    def __init__(self) -> None:
        self._missing = 0
        self._waiter: asyncio.Future[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport), "a TCP connection"
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self._missing -= len(data)
        if self._missing <= 0 and self._waiter is not None:
            self._waiter.set_result(None)

    async def ask(self, data: bytes) -> None:
        """One round trip."""
        self._waiter = asyncio.get_running_loop().create_future()
        self._missing = len(data)
        self.transport.write(data)
        await self._waiter


async def _serve(grpc_listen: str, tcp_listen: str) -> None:
    server = grpc.aio.server()
    handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
        "Echo": grpc.stream_stream_rpc_method_handler(_echo)
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bare.Bare", handlers),))
    server.add_insecure_port(grpc_listen)
    host, _, port = tcp_listen.rpartition(":")
    await asyncio.get_running_loop().create_server(_EchoTcp, host, int(port))
    await server.start()
    await server.wait_for_termination()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class PingPong:
    """Both connections to one process that answers."""

    def __init__(self, grpc_listen: str, tcp_listen: str) -> None:
        command = [sys.executable, "-m", "bench.pingpong", grpc_listen, tcp_listen]
        self._process = subprocess.Popen(command)
        self._grpc_listen = grpc_listen
        self._tcp_listen = tcp_listen

    async def stream(self, calls: int) -> Trip:
        """An open gRPC stream between two processes."""
        async with grpc.aio.insecure_channel(self._grpc_listen) as channel:
            await asyncio.wait_for(channel.channel_ready(), 30)
            stream: grpc.aio.StreamStreamMultiCallable[bytes, bytes]
            stream = channel.stream_stream(METHOD)
            call = stream()

            async def ask() -> None:
                await call.write(BODY)
                await call.read()

            found = await self._measured(ask, calls)
            call.cancel()
            return found

    async def tcp(self, calls: int) -> Trip:
        """A TCP connection between two asyncio loops."""
        host, _, port = self._tcp_listen.rpartition(":")
        loop = asyncio.get_running_loop()
        transport, protocol = await loop.create_connection(_AskTcp, host, int(port))
        try:
            return await self._measured(lambda: protocol.ask(BODY), calls)
        finally:
            transport.close()

    async def _measured(self, ask: Callable[[], Awaitable[None]], calls: int) -> Trip:
        for _ in range(calls // 10):
            await ask()
        asker, answerer = CpuOf(None), CpuOf(self._process.pid)
        times = []
        for _ in range(calls):
            began = time.perf_counter()
            await ask()
            times.append(time.perf_counter() - began)
        return Trip(
            percentile(times, 0.5),
            percentile(times, 0.99),
            asker.seconds() / calls,
            answerer.seconds() / calls,
        )

    async def ready(self) -> None:
        """Wait until it answers."""
        async with grpc.aio.insecure_channel(self._grpc_listen) as channel:
            await asyncio.wait_for(channel.channel_ready(), 30)

    def stop(self) -> None:
        """End the process."""
        self._process.terminate()
        self._process.wait()


@asynccontextmanager
async def ping_pong() -> AsyncIterator[PingPong]:
    """A process that answers on both."""
    found = PingPong(f"127.0.0.1:{_free_port()}", f"127.0.0.1:{_free_port()}")
    try:
        await found.ready()
        yield found
    finally:
        found.stop()


if __name__ == "__main__":
    asyncio.run(_serve(*sys.argv[1:3]))
