"""What measurements share: a figure, nodes in child processes, the machine's page rate."""

import asyncio
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import duolog
from duolog.testing._node import ChildNode
from duolog.testing._ports import free_endpoint

from duolog_server.store.osdisk import OsDisk


@dataclass
class Figure:
    """One line of the table."""

    name: str
    asked: str
    measured: str
    limit: str
    reached: bool
    numbers: dict[str, float]


def print_table(figures: Sequence[Figure], older: Mapping[str, str] | None = None) -> None:
    """Print figures as the table of the documentation. older: measured before, by name."""
    print("| work | target | measured | limit in the same run | reached |", end="")
    print(" before |" if older else "")
    print("|---|---|---|---|---|" + ("---|" if older else ""))
    for figure in figures:
        line = f"| {figure.name} | {figure.asked} | {figure.measured} | {figure.limit} | "
        line += "yes |" if figure.reached else "**no** |"
        print(line + (f" {older.get(figure.name, '')} |" if older else ""))


@contextmanager
def fresh_directory() -> Iterator[Path]:
    """A directory that is removed in the end; TMPDIR says on which disk."""
    root = Path(tempfile.mkdtemp(prefix="duolog-bench-"))
    try:
        yield root
    finally:
        shutil.rmtree(root, ignore_errors=True)


class Node(ChildNode):
    """A node process whose memory can be looked at; what takes long is measured, not given up."""

    ready_seconds = 600.0
    stop_seconds = 600.0

    def rss_mib(self) -> float:
        """Resident memory without the store's own segments, MiB."""
        total = 0
        mine = False
        for line in Path(f"/proc/{self.pid}/smaps").read_text().splitlines():
            if not line[0].isupper() or "-" in line.split(" ", 1)[0]:
                mine = str(self.data) in line
            elif line.startswith("Rss:") and not mine:
                total += int(line.split()[1])
        return total / 1024


@asynccontextmanager
async def ready(node: Node) -> AsyncIterator[duolog.Client]:
    """A client of a node that was started, once it answers."""
    async with duolog.Client(node.endpoint, timeout=60) as client:
        await node.wait_ready(client)
        yield client


@asynccontextmanager
async def running(*flags: str) -> AsyncIterator[tuple[Node, duolog.Client]]:
    """A node on a fresh directory, and a client."""
    with fresh_directory() as root:
        node = Node(root / "data", *flags)
        node.start()
        try:
            async with ready(node) as client:
                await client.admin.create_topic("bench", 4)
                yield node, client
        finally:
            node.stop()


@asynccontextmanager
async def pair(*flags: str) -> AsyncIterator[duolog.Client]:
    """A client of a SYNC_MASTER whose slave is in sync."""
    port = free_endpoint()
    with fresh_directory() as root:
        master = Node(root / "master", "--role", "SYNC_MASTER", "--ha-listen", port, *flags)
        slave = Node(root / "slave", "--role", "SLAVE", "--ha-master", port, *flags)
        master.start()
        slave.start()
        try:
            async with ready(master) as client:
                while (await client.admin.node_status()).replication.in_sync_replicas < 2:
                    await asyncio.sleep(0.02)
                await client.admin.create_topic("bench", 4)
                yield client
        finally:
            slave.stop()
            master.stop()


def take_pages(size: int = 1 << 30) -> float:
    """Take a file's pages from the machine, bytes a second, and give them back.

    A virtual machine returns memory that nobody uses to its host within seconds, and gets it again
    a page at a time, ten times as slowly. The machine of a broker has its memory in use, for the
    page cache. After this call so many bytes are in hand for a second or two.
    """
    with fresh_directory() as root:
        file = OsDisk(root).create("pages", size)
        began = time.perf_counter()
        file.populate(0, file.size)
        seconds = time.perf_counter() - began
        file.close()
    return size / seconds
