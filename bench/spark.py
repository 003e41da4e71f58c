"""Figures of Spark: reads, writes, micro-batches and audits, all sides in one session.

Each in a process of its own: a Spark session, two cores.
"""

import asyncio
import multiprocessing
import os
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duolog
import duolog.sync
import numpy as np

from bench.harness import Figure, Node
from duolog_server.demo import measure
from duolog_server.pipeline.segments import Piece, Segment, Stretch, segments_of, walk
from duolog_server.store.kernels import scan

ROUNDS = 3
BATCH = 50_000
QUEUES = 4
AUDITED = 4 << 30
MEMORY_MIB = 512
CORES = 2
WARM = 20
AUDITS = 9


def session(**settings: str) -> Any:
    """A session of two cores; what a worker process needs is found."""
    from duolog_server.pipeline.session import spark_session

    os.environ["PYTHONPATH"] = os.pathsep.join(
        [str(Path(__file__).parent.parent), os.environ.get("PYTHONPATH", "")]
    )
    if settings:
        os.environ["PYSPARK_SUBMIT_ARGS"] = " ".join(
            [*(f"--conf {name}={value}" for name, value in settings.items()), "pyspark-shell"]
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


def tuple_source() -> Any:
    """A source as one would write it without columns: a tuple a message."""
    from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

    class Reader(DataSourceReader):
        def __init__(self, endpoints: str) -> None:
            self.endpoints = endpoints

        def partitions(self) -> list[InputPartition]:
            return [InputPartition(queue) for queue in range(QUEUES)]

        def read(self, partition: InputPartition) -> Iterator[Any]:
            with duolog.sync.Client(self.endpoints) as client:
                offset = 0
                while (batch := client.pull("bench", partition.value, offset)).count:
                    yield from zip(batch.body_list(), batch.queue_offsets, strict=True)
                    offset = batch.next_offset

    class Source(DataSource):
        @classmethod
        def name(cls) -> str:
            return "tuples"

        def schema(self) -> str:
            return "body BINARY, queue_offset BIGINT"

        def reader(self, schema: Any) -> DataSourceReader:
            return Reader(self.options["endpoints"])

    return Source


def _reads(count: int, size: int, share: float) -> list[Figure]:
    spark = session()
    rig = Rig(count, size)
    try:
        spark.dataSource.register(tuple_source())

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
            "tuples": lambda: noop(
                spark.read.format("tuples").option("endpoints", rig.node.endpoint).load()
            ),
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
    ratio, over = mid["ours"] / mid["parquet"], mid["ours"] / mid["tuples"]
    asked = mid["asked"] / mid["parquet"]
    label = f"{size} B" if size < 1024 else "1 KiB"
    return [
        Figure(
            f"Spark batch read, {label}",
            f">= {share} of Parquet, >= 2 x tuples",
            f"{mid['ours']:,.0f} rows/s, {ratio:.2f}, {over:.1f} x "
            f"(sent by the node: {mid['asked']:,.0f}, {asked:.2f})",
            f"Parquet {mid['parquet']:,.0f}, tuples {mid['tuples']:,.0f} rows/s",
            ratio >= share and over >= 2,
            {**mid, "of_parquet": ratio, "sent_of_parquet": asked, "over_tuples": over},
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


def _resident_mib(pid: int) -> float:
    """Memory of a process that is its own: no files' pages."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) / 1024
    return 0.0


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
    root = Path(tempfile.mkdtemp(prefix="duolog-bench-"))
    spark = session(**{"spark.driver.memory": f"{MEMORY_MIB}m"})
    peak = [0.0]
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.1):
            workers = [int(path.name) for path in Path("/proc").iterdir() if _is_worker(path)]
            for pid in workers:
                try:
                    peak[0] = max(peak[0], _resident_mib(pid))
                except OSError:
                    continue

    try:
        measure.fill_store(root, AUDITED, 1024)
        segments = segments_of(root)
        for segment in segments:
            int(np.asarray(segment.memory()[::4096]).sum())  # in the page cache
        _audited(spark, root)
        thread = threading.Thread(target=watch)
        thread.start()
        rates, singles, pairs = [], [], []
        early = [_audited(spark, root) for _ in range(ROUNDS)]
        for _ in range(WARM):  # the JVM compiles itself for its first 20 jobs, on our cores
            _audited(spark, root)
        with multiprocessing.get_context("spawn").Pool(CORES) as pool:
            pool.map(_scan, segments[:CORES], 1)  # starts them
            for _ in range(AUDITS):
                singles.append(_scan(segments[0]))
                pairs.append(sum(pool.map(_scan, segments[:CORES], 1)))
                rates.append(_audited(spark, root))
        over.set()
        thread.join()
    finally:
        over.set()
        spark.stop()
        shutil.rmtree(root, ignore_errors=True)
    best, single, bare = (statistics.median(of) for of in (rates, singles, pairs))
    first = statistics.median(early) / single / CORES
    return [
        Figure(
            "Spark audit of 4 GiB, 1 KiB",
            ">= 0.7 x 2 cores x one thread's scan",
            f"{best / 1e9:.2f} GB/s, {best / single / CORES:.2f} (first jobs {first:.2f})",
            f"one thread {single / 1e9:.2f} GB/s, two at once {bare / 1e9:.2f}",
            best >= 0.7 * CORES * single,
            {
                "bytes_per_s": best,
                "single_bytes_per_s": single,
                "bare_bytes_per_s": bare,
                "share": best / single / CORES,
                "first_share": first,
            },
        ),
        Figure(
            "its memory, 512 MiB executors",
            "flat",
            f"{peak[0]:.0f} MiB a worker, JVM heap {MEMORY_MIB} MiB",
            "",
            peak[0] <= MEMORY_MIB,
            {"mib": peak[0]},
        ),
    ]


def _is_worker(path: Path) -> bool:
    try:
        return b"pyspark.daemon" in (path / "cmdline").read_bytes()
    except OSError:
        return False
