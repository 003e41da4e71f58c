"""The bare limits of a round: what gRPC and TCP take that carry nothing."""

import asyncio
from statistics import median

from bench.limits import bare
from bench.peers.rows import Scale

UNARY_CALLS = 1000
PING_PONGS = 4000
BLOCKS = 2000  # of 1 MiB
NEW_PAGES = "new_pages"
TITLES = {
    "grpc_unary_p50": ("gRPC unary call, asyncio, p50", "µs"),
    "tcp_ping_pong_p50": ("TCP ping-pong, asyncio, 128 B, p50", "µs"),
    "tcp_throughput": ("TCP, one connection into an asyncio receiver", "MB/s"),
    NEW_PAGES: ("a file's pages that the machine gets from its host", "MB/s"),
}


def limits_of_round(scale: Scale) -> dict[str, float]:
    """By name, in the units of TITLES."""
    return asyncio.run(_limits(scale))


async def _limits(scale: Scale) -> dict[str, float]:
    share = min(1.0, scale.seconds)
    async with bare() as server:
        unary = median(await server.unary_times(int(UNARY_CALLS * share)))
        ping_pong = median(await server.tcp_times(int(PING_PONGS * share)))
        rate = await asyncio.to_thread(server.tcp_rate, int(BLOCKS * share))
    return {
        "grpc_unary_p50": unary * 1e6,
        "tcp_ping_pong_p50": ping_pong * 1e6,
        "tcp_throughput": rate / 1e6,
    }
