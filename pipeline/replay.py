"""Replay: Parquet, JSON lines or CSV into a topic, or one topic into another.

Rows are chosen and shaped by Spark; the writer makes each batch visible once. With a rate, the rows
are sent in numbered batches of about a second. A name stands for these rows: a job that is run
again with the name continues where it stopped, and one that would send other rows is refused.
"""

import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from duolog_server.pipeline.errors import BadJob
from duolog_server.pipeline.replayname import Largest, Ranges, ReplayName, Rows
from duolog_server.pipeline.replayoptions import Replay
from duolog_server.pipeline.sparkerrors import reason_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

FORMATS = ("parquet", "json", "csv")
ROW_NUMBER = "_duolog_row"
PLACES = ("_duolog_file", "_duolog_block", "_duolog_at")  # of a row in its source
MESSAGE = ("body", "keys", "tags", "properties")
EVENT_TIME = "EVENT_TIME"
BATCH_ROWS_MIN = 1000


@dataclass(frozen=True)
class Replayed:
    """Counts of this run and of earlier runs of the same name, according to the sink."""

    topic: str
    rows: int
    batches: int
    seconds: float
    rows_before: int = 0


def replay(
    spark: "SparkSession", what: Replay, progress: Callable[[int, int], None] | None = None
) -> Replayed:
    """Send rows as messages.

    progress: called with the number of rows sent and the total. Raises BadJob, naming the option,
    before anything is sent; an unreadable file ends the job with nothing of its batch visible.
    """
    began = time.monotonic()
    _check(what)
    name = ReplayName(what)
    ranges = name.ranges(what.source) if what.source and what.name else {}
    frame = _shaped(_read(spark, what, ranges), what)
    if not what.name and not what.rate:  # one batch, read once
        _write(_ordered(frame), what, name, 0)
        rows = name.published(0, None, 0)
        return Replayed(what.topic, rows, int(rows > 0), time.monotonic() - began)
    frame = _numbered(frame) if what.rate else frame
    frame = frame.persist()  # the counted rows are the sent rows
    try:
        whole = _measured(frame, what)
        name.settle(whole, ranges)
        name.check_fits(_largest(frame), what.topic)
        before = name.begun.messages if name.begun is not None else 0
        sent, batches = _in_batches(frame, what, name, whole, progress)
        return Replayed(what.topic, sent, batches, time.monotonic() - began, before)
    finally:
        frame.unpersist()


def check(what: Replay) -> None:
    """Raise BadJob, or DuologError, for what shows without Spark; the cluster is asked."""
    _check(what)
    ReplayName(what)


def _check(what: Replay) -> None:
    if bool(what.path) == bool(what.source):
        raise BadJob("give either files or a source topic (--from)")
    if not (math.isfinite(what.rate) and what.rate >= 0):
        raise BadJob(f"--rate is {what.rate:g}; it must not be negative")
    if what.path:
        _format(what)


def _format(what: Replay) -> str:
    """Spark's name for the files' format. Raises BadJob."""
    kind = what.format or what.path.rstrip("/").rpartition(".")[2].lower()
    kind = {"jsonl": "json", "ndjson": "json"}.get(kind, kind)
    if kind not in FORMATS:
        raise BadJob(f"{what.path}: its format is not one of {', '.join(FORMATS)}; give --format")
    return kind


def _quoted(name: str) -> str:
    """A column name, quoted for Spark."""
    return "`" + name.replace("`", "``") + "`"


def _read(spark: "SparkSession", what: Replay, ranges: Ranges) -> "DataFrame":
    frame = _topic(spark, what, ranges) if what.source else _files(spark, what)
    if what.sql:
        frame.drop(*PLACES).createOrReplaceTempView("source")
        try:
            frame = spark.sql(what.sql)
        except Exception as error:
            raise BadJob(f"--sql: {reason_of(error)}") from None
    return frame


