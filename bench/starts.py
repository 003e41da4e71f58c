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

from bench.harness import Figure, Node, fresh_directory
from duolog_server.demo import measure
from duolog_server.demo.measure import Load
from duolog_server.store.kernels.jit import LIBRARY

ROUNDS = 7
KILLS = 3
POLL_SECONDS = 0.002
ROOT = Path(__file__).parent.parent
PASS, IMPORTS = "pass", "import grpc.aio, numpy"
LOGS = {  # bytes of a body: messages that fill a log to just below 1 GiB, and of one batch
    100: (4_100_000, 50_000),
    1024: (900_000, 10_000),
}


def python_seconds(code: str) -> float:
    """A process of Python that does so much."""
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True)
    return time.perf_counter() - began


async def start_seconds(node: Node) -> tuple[float, float]:
    """Start a node: seconds until it says that it is ready, and until it answers a call."""
    node.log.unlink(missing_ok=True)
    began = time.perf_counter()
    node.start()
    while b"ready " not in (node.log.read_bytes() if node.log.exists() else b""):
        assert node.running, node.log.read_text()
        time.sleep(POLL_SECONDS)
    ready = time.perf_counter() - began
    async with duolog.Client(node.endpoint, timeout=60) as client:
        await client.admin.node_status()
    return ready, time.perf_counter() - began


def cpu_seconds(pid: int) -> float:
    """User and system time of a process so far: other work on the machine hardly changes it."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def python_cpu_seconds(code: str) -> float:
    """User and system time of a process of Python that does so much."""
    asks = f"import time; {code}; print(time.process_time())"
    found = subprocess.run([sys.executable, "-c", asks], check=True, capture_output=True, text=True)
    return float(found.stdout)


def forget(paths: Iterator[Path]) -> None:
    """Have the system drop files from the page cache; what others have mapped stays."""
    for path in paths:
        file = os.open(path, os.O_RDONLY)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(file)


def program_files() -> Iterator[Path]:
    """Python's own files, the packages' and this project's."""
    for folder in {sys.prefix, sys.base_prefix, str(ROOT)}:
        for suffix in ("py", "pyc", "so*"):
            yield from (path for path in Path(folder).rglob(f"*.{suffix}") if path.is_file())


def memory_kib(pid: int) -> dict[str, int]:
    """VmRSS, RssAnon and RssFile."""
    lines = Path(f"/proc/{pid}/status").read_text()
    return {
        name: int(size) for name, size in re.findall(r"(VmRSS|RssAnon|RssFile):\s+(\d+)", lines)
    }


def python_mib(code: str) -> float:
    """Resident memory of a process of Python that does so much, MiB."""
    asks = f"{code}; print(open('/proc/self/status').read())"
    found = subprocess.run([sys.executable, "-c", asks], check=True, capture_output=True, text=True)
    return int(re.findall(r"VmRSS:\s+(\d+)", found.stdout)[0]) / 1024


async def idle() -> list[Figure]:
    """Ready warm and cold, and memory."""
    warm, answered, bare, imports, cpu = [], [], [], [], []
    with fresh_directory() as root:
        for number in range(ROUNDS + 1):  # the first warms up
            node = Node(root / f"data{number}")
            ready, answer = await start_seconds(node)
            if number:
                warm.append(ready)
                answered.append(answer)
                cpu.append(cpu_seconds(node.pid))
                bare.append(python_seconds(PASS))
                imports.append(python_seconds(IMPORTS))
            if number == ROUNDS:
                time.sleep(1)
                memory, parts = node.rss_mib(), memory_kib(node.pid)
            node.stop()
        forget(program_files())
        cold_imports = python_seconds(IMPORTS)
        forget(program_files())
        node = Node(root / "cold")
        cold, _ = await start_seconds(node)
        node.stop()
    ready, answer, empty, needed = map(median, (warm, answered, bare, imports))
    kernels = "kernels from the library" if LIBRARY is not None else "kernels through numba"
    python = python_mib(IMPORTS)
    work, python_work = median(cpu), python_cpu_seconds(IMPORTS)
    return [
        Figure(
            "node ready, warm",
            "<= 0.8 s",
            f"{ready:.2f} s ({min(warm):.2f}-{max(warm):.2f}), first call answered {answer:.2f} s; "
            f"CPU {work:.2f} s",
            f"python -c pass {empty:.2f} s; importing grpc and numpy {needed:.2f} s, CPU "
            f"{python_work:.2f} s; {kernels}",
            answer <= 0.8,
            {
                "seconds": ready,
                "answered_seconds": answer,
                "cpu_seconds": work,
                "pass": empty,
                "imports": needed,
                "imports_cpu_seconds": python_work,
            },
        ),
        Figure(
            "node ready, program not in the page cache",
            "",
            f"{cold:.2f} s",
            f"importing grpc and numpy likewise {cold_imports:.2f} s",
            True,
            {"seconds": cold, "imports": cold_imports},
        ),
        Figure(
            "node idle, memory",
            "<= 120 MiB RSS (segments not counted)",
            f"{memory:.0f} MiB ({parts['RssAnon'] / 1024:.0f} of it its own, "
            f"{parts['RssFile'] / 1024:.0f} of files, the store's among them)",
            f"Python with grpc and numpy {python:.0f} MiB",
            memory <= 120,
            {"mib": memory, "python_mib": python},
        ),
    ]


async def fill(node: Node, size: int) -> int:
    """Write a log of nearly 1 GiB through the node, kill it; bytes of the log."""
    messages, batch = LOGS[size]
    node.start()
    async with duolog.Client(node.endpoint, timeout=120) as client:
        await node.wait_ready(client)
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
            starts, limits, imports, cpu = [], [], [], []
            for _ in range(KILLS):
                with as_killed(kept, data):
                    node = Node(data)
                    _, answered = await start_seconds(node)
                    starts.append(answered)
                    cpu.append(cpu_seconds(node.pid))
                    node.kill()
                limits.append(touch_seconds(kept / "commitlog" / ("0" * 20), end))
                imports.append(python_seconds(IMPORTS))
        seconds, limit, needed = median(starts), median(limits), median(imports)
        work = median(cpu)
        figures.append(
            Figure(
                f"SIGKILL, {end / (1 << 30):.2f} GiB of log ({size} B) to ready, start included",
                "<= 2 s",
                f"{seconds:.2f} s ({min(starts):.2f}-{max(starts):.2f}); CPU {work:.2f} s",
                f"to read these bytes {limit:.2f} s, importing grpc and numpy {needed:.2f} s",
                seconds <= 2,
                {
                    "seconds": seconds,
                    "cpu_seconds": work,
                    "touch_seconds": limit,
                    "imports": needed,
                    "bytes": end,
                },
            )
        )
    return figures
