"""The stream's reader by itself."""

import json
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from duolog._descriptions import QueueStats, TopicDescription
from duolog._errors import BadRequest, UnknownTopic
from duolog.spark._options import ReadOptions
from duolog.spark._plan import DataLoss, Planner, Queue
from duolog.spark._schema import SCHEMA
from duolog.spark._streamreader import StreamReader, shares
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadAllAvailable

PLACES = st.dictionaries(
    st.integers(0, 40).map(lambda number: Queue("T", "g", number)),
    st.integers(1, 10**12) | st.integers(1, 5),
    min_size=1,
)


@given(PLACES, st.integers(1, 10**6))
def test_every_queue_has_a_share_of_the_total_limit(wanted: dict[Queue, int], most: int) -> None:
    found = shares(wanted, most)
    assert found.keys() == wanted.keys()
    assert all(1 <= count <= wanted[queue] for queue, count in found.items())
    total = sum(wanted.values())
    assert sum(found.values()) == max(min(most, total), len(wanted))


def reader_of(
    monkeypatch: pytest.MonkeyPatch, there: dict[str, tuple[int, int]], **more: str
) -> Any:
    """A stream's reader of a cluster whose topics are what a dictionary says now."""

    def topics(planner: Planner) -> list[TopicDescription]:
        options = planner._options
        if missing := set(options.topics) - there.keys():
            raise UnknownTopic(f"topic {min(missing)!r} does not exist")
        return left(planner)

    def left(planner: Planner) -> list[TopicDescription]:
        return [
            TopicDescription(
                topic=name,
                group="g",
                queues=1,
                stats=(QueueStats(queue_id=0, min_offset=low, max_offset=high),),
            )
            for name, (low, high) in sorted(there.items())
        ]

    monkeypatch.setattr(Planner, "topics", topics)
    monkeypatch.setattr(Planner, "topics_left", left)
    options = {"endpoints": "127.0.0.1:1", "topics": "T,U", **more}
    return StreamReader(ReadOptions.of(options, stream=True), SCHEMA)


def test_a_careless_stream_goes_on_after_a_restart_though_a_topic_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    there = {"T": (0, 9)}
    checkpoint = {"T": {"g/0": 4}, "U": {"g/0": 7}}
    careless = reader_of(monkeypatch, there, failOnDataLoss="false")
    end = careless.latestOffset(checkpoint, ReadAllAvailable())
    assert end == {"T": {"g/0": 9}, "U": {"g/0": 7}}
    (part,) = careless.partitions(checkpoint, end)
    assert [(p.queue.topic, p.start, p.end) for p in part.parts] == [("T", 4, 9)]
    there.clear()
    alone = reader_of(monkeypatch, there, failOnDataLoss="false", topics="T")
    assert alone.latestOffset(end, ReadAllAvailable()) == end
    strict = reader_of(monkeypatch, there)
    with pytest.raises(UnknownTopic):
        strict.latestOffset(checkpoint, ReadAllAvailable())
    for reader in (careless, alone, strict):
        reader.stop()


def test_a_first_micro_batch_that_is_repeated_has_the_same_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Spark requests the stream's beginning again, which has moved by then."""
    there = {"T": (0, 5), "U": (0, 0)}
    first = reader_of(monkeypatch, there)
    start = first.initialOffset()  # the latest
    assert start == {"T": {"g/0": 5}, "U": {"g/0": 0}}
    there["T"] = (0, 8)
    end = first.latestOffset(start, ReadAllAvailable())
    assert first.latestOffset(end, ReadAllAvailable()) == end
    there["T"] = (0, 20)
    again = reader_of(monkeypatch, there)
    for begun in (start, again.initialOffset()):
        (part,) = again.partitions(begun, json.loads(json.dumps(end)))
        assert [(p.start, p.end) for p in part.parts] == [(5, 8)]
    following = again.latestOffset(end, ReadAllAvailable())
    assert following == {"T": {"g/0": 20}, "U": {"g/0": 0}}
    there["T"] = (6, 20)
    with pytest.raises(DataLoss, match="no longer has messages 5 to 5"):
        reader_of(monkeypatch, there).partitions(again.initialOffset(), end)


