"""The table that a read returns, and the selection of its columns."""

from pyspark.sql import types

from duolog._errors import BadRequest

SCHEMA = types.StructType(
    [
        types.StructField("topic", types.StringType()),
        types.StructField("queue_id", types.IntegerType()),
        types.StructField("queue_offset", types.LongType()),
        types.StructField("offset", types.LongType()),  # in the commit log
        types.StructField("tags", types.StringType()),
        types.StructField("keys", types.ArrayType(types.StringType())),
        types.StructField("properties", types.MapType(types.StringType(), types.StringType())),
        types.StructField("body", types.BinaryType()),
        types.StructField("born_time", types.TimestampType()),
        types.StructField("store_time", types.TimestampType()),
        types.StructField("flag", types.IntegerType()),
        types.StructField("reconsume_times", types.IntegerType()),
    ]
)
_TYPES = {column.name: column.dataType for column in SCHEMA.fields}


def check_schema(schema: types.StructType) -> types.StructType:
    """A schema of some of the columns, in any order. Raises BadRequest."""
    for column in schema.fields:
        wanted = _TYPES.get(column.name)
        if wanted is None:
            raise BadRequest(f"column {column.name!r} is not one of {', '.join(_TYPES)}")
        if column.dataType != wanted:
            raise BadRequest(
                f"column {column.name!r} has type {wanted.simpleString()}, not "
                f"{column.dataType.simpleString()}"
            )
    if not len(schema):
        raise BadRequest(f"a schema needs at least one of the columns {', '.join(_TYPES)}")
    return schema
