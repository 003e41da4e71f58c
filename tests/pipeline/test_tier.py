"""Tiering: sealed segments as Parquet, committed once, read as one table with the node."""

import contextlib
import json
import os
import random
import re
import shutil
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import duolog.sync
import pytest
from duolog import BadRequest
from duolog.spark import SCHEMA
from duolog.spark._plan import QueueRange
from duolog.spark._tier import MANIFEST, Tier, read_manifest
from duolog.spark._tierfile import TierDamaged, file_crc32, read_tier
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import to_arrow_schema

from duolog_server.pipeline import tierarchive
from duolog_server.pipeline.errors import BadJob
from duolog_server.pipeline.logidentity import identity_of
from duolog_server.pipeline.segments import segments_of
from duolog_server.pipeline.tier import TierJob, tier, tier_segment
from duolog_server.pipeline.tierarchive import Archive
from duolog_server.store.offsets import QueueOffset
from duolog_server.store.reader import Wanted
from tests.pipeline.test_audit import flip, records
from tests.process.support import NodeProcess
from tests.sparkfixtures import read
from tests.support import NOW, open_store, options, put_ok

pytestmark = [pytest.mark.spark, pytest.mark.process]

DAY = 86_400_000
SEGMENT = 128 << 10
# As tests/conformance's nodes have them, but for the log's segments.
NODE = (
    "--set", f"store.mapped_file_size_commit_log={SEGMENT}",
    "--set", "store.mapped_file_size_consume_queue=1000",
    "--set", "store.max_hash_slot_num=500",
    "--set", "store.max_index_num=2000",
    "--set", "store.max_message_size=4096",
)  # fmt: skip
CHOSEN = options(mapped_file_size_commit_log=SEGMENT, max_index_num=2000, max_hash_slot_num=500)
TOPICS = ("orders", "a%b")


def fill(path: Path, seed: int = 3) -> None:
    dice = random.Random(seed)
    store = open_store(path, CHOSEN)
    for k in range(120):
        bodies = [dice.randbytes(dice.randrange(1, 400)) for _ in range(20)]
        texts = [f"KEYS\x01k{k} x\x02TAGS\x01t{n % 3}\x02p\x01v{n}".encode() for n in range(20)]
        now = NOW + k * DAY // 50
        topic = TOPICS[k % 2]
        put_ok(store, bodies, topic, k % 3, properties=texts, now=now)
    store.shutdown()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    fill(tmp_path / "data")
    return tmp_path / "data"


def tiered(spark: SparkSession, out: Path) -> Counter[Any]:
    frame = spark.read.parquet(str(out)).select("topic", "queue_id", "queue_offset", "body")
    return Counter((r.topic, r.queue_id, r.queue_offset, bytes(r.body)) for r in frame.collect())


def stored(directory: Path) -> dict[Any, int]:
    """Every message, and the segment it lies in."""
    store = open_store(directory, CHOSEN)
    found = {}
    for topic in TOPICS:
        for queue_id in range(3):
            offset = 0
            while (
                result := store.get(topic, queue_id, QueueOffset(offset), Wanted(1000, 1 << 20))
            ).count:
                for numbers, body, _ in result.rows():
                    found[topic, queue_id, numbers[0], body] = numbers[1] // SEGMENT
                offset = result.next_offset
    store.shutdown()
    return found


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """Where an archive is made."""
    return tmp_path / "out"