def _topic(spark: "SparkSession", what: Replay, ranges: Ranges) -> "DataFrame":
    from pyspark.sql import functions as F

    reader = spark.read.format("duolog").options(**what.caller.options())
    reader = reader.option("endpoints", what.endpoints).option("topic", what.source)
    if ranges:
        for option, side in (("startingOffsets", 0), ("endingOffsets", 1)):
            offsets = {queue: both[side] for queue, both in ranges.items()}
            reader = reader.option(option, json.dumps({what.source: offsets}))
    frame = reader.load()
    places = (F.lit(""), F.col("queue_id").cast("bigint"), F.col("queue_offset"))
    return frame.withColumn("body", frame.body.cast("string")).withColumns(
        dict(zip(PLACES, places, strict=True))
    )


def _files(spark: "SparkSession", what: Replay) -> "DataFrame":
    from pyspark.sql import functions as F

    kind = _format(what)
    reader = spark.read.option("mode", "FAILFAST")
    if kind == "csv":
        reader = reader.option("header", "true").option("inferSchema", "true")
    try:
        frame = reader.format(kind).load(what.path)
    except Exception as error:
        raise BadJob(f"cannot read {what.path}: {reason_of(error)}") from None
    # The splits of files depend on the machine; a row's position in its file does not.
    told = frame.metadataColumn("_metadata")  # cannot clash with the file's own columns
    places = (
        told["file_path"],
        told["file_block_start"],
        F.monotonically_increasing_id(),
    )
    return frame.select("*", *(p.alias(name) for p, name in zip(places, PLACES, strict=True)))


def _shaped(frame: "DataFrame", what: Replay) -> "DataFrame":
    """Rows as messages, with the columns to sort by and their positions."""
    from pyspark.sql import functions as F

    names = [name for name in frame.columns if name not in PLACES]
    given = {"body": what.body, "key": what.key, "tags": what.tags, "time": what.time}
    for option, column in [*given.items(), *(("order", name) for name in what.order)]:
        if column and column not in names:
            raise BadJob(f"--{option}: column {column!r} is not one of {', '.join(names)}")
    whole = F.to_json(F.struct(*(F.col(_quoted(name)) for name in names)))
    body = F.col(_quoted(what.body)).cast("string") if what.body else whole
    columns = [body.alias("body")]
    if what.key:
        key = F.col(_quoted(what.key))
        several = dict(frame.dtypes)[what.key] == "array<string>"
        columns.append((key if several else key.cast("string")).alias("keys"))
    if what.tags:
        columns.append(F.col(_quoted(what.tags)).cast("string").alias("tags"))
    if what.time:
        columns.append(_event_time(frame, what.time))
    sorting = [F.col(_quoted(name)).alias(f"_order_{k}") for k, name in enumerate(what.order)]
    places = [F.col(name) for name in PLACES if name in frame.columns]
    return frame.select(*columns, *sorting, *places)


def _event_time(frame: "DataFrame", name: str) -> "Column":
    from pyspark.sql import functions as F

    kind = dict(frame.dtypes)[name]
    if kind not in ("timestamp", "timestamp_ntz", "bigint", "int"):
        raise BadJob(f"--time: {name!r} has type {kind}; it must be a timestamp, or a number of ms")
    when = F.col(_quoted(name))
    numbers = when if kind in ("bigint", "int") else F.unix_millis(when.cast("timestamp"))
    text = numbers.cast("string")
    return F.when(text.isNotNull(), F.create_map(F.lit(EVENT_TIME), text)).alias("properties")


def _sorting(frame: "DataFrame") -> list[str]:
    return [name for name in frame.columns if name.startswith("_order_")]


def _message(frame: "DataFrame") -> list[str]:
    return [name for name in frame.columns if name in MESSAGE]


def _ordered(frame: "DataFrame") -> "DataFrame":
    """Partitions in the requested order, in which they are published."""
    sorting = _sorting(frame)
    if sorting:
        parts = max(1, frame.sparkSession.sparkContext.defaultParallelism)
        frame = frame.repartitionByRange(parts, *sorting).sortWithinPartitions(*sorting)
    return frame.select(*_message(frame))


