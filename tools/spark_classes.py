"""Archive of the classes that Spark loads at its start, which Java maps instead of loading each.

    python -m tools.spark_classes .venv/spark.jsa

Most of a short job's time goes into them. Rules: Java ignores an archive of another Java or of
other packages; a file appears as a whole, since Java crashes on one that is cut off.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceWriter,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.window import Window

from duolog_server.pipeline.session import end_session, java_runs, spark_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ARCHIVE = Path(sys.prefix) / "spark.jsa"
# A job of a test ends before the second compiler has paid for itself.
SHORT_JOB = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
QUIET = "-Xlog:disable"  # of an archive that does not fit, and while one is written
DUMP_SECONDS = 600
ROWS = 100


def java_options() -> str:
    """For Java of short jobs: with the archive, where there is one."""
    if not ARCHIVE.exists():
        return SHORT_JOB
    return f"{SHORT_JOB} {QUIET} -XX:SharedArchiveFile={ARCHIVE}"


class Numbers(DataSource):
    """A source in Python, as duolog's is one."""

    @classmethod
    def name(cls) -> str:
        """For `format(...)`."""
        return "numbers"

    def schema(self) -> str:
        """One column."""
        return "n BIGINT"

    def reader(self, schema: Any) -> DataSourceReader:
        """A batch."""
        return _Reader()

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        """A stream of one micro-batch."""
        return _StreamReader()

    def writer(self, schema: Any, overwrite: bool) -> DataSourceWriter:
        """To nowhere."""
        return _Writer()


def _rows() -> Iterator[tuple[int]]:
    return ((n,) for n in range(ROWS))


class _Reader(DataSourceReader):
    def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
        return _rows()


class _StreamReader(DataSourceStreamReader):
    def initialOffset(self) -> dict[str, int]:
        return {"n": 0}

    def latestOffset(self, *asked: Any) -> dict[str, int]:
        return {"n": ROWS}

    def partitions(self, start: Any, end: Any) -> list[InputPartition]:
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
        return _rows()


class _Writer(DataSourceWriter):
    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        assert sum(1 for _ in iterator) >= 0
        return WriterCommitMessage()


def work(spark: "SparkSession", folder: Path) -> None:
    """What jobs do: files, shuffles, windows, a source in Python, a stream."""
    spark.dataSource.register(Numbers)
    spark.sparkContext.parallelize(range(4), 2).mapPartitions(list).collect()
    frame = spark.range(ROWS).select("id", F.expr("concat('k', id % 7)").alias("key"))
    for kind in ("json", "csv", "parquet"):
        frame.repartition(2).write.format(kind).save(str(folder / kind))
        spark.read.format(kind).load(str(folder / kind)).collect()
    numbered = frame.withColumn("row", F.row_number().over(Window.orderBy("key", "id"))).persist()
    numbered.agg(F.sum(F.xxhash64("key").cast("decimal(20,0)"))).collect()
    numbered.repartitionByRange(2, "key").sortWithinPartitions("key").collect()
    read = spark.read.format("numbers").load()
    quantiles = F.percentile("n", F.array(F.lit(0.5), F.lit(0.99)))
    read.groupBy((F.col("n") % 3).alias("rest")).agg(quantiles).orderBy("rest").collect()
    read.select(F.to_json(F.struct("n"))).collect()
    read.write.format("numbers").mode("append").save()

    def publish(batch: "DataFrame", number: int) -> None:
        batch.write.format("numbers").mode("append").save()

    query = (
        spark.readStream.format("numbers")
        .load()
        .writeStream.foreachBatch(publish)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(DUMP_SECONDS)


def main() -> None:
    """Write the archive; nothing, where Java does not run."""
    target = Path(sys.argv[1]).absolute()
    if not java_runs():
        return
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        made = Path(folder) / "made.jsa"
        os.environ["SPARK_SUBMIT_OPTS"] = f"{SHORT_JOB} {QUIET} -XX:ArchiveClassesAtExit={made}"
        spark = spark_session("classes", "local[2]")
        try:
            work(spark, Path(folder))
            gateway: Any = spark.sparkContext._gateway
        finally:
            end_session(spark)
        gateway.proc.stdin.close()  # Java ends, and writes the archive
        try:
            gateway.proc.wait(DUMP_SECONDS)
        except subprocess.TimeoutExpired:
            gateway.proc.kill()
        if gateway.proc.returncode == 0 and made.exists():
            os.replace(made, target)
        else:
            print("Java wrote no archive of classes: Spark starts without one", file=sys.stderr)


if __name__ == "__main__":
    main()
