"""Starts: how soon a node is ready, what it holds then; and after a SIGKILL with 1 GiB of log.

The process's start is part of every figure. Beside each stands what Python alone takes in the same
run, or the time to read the bytes.
"""

import mmap
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import duolog

from bench.harness import Figure, Node, fresh_directory, ready
from duolog_server.demo import measure
from duolog_server.demo.measure import Load
from duolog_server.store.kernels.jit import LIBRARY

ROUNDS = 7
KILLS = 3
PYTHON = (  # does what a node cannot do without, and says its memory in KiB
    "import grpc.aio, numpy, re; "
    "print(re.findall(r'VmRSS:\\s+(\\d+)', open('/proc/self/status').read())[0])"
)
LOGS = {  # bytes of a body: messages that fill a log to just below 1 GiB, and of one batch
    100: (4_100_000, 50_000),
    1024: (900_000, 10_000),
}


def bare_python() -> tuple[float, float]:
    """Seconds of a process that imports grpc and numpy, and its resident memory, MiB."""
    began = time.perf_counter()
    found = subprocess.run([sys.executable, "-c", PYTHON], check=True, capture_output=True)
    return time.perf_counter() - began, int(found.stdout) / 1024


async def start_seconds(node: Node) -> float:
    """Start a node: seconds until it answers a call."""
    began = time.perf_counter()
    node.start()
    node.wait_port()
    async with duolog.Client(node.endpoint, timeout=60) as client:
        await client.admin.node_status()
    return time.perf_counter() - began


def cpu_seconds(pid: int) -> float:
    """User and system time of a process so far: other work on the machine hardly changes it."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def idle() -> list[Figure]:
    """Ready warm, and memory."""
    starts, imports, cpu = [], [], []
    with fresh_directory() as root:
        for number in range(ROUNDS + 1):  # the first warms up
            node = Node(root / f"data{number}")
            seconds = await start_seconds(node)
            if number:
                starts.append(seconds)
                cpu.append(cpu_seconds(node.pid))
                imports.append(bare_python()[0])
            if number == ROUNDS:
                time.sleep(1)
                memory = node.rss_mib()
                status = Path(f"/proc/{node.pid}/status").read_text()
                own = int(re.findall(r"RssAnon:\s+(\d+)", status)[0]) / 1024
            node.stop()
    answered, needed, work = map(median, (starts, imports, cpu))
    python = bare_python()[1]
    kernels = "kernels from the library" if LIBRARY is not None else "kernels through numba"
    return [
        Figure(
            "node ready, warm",
            "<= 0.8 s",
            f"{answered:.2f} s ({min(starts):.2f}-{max(starts):.2f}) to the first call's answer; "
            f"CPU {work:.2f} s",
            f"importing grpc and numpy {needed:.2f} s; {kernels}",
            answered <= 0.8,
            {"seconds": answered, "cpu_seconds": work, "imports": needed},
        ),
        Figure(
            "node idle, memory",
            "<= 120 MiB RSS (segments not counted)",
            f"{memory:.0f} MiB ({own:.0f} of it its own)",
            f"Python with grpc and numpy {python:.0f} MiB",
            memory <= 120,
            {"mib": memory, "python_mib": python},
        ),
    ]


async def fill(node: Node, size: int) -> int:
    """Write a log of nearly 1 GiB through the node, kill it; bytes of the log."""
    messages, batch = LOGS[size]
    node.start()
    async with ready(node) as client:
        await client.admin.create_topic("bench", 4)
        await measure.produce_batches(client, Load(messages, size), batch)
        end = (await client.admin.node_status()).max_offset
        node.kill()
    return end


@contextmanager
def as_killed(kept: Path, data: Path) -> Iterator[None]:
    """A directory as the kill left it; the log itself is moved there, and back in the end."""
    shutil.rmtree(data, ignore_errors=True)
    data.mkdir()
    for path in kept.iterdir():
        if path.name != "commitlog":
            subprocess.run(["cp", "-a", "--sparse=always", path, data], check=True)
    (kept / "commitlog").rename(data / "commitlog")
    os.sync()
    try:
        yield
    finally:
        (data / "commitlog").rename(kept / "commitlog")


def touch_seconds(segment: Path, size: int) -> float:
    """Look at every byte of a file through the page cache, mapped."""
    with segment.open("rb") as file:
        began = time.perf_counter()
        with mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ) as memory:
            for at in range(0, size, 1 << 20):
                memory.find(b"\xff\xfe\xfd\xfc", at, at + (1 << 20))
        return time.perf_counter() - began


async def killed() -> list[Figure]:
    """SIGKILL with 1 GiB of log to ready, for small and large messages."""
    figures = []
    for size in LOGS:
        with fresh_directory() as root:
            kept, data = root / "kept", root / "data"
            end = await fill(Node(kept), size)
            starts, limits, cpu = [], [], []
            for _ in range(KILLS):
                with as_killed(kept, data):
                    node = Node(data)
                    starts.append(await start_seconds(node))
                    cpu.append(cpu_seconds(node.pid))
                    node.kill()
                limits.append(touch_seconds(kept / "commitlog" / ("0" * 20), end))
        seconds, limit, work = map(median, (starts, limits, cpu))
        figures.append(
            Figure(
                f"SIGKILL, {end / (1 << 30):.2f} GiB of log ({size} B) to ready, start included",
                "<= 2 s",
                f"{seconds:.2f} s ({min(starts):.2f}-{max(starts):.2f}); CPU {work:.2f} s",
                f"to read these bytes {limit:.2f} s",
                seconds <= 2,
                {"seconds": seconds, "cpu_seconds": work, "touch_seconds": limit, "bytes": end},
            )
        )
    return figures