def test_sealed_segments_by_topic_and_day_once(
    out: Path, spark: SparkSession, directory: Path
) -> None:
    known = stored(directory)
    last = max(known.values())
    made = tier(spark, directory, out)
    assert len(made) == last >= 3
    assert not any(one.before for one in made)
    expected = Counter(key for key, segment in known.items() if segment < last)
    assert tiered(spark, out) == expected
    assert sum(one.rows for one in made) == sum(expected.values())
    frame = spark.read.parquet(str(out))
    days = {str(row.day) for row in frame.select("day").distinct().collect()}
    assert days == {f"2023-11-{day}" for day in range(14, 18)}
    (wrong,) = frame.selectExpr("count_if(to_date(store_time) <> day)").collect()[0]
    assert wrong == 0
    row = frame.where("topic = 'orders' AND queue_offset = 0 AND queue_id = 0").collect()[0]
    assert (row.tags, row["keys"], row.properties["p"]) == ("t0", ["k0", "x"], "v0")
    assert all(one.before for one in tier(spark, directory, out))
    assert tiered(spark, out) == expected


def test_a_job_that_dies_at_any_step_is_repeated_without_loss_or_duplicates(
    spark: SparkSession, directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = stored(directory)
    last = max(known.values())
    segments = segments_of(directory)[:last]
    out = tmp_path / "out"
    real = {name: getattr(os, name) for name in ("replace", "open")}
    steps, dies_at = 0, 0

    def counted(name: str) -> Any:
        def call(*args: Any, **how: Any) -> Any:
            nonlocal steps
            steps += 1
            if steps == dies_at:
                raise KeyboardInterrupt
            return real[name](*args, **how)

        return call

    class Os:
        """As the module, but for the steps that count."""

        replace = staticmethod(counted("replace"))
        open = staticmethod(counted("open"))
        close, fsync, O_RDONLY, O_RDWR, O_CREAT = (
            os.close, os.fsync, os.O_RDONLY, os.O_RDWR, os.O_CREAT,
        )  # fmt: skip

    identity = identity_of(directory, segments_of(directory), 1 << 62).part()
    Archive(out, "broker-a").settle(identity)
    monkeypatch.setattr(tierarchive, "os", Os)
    for segment in segments:
        dies_at = 1
        while True:
            steps = 0
            try:
                tier_segment(TierJob(segment, str(out), "broker-a", "zstd", identity))
                break
            except KeyboardInterrupt:
                dies_at += 1 if segment is segments[0] else 5
        assert dies_at > 6
    monkeypatch.undo()
    assert all(one.before for one in tier(spark, directory, out))
    assert tiered(spark, out) == Counter(k for k, s in known.items() if s < last)
    assert not (out / "_staging").exists()


def test_tier_and_node_are_one_table(spark: SparkSession, directory: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    known = Counter(stored(directory).keys())
    tier(spark, directory, out)
    names = sorted((directory / "commitlog").iterdir())
    for path in names[:2]:  # as retention does
        path.unlink()
    node = NodeProcess(directory, *NODE)
    node.start()
    try:
        with duolog.sync.Client(node.endpoint) as client, client.producer() as producer:
            receipt = producer.send("orders", b"new", queue_id=1)
        known["orders", 1, receipt.queue_offset, b"new"] += 1

        def rows(**how: Any) -> Counter[Any]:
            frame = read(spark, node, **{"topics": ",".join(TOPICS), "tier": out, **how}).load()
            chosen = frame.select("topic", "queue_id", "queue_offset", "body")
            return Counter(
                (r.topic, r.queue_id, r.queue_offset, bytes(r.body)) for r in chosen.collect()
            )

        assert rows() == known
        tagged = read(spark, node, topics=",".join(TOPICS), tier=out, tags="t1").load()
        assert tagged.count() == 120 * 7
        start = '{"orders": {"0": 30, "1": 30, "2": 30}}'
        assert rows(topics="orders", startingOffsets=start) == Counter(
            key for key in known if key[0] == "orders" and key[2] >= 30
        )
        assert read(spark, node, topics="orders").load().count() < 1000
        with pytest.raises(Exception, match=r"option .tier.: .* has no _manifest"):
            rows(tier=tmp_path)
        (out / "_manifest" / "broker-a" / f"{names[0].name}.json").write_text("{}")
        with pytest.raises(Exception, match="is not a valid manifest"):
            rows()
    finally:
        assert node.stop() == 0


def test_untiered_data_is_reported(spark: SparkSession, directory: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    offset, size = records(directory)[10]
    shutil.copytree(directory, tmp_path / "damaged")
    flip(tmp_path / "damaged", offset + size // 2)
    with pytest.raises(Exception, match="has no valid record at"):
        tier(spark, tmp_path / "damaged", out)
    assert not list(out.glob("_manifest/*/00000000000000000000.json"))
    (tmp_path / "file").write_text("")
    with pytest.raises(BadJob, match="is not a directory"):
        tier(spark, directory, tmp_path / "file")


def manifest(out: Path, number: int = 0) -> Path:
    return sorted((out / MANIFEST / "broker-a").glob("*.json"))[number]


def test_another_stores_segments_are_refused_with_both_identities(
    out: Path, spark: SparkSession, directory: Path, tmp_path: Path
) -> None:
    tier(spark, directory, out)
    before = tiered(spark, out)
    fill(tmp_path / "other", seed=4)
    refusal = r"holds another log for group 'broker-a': it has record \w{32} at 0, .* \w{32} at 0"
    with pytest.raises(BadJob, match=refusal):
        tier(spark, tmp_path / "other", out)
    assert tiered(spark, out) == before
    # Nor where no segment is known of both.
    early, later = tmp_path / "early", tmp_path / "other" / "commitlog"
    shutil.copytree(directory, early)
    for path in sorted((early / "commitlog").iterdir())[2:]:
        path.unlink()
    tier(spark, early, tmp_path / "few")
    for path in sorted(later.iterdir())[:-2]:
        path.unlink()
    with pytest.raises(BadJob, match="no epoch and no first record of a segment in common"):
        tier(spark, tmp_path / "other", tmp_path / "few")
    assert len(tier(spark, tmp_path / "other", out, "broker-b")) == 1  # of its own


def test_a_log_goes_on_where_retention_took_all_that_was_tiered(
    out: Path, spark: SparkSession, directory: Path, tmp_path: Path
) -> None:
    """The first record of the next segment, or an epoch, connects one run with the other."""
    last = sorted((directory / "commitlog").iterdir())[-2:]
    shutil.copytree(directory, tmp_path / "early")
    for path in last[1:]:
        (tmp_path / "early" / "commitlog" / path.name).unlink()
    assert len(tier(spark, tmp_path / "early", out)) >= 2
    for path in sorted((directory / "commitlog").iterdir())[:-2]:
        path.unlink()
    made = tier(spark, directory, out)
    assert [(one.segment, one.before) for one in made] == [(last[0].name, False)]


def test_two_jobs_side_by_side_write_each_segment_once(
    out: Path, spark: SparkSession, directory: Path
) -> None:
    known = stored(directory)
    last = max(known.values())
    with ThreadPoolExecutor(4) as pool:
        jobs = [
            pool.submit(tier, spark, directory, out, "broker-a", compression)
            for compression in ("zstd", "snappy", "none", "zstd")
        ]
        made = [job.result() for job in jobs]
    assert tiered(spark, out) == Counter(key for key, segment in known.items() if segment < last)
    for number in range(last):
        assert [job[number].before for job in made].count(False) == 1
    assert list(verified(out)) == []


def test_of_two_stores_that_begin_an_archive_at_once_one_is_refused(
    spark: SparkSession, directory: Path, tmp_path: Path
) -> None:
    fill(tmp_path / "other", seed=4)
    out = tmp_path / "out"
    with ThreadPoolExecutor(2) as pool:
        jobs = [pool.submit(tier, spark, each, out) for each in (directory, tmp_path / "other")]
    failed = [job for job in jobs if job.exception() is not None]
    assert len(failed) == 1
    assert isinstance(failed[0].exception(), BadJob)
    mine = directory if failed[0] is jobs[1] else tmp_path / "other"
    assert {(q, body) for _, _, q, body in tiered(spark, out)} <= {
        (q, body) for _, _, q, body in stored(mine)
    }


def verified(out: Path) -> Iterator[str]:
    """What is wrong with the files that manifests name."""
    for path in (out / MANIFEST).glob("*/*.json"):
        for file in read_manifest(path)["files"]:
            if file_crc32(out / file["path"]) != file["crc32"]:
                yield file["path"]


def test_a_file_that_is_not_what_was_written_is_an_error_that_names_it(
    out: Path, spark: SparkSession, directory: Path, node: NodeProcess
) -> None:
    tier(spark, directory, out)
    path = out / json.loads(manifest(out).read_text())["files"][0]["path"]
    good = path.read_bytes()
    other = sorted(out.glob("topic=*/*/*.parquet"))[-1].read_bytes()
    flipped = bytearray(good)
    flipped[len(good) // 2] ^= 1
    schema = to_arrow_schema(SCHEMA, timezone="UTC")

    def rows() -> int:
        found = Tier(str(out))
        spans = found._spans
        ranges = [QueueRange(queue, 0, 1 << 40) for queue in spans]
        parts = found.parts(ranges)
        return sum(batch.num_rows for part in parts for batch in read_tier(part, schema, ()))

    whole = rows()
    assert whole == sum(tiered(spark, out).values())
    for bad in (good[:-1], b"", bytes(flipped), bytes(len(good)), other, good + b"x", None):
        if bad is None:
            path.unlink()
        else:
            path.write_bytes(bad)
        with pytest.raises(TierDamaged, match=re.escape(str(path))):
            rows()
        if bad is None or len(bad) != len(good):
            with pytest.raises(BadJob, match=re.escape(str(path))):
                tier(spark, directory, out)
    path.write_bytes(good)
    assert rows() == whole
    text = manifest(out).read_text()
    manifest(out).write_text(text.replace('"rows": ', '"rows": 1', 1))
    with pytest.raises(
        BadJob, match=f"{manifest(out).name} does not say .* checksum does not match"
    ):
        tier(spark, directory, out)
    with pytest.raises(BadRequest, match=f"{manifest(out).name} is not a valid manifest"):
        rows()
    manifest(out).write_text(text)
    made = json.loads(text)
    del made["log"]
    manifest(out).write_text(json.dumps(made))
    with pytest.raises(BadJob, match=f"{manifest(out).name} does not say whose log"):
        tier(spark, directory, out)
    assert rows() == whole


def test_an_archive_of_another_log_is_not_read_beside_a_node(
    out: Path, spark: SparkSession, node: NodeProcess, client: duolog.sync.Client, tmp_path: Path
) -> None:
    """Two nodes of the same name: their logs have other epochs."""
    other = NodeProcess(tmp_path / "data", *NODE)
    other.start()
    try:
        with duolog.sync.Client(other.endpoint) as made, made.producer() as producer:
            made.admin.create_topic("orders", 1)
            for _ in range(60):
                producer.send_batch("orders", [bytes(400)] * 20)
        assert other.stop() == 0  # what is confirmed is noted
        other.start()
        assert len(tier(spark, tmp_path / "data", out)) >= 2
        assert read(spark, other, topic="orders", tier=out).load().count() == 1200
        with contextlib.suppress(duolog.TopicExists):  # another test's
            client.admin.create_topic("orders", 1)
        with pytest.raises(Exception, match="holds another log for replica group 'broker-a'"):
            read(spark, node, topic="orders", tier=out).load().count()
    finally:
        assert other.stop() == 0


def test_an_invalid_group_name_is_refused(directory: Path, tmp_path: Path) -> None:
    for group in ("", "../x", "a/b", ".", "..", "x" * 200):
        with pytest.raises(BadJob, match="is not a valid name"):
            Archive(tmp_path / "out", group)
