"""The limits that figures are compared with: bare gRPC, measured in the same run.

As a program it is the bare server; as a module, the client that measures it.
"""

import asyncio
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
import grpc.aio

OPTIONS = (
    ("grpc.max_receive_message_length", 64 << 20),
    ("grpc.max_send_message_length", 64 << 20),
)
MIB = 1 << 20
Unary = grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]
Sink = grpc.aio.StreamUnaryMultiCallable[bytes, bytes]
Context = grpc.aio.ServicerContext[bytes, bytes]


async def _unary(request: bytes, context: Context) -> bytes:
    return request


async def _sink(requests: AsyncIterator[bytes], context: Context) -> bytes:
    total = 0
    async for request in requests:
        total += len(request)
    return str(total).encode()


async def serve(listen: str) -> None:
    server = grpc.aio.server(options=OPTIONS)
    handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
        "Unary": grpc.unary_unary_rpc_method_handler(_unary),
        "Sink": grpc.stream_unary_rpc_method_handler(_sink),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bare.Bare", handlers),))
    server.add_insecure_port(listen)
    await server.start()
    await server.wait_for_termination()


@asynccontextmanager
async def bare_channel() -> AsyncIterator[grpc.aio.Channel]:
    """A channel to a bare server in a process of its own."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        listen = f"127.0.0.1:{probe.getsockname()[1]}"
    process = subprocess.Popen([sys.executable, "-m", "bench.limits", listen])
    try:
        async with grpc.aio.insecure_channel(listen, options=OPTIONS) as channel:
            await asyncio.wait_for(channel.channel_ready(), 30)
            yield channel
    finally:
        process.terminate()
        process.wait()


async def unary_rate(channel: grpc.aio.Channel, calls: int = 6000, in_flight: int = 32) -> float:
    """Unary calls a second, so many in flight."""
    call: Unary = channel.unary_unary("/bare.Bare/Unary")

    async def run(count: int) -> None:
        for _ in range(count):
            await call(b"x" * 100)

    await run(200)
    began = time.perf_counter()
    await asyncio.gather(*(run(calls // in_flight) for _ in range(in_flight)))
    return (calls // in_flight) * in_flight / (time.perf_counter() - began)


async def unary_p50(channel: grpc.aio.Channel, calls: int = 2000) -> float:
    """Median seconds of one unary call at a time."""
    call: Unary = channel.unary_unary("/bare.Bare/Unary")
    times = []
    for _ in range(calls):
        began = time.perf_counter()
        await call(b"x" * 100)
        times.append(time.perf_counter() - began)
    return sorted(times)[calls // 2]


async def stream_rate(channel: grpc.aio.Channel, megabytes: int = 800) -> float:
    """Bytes a second of a stream of 1 MiB messages."""
    sink: Sink = channel.stream_unary("/bare.Bare/Sink")
    call = sink()
    block = b"x" * MIB
    for _ in range(8):
        await call.write(block)
    began = time.perf_counter()
    for _ in range(megabytes):
        await call.write(block)
    await call.done_writing()
    await call
    return megabytes * MIB / (time.perf_counter() - began)


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1]))
