"""Figures of Spark: reads, writes, micro-batches and audits, all sides in one session.

Each in a process of its own: a Spark session, two cores.
"""

import asyncio
import os
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duolog
import duolog.sync
import numpy as np

from bench.harness import Figure, Node, fresh_directory
from duolog_server.demo import measure
from duolog_server.pipeline.segments import Piece, Segment, Stretch, segments_of, walk
from duolog_server.store.kernels import scan

ROUNDS = 3
BATCH = 50_000
QUEUES = 4
AUDITED = 4 << 30
CORES = 2
WARM = 20
AUDITS = 9


def session() -> Any:
    """A session of two cores; what a worker process needs is found."""
    from duolog_server.pipeline.session import spark_session

    os.environ["PYTHONPATH"] = os.pathsep.join(
        [str(Path(__file__).parent.parent), os.environ.get("PYTHONPATH", "")]
    )
    return spark_session("bench", "local[2]")


class Rig:
    """A node with a topic of random bodies."""

    def __init__(self, count: int, size: int) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="duolog-bench-"))
        self.node = Node(self.root / "data")
        self.node.start()
        self.node.wait_port()
        self.seconds = 0.0
        with duolog.sync.Client(self.node.endpoint, timeout=60) as client:
            client.admin.create_topic("bench", QUEUES)
            with client.producer() as producer:
                for _ in range(0, count, BATCH):
                    data = os.urandom(BATCH * size)
                    bodies = [data[k : k + size] for k in range(0, len(data), size)]
                    began = time.perf_counter()
                    producer.send_batch("bench", bodies, timeout=60)
                    self.seconds += time.perf_counter() - began

    def close(self) -> None:
        self.node.stop()
        shutil.rmtree(self.root, ignore_errors=True)


def rate(work: Callable[[], Any], rows: int) -> float:
    began = time.perf_counter()
    work()
    return rows / (time.perf_counter() - began)


def noop(frame: Any) -> None:
    frame.write.format("noop").mode("overwrite").save()


def _reads(count: int, size: int, share: float) -> list[Figure]:
    spark = session()
    rig = Rig(count, size)
    try:

        def ours(local: str = "true") -> Any:
            reader = spark.read.format("duolog").option("endpoints", rig.node.endpoint)
            reader = reader.option("topic", "bench").option("localReads", local)
            return reader.schema("body BINARY, queue_offset BIGINT").load()

        parquet = str(rig.root / "parquet")
        ours().write.option("compression", "none").parquet(parquet)
        sides: dict[str, Callable[[], Any]] = {
            "ours": lambda: noop(ours()),
            "asked": lambda: noop(ours("false")),
            "parquet": lambda: noop(spark.read.parquet(parquet)),
        }
        found: dict[str, list[float]] = {name: [] for name in sides}
        for turn in range(ROUNDS + 1):
            for name, work in sides.items():
                measured = rate(work, count)
                if turn:  # the first warms up
                    found[name].append(measured)
        mid = {name: statistics.median(rates) for name, rates in found.items()}
    finally:
        rig.close()
        spark.stop()
    ratio = mid["ours"] / mid["parquet"]
    asked = mid["asked"] / mid["parquet"]
    label = f"{size} B" if size < 1024 else "1 KiB"
    return [
        Figure(
            f"Spark batch read, {label}",
            f">= {share} of Parquet",
            f"{mid['ours']:,.0f} rows/s, {ratio:.2f} "
            f"(sent by the node: {mid['asked']:,.0f}, {asked:.2f})",
            f"Parquet {mid['parquet']:,.0f} rows/s",
            ratio >= share,
            {**mid, "of_parquet": ratio, "sent_of_parquet": asked},
        )
    ]


async def read_small() -> list[Figure]:
    return await asyncio.to_thread(_reads, 5_000_000, 100, 0.3)


async def read_large() -> list[Figure]:
    return await asyncio.to_thread(_reads, 1_000_000, 1024, 0.4)


async def write() -> list[Figure]:
    return await asyncio.to_thread(_write)


