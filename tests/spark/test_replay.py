"""Replaying files and topics: counts, order by key, and what is refused."""

import json
import time
from pathlib import Path
from typing import Any

import duolog.sync
import pytest
from pyspark.sql import SparkSession

from pipeline.errors import BadJob
from pipeline.replay import Replay, replay
from tests.process.support import NodeProcess
from tests.spark.conftest import read

pytestmark = [pytest.mark.spark, pytest.mark.process, pytest.mark.timeout(180)]


@pytest.fixture
def rows(tmp_path: Path) -> list[dict[str, Any]]:
    return [
        {"n": k, "who": f"w{k % 7}", "kind": "ab"[k % 2], "at": 1_700_000_000_000 + k}
        for k in range(3000)
    ]


def messages(spark: SparkSession, node: NodeProcess, topic: str) -> list[Any]:
    frame = read(spark, node, topic=topic).load().orderBy("queue_id", "queue_offset")
    return list(frame.collect())


def test_files_of_each_format_with_order_by_key(
    spark: SparkSession,
    node: NodeProcess,
    client: duolog.sync.Client,
    topic: str,
    rows: list[dict[str, Any]],
    tmp_path: Path,
) -> None:
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    frame = spark.read.json(str(tmp_path / "rows.jsonl"))
    frame.repartition(5).write.parquet(str(tmp_path / "rows.parquet"))
    frame.write.option("header", "true").csv(str(tmp_path / "rows.csv"))
    for number, name in enumerate(("rows.jsonl", "rows.parquet", "rows.csv")):
        target = f"{topic}-{number}"
        client.admin.create_topic(target, 3)
        what = Replay(
            node.endpoint,
            target,
            path=str(tmp_path / name),
            key="who",
            tags="kind",
            time="at",
            order=("n",),
            name=target,
        )
        assert replay(spark, what).rows == 3000
        replay(spark, what)  # the same name: nothing new
        found = messages(spark, node, target)
        bodies = [json.loads(bytes(message.body)) for message in found]
        assert sorted(body["n"] for body in bodies) == list(range(3000))
        for who in range(7):
            mine = [m for m, b in zip(found, bodies, strict=True) if b["who"] == f"w{who}"]
            assert len({message.queue_id for message in mine}) == 1
            numbers = [json.loads(bytes(message.body))["n"] for message in mine]
            assert numbers == list(range(who, 3000, 7))
        first = found[0]
        body = bodies[0]
        assert (first.tags, first["keys"]) == (body["kind"], [body["who"]])
        assert int(first.properties["EVENT_TIME"]) == body["at"]


def test_a_topic_into_another_with_sql(
    spark: SparkSession, node: NodeProcess, client: duolog.sync.Client, topic: str
) -> None:
    with client.producer() as producer:
        producer.send_batch(topic, [b"%d" % k for k in range(100)], tags="t")
    client.admin.create_topic(f"{topic}-to", 1)
    sql = "SELECT concat('<', body, '>') AS text, tags FROM source WHERE int(body) % 10 = 0"
    what = Replay(node.endpoint, f"{topic}-to", source=topic, sql=sql, body="text", tags="tags")
    assert replay(spark, what).rows == 10
    found = messages(spark, node, f"{topic}-to")
    assert sorted(bytes(m.body) for m in found) == sorted(b"<%d>" % k for k in range(0, 100, 10))
    assert {message.tags for message in found} == {"t"}


def test_a_rate_is_kept_and_an_interrupted_replay_goes_on(
    spark: SparkSession,
    node: NodeProcess,
    topic: str,
    rows: list[dict[str, Any]],
    tmp_path: Path,
) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    what = Replay(
        node.endpoint, topic, path=str(path), body="n", order=("n",), rate=1000, name=topic
    )
    told: list[tuple[int, int]] = []

    def interrupted(done: int, total: int) -> None:
        told.append((done, total))
        if len(told) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        replay(spark, what, interrupted)
    assert len(messages(spark, node, topic)) == 2000
    began = time.monotonic()
    made = replay(spark, what, lambda done, total: told.append((done, total)))
    assert time.monotonic() - began >= 2.0
    assert (made.rows, made.batches) == (3000, 3)
    assert told[-1] == (3000, 3000)
    found = [int(bytes(message.body)) for message in messages(spark, node, topic)]
    assert sorted(found) == list(range(3000))


def test_replays_that_are_wrong_say_why_and_send_nothing(
    spark: SparkSession, node: NodeProcess, topic: str, tmp_path: Path
) -> None:
    good, bad = tmp_path / "good.jsonl", tmp_path / "bad.parquet"
    good.write_text('{"a": 1, "b": "x"}\n')
    bad.write_bytes(b"PAR1 this is no Parquet file PAR1")
    torn = tmp_path / "torn.parquet"
    spark.range(1000).write.parquet(str(torn))
    part = next(torn.glob("part-*.parquet"))
    data = bytearray(part.read_bytes())
    data[20:200] = bytes(180)
    part.write_bytes(data)
    (torn / f".{part.name}.crc").unlink(missing_ok=True)
    cases: list[tuple[dict[str, Any], str]] = [
        ({"path": str(good), "key": "c"}, "--key: 'c' is none of a, b"),
        ({"path": str(good), "order": ("c",)}, "--order: 'c' is none of"),
        ({"path": str(good), "time": "b"}, "--time: 'b' has type string"),
        ({"path": str(good), "sql": "SELEC"}, "--sql: "),
        ({"path": str(good), "source": "T"}, "one of the two"),
        ({}, "one of the two"),
        ({"path": str(tmp_path / "x.txt")}, "format is none of"),
        ({"path": str(tmp_path / "none.parquet")}, "none.parquet cannot be read"),
        ({"path": str(bad)}, "bad.parquet cannot be read"),
        ({"path": str(good), "rate": -1.0}, "--rate -1: not negative"),
    ]
    for options, words in cases:
        with pytest.raises(BadJob, match=words):
            replay(spark, Replay(node.endpoint, topic, **options))
    with pytest.raises(Exception, match=part.name):
        replay(spark, Replay(node.endpoint, topic, path=str(torn)))
    assert messages(spark, node, topic) == []
