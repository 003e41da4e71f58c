"""Options of the data source: accepted values, and errors for others. No Spark runs."""

import json
import pickle
import re
import traceback
from pathlib import Path
from typing import Any

import pytest
from duolog import BadRequest, Tls
from duolog._caller import Caller
from duolog.spark import SCHEMA, DuologDataSource, ReadOptions, WriteOptions
from duolog.spark._fetch import client_of
from duolog.spark._plan import Planner, Queue
from duolog.spark._schema import check_schema
from duolog.spark._streamreader import StreamReader
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


def test_times_are_given_by_queue_and_batches_wait_for_a_least_number() -> None:
    table = '{"T": {"0": 17, "broker-a/1": 18}}'
    found = ReadOptions.of(
        {
            **GOOD,
            "startingOffsetsByTimestamp": table,
            "minOffsetsPerTrigger": "500",
            "maxOffsetsPerTrigger": "500",
            "maxTriggerDelay": "2m",
        },
        stream=True,
    )
    assert found.starting_ms == {"T": {"0": 17, "broker-a/1": 18}}
    assert (found.min_offsets, found.trigger_delay) == (500, 120.0)
    batch = ReadOptions.of({**GOOD, "startingTimestamp": "5", "endingOffsetsByTimestamp": table})
    assert (batch.starting_ms, batch.ending_ms) == (5, found.starting_ms)
    stream = ReadOptions.of({**GOOD, "minOffsetsPerTrigger": "1"}, stream=True)
    assert stream.trigger_delay == 900
    for options, words in (
        ({"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"}, "= 9 is above"),
        ({"maxTriggerDelay": "5m"}, "'maxTriggerDelay' needs option 'minOffsetsPerTrigger'"),
        ({"minOffsetsPerTrigger": "1", "maxTriggerDelay": "5"}, "'5' is not a duration"),
        ({"startingOffsetsByTimestamp": table, "startingTimestamp": "1"}, "give one of"),
    ):
        with pytest.raises(BadRequest, match=re.escape(words)):
            ReadOptions.of({**GOOD, **options}, stream=True)


def test_a_star_among_the_tags_is_all_of_them_from_nodes_and_from_files() -> None:
    for tags in ("*", "a,*", ""):
        assert ReadOptions.of({**GOOD, "tags": tags}).tags == ()


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
        ({"startingOffsetsByTimestamp": "latest"}, "'startingOffsetsByTimestamp'"),
        ({"startingOffsetsByTimestamp": '{"T": {"0": -1}}'}, "-1 is not a time"),
        ({"endingOffsetsByTimestamp": "{}", "endingOffsets": "latest"}, "give one of"),
        ({"minPartitions": "-1"}, "'minPartitions'"),
        ({"failOnDataLoss": "maybe"}, "'failOnDataLoss'"),
        ({"localReads": "2"}, "'localReads'"),
        ({"startingOffsets": '{"T": {"0": 1, "0": 2}}'}, "'0' comes twice"),
        ({"startingOffsets": '{"T": {"0": 1}, "T": {"0": 2}}'}, "'T' comes twice"),
        ({"startingOffsets": '{"T": {"x": 1}}'}, "'x' is not a queue"),
        ({"startingOffsets": '{"T": {"-1": 1}}'}, "'-1' is not a queue"),
        ({"startingOffsets": '{"T": {"00": 1}}'}, "'00' is not a queue"),
        ({"startingOffsets": '{"T": {"0": 1.5}}'}, "1.5 is not an offset"),
        ({"startingOffsets": '{"T": {"0": true}}'}, "True is not an offset"),
        ({"startingOffsets": '{"T": {"0": 9223372036854775808}}'}, "is not an offset"),
        ({"endingOffsets": '{"T": {"0": -2}}'}, "T/0 cannot be earliest"),
        (
            {"startingOffsets": '{"T": {"0": 9}}', "endingOffsets": '{"T": {"0": 8}}'},
            "T/0 starts at 9, after its end at 8",
        ),
        ({"startingTimestamp": "9", "endingTimestamp": "8"}, "'startingTimestamp' = 9 is after"),
        ({"topic": " , "}, "'topicPattern'"),
        ({"startingTimestamp": "9223372036854775808"}, "'startingTimestamp'"),
        ({"minPartitions": "9" * 5000}, "'minPartitions'"),
        ({"startingOffsets": "[" * 100_000}, "'startingOffsets': '[[["),
        ({"startingOfsets": "latest"}, "did you mean 'startingOffsets'?"),
    ],
)
def test_invalid_options_are_refused_by_name(more: dict[str, str], named: str) -> None:
    with pytest.raises(BadRequest, match=re.escape(named)):
        ReadOptions.of({**GOOD, **more})
    with pytest.raises(BadRequest, match=re.escape(named)):
        DuologDataSource({**GOOD, **more}).schema()  # as load() does