def _numbered(frame: "DataFrame") -> "DataFrame":
    """Messages numbered from 1 on, with the same numbers on every machine, ties included."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    places: list[Any] = [name for name in PLACES if name in frame.columns]
    if not places:  # the result of a query
        places = [_text(frame)] if _sorting(frame) else [F.monotonically_increasing_id()]
    # One window over all rows: a replay at a rate is as slow as that rate, not as Spark.
    order = Window.orderBy(*_sorting(frame), *places)
    return frame.select(*_message(frame), F.row_number().over(order).alias(ROW_NUMBER))


def _text(frame: "DataFrame") -> "Column":
    """A message as text: columns by name, so that null and empty differ."""
    from pyspark.sql import functions as F

    return F.to_json(F.struct(*_message(frame)))


def _measured(frame: "DataFrame", what: Replay) -> Rows:
    """The count, and a digest that changes with any row or the order."""
    from pyspark.sql import functions as F

    hashed = [_text(frame), *([F.col(ROW_NUMBER)] if what.rate else [])]
    sums = [
        F.sum(F.xxhash64(F.lit(salt), *hashed).cast("decimal(20,0)")).alias(f"sum{salt}")
        for salt in (1, 2)
    ]
    found = frame.agg(F.count(F.lit(1)).alias("rows"), *sums).collect()[0]
    digest = "".join(f"{int(found[name] or 0) % (1 << 64):016x}" for name in ("sum1", "sum2"))
    size = max(BATCH_ROWS_MIN, int(what.rate)) if what.rate else max(1, int(found["rows"]))
    return Rows(int(found["rows"]), digest, size)


def _largest(frame: "DataFrame") -> Largest:
    """The largest rows; of properties, without their names."""
    from pyspark.sql import functions as F

    kinds, parts = dict(frame.dtypes), []
    for name in ("keys", "tags"):
        if name in kinds:
            listed = kinds[name] == "array<string>"
            text = F.array_join(name, " ") if listed else F.col(name)
            parts.append(F.coalesce(F.octet_length(text), F.lit(0)))
    size = sum(parts[1:], parts[0]) if parts else F.lit(0)
    found = frame.agg(F.max(F.octet_length("body")), F.max(size)).collect()[0]
    return Largest(int(found[0] or 0), int(found[1] or 0))


def _write(frame: "DataFrame", what: Replay, name: ReplayName, number: int) -> None:
    writer = frame.write.format("duolog").mode("append").options(**what.caller.options())
    writer = (
        writer.option("endpoints", what.endpoints)
        .option("topic", what.topic)
        .option("sinkId", name.sink)
    )
    writer = writer.option("publisher", name.publisher).option("batchId", number)
    if name.contents:
        writer = writer.option("sinkContents", name.contents)
    writer.save()


def _in_batches(
    frame: "DataFrame",
    what: Replay,
    name: ReplayName,
    rows: Rows,
    progress: Callable[[int, int], None] | None,
) -> tuple[int, int]:
    """Send the numbered batches that were not sent yet; the numbers of rows and batches sent."""
    first = name.begun.batch + 1 if name.begun is not None else 0
    before = name.begun.messages if name.begun is not None else 0
    if before != min(rows.count, first * rows.batch_rows):
        raise BadJob(
            f'replay "{name.name}": the sink holds {before:,} rows in its {first} '
            "batches; it cannot continue safely; give another --name"
        )
    sent = 0
    started = time.monotonic()
    numbers = range(first, -(-rows.count // rows.batch_rows))
    for number in numbers:
        low, high = number * rows.batch_rows, min(rows.count, (number + 1) * rows.batch_rows)
        if what.rate:
            due = started + (number - first) * rows.batch_rows / what.rate
            time.sleep(max(0.0, due - time.monotonic()))
        _write(_part(frame, low, high) if what.rate else _ordered(frame), what, name, number)
        sent += name.published(number, high - low, sent)
        if progress is not None:
            progress(high, rows.count)
    return sent, len(numbers)


def _part(frame: "DataFrame", low: int, high: int) -> "DataFrame":
    """The rows with the numbers above low up to high, in that order."""
    from pyspark.sql import functions as F

    chosen = frame.where((F.col(ROW_NUMBER) > low) & (F.col(ROW_NUMBER) <= high))
    return chosen.orderBy(ROW_NUMBER).drop(ROW_NUMBER)