def _write() -> list[Figure]:
    count, size = 5_000_000, 100
    spark = session()
    rig = Rig(count, size)
    produced = count / rig.seconds
    try:
        source = str(rig.root / "parquet")
        reader = spark.read.format("duolog").option("endpoints", rig.node.endpoint)
        frame = reader.option("topic", "bench").schema("body BINARY").load()
        frame.write.option("compression", "none").parquet(source)
        with duolog.sync.Client(rig.node.endpoint) as client:
            client.admin.create_topic("copy", QUEUES)
        writer = (
            spark.read.parquet(source)
            .write.format("duolog")
            .mode("append")
            .option("endpoints", rig.node.endpoint)
            .option("topic", "copy")
        )
        rates = [rate(writer.save, count) for _ in range(2)]
    finally:
        rig.close()
        spark.stop()
    best = max(rates)
    return [
        Figure(
            "Spark batch write, 100 B",
            ">= 0.5 of the SDK's produce rate",
            f"{best:,.0f} rows/s, {best / produced:.2f}",
            f"SDK {produced:,.0f} msg/s",
            best >= 0.5 * produced,
            {"rows_per_s": best, "produced_per_s": produced, "ratio": best / produced},
        )
    ]


async def micro_batches() -> list[Figure]:
    return await asyncio.to_thread(_micro_batches)


def _micro_batches() -> list[Figure]:
    spark = session()
    rig = Rig(BATCH, 100)
    over = threading.Event()

    def trickle() -> None:
        with duolog.sync.Client(rig.node.endpoint) as client, client.producer() as producer:
            while not over.is_set():
                producer.send_batch("bench", [b"x" * 100] * 2)
                time.sleep(0.01)

    def median_ms(frame: Any, name: str) -> float:
        query = (
            frame.writeStream.format("noop")
            .option("checkpointLocation", str(rig.root / name))
            .start()
        )
        end = time.monotonic() + 60
        times: list[float] = []
        while len(times) < 60 and time.monotonic() < end:
            time.sleep(0.2)
            times = [
                p.durationMs["triggerExecution"] for p in query.recentProgress if p.numInputRows
            ]
        query.stop()
        return statistics.median(times[20:])

    thread = threading.Thread(target=trickle)
    thread.start()
    try:
        ours = spark.readStream.format("duolog").option("endpoints", rig.node.endpoint)
        rates = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load()
        found: dict[str, list[float]] = {"ours": [], "rate": []}
        for turn in range(2):
            found["rate"].append(median_ms(rates, f"rate{turn}"))
            found["ours"].append(median_ms(ours.option("topic", "bench").load(), f"ours{turn}"))
    finally:
        over.set()
        thread.join()
        rig.close()
        spark.stop()
    mine, limit = min(found["ours"]), min(found["rate"])
    return [
        Figure(
            "Spark micro-batch, little data",
            "<= 130 / 80 of the rate source",
            f"{mine:.0f} ms, {mine / limit:.2f} x",
            f"rate source {limit:.0f} ms",
            mine / limit <= 130 / 80,
            {"ms": mine, "rate_ms": limit, "ratio": mine / limit},
        )
    ]


async def audit() -> list[Figure]:
    return await asyncio.to_thread(_audit)


def _scan(segment: Segment) -> float:
    """Bytes a second of one process that verifies a segment, by the kernel alone."""
    memory = segment.memory(0, segment.size)
    began, size = time.perf_counter(), 0
    for step in walk(memory, Piece(segment, 0, segment.size), True):
        if isinstance(step, Stretch):
            size += int(step.rows[scan.SIZE, : step.count].sum())
    return size / (time.perf_counter() - began)


def _audited(spark: Any, root: Path) -> float:
    """Bytes a second of one audit."""
    from duolog_server.pipeline.audit import audit as run

    began = time.perf_counter()
    found = run(spark, root)
    assert not found.problems, found.problems
    return found.bytes / (time.perf_counter() - began)


def _audit() -> list[Figure]:
    spark = session()
    try:
        with fresh_directory() as root:
            measure.fill_store(root, AUDITED, 1024)
            segments = segments_of(root)
            for segment in segments:
                int(np.asarray(segment.memory()[::4096]).sum())  # in the page cache
            for _ in range(WARM):  # the JVM compiles itself for its first jobs, on our cores
                _audited(spark, root)
            rates, singles = [], []
            for _ in range(AUDITS):
                singles.append(_scan(segments[0]))
                rates.append(_audited(spark, root))
    finally:
        spark.stop()
    best, single = statistics.median(rates), statistics.median(singles)
    return [
        Figure(
            "Spark audit of 4 GiB, 1 KiB",
            f">= 0.7 x {CORES} cores x one thread's scan",
            f"{best / 1e9:.2f} GB/s, {best / single / CORES:.2f}",
            f"one thread {single / 1e9:.2f} GB/s",
            best >= 0.7 * CORES * single,
            {"bytes_per_s": best, "single_bytes_per_s": single, "share": best / single / CORES},
        )
    ]
