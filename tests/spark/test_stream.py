"""Streaming reads and writes through Spark, with a real node, and with masters that die."""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duolog.spark
import duolog.sync
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from duolog_server.chaos.processes import ProcessTarget
from tests.etcd import need_etcd
from tests.process.support import NodeProcess
from tests.process.test_failover import SMALL
from tests.sparkfixtures import Place
from tests.topics import create_topic
from tests.until import wait_until

pytestmark = [pytest.mark.process, pytest.mark.spark]


@pytest.fixture(autouse=True)
def _ended(spark: SparkSession) -> Iterator[None]:
    yield
    for query in spark.streams.active:
        query.stop()


class Seen:
    """A sink that notes the rows of each micro-batch."""

    def __init__(self) -> None:
        self.batches: dict[int, list[str]] = {}

    def __call__(self, frame: Any, number: int) -> None:
        found = [bytes(row.body).decode() for row in frame.select("body").collect()]
        if found:
            self.batches[number] = found

    @property
    def rows(self) -> list[str]:
        return [body for number in sorted(self.batches) for body in self.batches[number]]


def stream(spark: SparkSession, endpoints: str, **options: Any) -> Any:
    made = spark.readStream.format("duolog").option("endpoints", endpoints)
    for name, value in options.items():
        made = made.option(name, value)
    return made


