"""What metrics cost a node at full load: rounds with scrapes and without, in turns, on one node.

Prometheus scrapes every 15 s by default. Here it is every second, so that rounds can be short: a
fifteenth of what that costs is the cost by default. Counting goes on in all rounds, so that it is
measured by itself, against the time that the node takes to store a batch.
"""

import asyncio
import time
import timeit
import urllib.request
from dataclasses import dataclass
from statistics import median

import duolog

from bench.harness import Figure, Node, running
from bench.usage import CpuOf
from duolog_server.demo import measure
from duolog_server.demo.measure import Load
from duolog_server.demo.ports import free_endpoint
from duolog_server.node.core.traffic import Traffic
from duolog_server.node.engine.log import APPEND_BOUNDS
from duolog_server.node.runtime.histogram import Histogram
from duolog_server.store.columns import Columns

ROUNDS = 6
TOPICS = 1000
LOAD = Load(2_000_000, 100)
BATCH = 10_000
SINGLE = 5000  # messages sent one after the other
EVERY_SECONDS = 1.0
DEFAULT_SECONDS = 15.0  # Prometheus' scrape_interval, as most configure it


@dataclass(frozen=True, slots=True)
class Round:
    """Messages a second, and the node's CPU seconds a million messages."""

    rate: float
    cpu: float


def scrape(address: str) -> str:
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=30) as reply:
        return str(reply.read().decode())


async def one_round(node: Node, client: duolog.Client, address: str, scrapes: bool) -> Round:
    async def scrape_all_the_time() -> None:
        while True:
            await asyncio.to_thread(scrape, address)
            await asyncio.sleep(EVERY_SECONDS)

    async with asyncio.TaskGroup() as tasks:
        scraping = tasks.create_task(scrape_all_the_time()) if scrapes else None
        used = CpuOf(node.pid)
        found = await measure.produce_batches(client, LOAD, BATCH)
        cpu = used.seconds()
        if scraping is not None:
            scraping.cancel()
    return Round(found.messages / found.seconds, cpu / (found.messages / 1e6))


def counting_seconds() -> float:
    """What is counted for each batch: its time, its flow and its size."""
    histogram, traffic = Histogram(APPEND_BOUNDS), Traffic()
    columns = Columns.of([b"x" * LOAD.size])

    def count() -> None:
        began = time.perf_counter()
        histogram.observe(time.perf_counter() - began)
        traffic.receive("bench", "normal", 1, columns)

    times = 200_000
    return min(timeit.repeat(count, number=times, repeat=5)) / times


def value(text: str, name: str) -> float:
    """The first series of a metric."""
    line = next(line for line in text.splitlines() if line.startswith(f"{name}{{"))
    return float(line.rpartition(" ")[2])


def mean_append(before: str, after: str) -> float:
    """Seconds to store a batch between two scrapes, on average."""
    seconds, batches = (
        value(after, name) - value(before, name)
        for name in ("duolog_append_seconds_sum", "duolog_append_seconds_count")
    )
    return seconds / batches


async def scraped() -> list[Figure]:
    address = free_endpoint()
    async with running("--set", f"metrics.listen={address}") as (node, client):
        for number in range(TOPICS):
            await client.admin.create_topic(f"topic-{number}", 4)
        await measure.produce_batches(client, LOAD, BATCH)  # warms up
        pairs = []
        for number in range(ROUNDS):
            order = (False, True) if number % 2 else (True, False)
            rounds = {how: await one_round(node, client, address, how) for how in order}
            pairs.append((rounds[False], rounds[True]))
        text = await asyncio.to_thread(scrape, address)
        await measure.produce_singly(client, Load(SINGLE, LOAD.size))
        storing = mean_append(text, await asyncio.to_thread(scrape, address))
    share = EVERY_SECONDS / DEFAULT_SECONDS
    cpu = median(with_.cpu / without.cpu for without, with_ in pairs) - 1
    rate = 1 - median(with_.rate / without.rate for without, with_ in pairs)
    counting = counting_seconds()
    series = sum(1 for line in text.splitlines() if not line.startswith("#"))
    return [
        Figure(
            f"scrapes at full load, {series:,} series",
            "<= 2 % of CPU and rate, every 15 s",
            f"{cpu * share:.2%} of CPU, {rate * share:.2%} of rate",
            f"every second: {cpu:.1%} of CPU, {rate:.1%} of rate",
            max(cpu, rate) * share <= 0.02,
            {"cpu_every_second": cpu, "rate_every_second": rate, "series": series},
        ),
        Figure(
            "counting of a batch",
            "<= 2 % of storing one message",
            f"{counting * 1e6:.2f} us, {counting / storing:.2%}",
            f"storing {storing * 1e6:.1f} us",
            counting / storing <= 0.02,
            {"counting_us": counting * 1e6, "storing_us": storing * 1e6},
        ),
    ]
