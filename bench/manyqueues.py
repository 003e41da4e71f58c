"""Figures of a node with many queues: their disk, making them, sends to them, starts with them.

python -m bench.manyqueues [--scale 0.02]    1, as in `make bench`, is 16,000 and 200,000 queues
"""

import argparse
import asyncio
import contextlib
import itertools
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import duolog

from bench.harness import Figure, Node, fresh_directory, print_table, ready
from bench.queuefiller import check_room
from bench.queuesends import (
    ALONE,
    QUEUES_EACH,
    Queue,
    Turns,
    check_one_message_each,
    create_topics,
    neighbour_latency,
    new_queue_cost,
    one_at_a_time,
    send_all,
)
from bench.queuestarts import starts, starts_of_filled, stop_cleanly
from duolog_server.store.osdisk import OsDisk


@dataclass(frozen=True, slots=True)
class Size:
    """How much is made and measured."""

    topics: int  # of QUEUES_EACH queues; a tenth as many are known before and take turns with them
    rounds: int  # of sends, and of those one at a time
    rate: float  # queues a second, of the client that meets new ones beside another client
    flush_ms: int  # between thorough flushes: so short that each stretch of sends meets its own
    sends: int  # of a round, one at a time
    starts: int
    heavy: int  # queues of topics, to start with
    light: int  # light queues, to start with

    @staticmethod
    def scaled(scale: float) -> "Size":
        """A share of the full size."""
        small = scale < 0.1
        return Size(
            topics=max(QUEUES_EACH, round(4000 * scale)),
            rounds=2 if small else 5,
            rate=40 if small else 400,
            flush_ms=200 if small else 2000,
            sends=200 if small else 2000,
            starts=1 if small else 3,
            heavy=max(QUEUES_EACH, round(40_000 * scale)),
            light=max(QUEUES_EACH, round(160_000 * scale)),
        )


FULL = Size.scaled(1.0)


def disk_used(data: Path) -> Counter[str]:
    """Bytes of the blocks of all files and directories, by the first part of their paths.

    The commit log's directory is left out: its segments are allocated whole, whatever is in them.
    """
    found: Counter[str] = Counter()
    for directory, below, files in os.walk(data):
        part = Path(directory).relative_to(data).parts[:1]
        if not part and "commitlog" in below:
            below.remove("commitlog")
        for name in (".", *files):
            with contextlib.suppress(FileNotFoundError):  # a name that a writer has used and left
                entry = os.lstat(os.path.join(directory, name))
                found[part[0] if part else name] += entry.st_blocks * 512
    return found


def disk_figure(before: Counter[str], after: Counter[str], queues: int, rss_mib: float) -> Figure:
    """What the queues take on the disk."""
    more = Counter({part: after[part] - before[part] for part in after | before})
    total = sum(more.values())
    return Figure(
        f"{queues:,} queues with a message each, disk",
        "<= 200 MB more",
        f"{total / 1e6:,.1f} MB more, {more['consumequeue'] / 1e6:,.1f} MB of it in consumequeue/",
        f"before {sum(before.values()) / 1e6:,.0f} MB, {before['index'] / 1e6:,.0f} MB of it index",
        total <= 200e6,
        {
            "bytes": total,
            "queue_bytes": more["consumequeue"],
            "index_bytes": more["index"],
            "before_bytes": sum(before.values()),
            "rss_mib": rss_mib,
        },
    )


def portions(queues: Sequence[Queue], count: int) -> list[Sequence[Queue]]:
    """So many stretches, as equal as they can be."""
    ends = [len(queues) * k // count for k in range(count + 1)]
    return [queues[low:high] for low, high in itertools.pairwise(ends)]


async def many_queues(size: Size = FULL) -> list[Figure]:
    """16,000 queues that come into being under a node that runs."""
    with fresh_directory() as root:
        flags = ("--set", f"limits.topics_max={2 * size.topics + 100}")
        flush = ("--set", f"store.flush_consume_queue_thorough_interval={size.flush_ms}")
        many, one = Node(root / "many", *flags, *flush), Node(root / "one", *flags, *flush)
        try:
            many.start()
            one.start()
            async with ready(many) as client, ready(one) as other:
                known = await _known_queues(client, other, size)
                queues = await create_topics(client, "many", size.topics)
                figures = await _made_under(many, client, known, queues, size)
            for node in (many, one):
                stop_cleanly(node)
                node.flags = flags  # what follows meets the usual flushes
                node.start()
            async with ready(many) as client, ready(one) as other:
                turns = size.rounds, size.sends
                figures.append(await one_at_a_time(client, other, queues, *turns))
            figures.append(await starts(many, one, [*known, *queues], size.starts))
        finally:
            many.stop()
            one.stop()
    return figures


async def _known_queues(client: duolog.Client, other: duolog.Client, size: Size) -> list[Queue]:
    """Queues that have files, on the node of many queues; the one queue on both nodes."""
    for each in (client, other):
        await each.admin.create_topic(ALONE, 1)
        await send_all(each, [(ALONE, 0)])
    known = await create_topics(client, "known", max(1, size.topics // 10))
    await send_all(client, known)
    return known


async def _made_under(
    node: Node, client: duolog.Client, known: list[Queue], queues: list[Queue], size: Size
) -> list[Figure]:
    """Make the queues: half of them as fast as it goes, half beside another client."""
    disk, half = OsDisk(node.data, read_only=True), len(queues) // 2
    turns = Turns(client, known, 1.25 * size.flush_ms / 1000)
    await asyncio.sleep(turns.settle_seconds)
    check_room(disk)
    before = disk_used(node.data)
    cost = await new_queue_cost(turns, portions(queues[:half], size.rounds))
    check_room(disk)
    rounds = portions(queues[half:], size.rounds)
    latency = await neighbour_latency(turns, node.endpoint, rounds, size.rate)
    await check_one_message_each(client, queues)
    space = disk_figure(before, disk_used(node.data), len(queues), node.rss_mib())
    return [space, cost, latency]


async def very_many_queues(size: Size = FULL) -> list[Figure]:
    """200,000 queues, light ones most of them, that a node finds at its start."""
    with fresh_directory() as root:
        return [await starts_of_filled(root, size.heavy, size.light)]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.manyqueues")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the full size")
    size = Size.scaled(parser.parse_args().scale)
    figures = asyncio.run(many_queues(size)) + asyncio.run(very_many_queues(size))
    print_table(figures)


if __name__ == "__main__":
    main()
