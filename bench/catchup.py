"""How fast a slave that has nothing copies its master's log, and what that costs both of them."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import duolog

from bench.harness import Node, PagesInHand
from bench.usage import CpuOf
from duolog_server.demo.ports import free_endpoint

POLL_SECONDS = 0.05
WAIT_SECONDS = 300.0
AHEAD_BYTES = 256 << 20  # of pages: free before a slave needs them; later ones go back to the host
SHARE = 1.03  # of what is copied: with its queues and index


@dataclass(frozen=True, slots=True)
class Copied:
    """What a slave has copied.

    size: bytes. seconds: since it had the first of them; whole_seconds: since its process was
    started. built_seconds: until its queues and index had all of it, since the first. The CPU of
    master and slave is in seconds, while the bytes were copied.
    """

    size: int
    seconds: float
    whole_seconds: float
    built_seconds: float
    master_cpu: float
    slave_cpu: float

    @property
    def rate(self) -> float:
        """Bytes a second."""
        return self.size / self.seconds

    def __str__(self) -> str:
        """For people."""
        ns_master, ns_slave = (1e9 * cpu / self.size for cpu in (self.master_cpu, self.slave_cpu))
        return (
            f"{self.rate / 1e6:,.0f} MB/s ({self.size / self.whole_seconds / 1e6:,.0f} with the "
            f"slave's start, {self.size / self.built_seconds / 1e6:,.0f} with its queues); CPU ns "
            f"a byte: master {ns_master:.2f}, slave {ns_slave:.2f}"
        )


@dataclass(frozen=True, slots=True)
class Copying:
    """A slave that is about to start.

    reached: up to where it has the log. behind: bytes that its queues and index have not. pages:
    let go as it needs them.
    """

    master_pid: int
    start_slave: Callable[[], int]  # gives its process id
    reached: Callable[[], Awaitable[int]]
    behind: Callable[[], Awaitable[int]]
    pages: PagesInHand

    async def watch(self, end: int) -> Copied:
        """Start it, and wait until it has the log up to an offset. Raises TimeoutError."""
        self.pages.let_go(AHEAD_BYTES)
        started = time.perf_counter()
        master, slave = CpuOf(self.master_pid), CpuOf(self.start_slave())
        async with asyncio.timeout(WAIT_SECONDS):
            first = await self._reached(1)
            began = time.perf_counter()
            master_before, slave_before = master.seconds(), slave.seconds()
            size = end - first
            await self._reached(end)
            ended = time.perf_counter()
            cpu = master.seconds() - master_before, slave.seconds() - slave_before
            while await self.behind():
                await asyncio.sleep(POLL_SECONDS)
            built = time.perf_counter()
        return Copied(size, ended - began, ended - started, built - began, *cpu)

    async def _reached(self, offset: int) -> int:
        while (found := await self.reached()) < offset:
            self.pages.let_go(AHEAD_BYTES + int(SHARE * found))
            await asyncio.sleep(POLL_SECONDS)
        return found


def pages_for(size: int) -> PagesInHand:
    """Pages for a slave that copies so many bytes."""
    return PagesInHand(AHEAD_BYTES + int(SHARE * size))


async def of_nodes(root: Path, store: Path) -> tuple[Copied, float]:
    """A slave in a new directory below root copies a store; and the rate of new pages before it."""
    port = free_endpoint()
    master = Node(store, "--ha-listen", port, name="master", log=root / "master.log")
    slave = Node(root / "slave", "--role", "SLAVE", "--ha-master", port)

    def start_slave() -> int:
        slave.start()
        return slave.pid

    master.start()
    try:
        async with (
            duolog.Client(master.endpoint, timeout=120) as client,
            duolog.Client(slave.endpoint, timeout=120) as slaves_client,
        ):
            await master.wait_ready(client)
            end = (await client.admin.node_status()).max_offset

            async def reached() -> int:
                rows = (await client.admin.node_status()).replication.slaves
                return rows[0].received_offset if rows else 0

            async def behind() -> int:
                return (await slaves_client.admin.node_status()).dispatch_behind_bytes

            with closing(pages_for(end)) as pages:
                copying = Copying(master.pid, start_slave, reached, behind, pages)
                return await copying.watch(end), pages.rate
    finally:
        slave.stop()
        master.stop()


__all__ = ["POLL_SECONDS", "WAIT_SECONDS", "Copied", "Copying", "of_nodes", "pages_for"]
