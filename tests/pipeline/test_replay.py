"""Replaying files and topics: counts, order by key, and what is refused."""

import contextlib
import json
import re
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import duolog.sync
import pytest
from pyspark.sql import SparkSession

from duolog_server.pipeline.errors import BadJob
from duolog_server.pipeline.replay import Replayed, replay
from duolog_server.pipeline.replayname import ReplayDiffers, ReplayName
from duolog_server.pipeline.replayoptions import Replay
from tests.process.support import NodeProcess
from tests.sparkfixtures import Place, read

pytestmark = [pytest.mark.spark, pytest.mark.process]


@pytest.fixture
def rows(tmp_path: Path) -> list[dict[str, Any]]:
    return [
        {"n": k, "who": f"w{k % 7}", "kind": "ab"[k % 2], "at": 1_700_000_000_000 + k}
        for k in range(3000)
    ]


def messages(spark: SparkSession, node: NodeProcess, topic: str) -> list[Any]:
    frame = read(spark, node, topic=topic).load().orderBy("queue_id", "queue_offset")
    return list(frame.collect())


def test_files_of_every_format_are_replayed_in_order_by_key(
    spark: SparkSession, place: Place, rows: list[dict[str, Any]], tmp_path: Path
) -> None:
    node, client, topic = place
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
        again = replay(spark, what)  # the same name: nothing new
        assert (again.rows, again.rows_before, again.batches) == (0, 3000, 0)
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


def test_a_topic_is_replayed_into_another_through_sql(spark: SparkSession, place: Place) -> None:
    node, client, topic = place
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

    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        replay(spark, what, interrupted)
    assert time.monotonic() - began >= 1.0
    assert len(messages(spark, node, topic)) == 2000
    made = replay(spark, what, lambda done, total: told.append((done, total)))
    assert (made.rows, made.rows_before, made.batches) == (1000, 2000, 1)
    assert told[-1] == (3000, 3000)
    found = [int(bytes(message.body)) for message in messages(spark, node, topic)]
    assert sorted(found) == list(range(3000))


def stopped_after(batches: int) -> Callable[[int, int], None]:
    """A progress that stops the replay."""
    left = batches

    def stop(done: int, total: int) -> None:
        nonlocal left
        left -= 1
        if not left:
            raise KeyboardInterrupt

    return stop


def numbers(spark: SparkSession, node: NodeProcess, topic: str) -> list[int]:
    return sorted(json.loads(bytes(m.body))["n"] for m in messages(spark, node, topic))