def test_options_of_reads_streams_and_writes_are_accepted_at_first() -> None:
    for options in (
        {},
        {"endingOffsets": "latest", "tier": "/t"},
        {"maxOffsetsPerTrigger": "5"},
        {"checkpointLocation": "/c", "sinkId": "s"},
        {"sinkId": "s", "batchId": "1", "sinkContents": "rows"},
    ):
        DuologDataSource({**GOOD, **options})
    for options, words in (
        ({"sinkid": "s", "tags": "a"}, "options endpoints, sinkId, tags, topic cannot be combined"),
        ({"tag": "a"}, "option 'tag' is not one of .*did you mean 'tags'"),
        ({"batchId": "1"}, "'batchId' needs option 'sinkId'"),
        ({"batchId": "1", "sinkId": ""}, "'sinkId' is empty"),
        ({"sinkId": "s", "sinkContents": "rows"}, "'sinkId' needs option 'batchId'"),
        ({"timeout": "soon"}, "'timeout'"),
    ):
        with pytest.raises(BadRequest, match=words):
            DuologDataSource({**GOOD, **options})
    with pytest.raises(BadRequest, match="option 'sinkId' is not one of"):
        DuologDataSource({**GOOD, "sinkId": "s"}).schema()


def queue(topic: str, group: str, number: int) -> Queue:
    return Queue(topic, group, number)


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"T": {"0": 1, "1": 2}, "U": {"a/0": 1, "b/0": 2}}, ""),
        ({"T": {"a/0": 1, "a/1": 2}, "U": {"a/0": 1, "b/0": 2}}, ""),
        ({"T": {"0": 1, "1": 2}, "U": {"0": 1}}, "U has several queues 0: give 'a/0' and 'b/0'"),
        ({"T": {"0": 1}, "U": {"a/0": 1, "b/0": 2}}, "does not name T/a/1: it must name every"),
        ({"T": {"0": 1, "1": 2}}, "does not name U/a/0, U/b/0: it"),
        ({"T": {"0": 1, "1": 2, "2": 3}, "U": {"a/0": 1, "b/0": 2}}, "names queue '2' of T"),
        ({"T": {"0": 1, "1": 2}, "U": {"a/0": 1, "c/0": 2}}, "names queue 'c/0' of U"),
        ({"T": {"0": 1, "a/0": 1, "1": 2}, "U": {"a/0": 1, "b/0": 2}}, "both '0' and 'a/0'"),
        ({"T": {"0": 1, "1": 2}, "V": {"0": 1}}, "names topic 'V', which is not read"),
        ({}, "does not name T/a/0, T/a/1, U/a/0 and 1 more"),
    ],
)
def test_offsets_name_exactly_the_queues_that_are_read(table: Any, words: str) -> None:
    queues = [queue("T", "a", 0), queue("T", "a", 1), queue("U", "a", 0), queue("U", "b", 0)]
    names = ("startingOffsets", "endingOffsets")
    for option in (*names, *(f"{name}ByTimestamp" for name in names)):
        given = {"endpoints": "127.0.0.1:1", "topics": "T,U", option: json.dumps(table)}
        planner = Planner(None, ReadOptions.of(given))  # type: ignore[arg-type]
        if not words:
            planner.check_names(queues)
            continue
        with pytest.raises(BadRequest, match=f"option '{option}'.*{re.escape(words)}"):
            planner.check_names(queues)


