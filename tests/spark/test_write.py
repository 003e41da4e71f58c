"""Writes through Spark: what becomes visible, exactly once, and what is refused."""

import shutil
import zlib
from pathlib import Path
from typing import Any

import pytest
from duolog import BadRequest
from duolog._sink import SinkState
from duolog.spark._writer import check_repeated
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tests.process.support import NodeProcess
from tests.sparkfixtures import Place, read

pytestmark = [pytest.mark.process, pytest.mark.spark]


def write(frame: Any, node: NodeProcess, **options: Any) -> None:
    made = frame.write.format("duolog").mode("append").option("endpoints", node.endpoint)
    for name, value in options.items():
        made = made.option(name, value)
    made.save()


def bodies(spark: SparkSession, node: NodeProcess, topic: str) -> list[str]:
    frame = read(spark, node, topic=topic).load()
    return [row[0] for row in frame.select(frame.body.cast("string")).collect()]


def numbers(spark: SparkSession, count: int, parts: int) -> Any:
    return spark.range(0, count, 1, parts).select(F.col("id").cast("string").alias("body"))


def test_rows_are_written_as_messages(spark: SparkSession, place: Place) -> None:
    node, client, topic = place
    rows = [
        ("one", "t", ["k1", "k2"], {"p": "v", "q": "w"}, 1),
        ("two", None, None, None, 0),
        ("three", "", [], {}, 1),
        ("", "t", ["k3"], None, 1),
    ]
    schema = (
        "body STRING, tags STRING, keys ARRAY<STRING>, properties MAP<STRING,STRING>, queue_id INT"
    )
    write(spark.createDataFrame(rows, schema).coalesce(1), node, topic=topic)
    found = {
        bytes(row.body).decode(): row for row in read(spark, node, topic=topic).load().collect()
    }
    assert set(found) == {"one", "two", "three", ""}
    one, two, empty = found["one"], found["two"], found[""]
    assert (one.tags, one["keys"], one.queue_id) == ("t", ["k1", "k2"], 1)
    assert (one.properties["p"], one.properties["q"]) == ("v", "w")
    assert (two.tags, two["keys"], two.queue_id) == (None, [], 0)
    assert (empty.tags, empty["keys"]) == ("t", ["k3"])
    assert client.admin.find(topic, key="k2")[0].body == b"one"


def test_rows_of_one_key_keep_their_order_in_the_queue_a_producer_would_take(
    spark: SparkSession, node: NodeProcess, topic: str
) -> None:
    frame = spark.range(0, 6000, 1, 1).select(
        F.col("id").cast("string").alias("body"), F.expr("concat('k', id % 7)").alias("keys")
    )
    write(frame, node, topic=topic)
    found = read(spark, node, topic=topic).load().collect()
    assert len(found) == 6000
    for key in range(7):
        name = f"k{key}"
        mine = [row for row in found if row["keys"] == [name]]
        assert {row.queue_id for row in mine} == {zlib.crc32(name.encode()) % 2}
        ordered = sorted(mine, key=lambda row: row.queue_offset)
        assert [int(bytes(row.body)) for row in ordered] == list(range(key, 6000, 7))