def written_rows(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    return str(path)


def test_a_name_with_another_parameter_is_refused_and_goes_on_with_its_own(
    spark: SparkSession, place: Place, rows: list[dict[str, Any]], tmp_path: Path
) -> None:
    node, client, topic = place
    path = written_rows(tmp_path / "rows.jsonl", rows)
    client.admin.create_topic(f"{topic}-2", 2)
    what = Replay(node.endpoint, topic, path=path, key="who", order=("n",), rate=1000, name=topic)
    with pytest.raises(KeyboardInterrupt):
        replay(spark, what, stopped_after(1))
    fewer = written_rows(tmp_path / "fewer.jsonl", rows[:-1])
    other = written_rows(tmp_path / "other.jsonl", [*rows[:-1], {**rows[-1], "who": "w9"}])
    changes: list[tuple[dict[str, Any], str, str, str]] = [
        ({"rate": 500.0}, "--rate", "1000", "500"),
        ({"rate": 2000.0}, "--rate", "1000", "2000"),
        ({"rate": 0.0}, "--rate", "1000", "0"),
        ({"topic": f"{topic}-2"}, "--to", topic, f"{topic}-2"),
        ({"key": "kind"}, "--key", "who", "kind"),
        ({"key": ""}, "--key", "who", "(none)"),
        ({"tags": "kind"}, "--tags", "(none)", "kind"),
        ({"time": "at"}, "--time", "(none)", "at"),
        ({"body": "n"}, "--body", "(none)", "n"),
        ({"sql": "SELECT * FROM source"}, "--sql", "(none)", "SELECT * FROM source"),
        ({"order": ("at",)}, "--order", '"n"', '"at"'),
        ({"path": "", "source": topic}, "--from", "(none)", topic),
        ({"path": fewer}, "rows", "3000", "2999"),
        ({"path": other}, "digest of the rows", "", ""),
    ]
    for change, parameter, old, new in changes:
        with pytest.raises(ReplayDiffers, match=re.escape(f"{parameter} = {old}")) as caught:
            replay(spark, replace(what, **change))
        assert caught.value.parameter == parameter
        assert caught.value.new == new or not new
        assert f"{parameter} = {new}" in str(caught.value)
    assert len(messages(spark, node, topic)) == 1000
    assert messages(spark, node, f"{topic}-2") == []
    moved = tmp_path / "elsewhere" / "of-another-machine.json"
    moved.parent.mkdir()
    moved.write_text(Path(path).read_text())
    made = replay(spark, replace(what, path=str(moved)))
    assert (made.rows, made.rows_before, made.batches) == (2000, 1000, 2)
    assert numbers(spark, node, topic) == list(range(3000))
    with pytest.raises(ReplayDiffers, match="--rate = 1000, now it has --rate = 0"):
        replay(spark, replace(what, rate=0))
    assert replay(spark, what).rows == 0


def test_rows_without_an_order_keep_their_numbers_on_another_machine(
    spark: SparkSession, place: Place, rows: list[dict[str, Any]], tmp_path: Path
) -> None:
    """Where Spark splits files follows from its cores and settings."""
    node, client, topic = place
    path = written_rows(tmp_path / "rows.jsonl", rows)
    many = tmp_path / "many"
    many.mkdir()
    for k in range(300):
        written_rows(many / f"{k:03d}.jsonl", rows[k * 10 : k * 10 + 10])
    (many / "empty.jsonl").write_text("")
    setting = "spark.sql.files.maxPartitionBytes"
    usual = spark.conf.get(setting)
    cases = [(path, ()), (str(many), ()), (path, ("kind",)), (str(many), ("kind", "who"))]
    for number, (source, order) in enumerate(cases):
        target = f"{topic}-{number}"
        client.admin.create_topic(target, 1)
        what = Replay(node.endpoint, target, path=source, format="json", name=target)
        what = replace(what, order=order, rate=1e3)
        with pytest.raises(KeyboardInterrupt):
            replay(spark, what, stopped_after(1))
        spark.conf.set(setting, "10000")
        try:
            assert replay(spark, what).rows == 2000
        finally:
            spark.conf.set(setting, str(usual))
        assert numbers(spark, node, target) == list(range(3000))
        if not order:
            found = [json.loads(bytes(m.body))["n"] for m in messages(spark, node, target)]
            assert found == list(range(3000))


def test_concurrent_runs_of_one_name_send_every_row_once(
    spark: SparkSession,
    node: NodeProcess,
    topic: str,
    rows: list[dict[str, Any]],
    tmp_path: Path,
) -> None:
    path = written_rows(tmp_path / "rows.jsonl", rows)
    what = Replay(node.endpoint, topic, path=path, order=("n",), rate=1000, name=topic)
    inner: list[Replayed] = []

    def other_runs(done: int, total: int) -> None:
        if not inner:
            inner.append(replay(spark, what))

    with pytest.raises(BadJob, match=r"another run of replay .* this run sent 1,000 rows"):
        replay(spark, what, other_runs)
    assert (inner[0].rows, inner[0].rows_before) == (2000, 1000)
    assert numbers(spark, node, topic) == list(range(3000))


def test_a_run_that_dies_at_any_step_is_resumed(
    spark: SparkSession,
    node: NodeProcess,
    topic: str,
    rows: list[dict[str, Any]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = written_rows(tmp_path / "rows.jsonl", rows)
    what = Replay(node.endpoint, topic, path=path, rate=1000, name=topic)
    steps = ("settle", "published", "ranges", "_load")
    sent = []
    for step in steps:
        real = getattr(ReplayName, step)

        def dies(*arguments: Any, real: Any = real) -> Any:
            real(*arguments)
            raise KeyboardInterrupt

        monkeypatch.setattr(ReplayName, step, dies)
        with contextlib.suppress(KeyboardInterrupt):
            sent.append(replay(spark, what).rows)
        monkeypatch.undo()
    made = replay(spark, what)
    assert made.rows + made.rows_before == 3000
    assert numbers(spark, node, topic) == list(range(3000))


def test_a_named_replay_of_a_topic_ends_where_the_topic_ended_at_first(
    spark: SparkSession, node: NodeProcess, client: duolog.sync.Client, topic: str
) -> None:
    client.admin.create_topic(f"{topic}-to", 2)
    what = Replay(
        node.endpoint, f"{topic}-to", source=topic, body="body", rate=1000, name=f"{topic}-to"
    )
    with client.producer() as producer:
        producer.send_batch(topic, [b'{"n": %d}' % k for k in range(2500)])
        with pytest.raises(KeyboardInterrupt):
            replay(spark, what, stopped_after(1))
        producer.send_batch(topic, [b'{"n": %d}' % k for k in range(2500, 2600)])
        client.admin.alter_topic(topic, queues=3)
        producer.send(topic, b'{"n": 9999}', queue_id=2)
        assert replay(spark, what).rows == 1500
    assert numbers(spark, node, f"{topic}-to") == list(range(2500))


def test_columns_with_unusual_names_and_nulls_are_replayed(
    spark: SparkSession, place: Place, tmp_path: Path
) -> None:
    node, client, topic = place
    odd = ["a.b", "x y", "q`t", "日本", "_metadata", "struct"]
    rows = [
        {name: f"{name} {k % 3}" if k % 2 else None for name in odd} | {"n": k} for k in range(20)
    ]
    path = written_rows(tmp_path / "odd.jsonl", rows)
    for number, name in enumerate(odd):
        target = f"{topic}-{number}"
        client.admin.create_topic(target, 2)
        what = Replay(node.endpoint, target, path=path, key=name, tags=name, order=(name, "n"))
        assert replay(spark, replace(what, name=target)).rows == 20
        for message in messages(spark, node, target):
            row = json.loads(bytes(message.body))
            assert row == {key: value for key, value in rows[row["n"]].items() if value is not None}
            assert message.tags == row.get(name)
    nothing = tmp_path / "nothing.parquet"
    spark.createDataFrame([], "n INT, k STRING").write.parquet(str(nothing))
    what = Replay(node.endpoint, topic, path=str(nothing), key="k", name=topic)
    for rate in (0.0, 1000.0):
        assert replay(spark, replace(what, rate=rate)).rows == 0
    assert messages(spark, node, topic) == []


def test_invalid_replays_say_why_and_send_nothing(
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
    large, tagged = tmp_path / "large.jsonl", tmp_path / "tagged.jsonl"
    large.write_text('{"a": "x", "b": "x"}\n' * 2000 + f'{{"a": "{"x" * 5_000_000}"}}\n')
    tagged.write_text(f'{{"a": "x", "b": "{"x" * 32_000}"}}\n')
    cases: list[tuple[dict[str, Any], str]] = [
        (
            {"path": str(large), "body": "a", "rate": 1e9},
            "5,000,000 bytes of body.*nothing was sent",
        ),
        (
            {"path": str(tagged), "tags": "b", "name": "t"},
            "32,000 bytes of properties, the limit is",
        ),
        ({"path": str(good), "key": "c"}, "--key: column 'c' is not one of a, b"),
        ({"path": str(good), "order": ("c",)}, "--order: column 'c' is not one of"),
        ({"path": str(good), "time": "b"}, "--time: 'b' has type string"),
        ({"path": str(good), "sql": "SELEC"}, "--sql: "),
        ({"path": str(good), "source": "T"}, "either files"),
        ({}, "either files"),
        ({"path": str(tmp_path / "x.txt")}, "format is not one of"),
        ({"path": str(tmp_path / "none.parquet")}, "cannot read .*none.parquet"),
        ({"path": str(bad)}, "cannot read .*bad.parquet"),
        ({"path": str(good), "rate": -1.0}, "--rate is -1; it must not be negative"),
        ({"path": str(good), "rate": float("nan")}, "--rate is nan"),
        ({"path": str(good), "name": "x" * 300}, "at most 248 printable"),
    ]
    for options, words in cases:
        with pytest.raises(BadJob, match=words):
            replay(spark, Replay(node.endpoint, topic, **options))
    with pytest.raises(Exception, match=part.name):
        replay(spark, Replay(node.endpoint, topic, path=str(torn)))
    assert messages(spark, node, topic) == []
