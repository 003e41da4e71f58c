"""A PySpark data source: `spark.read.format("duolog")`.

    spark.read.format("duolog").option("endpoints", "db1:8081").option("topic", "orders").load()

Spark finds it by itself (module `pyspark_duolog`); `register(spark)` does the same for one session.
Needs the extra `duolog[spark]`. Options are named as Spark's Kafka source names them: see
`duolog.spark.ReadOptions`.
"""

from duolog.spark._options import ReadOptions
from duolog.spark._schema import SCHEMA
from duolog.spark._source import DuologDataSource, register

__all__ = ["SCHEMA", "DuologDataSource", "ReadOptions", "register"]
