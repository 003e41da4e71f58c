"""The stream's reader by itself."""

import pytest
from duolog._errors import UnknownTopic
from duolog.spark._options import ReadOptions
from duolog.spark._plan import Planner
from duolog.spark._schema import SCHEMA
from duolog.spark._streamreader import StreamReader
from duolog.wire import duolog_pb2 as wire
from pyspark.sql.streaming.datasource import ReadAllAvailable


def test_a_careless_stream_waits_while_its_topic_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    stats = [wire.QueueStats(queue_id=0, min_offset=2, max_offset=5)]
    there = True

    def topics(planner: Planner) -> list[wire.TopicReply]:
        if not there:
            raise UnknownTopic("topic 'T' does not exist")
        return [wire.TopicReply(topic="T", group="g", stats=stats)]

    monkeypatch.setattr(Planner, "topics", topics)
    options = {"endpoints": "127.0.0.1:1", "topic": "T", "failOnDataLoss": "false"}
    reader = StreamReader(ReadOptions.of(options, stream=True), SCHEMA)
    end = reader.latestOffset({"T": {"g/0": 2}}, ReadAllAvailable())
    assert end == {"T": {"g/0": 5}}
    there = False
    for _ in range(3):
        assert reader.latestOffset(end, ReadAllAvailable()) == end
    strict = StreamReader(
        ReadOptions.of({**options, "failOnDataLoss": "true"}, stream=True), SCHEMA
    )
    with pytest.raises(UnknownTopic):
        strict.latestOffset(end, ReadAllAvailable())
    reader.stop()
    strict.stop()
