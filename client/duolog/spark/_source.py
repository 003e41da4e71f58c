"""The data source itself: what Spark asks first."""

from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader
from pyspark.sql.types import StructType

from duolog.spark._options import ReadOptions
from duolog.spark._reader import BatchReader
from duolog.spark._schema import SCHEMA, check_schema


class DuologDataSource(DataSource):
    """Topics as tables. Options: see `ReadOptions`."""

    @classmethod
    def name(cls) -> str:
        """For `format(...)`."""
        return "duolog"

    def schema(self) -> StructType:
        """All columns; a narrower `.schema(...)` reads only some."""
        ReadOptions.of(self.options)
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        """A batch read of some of the columns. Raises BadRequest."""
        return BatchReader(ReadOptions.of(self.options), check_schema(schema))


def register(spark: Any) -> None:
    """Make `format("duolog")` known to a session."""
    spark.dataSource.register(DuologDataSource)
