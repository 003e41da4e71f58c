"""Shards beside a single node: what a message costs, in processor time of the nodes.

python -m bench.shards --rounds 9 --batches 1000

A node and the two shards of one `--shards 2`, on the same machine and registry. In each round a
producer sends to the node, to one shard after the other, which is what shards cost, and to both at
the same time, which also is what nodes cost each other. Only ratios count: how fast shards are on
cores of their own, a machine of two cores cannot show, as the producers need some as well. Prints a
table; exit 1 where a target is missed.
"""

import argparse
import asyncio
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median, quantiles

import duolog
from duolog.testing._cluster import Registry
from duolog.testing._node import SMALL_FILES, ChildNode, settings_flags
from duolog.testing._ports import free_endpoint

from bench.harness import Figure, fresh_directory, print_table, take_pages
from duolog_server.node.runtime.shardsettings import PORT_STEP

CPUCLOCK_SCHED = 2  # as clock_getcpuclockid makes the number of a process's clock
SHARDS = 2
TOPIC = "bench"
BODY = bytes(100)
BATCH = 1000
STORED_BYTES = 400  # of a message, with its entries in a queue and the index, at most
IN_FLIGHT = 2  # batches of a producer
READY_SECONDS = 120.0
RATIO_MAX = 1.05


def children(pid: int) -> list[int]:
    """The processes that a process started."""
    return [
        int(word)
        for file in Path(f"/proc/{pid}/task").glob("*/children")
        for word in file.read_text().split()
    ]


def cpu_seconds(pids: Iterable[int]) -> float:
    """Processor time that processes have had, with their threads that ended."""
    return sum(time.clock_gettime(~pid << 3 | CPUCLOCK_SCHED) for pid in pids)


@contextmanager
def machine(root: Path) -> Iterator[tuple[ChildNode, ChildNode]]:
    """A node of its own and the supervisor of the shards, which are the groups `s-0` and `s-1`."""
    registry = Registry()
    registry.place(root)
    settings = {
        "registry.lease_seconds": 5,
        "ha.in_sync_replicas": 1,
        "ha.min_in_sync_replicas": 1,
        "node.log_level": "warning",
        "store.mapped_file_size_commit_log": 256 << 20,
    }
    nodes = []
    for group, more in (("one", ()), ("s", ("--shards", str(SHARDS)))):
        flags = (*SMALL_FILES, *settings_flags({**settings, "node.group": group}), *more)
        elects = ("--role", "AUTO", "--registry", registry.endpoint, "--ha-listen", free_endpoint())
        nodes.append(ChildNode(root / group, *elects, *flags))
    registry.start()
    for node in nodes:
        node.start()
    try:
        yield nodes[0], nodes[1]
    finally:
        for node in nodes:
            node.stop()
        registry.end()


async def led(client: duolog.Client, groups: set[str]) -> None:
    """Wait until all groups have a master. Raises TimeoutError."""
    async with asyncio.timeout(READY_SECONDS):
        while True:
            try:
                route = await client.admin.route()
            except duolog.Retryable:
                route = None
            if route and {one.group for one in route.groups if one.master} == groups:
                return
            await asyncio.sleep(0.05)


async def send(producer: duolog.Producer, group: str, batches: int) -> None:
    """Send so many batches to a group."""
    left = iter(range(batches))

    async def some() -> None:
        for number in left:
            await producer.send_batch(TOPIC, [BODY] * BATCH, queue_id=number % 4, group=group)

    await asyncio.gather(*(some() for _ in range(IN_FLIGHT)))


async def measured(rounds: int, batches: int) -> list[Figure]:
    """The figures."""
    costs: list[list[float]] = []
    with fresh_directory() as root, machine(root) as (node, supervisor):
        node.wait_port()
        host, _, port = supervisor.endpoint.rpartition(":")
        supervisor.wait_port()
        supervisor.wait_listening(f"{host}:{int(port) + PORT_STEP}")
        both = {f"s-{number}": pid for number, pid in enumerate(children(supervisor.pid))}
        ways = ([{"one": node.pid}], [{group: pid} for group, pid in both.items()], [both])
        async with duolog.Client(node.endpoint, timeout=60) as client:
            await led(client, {"one", *both})
            await client.admin.create_topic(TOPIC, 4)
            async with client.producer(timeout=60) as producer:
                for turn in range(rounds + 1):
                    cost = [0.0] * len(ways)
                    for way in range(len(ways))[:: 1 if turn % 2 else -1]:
                        cost[way] = await cost_of(producer, ways[way], batches)
                    costs += [cost] if turn else []  # the first one warms up
    return [figure_of(costs, 1, "one after the other"), figure_of(costs, 2, "at the same time")]


async def cost_of(
    producer: duolog.Producer, steps: Sequence[Mapping[str, int]], batches: int
) -> float:
    """Processor time of a message, in seconds. steps: the groups that are sent to at a time, and
    the processes of their masters.
    """
    seconds = 0.0
    for groups in steps:
        take_pages(len(groups) * batches * BATCH * STORED_BYTES)
        began = cpu_seconds(groups.values())
        await asyncio.gather(*(send(producer, group, batches) for group in groups))
        seconds += cpu_seconds(groups.values()) - began
    return seconds / (batches * BATCH * sum(map(len, steps)))


def figure_of(costs: Sequence[Sequence[float]], way: int, how: str) -> Figure:
    """The figure of a way of sending to the shards, beside that of the node."""
    ratios = [cost[way] / cost[0] for cost in costs]
    ratio, low, *_, high = median(ratios), *quantiles(ratios, n=4)
    one, shards = (1e6 * median(cost[k] for cost in costs) for k in (0, way))
    return Figure(
        f"processor time of a message, {SHARDS} shards {how}",
        f"at most {RATIO_MAX:.0%} of a node's",
        f"{ratio:.1%} (quartiles {low:.0%} to {high:.0%}, {len(costs)} rounds)",
        f"{one:.2f} us, shards {shards:.2f} us",
        ratio <= RATIO_MAX,
        {"ratio": ratio, "one_us": one, "shards_us": shards},
    )


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--batches", type=int, default=1000, help="of each producer in a round")
    words = parser.parse_args()
    figures = asyncio.run(measured(words.rounds, words.batches))
    print_table(figures)
    sys.exit(not all(figure.reached for figure in figures))


if __name__ == "__main__":
    main()