def test_a_schema_is_some_of_the_columns_in_any_order() -> None:
    schema = types.StructType([SCHEMA["body"], SCHEMA["queue_offset"]])
    assert check_schema(schema) is schema
    for wrong, named in (
        (types.StructField("bodies", types.BinaryType()), "'bodies' is not one of topic"),
        (types.StructField("body", types.StringType()), "'body' has type binary, not string"),
    ):
        with pytest.raises(BadRequest, match=named):
            DuologDataSource(GOOD).reader(types.StructType([wrong]))
    with pytest.raises(BadRequest, match="one of the columns"):
        check_schema(types.StructType([]))


# -- who calls -------------------------------------------------------------------------------------


def test_a_job_calls_as_a_user(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("s3cret\n")
    nobody = ReadOptions.of(GOOD).caller
    assert (nobody, nobody.options()) == (Caller(), {})
    told = {"USER": "alice", "passwordfile": str(file), "tlsCa": "ca.pem", "tlsPort": "8443"}
    for kind in (ReadOptions, WriteOptions):
        caller = kind.of({**GOOD, **told}).caller
        assert caller == Caller("alice", "", str(file), Tls("ca.pem", port=8443))
        assert kind.of({**GOOD, **caller.options()}).caller == caller
        assert caller.with_password() == Caller("alice", "s3cret", "", Tls("ca.pem", port=8443))
    assert ReadOptions.of({**GOOD, "tls": "true"}, stream=True).caller == Caller(tls=Tls())
    assert ReadOptions.of({**GOOD, "tls": "false", "tlsCa": "ca.pem"}).caller == Caller()


def test_tasks_take_a_new_client_where_the_password_changed(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("one")
    options = ReadOptions.of({**GOOD, "user": "alice", "passwordFile": str(file)})
    first = client_of(options)
    assert client_of(options) is first
    file.write_text("two")
    assert client_of(options) is not first
    file.unlink()
    with pytest.raises(BadRequest, match=f"cannot read the password file {file}"):
        client_of(options)


def test_a_stream_takes_a_new_client_where_the_password_changed(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("one")
    options = {**GOOD, "user": "alice", "passwordFile": str(file)}
    reader = StreamReader(ReadOptions.of(options, stream=True), SCHEMA)
    first = reader._asked
    assert reader._asked is first
    file.write_text("two")
    second = reader._asked
    assert second is not first
    assert b"two" not in pickle.dumps(reader)
    reader.stop()
    assert reader._asked is not second
    reader.stop()


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ({"user": "alice"}, "'user'"),
        ({"password": "s3cret"}, "'user'"),
        ({"passwordFile": "f"}, "'user'"),
        ({"user": "alice", "password": "s3cret", "passwordFile": "f"}, "'passwordFile'"),
        ({"user": "a:b", "password": "s3cret"}, "no colon"),
        ({"user": "alice", "password": "s3cret", "tls": "1"}, "'tls'"),
        ({"user": "alice", "password": "s3cret", "tlsPort": "x"}, "'tlsPort'"),
        ({"user": "alice", "password": "s3cret", "tlsCert": "x"}, "'tlsKey'"),
        ({"user": "alice", "pasword": "s3cret"}, "did you mean 'password'"),
        ({"user": "alice", "password": "s3cret", "batchId": "7"}, "'sinkId'"),
    ],
)
def test_what_is_wrong_with_a_user_is_told_without_the_password(
    more: dict[str, str], named: str
) -> None:
    kind = WriteOptions if "batchId" in more else ReadOptions
    with pytest.raises(BadRequest, match=named) as caught:
        kind.of({**GOOD, **more})
    with pytest.raises(BadRequest):
        DuologDataSource({**GOOD, **more})
    assert "s3cret" not in "".join(traceback.format_exception(caught.value))


def test_options_show_no_password() -> None:
    options = {**GOOD, "user": "alice", "password": "s3cret"}
    for made in (ReadOptions.of(options), WriteOptions.of(options), DuologDataSource(options)):
        assert "s3cret" not in repr(made)
        assert "s3cret" not in str(made)
