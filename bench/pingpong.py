"""Bare ping-pongs, one message at a time: over a gRPC stream, over a TCP connection, over both.

As a program it answers, or passes on what comes over TCP to a stream and back, as a master does for
its slave; as a module, it asks and measures. The limits of a send that waits for an answer, and
what each side of them costs in CPU.
"""

import asyncio
import contextlib
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import grpc
import grpc.aio

from bench.usage import CpuOf
from duolog_server.demo.measure import percentile
from duolog_server.node.net.grpc.polling import poll_channels_in_one_thread
from duolog_server.node.replication.outgoing import Outgoing

METHOD = "/bare.Bare/Echo"
BODY = b"x" * 100
READY_SECONDS = 30.0
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


class _Relay(_EchoTcp):
    """Passes on what comes over TCP to a stream; whoever reads the stream passes it back."""

    def __init__(self, write: Callable[[bytes], Coroutine[Any, Any, None]]) -> None:
        self._unsent: deque[bytes] = deque()
        self._outgoing = Outgoing(write, self._next, _raise)

    def _next(self) -> bytes | None:
        return self._unsent.popleft() if self._unsent else None

    def data_received(self, data: bytes) -> None:
        self._unsent.append(data)
        self._outgoing.wake()

    def answer(self, data: bytes) -> None:
        self._transport.write(data)


def _raise(error: Exception) -> None:
    raise error


async def _pass_on(tcp_listen: str, grpc_address: str) -> None:
    """Between one TCP connection and one stream."""
    host, _, port = tcp_listen.rpartition(":")
    async with grpc.aio.insecure_channel(grpc_address) as channel:
        await asyncio.wait_for(channel.channel_ready(), READY_SECONDS)
        stream: grpc.aio.StreamStreamMultiCallable[bytes, bytes]
        stream = channel.stream_stream(METHOD)
        call = stream()
        relay = _Relay(call.write)
        await asyncio.get_running_loop().create_server(lambda: relay, host, int(port))
        while isinstance(data := await call.read(), bytes):
            relay.answer(data)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class PingPong:
    """Connections to one process that answers, and to one that passes on to it."""

    def __init__(self, grpc_listen: str, tcp_listen: str, relay_listen: str) -> None:
        self._process = _start("answer", grpc_listen, tcp_listen)
        self._relay = _start("relay", relay_listen, grpc_listen)
        self._grpc_listen = grpc_listen
        self._tcp_listen = tcp_listen
        self._relay_listen = relay_listen

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
        return await self._over_tcp(self._tcp_listen, calls)

    async def relayed(self, calls: int) -> Trip:
        """Over TCP to a process that asks another one over a stream.

        The CPU of the answerer's side is that of both.
        """
        relay = CpuOf(self._relay.pid)
        found = await self._over_tcp(self._relay_listen, calls)
        return replace(found, answerer_cpu=found.answerer_cpu + relay.seconds() / calls)

    async def _over_tcp(self, listen: str, calls: int) -> Trip:
        host, _, port = listen.rpartition(":")
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
        """Wait until both answer."""
        async with asyncio.timeout(READY_SECONDS):
            async with grpc.aio.insecure_channel(self._grpc_listen) as channel:
                await channel.channel_ready()
            while True:
                with contextlib.suppress(OSError):
                    await self.relayed(1)
                    return
                await asyncio.sleep(0.05)

    def stop(self) -> None:
        """End the processes."""
        for process in (self._relay, self._process):
            process.terminate()
            process.wait()


def _start(*arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "bench.pingpong", *arguments])


@asynccontextmanager
async def ping_pong() -> AsyncIterator[PingPong]:
    """Processes that answer on all of them."""
    found = PingPong(*(f"127.0.0.1:{_free_port()}" for _ in range(3)))
    try:
        await found.ready()
        yield found
    finally:
        found.stop()


if __name__ == "__main__":
    poll_channels_in_one_thread()  # as nodes do
    asyncio.run((_pass_on if sys.argv[1] == "relay" else _serve)(*sys.argv[2:4]))
