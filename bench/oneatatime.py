"""One send at a time, over frames and over gRPC, beside a bare exchange over TCP and over gRPC.

Client and node are two processes; messages are acknowledged from the page cache.
"""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from statistics import median

import duolog
from duolog._runtime import MACHINE

from bench import limits
from bench.harness import Figure, running
from duolog_server.demo import measure
from duolog_server.demo.measure import Load, percentile

ROUNDS = 7  # in turns: the machine is shared
SENDS = 1500
BUSY_POLL_US = 250  # the node's default
Exchange = Callable[[], Awaitable[list[float]]]  # seconds of each


def _sends(client: duolog.Client) -> Exchange:
    async def exchange() -> list[float]:
        return (await measure.produce_singly(client, Load(SENDS, 100))).latencies

    return exchange


async def one_at_a_time() -> list[Figure]:
    """Sends by three clients, beside what a bare server takes."""
    over_grpc = replace(MACHINE, frames=False)
    async with (
        limits.bare() as bare,
        running() as (node, client),
        duolog.Client(node.endpoint, timeout=60, runtime=over_grpc) as plain,
        duolog.Client(node.endpoint, timeout=60, busy_poll_us=BUSY_POLL_US) as polling,
    ):
        ways: dict[str, Exchange] = {
            "tcp": lambda: bare.tcp_times(SENDS),
            "unary": lambda: bare.unary_times(SENDS // 3),
            "frames": _sends(client),
            "polling": _sends(polling),
            "grpc": _sends(plain),
        }
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
        for turn in range(ROUNDS + 1):
            for name, exchange in ways.items():
                took = await exchange()
                if turn:  # the first one warms up
                    found[name].append((percentile(took, 0.5), percentile(took, 0.99)))
    middles = {
        name: (median(p50 for p50, _ in rows), median(p99 for _, p99 in rows))
        for name, rows in found.items()
    }
    return _figures(middles)


def _figures(found: dict[str, tuple[float, float]]) -> list[Figure]:
    tcp, unary = found["tcp"][0], found["unary"][0]
    us = {name: f"{p50 * 1e6:.0f} / {p99 * 1e6:.0f} us" for name, (p50, p99) in found.items()}
    beside = f"TCP {us['tcp']}, unary {unary * 1e6:.0f} us"
    rows = (
        ("frames", "one send at a time, p50 and p99", "<= 0.35 x a bare unary call, <= 3 x p50"),
        ("polling", "one send at a time, a client that polls busily", ""),
        ("grpc", "one send at a time over gRPC", ""),
    )
    figures = []
    for name, title, asked in rows:
        p50, p99 = found[name]
        figures.append(
            Figure(
                title,
                asked,
                f"{us[name]}, {p50 / unary:.2f} x unary, {p50 / tcp:.1f} x TCP",
                beside,
                not asked or (p50 <= 0.35 * unary and p99 <= 3 * p50),
                {
                    "p50_s": p50,
                    "p99_s": p99,
                    "unary_p50_s": unary,
                    "tcp_p50_s": tcp,
                    "ratio": p50 / unary,
                },
            )
        )
    return figures
