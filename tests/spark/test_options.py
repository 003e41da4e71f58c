"""Options of the data source: what is understood, and how the rest is refused. No Spark runs."""

import pytest
from duolog import BadRequest
from duolog.spark import SCHEMA, DuologDataSource, ReadOptions
from duolog.spark._schema import check_schema
from pyspark.sql import types

GOOD = {"endpoints": "127.0.0.1:1", "topic": "T"}


def test_names_are_not_case_sensitive_and_values_are_typed() -> None:
    found = ReadOptions.of(
        {
            "ENDPOINTS": "a:1,b:2",
            "topics": "T, U",
            "startingOffsets": '{"T": {"0": 17, "broker-a/1": -2}, "U": {"0": -1}}',
            "endingTimestamp": "1700000000000",
            "minPartitions": "8",
            "failOnDataLoss": "False",
            "tags": "a,b",
        }
    )
    assert found.topics == ("T", "U")
    assert found.starting == {"T": {"0": 17, "broker-a/1": "earliest"}, "U": {"0": "latest"}}
    assert (found.ending, found.ending_ms) == ("latest", 1_700_000_000_000)
    assert (found.min_partitions, found.fail_on_data_loss, found.tags) == (8, False, ("a", "b"))


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ({"startingOffset": "earliest"}, "'startingOffset'"),
        ({"endpoints": ""}, "'endpoints'"),
        ({"topics": "U"}, "'topicPattern'"),
        ({"topic": ""}, "'topicPattern'"),
        ({"topic": "", "topicPattern": "("}, "'topicPattern'"),
        ({"startingOffsets": "first"}, "'startingOffsets'"),
        ({"startingOffsets": '{"T": 5}'}, "'startingOffsets'"),
        ({"startingOffsets": '{"T": {"0": "x"}}'}, "'startingOffsets'"),
        ({"startingOffsets": '{"T": {"0": -3}}'}, "'startingOffsets'"),
        ({"endingOffsets": "[1]"}, "'endingOffsets'"),
        ({"endingOffsets": "earliest"}, "'endingOffsets'"),
        ({"startingOffsets": "latest", "startingTimestamp": "5"}, "'startingTimestamp'"),
        ({"startingTimestamp": "yesterday"}, "'startingTimestamp'"),
        ({"minPartitions": "-1"}, "'minPartitions'"),
        ({"failOnDataLoss": "maybe"}, "'failOnDataLoss'"),
        ({"localReads": "2"}, "'localReads'"),
    ],
)
def test_what_cannot_be_meant_is_refused_by_name(more: dict[str, str], named: str) -> None:
    with pytest.raises(BadRequest, match=named):
        ReadOptions.of({**GOOD, **more})


def test_a_schema_is_some_of_the_columns_in_any_order() -> None:
    schema = types.StructType([SCHEMA["body"], SCHEMA["queue_offset"]])
    assert check_schema(schema) is schema
    for wrong, named in (
        (types.StructField("bodies", types.BinaryType()), "'bodies' is none of topic"),
        (types.StructField("body", types.StringType()), "'body' has type binary, not string"),
    ):
        with pytest.raises(BadRequest, match=named):
            DuologDataSource(GOOD).reader(types.StructType([wrong]))
    with pytest.raises(BadRequest, match="some of the columns"):
        check_schema(types.StructType([]))
