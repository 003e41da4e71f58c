"""Tiering: sealed segments as Parquet, committed once, read as one table with the node."""

import json
import os
import random
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import duolog.sync
import pytest
from duolog.spark._plan import Queue
from duolog.spark._tier import MANIFEST, Tier
from pyspark.sql import SparkSession

from pipeline import tier as tiers
from pipeline.errors import BadJob
from pipeline.segments import segments_of
from pipeline.tier import TierJob, tier, tier_segment
from store.messagestore import MessageStore
from store.osdisk import OsDisk
from tests.process.support import NodeProcess
from tests.spark.conftest import read
from tests.spark.test_audit import flip, records
from tests.support import NOW, options, put_ok

pytestmark = [pytest.mark.spark, pytest.mark.process, pytest.mark.timeout(180)]

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


def fill(path: Path) -> None:
    dice = random.Random(3)
    store = MessageStore(OsDisk(path), CHOSEN)
    store.start()
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
    store = MessageStore(OsDisk(directory), CHOSEN)
    store.start()
    found = {}
    for topic in TOPICS:
        for queue_id in range(3):
            offset = 0
            while (result := store.get(topic, queue_id, offset, 1000, 1 << 20)).count:
                for numbers, body, _ in result.rows():
                    found[topic, queue_id, numbers[0], body] = numbers[1] // SEGMENT
                offset = result.next_offset
    store.shutdown()
    return found


def test_sealed_segments_by_topic_and_day_once(
    spark: SparkSession, directory: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
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


def test_a_job_that_dies_at_any_step_is_done_again_without_loss_or_doubling(
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
        close, fsync, O_RDONLY = os.close, os.fsync, os.O_RDONLY

    monkeypatch.setattr(tiers, "os", Os)
    out.mkdir()
    for segment in segments:
        dies_at = 1
        while True:
            steps = 0
            try:
                tier_segment(TierJob(segment, str(out), "broker-a", "zstd"))
                break
            except KeyboardInterrupt:
                dies_at += 1 if segment is segments[0] else 5
        assert dies_at > 6
    monkeypatch.undo()
    assert all(one.before for one in tier(spark, directory, out))
    assert tiered(spark, out) == Counter(k for k, s in known.items() if s < last)


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
        with pytest.raises(Exception, match="is no manifest"):
            rows()
    finally:
        assert node.stop() == 0


def test_what_cannot_be_tiered_is_said(
    spark: SparkSession, directory: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    offset, size = records(directory)[10]
    shutil.copytree(directory, tmp_path / "damaged")
    flip(tmp_path / "damaged", offset + size // 2)
    with pytest.raises(Exception, match="has no valid record at"):
        tier(spark, tmp_path / "damaged", out)
    assert not list(out.glob("_manifest/*/00000000000000000000.json"))
    (tmp_path / "file").write_text("")
    with pytest.raises(BadJob, match="is no directory"):
        tier(spark, directory, tmp_path / "file")


def test_a_segment_that_is_missing_ends_what_files_are_read_for(tmp_path: Path) -> None:
    folder = tmp_path / MANIFEST / "g"
    folder.mkdir(parents=True)
    for number, span in ((0, [0, 10]), (1, [10, 25]), (3, [40, 50])):
        files = [{"path": f"{number}.parquet", "topic": "T", "queues": {"0": span}}]
        (folder / f"{number}.json").write_text(json.dumps({"group": "g", "files": files}))
    found = Tier(str(tmp_path))
    assert found.reach(Queue("T", "g", 0)) == (0, 25)
    assert found.reach(Queue("T", "g", 1)) is None