def test_a_key_is_never_split(spark: SparkSession, place: Place) -> None:
    node, client, topic = place
    keys = ["New York", "New Jersey", " a  b ", "York", "naïve 鍵", "plain", "", None]
    for name, frame in (
        (
            "text",
            spark.createDataFrame(
                [(str(k), key) for k, key in enumerate(keys)], "body STRING, keys STRING"
            ),
        ),
        (
            "list",
            spark.createDataFrame(
                [(str(k), [key] if key else None) for k, key in enumerate(keys)],
                "body STRING, keys ARRAY<STRING>",
            ),
        ),
    ):
        target = f"{topic}-{name}"
        client.admin.create_topic(target, 5)
        write(frame.repartition(2), node, topic=target)
        found = {int(bytes(r.body)): r for r in read(spark, node, topic=target).load().collect()}
        for k, key in enumerate(keys):
            assert found[k]["keys"] == ([key] if key else []), key
            if key:  # others take turns
                assert found[k].queue_id == zlib.crc32(key.encode()) % 5
        for k, key in ((0, "New York"), (3, "York"), (4, "naïve 鍵"), (5, "plain")):
            assert [m.body for m in client.admin.find(target, key=key)] == [str(k).encode()]
        assert client.admin.find(target, key="New") == []
    several = spark.createDataFrame([("x", ["New", "York"])], "body STRING, keys ARRAY<STRING>")
    write(several, node, topic=topic)
    (row,) = read(spark, node, topic=topic).load().collect()
    assert row["keys"] == ["New", "York"]
    assert client.admin.find(topic, key="New York") == []
    assert len(client.admin.find(topic, key="York")) == 1


def test_a_read_can_be_written_back(spark: SparkSession, place: Place) -> None:
    node, client, topic = place
    with client.producer() as producer:
        for k in range(50):
            producer.send(
                topic, b"%d" % k, key=f"k{k}", keys=["more"], tags="t", properties={"p": str(k)}
            )
        producer.send(topic, b"bare")
    opaque = spark.createDataFrame([("one", "two words")], "body STRING, keys STRING")
    write(opaque, node, topic=topic)
    client.admin.create_topic(f"{topic}-b", 2)

    def rows(name: str) -> list[Any]:
        def own(properties: dict[str, str]) -> dict[str, str]:
            return {k: v for k, v in properties.items() if k != "UNIQ_KEY"}

        found = read(spark, node, topic=name).load().collect()
        return sorted(
            (bytes(r.body), r.queue_id, r.tags, tuple(r["keys"]), sorted(own(r.properties).items()))
            for r in found
        )

    first = rows(topic)
    assert len(first) == 52
    write(read(spark, node, topic=topic).load(), node, topic=f"{topic}-b")
    assert rows(f"{topic}-b") == sorted(first)
    assert rows(topic) == first  # the option said where, not the column
    write(read(spark, node, topic=topic).load(), node)  # the column says where
    assert rows(topic) == sorted(first * 2)


def test_foreign_rows_keep_properties(spark: SparkSession, node: NodeProcess, topic: str) -> None:
    rows = [
        (
            "a",
            {
                "p": "",
                "q": "v",
                "n": None,
                "KEYS": "k",
                "UNIQ_KEY": "u",
                "TIMER_DELIVER_MS": "5",
                "ONE_KEY": "true",
            },
        ),
        ("b", {"p": ""}),
        ("c", None),
        ("d", {"日本": "ü 💡", "a b": " c "}),
    ]
    frame = spark.createDataFrame(rows, "body STRING, properties MAP<STRING,STRING>")
    write(frame.coalesce(1), node, topic=topic)
    found = {bytes(r.body).decode(): r for r in read(spark, node, topic=topic).load().collect()}
    own = {
        body: {k: v for k, v in row.properties.items() if k != "UNIQ_KEY"}
        for body, row in found.items()
    }
    assert own == {"a": {"q": "v"}, "b": {}, "c": {}, "d": {"日本": "ü 💡", "a b": " c "}}
    assert all(row["keys"] == [] for row in found.values())


def test_a_batch_number_is_written_once_whatever_its_partitions(
    spark: SparkSession, node: NodeProcess, topic: str
) -> None:
    how = {"topic": topic, "sinkId": f"{topic}-sink"}
    write(numbers(spark, 100, 3), node, batchId=4, **how)
    write(numbers(spark, 100, 5), node, batchId=4, **how)
    write(numbers(spark, 100, 1), node, batchId=3, **how)
    assert sorted(map(int, bodies(spark, node, topic))) == list(range(100))
    write(numbers(spark, 10, 2), node, batchId=5, **how)
    assert len(bodies(spark, node, topic)) == 110
    write(numbers(spark, 10, 2), node, topic=topic)  # a sink of its own each time
    write(numbers(spark, 10, 2), node, topic=topic)
    assert len(bodies(spark, node, topic)) == 130


