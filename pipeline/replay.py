"""Replay: Parquet, JSON lines or CSV into a topic, or one topic into another.

Rows are chosen and shaped by Spark; the writer makes each batch visible once. With a rate, the rows
go out in batches of about a second's worth, numbered, so a job that is run again with the same name
goes on where it stopped.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pipeline.errors import BadJob

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FORMATS = ("parquet", "json", "csv")
ROW_NUMBER = "_duolog_row"
EVENT_TIME = "EVENT_TIME"
BATCH_ROWS_MIN = 1000


@dataclass(frozen=True)
class Replay:
    """What goes where.

    | field | means |
    |-------|-------|
    | endpoints, topic | where to |
    | path, format | files: parquet, json (lines) or csv (with a header) |
    | source | or a topic of the same cluster |
    | sql | a SELECT over the view `source`; its columns are what is meant below |
    | body | column that is the body; the whole row as JSON, if not told |
    | key, tags, time | columns: the key (it chooses the queue), the tags, the event's time |
    | order | columns to order by; rows of one key keep that order in their queue |
    | rate | messages a second; 0: as fast as it goes |
    | name | of this replay: rows go out once for each name; new each time, if not told |
    """

    endpoints: str
    topic: str
    path: str = ""
    format: str = ""
    source: str = ""
    sql: str = ""
    body: str = ""
    key: str = ""
    tags: str = ""
    time: str = ""
    order: tuple[str, ...] = ()
    rate: float = 0.0
    name: str = ""


@dataclass(frozen=True)
class Replayed:
    """What was sent."""

    topic: str
    rows: int
    batches: int
    seconds: float


def replay(
    spark: "SparkSession", what: Replay, progress: Callable[[int, int], None] | None = None
) -> Replayed:
    """Send rows as messages. progress: told rows that are out, and how many there are.

    Raises BadJob, naming the option, before anything is sent; a file that cannot be read ends the
    job with nothing of its batch visible.
    """
    began = time.monotonic()
    frame = _shaped(_read(spark, what), what)
    if not what.rate:
        counted = _write(spark, _ordered(frame).drop(*_sorting(frame)), what, 0)
        return Replayed(what.topic, counted, 1, time.monotonic() - began)
    return _at_a_rate(spark, frame, what, progress, began)


def _read(spark: "SparkSession", what: Replay) -> "DataFrame":
    if bool(what.path) == bool(what.source):
        raise BadJob("give files or a source topic, one of the two")
    if what.source:
        reader = spark.read.format("duolog").option("endpoints", what.endpoints)
        frame = reader.option("topic", what.source).load()
        frame = frame.withColumn("body", frame.body.cast("string"))
    else:
        kind = what.format or what.path.rstrip("/").rpartition(".")[2].lower()
        kind = {"jsonl": "json", "ndjson": "json"}.get(kind, kind)
        if kind not in FORMATS:
            raise BadJob(f"{what.path}: its format is none of {', '.join(FORMATS)}; say which")
        reader = spark.read.option("mode", "FAILFAST")
        if kind == "csv":
            reader = reader.option("header", "true").option("inferSchema", "true")
        try:
            frame = reader.format(kind).load(what.path)
        except Exception as error:
            raise BadJob(f"{what.path} cannot be read: {_first_line(error)}") from None
    if what.sql:
        frame.createOrReplaceTempView("source")
        try:
            frame = spark.sql(what.sql)
        except Exception as error:
            raise BadJob(f"--sql: {_first_line(error)}") from None
    return frame


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]


def _shaped(frame: "DataFrame", what: Replay) -> "DataFrame":
    """Rows as messages, with the columns to sort by beside them."""
    from pyspark.sql import functions as F

    given = {"body": what.body, "key": what.key, "tags": what.tags, "time": what.time}
    for option, column in [*given.items(), *(("order", name) for name in what.order)]:
        if column and column not in frame.columns:
            raise BadJob(f"--{option}: {column!r} is none of {', '.join(frame.columns)}")
    body = F.col(what.body).cast("string") if what.body else F.to_json(F.struct("*"))
    columns = [body.alias("body")]
    if what.key:
        columns.append(F.col(what.key).cast("string").alias("keys"))
    if what.tags:
        columns.append(F.col(what.tags).cast("string").alias("tags"))
    if what.time:
        kind = dict(frame.dtypes)[what.time]
        if kind not in ("timestamp", "timestamp_ntz", "bigint", "int"):
            raise BadJob(f"--time: {what.time!r} has type {kind}, neither timestamp nor ms")
        when = F.col(what.time)
        numbers = when if kind in ("bigint", "int") else F.unix_millis(when.cast("timestamp"))
        text = numbers.cast("string")
        columns.append(
            F.when(text.isNotNull(), F.create_map(F.lit(EVENT_TIME), text)).alias("properties")
        )
    sorting = [F.col(name).alias(f"_order_{k}") for k, name in enumerate(what.order)]
    return frame.select(*columns, *sorting)


def _sorting(frame: "DataFrame") -> list[str]:
    return [name for name in frame.columns if name.startswith("_order_")]


def _ordered(frame: "DataFrame") -> "DataFrame":
    """Partitions that follow one another in the order asked for: they are published so."""
    sorting = _sorting(frame)
    if not sorting:
        return frame
    parts = max(1, frame.sparkSession.sparkContext.defaultParallelism)
    return frame.repartitionByRange(parts, *sorting).sortWithinPartitions(*sorting)


def _write(spark: "SparkSession", frame: "DataFrame", what: Replay, number: int) -> int:
    from pyspark.sql import Observation
    from pyspark.sql import functions as F

    told = Observation()
    observed = frame.observe(told, F.count(F.lit(1)).alias("rows"))
    writer = observed.write.format("duolog").mode("append").option("endpoints", what.endpoints)
    writer = writer.option("topic", what.topic)
    if what.name:
        writer = writer.option("sinkId", f"replay-{what.name}").option("batchId", number)
    writer.save()
    return int(told.get["rows"])


def _at_a_rate(
    spark: "SparkSession",
    frame: "DataFrame",
    what: Replay,
    progress: Callable[[int, int], None] | None,
    began: float,
) -> Replayed:
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    if what.rate < 0:
        raise BadJob(f"--rate {what.rate:g}: not negative")
    sorting = _sorting(frame)
    order: Any = sorting or [F.monotonically_increasing_id()]
    # One window over all rows: a replay at a rate is as slow as that rate, not as Spark.
    numbered = frame.withColumn(ROW_NUMBER, F.row_number().over(Window.orderBy(*order)))
    numbered = numbered.drop(*sorting).persist()
    try:
        total = numbered.count()
        size = max(BATCH_ROWS_MIN, int(what.rate))
        batches = -(-total // size)
        for number in range(batches):
            due = began + number * size / what.rate
            time.sleep(max(0.0, due - time.monotonic()))
            low = number * size
            chosen = numbered.where((F.col(ROW_NUMBER) > low) & (F.col(ROW_NUMBER) <= low + size))
            part = chosen.orderBy(ROW_NUMBER).drop(ROW_NUMBER)
            _write(spark, part, what, number)
            if progress is not None:
                progress(min(total, low + size), total)
    finally:
        numbered.unpersist()
    return Replayed(what.topic, total, batches, time.monotonic() - began)
