"""The data source itself: what Spark asks first."""

from typing import Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from duolog._errors import BadRequest
from duolog.spark._oneline import one_line
from duolog.spark._options import ReadOptions, WriteOptions, check_load
from duolog.spark._reader import BatchReader
from duolog.spark._schema import SCHEMA, check_schema
from duolog.spark._streamreader import StreamReader
from duolog.spark._writer import BatchWriter, StreamWriter


class DuologDataSource(DataSource):
    """Topics as tables. Options: see `ReadOptions` and `WriteOptions`.

    What `load()` can know is checked there: Spark makes this object then, and asks for the schema
    where the user gave none. A schema of the user's is checked when the read is planned.
    """

    @one_line
    def __init__(self, options: dict[str, str]) -> None:
        """Raises BadRequest for options that suit nothing."""
        super().__init__(options)
        check_load(options)

    @classmethod
    def name(cls) -> str:
        """For `format(...)`."""
        return "duolog"

    @one_line
    def schema(self) -> StructType:
        """All columns; a narrower `.schema(...)` reads only some. Raises BadRequest."""
        check_load(self.options, read=True)
        return SCHEMA

    @one_line
    def reader(self, schema: StructType) -> DataSourceReader:
        """A batch read of some of the columns. Raises BadRequest."""
        return BatchReader(ReadOptions.of(self.options), check_schema(schema))

    # Not in one line: PySpark 4.3 hides an error of this method behind one of its own.
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """A stream of some of the columns. Raises BadRequest."""
        return StreamReader(ReadOptions.of(self.options, stream=True), check_schema(schema))

    @one_line
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """A batch write of rows that are messages. Raises BadRequest."""
        if overwrite:
            raise BadRequest(
                "mode 'overwrite' is not supported: messages cannot be deleted; use mode 'append'"
            )
        return BatchWriter(WriteOptions.of(self.options), schema)

    @one_line
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """A stream of rows that are messages. Raises BadRequest."""
        return StreamWriter(WriteOptions.of(self.options, stream=True), schema)


def register(spark: Any) -> None:
    """Make `format("duolog")` known to a session."""
    spark.dataSource.register(DuologDataSource)
