"""One send at a time, over frames and over gRPC, beside a bare exchange over TCP and over gRPC.

As a program it is the bare TCP server; as a module, what measures. Client and node are two
processes; messages are acknowledged from the page cache.
"""

import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import duolog
from duolog._runtime import MACHINE

from bench import limits
from bench.harness import Figure, running
from duolog_server.demo import measure
from duolog_server.demo.measure import Load, percentile
from duolog_server.demo.ports import free_endpoint

ROUNDS = 7  # in turns: the machine is shared
SENDS = 1500
BUSY_POLL_US = 250  # the node's default
FRAME_BYTES = 200  # about what an append of 100 bytes has
CONNECT_SECONDS = 30.0
Exchange = Callable[[], Awaitable[list[float]]]  # seconds of each


class _Echo(asyncio.Protocol):
    """Sends back what comes."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._transport.write(data)


class _Asking(_Echo):
    """Sends, and waits for the echo."""

    def __init__(self) -> None:
        self._answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        if not self._answer.done():
            self._answer.set_result(None)

    async def exchange(self) -> list[float]:
        data, loop, found = bytes(FRAME_BYTES), asyncio.get_running_loop(), []
        for _ in range(SENDS):
            began = time.perf_counter()
            self._answer = loop.create_future()
            self._transport.write(data)
            await self._answer
            found.append(time.perf_counter() - began)
        return found


async def _serve(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(_Echo, "127.0.0.1", port)
    await server.serve_forever()


@asynccontextmanager
async def _bare_tcp() -> AsyncIterator[Exchange]:
    """Exchanges with a server in a process of its own, which does nothing."""
    port = free_endpoint().rpartition(":")[2]
    process = subprocess.Popen([sys.executable, "-m", "bench.oneatatime", port])
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            while True:
                try:
                    transport, asking = await loop.create_connection(
                        _Asking, "127.0.0.1", int(port)
                    )
                    break
                except OSError:
                    await asyncio.sleep(0.05)
        yield asking.exchange
        transport.close()
    finally:
        process.terminate()
        process.wait()


def _sends(client: duolog.Client) -> Exchange:
    async def exchange() -> list[float]:
        return (await measure.produce_singly(client, Load(SENDS, 100))).latencies

    return exchange


async def one_at_a_time() -> list[Figure]:
    over_grpc = replace(MACHINE, frames=False)
    async with limits.bare_channel() as channel, _bare_tcp() as tcp, running() as (node, client):

        async def unary() -> list[float]:
            return [await limits.unary_p50(channel, SENDS // 3)]

        async with (
            duolog.Client(node.endpoint, timeout=60, runtime=over_grpc) as plain,
            duolog.Client(node.endpoint, timeout=60, busy_poll_us=BUSY_POLL_US) as polling,
        ):
            ways = {
                "tcp": tcp,
                "unary": unary,
                "frames": _sends(client),
                "polling": _sends(polling),
                "grpc": _sends(plain),
            }
            p50s: dict[str, list[float]] = {name: [] for name in ways}
            p99s: dict[str, list[float]] = {name: [] for name in ways}
            for turn in range(ROUNDS + 1):
                for name, exchange in ways.items():
                    took = await exchange()
                    if turn:  # the first one warms up
                        p50s[name].append(percentile(took, 0.5))
                        p99s[name].append(percentile(took, 0.99))
            best = {name: (_median(p50s[name]), _median(p99s[name])) for name in ways}
    return _figures(best)


def _median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


def _figures(found: dict[str, tuple[float, float]]) -> list[Figure]:
    tcp, unary = found["tcp"][0], found["unary"][0]
    (p50, p99), (grpc_p50, grpc_p99) = found["frames"], found["grpc"]
    polling, polling_p99 = found["polling"]
    us = {name: f"{p50s * 1e6:.0f} / {p99s * 1e6:.0f} us" for name, (p50s, p99s) in found.items()}
    beside = f"TCP {us['tcp']}, unary {unary * 1e6:.0f} us"
    return [
        Figure(
            "one send at a time, p50",
            "<= 0.35 x a bare unary call",
            f"{p50 * 1e6:.0f} us, {p50 / unary:.2f} x unary, {p50 / tcp:.1f} x TCP",
            beside,
            p50 <= 0.35 * unary,
            {"p50_s": p50, "unary_p50_s": unary, "tcp_p50_s": tcp, "ratio": p50 / unary},
        ),
        Figure(
            "one send at a time, p99",
            "<= 3 x p50",
            f"{p99 * 1e6:.0f} us, {p99 / p50:.1f} x p50",
            beside,
            p99 <= 3 * p50,
            {"p99_s": p99, "ratio": p99 / p50, "tcp_p99_s": found["tcp"][1]},
        ),
        Figure(
            "one send at a time, a client that polls busily, p50",
            "",
            f"{us['polling']}, {polling / unary:.2f} x unary, {polling / tcp:.1f} x TCP",
            beside,
            True,
            {"p50_s": polling, "p99_s": polling_p99, "ratio": polling / unary},
        ),
        Figure(
            "one send at a time over gRPC, p50",
            "",
            f"{us['grpc']}, {grpc_p50 / unary:.2f} x unary",
            beside,
            True,
            {"p50_s": grpc_p50, "p99_s": grpc_p99, "ratio": grpc_p50 / unary},
        ),
    ]


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1])))
