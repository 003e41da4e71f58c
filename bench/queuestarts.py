"""Figures of starts of a node with many queues."""

import asyncio
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

from bench.harness import Figure, Node, ready
from bench.queuefiller import fill_in_child, heavy_topic
from bench.queuesends import ALONE, QUEUES_EACH, Queue, check_one_message_each, send_all


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
    seconds: dict[tuple[str, Node], list[float]] = {}
    stops = []
    for _ in range(rounds):
        for end in ("killed", "stopped"):
            for node, some in ((many, queues), (one, [(ALONE, 0)])):
                async with ready(node) as client:
                    await send_all(client, some)
            if end == "killed":
                many.kill()
                one.kill()
            else:
                stops.append(stop_cleanly(many))
                stop_cleanly(one)
            for node in (many, one):
                seconds.setdefault((end, node), []).append(await start_seconds(node))
    middle = {key: statistics.median(row) for key, row in seconds.items()}
    killed, killed_one = middle["killed", many], middle["killed", one]
    stopped, stopped_one = middle["stopped", many], middle["stopped", one]
    stop = statistics.median(stops)
    return Figure(
        f"start with {len(queues):,} queues after SIGKILL",
        "<= 3 s more than with one queue",
        f"{killed - killed_one:.2f} s more, {killed:.2f} s (after a clean stop, which took "
        f"{stop:.2f} s: {stopped - stopped_one:.2f} s more, {stopped:.2f} s)",
        f"one queue {killed_one:.2f} s",
        killed - killed_one <= 3,
        {
            "extra_s": killed - killed_one,
            "seconds": killed,
            "seconds_max": max(seconds["killed", many]),
            "one_s": killed_one,
            "stopped_extra_s": stopped - stopped_one,
            "stopped_s": stopped,
            "stop_s": stop,
        },
    )


async def starts_of_filled(root: Path, heavy: int, light: int) -> Figure:
    """A node finds very many queues at its start, which another process made and died."""
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
    return Figure(
        f"start with {heavy:,} queues and {light:,} light ones after SIGKILL",
        "<= 15 s",
        f"{first:.2f} s, killed again {again:.2f} s (after a clean stop, which took {stop:.2f} s: "
        f"{stopped:.2f} s)",
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