def drained(frame: Any, seen: Seen, checkpoint: Path) -> Any:
    """Run until everything that is there now is through."""
    query = (
        frame.load()
        .writeStream.foreachBatch(seen)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    return query


def send(client: duolog.sync.Client, topic: str, name: str, count: int, queue_id: int) -> None:
    with client.producer() as producer:
        bodies = [f"{name}-{k}".encode() for k in range(count)]
        producer.send_batch(topic, bodies, queue_id=queue_id)


def test_a_stream_continues_from_its_checkpoint_and_reads_a_new_queue(
    spark: SparkSession, place: Place, tmp_path: Path
) -> None:
    node, client, topic = place
    seen = Seen()
    send(client, topic, "a", 10, 0)
    send(client, topic, "b", 30, 1)
    options = {
        "topic": topic,
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": 8,
        "group": f"{topic}-reader",
    }
    query = drained(stream(spark, node.endpoint, **options), seen, tmp_path / "c")
    assert [len(rows) for rows in seen.batches.values()] == [8] * 5
    assert sorted(seen.rows) == sorted(
        [f"a-{k}" for k in range(10)] + [f"b-{k}" for k in range(30)]
    )
    # Each micro-batch has a share of both queues.
    assert Counter(row[0] for row in seen.batches[min(seen.batches)]) == {"a": 2, "b": 6}
    last = query.lastProgress
    assert duolog.spark.behind_latest(last)["offsetsBehindLatest"] == 0
    behind = [duolog.spark.behind_latest(one) for one in query.recentProgress]
    assert behind[0]["maxOffsetsBehindLatest"] >= 24
    lag = client.admin.group(f"{topic}-reader").queues
    assert {(row.queue_id, row.committed) for row in lag} == {(0, 10), (1, 30)}

    client.admin.alter_topic(topic, 3)
    send(client, topic, "c", 5, 2)
    send(client, topic, "d", 5, 0)
    more = Seen()
    drained(stream(spark, node.endpoint, **options), more, tmp_path / "c")
    assert sorted(more.rows) == sorted([f"{n}-{k}" for n in "cd" for k in range(5)])
    nothing = Seen()
    drained(stream(spark, node.endpoint, **options), nothing, tmp_path / "c")
    assert nothing.batches == {}


def test_micro_batches_are_limited_by_bytes_and_a_stream_may_start_at_the_end(
    spark: SparkSession, place: Place, tmp_path: Path
) -> None:
    node, client, topic = place
    with client.producer() as producer:
        producer.send_batch(topic, [b"%04d" % k + bytes(996) for k in range(40)], queue_id=0)
    seen = Seen()
    first, second = client.pull(topic, 0, 0, max_messages=2).physical_offsets
    most = 10 * (second - first)
    options = {"topic": topic, "startingOffsets": "earliest", "maxBytesPerTrigger": most}
    drained(stream(spark, node.endpoint, **options), seen, tmp_path / "c")
    assert [len(rows) for rows in seen.batches.values()] == [10] * 4
    late = Seen()
    drained(stream(spark, node.endpoint, topic=topic), late, tmp_path / "d")
    assert late.batches == {}
    send(client, topic, "new", 3, 1)
    drained(stream(spark, node.endpoint, topic=topic), late, tmp_path / "d")
    assert late.rows == ["new-0", "new-1", "new-2"]


def test_offsets_that_are_gone_are_reported_or_skipped(
    spark: SparkSession, place: Place, tmp_path: Path
) -> None:
    node, client, topic = place
    send(client, topic, "a", 4, 0)
    options = {"topic": topic, "startingOffsets": "earliest"}
    seen = Seen()
    drained(stream(spark, node.endpoint, **options), seen, tmp_path / "c")
    send(client, topic, "b", 4, 0)
    client.admin.delete_topic(topic)  # what it held is below the queue's minimum from now on
    client.admin.create_topic(topic, 2)
    send(client, topic, "c", 4, 0)
    with pytest.raises(Exception, match="no longer has messages 4 to 7"):
        drained(stream(spark, node.endpoint, **options), seen, tmp_path / "c")
    careless = {**options, "failOnDataLoss": "false"}
    drained(stream(spark, node.endpoint, **careless), seen, tmp_path / "c")
    assert seen.rows == [f"{n}-{k}" for n in "ac" for k in range(4)]


def test_a_careless_stream_outlives_its_topic(
    spark: SparkSession, place: Place, tmp_path: Path
) -> None:
    """A restart knows the topic from its checkpoint alone."""
    node, client, topic = place
    client.admin.create_topic(f"{topic}-b", 1)
    careless = {
        "topics": f"{topic},{topic}-b",
        "startingOffsets": "earliest",
        "failOnDataLoss": "false",
    }
    seen = Seen()
    send(client, topic, "a", 4, 0)
    drained(stream(spark, node.endpoint, **careless), seen, tmp_path / "c")
    send(client, topic, "lost", 4, 0)
    send(client, f"{topic}-b", "b", 3, 0)
    client.admin.delete_topic(topic)
    drained(stream(spark, node.endpoint, **careless), seen, tmp_path / "c")
    assert sorted(seen.rows) == sorted([*(f"a-{k}" for k in range(4)), "b-0", "b-1", "b-2"])
    strict = {**careless, "failOnDataLoss": "true"}
    with pytest.raises(Exception, match="does not exist"):
        drained(stream(spark, node.endpoint, **strict), seen, tmp_path / "c")
    client.admin.create_topic(topic, 2)
    send(client, topic, "c", 2, 0)
    drained(stream(spark, node.endpoint, **careless), seen, tmp_path / "c")
    assert seen.rows[-2:] == ["c-0", "c-1"]


def test_a_short_queue_does_not_starve_beside_long_ones(
    spark: SparkSession, place: Place, tmp_path: Path
) -> None:
    node, client, topic = place
    send(client, topic, "long", 5000, 0)
    send(client, topic, "short", 3, 1)
    seen = Seen()
    options = {"topic": topic, "startingOffsets": "earliest", "maxOffsetsPerTrigger": 1000}
    drained(stream(spark, node.endpoint, **options), seen, tmp_path / "c")
    first = [seen.batches[number] for number in sorted(seen.batches)[:3]]
    assert [sum(row.startswith("short") for row in rows) for rows in first] == [1, 1, 1]
    assert [len(rows) for rows in first] == [1000] * 3
    assert len(seen.rows) == 5003


def test_invalid_stream_options_are_refused(
    spark: SparkSession, node: NodeProcess, topic: str, tmp_path: Path
) -> None:
    for options, words in (
        ({"endingOffsets": "latest"}, "option 'endingoffsets' is not one of"),
        ({"maxOffsetsPerTrigger": "many"}, "option 'maxOffsetsPerTrigger': 'many' is not a number"),
    ):
        with pytest.raises(Exception, match=words):
            drained(stream(spark, node.endpoint, topic=topic, **options), Seen(), tmp_path / "c")


@pytest.fixture
def target(tmp_path: Path) -> Iterator[ProcessTarget]:
    """Three nodes that elect their master."""
    need_etcd()
    made = ProcessTarget(tmp_path / "cluster", lease_seconds=2, flags=SMALL)
    made.start()
    yield made
    made.stop()


def batches_of(query: Any) -> int:
    """How many micro-batches a query has done; Spark keeps the progress of the last 100."""
    last = query.lastProgress
    return int(last["batchId"]) if last else 0


def test_streams_read_and_write_while_the_master_is_killed(
    spark: SparkSession, target: ProcessTarget, tmp_path: Path
) -> None:
    """A stream copies a topic into another one, exactly once, while two masters die."""
    endpoints = ",".join(target.endpoint(name) for name in target.nodes)
    with duolog.sync.Client(endpoints, timeout=60) as client:

        def in_sync() -> int:
            groups = client.admin.route().groups
            return sum(replica.in_sync for replica in groups[0].replicas) if groups else 0

        wait_until(lambda: in_sync() == 3, "three nodes in sync")
        for name in ("from", "to"):
            create_topic(client, name, 3)
        over = threading.Event()
        sent: list[bytes] = []

        def produce() -> None:
            with duolog.sync.Client(endpoints, timeout=60) as own, own.producer() as producer:
                while not over.is_set():
                    bodies = [b"%d" % (len(sent) + k) for k in range(200)]
                    producer.send_batch("from", bodies, timeout=60)
                    sent.extend(bodies)
                    time.sleep(0.05)

        thread = threading.Thread(target=produce)
        thread.start()

        def copied(trigger: dict[str, Any]) -> Any:
            frame = stream(spark, endpoints, topic="from", startingOffsets="earliest", timeout=60)
            return (
                frame.schema("body BINARY, queue_id INT")
                .load()
                .writeStream.format("duolog")
                .option("endpoints", endpoints)
                .option("topic", "to")
                .option("checkpointLocation", str(tmp_path / "checkpoint"))
                .trigger(**trigger)
                .start()
            )

        try:
            query = copied({"processingTime": "200 milliseconds"})
            for _ in range(2):
                before = batches_of(query)
                time.sleep(3.0)
                # None while a master that stood still is replaced.
                master = wait_until(lambda: client.admin.route().groups[0].master, "a master")
                target.kill(master)
                end = time.monotonic() + 60
                while batches_of(query) < before + 5 and time.monotonic() < end:
                    assert query.isActive, query.exception()
                    time.sleep(0.1)
                # A batch read in the middle of it all.
                assert read_all(spark, endpoints, "from") >= 200
                target.revive(master)
            query.stop()  # in mid-flight: the checkpoint says what is to be done again
        finally:
            over.set()
            thread.join(120)
        assert copied({"availableNow": True}).awaitTermination(120)
        rows = (
            spark.read.format("duolog")
            .option("endpoints", endpoints)
            .option("topic", "to")
            .load()
            .select(F.col("body").cast("string").alias("body"))
            .collect()
        )
        assert len(sent) > 1000
        assert Counter(row.body.encode() for row in rows) == Counter(sent)


COPY = """
import sys
from duolog_server.pipeline.session import spark_session
endpoints, source, target, checkpoint = sys.argv[1:]
spark = spark_session("copy", "local[2]")
frame = spark.readStream.format("duolog").option("endpoints", endpoints).option("topic", source)
frame = frame.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", "250")
query = (
    frame.schema("body BINARY").load().repartition(3)
    .writeStream.format("duolog").option("endpoints", endpoints).option("topic", target)
    .option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
)
query.awaitTermination()
"""


def test_a_killed_driver_repeats_nothing_visible(
    spark: SparkSession, place: Place, tmp_path: Path
) -> None:
    node, client, topic = place
    target, checkpoint = f"{topic}-copy", tmp_path / "checkpoint"
    client.admin.create_topic(target, 3)
    send(client, topic, "a", 10_000, 0)
    environment = dict(os.environ)
    command = [sys.executable, "-c", COPY, node.endpoint, topic, target, str(checkpoint)]

    def batches() -> int:
        folder = checkpoint / "offsets"
        return sum(path.name.isdigit() for path in folder.iterdir()) if folder.exists() else 0

    dice = random.Random(4)
    for _ in range(3):
        before = batches()
        with subprocess.Popen(command, env=environment, start_new_session=True) as driver:
            end = time.monotonic() + 90
            while batches() < before + 3 and time.monotonic() < end and driver.poll() is None:
                time.sleep(0.01)
            time.sleep(dice.uniform(0.0, 0.2))  # anywhere in a micro-batch
            assert driver.poll() is None
            os.killpg(driver.pid, signal.SIGKILL)
    subprocess.run(command, env=environment, timeout=300, check=True)
    rows = (
        spark.read.format("duolog")
        .option("endpoints", node.endpoint)
        .option("topic", target)
        .load()
        .collect()
    )
    assert Counter(bytes(row.body) for row in rows) == Counter(
        f"a-{k}".encode() for k in range(10_000)
    )


def read_all(spark: SparkSession, endpoints: str, topic: str) -> int:
    frame = spark.read.format("duolog").option("endpoints", endpoints).option("topic", topic)
    return int(frame.load().count())


def test_streams_of_a_pattern_include_new_topics(
    spark: SparkSession, place: Place, tmp_path: Path
) -> None:
    node, client, topic = place
    options = {
        "topicPattern": f"{topic}.*",
        "startingOffsets": json.dumps({topic: {"0": -2, "1": -1}}),
    }
    send(client, topic, "a", 2, 0)
    seen = Seen()
    drained(stream(spark, node.endpoint, **options), seen, tmp_path / "c")
    client.admin.create_topic(f"{topic}-new", 1)
    send(client, f"{topic}-new", "b", 2, 0)
    drained(stream(spark, node.endpoint, **options), seen, tmp_path / "c")
    assert seen.rows == ["a-0", "a-1", "b-0", "b-1"]
