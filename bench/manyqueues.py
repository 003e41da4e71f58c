"""Figures of a node with many queues: their disk, and starts with them.

python -m bench.manyqueues [--scale 0.02]    1, as in `make bench`, is 16,000 and 200,000 queues
"""

import argparse
import asyncio
import contextlib
import os
import statistics
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import duolog

from bench.harness import Figure, Node, fresh_directory, print_table, ready
from bench.queuefiller import BODY, QUEUES_EACH, check_room, fill_in_child, heavy_topic
from duolog_server.store.osdisk import OsDisk

Queue = tuple[str, int]

ALONE = "alone"  # a topic of one queue
AT_ONCE = 64
CAUGHT_UP_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class Size:
    """How much is made and measured."""

    topics: int  # of QUEUES_EACH queues
    starts: int
    heavy: int  # queues of topics, to start with
    light: int  # light queues, to start with

    @staticmethod
    def scaled(scale: float) -> "Size":
        """A share of the full size."""
        return Size(
            topics=max(QUEUES_EACH, round(4000 * scale)),
            starts=1 if scale < 0.1 else 3,
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
        f"before {sum(before.values()) / 1e6:,.0f} MB",
        total <= 200e6,
        {"bytes": total, "queue_bytes": more["consumequeue"], "rss_mib": rss_mib},
    )


async def send_all(client: duolog.Client, queues: Sequence[Queue]) -> None:
    """One send to each queue, many at a time, until all are in their queues."""
    async with client.producer(timeout=120) as producer:
        for at in range(0, len(queues), AT_ONCE):
            some = queues[at : at + AT_ONCE]
            await asyncio.gather(*(producer.send(t, BODY, queue_id=q) for t, q in some))
    async with asyncio.timeout(CAUGHT_UP_SECONDS):
        while (await client.admin.node_status()).dispatch_behind_bytes:
            await asyncio.sleep(0.001)


async def check_one_message_each(client: duolog.Client, queues: Sequence[Queue]) -> None:
    """Raise ValueError unless each queue has one message: else something else was measured."""
    found = {
        (topic.topic, row.queue_id): row.max_offset - row.min_offset
        for topic in await client.admin.topics()
        for row in topic.stats
    }
    wrong = {queue: found.get(queue) for queue in queues if found.get(queue) != 1}
    if wrong:
        raise ValueError(f"{len(wrong)} of {len(queues)} queues lack their message: {wrong}"[:500])


async def many_queues(size: Size = FULL) -> list[Figure]:
    """16,000 queues of a node, beside a node with one."""
    flags = ("--set", f"limits.topics_max={size.topics + 100}")
    with fresh_directory() as root:
        many, one = Node(root / "many", *flags), Node(root / "one", *flags)
        try:
            many.start()
            one.start()
            async with ready(many) as client, ready(one) as other:
                for each in (client, other):
                    await each.admin.create_topic(ALONE, 1)
                    await send_all(each, [(ALONE, 0)])
                check_room(OsDisk(many.data, read_only=True))
                before = disk_used(many.data)
                names = [f"many-{number:05d}" for number in range(size.topics)]
                for at in range(0, size.topics, AT_ONCE):
                    some = names[at : at + AT_ONCE]
                    made = (client.admin.create_topic(name, QUEUES_EACH) for name in some)
                    await asyncio.gather(*made)
                queues = [(name, number) for name in names for number in range(QUEUES_EACH)]
                await send_all(client, queues)
                await check_one_message_each(client, queues)
                used = disk_used(many.data)
                figures = [disk_figure(before, used, len(queues), many.rss_mib())]
            figures.append(await starts(many, one, queues, size.starts))
        finally:
            many.stop()
            one.stop()
    return figures


async def start_seconds(node: Node) -> float:
    """Start a node; seconds until it answers."""
    began = time.perf_counter()
    node.start()
    async with ready(node):
        return time.perf_counter() - began


def stop_cleanly(node: Node) -> float:
    """Stop a node; seconds it took. Raises ValueError where it was no clean stop."""
    began = time.perf_counter()
    status = node.stop()
    if status:
        raise ValueError(f"node {node.name} ended with status {status}, see {node.log}")
    return time.perf_counter() - began


async def starts(many: Node, one: Node, queues: Sequence[Queue], rounds: int) -> Figure:
    """Starts of a node with many queues and of one with one, in turns; both run before."""
    found: dict[str, list[float]] = {name: [] for name in ("many", "one", "stop", "stopped")}
    for _ in range(rounds):
        for node, some in ((many, queues), (one, [(ALONE, 0)])):
            async with ready(node) as client:
                await send_all(client, some)
        many.kill()
        one.kill()
        found["many"].append(await start_seconds(many))
        found["one"].append(await start_seconds(one))
        found["stop"].append(stop_cleanly(many))
        found["stopped"].append(await start_seconds(many))
    middle = {name: statistics.median(seconds) for name, seconds in found.items()}
    extra = middle["many"] - middle["one"]
    return Figure(
        f"start with {len(queues):,} queues after SIGKILL",
        "<= 3 s more than with one queue",
        f"{extra:.2f} s more, {middle['many']:.2f} s (after a clean stop, which took "
        f"{middle['stop']:.2f} s: {middle['stopped']:.2f} s)",
        f"one queue {middle['one']:.2f} s",
        extra <= 3,
        {f"{name}_s": seconds for name, seconds in middle.items()} | {"extra_s": extra},
    )


async def very_many_queues(size: Size = FULL) -> list[Figure]:
    """200,000 queues, light ones most of them, that another process made and died."""
    heavy, light = size.heavy, size.light
    with fresh_directory() as root:
        node = Node(root / "filled", "--set", f"store.max_lmq_consume_queue_num={light}")
        await asyncio.to_thread(fill_in_child, node.data, heavy, light)
        try:
            first = await start_seconds(node)
            async with ready(node) as client:
                last = heavy_topic((heavy - 1) // QUEUES_EACH)
                await check_one_message_each(client, [(heavy_topic(0), 0), (last, 0)])
            memory = node.rss_mib()
            node.kill()
            again = await start_seconds(node)
            stop = stop_cleanly(node)
            stopped = await start_seconds(node)
        finally:
            node.stop()
    return [
        Figure(
            f"start with {heavy:,} queues and {light:,} light ones after SIGKILL",
            "<= 15 s",
            f"{first:.2f} s, killed again {again:.2f} s (after a clean stop, which took "
            f"{stop:.2f} s: {stopped:.2f} s)",
            "",
            max(first, again) <= 15,
            {
                "seconds": first,
                "again_s": again,
                "stopped_s": stopped,
                "stop_s": stop,
                "rss_mib": memory,
            },
        )
    ]


def main() -> None:
    """Measure at a scale."""
    parser = argparse.ArgumentParser(prog="python -m bench.manyqueues")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the full size")
    size = Size.scaled(parser.parse_args().scale)
    print_table(asyncio.run(many_queues(size)) + asyncio.run(very_many_queues(size)))


if __name__ == "__main__":
    main()