def test_tasks_that_fail_leave_nothing_behind(
    spark: SparkSession, node: NodeProcess, topic: str, tmp_path: Path
) -> None:
    faulty = F.expr("if(id = 99950, raise_error('row 99950'), cast(id AS STRING))")
    frame = spark.range(0, 100_000, 1, 2).select(faulty.alias("body"))
    with pytest.raises(Exception, match="row 99950"):
        write(frame, node, topic=topic)
    assert bodies(spark, node, topic) == []


def test_rows_are_written_to_several_topics(spark: SparkSession, place: Place) -> None:
    node, client, topic = place
    client.admin.create_topic(f"{topic}-b", 3)
    frame = spark.range(0, 1000, 1, 2).select(
        F.col("id").cast("string").alias("body"),
        F.when(F.col("id") % 3 == 0, F.lit(f"{topic}-b")).alias("topic"),
    )
    write(frame, node, topic=topic)
    assert read(spark, node, topic=topic).load().count() == 666
    assert read(spark, node, topic=f"{topic}-b").load().count() == 334


def test_rows_that_are_not_messages_refuse_the_whole_write(
    spark: SparkSession, node: NodeProcess, topic: str
) -> None:
    cases: list[tuple[str, dict[str, Any], str]] = [
        ("SELECT 1 AS n", {}, "column 'n' is not one of body"),
        ("SELECT 't' AS tags", {}, "column 'body' is missing"),
        ("SELECT 1 AS body", {}, "column 'body' has type int, not binary or string"),
        ("SELECT 'x' AS body", {"topic": ""}, "give the option 'topic'"),
        ("SELECT 'x' AS body", {"topic": "nobody-made-this"}, "'nobody-made-this' does not exist"),
        ("SELECT 'x' AS body", {"sink": "s"}, "option 'sink' is not one of"),
        ("SELECT 'x' AS body", {"batchId": "1"}, "give both"),
        ("SELECT CAST(NULL AS STRING) AS body", {}, "column 'body' is null"),
        ("SELECT 'x' AS body, 9 AS queue_id", {}, "has queues 0..1"),
        ("SELECT 'x' AS body, 'a\\nb' AS tags", {}, "'tags' has control characters"),
        ("SELECT 'x' AS body, array('a b', 'c') AS keys", {}, "'a b' is one of several keys"),
        ("SELECT 'x' AS body, array('a', '') AS keys", {}, "a key of a list is null or empty"),
        ("SELECT 'x' AS body, 'a\nb' AS keys", {}, "'keys' has control characters"),
        ("SELECT 'x' AS body, map('', 'v') AS properties", {}, "has an empty name"),
        ("SELECT 'x' AS body, 'now' AS store_time", {}, "column 'store_time' is not one of body"),
        ("SELECT repeat('x', 5000000) AS body", {}, "the limit is"),
    ]
    for sql, options, words in cases:
        with pytest.raises(Exception, match=words) as caught:
            write(spark.sql(sql), node, **{"topic": topic, **options})
        assert "Traceback" not in str(caught.value)
    with pytest.raises(Exception, match="cannot be deleted"):
        spark.sql("SELECT 'x' AS body").write.format("duolog").mode("overwrite").option(
            "endpoints", node.endpoint
        ).option("topic", topic).save()
    assert bodies(spark, node, topic) == []