def test_a_stream_that_finds_nothing_keeps_where_it_began(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first micro-batch is empty: Spark keeps the end of each."""
    there = {"T": (0, 5), "U": (0, 0)}
    first = reader_of(monkeypatch, there)
    start = first.initialOffset()
    end = first.latestOffset(start, ReadAllAvailable())
    assert end != start
    assert first.partitions(start, end) == []
    assert first.latestOffset(end, ReadAllAvailable()) == end
    there["T"] = (0, 7)
    again = reader_of(monkeypatch, there)
    (part,) = again.partitions(end, again.latestOffset(end, ReadAllAvailable()))
    assert [(p.start, p.end) for p in part.parts] == [(5, 7)]


def test_a_careless_stream_waits_while_its_topic_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    stats = QueueStats(queue_id=0, min_offset=2, max_offset=5)
    there = True

    def topics(planner: Planner) -> list[TopicDescription]:
        if not there:
            raise UnknownTopic("topic 'T' does not exist")
        return [TopicDescription(topic="T", group="g", queues=1, stats=(stats,))]

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


class Clock:
    """Time that passes where somebody sleeps."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)
        monkeypatch.setattr(time, "sleep", self.sleep)

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_few_messages_wait_for_more_and_no_longer_than_the_delay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    there = {"T": (0, 0), "U": (0, 0)}
    clock = Clock(monkeypatch)
    options = {"minOffsetsPerTrigger": "10", "maxTriggerDelay": "90s"}
    reader = reader_of(monkeypatch, there, **options)

    def batch(start: dict[str, Any], found: int) -> dict[str, Any]:
        there["T"] = (0, found)
        return dict(reader.latestOffset(start, ReadAllAvailable()))

    first = batch({"T": {"g/0": 0}, "U": {"g/0": 0}}, 3)
    assert first["T"] == {"g/0": 3}  # nothing is known of a batch before it
    assert batch(first, 12) == first
    second = batch(first, 13)
    assert second["T"] == {"g/0": 13}
    clock.sleep(89)
    assert batch(second, 14) == second
    clock.sleep(1)
    assert batch(second, 14)["T"] == {"g/0": 14}
    ending = reader_of(monkeypatch, there, **options)
    ending._batch_at = clock.now
    ending.prepareForTriggerAvailableNow()
    assert ending.latestOffset(second, ReadAllAvailable())["T"] == {"g/0": 14}


def masters(monkeypatch: pytest.MonkeyPatch, ends: Callable[[], dict[str, int]]) -> None:
    """What masters say of the ends of topics; of those left out there is no master."""

    def say(planner: Planner, queues: set[Queue]) -> dict[Queue, int]:
        return {queue: ends()[queue.topic] for queue in queues if queue.topic in ends()}

    monkeypatch.setattr(Planner, "ends_on_masters", say)


def test_a_log_that_ends_before_the_read_offset_is_reported_or_read_from_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A node came back with an older copy: new messages would be taken for those already read."""
    there = {"T": (0, 6), "U": (0, 7)}
    checkpoint = {"T": {"g/0": 9}, "U": {"g/0": 7}}
    masters(monkeypatch, lambda: {"T": 6})
    clock = Clock(monkeypatch)
    strict = reader_of(monkeypatch, there, timeout="20")
    with pytest.raises(DataLoss, match="T/0 no longer has messages 6 to 8"):
        strict.latestOffset(checkpoint, ReadAllAvailable())
    assert 20 <= clock.now < 30
    careless = reader_of(monkeypatch, there, failOnDataLoss="false")
    end = careless.latestOffset(checkpoint, ReadAllAvailable())
    assert end == {"T": {"g/0": 6}, "U": {"g/0": 7}}
    assert careless.partitions(checkpoint, end) == []
    there["T"] = (0, 8)
    following = careless.latestOffset(end, ReadAllAvailable())
    (part,) = careless.partitions(end, following)
    assert [(p.queue.topic, p.start, p.end) for p in part.parts] == [("T", 6, 8)]


def test_a_lagging_node_does_not_move_a_stream_back(monkeypatch: pytest.MonkeyPatch) -> None:
    there = {"T": (0, 6), "U": (0, 7)}
    checkpoint = {"T": {"g/0": 9}, "U": {"g/0": 7}}
    clock = Clock(monkeypatch)
    reader = reader_of(monkeypatch, there)
    masters(monkeypatch, dict)  # nobody leads: a slave answers
    assert reader.latestOffset(checkpoint, ReadAllAvailable()) == checkpoint
    assert clock.now == 0
    masters(monkeypatch, lambda: {"T": 6 if clock.now < 3 else 9})  # it was elected just now
    assert reader.latestOffset(checkpoint, ReadAllAvailable()) == checkpoint
    assert 3 <= clock.now < 4


@pytest.mark.parametrize("strict", ["true", "false"])
def test_progress_on_a_deleted_topic_is_committed_nowhere(
    monkeypatch: pytest.MonkeyPatch, strict: str
) -> None:
    """A topic of a pattern was deleted: the others continue."""
    there = {"T": (0, 9)}
    said: list[dict[Any, int]] = []

    class Admin:
        def commit(self, group: str, offsets: dict[Any, int], *, forward: bool) -> None:
            if any(topic not in there for topic, _, _ in offsets):
                raise UnknownTopic("a topic does not exist")
            said.append(offsets)

    reader = reader_of(monkeypatch, there, topics="T", group="readers", failOnDataLoss=strict)
    reader._client = SimpleNamespace(admin=Admin())
    checkpoint = {"T": {"g/0": 4}, "U": {"g/0": 7}}
    end = reader.latestOffset(checkpoint, ReadAllAvailable())
    assert end == {"T": {"g/0": 9}, "U": {"g/0": 7}}
    assert said == [{("T", "g", 0): 4}]
    if strict == "false":  # deleted, and nothing newer is known of it
        there.clear()
        assert reader.latestOffset(end, ReadAllAvailable()) == end
        assert len(said) == 1


def test_progress_on_a_queue_that_moved_is_committed_once_its_group_has_come_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The stream reads it at once; that its group has not come to it hinders nothing."""
    said: list[tuple[dict[Any, int], bool]] = []
    come = False

    class Admin:
        def commit(self, group: str, offsets: dict[Any, int], *, forward: bool) -> None:
            if not come and any(queue_id == 1 for _, _, queue_id in offsets):
                raise BadRequest("group readers has not come to T/1 yet")
            said.append((offsets, forward))

    reader = reader_of(monkeypatch, {}, topics="T", group="readers")
    rows = QueueStats(0, 0, 4), QueueStats(1, 4, 9)  # the second one moved here
    found = [TopicDescription(topic="T", group="g", queues=1, stats=rows)]
    monkeypatch.setattr(Planner, "topics", lambda planner: found)
    reader._client = SimpleNamespace(admin=Admin())
    end = reader.latestOffset({"T": {"g/0": 4}}, ReadAllAvailable())
    assert end == {"T": {"g/0": 4, "g/1": 4}}
    end = reader.latestOffset(end, ReadAllAvailable())
    assert end == {"T": {"g/0": 4, "g/1": 9}}
    assert said == [({("T", "g", 0): 4}, False), ({("T", "g", 0): 4}, True)]
    come = True
    reader.latestOffset(end, ReadAllAvailable())
    assert said[2:] == [({("T", "g", 0): 4}, True), ({("T", "g", 1): 9}, True)]
    reader.latestOffset(end, ReadAllAvailable())
    assert len(said) == 4, "all of it is said"
