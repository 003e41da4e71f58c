"""A PySpark data source: `format("duolog")`, for batches and streams.

    spark.read.format("duolog").option("endpoints", "db1:8081").option("topic", "orders").load()

Spark finds it by itself (module `pyspark_duolog`); `register(spark)` does the same for one session.
Needs the extra `duolog[spark]`. Options are named as Spark's Kafka source names them: see
`duolog.spark.ReadOptions` and `duolog.spark.WriteOptions`.
"""

from duolog.spark._options import ReadOptions, WriteOptions
from duolog.spark._plan import DataLoss
from duolog.spark._schema import SCHEMA
from duolog.spark._source import DuologDataSource, register
from duolog.spark._streamreader import behind_latest

__all__ = [
    "SCHEMA",
    "DataLoss",
    "DuologDataSource",
    "ReadOptions",
    "WriteOptions",
    "behind_latest",
    "register",
]