def test_a_stream_writes_each_micro_batch_once_though_its_commit_is_forgotten(
    spark: SparkSession, node: NodeProcess, topic: str, tmp_path: Path
) -> None:
    """As if the driver died between the publication and Spark's own record of it."""
    source, checkpoint = tmp_path / "source", tmp_path / "checkpoint"
    for _ in range(3):
        numbers(spark, 50, 1).write.mode("append").text(str(source))

    def run() -> None:
        frame = spark.readStream.schema("value STRING").option("maxFilesPerTrigger", 1)
        query = (
            frame.text(str(source))
            .withColumnRenamed("value", "body")
            .repartition(3)
            .writeStream.format("duolog")
            .option("endpoints", node.endpoint)
            .option("topic", topic)
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(120)

    run()
    assert len(bodies(spark, node, topic)) == 150
    commits = sorted(path for path in (checkpoint / "commits").iterdir() if path.name.isdigit())
    assert [path.name for path in commits] == ["0", "1", "2"]
    for path in [commits[-1], commits[-1].with_name(f".{commits[-1].name}.crc")]:
        path.unlink(missing_ok=True)
    run()  # batch 2 once more
    assert sorted(bodies(spark, node, topic)) == sorted([str(k) for k in range(50)] * 3)


def test_a_sink_does_not_skip_the_rows_of_another_checkpoint(
    spark: SparkSession, node: NodeProcess, topic: str, tmp_path: Path
) -> None:
    """A new one counts from 0 again, and an older copy from where it was: those numbers are
    published, with other rows."""
    source, sink = tmp_path / "source", f"sink-of-{topic}"

    def run(checkpoint: str, sink: str) -> None:
        numbers(spark, 10, 1).write.mode("append").text(str(source))
        frame = spark.readStream.schema("value STRING").text(str(source))
        query = (
            frame.withColumnRenamed("value", "body")
            .writeStream.format("duolog")
            .option("endpoints", node.endpoint)
            .option("topic", topic)
            .option("sinkId", sink)
            .option("checkpointLocation", str(tmp_path / checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(120)

    run("first", sink)
    shutil.copytree(tmp_path / "first", tmp_path / "copy")
    with pytest.raises(Exception, match=r"published its batches up to 0 for query .* batch 0: its"):
        run("second", sink)
    run("first", sink)
    run("first", sink)
    with pytest.raises(Exception, match=r"published its batches up to 2, but .* batch 1: its"):
        run("copy", sink)
    assert len(bodies(spark, node, topic)) == 40
    run("second", f"{sink}-2")
    assert len(bodies(spark, node, topic)) == 40 + 60


def test_for_each_batch_does_not_skip_the_rows_of_another_checkpoint(
    spark: SparkSession, node: NodeProcess, topic: str, tmp_path: Path
) -> None:
    source, how = tmp_path / "source", {"topic": topic, "sinkId": f"sink-of-{topic}"}
    numbers(spark, 10, 1).write.mode("append").text(str(source))

    def twice(frame: Any, number: int) -> None:  # as after a driver that died behind the first
        for _ in range(2):
            write(frame.withColumnRenamed("value", "body"), node, batchId=number, **how)

    def run(checkpoint: str) -> None:
        frame = spark.readStream.schema("value STRING").text(str(source))
        query = (
            frame.writeStream.foreachBatch(twice)
            .option("checkpointLocation", str(tmp_path / checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(120)

    run("first")
    assert sorted(map(int, bodies(spark, node, topic))) == list(range(10))
    with pytest.raises(Exception, match=r"published its batches up to 0 for query .* batch 0: its"):
        run("second")


def test_only_the_last_micro_batch_of_a_query_is_repeated() -> None:
    def state(publisher: str) -> SinkState:
        return SinkState(7, 8, 80, 10, 0, "", publisher)

    check_repeated("s", 7, "q", state("q"))
    check_repeated("s", 7, "q", state(""))  # by a version that noted none
    for number, publisher in ((6, "q"), (6, ""), (0, "p"), (7, "p")):
        with pytest.raises(BadRequest, match=f"up to 7.* starts batch {number}: its checkpoint"):
            check_repeated("s", number, "q", state(publisher))
