"""How long the console's pages take at a cluster of many topics and groups, and what they cost it.

A page's time is that of the whole HTTP answer, one request after the other. Beside it stands the
time of a bare call of the node, which is the least that a page can take.
"""

import asyncio
import time
import urllib.request
from statistics import median

import duolog
from duolog._background import all_of

from bench.harness import Figure, running
from duolog_server.demo.ports import free_endpoint

TOPICS, GROUPS, QUEUES = 20_000, 10_000, 4
AT_ONCE = 64  # topics or groups that are made
TIMES = 15
READY_SECONDS = 30.0
FIRST_MS, LIST_MS = 300.0, 500.0
PAGES = (
    ("first page", "/", FIRST_MS),
    ("topics", "/topics", LIST_MS),
    ("topics, searched", "/topics?q=77", LIST_MS),
    ("groups", "/groups", LIST_MS),
    ("groups, searched", "/groups?q=77", LIST_MS),
    ("a topic", "/topics/t00077", LIST_MS),
    ("a group", "/groups/g00077", LIST_MS),
)


async def console() -> list[Figure]:
    """The pages at a node with 20,000 topics and 10,000 groups."""
    address = free_endpoint()
    async with running("--console", address, "--set", f"limits.topics_max={TOPICS * 2}") as (
        _,
        client,
    ):
        await _fill(client)
        await asyncio.to_thread(_await_ready, address)
        call = median([await _seconds_of_call(client) for _ in range(TIMES)]) * 1000
        found = []
        for words, path, most in PAGES:
            times = [
                await asyncio.to_thread(_fetch, f"http://{address}{path}") for _ in range(TIMES)
            ]
            ms = sorted(seconds * 1000 for seconds in times)
            found.append(
                Figure(
                    f"console: {words}, at {TOPICS:,} topics and {GROUPS:,} groups",
                    f"<= {most:.0f} ms",
                    f"{median(ms):.0f} ms (most {ms[-1]:.0f} ms)",
                    f"a bare call {call:.1f} ms",
                    median(ms) <= most,
                    {"ms": median(ms), "ms_max": ms[-1], "call_ms": call},
                )
            )
        return found


async def _fill(client: duolog.Client) -> None:
    """Make the topics, and the groups, each of which has read one of them."""
    for first in range(0, TOPICS, AT_ONCE):
        await all_of(
            *(client.admin.create_topic(f"t{k:05}", QUEUES) for k in range(first, first + AT_ONCE))
        )
    (group,) = [one.group for one in (await client.admin.route()).groups]
    for first in range(0, GROUPS, AT_ONCE):
        await all_of(
            *(
                client.admin.commit(
                    f"g{k:05}", {(f"t{k:05}", group, queue): 0 for queue in range(QUEUES)}
                )
                for k in range(first, min(GROUPS, first + AT_ONCE))
            )
        )


def _await_ready(address: str) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while True:
        try:
            _fetch(f"http://{address}/")
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


async def _seconds_of_call(client: duolog.Client) -> float:
    began = time.perf_counter()
    await client.admin.node_status()
    return time.perf_counter() - began


def _fetch(url: str) -> float:
    """Seconds of a request and its whole answer."""
    began = time.perf_counter()
    with urllib.request.urlopen(url, timeout=30) as answer:
        answer.read()
    return time.perf_counter() - began


__all__ = ["console"]
